"""Network benchmarks of a calibration: message steps between hosts by pattern and size, link speed, overlap costs.

A step is one message of every rank, in a pattern such as a shift along the ranks.  Steps are measured in chains, one
after the other.  Message sizes grow until a step takes long, because from there on seconds are proportional to bytes.
A chain of slow steps has fewer steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, cast

from quadrille.experiments.calibrate.calibration_parts import SILENT, CalibrationParts
from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.host.world import ComputeHost
from quadrille.runtime.measuring.all_pairs_rates import measure_all_pairs
from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes
from quadrille.runtime.measuring.chained_transfers import LEAST_STEPS, STEPS, Overheads, Pattern
from quadrille.runtime.measuring.link_speed import LinkSpeed, measure_link_speed
from quadrille.runtime.measuring.measured_points import FlowPoint, TransferPoint
from quadrille.runtime.measuring.microbenchmarks import Bench, measured_on_first
from quadrille.runtime.measuring.overlap_interference import OverlapCost, measure_idle_cores, measure_overlap_cost

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LONG_STEP_SECONDS = 0.25
"""A step that is expected to take longer is not measured."""
CHAIN_SECONDS = 2.0
"""The approximate duration of a chain with more than the fewest steps."""
DELAY_FACTOR = 1.15
"""A step is measured again if it takes this many times as long per byte as a smaller step."""
SLOWER_FACTOR, COMPARED_BYTES = 1.06, 1 << 20
"""Factor over another pattern's time from which a step is measured again, and the smallest size of such steps [B]."""
MOST_REPETITIONS = 2
"""The most repetitions of a measurement."""
ChainResult = tuple[TransferPoint, Overheads]
LinksAgree = Callable[[LinkSpeed, Sequence[FlowPoint]], bool]
"""Function that says whether the all-pairs flows have the rates that follow from the measured link speed."""


@dataclass(frozen=True, slots=True)
class NetworkMeasurements:
    """The measurements between hosts.

    Parameters
    ----------
    transfers, overheads : times of message steps, and the overheads of each step
    link : speed of the path between the first two hosts
    beside : costs of messages that overlap products
    idle_core_seconds : time for which a core stays idle before the kernel moves a rank to it
    flows : all-pairs flows of rounds in which all hosts send at once
    chunk_bytes : chunk size of messages; 0 for whole steps
    sender_ack_delay_seconds : delay between the end of a receive and the end of its one-way send
    """

    transfers: list[TransferPoint]
    overheads: list[Overheads]
    link: LinkSpeed
    beside: OverlapCost
    idle_core_seconds: float = 0.0
    flows: Sequence[FlowPoint] = ()
    chunk_bytes: int = 0
    sender_ack_delay_seconds: float = 0.0


def transfer_points(bench: Bench, pattern: Pattern, sizes: Sequence[int]) -> Iterator[ChainResult]:
    """The steps of a pattern with growing sizes, until a step takes long.

    A message takes no longer than its parts sent one after the other.  If it does, other load delayed it, and it is
    measured again.

    Parameters
    ----------
    bench : ranks that measure, and how
    sizes : growing message sizes [B]
    """
    expected = 0.0
    for number, size in enumerate(sizes):
        if expected > LONG_STEP_SECONDS:
            return
        steps = _step_count(expected) if expected else STEPS
        point, overheads = bench.transfer(pattern, size, steps)
        for _ in range(MOST_REPETITIONS):
            if not expected or point.seconds <= DELAY_FACTOR * expected:
                break
            point, overheads = _faster_result((point, overheads), bench.transfer(pattern, size, steps))
        yield point, overheads
        if number + 1 < len(sizes):
            expected = point.seconds * sizes[number + 1] / size if size > 1 << 15 else 0.0


def pattern_points(bench: Bench, sizes: Sequence[int]) -> list[ChainResult]:
    """The steps of every pattern that the number of ranks allows; with two ranks, an exchange equals a shift.

    Parameters
    ----------
    bench : ranks that measure, and how
    sizes : growing message sizes [B]
    """
    exchanging = bench.ranks > 2 and bench.ranks % 2 == 0
    names: tuple[Pattern, ...] = ("shift", "exchange", "one_way") if exchanging else ("shift", "one_way")
    return [step for name in names for step in transfer_points(bench, name, sizes)]


def remeasured_points(bench: Bench, every: Sequence[ChainResult]) -> list[ChainResult]:
    """All steps; those slower than another pattern's step of the same size are measured again.

    Other processes may slow all steps for seconds; a pattern that is slow by itself is slow again. The fastest value
    counts.
    """
    return [_remeasured_point(bench, step, every) for step in every]


def _remeasured_point(bench: Bench, step: ChainResult, every: Sequence[ChainResult]) -> ChainResult:
    point, least = step[0], min(other_point.seconds for other_point, _ in every if other_point.bytes == step[0].bytes)
    for _ in range(MOST_REPETITIONS):
        if point.bytes < COMPARED_BYTES or step[0].seconds <= SLOWER_FACTOR * least:
            break
        step = _faster_result(step, bench.transfer(point.pattern, point.bytes, _step_count(point.seconds)))
    return step


