"""What was simulated with turns left out, told with all of them: the timeline and the loads of resources."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.loops.restore import PeriodWindow, SpansWithTurns
from quadrille.simulator.loops.skipped_iterations import Iteration
from quadrille.simulator.ranks.lanes import LaneSimulation


def with_turns(short: Timeline, told: SpansWithTurns) -> Timeline:
    """The timeline with all turns, from that of the shorter loops; its spans are in the same order."""
    if not told.turns:
        return short
    rows = zip(short.spans, told.times.tolist(), told.indices.tolist(), strict=True)
    spans = tuple(span.at(times[0], times[1], times[2], times[3], index) for span, times, index in rows)
    return replace(short, spans=spans, repeated=told.turns)


def loads_with_turns(lanes: LaneSimulation, rhythms: Sequence[PeriodWindow]) -> list[tuple[float, float]]:
    """Load and busy seconds of every resource, those of all turns together."""
    found = lanes.engine.loads()
    for one in rhythms:
        before, after = _a_period(one, lanes.loads)
        for resource, (early, late) in enumerate(zip(before, after, strict=False)):
            load, busy = found[resource]
            found[resource] = (load + one.times * (late[0] - early[0]), busy + one.times * (late[1] - early[1]))
    return found


def _a_period(
    one: PeriodWindow, loads: Mapping[Iteration, tuple[float, list[tuple[float, float]]]]
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Loads at two moments within the window, a period apart."""
    for turn in range(one.gap.first, one.gap.first + one.gap.simulated - one.turns):
        (begin, before), (end, after) = loads[one.gap.loop, turn], loads[one.gap.loop, turn + one.turns]
        if begin >= one.begin and end <= one.end:
            return before, after
    raise AssertionError("a window of three periods holds one from turn to turn")
