"""A ranking for a person: both orders side by side, and why they differ."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from quadrille.experiments.output.tables import UNKNOWN, percent, print_tables, table
from quadrille.experiments.rank.answer import RingSimulated
from quadrille.experiments.rank.disagreements import MOSTLY

SHOWN_RINGS = 8


class Simulated(Protocol):
    """A grid or a configuration that was simulated."""

    @property
    def grid(self) -> Mapping[str, int]: ...
    @property
    def order(self) -> Sequence[str]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def analytical_place(self) -> int: ...
    @property
    def analytical_seconds(self) -> float: ...
    @property
    def percent_of_peak(self) -> float | None: ...
    @property
    def memory_bytes(self) -> int: ...


S = TypeVar("S", bound=Simulated)
S_co = TypeVar("S_co", bound=Simulated, covariant=True)


class Ranking(Protocol[S_co]):
    """An answer: the entries in the model's order, and the best of them simulated, the fastest first."""

    @property
    def workload(self) -> Workload: ...
    @property
    def model(self) -> str: ...
    @property
    def machine(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def simulated(self) -> Sequence[S_co]: ...
    @property
    def kendall_tau(self) -> float | None: ...
    @property
    def bandwidths_measured(self) -> bool: ...
    @property
    def bandwidths_simulated(self) -> Sequence[RingSimulated]: ...
    @property
    def why(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Columns(Generic[S]):
    """The columns of a table: those that name an entry, and the parts of its seconds."""

    names: Mapping[str, Callable[[S], str]]
    parts: tuple[str, ...]

    @property
    def titles(self) -> tuple[str, ...]:
        return ("place", *self.names, "model", "place", "simulated", "of peak", *self.parts, "memory")

    def row(self, entry: S, place: int) -> tuple[str, ...]:
        """The cells of an entry; `place` is its place by simulated time, from 1."""
        return (
            str(entry.analytical_place),
            *(name(entry) for name in self.names.values()),
            format_seconds(entry.analytical_seconds),
            str(place),
            format_seconds(entry.seconds),
            percent(None if entry.percent_of_peak is None else entry.percent_of_peak / 100, signed=False),
            *(format_seconds(getattr(entry, f"{part}_seconds")) for part in self.parts),
            format_bytes(entry.memory_bytes),
        )


def order_verdict(tau: float | None) -> str:
    """Whether the analytical model and the simulation give the same order, and which of them decides.

    >>> order_verdict(1.0), order_verdict(-0.333)
    ('the quick model ranks them the same', 'the quick model ranks them differently; simulated times decide')
    """
    if tau == 1:
        return "the quick model ranks them the same"
    differently = "differently" if tau is None or tau < MOSTLY else "a little differently"
    return f"the quick model ranks them {differently}; simulated times decide"


def print_ranking(
    answer: Ranking[S], columns: Columns[S], looked_at: str, again: str, beside: Iterable[str] = ()
) -> None:
    """Prints both orders side by side, and why they differ.

    Parameters
    ----------
    looked_at : a line: how many entries were ranked, by which model, and how many of them were simulated
    again : command that simulates the fastest entry
    beside : lines about entries that were left out
    """
    assert answer.workload.gpt is not None
    print(
        f"{answer.model}, batch {answer.workload.gpt.batch}, on {answer.gpus:,} GPUs of {answer.machine}: {looked_at}"
    )
    if answer.bandwidths_simulated:
        print(_rings_in_words(answer.bandwidths_simulated, measured=answer.bandwidths_measured))
    print()
    places = sorted(enumerate(answer.simulated, 1), key=lambda ranked: ranked[1].analytical_place)
    rows = [columns.row(entry, place) for place, entry in places]
    print_tables(table("by the model and as simulated", columns.titles, rows, names=1 + len(columns.names)))
    print(order_verdict(answer.kendall_tau))
    for line in answer.why:
        print(f"- {line}")
    for line in beside:
        print(line)
    print(f"fastest as simulated, {format_seconds(answer.simulated[0].seconds)} an iteration: {again}")


def lengths_of(grid: Mapping[str, int]) -> str:
    """The lengths as `--grid` takes them.

    >>> lengths_of({"data": 1, "z": 4, "y": 1, "x": 2}), lengths_of({"x": 1})
    ('z=4,x=2', 'x=1')
    """
    return ",".join(f"{axis}={length}" for axis, length in grid.items() if length > 1) or "x=1"


def shown_lengths(row: Simulated) -> str:
    return lengths_of(row.grid)


def shown_order(row: Simulated) -> str:
    """The axes longer than 1, the fastest first."""
    return ",".join(axis for axis in row.order if row.grid[axis] > 1) or UNKNOWN


def _rings_in_words(simulated: Sequence[RingSimulated], *, measured: bool) -> str:
    """The simulated bandwidths in words; `measured` says whether a table has the others."""
    rings = [f"({ring.stride}, {ring.length}) {format_bytes_per_second(ring.bytes_per_second)}" for ring in simulated]
    more = f" and {len(rings) - SHOWN_RINGS} more; --json FILE has all" if len(rings) > SHOWN_RINGS else ""
    whose = "lacked by the table" if measured else "of the model"
    return f"bandwidths {whose}, simulated, by (stride, length): {', '.join(rings[:SHOWN_RINGS])}{more}"
