"""The topology, network and emulation sections of a machine file, from the measurements between hosts.

The declared rate of a link is the user's, or the rate of a message from the first host to the second.  The payload
share is the part of the declared rate that remains for data, for example after packet headers.  It is one number for
all links, or one number per link if the all-pairs flows showed that some links are slower.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from quadrille.algorithms.formats.measured_rows import LibraryRow, TransferRow
from quadrille.experiments.calibrate.link_saturation import LinkSaturation, link_saturation, rate_of_first_pair
from quadrille.experiments.calibrate.network_benchmarks import NetworkMeasurements
from quadrille.experiments.calibrate.topology_option import FILE, TopologyOption, network_without_speeds
from quadrille.runtime.laboratory.token_buckets import burst_bytes
from quadrille.runtime.measuring.link_speed import LinkSpeed
from quadrille.runtime.measuring.measured_points import FlowPoint, TransferPoint
from quadrille.topologies.machines.machine import Emulation, Source
from quadrille.topologies.machines.machine import NetworkCosts as NetworkSection
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes, Routing

Arguments = dict[str, str | bool | int | float | list[str | int | float]]
BANDWIDTH_KEY = "bandwidth_bytes_per_second"
"""The key of a link's rate in a machine file."""
MOST_LINKS_NAMED = 8
"""The most link names in a line."""


def network_section(
    measurements: NetworkMeasurements,
    library: tuple[LibraryRow, ...],
    topology: Arguments,
    routing: Routing,
    saturation: LinkSaturation,
    *,
    shared: bool,
) -> NetworkSection:
    """The network section of the machine file.

    Parameters
    ----------
    library : rows of the MPI library's collectives
    topology : family and arguments, with all rates
    routing : routing rule between two hosts
    filled : saturation of the links
    shared : whether the hosts share a machine, whose kernel limits their links
    """
    rows = tuple(map(transfer_row, measurements.transfers))
    if not shared:
        return NetworkSection(payload_share=payload_share(1.0, saturation, topology), transfer=rows, library=library)
    level = measurements.link.bytes_per_second / rate_of_first_pair(declared_network(topology), routing, saturation)
    return NetworkSection(
        payload_share=payload_share(min(1.0, level), saturation, topology),
        transfer=rows,
        library=library,
    )


def emulation_section(measurements: NetworkMeasurements | None, topology: Arguments, routing: Routing) -> Emulation:
    """The emulation section of the machine file of hosts that share a machine."""
    if measurements is None:
        return Emulation(shared_cores=True)
    burst = measurements.link.burst_bytes
    return Emulation(
        shared_cores=True,
        idle_core_seconds=measurements.idle_core_seconds,
        core_seconds_per_byte=measurements.beside.core_seconds_per_byte,
        wakeup_delay_seconds=measurements.beside.wakeup_delay_seconds,
        back_to_back_latency_seconds=measurements.beside.back_to_back_latency_seconds,
        sender_ack_delay_seconds=measurements.sender_ack_delay_seconds,
        eager=True,
        chunk_bytes=measurements.chunk_bytes,
        burst_bytes=link_burst_bytes(burst, topology, routing) if burst else None,
    )


def topology_section(measurements: NetworkMeasurements | None, option: TopologyOption, routing: Routing) -> Arguments:
    """The topology section: family and arguments, with measured link speeds for those that the user did not declare."""
    if measurements is None:
        return _declared_arguments(option)
    section = _arguments_with_speeds(option, routing, measurements.link)
    if (
        BANDWIDTH_KEY in section.keys() - option[1].keys()
    ):  # the message may have gone by a link that is slower than others
        net, saturation = declared_network(section), saturation_of_links(measurements, section, routing)
        slower = rate_of_first_pair(net, routing, saturation) / rate_of_first_pair(net, routing)
        section[BANDWIDTH_KEY] = measurements.link.bytes_per_second / slower
    return section


def _arguments_with_speeds(option: TopologyOption, routing: Routing, link: LinkSpeed) -> Arguments:
    """Family and arguments, with the rate and latency of one message for speeds that the user did not declare."""
    declared = _declared_arguments(option)
    if option[0] == FILE:
        return declared
    latency = link.latency / float(Routes(network_without_speeds(option), routing).between([0], [1]).shares.sum())
    speeds = {BANDWIDTH_KEY: link.bytes_per_second, "latency_seconds": latency}
    named = {name.partition("_")[0] for name in option[1]}
    unnamed = {name: speed for name, speed in speeds.items() if name.partition("_")[0] not in named}
    return declared | unnamed


