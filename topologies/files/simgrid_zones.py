"""`Platform` reads the zones of a SimGrid platform: hosts, links, clusters and the listed routes between them.

`simgrid_routes.py` finds the route between two hosts; `simgrid.py` makes the network.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from quadrille.topologies.files.simgrid_clusters import (
    check_speeds,
    cluster,
    cores,
    host_names,
    policy,
    router_links,
    router_name,
)
from quadrille.topologies.files.xml_elements import BYTES_PER_SECOND, SECONDS, Element
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes

NamedPath = tuple[tuple[str, bool], ...]
"""Links of a route: name of each link, and whether the route takes it backwards."""


class InsideZone(Protocol):
    """Paths inside a cluster."""

    def hops(self, source: str, target: str) -> NamedPath:
        """Links from one host to another, or between a host and the router behind the backbone."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterInside:
    """Paths inside a `<cluster>`: those of its network, whose cable k is the platform's link `name/k`.

    Parameters
    ----------
    name : name of the cluster
    net : network of the cluster
    numbers : endpoint of each host in the network, by name
    router : name of the router; empty if there is none
    """

    name: str
    net: Network
    numbers: dict[str, int]
    router: str

    def hops(self, source: str, target: str) -> NamedPath:
        if source == self.router:
            links = router_links(self.net, self.numbers[target], inwards=True)
        elif target == self.router:
            links = router_links(self.net, self.numbers[source], inwards=False)
        else:
            links = Routes(self.net).between([self.numbers[source]], [self.numbers[target]]).links.tolist()
        return tuple((f"{self.name}/{link // 2}", bool(link % 2)) for link in links)


@dataclass(slots=True)
class HostLinks:
    """Paths inside a zone with routing="Cluster": the links up and down of the hosts, and the backbone if there is one.

    Parameters
    ----------
    backbone : name of the backbone's link; empty if there is none
    ends : link up and link down of each host, by name; a router has none
    """

    backbone: str = ""
    ends: dict[str, tuple[tuple[str, bool], tuple[str, bool]]] = field(default_factory=dict)

    def hops(self, source: str, target: str) -> NamedPath:
        up = (self.ends[source][0],) if source in self.ends else ()
        down = (self.ends[target][1],) if target in self.ends else ()
        return (*up, *(((self.backbone, False),) if self.backbone else ()), *down)


if TYPE_CHECKING:
    import networkx as nx

EXPLICIT = ("Full",)
SEARCHED = ("Floyd", "Dijkstra", "DijkstraCache")
NO_ROUTES = ("None",)
HOST_LINKS = ("Cluster",)
ROUTINGS = (*EXPLICIT, *SEARCHED, *HOST_LINKS, *NO_ROUTES)
IGNORED = ("prop", "config", "disk")
DEFAULTS = {"state": ("ON", "on"), "availability": ("1.0", "1", "1.")}
"""Attributes of hosts and links that may state their default."""
NO_LINK = (0.0, 0.0, "")
HOSTS = ("host_link",)
BYPASSES = ("bypassRoute", "bypassZoneRoute", "bypassASroute")
ROUTES = ("route", "zoneRoute", "ASroute", *BYPASSES)
OF_ZONES = ("zoneRoute", "ASroute", "bypassZoneRoute", "bypassASroute")


@dataclass(slots=True)
class Route:
    """A route between two hosts, routers or zones.

    Parameters
    ----------
    hops : links of the route
    exit, entry : gateways of the source zone and the target zone; empty for hosts and routers
    """

    hops: NamedPath
    exit: str = ""
    entry: str = ""


@dataclass(slots=True)
class Zone:
    """A zone of a platform.

    Parameters
    ----------
    parent : zone that contains this zone; None for the outermost
    points : names of the hosts, routers and zones directly inside
    routes, bypasses : listed routes, by source and target
    graph : graph of the listed routes, made by the first search
    inside : paths inside a cluster; None for other zones
    """

    name: str
    routing: str
    parent: "Zone | None"
    points: set[str] = field(default_factory=set)
    routes: dict[tuple[str, str], Route] = field(default_factory=dict)
    bypasses: dict[tuple[str, str], Route] = field(default_factory=dict)
    graph: "nx.DiGraph | None" = None
    inside: InsideZone | None = None

    @property
    def above(self) -> list["Zone"]:
        """The zones that contain this zone, from the outermost, and this zone itself."""
        return [*(self.parent.above if self.parent else []), self]


