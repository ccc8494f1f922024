"""SimGrid's zones: hosts, links and the routes between them as a file lists them.

A network here has no switches: each link of the file is one link between two
nodes of its own, `end:2k>end:2k+1`, in the order of the file (and back again,
where each direction has its bandwidth to itself), and a way is the links that
the file names.  There is no detour around a failed link.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import networkx as nx
import numpy as np

from algorithms.errors import InputError
from topologies.files.simgrid_clusters import cores, policy
from topologies.files.xml_elements import BYTES_PER_SECOND, SECONDS, Element
from topologies.network import Builder, Ints, Network
from topologies.routes.ways import OneWay

EXPLICIT = ("Full",)
SEARCHED = ("Floyd", "Dijkstra", "DijkstraCache")
NO_ROUTES = ("None",)
IGNORED = ("prop", "config", "disk")
ALL_PAIRS_CHECKED = 64
ROUTES_KEPT = 1 << 16

Hops = tuple[tuple[str, bool], ...]
"""Links by name, and whether each is taken backwards."""


@dataclass(slots=True)
class Route:
    """Links between two hosts, routers or zones, and the gateways of the zones."""

    hops: Hops
    exit: str = ""
    entry: str = ""


@dataclass(slots=True)
class Zone:
    """A zone, what is in it and how it routes."""

    name: str
    routing: str
    parent: "Zone | None"
    points: set[str] = field(default_factory=set)
    routes: dict[tuple[str, str], Route] = field(default_factory=dict)
    graph: "nx.DiGraph | None" = None

    @property
    def above(self) -> list["Zone"]:
        """All that the zone is in, from the outermost, and the zone itself."""
        return [*(self.parent.above if self.parent else []), self]


class Platform:
    """Hosts, links and zones of a platform, as they are read."""

    def __init__(self) -> None:
        self.hosts: dict[str, int] = {}
        self.links: dict[str, tuple[float, float, str]] = {}
        self.home: dict[str, Zone] = {}
        self.zones: dict[str, Zone] = {}

    def read(self, element: Element, parent: Zone | None = None) -> Zone:
        """A zone and all that is in it: first what there is, then the routes."""
        element.check_attributes("id", "routing")
        routing = element.needed("routing")
        if routing not in (*EXPLICIT, *SEARCHED, *NO_ROUTES):
            accepted = ", ".join((*EXPLICIT, *SEARCHED, *NO_ROUTES))
            raise element.error(f"<{element.tag}> has routing={routing!r}; supported are {accepted}")
        zone = Zone(element.needed("id"), routing, parent)
        self._new(element, zone.name, self.zones)
        self.zones[zone.name] = zone
        for child in element.children:
            if child.tag in ("zone", "AS"):
                zone.points.add(self.read(child, zone).name)
            elif child.tag in ("host", "router"):
                self._point(child, zone)
            elif child.tag == "link":
                self._link(child)
            elif child.tag not in ("route", "zoneRoute", "ASroute", *IGNORED):
                raise child.error(f"<{child.tag}> is not supported here")
        for child in element.children:
            if child.tag in ("route", "zoneRoute", "ASroute"):
                self._route(child, zone)
        return zone

    def _new(self, element: Element, name: str, known: Iterable[str]) -> None:
        if name in known:
            raise element.error(f"<{element.tag}> {name!r} is there twice")

    def _point(self, element: Element, zone: Zone) -> None:
        element.check_attributes("id", *(("speed", "core", "pstate") if element.tag == "host" else ()), "coordinates")
        name = element.needed("id")
        self._new(element, name, self.home)
        if element.tag == "host":
            self.hosts[name] = cores(element)
        self.home[name] = zone
        zone.points.add(name)

    def _link(self, element: Element) -> None:
        element.check_attributes("id", "bandwidth", "latency", "sharing_policy")
        name, shared = element.needed("id"), policy(element, "sharing_policy", "SHARED")
        self._new(element, name, self.links)
        if shared == "FATPIPE":
            raise element.error(f"<link> {name!r} is FATPIPE, which every flow has to itself: not supported")
        bandwidth = element.quantity("bandwidth", BYTES_PER_SECOND, above=True)
        self.links[name] = bandwidth, element.quantity("latency", SECONDS, above=False, default="0"), shared

    def _route(self, element: Element, zone: Zone) -> None:
        gateways = () if element.tag == "route" else ("gw_src", "gw_dst")
        element.check_attributes("src", "dst", "symmetrical", *gateways)
        source, target = element.needed("src"), element.needed("dst")
        for end in (source, target):
            if end not in zone.points:
                raise element.error(f"<{element.tag}> ends at {end!r}, which is not in zone {zone.name!r}")
        exit_, entry = (element.needed(name) for name in gateways) if gateways else ("", "")
        for gateway, inside in ((exit_, source), (entry, target)):
            if gateway and not any(above.name == inside for above in self._above(element, gateway)):
                raise element.error(f"<{element.tag}> has the gateway {gateway!r}, which is not in zone {inside!r}")
        hops = tuple(self._hop(child) for child in element.children if child.tag not in IGNORED)
        there, back = Route(hops, exit_, entry), Route(tuple((n, not b) for n, b in reversed(hops)), entry, exit_)
        both = element.attributes.get("symmetrical", "YES").upper()
        if both not in ("YES", "NO"):
            raise element.error(f"<{element.tag}> has symmetrical={both!r}; it must be YES or NO")
        if (source, target) in zone.routes:
            raise element.error(f"<{element.tag}> from {source!r} to {target!r}: there is one already")
        zone.routes[source, target] = there
        if both == "YES" and source != target:
            zone.routes.setdefault((target, source), back)

    def _above(self, element: Element, point: str) -> list[Zone]:
        if point not in self.home:
            raise element.error(f"<{element.tag}> has the gateway {point!r}, which is no host or router")
        return self.home[point].above

    def _hop(self, element: Element) -> tuple[str, bool]:
        if element.tag != "link_ctn":
            raise element.error(f"<{element.tag}> is not supported in a route; it lists links by <link_ctn id=…/>")
        element.check_attributes("id", "direction")
        name, direction = element.needed("id"), element.attributes.get("direction", "NONE")
        if name not in self.links:
            raise element.error(f"<link_ctn> names the link {name!r}, which is not there")
        if direction not in ("UP", "DOWN", "NONE"):
            raise element.error(f"<link_ctn> has direction={direction!r}; it must be UP or DOWN")
        if direction == "NONE" and self.links[name][2] == "SPLITDUPLEX":
            raise element.error(f"<link_ctn> of the SPLITDUPLEX link {name!r} needs direction, UP or DOWN")
        return name, direction == "DOWN"

    # Routes between any two points

    def hops(self, source: str, target: str) -> Hops:
        """Links from one host or router to another.

        Raises
        ------
        InputError : no route
        """
        if source == target:
            return ()
        one, other = self.home[source].above, self.home[target].above
        shared = sum(1 for a, b in zip(one, other, strict=False) if a is b)
        zone = one[shared - 1]
        start = source if len(one) == shared else one[shared].name
        end = target if len(other) == shared else other[shared].name
        route = self._within(zone, start, end)
        before = self.hops(source, route.exit) if route.exit else ()
        after = self.hops(route.entry, target) if route.entry else ()
        return (*before, *route.hops, *after)

    def _within(self, zone: Zone, source: str, target: str) -> Route:
        """The route between two points of a zone: as listed, or the fewest links over those listed."""
        if (source, target) in zone.routes:
            return zone.routes[source, target]
        missing = InputError(f"zone {zone.name!r} has no route from {source!r} to {target!r}")
        if zone.routing not in SEARCHED:
            raise missing
        if zone.graph is None:
            zone.graph = nx.DiGraph()
            for (one, other), route in zone.routes.items():
                zone.graph.add_edge(one, other, links=len(route.hops), route=route)
        try:
            points = nx.dijkstra_path(zone.graph, source, target, weight="links")
        except (nx.NetworkXNoPath, nx.NodeNotFound):
            raise missing from None
        routes = [zone.graph.edges[pair]["route"] for pair in pairwise(points)]
        if any(route.exit for route in routes):
            raise InputError(f"zone {zone.name!r}: routes of zones by way of others are not supported; list them")
        return Route(tuple(hop for route in routes for hop in route.hops))


@dataclass(frozen=True)
class ListedWays(OneWay):
    """Ways that a platform lists: link numbers from place to place."""

    platform: Platform
    names: tuple[str, ...]
    numbers: dict[tuple[str, bool], int]
    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "way", lru_cache(ROUTES_KEPT)(self.way))

    def way(self, source: int, target: int) -> list[int]:
        """Links from one place to another."""
        try:
            hops = self.platform.hops(self.names[source], self.names[target])
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None
        return [self.numbers[hop] for hop in hops]

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        found = [self.way(source, target) for source, target in zip(sources.tolist(), targets.tolist(), strict=True)]
        table = np.full((len(found), max(map(len, found), default=0)), -1, dtype=np.int64)
        for row, way in enumerate(found):
            table[row, : len(way)] = way
        return table


def listed_network(platform: Platform, path: str, name: str) -> Network:
    """The network of all hosts, in the order of the file.

    Raises
    ------
    InputError : no hosts, or two of them without a route
    """
    if not platform.hosts:
        raise InputError(f"{path}: the platform has no hosts")
    builder = Builder("file", {})
    builder.nodes("host", len(platform.hosts))
    ends = builder.nodes("end", 2 * len(platform.links)).reshape(-1, 2)
    bandwidths, latencies = (np.array([link[k] for link in platform.links.values()]) for k in (0, 1))
    numbers = {}
    if len(ends):
        up = builder.cables(ends[:, 0], ends[:, 1], bandwidth=bandwidths.astype(float), latency=latencies.astype(float))
        for (link, (_, _, shared)), number in zip(platform.links.items(), up.tolist(), strict=True):
            numbers[link, False] = number
            numbers[link, True] = number if shared == "SHARED" else number + 1
    ways = ListedWays(platform, tuple(platform.hosts), numbers, path)
    net = builder.network(("host", len(platform.hosts)), ways, cores=list(platform.hosts.values()), name=name)
    _check_routes(net, ways)
    return net


def _check_routes(net: Network, ways: ListedWays) -> None:
    """All routes of a small platform, and those from and to the first host of a large one."""
    count = net.place_count
    pairs = np.arange(count * count) if count <= ALL_PAIRS_CHECKED else np.arange(count)
    sources, targets = np.divmod(pairs, count)
    ways.links(sources, targets, sources)
    if count > ALL_PAIRS_CHECKED:
        ways.links(targets, sources, sources)