def _declared_arguments(option: TopologyOption) -> Arguments:
    """Family and arguments as the user gave them; a file by its name."""
    family, arguments = option
    return dict(arguments) if family == FILE else {"family": family, **arguments}


def links_agree(option: TopologyOption, routing: Routing, link: LinkSpeed, flows: Sequence[FlowPoint]) -> bool:
    """Whether the flows showed no link that is slower or faster than most, relative to the declared rates.

    Parameters
    ----------
    link : measured speed of the path between the first two hosts
    flows : measured all-pairs flows
    """
    return _saturation(link, flows, _arguments_with_speeds(option, routing, link), routing).agree


def saturation_of_links(
    measurements: NetworkMeasurements | None, topology: Arguments, routing: Routing
) -> LinkSaturation:
    """The saturation of the links relative to the declared rates; equal shares if nothing was measured."""
    if measurements is None or not measurements.flows:
        return LinkSaturation(np.ones(declared_network(topology).link_count))
    return _saturation(measurements.link, measurements.flows, topology, routing)


def _saturation(link: LinkSpeed, flows: Sequence[FlowPoint], topology: Arguments, routing: Routing) -> LinkSaturation:
    net = declared_network(topology)
    return link_saturation(net, routing, flows, link.bytes_per_second / rate_of_first_pair(net, routing))


def payload_share(level: float, saturation: LinkSaturation, topology: Arguments) -> float | dict[str, float]:
    """The share of the declared rate that remains for data: one number, or by link if the links differ.

    Parameters
    ----------
    level : share of most links
    """
    if saturation.agree:
        return level
    shares = np.minimum(1.0, level * saturation.relative).tolist()
    return dict(zip(_all_link_names(declared_network(topology)), shares, strict=True))


def unsaturated_sources(saturation: LinkSaturation, topology: Arguments) -> tuple[Source, ...]:
    """A source line with the links that no round saturated; empty if there are none."""
    if not saturation.unfilled:
        return ()
    names = declared_network(topology).link_names(saturation.unfilled[:MOST_LINKS_NAMED])
    more = len(saturation.unfilled) - len(names)
    named_links = ", ".join(names) + (f" and {more} more" if more else "")
    return (
        Source(
            "network.payload_share",
            named_links,
            "calibrate: no round saturated these links; they have the share of most other links",
        ),
    )


def link_warnings(saturation: LinkSaturation, topology: Arguments) -> Iterator[str]:
    """A line for each link that is slower or faster than declared."""
    for name, relative in zip(_all_link_names(declared_network(topology)), saturation.relative.tolist(), strict=True):
        if relative != 1:
            yield f"link {name} carries {relative:.2f} times the share of its declared rate that most links carry"


def link_burst_bytes(measured: float, topology: Arguments, routing: Routing) -> float | dict[str, float]:
    """The burst of each link [B], from the burst measured between the first two hosts.

    The buckets of an emulated network depend on the rates; if the rates differ, each link has its own burst.

    >>> link_burst_bytes(69e3, {"family": "star", "hosts": 2, "bandwidth": 25e6, "latency": 0.0}, Routing())
    69000.0
    """
    net = declared_network(topology)
    planned = {
        name: burst_bytes(rate) for name, rate in zip(_all_link_names(net), net.bandwidths.tolist(), strict=True)
    }
    if len(set(planned.values())) == 1:
        return measured
    share = measured / burst_bytes(rate_of_first_pair(net, routing))
    return {name: share * bucket for name, bucket in planned.items()}


def declared_network(topology: Arguments) -> Network:
    """The network that a topology section describes, with placeholders for missing speeds."""
    arguments = {name: value for name, value in topology.items() if name != "family"}
    return network_without_speeds(cast("TopologyOption", (topology.get("family", FILE), arguments)))


def _all_link_names(net: Network) -> list[str]:
    return net.link_names(range(net.link_count))


def transfer_row(point: TransferPoint) -> TransferRow:
    return TransferRow(
        pattern=point.pattern, ranks=point.ranks, bytes=point.bytes, seconds=point.seconds, spread=point.spread
    )
