"""The points of a sweep: every combination of the values of all `--vary`.

A point is a whole command with flags as typed, so every flag can be varied:

    gpus=64,256,1024                                   numbers of GPUs; the grid follows
    grid=z=2,x=4;z=4,x=2                               semicolons separate values that contain commas
    overlap=none;oar,ors,oag                           likewise for lists
    set:topology.bandwidth_bytes_per_second=x1,x2      as --set
    fail=none,leaf:0>spine:0                           as --fail; `none` for no fault, + joins several faults
    dtype=float32,bfloat16                             any other flag that changes a prediction

With --collective, the flags are those of `quadrille collective`:

    collective=all-gather,all-reduce                   kind of collective
    bytes=1MiB,1GiB                                    and group, stride, concurrent, collectives, channels, …

A value that no combination accepts is refused before anything runs (`sweep_checks.py`). An impossible combination (a
grid that the algorithm does not support, too many GPUs) is a point whose answer is the reason.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, overload

from quadrille.algorithms.errors import InputError
from quadrille.cli.parsing.flags import CollectiveFlags, MatmulFlags, TrainingFlags
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.experiments.sweep.varied_key import COLLECTIVE_KEY, VariedKey
from quadrille.topologies.machines.machine import Machine

MOST_POINTS = 1_000_000
LISTS = ("matmul", "mlp", "gpt", "grid", "order", "overlap", "placement", "jitter")
"""Keys whose values contain commas, so that only semicolons separate the values."""
FAULTS = ("fail", "degrade", "slow")
NONE = "none"
SETTING = "set:"
MACHINES_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFlags:
    """The flags of one point as typed.

    Parameters
    ----------
    experiment : flags of a multiplication or of training steps
    collective : flags of a collective, which replaces the experiment; None for an experiment
    on : flags of the machine
    gpus : number of GPUs as typed; empty if it follows from the grid
    best_grid : whether all grids with this number of ranks are searched
    top : number of grids simulated in this search
    """

    experiment: MatmulFlags = field(default_factory=TrainingFlags)
    collective: CollectiveFlags | None = None
    on: MachineFlags = field(default_factory=MachineFlags)
    gpus: str = ""
    best_grid: bool = False
    top: int = 3

    def given(self, key: str, value: str) -> "SweepFlags":
        """The flags of the point with one flag changed, or one fault or setting added.

        >>> asked = SweepFlags().given("dtype", "float64").given("set:device.memory_bytes", "x2").given("fail", "none")
        >>> asked.experiment.dtype, asked.on.settings, asked.on.fail
        ('float64', ('device.memory_bytes=x2',), ())
        """
        if key == "gpus":
            return replace(self, gpus=value)
        if key.startswith(SETTING):
            return replace(
                self, on=replace(self.on, settings=(*self.on.settings, f"{key.removeprefix(SETTING)}={value}"))
            )
        if key in FAULTS:
            more = () if value == NONE else tuple(value.split("+"))
            faults: dict[str, Any] = {key: (*getattr(self.on, key), *more)}
            return replace(self, on=replace(self.on, **faults))
        changed: dict[str, Any] = {key: value}
        if key in MACHINE_KEYS:
            return replace(self, on=replace(self.on, **changed))
        if self.collective is not None:
            changed = {"kind" if key == COLLECTIVE_KEY else key: value}
            return replace(self, collective=replace(self.collective, **changed))
        return replace(self, experiment=replace(self.experiment, **changed))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that can be varied, besides settings."""
        return KEYS if self.collective is None else COLLECTIVE_KEYS

    def machine(self, gpus: int | None = None) -> Machine:
        """The machine of the point; a named machine has this number of GPUs, and a collective may use a topology."""
        return machine_of(self.on, gpus, topology_suffices=self.collective is not None)


SWITCHES = ("sequence_parallel", "sparse_states", "approximate", "fp8_param_gather")
"""The switches among the flags, which cannot be varied."""
FLAG_KEYS = tuple(field.name for field in fields(TrainingFlags) if field.name not in SWITCHES)
COLLECTIVE_FLAG_KEYS = (
    COLLECTIVE_KEY,
    *(field.name for field in fields(CollectiveFlags) if field.name not in ("kind", "gpus")),
)
MACHINE_KEYS = ("machine", "routing")
KEYS = ("gpus", *FLAG_KEYS, *MACHINE_KEYS, *FAULTS)
COLLECTIVE_KEYS = ("gpus", *COLLECTIVE_FLAG_KEYS, *MACHINE_KEYS, "fail", "degrade")


