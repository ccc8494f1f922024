"""What a sweep varies, and the points that come of it: every combination of the values of all `--vary`.

A point is a whole command, flags as they would be typed, so that whatever a
flag accepts can be varied:

    gpus=64,256,1024                                   numbers of GPUs; the grid follows
    grid=z=2,x=4;z=4,x=2                               values that hold commas stand between semicolons
    overlap=none;oar,ors,oag                           as do lists
    set:topology.bandwidth_bytes_per_second=x1,x2      as --set
    fail=none,leaf:0>spine:0                           as --fail; `none` is none, + joins several
    dtype=float32,bfloat16                             any other flag that changes a prediction

What can never be, whatever the other values are, is refused before anything
runs.  A combination that cannot be (a grid that the algorithm does not run on,
too many GPUs) is a point whose answer is the reason.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from math import isfinite, prod
from typing import Any

from algorithms.errors import InputError
from algorithms.grid import DEFAULT_ORDER, Axis, Grid, parse_grid
from algorithms.machine import Machine
from simulator.machine_network import network_of, speeds_of
from studies.experiment import Flags, parse_experiment, whole_number
from studies.machine_flags import MachineFlags, chosen_machine

MOST_POINTS = 100_000
LISTS = ("matmul", "grid", "order", "overlap", "placement")
"""Keys whose values hold commas, so that only semicolons separate them."""
FAULTS = ("fail", "degrade", "slow")
NONE = "none"
SETTING = "set:"
FOLLOWS = "*"
"""The length of the axis that follows from the number of GPUs, in a grid."""
MACHINES_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked at one point, as it would be typed.

    Parameters
    ----------
    gpus : how many, empty where the grid says it
    best_grid : whether all grids of so many ranks are searched
    top : grids simulated in this search
    """

    flags: Flags = field(default_factory=Flags)
    on: MachineFlags = field(default_factory=MachineFlags)
    gpus: str = ""
    best_grid: bool = False
    top: int = 3

    def given(self, key: str, value: str) -> "Asked":
        """The same with one flag changed, or one fault or setting more.

        >>> asked = Asked().given("dtype", "float64").given("set:device.memory_bytes", "x2").given("fail", "none")
        >>> asked.flags.dtype, asked.on.settings, asked.on.fail
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
        return replace(self, flags=replace(self.flags, **changed))


FLAG_KEYS = tuple(one.name for one in fields(Flags))
MACHINE_KEYS = ("machine", "routing")
KEYS = ("gpus", *FLAG_KEYS, *MACHINE_KEYS, *FAULTS)


@dataclass(frozen=True, slots=True)
class Varied:
    """One key and its values, as typed."""

    key: str
    values: tuple[str, ...]

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The values as numbers, a factor as what it multiplies by; None if one is no number.

        >>> Varied("set:device.memory_bytes", ("x1", "x2")).numbers, Varied("dtype", ("float32",)).numbers
        ((1.0, 2.0), None)
        """
        try:
            found = tuple(float(value.removeprefix("x")) for value in self.values)
        except ValueError:
            return None
        return found if all(map(isfinite, found)) else None


def parse_vary(text: str) -> Varied:
    """The key and the values of one `--vary`.

    >>> parse_vary("gpus=64,256"), parse_vary("overlap=none;oar,ors")
    (Varied(key='gpus', values=('64', '256')), Varied(key='overlap', values=('none', 'oar,ors')))

    Raises
    ------
    InputError : an unknown key, no value, an empty or repeated one
    """
    key, equals, rest = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"--vary {text}: write KEY=VALUE,VALUE,…, as gpus=64,256,1024")
    if key not in KEYS and not (key.startswith(SETTING) and key != SETTING):
        raise InputError(f"--vary {key}: accepted are {', '.join(KEYS)} and set:PATH")
    separator = ";" if ";" in rest or key in LISTS else ","
    values = tuple(value.strip() for value in rest.split(separator))
    if not all(values):
        raise InputError(f"--vary {text:.120}: a value is empty; write KEY=VALUE{separator}VALUE{separator}…")
    repeated = [value for value, times in Counter(values).items() if times > 1]
    if repeated:
        raise InputError(f"--vary {text:.120}: repeats {repeated[0]}; give each value once")
    return Varied(key, values)


def parse_varied(texts: Sequence[str]) -> tuple[Varied, ...]:
    """All that is varied, in the order given.

    Raises
    ------
    InputError : nothing, a key given twice, more points than a sweep takes
    """
    if not texts:
        raise InputError("vary is missing: --vary KEY=VALUE,VALUE,… is needed, as --vary gpus=64,256,1024")
    varied = tuple(map(parse_vary, texts))
    keys = [one.key for one in varied]
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise InputError(f"--vary {key} is given twice: put all its values into one")
    count = prod(len(one.values) for one in varied)
    if count > MOST_POINTS:
        raise InputError(f"--vary: {count} points; a sweep takes at most {MOST_POINTS}, leave out some values")
    return varied


