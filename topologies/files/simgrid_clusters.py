"""Networks of SimGrid's `<cluster>` elements: flat, fat tree, torus and dragonfly.

In a flat cluster, link 2 i leads from host i to the switch, and link 2 i + 1 back.
The links of the backbone follow those of all hosts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from quadrille.topologies.families.basic import star
from quadrille.topologies.families.torus import torus
from quadrille.topologies.families.tree import tree
from quadrille.topologies.files.xml_elements import BYTES_PER_SECOND, SECONDS, Element, whole_numbers
from quadrille.topologies.network import Ints, Network, with_unshared
from quadrille.topologies.network_builder import Builder, reverse
from quadrille.topologies.size_limits import check_size
from quadrille.topologies.structured_paths import ListedPaths, link_table

SPEED = re.compile(r"[0-9.]{1,40}(?:[eE][-+]?[0-9]{1,3})?\s*[kKMGTPEZY]?i?f?")
IGNORED = ("speed", "loopback_bw", "loopback_lat", "router_id")
ACCEPTED = (
    *("id", "prefix", "suffix", "radical", "core", "bw", "lat", "sharing_policy", "bb_bw", "bb_lat"),
    *("bb_sharing_policy", "topology", "topo_parameters", *IGNORED),
)
MOST_HOSTS = 2**20
"""Hosts of a cluster whose names are read in less than a second."""
POLICIES = ("SPLITDUPLEX", "SHARED", "FATPIPE")


def cluster(element: Element) -> Network:
    """The network of a cluster; endpoint i is the i-th host of `radical`.

    Raises
    ------
    InputError : an attribute that is missing, wrong or not supported; the message has its line
    """
    element.check_attributes(*ACCEPTED)
    check_speeds(element)
    shape = element.attributes.get("topology", "FLAT")
    builders: dict[str, Callable[[Element, int], Network]] = {
        "FLAT": flat,
        "FAT_TREE": fat_tree,
        "TORUS": simgrid_torus,
        "DRAGONFLY": dragonfly,
    }
    if shape not in builders:
        raise element.error(f"<cluster> has topology={shape!r}; supported are {', '.join(builders)}")
    hosts = sum(last - first + 1 for first, last in radical(element))
    if shape != "FLAT" and policy(element, "sharing_policy") != "SPLITDUPLEX":
        raise element.error(f"<cluster> of topology {shape} is supported with sharing_policy='SPLITDUPLEX' only")
    if shape != "FLAT" and "bb_bw" in element.attributes:
        raise element.error(f"<cluster> of topology {shape} has bb_bw; a backbone is supported in a FLAT one only")
    return builders[shape](element, hosts)


def radical(element: Element) -> list[tuple[int, int]]:
    """First and last number of each range of the attribute `radical`, such as `0-15,20`."""
    text = element.needed("radical")
    ranges = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", word)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise element.error(f"<cluster> has radical={text!r:.60}; write numbers and ranges, such as 0-15,20")
        ranges.append((int(match[1]), int(match[2] or match[1])))
    if (hosts := sum(last - first + 1 for first, last in ranges)) > MOST_HOSTS:
        raise element.error(f"<cluster> has {hosts} hosts by radical={text!r:.60}; at most {MOST_HOSTS} are accepted")
    for (_, last), (first, _) in pairwise(sorted(ranges)):
        if first <= last:
            raise element.error(f"<cluster> has radical={text!r:.60}, in which {first} is there twice")
    return ranges


def policy(element: Element, name: str, default: str = "SPLITDUPLEX") -> str:
    """Sharing policy of a link: SHARED by both directions, SPLITDUPLEX (also FULLDUPLEX), or FATPIPE (not shared)."""
    word = element.attributes.get(name, default).replace("FULLDUPLEX", "SPLITDUPLEX")
    if word not in POLICIES:
        raise element.error(f"<{element.tag}> has {name}={word!r}; supported are {', '.join(POLICIES)}")
    return word


def check_speeds(element: Element) -> None:
    """Raises InputError for a speed of a host that is no flop rate; the speed itself is not used."""
    for word in element.attributes.get("speed", "1").split(","):
        if not SPEED.fullmatch(word.strip()):
            raise element.error(f"<{element.tag}> has speed={word.strip()!r:.40}; write a rate such as 1Gf or 98.095Mf")


def cores(element: Element) -> int:
    """Number of cores of each host."""
    text = element.attributes.get("core", "1")
    counts = list(whole_numbers(element, text, "core"))
    if len(counts) != 1 or counts[0] < 1:
        raise element.error(f"<{element.tag}> has core={text!r}; a host has a whole number of cores from 1")
    return counts[0]


def rates(element: Element) -> dict[str, float]:
    """Bandwidth [B/s] and latency [s] of the cluster's links."""
    return {
        "bandwidth": element.quantity("bw", BYTES_PER_SECOND, above=True),
        "latency": element.quantity("lat", SECONDS, above=False),
    }


