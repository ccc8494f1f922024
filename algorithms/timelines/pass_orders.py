"""The order in which pipeline stages ran their passes, read from a timeline."""

from collections import Counter
from collections.abc import Iterator

from quadrille.algorithms.schedule.ops import Receive
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import DrivenPasses, Pass, PassKind, repeats, walk
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.timeline import Timeline


def pass_orders(schedule: Schedule, timeline: Timeline) -> tuple[str, ...]:
    """Returns the order of passes on each stage whose order messages decide, such as "FFBFBB"; empty if none does.

    A stage is read at the first of its ranks that the timeline has; F is a forward pass, B a backward pass.
    """
    marks_by_stage: dict[int, dict[str, tuple[PassKind, int]]] = {}
    orders: dict[int, list[tuple[float, PassKind]]] = {}
    rank_of_stage: dict[int, int] = {}
    for span in timeline.unrolled().spans:
        coordinates = schedule.coordinates(span.rank)
        stage = coordinates.along["pipeline"]
        if rank_of_stage.setdefault(stage, span.rank) != span.rank:
            continue
        if stage not in marks_by_stage:
            marks_by_stage[stage] = dict(_marks(schedule, coordinates))
        kind, times = marks_by_stage[stage].get(span.op, ("F", 0))
        if times and span.index % times == 0:
            orders.setdefault(stage, []).append((span.ready, kind))
    return tuple("".join(kind for _, kind in sorted(orders[stage])) for stage in sorted(orders))


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
