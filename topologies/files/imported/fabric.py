"""`Fabric`: the hosts, switches and cables that a file describes, by the names of the file.

The file of a fabric has no nodes of its own numbering; `fabric_network.py` makes a
network of it.  A file that has no rates leaves them open, and the network gets them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from quadrille.algorithms.errors import InputError
from quadrille.topologies.nodes.gpu_node import NodeKind
from quadrille.topologies.size_limits import MAX_NODES

LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class FabricCable:
    """A cable of a fabric.

    Parameters
    ----------
    first, second : names of both ends; the first is a host if the cable joins a host and a switch
    bandwidth : bandwidth of each direction [B/s]; None if the file does not say
    adapter : name of the host's adapter; empty if unknown, or between switches
    hosts : number of hosts whose full bandwidth the cable carries, if the file does not say its bandwidth
    """

    first: str
    second: str
    bandwidth: float | None = None
    adapter: str = ""
    hosts: float = 1.0


@dataclass(frozen=True, slots=True)
class Fabric:
    """Hosts and switches, joined by cables.

    Parameters
    ----------
    hosts, switches : names, in the order of the file
    """

    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    cables: tuple[FabricCable, ...]

    def largest_part(self) -> "Fabric":
        """The connected part with the most hosts."""
        label = _component_labels([*self.hosts, *self.switches], self.cables)
        sizes: dict[str, int] = {}
        for host in self.hosts:
            sizes[label[host]] = sizes.get(label[host], 0) + 1
        if len(sizes) < 2 and len({*label.values()}) < 2:
            return self
        kept = max(sizes, key=sizes.__getitem__)
        return Fabric(
            tuple(name for name in self.hosts if label[name] == kept),
            tuple(name for name in self.switches if label[name] == kept),
            tuple(cable for cable in self.cables if label[cable.first] == kept),
        )

    def beside(self, plane: "Fabric") -> "Fabric":
        """The fabric with another plane of the same hosts."""
        return replace(
            self,
            hosts=tuple(dict.fromkeys((*self.hosts, *plane.hosts))),
            switches=tuple(dict.fromkeys((*self.switches, *plane.switches))),
            cables=(*self.cables, *plane.cables),
        )


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The inside of a compute node, as a file describes it.

    Parameters
    ----------
    kind : parts and cables of the node
    nic_names : names of the NICs, by their numbers; empty if the file has none
    """

    kind: NodeKind
    nic_names: tuple[str, ...] = ()


def _component_labels(names: Sequence[str], cables: Iterable[FabricCable]) -> dict[str, str]:
    """A label for each name: equal labels if and only if cables join the names."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for cable in cables:
        parent[root(cable.first)] = root(cable.second)
    return {name: root(name) for name in names}


def tree_fabric(
    path: str, switches: Mapping[str, Sequence[str]], nodes: Mapping[str, Sequence[str]], *, complete: bool = True
) -> Fabric:
    """The fabric of a tree of switches whose cables have no rates.

    The cable from a switch to the switch above carries the full bandwidth of the hosts
    below; a switch that is below several switches shares it out among them.

    Parameters
    ----------
    switches : switches below each switch, by its name
    nodes : hosts below each switch, by its name
    complete : whether each switch that is named below another must be a key

    Raises
    ------
    InputError : a switch that is not defined, a cycle, a name that is a switch and a host, or no hosts
    """
    below: dict[str, Sequence[str]] = {name: switches.get(name, ()) for name in {**switches, **nodes}}
    for name, children in switches.items():
        for child in children:
            if child not in below and complete:
                raise InputError(
                    f"{path}: switch {name!r:.60} has the switch {child!r:.60} below it, which has no line"
                )
            below.setdefault(child, ())
    hosts = tuple(dict.fromkeys(host for names in nodes.values() for host in names))
    _check_names(path, below, hosts)
    counts = _hosts_below(path, below, nodes)
    above: dict[str, int] = {}
    for children in below.values():
        for child in children:
            above[child] = above.get(child, 0) + 1
    cables = [FabricCable(host, name) for name, names in nodes.items() for host in names]
    cables += [
        FabricCable(child, name, hosts=counts[child] / above[child])
        for name, children in below.items()
        for child in children
        if counts[child]
    ]
    return Fabric(hosts, tuple(name for name in below if counts[name]), tuple(cables))


def _check_names(path: str, switches: Iterable[str], hosts: Sequence[str]) -> None:
    if not hosts:
        raise InputError(f"{path}: has no hosts")
    if both := set(switches) & set(hosts):
        raise InputError(f"{path}: {min(both)!r:.60} is a switch and a host")
    if len(hosts) > MAX_NODES:
        raise InputError(f"{path}: {len(hosts)} hosts are too many; at most {MAX_NODES} are accepted")


def _hosts_below(path: str, below: Mapping[str, Sequence[str]], nodes: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Number of hosts below each switch, over all levels."""
    try:
        order = list(TopologicalSorter(below).static_order())
    except CycleError as error:
        raise InputError(f"{path}: switch {error.args[1][0]!r:.60} is below itself") from None
    counts: dict[str, int] = {}
    for name in order:
        counts[name] = len(nodes.get(name, ())) + sum(counts[child] for child in below[name])
    return counts
