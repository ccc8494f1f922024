"""SimGrid's platform files, version 4 and 4.1: a cluster, or zones with their routes.

A platform with one cluster and nothing else becomes the network of that family,
with its structure; else hosts, links, clusters and routes are taken as they are
listed.
Inside a cluster the routing is ours: it may take another of several equally
short paths than SimGrid does.  Speeds of hosts are passed over: how fast they compute is said by the machine
file.  What is not supported is refused by name and line.

Source: SimGrid's documentation, "Platform Description" and "Describing
Virtual Platforms: XML Reference", simgrid.org.


The network of a SimGrid platform whose routes are listed.

It has no switches: each link of the file is one link between two nodes of its
own, `end:2k>end:2k+1`, in the order of the file (and back again, where each
direction has its bandwidth to itself), and a path is the links that the file
names.  There is no detour around a failed link.

A FATPIPE link gives every flow its whole bandwidth.  On a route on which a shared
link is as narrow, that holds no flow back: such a link has its latency, and, as
`unshared`, more bandwidth than all shared links have together.  A route on which
a FATPIPE link is the narrowest is refused.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import Builder
from quadrille.topologies.files.simgrid_clusters import cluster
from quadrille.topologies.files.simgrid_routes import hops_between
from quadrille.topologies.files.simgrid_zones import IGNORED, NamedPath, Platform
from quadrille.topologies.files.xml_elements import Element, elements
from quadrille.topologies.network import Ints, Network, with_unshared
from quadrille.topologies.structured_paths import ListedPaths

VERSIONS = ("4", "4.1")


def parse(text: str, path: str) -> Network:
    """The network of a platform; `path` is for messages.

    Raises
    ------
    InputError : not such a platform; the message has the line and the reason
    """
    root = elements(text, path)
    if root.tag != "platform":
        raise root.error(f"<{root.tag}> is not <platform>")
    root.check_attributes("version")
    if root.needed("version") not in VERSIONS:
        raise root.error(f"version={root.attributes['version']!r} of the platform; supported are {', '.join(VERSIONS)}")
    found = [child for child in root.children if child.tag not in IGNORED]
    alone = _only_cluster(root)
    if alone is not None:
        return cluster(alone)
    if len(found) != 1 or found[0].tag not in ("zone", "AS"):
        raise root.error("a platform must hold one <zone>, in which all else is")
    platform = Platform()
    platform.read(found[0])
    return listed_network(platform, path, Path(path).stem)


def _only_cluster(element: Element) -> Element | None:
    """The cluster that is all there is in the element, perhaps inside zones."""
    found = [child for child in element.children if child.tag not in IGNORED]
    if len(found) != 1:
        return None
    if found[0].tag == "cluster":
        return found[0]
    return _only_cluster(found[0]) if found[0].tag in ("zone", "AS") else None


ALL_PAIRS_CHECKED = 64
ROUTES_KEPT = 1 << 16


@dataclass(frozen=True)
class PlatformPaths(ListedPaths):
    """Paths that a platform lists, found when they are asked for.

    Parameters
    ----------
    names : of the hosts
    numbers : of each link and direction
    path : of the file, for messages
    """

    platform: Platform
    names: tuple[str, ...]
    numbers: dict[tuple[str, bool], int]
    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "links_between", lru_cache(ROUTES_KEPT)(self.links_between))

    def links_between(self, source: int, target: int) -> list[int]:
        """Links from one place to another.

        Raises
        ------
        InputError : no route, or one whose narrowest link is FATPIPE
        """
        one, other = self.names[source], self.names[target]
        try:
            hops = hops_between(self.platform, one, other)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None
        self._check_unshared(one, other, hops)
        return [self.numbers[hop] for hop in hops]

    def _check_unshared(self, one: str, other: str, hops: NamedPath) -> None:
        links = {name: self.platform.links[name] for name, _ in hops}
        unshared = {name: bandwidth for name, (bandwidth, _, policy) in links.items() if policy == "FATPIPE"}
        if not unshared:
            return
        name = min(unshared, key=unshared.__getitem__)
        narrowest = min((bandwidth for bandwidth, _, policy in links.values() if policy != "FATPIPE"), default=np.inf)
        if unshared[name] < narrowest:
            raise InputError(
                f"{self.path}: the FATPIPE link {name!r} is the narrowest on the route from {one!r} to {other!r}, "
                "so that it would hold each flow back by itself: that is not supported; a shared link must be as narrow"
            )

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        found = [
            self.links_between(source, target)
            for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
        ]
        table = np.full((len(found), max(map(len, found), default=0)), -1, dtype=np.int64)
        for row, path in enumerate(found):
            table[row, : len(path)] = path
        return table


def listed_network(platform: Platform, path: str, name: str) -> Network:
    """The network of all hosts, in the order of the file.

    Raises
    ------
    InputError : no hosts, two of them without a route, or a FATPIPE link that would hold flows back
    """
    if not platform.hosts:
        raise InputError(f"{path}: the platform has no hosts")
    builder = Builder("file", {})
    builder.nodes("host", len(platform.hosts))
    ends = builder.nodes("end", 2 * len(platform.links)).reshape(-1, 2)
    bandwidths, latencies = (np.array([link[k] for link in platform.links.values()], dtype=float) for k in (0, 1))
    numbers = {}
    if len(ends):
        up = builder.cables(ends[:, 0], ends[:, 1], bandwidth=bandwidths, latency=latencies)
        for (link, (_, _, shared)), number in zip(platform.links.items(), up.tolist(), strict=True):
            numbers[link, False] = number
            numbers[link, True] = number + 1 if shared == "SPLITDUPLEX" else number
    paths = PlatformPaths(platform, tuple(platform.hosts), numbers, path)
    net = builder.network(("host", len(platform.hosts)), paths, cores=list(platform.hosts.values()), name=name)
    _check_routes(net, paths)
    return with_unshared(net, np.repeat([policy == "FATPIPE" for _, _, policy in platform.links.values()], 2))


def _check_routes(net: Network, paths: ListedPaths) -> None:
    """All routes of a small platform, and those from and to the first host of a large one."""
    count = net.endpoint_count
    pairs = np.arange(count * count) if count <= ALL_PAIRS_CHECKED else np.arange(count)
    sources, targets = np.divmod(pairs, count)
    paths.links(sources, targets, sources)
    if count > ALL_PAIRS_CHECKED:
        paths.links(targets, sources, sources)
