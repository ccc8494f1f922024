"""Benchmarks between hosts: steps of every pattern in chains, and the path between two hosts.

Message sizes grow until a step takes long, because from there on seconds are proportional to bytes. A chain of slow
steps is shorter.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, cast

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
DELAYED = 1.15
"""A step is measured again if it takes this many times as long per byte as a smaller step."""
SLOWER, LARGE_BYTES = 1.06, 1 << 20
"""A step of at least so many bytes is measured again if it takes this many times as long as with another pattern."""
SECOND_LOOKS = 2
"""The most repetitions of a measurement."""
ChainResult = tuple[TransferPoint, Overheads]
Agree = Callable[[LinkSpeed, Sequence[FlowPoint]], bool]
"""Whether the links have the rates that one message showed, judged by the all-pairs flows."""


@dataclass(frozen=True, slots=True)
class NetworkMeasurements:
    """The measurements between hosts: steps and their overheads, the path between the first two, overlap costs.

    Parameters
    ----------
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


def ladder(bench: Bench, pattern: Pattern, sizes: Sequence[int]) -> Iterator[ChainResult]:
    """Steps of a pattern with growing sizes, until a step takes long.

    A message takes no longer than its parts one after the other. If it does, something delayed it, and it is measured
    again.
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
    """Steps of every pattern that this number of ranks allows.

    With two ranks, an exchange is the same as a shift.
    """
    exchanging = bench.ranks > 2 and bench.ranks % 2 == 0
    names: tuple[Pattern, ...] = ("shift", "exchange", "one_way") if exchanging else ("shift", "one_way")
    return [step for name in names for step in ladder(bench, name, sizes)]


def confirmed(bench: Bench, every: Sequence[ChainResult]) -> list[ChainResult]:
    """The steps, after measuring again those that are slower than another pattern's step of the same size.

    Other processes may slow all steps for seconds; a pattern that is slow by itself is slow again. The fastest value
    counts.
    """
    return [_confirmed(bench, step, every) for step in every]


def _confirmed(bench: Bench, step: ChainResult, every: Sequence[ChainResult]) -> ChainResult:
    point, least = step[0], min(other_point.seconds for other_point, _ in every if other_point.bytes == step[0].bytes)
    for _ in range(SECOND_LOOKS):
        if point.bytes < LARGE_BYTES or step[0].seconds <= SLOWER * least:
            break
        step = _faster(step, bench.transfer(point.pattern, point.bytes, _steps(point.seconds)))
    return step


def _taken(every: Sequence[TransferPoint]) -> float:
    """The delay of a sender's end where all hosts take part; 0 if it was not measured."""
    most = max(point.ranks for point in every)
    delays = [
        point.sender_ack_delay_seconds
        for point in every
        if point.ranks == most and point.sender_ack_delay_seconds is not None
    ]
    return median(delays) if delays else 0.0


def _steps(seconds: float) -> int:
    """The number of steps of a chain whose steps take this long."""
    return max(LEAST_STEPS, min(STEPS, int(CHAIN_SECONDS / seconds)))


def _faster(first: ChainResult, again: ChainResult) -> ChainResult:
    return min(first, again, key=lambda step: step[0].seconds)


def measure_flows(
    by_host: "Intracomm",
    hosts: int,
    link: LinkSpeed,
    message_options: MessageOptions,
    agree: Agree,
    sizes: CalibrationSizes = FULL,
) -> list[FlowPoint]:
    """The all-pairs flows, measured again while some links seem slower than others.

    The highest rate seen on a link counts: another process would have to slow it every time.
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
    """All measurements between hosts: first between two, then between all, with one rank on each host.

    Parameters
    ----------
    message_options : how messages are sent, as in runs
    agree : whether the links have the rates that one message showed
    """
    firsts = [host.ranks[0] for host in hosts]
    rank = communicator.Get_rank()
    key = firsts.index(rank) if rank in firsts else len(firsts) + rank
    by_host = cast("Intracomm", communicator.Split(color=0, key=key))
    counts = dict.fromkeys([2, len(hosts)])

    def steps(bench: Bench) -> list[ChainResult]:
        return confirmed(bench, patterns(bench, sizes.transfer_bytes))

    measured_steps = [
        step for count in counts for step in measured_on_first(by_host, count, steps, message_options, sizes)
    ]
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
    points, overheads = [point for point, _ in measured_steps], [overheads for _, overheads in measured_steps]
    return NetworkMeasurements(
        points, overheads, link, beside, idle, flows, message_options.chunk_bytes, _taken(points)
    )
