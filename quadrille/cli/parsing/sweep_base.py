"""From the flags of `quadrille sweep` to the flags that all points have in common."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.short_names import flag_word
from quadrille.cli.parsing.flags import CollectiveFlags, TrainingFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.numbers import whole_number
from quadrille.cli.parsing.sweep_points import COLLECTIVE_FLAG_KEYS, FLAG_KEYS, SWITCHES, SweepFlags
from quadrille.experiments.sweep.varied_key import COLLECTIVE_KEY

MATMULS_OWN = tuple(name for name in (*FLAG_KEYS, "best_grid", "top") if name not in COLLECTIVE_FLAG_KEYS)
COLLECTIVES_OWN = tuple(name for name in COLLECTIVE_FLAG_KEYS if name not in FLAG_KEYS)


def base_of(values: Mapping[str, Any], on: MachineFlags, vary: Sequence[str], typed: Collection[str]) -> SweepFlags:
    """The flags that all points of a sweep have in common.

    >>> flags = {"collective": "all-gather", "bytes": "1MiB", "dtype": "float32", "gpus": "8", "top": "3"}
    >>> base_of(flags, MachineFlags(), ["group=2,4"], ["collective", "bytes", "gpus"]).collective.dtype
    ''

    Parameters
    ----------
    values : values of all flags, by name
    on : flags of the machine
    vary : values of --vary
    typed : names of the flags that were typed

    Raises
    ------
    InputError : flags of a multiplication and of a collective together
    """
    keys = [text.partition("=")[0].strip() for text in vary]
    if values.get(COLLECTIVE_KEY) or COLLECTIVE_KEY in keys:
        if alien := [name for name in MATMULS_OWN if name in typed]:
            raise InputError(
                f"{flag_word(alien[0])} is for multiplications, and a collective is asked for: leave one out"
            )
        own = {
            field.name: values[field.name]
            for field in fields(CollectiveFlags)
            if field.name in typed and field.name != "gpus"
        }
        return SweepFlags(
            collective=CollectiveFlags(kind=values.get(COLLECTIVE_KEY, ""), **own), on=on, gpus=values["gpus"]
        )
    if alien := [name for name in COLLECTIVES_OWN if name in typed]:
        raise InputError(
            f"{flag_word(alien[0])} is for collectives: give --collective KIND too, as --collective all-reduce"
        )
    return SweepFlags(
        experiment=_experiment_flags(values, typed),
        on=on,
        gpus=values["gpus"],
        best_grid=values["best_grid"],
        top=whole_number(values["top"], "--top"),
    )


def _experiment_flags(values: Mapping[str, Any], typed: Collection[str]) -> TrainingFlags:
    """The flags of a multiplication or of training steps; the dtype of training steps is empty unless it was typed."""
    flags = TrainingFlags(**{name: values[name] for name in (*FLAG_KEYS, *SWITCHES)})
    trains = bool(flags.mlp or flags.gpt)
    return replace(flags, dtype="") if trains and "dtype" not in typed else flags
