"""What a sweep varies, and the points that come of it: every combination of the values of all `--vary`.

A point is a whole command, flags as they would be typed, so that whatever a
flag accepts can be varied:

    gpus=64,256,1024                                   numbers of GPUs; the grid follows
    grid=z=2,x=4;z=4,x=2                               values that hold commas stand between semicolons
    overlap=none;oar,ors,oag                           as do lists
    set:topology.bandwidth_bytes_per_second=x1,x2      as --set
    fail=none,leaf:0>spine:0                           as --fail; `none` is none, + joins several
    dtype=float32,bfloat16                             any other flag that changes a prediction

Where a collective is asked for, the flags are those of `quadrille collective`:

    collective=all-gather,all-reduce                   the kind
    bytes=1MiB,1GiB                                    and group, stride, concurrent, collectives, channels, …

What can never be, whatever the other values are, is refused before anything
runs.  A combination that cannot be (a grid that the algorithm does not run on,
too many GPUs) is a point whose answer is the reason.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.cli.words.flags import CollectiveWords, MatmulWords, TrainingWords
from quadrille.cli.words.machines import MachineWords, chosen_machine
from quadrille.experiments.sweep.varied_key import COLLECTIVE_KEY, VariedKey
from quadrille.topologies.machines.machine import Machine

MOST_POINTS = 100_000
LISTS = ("matmul", "mlp", "gpt", "grid", "order", "overlap", "placement")
"""Keys whose values hold commas, so that only semicolons separate them."""
FAULTS = ("fail", "degrade", "slow")
NONE = "none"
SETTING = "set:"
MACHINES_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepWords:
    """The words of one point, as they would be typed: of a multiplication, training steps or a collective.

    Parameters
    ----------
    gpus : how many, empty where the grid says it
    best_grid : whether all grids of so many ranks are searched
    top : grids simulated in this search
    """

    flags: MatmulWords = field(default_factory=TrainingWords)
    collective: CollectiveWords | None = None
    on: MachineWords = field(default_factory=MachineWords)
    gpus: str = ""
    best_grid: bool = False
    top: int = 3

    def given(self, key: str, value: str) -> "SweepWords":
        """The same with one flag changed, or one fault or setting more.

        >>> asked = SweepWords().given("dtype", "float64").given("set:device.memory_bytes", "x2").given("fail", "none")
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
        if self.collective is not None:
            changed = {"kind" if key == COLLECTIVE_KEY else key: value}
            return replace(self, collective=replace(self.collective, **changed))
        return replace(self, flags=replace(self.flags, **changed))

    @property
    def keys(self) -> tuple[str, ...]:
        """What can be varied besides settings."""
        return KEYS if self.collective is None else COLLECTIVE_KEYS

    def machine(self, gpus: int | None = None) -> Machine:
        """The machine, with so many GPUs if it is known by name; a topology alone is enough for a collective."""
        return machine_of(self.on, gpus, topology_suffices=self.collective is not None)


SWITCH = "sequence_parallel"
"""The only flag that is given or not, which no value varies."""
FLAG_KEYS = tuple(field.name for field in fields(TrainingWords) if field.name != SWITCH)
COLLECTIVE_FLAG_KEYS = (
    COLLECTIVE_KEY,
    *(field.name for field in fields(CollectiveWords) if field.name not in ("kind", "gpus")),
)
MACHINE_KEYS = ("machine", "routing")
KEYS = ("gpus", *FLAG_KEYS, *MACHINE_KEYS, *FAULTS)
COLLECTIVE_KEYS = ("gpus", *COLLECTIVE_FLAG_KEYS, *MACHINE_KEYS, "fail", "degrade")


def parse_vary(text: str, keys: Sequence[str] = KEYS) -> VariedKey:
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
    """All that is varied, in the order given.

    Raises
    ------
    InputError : nothing, a key given twice, more points than a sweep takes
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


def points(base: SweepWords, varied: Sequence[VariedKey]) -> Iterator[tuple[dict[str, str], SweepWords]]:
    """Every combination: the value of each key, and what is asked there; the last key changes fastest.

    >>> [point for point, _ in points(SweepWords(), [VariedKey("gpus", ("1", "2")), VariedKey("dtype", ("float32",))])]
    [{'gpus': '1', 'dtype': 'float32'}, {'gpus': '2', 'dtype': 'float32'}]
    """
    for values in product(*(varied_key.values for varied_key in varied)):
        asked = base
        point = {varied_key.key: value for varied_key, value in zip(varied, values, strict=True)}
        for key, value in point.items():
            asked = asked.given(key, value)
        yield point, asked


@lru_cache(MACHINES_KEPT)
def machine_of(on: MachineWords, gpus: int | None = None, *, topology_suffices: bool = False) -> Machine:
    """The machine that the flags name, with so many GPUs if it is known by name; made once."""
    return chosen_machine(on, gpus, topology_suffices=topology_suffices)
