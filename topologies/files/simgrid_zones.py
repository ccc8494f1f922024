"""SimGrid's zones: hosts, links, clusters and the routes between them, as a file lists them.

Which links join two hosts is `simgrid_routes.py`'s; the network made of all of
them `simgrid.py`'s.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from quadrille.topologies.files.simgrid_clusters import cluster, cores, host_names, policy, router_links, router_name
from quadrille.topologies.files.xml_elements import BYTES_PER_SECOND, SECONDS, Element
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes

NamedPath = tuple[tuple[str, bool], ...]
"""Links by name, and whether each is taken backwards."""


class InsideZone(Protocol):
    """What is inside a cluster."""

    def hops(self, source: str, target: str) -> NamedPath:
        """Links from one host to another, or between a host and the router, which is behind the backbone."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterInside:
    """A `<cluster>`: its own network, whose cable k is the platform's link `name/k`.

    Parameters
    ----------
    numbers : of its hosts, by name
    router : its name, empty where there is none
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
    """A zone with routing="Cluster": a link up and one down for each host, and perhaps a backbone.

    Parameters
    ----------
    backbone : its name, empty where there is none
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
NO_LINK = (0.0, 0.0, "")
HOSTS = ("host_link",)
BYPASSES = ("bypassRoute", "bypassZoneRoute", "bypassASroute")
ROUTES = ("route", "zoneRoute", "ASroute", *BYPASSES)
OF_ZONES = ("zoneRoute", "ASroute", "bypassZoneRoute", "bypassASroute")


@dataclass(slots=True)
class Route:
    """Links between two hosts, routers or zones, and the gateways of the zones."""

    hops: NamedPath
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
    bypasses: dict[tuple[str, str], Route] = field(default_factory=dict)
    graph: "nx.DiGraph | None" = None
    inside: InsideZone | None = None

    @property
    def above(self) -> list["Zone"]:
        """All that the zone is in, from the outermost, and the zone itself."""
        return [*(self.parent.above if self.parent else []), self]


class Platform:
    """Hosts, links and zones of a platform, as they are read.

    Parameters
    ----------
    hosts : cores of each
    links : bandwidth [B/s], latency [s] and sharing policy of each
    home : the zone in which each host or router is
    """

    def __init__(self) -> None:
        self.hosts: dict[str, int] = {}
        self.links: dict[str, tuple[float, float, str]] = {}
        self.home: dict[str, Zone] = {}
        self.zones: dict[str, Zone] = {}

    def read(self, element: Element, parent: Zone | None = None) -> Zone:
        """A zone and all that is in it: first what there is, then the routes."""
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
        """A host, link, cluster or zone in a zone; what leads from one to another is read later."""
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
        self._new(element, zone.name, self.zones)
        self.zones[zone.name] = zone
        return zone

    def _new(self, element: Element, name: str, known: Iterable[str]) -> None:
        if name in known:
            raise element.error(f"<{element.tag}> {name!r} is there twice")

    def _point(self, element: Element, zone: Zone) -> None:
        element.check_attributes("id", *(("speed", "core", "pstate") if element.tag == "host" else ()), "coordinates")
        self._place(element, element.needed("id"), zone, cores(element) if element.tag == "host" else 0)

    def _place(self, element: Element, name: str, zone: Zone, count: int) -> None:
        """A host with so many cores, or with none a router, in its zone."""
        self._new(element, name, self.home)
        if count:
            self.hosts[name] = count
        self.home[name] = zone
        zone.points.add(name)

    def _link(self, element: Element) -> None:
        element.check_attributes("id", "bandwidth", "latency", "sharing_policy")
        name, shared = element.needed("id"), policy(element, "sharing_policy", "SHARED")
        self._new(element, name, self.links)
        bandwidth = element.quantity("bandwidth", BYTES_PER_SECOND, above=True)
        self.links[name] = bandwidth, element.quantity("latency", SECONDS, above=False, default="0"), shared

    def _cluster(self, element: Element, parent: Zone) -> Zone:
        """A cluster as a zone of its own, in which its hosts and its router are."""
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
        """Links of the hosts of a zone with routing="Cluster", each with one up and one down."""
        zone.inside = inside = HostLinks()
        for child in element.children:
            if child.tag == "backbone":
                inside.backbone = child.needed("id")
            elif child.tag == "host_link":
                child.check_attributes("id", "up", "down")
                host = child.needed("id")
                if self.home.get(host) is not zone:
                    raise child.error(f"<host_link> names the host {host!r}, which is not in zone {zone.name!r}")
                inside.ends[host] = self._direction(child, "up"), self._direction(child, "down")
        lost = next((point for point in zone.points if point in self.hosts and point not in inside.ends), None)
        if lost is not None:
            raise element.error(f"<{element.tag}> {zone.name!r} has the host {lost!r} without a <host_link>")

    def _direction(self, element: Element, name: str) -> tuple[str, bool]:
        """A link by its name, or a direction of a SPLITDUPLEX one, whose names end in _UP and _DOWN."""
        given = element.needed(name)
        for ending, backwards in (("_UP", False), ("_DOWN", True)):
            link = given.removesuffix(ending)
            if given not in self.links and link != given and self.links.get(link, NO_LINK)[2] == "SPLITDUPLEX":
                return link, backwards
        if given not in self.links:
            raise element.error(f"<{element.tag}> names the link {given!r}, which is not there")
        return given, False

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
        known = zone.bypasses if bypass else zone.routes
        if (source, target) in known:
            raise element.error(f"<{element.tag}> from {source!r} to {target!r}: there is one already")
        known[source, target] = Route(hops, exit_, entry)
        both = element.attributes.get("symmetrical", "YES").upper()
        if both not in ("YES", "NO"):
            raise element.error(f"<{element.tag}> has symmetrical={both!r}; it must be YES or NO")
        if both == "YES" and source != target and not bypass:
            back = Route(tuple((name, not backwards) for name, backwards in reversed(hops)), entry, exit_)
            known.setdefault((target, source), back)

    def _below(self, zone: Zone) -> set[str]:
        """Hosts and routers of a zone, and all zones below it."""
        return zone.points | {name for name, other in self.zones.items() if zone in other.above[:-1]}

    def _above(self, element: Element, point: str) -> list[Zone]:
        if point not in self.home:
            raise element.error(f"<{element.tag}> has the gateway {point!r}, which is no host or router")
        return self.home[point].above

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