def parse_vary(text: str, keys: Sequence[str] = KEYS) -> VariedKey:
    """The key and the values of one `--vary`.

    >>> parse_vary("gpus=64,256"), parse_vary("micro-batch=1,2")
    (VariedKey(key='gpus', values=('64', '256')), VariedKey(key='micro_batch', values=('1', '2')))

    Raises
    ------
    InputError : an unknown key, no value, an empty or repeated one
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    if key.replace("-", "_") in keys:  # as the flag is typed
        key = key.replace("-", "_")
    if not equals or not key:
        raise InputError(f"--vary {text}: write KEY=VALUE,VALUE,…, as gpus=64,256,1024")
    if key not in keys and not (key.startswith(SETTING) and key != SETTING):
        hint = "; with --collective KIND also those of a collective" if key in COLLECTIVE_KEYS else ""
        raise InputError(f"--vary {key:.60}: accepted are {', '.join(keys)} and set:PATH{hint}")
    separator = ";" if ";" in rest or key in LISTS else ","
    values = tuple(value.strip() for value in rest.split(separator))
    if not all(values):
        raise InputError(f"--vary {text:.120}: a value is empty; write KEY=VALUE{separator}VALUE{separator}…")
    repeated = [value for value, times in Counter(values).items() if times > 1]
    if repeated:
        raise InputError(f"--vary {text:.120}: repeats {repeated[0]}; give each value once")
    return VariedKey(key, values)


def parse_varied(texts: Sequence[str], keys: Sequence[str] = KEYS) -> tuple[VariedKey, ...]:
    """The varied keys with their values, in the order typed.

    Raises
    ------
    InputError : no --vary, a key given twice, or more than `MOST_POINTS` points
    """
    if not texts:
        raise InputError("vary is missing: --vary KEY=VALUE,VALUE,… is needed, as --vary gpus=64,256,1024")
    varied = tuple(parse_vary(text, keys) for text in texts)
    varied_keys = [varied_key.key for varied_key in varied]
    for place, key in enumerate(varied_keys):
        if key in varied_keys[:place]:
            raise InputError(f"--vary {key} is given twice: put all its values into one")
    count = prod(len(varied_key.values) for varied_key in varied)
    if count > MOST_POINTS:
        raise InputError(f"--vary: {count} points; a sweep takes at most {MOST_POINTS}, leave out some values")
    return varied


def points(base: SweepFlags, varied: Sequence[VariedKey]) -> Iterator[tuple[dict[str, str], SweepFlags]]:
    """Every combination: the value of each key, and the flags of the point; the last key changes fastest.

    >>> [point for point, _ in points(SweepFlags(), [VariedKey("gpus", ("1", "2")), VariedKey("dtype", ("float32",))])]
    [{'gpus': '1', 'dtype': 'float32'}, {'gpus': '2', 'dtype': 'float32'}]
    """
    return iter(SweptPoints(base, varied))


class SweptPoints(Sequence[tuple[dict[str, str], SweepFlags]]):
    """The combinations of `points` as a sequence; each is made when it is taken, and none is kept.

    >>> combined = SweptPoints(SweepFlags(), [VariedKey("gpus", ("1", "2")), VariedKey("top", ("3", "4", "5"))])
    >>> len(combined), combined.values(4), combined.values(-1)
    (6, ('2', '4'), ('2', '5'))
    """

    def __init__(self, base: SweepFlags, varied: Sequence[VariedKey]) -> None:
        self._base, self._varied = base, varied
        self._count = prod(len(varied_key.values) for varied_key in varied)

    def __len__(self) -> int:
        return self._count

    def values(self, place: int) -> tuple[str, ...]:
        """The value of each key at a place."""
        place = range(self._count)[place]
        chosen = []
        for varied_key in reversed(self._varied):
            place, digit = divmod(place, len(varied_key.values))
            chosen.append(varied_key.values[digit])
        return tuple(reversed(chosen))

    @overload
    def __getitem__(self, place: int) -> tuple[dict[str, str], SweepFlags]: ...

    @overload
    def __getitem__(self, place: slice) -> list[tuple[dict[str, str], SweepFlags]]: ...

    def __getitem__(
        self, place: int | slice
    ) -> tuple[dict[str, str], SweepFlags] | list[tuple[dict[str, str], SweepFlags]]:
        if isinstance(place, slice):
            return [self._point(self.values(number)) for number in range(self._count)[place]]
        return self._point(self.values(place))

    def __iter__(self) -> Iterator[tuple[dict[str, str], SweepFlags]]:
        return map(self._point, product(*(varied_key.values for varied_key in self._varied)))

    def _point(self, values: Sequence[str]) -> tuple[dict[str, str], SweepFlags]:
        asked = self._base
        point = {varied_key.key: value for varied_key, value in zip(self._varied, values, strict=True)}
        for key, value in point.items():
            asked = asked.given(key, value)
        return point, asked


@lru_cache(MACHINES_KEPT)
def machine_of(on: MachineFlags, gpus: int | None = None, *, topology_suffices: bool = False) -> Machine:
    """The machine that the flags describe, with this number of GPUs if it is a named machine; cached."""
    return chosen_machine(on, gpus, topology_suffices=topology_suffices)
