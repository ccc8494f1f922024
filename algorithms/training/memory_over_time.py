"""Memory of a rank over a training step: bytes by kind, with the activations that are in use at each time.

The buffers of a rank are planned before the step and stay (`memory.py`), so the bytes of all kinds together are
constant.  Only the activations in use change.  An activation is in use from the start of the op that writes it to the
end of the op that reads it last, before another op overwrites the buffer.  The rest of the buffers for activations is
`unused activations`.  Operands and results of the step are in use all the time.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from quadrille.algorithms.analysis.dependencies import iterations_ahead
from quadrille.algorithms.analysis.storage import storage, views
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import Op, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.counters import Counter, levels
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.training.memory import ACTIVATIONS, ON_HOST, kinds_of_tensors, memory_bytes_by_kind

UNUSED = "unused activations"
NAME = "memory in bytes"
Copy = tuple[str, int]
"""A tensor with a buffer of its own, and the index of its copy."""
Interval = tuple[float, float, int]
"""Begin [s], end [s], and bytes."""


@dataclass(slots=True)
class _Value:
    """One value of a buffer: the time from its first to its last use [s], and whether an op has read it."""

    begin: float
    end: float
    is_read: bool


def memory_counter(schedule: Schedule, choices: Choices, rank: int, spans: Sequence[Span]) -> Counter | None:
    """The bytes of a rank on its device over a step, by kind; None if the spans are not those of its program.

    Parameters
    ----------
    schedule : schedule of a training step
    choices : implementation and algorithms of the collectives
    spans : all spans of the rank
    """
    if not spans or schedule.driven:
        return None
    coordinates = schedule.coordinates(rank)
    begin, end = min(span.start for span in spans), max(span.end for span in spans)
    in_use = _activations_in_use(schedule, coordinates, choices, spans, (begin, end))
    if in_use is None:
        return None
    by_kind = memory_bytes_by_kind(schedule, coordinates, choices)
    planned = by_kind[ACTIVATIONS]
    constant: dict[str, float] = {
        kind: size for kind, size in by_kind.items() if size and kind not in (ACTIVATIONS, ON_HOST)
    }
    used = [(time, size) for time, size in levels(in_use) if time < end]
    if not used or used[0][0] > begin:
        used.insert(0, (begin, 0))
    varying = [(time, {ACTIVATIONS: size, UNUSED: planned - size} if planned else {}) for time, size in used]
    return Counter(NAME, tuple((time, {**constant, **activations}) for time, activations in varying), rank)


def _activations_in_use(
    schedule: Schedule,
    coordinates: Coordinates,
    choices: Choices,
    spans: Sequence[Span],
    within: tuple[float, float],
) -> list[Interval] | None:
    """The time in which each copy of an activation holds a value, with its bytes; None if spans are missing."""
    rank_storage = storage(schedule, coordinates, choices)
    kinds = kinds_of_tensors(rank_storage, schedule)
    sizes = {
        name: rank_storage.tensors[name] * rank_storage.item_bytes[name]
        for name, kind in kinds.items()
        if kind == ACTIVATIONS
    }
    persistent = sizes.keys() & {*schedule.inputs, *schedule.outputs, *schedule.state}
    constant = [(*within, sizes[name] * rank_storage.copies[name]) for name in persistent]
    buffers = _Buffers(schedule, sizes.keys() - persistent)
    by_instance = {(span.op, span.index): span for span in spans}
    counts: Tally[str] = Tally()
    for op, at in walk(schedule.program(coordinates), coordinates):
        span = by_instance.get((op.name, counts[op.name]))
        if span is None:
            return None
        counts[op.name] += 1
        buffers.use(op, at, span, within[0])
    if counts.total() != len(by_instance):
        return None
    return constant + [(value.begin, value.end, sizes[name]) for name, value in buffers.values()]


class _Buffers:
    """The values that buffers of some tensors hold, op by op in program order."""

    def __init__(self, schedule: Schedule, names: set[str]) -> None:
        self._schedule = schedule
        sources = schedule.cached(views)
        owners = {name: sources.get(name, name) for name in schedule.tensors}
        owners = {name: schedule.tensors[owner].band_of or owner for name, owner in owners.items()}
        self._owners: Mapping[str, str] = {name: owner for name, owner in owners.items() if owner in names}
        self._current: dict[Copy, _Value] = {}
        self._former: list[tuple[str, _Value]] = []

    def use(self, op: Op, coordinates: Coordinates, span: Span, begin: float) -> None:
        """Enters what an op reads and writes.

        Parameters
        ----------
        begin : time from which a buffer holds a value that no op has written [s]
        """
        read, written = self._copies(reads(op), coordinates), self._copies(writes(op), coordinates, op)
        for copy in read:
            value = self._current.setdefault(copy, _Value(begin, span.end, True))
            value.end, value.is_read = max(value.end, span.end), True
        for copy in written:
            current = self._current.get(copy)
            if current is None or (current.is_read and copy not in read):
                self._former += [] if current is None else [(copy[0], current)]
                self._current[copy] = _Value(span.start, span.end, False)
            else:
                current.end = max(current.end, span.end)

    def values(self) -> Iterator[tuple[str, _Value]]:
        """All values, each with its tensor."""
        yield from self._former
        yield from ((name, value) for (name, _), value in self._current.items())

    def _copies(self, names: Sequence[str], coordinates: Coordinates, writer: Op | None = None) -> set[Copy]:
        """The copies of the tensors that an op uses at the coordinates; of a writer, those that it writes."""
        ahead = 0 if writer is None else iterations_ahead(writer)
        owners = {self._owners[name] for name in names if name in self._owners}
        return {(owner, self._schedule.tensors[owner].copy_index(coordinates, ahead)) for owner in owners}
