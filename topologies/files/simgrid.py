"""Reader of SimGrid's platform files, version 4 and 4.1: a cluster, or zones with routes.

A platform that is a single cluster becomes a network of that family, with paths in
closed form.  Any other platform becomes a network with listed paths.  Inside a
cluster, Quadrille's routing may choose another of several equally short paths than
SimGrid does.  The speeds of hosts are ignored; the machine file has them.  An
unsupported element raises an error with its name and line.

A network with listed paths has no switches.  Link k of the file is a link between
two nodes of its own, `end:2k>end:2k+1`, and also back if its directions do not share
the bandwidth.  A path is the list of links that the file gives, so there is no other
path around a failed link.

A FATPIPE link gives every flow its whole bandwidth.  It does not limit a flow whose
route also has a shared link that is no faster: such a FATPIPE link keeps its latency
and is `unshared`.  A route whose slowest link is a FATPIPE link is an error.

Source: SimGrid's documentation, "Platform Description" and "Describing
Virtual Platforms: XML Reference", simgrid.org.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.simgrid_clusters import cluster, host_names
from quadrille.topologies.files.simgrid_routes import hops_between
from quadrille.topologies.files.simgrid_zones import IGNORED, NamedPath, Platform
from quadrille.topologies.files.xml_elements import Element, elements
from quadrille.topologies.network import Ints, Network, with_unshared
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.structured_paths import ListedPaths

VERSIONS = ("4", "4.1")


def parse(text: str, path: str) -> Network:
    """The network that a platform file describes.

    Parameters
    ----------
    text : content of the file
    path : path of the file, for messages

    Raises
    ------
    InputError : an unsupported or faulty platform; the message has the line and the reason
    """
    root = elements(text, path)
    if root.tag != "platform":
        raise root.error(f"<{root.tag}> is not <platform>")
    root.check_attributes("version")
    if root.needed("version") not in VERSIONS:
        raise root.error(f"version={root.attributes['version']!r} of the platform; supported are {', '.join(VERSIONS)}")
    parts = [child for child in root.children if child.tag not in IGNORED]
    alone = _only_cluster(root)
    if alone is not None:
        return replace(cluster(alone), host_names=tuple(host_names(alone)))
    if len(parts) != 1 or parts[0].tag not in ("zone", "AS"):
        raise root.error("a platform must hold one <zone>, in which all else is")
    platform = Platform()
    platform.read(parts[0])
    return listed_network(platform, path, Path(path).stem)


def _only_cluster(element: Element) -> Element | None:
    """The cluster, if the element contains nothing but one cluster, perhaps inside zones; else None."""
    parts = [child for child in element.children if child.tag not in IGNORED]
    if len(parts) != 1:
        return None
    if parts[0].tag == "cluster":
        return parts[0]
    return _only_cluster(parts[0]) if parts[0].tag in ("zone", "AS") else None


ALL_PAIRS_CHECKED = 64
ROUTES_KEPT = 1 << 16


@dataclass(frozen=True)
class PlatformPaths(ListedPaths):
    """The paths that a platform lists; each path is computed when it is first needed.

    Parameters
    ----------
    names : names of the hosts, by endpoint
    numbers : link number of each link's name and direction (True: backwards)
    path : path of the file, for messages
    """

    platform: Platform
    names: tuple[str, ...]
    numbers: dict[tuple[str, bool], int]
    path: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "links_between", lru_cache(ROUTES_KEPT)(self.links_between))

    def links_between(self, source: int, target: int) -> list[int]:
        """Link numbers of the path between two endpoints.

        Raises
        ------
        InputError : no route, or a route whose slowest link is FATPIPE
        """
        names = self.names[source], self.names[target]
        try:
            hops = hops_between(self.platform, *names)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None
        self._check_unshared(*names, hops)
        return [self.numbers[hop] for hop in hops]

    def _check_unshared(self, source: str, target: str, hops: NamedPath) -> None:
        links = {name: self.platform.links[name] for name, _ in hops}
        unshared = {name: bandwidth for name, (bandwidth, _, policy) in links.items() if policy == "FATPIPE"}
        if not unshared:
            return
        name = min(unshared, key=unshared.__getitem__)
        narrowest = min((bandwidth for bandwidth, _, policy in links.values() if policy != "FATPIPE"), default=np.inf)
        if unshared[name] < narrowest:
            raise InputError(
                f"{self.path}: the FATPIPE link {name!r} is the narrowest on the route from {source!r} to {target!r}, "
                "so that it would hold each flow back by itself: that is not supported; a shared link must be as narrow"
            )

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        paths = [
            self.links_between(source, target)
            for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
        ]
        table = np.full((len(paths), max(map(len, paths), default=0)), -1, dtype=np.int64)
        for row, path in enumerate(paths):
            table[row, : len(path)] = path
        return table


def listed_network(platform: Platform, path: str, name: str) -> Network:
    """The network of a platform with listed paths; its endpoints are the hosts, in the order of the file.

    Parameters
    ----------
    path : path of the file, for messages
    name : name of the network

    Raises
    ------
    InputError : no hosts, two hosts without a route, or a FATPIPE link that limits flows
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
    cables = {}
    for link, (_, _, sharing) in platform.links.items():
        cables[link] = [2 * (numbers[link, False] // 2), 2 * (numbers[link, False] // 2) + 1]
        if sharing == "SPLITDUPLEX":
            cables[f"{link}_UP"], cables[f"{link}_DOWN"] = [numbers[link, False]], [numbers[link, True]]
    net = replace(net, host_names=tuple(platform.hosts), cable_names=cables)
    return with_unshared(net, np.repeat([policy == "FATPIPE" for _, _, policy in platform.links.values()], 2))


def _check_routes(net: Network, paths: ListedPaths) -> None:
    """Checks all routes of a small platform, and the routes from and to the first host of a large one."""
    count = net.endpoint_count
    pairs = np.arange(count * count) if count <= ALL_PAIRS_CHECKED else np.arange(count)
    sources, targets = np.divmod(pairs, count)
    paths.links(sources, targets, sources)
    if count > ALL_PAIRS_CHECKED:
        paths.links(targets, sources, sources)
