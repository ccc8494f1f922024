"""Topology and network of a machine file, from what was measured between hosts.

Links have the rates that the user said, else that of a message from the first host to the second.  What is left of
that for what ranks send is one share for all links (what headers of packets leave, where the hosts of a laboratory are
behind token buckets), and where rounds showed some links to be slower than that, one by link.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from quadrille.algorithms.formats.measured_rows import LibraryRow, TransferRow
from quadrille.experiments.calibrate.between_hosts import NetworkMeasurements
from quadrille.experiments.calibrate.link_saturation import LinkSaturation, link_saturation, rate_between
from quadrille.experiments.calibrate.topology_option import FILE, TopologyOption, network_without_speeds
from quadrille.runtime.laboratory.token_buckets import burst_bytes
from quadrille.runtime.measuring.links import LinkSpeed
from quadrille.runtime.measuring.points import FlowPoint, TransferPoint
from quadrille.topologies.machines.machine import Network as NetworkSection
from quadrille.topologies.machines.machine import Source
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes, Routing

Arguments = dict[str, str | bool | int | float | list[str | int | float]]
BANDWIDTH = "bandwidth_bytes_per_second"
"""By what name a rate is told that was measured."""
MOST_NAMED = 8
"""Links in a line."""


def network_section(
    found: NetworkMeasurements,
    library: tuple[LibraryRow, ...],
    topology: Arguments,
    routing: Routing,
    filled: LinkSaturation,
    *,
    shared: bool,
) -> NetworkSection:
    """What a machine file says of it.

    Parameters
    ----------
    library : collectives of the MPI library
    topology : family and arguments, with all rates
    routing : by which the links between two hosts are found
    filled : what rounds showed of the links
    shared : whether hosts share a machine, whose kernel keeps the rates of their links
    """
    rows = tuple(map(transfer_row, found.transfers))
    if not shared:
        return NetworkSection(payload_share=payload_share(1.0, filled, topology), transfer=rows, library=library)
    level = found.link.bytes_per_second / rate_between(network_of(topology), routing, filled)
    return NetworkSection(
        payload_share=payload_share(min(1.0, level), filled, topology),
        buffered_sends=True,
        chunk_bytes=found.chunk_bytes,
        core_seconds_per_byte=found.beside.core_seconds_per_byte,
        late_seconds=found.beside.late_seconds,
        following_seconds=found.beside.following_seconds,
        taken_seconds=found.taken_seconds,
        burst_bytes=bursts(found.link.burst_bytes, topology, routing) if found.link.burst_bytes else None,
        transfer=rows,
        library=library,
    )


def topology_section(found: NetworkMeasurements | None, given: TopologyOption, routing: Routing) -> Arguments:
    """Family and arguments, with the speeds of links that one message between hosts showed where none are named.

    Of a file its name: it says the speeds of its links.
    """
    if found is None:
        return _said(given)
    told = _with_speeds(given, routing, found.link)
    if BANDWIDTH in told.keys() - given[1].keys():  # the message may have gone by a link that is slower than others
        net, filled = network_of(told), links_of(found, told, routing)
        slower = rate_between(net, routing, filled) / rate_between(net, routing)
        told[BANDWIDTH] = found.link.bytes_per_second / slower
    return told


def _with_speeds(given: TopologyOption, routing: Routing, link: LinkSpeed) -> Arguments:
    """Family and arguments, with the speeds that one message showed where none are named; of a file its name."""
    said = _said(given)
    if given[0] == FILE:
        return said
    latency = link.latency / float(Routes(network_without_speeds(given), routing).between([0], [1]).shares.sum())
    speeds = {BANDWIDTH: link.bytes_per_second, "latency_seconds": latency}
    named = {name.partition("_")[0] for name in given[1]}
    unnamed = {name: speed for name, speed in speeds.items() if name.partition("_")[0] not in named}
    return said | unnamed


def _said(given: TopologyOption) -> Arguments:
    """Family and arguments as the user said them; of a file its name."""
    family, arguments = given
    return dict(arguments) if family == FILE else {"family": family, **arguments}


def links_agree(given: TopologyOption, routing: Routing, link: LinkSpeed, flows: Sequence[FlowPoint]) -> bool:
    """Whether rounds showed no link to be slower or faster than most, by what is said of them."""
    return _filled(link, flows, _with_speeds(given, routing, link), routing).agree


def links_of(found: NetworkMeasurements | None, topology: Arguments, routing: Routing) -> LinkSaturation:
    """What rounds showed of the links, in shares of these rates; that they agree, where nothing was measured."""
    if found is None or not found.flows:
        return LinkSaturation(np.ones(network_of(topology).link_count))
    return _filled(found.link, found.flows, topology, routing)


def _filled(link: LinkSpeed, flows: Sequence[FlowPoint], topology: Arguments, routing: Routing) -> LinkSaturation:
    net = network_of(topology)
    return link_saturation(net, routing, flows, link.bytes_per_second / rate_between(net, routing))


def payload_share(level: float, filled: LinkSaturation, topology: Arguments) -> float | dict[str, float]:
    """What links have of the rates that are said: of every link, or by link where some have another share.

    Parameters
    ----------
    level : of most links
    """
    if filled.agree:
        return level
    shares = np.minimum(1.0, level * filled.relative).tolist()
    return dict(zip(_names(network_of(topology)), shares, strict=True))


def sources_of(filled: LinkSaturation, topology: Arguments) -> tuple[Source, ...]:
    """Which links no round filled, in a line; nothing where there are none."""
    if not filled.unfilled:
        return ()
    names = network_of(topology).link_names(filled.unfilled[:MOST_NAMED])
    more = len(filled.unfilled) - len(names)
    told = ", ".join(names) + (f" and {more} more" if more else "")
    return (Source("network.payload_share", told, "calibrate: no round filled these; the share of most others"),)


def warnings_of(filled: LinkSaturation, topology: Arguments) -> Iterator[str]:
    """A line for each link that is slower or faster than is said of it."""
    for name, relative in zip(_names(network_of(topology)), filled.relative.tolist(), strict=True):
        if relative != 1:
            yield f"link {name} carries {relative:.2f} times what most links do, by the rates that are said of them"


def bursts(measured: float, topology: Arguments, routing: Routing) -> float | dict[str, float]:
    """What each link lets through at once, as one between the first two hosts was seen to [B].

    Links of a laboratory have buckets by their rates: where these differ, each is told.

    >>> bursts(69e3, {"family": "star", "hosts": 2, "bandwidth": 25e6, "latency": 0.0}, Routing())
    69000.0
    """
    net = network_of(topology)
    planned = {name: burst_bytes(rate) for name, rate in zip(_names(net), net.bandwidths.tolist(), strict=True)}
    if len(set(planned.values())) == 1:
        return measured
    share = measured / burst_bytes(rate_between(net, routing))
    return {name: share * bucket for name, bucket in planned.items()}


def network_of(topology: Arguments) -> Network:
    """The network that a machine file says, with stand-ins for speeds that it does not."""
    arguments = {name: value for name, value in topology.items() if name != "family"}
    return network_without_speeds(cast("TopologyOption", (topology.get("family", FILE), arguments)))


def _names(net: Network) -> list[str]:
    return net.link_names(range(net.link_count))


def transfer_row(point: TransferPoint) -> TransferRow:
    return TransferRow(
        pattern=point.pattern, ranks=point.ranks, bytes=point.bytes, seconds=point.seconds, spread=point.spread
    )
