"""GPU clusters: nodes of any kind, joined by a network of any family."""

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np

from quadrille.algorithms.errors import InputError, unknown_name
from quadrille.topologies.cluster_paths import cluster_paths
from quadrille.topologies.families.family_table import FABRICS, Fabric, fabric_builder, parameters_of
from quadrille.topologies.families.number_lists import as_word
from quadrille.topologies.network import Argument, Ints, Network
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.nodes.gpu_node import NodeKind, nvswitch_node
from quadrille.topologies.size_limits import check_counts, check_size

OWN_NUMBERS = ("gpus_per_node", "nics_per_node", "gpu_bandwidth", "gpu_latency", "nic_bandwidth", "nic_latency")


def gpu_cluster(
    nodes: int,
    node: str = "nvswitch",
    *,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    nics_per_node: int | None = None,
    gpu_bandwidth: float | None = None,
    gpu_latency: float | None = None,
    nic_bandwidth: float | None = None,
    nic_latency: float | None = None,
    joined: bool | str = False,
    network: str | None = None,
    nodes_per_leaf: int | None = None,
    nodes_per_rail: int | None = None,
    **fabric: Any,
) -> Network:
    """A cluster of `nodes` nodes of one kind, whose NICs are joined by a network of any family.

    The arguments of the network's family are given under their own names.  Where
    the family counts hosts, they count NICs:

        gpu-cluster:nodes=64,node=dgx-a100,network=leaf-spine,nodes_per_leaf=4,spines=8
        gpu-cluster:nodes=512,node=gh200-4,network=tree,down=32x64,up=1x32

    The network's `bandwidth` and `latency` default to those of the NICs' cables.
    With `nodes_per_leaf` alone, each leaf has one cable of `uplink_bandwidth` to
    spine:0, which stands for all its uplinks under ideal spraying.  Without a
    network, one non-blocking switch joins all nodes.

    >>> gpu_cluster(2, "perlmutter").endpoint_count
    8
    >>> gpu_cluster(8, "dgx-a100", network="leaf-spine", nodes_per_leaf=2, spines=4).kinds["leaf"][1]
    4

    Parameters
    ----------
    node : kind of node: "nvswitch", which needs the six numbers from gpus_per_node to nic_latency, or a named kind
    gpus : number of compute endpoints, if the last node is not full; by default all GPUs
    gpu_bandwidth, gpu_latency : rates of the cable from a GPU to the NVSwitch [B/s, s]
    nics_per_node : number of NICs in a node; with 0, each GPU has a cable to the network
    nic_bandwidth, nic_latency : rates of the cable from a NIC to the network [B/s, s]
    joined : whether one NIC, with the bandwidth of all, replaces the NICs of a node
    network : family of the network, by default star, or leaf-spine if nodes_per_leaf is given; a rail-optimised
        network has by default one rail for each NIC of a node
    nodes_per_leaf : number of nodes under each leaf of a leaf-spine network
    nodes_per_rail : number of consecutive nodes whose NICs with the same index are neighbours in the network; by
        default the NICs of one node are neighbours

    Raises
    ------
    InputError : a count below one; numbers missing, superfluous or out of range
    """
    arguments = {
        name: value for name, value in locals().items() if value is not None and value is not False and name != "fabric"
    }
    kind = node_kind(arguments)
    if is_true("gpu-cluster", "joined", joined):
        kind, arguments["joined"] = kind.joined(), "true"
    fabric = {name: value for name, value in fabric.items() if value is not None}
    arguments |= {name: as_word(value) for name, value in fabric.items()}
    chosen, own = _network(network, nodes_per_leaf, kind, fabric)
    joins = fabric_builder(chosen, own, bandwidth=kind.nic_bandwidth, latency=kind.nic_latency)
    return build_cluster(kind, nodes, joins, arguments=arguments, gpus=gpus, nodes_per_rail=nodes_per_rail)