def parameters(element: Element, count: int, example: str) -> list[list[int]]:
    """The lists of whole numbers of the attribute `topo_parameters`, of which there must be `count`."""
    text = element.needed("topo_parameters")
    lists = [[*whole_numbers(element, word, "topo_parameters")] for word in text.split(";")]
    if len(lists) != count or min(map(min, lists)) < 1:
        raise element.error(f"<cluster> has topo_parameters={text!r}; it must be like {example}, from 1")
    return lists


def check_hosts(element: Element, hosts: int, built: int) -> None:
    """Raises InputError if `radical` and `topo_parameters` have different numbers of hosts."""
    if hosts != built:
        raise element.error(
            f"<cluster> has {hosts} hosts by radical={element.attributes['radical']!r} and {built} by topo_parameters"
        )


def fat_tree(element: Element, hosts: int) -> Network:
    """The fat tree of a cluster; its parameters are levels; children; parents; parallel cables."""
    example = "2;4,4;1,2;1,2"
    levels, down, up, parallel = parameters(element, 4, example)
    if len(levels) != 1 or not len(down) == len(up) == len(parallel) == levels[0]:
        raise element.error(
            f"<cluster> has topo_parameters whose lists differ from its levels; write them as {example}"
        )
    check_hosts(element, hosts, int(np.prod(down, dtype=object)))
    return tree(down, up, parallel=parallel, cores=cores(element), **rates(element))


def simgrid_torus(element: Element, hosts: int) -> Network:
    """The torus of a cluster, whose vertices are the hosts; its parameters are the lengths."""
    (dims,) = parameters(element, 1, "3,2,2")
    check_hosts(element, hosts, int(np.prod(dims, dtype=object)))
    rate = rates(element)
    return torus(dims, cores=cores(element), bandwidth=rate["bandwidth"], latency=rate["latency"])


def dragonfly(element: Element, hosts: int) -> Network:
    """The dragonfly of Cray's Cascade: groups of chassis of routers, with hosts on each router.

    A router has cables to all routers of its chassis (green) and to the routers with
    its index in the other chassis of its group (black); router j of group i has a
    cable to router i of group j (blue).  One cable with their total bandwidth stands
    for parallel cables.  Shortest paths are searched.

    Source: Faanes et al., "Cray Cascade: A Scalable HPC System Based on a
    Dragonfly Network", SC12; SimGrid's documentation, "Dragonfly Cluster".
    """
    example = "3,4;4,3;5,1;2"
    lists = parameters(element, 4, example)
    if [len(numbers) for numbers in lists] != [2, 2, 2, 1]:
        raise element.error(f"<cluster> has topo_parameters={element.attributes['topo_parameters']!r}; write {example}")
    (groups, blue), (chassis, black), (blades, green), (per_router,) = lists
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
        ends = (np.take(routers, side, axis=axis).ravel() for side in np.triu_indices(routers.shape[axis], 1))
        builder.cables(*ends, bandwidth=links * rate["bandwidth"], latency=rate["latency"])
    first, second = np.triu_indices(groups, 1)
    flat_groups = routers.reshape(groups, group_size)
    if len(first):
        here, there = flat_groups[first, second], flat_groups[second, first]
        builder.cables(here, there, bandwidth=blue * rate["bandwidth"], latency=rate["latency"])
    return builder.network(("host", hosts), cores=cores(element))


def flat(element: Element, hosts: int) -> Network:
    """The flat cluster: a star, or, with a backbone or links shared by both directions, a network with `FlatPaths`."""
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
    """Names of a cluster's hosts, in the order of their numbers: prefix, number, suffix."""
    prefix, suffix = element.attributes.get("prefix", ""), element.attributes.get("suffix", "")
    return [f"{prefix}{i}{suffix}" for first, last in radical(element) for i in range(first, last + 1)]


def router_name(element: Element) -> str:
    """Name of the router that connects a flat cluster to other zones; empty for other topologies."""
    if element.attributes.get("topology", "FLAT") != "FLAT":
        return ""
    prefix, suffix = element.attributes.get("prefix", ""), element.attributes.get("suffix", "")
    return element.attributes.get("router_id") or f"{prefix}{element.needed('id')}_router{suffix}"


def router_links(net: Network, host: int, *, inwards: bool) -> list[int]:
    """Links from a host of a flat cluster to its router, which is behind the backbone; with `inwards`, back."""
    backbone = [2 * net.endpoint_count] if net.link_count > 2 * net.endpoint_count else []
    shared = isinstance(net.paths, FlatPaths) and net.paths.shared
    return [*backbone, 2 * host + (not shared)] if inwards else [2 * host, *backbone]


@dataclass(frozen=True)
class FlatPaths(ListedPaths):
    """The paths of a flat cluster: the links of source and target, and the backbone between them.

    A link that both directions share has one number, that of its first direction.

    Parameters
    ----------
    up : link from each host to the switch [hosts]
    shared : whether both directions of a host's link share its bandwidth
    middle : link of the backbone; None if there is no backbone
    """

    up: Ints
    shared: bool
    middle: int | None

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        same = sources == targets
        down = self.up[targets] if self.shared else reverse(self.up[targets])
        across = np.full(len(sources), -1 if self.middle is None else self.middle)
        return link_table(self.up[sources], across, down, absent=[same, same, same])
