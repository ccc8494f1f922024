"""How hosts of one of SimGrid's clusters reach each other and its router: a `<cluster>`, or a zone of host links."""

from dataclasses import dataclass, field
from typing import Protocol

from quadrille.topologies.files.simgrid_clusters import router_links
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
