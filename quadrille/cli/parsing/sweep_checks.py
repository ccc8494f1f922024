"""Checks of a sweep before anything runs: they refuse values of `--vary` that no point can have.

Each value is tried with the first values of the other keys. A setting or a fault is refused if no machine of the sweep
can have it. Flags that exclude each other only in combination (a group that does not divide the GPUs) are found at each
point.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.cli.parsing.collectives import parse_kind, parse_question
from quadrille.cli.parsing.experiment import experiment_of
from quadrille.cli.parsing.flags import AUTO, KINDS, CollectiveFlags, MatmulFlags, TrainingFlags
from quadrille.cli.parsing.gpus import FOLLOWS
from quadrille.cli.parsing.matmul import parse_problem
from quadrille.cli.parsing.numbers import whole_number
from quadrille.cli.parsing.sweep_points import COLLECTIVE_FLAG_KEYS, FAULTS, FLAG_KEYS, NONE, SweepFlags, points
from quadrille.experiments.sweep.varied_key import COLLECTIVE_KEY, VariedKey
from quadrille.simulator.machine.network import network_of, speeds_of

PLACES = 10**15
"""A number of GPUs that is larger than any group needs."""
BARRIER = "barrier"


def check(base: SweepFlags, varied: Sequence[VariedKey]) -> None:
    """Refuse a sweep with a value that no point can have.

    Parameters
    ----------
    base : flags that all points have in common
    varied : keys of `--vary` with their values

    Raises
    ------
    InputError : naming the key, the value and what would be accepted
    """
    counts = _values_of(base.gpus, "gpus", varied)
    gpus = max((whole_number(count, "gpus") for count in counts if count), default=None)
    if base.collective is None:
        _check_follows(base, varied, counted=gpus is not None)
    machines = _values_of(base.on.machine, "machine", varied)
    if machines == (base.on.machine,):
        base.machine(gpus if base.collective is not None else None)
    for varied_key in varied:
        for value in varied_key.values:
            try:
                _check_value(base, varied_key.key, value, machines, gpus)
            except InputError as error:
                raise InputError(f"--vary {varied_key.key}={value}: {error}") from None
    if base.collective is None:
        flags = [varied_key for varied_key in varied if varied_key.key in FLAG_KEYS]
        _check_flags(next(asked for _, asked in points(base, flags)).experiment)
    else:
        _check_collective(base, base.collective, varied)


def _values_of(base_value: str, key: str, varied: Sequence[VariedKey]) -> tuple[str, ...]:
    """All values of a key in the sweep."""
    return next((varied_key.values for varied_key in varied if varied_key.key == key), (base_value,))


def _check_value(base: SweepFlags, key: str, value: str, machines: Sequence[str], gpus: int | None) -> None:
    """Refuse one value that no point can have, on these machines with at most `gpus` GPUs."""
    if key == "gpus":
        return
    if base.collective is not None and key in COLLECTIVE_FLAG_KEYS:
        _check_alone(key, value)
    elif base.collective is None and key in FLAG_KEYS:
        _check_flags(SweepFlags(experiment=_plain(base, key, value)).given(key, value).experiment)
    else:
        refused = []
        for machine in (value,) if key == "machine" else machines:
            try:
                changed = base.given("machine", machine).given(key, value).machine(gpus)
                if key in FAULTS and value != NONE:
                    speeds_of(changed, network_of(changed))
            except InputError as error:
                refused.append(error)
            else:
                return
        raise refused[0]


# Multiplications


def _check_flags(flags: MatmulFlags) -> None:
    """Refuse a flag value that is never accepted; whether the grid suits the algorithm is checked at each point."""
    parse_grid(flags.grid.replace(FOLLOWS, "1"))
    usual = MatmulFlags()
    if flags.matmul:
        parse_problem(flags)
        flags = replace(flags, transposed=usual.transposed)
    experiment_of(replace(flags, grid=usual.grid))


def _plain(base: SweepFlags, key: str, value: str) -> TrainingFlags:
    """Flags of a minimal experiment with which every acceptable value of a key is accepted."""
    texts = {kind: getattr(base.experiment, kind, "") for kind in KINDS} | ({key: value} if key in KINDS else {})
    trained = next((kind for kind in KINDS if texts[kind] and kind != "matmul"), None)
    if trained is None or key == "matmul":
        return TrainingFlags(matmul="1,1,1")
    flags = TrainingFlags(batch="1")
    return replace(flags, gpt=texts[trained]) if trained == "gpt" else replace(flags, mlp=texts[trained])


def _check_follows(base: SweepFlags, varied: Sequence[VariedKey], *, counted: bool) -> None:
    """Refuse a number of GPUs that the grid does not follow, and a grid where the best one is asked for."""
    grids = _values_of(base.experiment.grid, "grid", varied)
    if base.best_grid:
        if grids != (MatmulFlags().grid,):
            raise InputError(f"--best-grid chooses the grid: leave out the grid {grids[0]!r}")
        if not counted:
            raise InputError("--best-grid needs a number of GPUs: give --gpus N or --vary gpus=N,…")
        if AUTO in _values_of(base.experiment.order, "order", varied):
            raise InputError(
                f"order '{AUTO}': --best-grid tries one order of ranks: name it, as z,y,x,data, or ask rank"
            )
        return
    for grid in grids:
        if counted and (grid.count(FOLLOWS) > 1 or grid == MatmulFlags().grid):
            raise InputError(
                f"gpus: the grid {grid!r} does not follow them; give --best-grid, or a grid with one length {FOLLOWS}, "
                f"as data={FOLLOWS},x=4"
            )
        if FOLLOWS in grid and not counted:
            needed = "give --gpus N or --vary gpus=N,…"
            raise InputError(f"grid {grid!r}: {FOLLOWS} follows from the number of GPUs; {needed}")


# Collectives


def _check_collective(base: SweepFlags, flags: CollectiveFlags, varied: Sequence[VariedKey]) -> None:
    """Refuse each flag value that no collective accepts, and a missing size."""
    if base.best_grid:
        raise InputError("--best-grid: a collective has no grid; --group and --stride say which ranks it joins")
    kinds = _values_of(flags.kind, COLLECTIVE_KEY, varied)
    if not all(kinds):
        raise InputError("collective is missing: --collective KIND is needed, as --collective all-reduce")
    for field in fields(CollectiveFlags):
        value = getattr(flags, field.name)
        if field.name not in ("gpus", "kind") and value != field.default:
            _check_alone(field.name, value)
    for kind in kinds:
        if parse_kind(kind) != BARRIER and not all(_values_of(flags.bytes, "bytes", varied)):
            raise InputError(f"bytes is missing: {kind} needs --bytes SIZE or --vary bytes=SIZE,…, as 1MiB")


def _check_alone(key: str, value: str) -> None:
    """Refuse a flag that no collective of any group on any machine can have."""
    plain = SweepFlags(collective=CollectiveFlags(kind="broadcast", bytes="1")).given(key, value).collective
    assert plain is not None
    if key == COLLECTIVE_KEY and parse_kind(value) == BARRIER:
        plain = replace(plain, bytes="")
    parse_question(plain, PLACES)
