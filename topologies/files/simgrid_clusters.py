"""SimGrid's clusters: flat, fat tree, torus and dragonfly, from one element.

In a flat one link 2 i leads from host i to the switch, and link 2 i + 1 back; the
backbone comes after those of all hosts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from quadrille.topologies.builder import Builder, reverse
from quadrille.topologies.families.basic import star
from quadrille.topologies.families.torus import torus
from quadrille.topologies.families.tree import tree
from quadrille.topologies.files.xml_elements import BYTES_PER_SECOND, SECONDS, Element, whole_numbers
from quadrille.topologies.limits import check_size
from quadrille.topologies.network import Ints, Network, with_unshared
from quadrille.topologies.structured_paths import ListedPaths, side_by_side

IGNORED = ("speed", "loopback_bw", "loopback_lat", "router_id")
ACCEPTED = (
    *("id", "prefix", "suffix", "radical", "core", "bw", "lat", "sharing_policy", "bb_bw", "bb_lat"),
    *("bb_sharing_policy", "topology", "topo_parameters", *IGNORED),
)
POLICIES = ("SPLITDUPLEX", "SHARED", "FATPIPE")


def cluster(element: Element) -> Network:
    """The network of a cluster; host number i is the i-th of `radical`.

    Raises
    ------
    InputError : an attribute that is missing, wrong or not supported, with its line
    """
    element.check_attributes(*ACCEPTED)
    shape = element.attributes.get("topology", "FLAT")
    makers: dict[str, Callable[[Element, int], Network]] = {
        "FLAT": flat,
        "FAT_TREE": fat_tree,
        "TORUS": simgrid_torus,
        "DRAGONFLY": dragonfly,
    }
    if shape not in makers:
        raise element.error(f"<cluster> has topology={shape!r}; supported are {', '.join(makers)}")
    hosts = sum(last - first + 1 for first, last in radical(element))
    if shape != "FLAT" and policy(element, "sharing_policy") != "SPLITDUPLEX":
        raise element.error(f"<cluster> of topology {shape} is supported with sharing_policy='SPLITDUPLEX' only")
    if shape != "FLAT" and "bb_bw" in element.attributes:
        raise element.error(f"<cluster> of topology {shape} has bb_bw; a backbone is supported in a FLAT one only")
    return makers[shape](element, hosts)


def radical(element: Element) -> list[tuple[int, int]]:
    """First and last number of each piece of `0-15,20`."""
    text = element.needed("radical")
    pieces = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", piece)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise element.error(f"<cluster> has radical={text!r:.60}; write numbers and ranges, such as 0-15,20")
        pieces.append((int(match[1]), int(match[2] or match[1])))
    for (_, last), (first, _) in pairwise(sorted(pieces)):
        if first <= last:
            raise element.error(f"<cluster> has radical={text!r:.60}, in which {first} is there twice")
    return pieces


def policy(element: Element, name: str, default: str = "SPLITDUPLEX") -> str:
    """How a link is shared: by both directions, by each (FULLDUPLEX is the old word), or not at all."""
    found = element.attributes.get(name, default).replace("FULLDUPLEX", "SPLITDUPLEX")
    if found not in POLICIES:
        raise element.error(f"<{element.tag}> has {name}={found!r}; supported are {', '.join(POLICIES)}")
    return found


def cores(element: Element) -> int:
    """Cores of each host."""
    (count,) = whole_numbers(element, element.attributes.get("core", "1"), "core")
    if count < 1:
        raise element.error(f"<{element.tag}> has core={count}; a host has at least one")
    return count


def rates(element: Element) -> dict[str, float]:
    """Of the cluster's links [B/s, s]."""
    return {
        "bandwidth": element.quantity("bw", BYTES_PER_SECOND, above=True),
        "latency": element.quantity("lat", SECONDS, above=False),
    }


def parameters(element: Element, pieces: int, example: str) -> list[list[int]]:
    """The pieces of `topo_parameters`, each a list of whole numbers."""
    text = element.needed("topo_parameters")
    found = [[*whole_numbers(element, piece, "topo_parameters")] for piece in text.split(";")]
    if len(found) != pieces or min(map(min, found)) < 1:
        raise element.error(f"<cluster> has topo_parameters={text!r}; it must be like {example}, from 1")
    return found


def check_hosts(element: Element, hosts: int, built: int) -> None:
    """Refuses a radical that does not fit the parameters."""
    if hosts != built:
        raise element.error(
            f"<cluster> has {hosts} hosts by radical={element.attributes['radical']!r} and {built} by topo_parameters"
        )


def fat_tree(element: Element, hosts: int) -> Network:
    """Levels; children, parents and parallel cables of each level, from the hosts upwards."""
    example = "2;4,4;1,2;1,2"
    levels, down, up, parallel = parameters(element, 4, example)
    if len(levels) != 1 or not len(down) == len(up) == len(parallel) == levels[0]:
        raise element.error(
            f"<cluster> has topo_parameters whose lists differ from its levels; write them as {example}"
        )
    check_hosts(element, hosts, int(np.prod(down, dtype=object)))
    return tree(down, up, parallel=parallel, cores=cores(element), **rates(element))


def simgrid_torus(element: Element, hosts: int) -> Network:
    """The lengths of the torus, whose vertices are the hosts."""
    (dims,) = parameters(element, 1, "3,2,2")
    check_hosts(element, hosts, int(np.prod(dims, dtype=object)))
    rate = rates(element)
    return torus(dims, cores=cores(element), bandwidth=rate["bandwidth"], latency=rate["latency"])