def _median_ack_delay(every: Sequence[TransferPoint]) -> float:
    """The median delay of a sender's end in steps of all hosts [s]; 0 if it was not measured."""
    most = max(point.ranks for point in every)
    delays = [
        point.sender_ack_delay_seconds
        for point in every
        if point.ranks == most and point.sender_ack_delay_seconds is not None
    ]
    return median(delays) if delays else 0.0


def _step_count(seconds: float) -> int:
    """The number of steps of a chain whose steps take this long [s]."""
    return max(LEAST_STEPS, min(STEPS, int(CHAIN_SECONDS / seconds)))


def _faster_result(first: ChainResult, again: ChainResult) -> ChainResult:
    return min(first, again, key=lambda step: step[0].seconds)


def measure_all_pairs_flows(
    by_host: "Intracomm",
    hosts: int,
    link: LinkSpeed,
    message_options: MessageOptions,
    agree: LinksAgree,
    sizes: CalibrationSizes = FULL,
) -> list[FlowPoint]:
    """The all-pairs flows: in each round every host sends to another host, until all pairs have sent.

    The rounds are repeated while some links seem slower than others.  The highest rate of a link counts, because other
    load rarely slows the same link in every repetition.

    Parameters
    ----------
    by_host : communicator whose first ranks are one rank of each host
    hosts : number of hosts
    link : speed of the path between the first two hosts
    agree : function that says whether the flows have the rates that follow from the link speed
    """

    def rounds(bench: Bench) -> list[FlowPoint]:
        return measure_all_pairs(bench.communicator, link.bytes_per_second, message_options, sizes)

    flows = measured_on_first(by_host, hosts, rounds)
    for _ in range(MOST_REPETITIONS):
        if agree(link, flows):
            break
        last = flows[-1].round
        flows += [replace(flow, round=last + flow.round) for flow in measured_on_first(by_host, hosts, rounds)]
    return flows


def measure_network(
    communicator: "Intracomm",
    hosts: Sequence[ComputeHost],
    message_options: MessageOptions,
    agree: LinksAgree,
    sizes: CalibrationSizes = FULL,
    parts: CalibrationParts = SILENT,
) -> NetworkMeasurements:
    """All measurements between hosts, with one rank on each host.

    A collective call on all ranks of the communicator.

    Parameters
    ----------
    hosts : hosts of the launch, with their ranks
    message_options : chunk size and progress of messages, as in runs
    agree : function that says whether the flows have the rates that follow from the link speed
    sizes : sizes of the benchmarks
    parts : reporter of the parts and their seconds
    """
    firsts = [host.ranks[0] for host in hosts]
    rank = communicator.Get_rank()
    key = firsts.index(rank) if rank in firsts else len(firsts) + rank
    by_host = cast("Intracomm", communicator.Split(color=0, key=key))
    measured_steps = list[ChainResult]()
    for count in transfer_counts(len(hosts), emulated=hosts[0].sharing > 0):
        with parts.part(f"messages between {count} hosts"):
            measured_steps += measured_on_first(by_host, count, _steps, message_options, sizes)
    with parts.part(f"rates of all links, {len(hosts)} hosts"):
        link = measured_on_first(by_host, len(hosts), lambda bench: measure_link_speed(bench.communicator, sizes))
        flows = measure_all_pairs_flows(by_host, len(hosts), link, message_options, agree, sizes)
    beside, idle = OverlapCost(), 0.0
    if hosts[0].sharing:
        beside, idle = _shared_cores(by_host, hosts, link, message_options, sizes, parts)
    points, overheads = [point for point, _ in measured_steps], [overheads for _, overheads in measured_steps]
    return NetworkMeasurements(
        points, overheads, link, beside, idle, flows, message_options.chunk_bytes, _median_ack_delay(points)
    )


def transfer_counts(hosts: int, *, emulated: bool) -> list[int]:
    """The numbers of hosts between which message steps are measured: all, and first two.

    The links of an emulated network have the same rates for two hosts as for all, and a run on all hosts uses the
    steps of all.

    >>> transfer_counts(4, emulated=False), transfer_counts(4, emulated=True), transfer_counts(2, emulated=True)
    ([2, 4], [4], [2])
    """
    return [hosts] if emulated else list(dict.fromkeys([2, hosts]))


def _steps(bench: Bench) -> list[ChainResult]:
    """The message steps of every pattern and size."""
    return remeasured_points(bench, pattern_points(bench, bench.sizes.transfer_bytes))


def _shared_cores(
    by_host: "Intracomm",
    hosts: Sequence[ComputeHost],
    link: LinkSpeed,
    message_options: MessageOptions,
    sizes: CalibrationSizes,
    parts: CalibrationParts,
) -> tuple[OverlapCost, float]:
    """The cost of messages that overlap products, and the idle time of cores, of hosts that share one machine."""
    cores = hosts[0].cores
    with parts.part(f"messages that overlap products, {len(hosts)} hosts"):
        beside = measured_on_first(
            by_host,
            len(hosts),
            lambda bench: measure_overlap_cost(
                bench.communicator, cores, link.bytes_per_second, message_options, sizes
            ),
        )
    if len(hosts) % cores == 0:  # ranks on all hosts are pinned to cores evenly, and no core waits for a rank
        return beside, 0.0
    with parts.part(f"products on more ranks than cores, {cores} cores"):
        return beside, measure_idle_cores(by_host, cores, message_options, sizes)
