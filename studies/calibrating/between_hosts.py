"""What is measured between hosts: steps of every pattern in chains, and the way from one host to another.

Sizes go up until a step takes long, since there seconds are proportional to bytes;
a chain of slow steps has fewer of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, cast

from algorithms.formats.machine import LibraryRow, TransferRow
from algorithms.formats.machine import Network as NetworkSection
from runtime.delivery import Delivery
from runtime.measuring.beside import Beside, measure_beside
from runtime.measuring.chains import LEAST_STEPS, STEPS, Overheads, Pattern
from runtime.measuring.idle_cores import measure_idle_cores
from runtime.measuring.links import LinkSpeed, measure_link_speed
from runtime.measuring.microbenchmarks import Bench, apart
from runtime.measuring.points import TransferPoint
from runtime.world import Host
from studies.calibrating.wiring import FILE, GivenTopology, without_speeds
from studies.token_buckets import burst_bytes
from topologies.network import Network
from topologies.routes.routing import Routes, Routing

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Arguments = dict[str, str | bool | int | float | list[str | int | float]]
LONG_STEP_SECONDS, CHAIN_SECONDS = 0.25, 2.0
"""A step that takes longer is not measured; nor a chain, unless of the fewest steps."""

DELAYED, SECOND_LOOKS = 1.15, 2
SLOWER, LARGE_BYTES = 1.06, 1 << 20
"""By how much a step of so many bytes or more may be slower than by another pattern before it is measured again."""
Found = tuple[TransferPoint, Overheads]


@dataclass(frozen=True, slots=True)
class BetweenHosts:
    """Rows of steps, what ops cost beside them, the way between the first two hosts, and messages beside products.

    Parameters
    ----------
    idle_core_seconds : how long a core that hosts share is idle before it takes a rank from another
    """

    transfers: list[TransferPoint]
    overheads: list[Overheads]
    link: LinkSpeed
    beside: Beside
    idle_core_seconds: float = 0.0


def ladder(bench: Bench, pattern: Pattern, sizes: Sequence[int]) -> Iterator[Found]:
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


def patterns(bench: Bench, sizes: Sequence[int]) -> list[Found]:
    """Steps of every pattern that so many ranks can take.

    Where two ranks exchange, each sends and receives at once as in a shift.
    """
    exchanging = bench.ranks > 2 and bench.ranks % 2 == 0
    names: tuple[Pattern, ...] = ("shift", "exchange", "one_way") if exchanging else ("shift", "one_way")
    return [found for name in names for found in ladder(bench, name, sizes)]


def confirmed(bench: Bench, every: Sequence[Found]) -> list[Found]:
    """Steps, those measured again that are slower than one of as many bytes by another pattern; the fastest counts.

    What else runs on a machine may slow all steps for seconds; a pattern that is slow by itself is so again.
    """
    return [_confirmed(bench, one, every) for one in every]


def _confirmed(bench: Bench, one: Found, every: Sequence[Found]) -> Found:
    point, least = one[0], min(other.seconds for other, _ in every if other.bytes == one[0].bytes)
    for _ in range(SECOND_LOOKS):
        if point.bytes < LARGE_BYTES or one[0].seconds <= SLOWER * least:
            break
        one = _faster(one, bench.transfer(point.pattern, point.bytes, _steps(point.seconds)))
    return one


def _steps(seconds: float) -> int:
    """Of a chain whose steps take so long."""
    return max(LEAST_STEPS, min(STEPS, int(CHAIN_SECONDS / seconds)))


def _faster(one: Found, again: Found) -> Found:
    return min(one, again, key=lambda found: found[0].seconds)


def measure_between(
    communicator: "Intracomm", hosts: Sequence[Host], sizes: Sequence[int], delivery: Delivery
) -> BetweenHosts:
    """Between hosts: the first two, then all at once, one rank of each; messages go as they will in runs."""
    firsts = [host.ranks[0] for host in hosts]
    rank = communicator.Get_rank()
    key = firsts.index(rank) if rank in firsts else len(firsts) + rank
    by_host = cast("Intracomm", communicator.Split(color=0, key=key))
    counts = dict.fromkeys([2, len(hosts)])

    def steps(bench: Bench) -> list[Found]:
        return confirmed(bench, patterns(bench, sizes))

    found = [one for count in counts for one in apart(by_host, count, steps, delivery)]
    link = apart(by_host, len(hosts), lambda bench: measure_link_speed(bench.communicator))
    beside, idle = Beside(), 0.0
    if hosts[0].sharing:
        cores, rate = hosts[0].cores, link.bytes_per_second
        beside = apart(by_host, len(hosts), lambda bench: measure_beside(bench.communicator, cores, rate, delivery))
        idle = measure_idle_cores(by_host, cores, delivery)
    return BetweenHosts([point for point, _ in found], [overheads for _, overheads in found], link, beside, idle)


def network_section(
    found: BetweenHosts,
    library: tuple[LibraryRow, ...],
    topology: Arguments,
    routing: Routing,
    *,
    shared: bool,
) -> NetworkSection:
    """What a machine file says of it.

    Parameters
    ----------
    library : collectives of the MPI library
    topology : family and arguments, with all rates
    routing : by which the links between two hosts are found
    shared : whether hosts share a machine, whose kernel keeps the rates of their links
    """
    rows = tuple(map(transfer_row, found.transfers))
    if not shared:
        return NetworkSection(transfer=rows, library=library)
    return NetworkSection(
        payload_share=min(1.0, found.link.bytes_per_second / rate_between(topology, routing)),
        buffered_sends=True,
        core_seconds_per_byte=found.beside.core_seconds_per_byte,
        late_seconds=found.beside.late_seconds,
        following_seconds=found.beside.following_seconds,
        burst_bytes=bursts(found.link.burst_bytes, topology, routing) if found.link.burst_bytes else None,
        transfer=rows,
        library=library,
    )


def wiring_section(found: BetweenHosts | None, given: GivenTopology, routing: Routing) -> Arguments:
    """Family and arguments, with the speeds of links that one message between hosts showed where none are named.

    Of a file its name: it says the speeds of its links.
    """
    family, arguments = given[0], cast("Arguments", dict(given[1]))
    if family == FILE:
        return arguments
    if found is None:
        return {"family": family, **arguments}
    speeds = {"bandwidth": found.link.bytes_per_second, "latency": found.link.latency}
    speeds["latency"] /= Routes(without_speeds(given), routing).between([0], [1]).shares.sum()
    units = {"bandwidth": "bandwidth_bytes_per_second", "latency": "latency_seconds"}
    named = {name.partition("_")[0] for name in arguments}
    return {"family": family, **arguments} | {units[word]: speeds[word] for word in speeds if word not in named}


def rate_between(topology: Arguments, routing: Routing) -> float:
    """Rate of the slowest link between the first two hosts [B/s]."""
    net = _network(topology)
    links = Routes(net, routing).between([0], [1]).links
    return float(min(net.bandwidths[links], default=inf))


def bursts(measured: float, topology: Arguments, routing: Routing) -> float | dict[str, float]:
    """What each link lets through at once, as one between the first two hosts was seen to [B].

    Links of a laboratory have buckets by their rates: where these differ, each is told.

    >>> bursts(69e3, {"family": "star", "hosts": 2, "bandwidth": 25e6, "latency": 0.0}, Routing())
    69000.0
    """
    net = _network(topology)
    planned = {name: burst_bytes(rate) for name, rate in zip(_names(net), net.bandwidths.tolist(), strict=True)}
    if len(set(planned.values())) == 1:
        return measured
    share = measured / burst_bytes(rate_between(topology, routing))
    return {name: share * bucket for name, bucket in planned.items()}


def _network(topology: Arguments) -> Network:
    arguments = {name: value for name, value in topology.items() if name != "family"}
    return without_speeds(cast("GivenTopology", (topology.get("family", FILE), arguments)))


def _names(net: Network) -> list[str]:
    return net.link_names(range(net.link_count))


def transfer_row(point: TransferPoint) -> TransferRow:
    return TransferRow(
        pattern=point.pattern, ranks=point.ranks, bytes=point.bytes, seconds=point.seconds, spread=point.spread
    )
