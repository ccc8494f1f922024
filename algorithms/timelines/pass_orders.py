"""The order in which pipeline stages ran their passes, read from a timeline."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from quadrille.algorithms.schedule.ops import Receive
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import DrivenPasses, Pass, PassKind, repeats, walk
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline


def pass_orders(schedule: Schedule, timeline: Timeline) -> tuple[str, ...]:
    """Returns the order of passes on each stage whose order messages decide, such as "FFBFBB"; empty if none does.

    A stage is read at the first of its ranks that the timeline has; F is a forward pass, B a backward pass.
    """
    if not schedule.driven:
        return ()
    spans = timeline.unrolled().spans
    ranks: dict[int, int] = {}
    for rank in dict.fromkeys(span.rank for span in spans):
        ranks.setdefault(schedule.grid.coordinate(rank, "pipeline"), rank)
    return tuple(_order(schedule, rank, spans) for _, rank in sorted(ranks.items()))


def _order(schedule: Schedule, rank: int, spans: Iterable[Span]) -> str:
    """The order of passes on a rank."""
    marks = dict(_marks(schedule, schedule.coordinates(rank)))
    passes = []
    for span in spans:
        if span.rank == rank and span.op in marks:
            kind, times = marks[span.op]
            passes += [(span.ready, kind)] if span.index % times == 0 else []
    return "".join(kind for _, kind in sorted(passes))


def _marks(schedule: Schedule, coordinates: Coordinates) -> Iterator[tuple[str, tuple[PassKind, int]]]:
    """For each kind of pass that messages order, the name of an op of the pass, and how often a pass runs the op."""
    for driven in repeats(schedule.program(coordinates)):
        if not isinstance(driven, DrivenPasses):
            continue
        around = coordinates.during(driven.loop, 0).during("slot", 0)
        counts = {entry.kind: Counter(_names(entry, around)) for entry in _first_passes(driven)}
        for kind, names in counts.items():
            of_other_kinds = set[str]().union(*(each for each in counts.values() if each is not names))
            name = min(sorted(names.keys() - of_other_kinds), key=names.__getitem__)
            yield name, (kind, names[name])


def _names(entry: Pass, coordinates: Coordinates) -> Iterator[str]:
    """Names of the ops of a pass that begin when the pass does or later."""
    return (op.name for op, _ in walk((entry,), coordinates) if not (isinstance(op, Receive) and op.posted))


def _first_passes(driven: DrivenPasses) -> list[Pass]:
    """One pass of each kind."""
    passes = [entry for entry in repeats(driven.body) if isinstance(entry, Pass)]
    return list({entry.kind: entry for entry in passes}.values())


def first_difference(before: Sequence[str], after: Sequence[str]) -> int:
    """Returns the number, from 1, of the first pass at which two orders differ; 0 if they are equal.

    >>> first_difference("FFBB", "FBFB"), first_difference("FB", "FBF"), first_difference("FB", "FB")
    (2, 3, 0)
    """
    both = enumerate(zip_longest(before, after), 1)
    return next((number for number, (first, second) in both if first != second), 0)