def dragonfly(element: Element, hosts: int) -> Network:
    """The dragonfly of Cray's Cascade: groups of chassis of routers, with hosts on each router.

    A router is wired to all others of its chassis (green), to those in its place
    in the other chassis of its group (black), and router j of group i to router i
    of group j (blue).  Parallel cables are one of their bandwidth together.  Paths
    are the shortest, by search.

    Source: Faanes et al., "Cray Cascade: A Scalable HPC System Based on a
    Dragonfly Network", SC12; SimGrid's documentation, "Dragonfly Cluster".
    """
    example = "3,4;4,3;5,1;2"
    found = parameters(element, 4, example)
    if [len(piece) for piece in found] != [2, 2, 2, 1]:
        raise element.error(f"<cluster> has topo_parameters={element.attributes['topo_parameters']!r}; write {example}")
    (groups, blue), (chassis, black), (blades, green), (per_router,) = found
    group_size = chassis * blades
    check_hosts(element, hosts, groups * group_size * per_router)
    if groups > 1 and group_size < groups:
        raise element.error(
            f"<cluster> has {groups} groups of {group_size} routers; each needs as many as there are groups"
        )
    check_size("dragonfly", hosts + groups * group_size, 2 * (hosts + groups * group_size * (chassis + blades)))
    builder = Builder("dragonfly", {"topo_parameters": element.attributes["topo_parameters"]})
    rate = rates(element)
    nodes = builder.nodes("host", hosts)
    routers = builder.nodes("router", groups * group_size).reshape(groups, chassis, blades)
    builder.cables(nodes, routers.ravel()[np.arange(hosts) // per_router], **rate)
    for axis, links in ((2, green), (1, black)):
        one, other = np.triu_indices(routers.shape[axis], 1)
        ends = (np.take(routers, side, axis=axis).ravel() for side in (one, other))
        builder.cables(*ends, bandwidth=links * rate["bandwidth"], latency=rate["latency"])
    one, other = np.triu_indices(groups, 1)
    flat_groups = routers.reshape(groups, group_size)
    if len(one):
        here, there = flat_groups[one, other], flat_groups[other, one]
        builder.cables(here, there, bandwidth=blue * rate["bandwidth"], latency=rate["latency"])
    return builder.network(("host", hosts), cores=cores(element))


def flat(element: Element, hosts: int) -> Network:
    """Hosts on one switch: a star; with a backbone, or with links that both directions share, paths of its own."""
    check_size("cluster", hosts, 2 * hosts)
    own, rate = policy(element, "sharing_policy"), rates(element)
    if own == "FATPIPE":
        raise element.error("<cluster> has sharing_policy='FATPIPE'; its hosts' links must be SPLITDUPLEX or SHARED")
    if own == "SPLITDUPLEX" and "bb_bw" not in element.attributes:
        return star(hosts, cores=cores(element), **rate)
    builder = Builder("cluster", {"radical": element.needed("radical")})
    nodes, switch = builder.nodes("host", hosts), builder.nodes("switch", 1)
    up = builder.cables(nodes, switch, **rate)
    middle, unshared = None, np.zeros(2 * hosts, dtype=bool)
    if "bb_bw" in element.attributes:
        latency = element.quantity("bb_lat", SECONDS, above=False, default="0")
        backbone = element.quantity("bb_bw", BYTES_PER_SECOND, above=True)
        middle = int(builder.cables(switch, builder.nodes("backbone", 1), bandwidth=backbone, latency=latency)[0])
        alone = policy(element, "bb_sharing_policy", "SHARED") == "FATPIPE"
        if alone and backbone < rate["bandwidth"]:
            raise element.error(
                "<cluster> has a FATPIPE backbone narrower than the hosts' links, so that it would hold each flow back "
                "by itself: that is not supported"
            )
        unshared = np.append(unshared, [alone, alone])
    paths = FlatPaths(up, own == "SHARED", middle)
    return with_unshared(builder.network(("host", hosts), paths, cores=cores(element)), unshared)


def host_names(element: Element) -> list[str]:
    """Names of a cluster's hosts: prefix, number, suffix."""
    prefix, suffix = element.attributes.get("prefix", ""), element.attributes.get("suffix", "")
    return [f"{prefix}{i}{suffix}" for first, last in radical(element) for i in range(first, last + 1)]


def router_name(element: Element) -> str:
    """Name of the router by which a flat cluster is left; clusters of other topologies have none."""
    if element.attributes.get("topology", "FLAT") != "FLAT":
        return ""
    prefix, suffix = element.attributes.get("prefix", ""), element.attributes.get("suffix", "")
    return element.attributes.get("router_id") or f"{prefix}{element.needed('id')}_router{suffix}"


def router_links(net: Network, host: int, *, inwards: bool) -> list[int]:
    """Links from a host of a flat cluster to its router, which is behind the backbone, or back inwards."""
    backbone = [2 * net.endpoint_count] if net.link_count > 2 * net.endpoint_count else []
    shared = isinstance(net.paths, FlatPaths) and net.paths.shared
    return [*backbone, 2 * host + (not shared)] if inwards else [2 * host, *backbone]


@dataclass(frozen=True)
class FlatPaths(ListedPaths):
    """Up by the source's link, over the backbone if there is one, down by the target's.

    Links that both directions share are always taken by the number of the one.

    Parameters
    ----------
    up : link of each host
    shared : whether both directions share it
    middle : the backbone
    """

    up: Ints
    shared: bool
    middle: int | None

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        same = sources == targets
        down = self.up[targets] if self.shared else reverse(self.up[targets])
        across = np.full(len(sources), -1 if self.middle is None else self.middle)
        return side_by_side(self.up[sources], across, down, absent=[same, same, same])
