"""Rates of links over time, from the spans of all ranks and the bytes that each op instance sends over each link.

A simulation knows when each rank begins and ends an op; the times of single messages are not kept.  So the bytes of an
instance are spread evenly over its time: those of a collective from the arrival of its last member to its last end,
those of a message from the start of its later end to the end of its receive.  The integral over time is exact, the
rate is a mean.  Where instances of several ops overlap, the sum of the means may exceed the bandwidth.
"""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import Collective, Communication, CommunicationOp, Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.timelines.counters import levels
from quadrille.algorithms.timelines.messages import messages
from quadrille.algorithms.timelines.spans import UNPAIRED, Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.bounds.group_work import ScheduleWork
from quadrille.simulator.bounds.nccl_times import NcclTimes
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.network import Link

MOST_USES = 2_000_000
"""Largest number of uses of links; more take longer than most simulations."""
LEAST_SECONDS = 1e-9
"""Time over which the bytes of an instance without time are spread [s]."""
DIGITS = 12
"""Decimals of a share, which hide the rounding of sums."""
Use = tuple[float, float, float]
"""Begin [s], end [s], and bytes of an op instance on a link."""
Interval = tuple[float, float]
"""Begin and end [s]."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """The load of a link over time, and of the links that carry the same at the same times.

    Parameters
    ----------
    link : name of the link
    links : number of links with equal shares to three digits, itself included
    bandwidth : bandwidth of the link [B/s]
    bytes : bytes over the link [B]
    shares : the share of the bandwidth from each time on
    """

    link: str
    links: int
    bandwidth: float
    bytes: float
    shares: tuple[tuple[float, float], ...]


def busiest_links(
    schedule: Schedule,
    choices: Choices,
    placement: RankPlacement,
    timeline: Timeline,
    *,
    by_model: bool,
    most: int,
) -> list[LinkRates]:
    """The links with the most bytes for their bandwidth, the busiest first; links that carry the same are one.

    Empty where the bytes of an instance or its time are not known: a rank is not in the timeline, messages decide the
    order of passes, or a library executes collectives.

    Parameters
    ----------
    timeline : timeline with every iteration of every loop
    by_model : whether NCCL's model gave the times of collectives, so that it knows their bytes, too
    most : largest number of results
    """
    spans = _spans_of_all_ranks(timeline)
    by_library = any(choices.by_library(op) and schedule.grid.length(op.axis) > 1 for op in all_ops(schedule))
    if not spans or schedule.driven or by_library:
        return []
    moves = _Moves(schedule, choices, placement, by_model=by_model)
    uses = _link_uses(schedule, moves, spans, _Times(spans))
    alike: dict[object, list[LinkRates]] = defaultdict(list)
    for link, uses_of_link in uses.items():
        rates = _rates(placement.net.link(link), uses_of_link)
        alike[rates.bandwidth, _rounded(rates.shares)].append(rates)
    merged = [replace(min(links, key=_order), links=len(links)) for links in alike.values()]
    return sorted(merged, key=_order)[:most]


def _order(rates: LinkRates) -> tuple[float, str]:
    """Key that sorts links by load, the busiest first."""
    return -rates.bytes / rates.bandwidth, rates.link


def _rates(link: Link, uses: Sequence[Use]) -> LinkRates:
    amount = sum(moved for _, _, moved in uses)
    return LinkRates(link.name, 1, link.bandwidth, amount, _shares(uses, link.bandwidth))


def _rounded(shares: Iterable[tuple[float, float]]) -> tuple[tuple[int, str], ...]:
    """The shares in whole nanoseconds and three digits, which links that carry the same have in common."""
    return tuple((round(time * 1e9), f"{share:.3g}") for time, share in shares)


def _shares(uses: Sequence[Use], bandwidth: float) -> tuple[tuple[float, float], ...]:
    """The share of the bandwidth from each time on."""
    rates = ((begin, end, amount / (end - begin) / bandwidth) for begin, end, amount in uses)
    shares = [(time, round(share, DIGITS) + 0.0) for time, share in levels(rates)]  # no -0.0
    return tuple(
        (time, share)
        for (time, share), (_, before) in zip(shares, [(0.0, 0.0), *shares], strict=False)
        if share != before
    )


def _spans_of_all_ranks(timeline: Timeline) -> dict[int, dict[tuple[str, int], Span]]:
    """Spans by rank, op and index; empty if a rank is missing."""
    spans: dict[int, dict[tuple[str, int], Span]] = defaultdict(dict)
    for span in timeline.spans:
        spans[span.rank][span.op, span.index] = span
    return spans if len(spans) == timeline.ranks else {}


def _link_uses(
    schedule: Schedule, moves: "_Moves", spans: Mapping[int, Mapping[tuple[str, int], Span]], times: "_Times"
) -> dict[int, list[Use]]:
    """The uses of each link; none if spans are missing or the uses are too many."""
    uses: dict[int, list[Use]] = defaultdict(list)
    count = 0
    for rank, spans_of_rank in spans.items():
        coordinates, indices = schedule.coordinates(rank), Tally[str]()
        for op, at in walk(schedule.program(coordinates), coordinates):
            span = spans_of_rank.get((op.name, indices[op.name]))
            if span is None or count > MOST_USES:
                return {}
            indices[op.name] += 1
            moved = moves.of(rank, op, at)
            if moved:
                begin, end = times.of(span)
                count += len(moved)
                for link, amount in moved.items():
                    uses[link].append((begin, max(end, begin + LEAST_SECONDS), amount))
    return uses


class _Moves:
    """The bytes over each link that a rank sends in an instance of an op.

    By NCCL's model, the first member of a group has the bytes of all.
    """

    def __init__(self, schedule: Schedule, choices: Choices, placement: RankPlacement, *, by_model: bool) -> None:
        self._grid, self._placement = schedule.grid, placement
        self._plans, self._work = OpPlans(schedule, choices), ScheduleWork(schedule, choices)
        self._routes = routes_of(placement.machine, placement.net)
        self._nccl = NcclTimes(placement.machine, placement, choices) if by_model else None
        self._moved: dict[object, Mapping[int, float]] = {}
        self._route = lru_cache(None)(self._routed)

    def of(self, rank: int, op: Op, coordinates: Coordinates) -> Mapping[int, float]:
        """Bytes by link."""
        if not isinstance(op, Communication) or self._grid.length(op.axis) == 1:
            return {}
        key = rank, self._work.key(op, coordinates)
        if key not in self._moved:
            in_model = self._nccl is not None and isinstance(op, Collective)
            self._moved[key] = (self._modelled if in_model else self._sent)(rank, op, coordinates)  # type: ignore[arg-type]
        return self._moved[key]

    def _sent(self, rank: int, op: CommunicationOp, coordinates: Coordinates) -> Mapping[int, float]:
        """Bytes of the steps of the op's algorithm."""
        stride, own = self._grid.stride(op.axis), coordinates.along[op.axis]
        moved: dict[int, float] = defaultdict(float)
        to_peers: dict[int, float] = defaultdict(float)
        for step in self._plans.communication(op, coordinates).steps():
            if step.send_to is not None:
                to_peers[rank + (step.send_to - own) * stride] += step.sent
        for peer, amount in to_peers.items():
            for link, share in self._route(self._placement.endpoint(rank), self._placement.endpoint(peer)):
                moved[link] += amount * share
        return {link: amount for link, amount in moved.items() if amount}

    def _routed(self, source: int, target: int) -> list[tuple[int, float]]:
        """The links between two endpoints, with the share of the bytes on each."""
        if source == target:
            return []
        paths = self._routes.between([source], [target])
        return list(zip(paths.links.tolist(), paths.shares.tolist(), strict=True))

    def _modelled(self, rank: int, op: Collective, coordinates: Coordinates) -> Mapping[int, float]:
        """Bytes of the rank's group by NCCL's model, for its first member; nothing for the others."""
        if coordinates.along[op.axis] or self._nccl is None:
            return {}
        ranks = rank + self._grid.stride(op.axis) * np.arange(self._grid.length(op.axis))
        size = self._work.buffer_bytes(op, coordinates, ranks[:1])
        pairs = self._work.pair_bytes(op, coordinates, rank)
        over_links = self._nccl.link_bytes(op, coordinates, ranks[None, :], size, pairs)
        return {int(link): float(over_links[link]) for link in np.flatnonzero(over_links)}


class _Times:
    """The time over which the bytes of an op instance are spread."""

    def __init__(self, spans: Mapping[int, Mapping[tuple[str, int], Span]]) -> None:
        self._last_ends: dict[tuple[str, int, Axis | None, int], float] = {}
        all_spans = [span for spans_of_rank in spans.values() for span in spans_of_rank.values()]
        for span in all_spans:
            self._last_ends[span.instance] = max(span.end, self._last_ends.get(span.instance, span.end))
        self._receives = dict(messages(all_spans))

    def of(self, span: Span) -> Interval:
        """Begin and end of the time in which the bytes that the rank of a span sends are under way [s]."""
        if span.kind not in UNPAIRED:
            return (span.arrival if span.arrival < span.end else span.start), self._last_ends[span.instance]
        receive = self._receives.get(span)
        if receive is None:
            return span.start, span.end
        begin = receive.start if span.start < receive.start < span.end else span.start
        return begin, max(span.end, receive.end)
