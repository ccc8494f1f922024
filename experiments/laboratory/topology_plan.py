"""`namespace_plan`: the plan of a laboratory, an emulated network of Linux network namespaces, for a topology.

The plan lists namespaces, virtual cables (veth pairs), addresses and routes.  Every node becomes a network namespace.
A host has one interface, `eth0`, with its address, and sends all packets to the other end of its cable.  A switch
forwards by address over exactly the links of the simulator's routing.  A host with several cables becomes a host and a
switch beside it, joined by a cable without a rate limit.  Routes name the hardware addresses of next hops, so no packet
needs address resolution.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import format_bytes_per_second
from quadrille.runtime.laboratory.namespace_plan import (
    HOST_INTERFACE,
    SWITCH_INTERFACE,
    ForwardingRoute,
    NamespacePlan,
    Pair,
    Port,
    VethPair,
)
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.routes.routing import Routes, Routing, Rule

MOST_HOSTS, MOST_SWITCHES = 16, 64
SLOWEST, FASTEST = 125e3, 1.25e9
"""The lowest and the highest rate that a token bucket keeps [B/s]: 1 Mbit/s and 10 Gbit/s."""
SHORTEST = Routing()
SINGLE_PATH_RULES: tuple[Rule, ...] = ("shortest", "minimal", "ecmp", "valiant")
"""Routing rules with one path for each pair of hosts, which static routes need."""


def slowest_host_bandwidth(net: Network) -> float:
    """The bandwidth of the slowest cable of a host [B/s], which `--rate` sets.

    Raises
    ------
    InputError : no host has a cable
    """
    of_hosts = np.isin(net.sources, net.endpoint_nodes()) & ~net.failed
    if not of_hosts.any():
        raise InputError(f"topology {net.name!r} has no link at a host: --rate needs one that it can set")
    return float(net.bandwidths[of_hosts].min())


def scaled_network(net: Network, rate: float) -> Network:
    """The network, scaled so that the slowest cable of a host has this rate [B/s].

    >>> from quadrille.topologies.families.leaf_spine import leaf_spine
    >>> net = leaf_spine(2, 1, 2, bandwidth=4.0, latency=0.0, uplink_bandwidth=8.0)
    >>> sorted(set(scaled_network(net, 25e6).bandwidths.tolist()))
    [25000000.0, 50000000.0]
    """
    return net.with_bandwidths(net.bandwidths * (rate / slowest_host_bandwidth(net)))


def namespace_plan(net: Network, routing: Routing = SHORTEST) -> NamespacePlan:
    """The namespace plan of a network with the paths of a routing rule.

    >>> from quadrille.topologies.families.basic import star
    >>> plan = namespace_plan(star(3, bandwidth=25e6, latency=0.0))
    >>> plan.places, plan.addresses["host:2"], len(plan.cables)
    (('host:0', 'host:1', 'host:2', 'switch:0'), '10.77.0.3', 3)

    Raises
    ------
    InputError : GPUs instead of hosts, too many hosts or switches, a rate that no token bucket keeps, a routing
        rule with several paths for a pair, or a path that visits a node twice
    """
    check_node_counts(net, net.name)
    _check(net, routing)
    return _PlanBuilder(net).plan(routing)


def check_node_counts(net: Network, topology: str) -> None:
    """Checks that a laboratory can have the nodes of a network, whatever its rates.

    Parameters
    ----------
    topology : topology as the user typed it

    Raises
    ------
    InputError : GPUs instead of hosts, too few or too many hosts, too many switches
    """
    kind, hosts = net.endpoints
    if kind != "host":
        raise InputError(f"topology {topology!r} has {hosts} {kind}s: a laboratory takes hosts, as star:hosts=4 has")
    switches = net.node_count - hosts
    if not 2 <= hosts <= MOST_HOSTS or switches > MOST_SWITCHES:
        raise InputError(
            f"topology {topology!r} has {hosts} hosts and {switches} switches: a laboratory takes 2 to {MOST_HOSTS} "
            f"hosts and at most {MOST_SWITCHES} switches"
        )


def _check(net: Network, routing: Routing) -> None:
    """Raises InputError for a routing rule with several paths for a pair, or a link rate that no token bucket keeps."""
    if routing.rule not in SINGLE_PATH_RULES:
        raise InputError(f"routing {routing}: a laboratory has one path for each pair: {', '.join(SINGLE_PATH_RULES)}")
    for number in np.flatnonzero(~net.failed).tolist():
        if not SLOWEST <= net.bandwidths[number] <= FASTEST:
            raise InputError(
                f"link {net.link_names([number])[0]} has {format_bytes_per_second(net.bandwidths[number])}: "
                f"a laboratory keeps {format_bytes_per_second(SLOWEST)} to {format_bytes_per_second(FASTEST)}; "
                "--rate 200mbit sets the hosts' links, and the others in proportion"
            )


class _PlanBuilder:
    """Builds the namespace plan of one network."""

    def __init__(self, net: Network) -> None:
        self._net = net
        self._hosts = [net.node_name(int(node)) for node in net.endpoint_nodes()]
        self._addresses = {host: f"10.77.0.{number + 1}" for number, host in enumerate(self._hosts)}
        self._used: dict[str, int] = defaultdict(int)
        self._port_count = 0
        leaving = np.bincount(net.sources[~net.failed], minlength=net.node_count)
        self._forwarding = {
            host for host, node in zip(self._hosts, net.endpoint_nodes(), strict=True) if int(leaving[node]) > 1
        }
        self._cables: list[VethPair] = []
        self._ports: dict[int, tuple[Port, Port]] = {}
        for host in self._hosts:
            if host in self._forwarding:
                inner_cable = VethPair(self._port(host, 0.0), self._port(_switch_beside(host), 0.0))
                self._cables.append(inner_cable)
        for number, back in _link_pairs(net):
            near = self._port(self._place(int(net.sources[number])), float(net.bandwidths[number]))
            far = self._port(self._place(int(net.targets[number])), float(net.bandwidths[back]))
            self._cables.append(VethPair(near, far))
            self._ports[number], self._ports[back] = (near, far), (far, near)

    def plan(self, routing: Routing) -> NamespacePlan:
        """The namespace plan with routes by this routing rule."""
        net, hosts = self._net, set(self._hosts)
        switches = [name for name in map(net.node_name, range(net.node_count)) if name not in hosts]
        beside = [_switch_beside(host) for host in self._hosts if host in self._forwarding]
        paths = self._paths(routing)
        routes = (*self._out_of_hosts(), *self._into_hosts(), *self._between(paths))
        places, cables = (*switches, *beside), tuple(self._cables)
        return NamespacePlan(net.name, self._addresses, places, cables, routes, self._passing(paths))

    def _place(self, node: int) -> str:
        """The namespace in which the cables of a node end."""
        name = self._net.node_name(node)
        return _switch_beside(name) if name in self._forwarding else name

    def _port(self, place: str, rate: float) -> Port:
        """A new port of a namespace with this rate [B/s]; 0 is no limit."""
        number, self._port_count = self._port_count, self._port_count + 1
        index, self._used[place] = self._used[place], self._used[place] + 1
        interface = HOST_INTERFACE if place in self._addresses else f"{SWITCH_INTERFACE}{index}"
        return Port(place, interface, f"02:51:00:00:{number >> 8:02x}:{number & 255:02x}", rate)

    def _out_of_hosts(self) -> Iterator[ForwardingRoute]:
        """Routes of the hosts: all packets go to the other end of the only cable."""
        for cable in self._cables:
            for port, end in ((cable.near, cable.far), (cable.far, cable.near)):
                if port.place in self._addresses:
                    for host, address in self._addresses.items():
                        if host != port.place:
                            yield ForwardingRoute(port.place, address, "", port.interface, end.hardware)

    def _into_hosts(self) -> Iterator[ForwardingRoute]:
        """Routes from the switch beside a host to the host."""
        for cable in self._cables:
            if cable.far.place == _switch_beside(cable.near.place):
                address = self._addresses[cable.near.place]
                yield ForwardingRoute(cable.far.place, address, "", cable.far.interface, cable.near.hardware)

    def _paths(self, routing: Routing) -> dict[tuple[int, int], list[int]]:
        """The links of the path from each host to each other host, by host index."""
        places = range(len(self._hosts))
        pairs = [(source, target) for source in places for target in places if source != target]
        paths = Routes(self._net, routing).between([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        links_by_pair = {}
        for flow, (source, target) in enumerate(pairs):
            links = paths.links[paths.offsets[flow] : paths.offsets[flow + 1]]
            self._check_passed_once(links, source, target, routing)
            links_by_pair[source, target] = links.tolist()
        return links_by_pair

    def _passing(self, paths: Mapping[tuple[int, int], Sequence[int]]) -> dict[Port, tuple[Pair, ...]]:
        """The pairs of hosts whose paths use each port."""
        pairs_by_port: dict[Port, list[Pair]] = {port: [] for port, _ in self._ports.values()}
        for (source, target), links in paths.items():
            for link in links:
                pairs_by_port[self._ports[link][0]].append((self._address(source), self._address(target)))
        return {port: tuple(pairs) for port, pairs in pairs_by_port.items()}

    def _between(self, paths: Mapping[tuple[int, int], Sequence[int]]) -> Iterator[ForwardingRoute]:
        """Routes of the switches: by target only if the paths of all sources use the same link, else by source too."""
        links_by_target: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        for (source, target), links in paths.items():
            for link in links:
                port, _ = self._ports[link]
                if port.place not in self._addresses:
                    links_by_target[port.place, target][source] = link
        for (place, target), link_of_source in links_by_target.items():
            by_target = len(set(link_of_source.values())) == 1
            for source, link in list(link_of_source.items())[: 1 if by_target else None]:
                port, end = self._ports[link]
                source_address = "" if by_target else self._address(source)
                yield ForwardingRoute(place, self._address(target), source_address, port.interface, end.hardware)

    def _check_passed_once(self, links: Ints, source: int, target: int, routing: Routing) -> None:
        """Raises InputError for a path that visits a node twice: static routes would take the same link again."""
        path_nodes = [*self._net.sources[links].tolist(), int(self._net.targets[links[-1]])]
        twice = next((node for place, node in enumerate(path_nodes) if node in path_nodes[:place]), None)
        if twice is not None:
            raise InputError(
                f"routing {routing}: the path from {self._hosts[source]} to {self._hosts[target]} passes "
                f"{self._net.node_name(twice)} twice, which static routes cannot: accepted are shortest, minimal, "
                f"ecmp[:SEED], and {routing.rule} if its paths visit no node twice, as on a dragonfly"
            )

    def _address(self, place: int) -> str:
        return self._addresses[self._hosts[place]]


def _switch_beside(host: str) -> str:
    """The name of the switch beside a host with several cables."""
    return f"beside-{host}"


def _link_pairs(net: Network) -> Iterator[tuple[int, int]]:
    """The two links of every cable that has not failed.

    Raises
    ------
    InputError : a link without a reverse direction
    """
    unpaired_links: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in np.flatnonzero(~net.failed).tolist():
        source, target = int(net.sources[number]), int(net.targets[number])
        if unpaired_links[target, source]:
            yield unpaired_links[target, source].pop(0), number
        else:
            unpaired_links[source, target].append(number)
    if alone := [number for numbers in unpaired_links.values() for number in numbers]:
        raise InputError(
            f"link {net.link_names(alone[:1])[0]} has no direction back, which a cable of a laboratory has"
        )