def points(base: Asked, varied: Sequence[Varied]) -> Iterator[tuple[dict[str, str], Asked]]:
    """Every combination: the value of each key, and what is asked there; the last key changes fastest.

    >>> [point for point, _ in points(Asked(), [Varied("gpus", ("1", "2")), Varied("dtype", ("float32",))])]
    [{'gpus': '1', 'dtype': 'float32'}, {'gpus': '2', 'dtype': 'float32'}]
    """
    for values in product(*(one.values for one in varied)):
        asked = base
        point = {one.key: value for one, value in zip(varied, values, strict=True)}
        for key, value in point.items():
            asked = asked.given(key, value)
        yield point, asked


def check(base: Asked, varied: Sequence[Varied]) -> None:
    """Refuse what can never be, before anything runs: each value is tried with the first values of the other keys.

    A setting or a fault is refused if no machine of the sweep can have it.

    Raises
    ------
    InputError : naming the key, the value and what would be accepted
    """
    counts = next((one.values for one in varied if one.key == "gpus"), (base.gpus,) if base.gpus else ())
    gpus = max((whole_number(count, "gpus") for count in counts), default=None)
    _check_follows(base, varied, counted=gpus is not None)
    machines = next((one.values for one in varied if one.key == "machine"), (base.on.machine,))
    if machines == (base.on.machine,):
        machine_of(base.on)
    for one in varied:
        for value in one.values:
            try:
                _check_value(base, one.key, value, machines, gpus)
            except InputError as error:
                raise InputError(f"--vary {one.key}={value}: {error}") from None
    flags = [one for one in varied if one.key in FLAG_KEYS]
    _check_flags(next(asked for _, asked in points(base, flags)).flags)


def _check_value(base: Asked, key: str, value: str, machines: Sequence[str], gpus: int | None) -> None:
    """Refuse one value that no point can have, on these machines with at most so many GPUs."""
    if key == "gpus":
        return
    if key in FLAG_KEYS:
        _check_flags(Asked(flags=Flags(matmul="1,1,1")).given(key, value).flags)
    else:
        refused = []
        for machine in (value,) if key == "machine" else machines:
            try:
                found = machine_of(base.given("machine", machine).given(key, value).on, gpus)
                if key in FAULTS and value != NONE:
                    speeds_of(found, network_of(found))
            except InputError as error:
                refused.append(error)
            else:
                return
        raise refused[0]


def _check_flags(flags: Flags) -> None:
    """Refuse a flag that can never be; whether the grid suits the algorithm and the GPUs is seen at each point."""
    parse_grid(flags.grid.replace(FOLLOWS, "1"))
    parse_experiment(replace(flags, grid=Flags().grid))


def _check_follows(base: Asked, varied: Sequence[Varied], *, counted: bool) -> None:
    """Refuse a number of GPUs that the grid does not follow, and a grid where the best one is asked for."""
    grids = next((one.values for one in varied if one.key == "grid"), (base.flags.grid,))
    if base.best_grid:
        if grids != (Flags().grid,):
            raise InputError(f"--best-grid chooses the grid: leave out the grid {grids[0]!r}")
        if not counted:
            raise InputError("--best-grid needs a number of GPUs: give --gpus N or --vary gpus=N,…")
        return
    for grid in grids:
        if counted and grid.count(FOLLOWS) != 1:
            raise InputError(
                f"gpus: the grid {grid!r} does not follow them; give --best-grid, or a grid with one length {FOLLOWS}, "
                f"as data={FOLLOWS},x=4"
            )
        if FOLLOWS in grid and not counted:
            needed = "give --gpus N or --vary gpus=N,…"
            raise InputError(f"grid {grid!r}: {FOLLOWS} follows from the number of GPUs; {needed}")


@lru_cache(MACHINES_KEPT)
def machine_of(on: MachineFlags, gpus: int | None = None) -> Machine:
    """The machine that the flags name, with so many GPUs if it is known by name; made once."""
    return chosen_machine(on, gpus)


def following(text: str, gpus: int, order: tuple[Axis, ...] = DEFAULT_ORDER) -> Grid:
    """The grid of so many ranks whose one length `*` follows from the others.

    >>> str(following("data=*,x=4", 64))
    'data=16,x=4'

    Raises
    ------
    InputError : a number of GPUs that the other lengths do not divide
    """
    others = parse_grid(text.replace(FOLLOWS, "1"), order).size
    if gpus % others:
        count = f"{gpus} GPU{'s' if gpus > 1 else ''}"
        raise InputError(f"grid {text!r}: {count} cannot be shared out over groups of {others}, its other lengths")
    return parse_grid(text.replace(FOLLOWS, str(gpus // others)), order)