def _network(
    network: str | None, nodes_per_leaf: int | None, kind: NodeKind, fabric: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Family of the network and its arguments, in which `nodes_per_leaf` has become a number of NICs."""
    if network == "rail-optimised":
        fabric = {"rails": kind.network_ports, **fabric}
    if nodes_per_leaf is None:
        if network is None and fabric:
            if "uplink_bandwidth" in fabric:
                raise InputError("gpu-cluster: uplink_bandwidth is that of a leaf: give nodes_per_leaf too")
            raise InputError(
                f"gpu-cluster: {', '.join(fabric)} is for a network: give network=, one of {', '.join(FABRICS)}"
            )
        return network or "star", fabric
    if network not in (None, "leaf-spine"):
        raise InputError(f"gpu-cluster: nodes_per_leaf is for network=leaf-spine, not for network={network}")
    check_counts("gpu-cluster", nodes_per_leaf=nodes_per_leaf)
    if "per_leaf" in fabric:
        raise InputError("gpu-cluster: give nodes_per_leaf or per_leaf, which counts NICs, not both")
    if "spines" not in fabric and "uplink_bandwidth" not in fabric:
        raise InputError("gpu-cluster: nodes_per_leaf needs uplink_bandwidth, or spines, or both")
    return "leaf-spine", {"spines": 1, **fabric, "per_leaf": nodes_per_leaf * kind.network_ports}


def _with_network_arguments(own: Signature) -> Signature:
    """The cluster's signature, extended by the arguments of every family of network, all optional."""
    parameters = {name: p for name, p in own.parameters.items() if p.kind is not Parameter.VAR_KEYWORD}
    for network in FABRICS:
        for name, parameter in parameters_of(network).items():
            if name in parameters and name not in own.parameters:
                accepted = parameters[name].annotation | parameter.annotation
            else:
                accepted = parameter.annotation
            if name not in own.parameters:
                parameters[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=accepted | None)
    return own.replace(parameters=list(parameters.values()))


def with_signature() -> Callable[..., Network]:
    """The function `gpu_cluster`, whose signature names the arguments of every family of network."""
    if not hasattr(gpu_cluster, "__signature__"):
        gpu_cluster.__signature__ = _with_network_arguments(signature(gpu_cluster))  # type: ignore[attr-defined]
    return gpu_cluster


def build_cluster(
    kind: NodeKind,
    nodes: int,
    fabric: Fabric,
    *,
    arguments: Mapping[str, Argument],
    gpus: int | None = None,
    nodes_per_rail: int | None = None,
    family: str = "gpu-cluster",
) -> Network:
    """A cluster of `nodes` nodes of one kind whose network ports are the endpoints of a fabric.

    The network ports are the NICs, or the GPUs of nodes without NICs.  GPUs,
    switches and NICs are numbered through the cluster, node by node.

    Raises
    ------
    InputError : a count below one, or more GPUs than the nodes hold
    """
    check_counts(family, nodes=nodes, nodes_per_rail=1 if nodes_per_rail is None else nodes_per_rail)
    count = nodes * kind.gpus if gpus is None else gpus
    if not 1 <= count <= nodes * kind.gpus:
        raise InputError(f"{family}: gpus={count} must be from 1 to {nodes * kind.gpus}, what {nodes} nodes hold")
    check_size(family, nodes * sum(kind.parts.values()), 2 * nodes * (len(kind.cables) + kind.network_ports))
    builder = Builder(family, arguments)
    parts = {
        name: builder.nodes(name, nodes * per_node).reshape(nodes, per_node) for name, per_node in kind.parts.items()
    }
    inside: dict[tuple[str, str], int] = {}
    for cable in kind.cables:
        ends = _part(parts, cable.first), _part(parts, cable.second)
        link = int(builder.cables(*ends, bandwidth=cable.bandwidth, latency=cable.latency)[0])
        inside.setdefault((cable.first, cable.second), link)
        inside.setdefault((cable.second, cable.first), link + 1)
    network_ports = parts["nic" if kind.nics else "gpu"]
    order = rails(nodes, kind.network_ports, nodes_per_rail or 1)
    outside = fabric(builder, network_ports.ravel()[order])
    return builder.network(("gpu", count), cluster_paths(kind, inside, outside, order), per_node=kind.gpus)


def rails(nodes: int, network_ports: int, nodes_per_rail: int) -> Ints:
    """Network ports, numbered node by node, in the order in which the ports of a rail are neighbours [ports].

    >>> rails(4, 2, 2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    network_port = np.arange(nodes * network_ports)
    block = network_port // (network_ports * nodes_per_rail)
    return np.lexsort((network_port // network_ports, network_port % network_ports, block))


def is_true(family: str, name: str, value: bool | str) -> bool:
    """Whether an option is on; it is a bool or the word `true` or `false`.

    Raises
    ------
    InputError : another word
    """
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise InputError(f"{family}: {name}={value} must be true or false")
    return value == "true"


def _part(parts: Mapping[str, Ints], local: str) -> Ints:
    """Node numbers of one part, such as `nic:1`, in every node of the cluster [nodes]."""
    name, _, index = local.partition(":")
    return parts[name][:, int(index)]


def node_kind(arguments: Mapping[str, Any]) -> NodeKind:
    """The kind of node that these arguments of `gpu_cluster` name.

    Raises
    ------
    InputError : an unknown kind; a number that the kind lacks, or that it defines itself
    """
    from quadrille.topologies.nodes.node_kinds import NODE_KINDS  # named machines have their nodes already

    name = str(arguments.get("node", "nvswitch"))
    own = {key: arguments[key] for key in OWN_NUMBERS if arguments.get(key) is not None}
    if name in NODE_KINDS:
        if own:
            raise InputError(f"gpu-cluster: node={name} has its own {', '.join(own)}; node=nvswitch takes yours")
        return NODE_KINDS[name]
    if name != "nvswitch":
        raise unknown_name("gpu-cluster: node", name, ["nvswitch", *NODE_KINDS])
    if missing := [key for key in OWN_NUMBERS if key not in own]:
        raise InputError(f"gpu-cluster: node=nvswitch lacks {', '.join(missing)}")
    rates = {key: float(own[key]) for key in OWN_NUMBERS[2:]}
    return nvswitch_node(int(own["gpus_per_node"]), int(own["nics_per_node"]), **rates)
