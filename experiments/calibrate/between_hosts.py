"""What is measured between hosts: steps of every pattern in chains, and the way from one host to another.

Sizes go up until a step takes long, since there seconds are proportional to bytes;
a chain of slow steps has fewer of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, cast

from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.host.world import ComputeHost
from quadrille.runtime.measuring.all_pairs_rates import measure_all_pairs
from quadrille.runtime.measuring.chained_transfers import LEAST_STEPS, STEPS, Overheads, Pattern
from quadrille.runtime.measuring.idle_cores import measure_idle_cores
from quadrille.runtime.measuring.links import LinkSpeed, measure_link_speed
from quadrille.runtime.measuring.microbenchmarks import Bench, measured_on_first
from quadrille.runtime.measuring.overlap_interference import OverlapCost, measure_overlap_cost
from quadrille.runtime.measuring.points import FlowPoint, TransferPoint
from quadrille.runtime.measuring.sizes import FULL, CalibrationSizes

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LONG_STEP_SECONDS = 0.25
"""A step that is expected to take longer is not measured."""
CHAIN_SECONDS = 2.0
"""About how long a chain may last, unless of the fewest steps."""
DELAYED = 1.15
"""A step that takes so many times as long as a smaller one, for each of its bytes, is measured again."""
SLOWER, LARGE_BYTES = 1.06, 1 << 20
"""A step of so many bytes or more that takes so many times as long as by another pattern is measured again."""
SECOND_LOOKS = 2
"""How often, at most, something is measured again."""
ChainResult = tuple[TransferPoint, Overheads]
Agree = Callable[[LinkSpeed, Sequence[FlowPoint]], bool]
"""Whether links are as one message showed them, by what came of flows."""


@dataclass(frozen=True, slots=True)
class NetworkMeasurements:
    """Rows of steps, what ops cost beside them, the way between the first two hosts, and messages beside products.

    Parameters
    ----------
    idle_core_seconds : how long a core that hosts share is idle before it takes a rank from another
    flows : what hosts got of each other in rounds in which all send at once
    chunk_bytes : into which messages were cut; 0 for whole steps
    taken_seconds : how much later than its receiver who only sends hears that all was taken
    """

    transfers: list[TransferPoint]
    overheads: list[Overheads]
    link: LinkSpeed
    beside: OverlapCost
    idle_core_seconds: float = 0.0
    flows: Sequence[FlowPoint] = ()
    chunk_bytes: int = 0
    taken_seconds: float = 0.0


def ladder(bench: Bench, pattern: Pattern, sizes: Sequence[int]) -> Iterator[ChainResult]:
    """Steps of a pattern of these sizes, up to those that take long.

    A message takes no longer than its parts one after the other: where it does, something held it up, and it is
    measured again.
    """
    expected = 0.0
    for number, size in enumerate(sizes):
        if expected > LONG_STEP_SECONDS:
            return
        steps = _steps(expected) if expected else STEPS
        point, overheads = bench.transfer(pattern, size, steps)
        for _ in range(SECOND_LOOKS):
            if not expected or point.seconds <= DELAYED * expected:
                break
            point, overheads = _faster((point, overheads), bench.transfer(pattern, size, steps))
        yield point, overheads
        if number + 1 < len(sizes):
            expected = point.seconds * sizes[number + 1] / size if size > 1 << 15 else 0.0


def patterns(bench: Bench, sizes: Sequence[int]) -> list[ChainResult]:
    """Steps of every pattern that so many ranks can take.

    Where two ranks exchange, each sends and receives at once as in a shift.
    """
    exchanging = bench.ranks > 2 and bench.ranks % 2 == 0
    names: tuple[Pattern, ...] = ("shift", "exchange", "one_way") if exchanging else ("shift", "one_way")
    return [found for name in names for found in ladder(bench, name, sizes)]


def confirmed(bench: Bench, every: Sequence[ChainResult]) -> list[ChainResult]:
    """Steps, those measured again that are slower than one of as many bytes by another pattern; the fastest counts.

    What else runs on a machine may slow all steps for seconds; a pattern that is slow by itself is so again.
    """
    return [_confirmed(bench, one, every) for one in every]


def _confirmed(bench: Bench, one: ChainResult, every: Sequence[ChainResult]) -> ChainResult:
    point, least = one[0], min(other.seconds for other, _ in every if other.bytes == one[0].bytes)
    for _ in range(SECOND_LOOKS):
        if point.bytes < LARGE_BYTES or one[0].seconds <= SLOWER * least:
            break
        one = _faster(one, bench.transfer(point.pattern, point.bytes, _steps(point.seconds)))
    return one


def _taken(every: Sequence[TransferPoint]) -> float:
    """How much later than its receiver a sender hears, where all hosts take part; 0 where that was not measured."""
    most = max(point.ranks for point in every)
    found = [one.taken_seconds for one in every if one.ranks == most and one.taken_seconds is not None]
    return median(found) if found else 0.0


def _steps(seconds: float) -> int:
    """Of a chain whose steps take so long."""
    return max(LEAST_STEPS, min(STEPS, int(CHAIN_SECONDS / seconds)))


def _faster(one: ChainResult, again: ChainResult) -> ChainResult:
    return min(one, again, key=lambda found: found[0].seconds)


def measure_flows(
    by_host: "Intracomm",
    hosts: int,
    link: LinkSpeed,
    message_options: MessageOptions,
    agree: Agree,
    sizes: CalibrationSizes = FULL,
) -> list[FlowPoint]:
    """Flows of rounds of all hosts, and where links seem to be slower than others, of further rounds.

    The most that a link is seen to carry counts: what else runs on a machine would have to slow it every time.
    """

    def rounds(bench: Bench) -> list[FlowPoint]:
        return measure_all_pairs(bench.communicator, link.bytes_per_second, message_options, sizes)

    flows = measured_on_first(by_host, hosts, rounds)
    for _ in range(SECOND_LOOKS):
        if agree(link, flows):
            break
        last = flows[-1].round
        flows += [replace(flow, round=last + flow.round) for flow in measured_on_first(by_host, hosts, rounds)]
    return flows


def measure_between(
    communicator: "Intracomm",
    hosts: Sequence[ComputeHost],
    message_options: MessageOptions,
    agree: Agree,
    sizes: CalibrationSizes = FULL,
) -> NetworkMeasurements:
    """Between hosts: the first two, then all at once, one rank of each; messages go as they will in runs.

    Parameters
    ----------
    agree : whether links are as one message showed them
    """
    firsts = [host.ranks[0] for host in hosts]
    rank = communicator.Get_rank()
    key = firsts.index(rank) if rank in firsts else len(firsts) + rank
    by_host = cast("Intracomm", communicator.Split(color=0, key=key))
    counts = dict.fromkeys([2, len(hosts)])

    def steps(bench: Bench) -> list[ChainResult]:
        return confirmed(bench, patterns(bench, sizes.transfer_bytes))

    found = [one for count in counts for one in measured_on_first(by_host, count, steps, message_options, sizes)]
    link = measured_on_first(by_host, len(hosts), lambda bench: measure_link_speed(bench.communicator, sizes))
    flows = measure_flows(by_host, len(hosts), link, message_options, agree, sizes)
    beside, idle = OverlapCost(), 0.0
    if hosts[0].sharing:
        cores, rate = hosts[0].cores, link.bytes_per_second
        beside = measured_on_first(
            by_host,
            len(hosts),
            lambda bench: measure_overlap_cost(bench.communicator, cores, rate, message_options, sizes),
        )
        idle = measure_idle_cores(by_host, cores, message_options, sizes)
    points, overheads = [point for point, _ in found], [overheads for _, overheads in found]
    return NetworkMeasurements(
        points, overheads, link, beside, idle, flows, message_options.chunk_bytes, _taken(points)
    )