class Platform:
    """Hosts, links and zones of a platform that have been read so far.

    Attributes
    ----------
    hosts : number of cores of each host, by name
    links : bandwidth [B/s], latency [s] and sharing policy of each link, by name
    zone_of : zone of each host or router, by name
    zones : zones, by name
    """

    def __init__(self) -> None:
        self.hosts: dict[str, int] = {}
        self.links: dict[str, tuple[float, float, str]] = {}
        self.zone_of: dict[str, Zone] = {}
        self.zones: dict[str, Zone] = {}

    def read(self, element: Element, parent: Zone | None = None) -> Zone:
        """Reads a zone with its contents: first hosts, links and zones, then routes."""
        element.check_attributes("id", "routing")
        routing = element.needed("routing")
        if routing not in ROUTINGS:
            raise element.error(f"<{element.tag}> has routing={routing!r}; supported are {', '.join(ROUTINGS)}")
        zone = self._zone(element, routing, parent)
        for child in element.children:
            self._part(child, zone)
        if routing in HOST_LINKS:
            self._host_links(element, zone)
        for child in element.children:
            if child.tag in ROUTES:
                self._route(child, zone)
        return zone

    def _part(self, element: Element, zone: Zone) -> None:
        """Reads a host, link, cluster or zone inside a zone; routes are read later."""
        match element.tag:
            case "zone" | "AS":
                zone.points.add(self.read(element, zone).name)
            case "cluster":
                zone.points.add(self._cluster(element, zone).name)
            case "host" | "router":
                self._point(element, zone)
            case "link" | "backbone":
                self._link(element)
            case tag if tag not in (*(HOSTS if zone.routing in HOST_LINKS else ROUTES), *IGNORED):
                raise element.error(f"<{tag}> is not supported here")

    def _zone(self, element: Element, routing: str, parent: Zone | None) -> Zone:
        zone = Zone(element.needed("id"), routing, parent)
        self._check_new(element, zone.name, self.zones)
        self.zones[zone.name] = zone
        return zone

    def _check_new(self, element: Element, name: str, names: Iterable[str]) -> None:
        if name in names:
            raise element.error(f"<{element.tag}> {name!r} is there twice")

    def _point(self, element: Element, zone: Zone) -> None:
        if element.tag == "host":
            element.check_defaults(**DEFAULTS)
            check_speeds(element)
        element.check_attributes("id", *(("speed", "core", "pstate") if element.tag == "host" else ()), "coordinates")
        self._place(element, element.needed("id"), zone, cores(element) if element.tag == "host" else 0)

    def _place(self, element: Element, name: str, zone: Zone, count: int) -> None:
        """Adds a host with `count` cores, or with 0 a router, to a zone."""
        self._check_new(element, name, self.zone_of)
        if count:
            self.hosts[name] = count
        self.zone_of[name] = zone
        zone.points.add(name)

    def _link(self, element: Element) -> None:
        element.check_defaults(state=DEFAULTS["state"])
        element.check_attributes("id", "bandwidth", "latency", "sharing_policy")
        name, shared = element.needed("id"), policy(element, "sharing_policy", "SHARED")
        self._check_new(element, name, self.links)
        bandwidth = element.quantity("bandwidth", BYTES_PER_SECOND, above=True)
        self.links[name] = bandwidth, element.quantity("latency", SECONDS, above=False, default="0"), shared

    def _cluster(self, element: Element, parent: Zone) -> Zone:
        """Reads a cluster as a zone that contains its hosts and its router."""
        net, names, router = cluster(element), host_names(element), router_name(element)
        zone = self._zone(element, "Cluster", parent)
        zone.inside = ClusterInside(zone.name, net, {host: number for number, host in enumerate(names)}, router)
        for host in names:
            self._place(element, host, zone, cores(element))
        if router:
            self._place(element, router, zone, 0)
        for cable in range(net.link_count // 2):
            shared = "FATPIPE" if net.unshared is not None and net.unshared[2 * cable] else "SPLITDUPLEX"
            self.links[f"{zone.name}/{cable}"] = (
                float(net.bandwidths[2 * cable]),
                float(net.latencies[2 * cable]),
                shared,
            )
        return zone

    def _host_links(self, element: Element, zone: Zone) -> None:
        """Reads the `<host_link>`s of a zone with routing="Cluster": a link up and a link down for each host."""
        zone.inside = inside = HostLinks()
        for child in element.children:
            if child.tag == "backbone":
                inside.backbone = child.needed("id")
            elif child.tag == "host_link":
                child.check_attributes("id", "up", "down")
                host = child.needed("id")
                if self.zone_of.get(host) is not zone:
                    raise child.error(f"<host_link> names the host {host!r}, which is not in zone {zone.name!r}")
                inside.ends[host] = self._direction(child, "up"), self._direction(child, "down")
        lost = next((point for point in zone.points if point in self.hosts and point not in inside.ends), None)
        if lost is not None:
            raise element.error(f"<{element.tag}> {zone.name!r} has the host {lost!r} without a <host_link>")

    def _direction(self, element: Element, name: str) -> tuple[str, bool]:
        """The link that an attribute names, and whether backwards; a SPLITDUPLEX link may end in _UP or _DOWN."""
        word = element.needed(name)
        for ending, backwards in (("_UP", False), ("_DOWN", True)):
            link = word.removesuffix(ending)
            if word not in self.links and link != word and self.links.get(link, NO_LINK)[2] == "SPLITDUPLEX":
                return link, backwards
        if word not in self.links:
            raise element.error(f"<{element.tag}> names the link {word!r}, which is not there")
        return word, False

    # Routes

    def _route(self, element: Element, zone: Zone) -> None:
        bypass, gateways = element.tag in BYPASSES, ("gw_src", "gw_dst") if element.tag in OF_ZONES else ()
        element.check_attributes("src", "dst", *(() if bypass else ("symmetrical",)), *gateways)
        source, target = element.needed("src"), element.needed("dst")
        for end in (source, target):
            if end not in (self._below(zone) if bypass else zone.points):
                raise element.error(f"<{element.tag}> ends at {end!r}, which is not in zone {zone.name!r}")
        exit_, entry = (element.needed(name) for name in gateways) if gateways else ("", "")
        for gateway, inside in ((exit_, source), (entry, target)):
            if gateway and not any(above.name == inside for above in self._above(element, gateway)):
                raise element.error(f"<{element.tag}> has the gateway {gateway!r}, which is not in zone {inside!r}")
        hops = tuple(self._hop(child) for child in element.children if child.tag not in IGNORED)
        routes = zone.bypasses if bypass else zone.routes
        if (source, target) in routes:
            raise element.error(f"<{element.tag}> from {source!r} to {target!r}: there is one already")
        routes[source, target] = Route(hops, exit_, entry)
        both = element.attributes.get("symmetrical", "YES").upper()
        if both not in ("YES", "NO"):
            raise element.error(f"<{element.tag}> has symmetrical={both!r}; it must be YES or NO")
        if both == "YES" and source != target and not bypass:
            back = Route(tuple((name, not backwards) for name, backwards in reversed(hops)), entry, exit_)
            routes.setdefault((target, source), back)

    def _below(self, zone: Zone) -> set[str]:
        """Hosts and routers of a zone, and all zones inside it."""
        return zone.points | {name for name, inner in self.zones.items() if zone in inner.above[:-1]}

    def _above(self, element: Element, point: str) -> list[Zone]:
        if point not in self.zone_of:
            raise element.error(f"<{element.tag}> has the gateway {point!r}, which is no host or router")
        return self.zone_of[point].above

    def _hop(self, element: Element) -> tuple[str, bool]:
        if element.tag != "link_ctn":
            raise element.error(f"<{element.tag}> is not supported in a route; it lists links by <link_ctn id=…/>")
        element.check_attributes("id", "direction")
        (name, backwards), direction = self._direction(element, "id"), element.attributes.get("direction", "NONE")
        if direction not in ("UP", "DOWN", "NONE"):
            raise element.error(f"<link_ctn> has direction={direction!r}; it must be UP or DOWN")
        if direction == "NONE" and self.links[name][2] == "SPLITDUPLEX" and name == element.needed("id"):
            raise element.error(f"<link_ctn> of the SPLITDUPLEX link {name!r} needs direction, UP or DOWN")
        return name, backwards or direction == "DOWN"
