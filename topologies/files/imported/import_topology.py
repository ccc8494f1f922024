"""`import_topology`: a network from files of other programs, whose kinds are found by their contents.

A fabric (ibnetdiscover, Slurm, topograph) and a node (NCCL's XML, nvidia-smi, hwloc)
are merged: every host of the fabric becomes such a node.  Several files of
ibnetdiscover are planes of one fabric.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quadrille.algorithms.errors import InputError, unknown_name
from quadrille.algorithms.formats.input_files import parse_json, read_text
from quadrille.algorithms.formats.yaml_subset import parse_yaml
from quadrille.topologies.files.imported import (
    astra_sim,
    graphml,
    hwloc,
    ibnetdiscover,
    nccl_xml,
    nvidia_smi,
    simai,
    slurm_topology,
    topograph,
)
from quadrille.topologies.files.imported.fabric import Fabric, NodeDescription
from quadrille.topologies.files.imported.fabric_network import Rates, fabric_network, node_network
from quadrille.topologies.files.topology_file import check_connected
from quadrille.topologies.files.xml_elements import elements
from quadrille.topologies.network import Network

MOST_BYTES = 1 << 28
KINDS = (
    "ibnetdiscover", "slurm", "topograph", "nccl", "nvidia-smi", "graphml", "astra-sim", "hwloc",
    "simai",
)  # fmt: skip
"""Kinds of files."""
DATA_KEY = re.compile(r'^[\s{-]*"?(switches|npus_count|logical-dims|topology)"?\s*:', re.MULTILINE)
"""A key that YAML or JSON of topograph, ASTRA-sim or Slurm has, at the begin of a line."""
Read = Fabric | NodeDescription | Network


@dataclass(slots=True)
class Remarks:
    """What the readers did not use, each once, by file."""

    lines: dict[str, None] = field(default_factory=dict)

    def of(self, path: str) -> Callable[[str], None]:
        """The function by which the reader of this file adds to the remarks, at most 80 characters of each thing."""
        return lambda text: self.lines.setdefault(f"{path}: {text:.80}")


def import_topology(
    paths: Sequence[str], *, node: str = "", kind: str = "", rates: Rates | None = None
) -> tuple[Network, tuple[str, ...]]:
    """The network that the files describe, and one remark for each thing that was not used.

    Parameters
    ----------
    node : name of the kind of node, as in `NODE_KINDS`; its inside is used if no file has one
    kind : kind of all files, one of `KINDS`; found by itself if empty
    rates : rates of cables without one

    Raises
    ------
    InputError : a file of no known kind or with a fault, files that do not go together, or a network in pieces
    """
    from quadrille.topologies.nodes.node_kinds import NODE_KINDS  # brings the kinds of nodes along

    if node and node not in NODE_KINDS:
        raise unknown_name("node", node, NODE_KINDS)
    if kind and kind not in KINDS:
        raise unknown_name("kind of topology", kind, KINDS)
    rates, remarks = rates or Rates(), Remarks()
    fabrics: list[tuple[str, Fabric]] = []
    nodes: list[tuple[str, NodeDescription]] = []
    networks: list[tuple[str, Network]] = []
    for path in paths:
        value = read_file(path, kind, rates, remarks.of(path))
        if isinstance(value, Fabric):
            fabrics.append((path, value))
        elif isinstance(value, NodeDescription):
            nodes.append((path, value))
        else:
            networks.append((path, value))
    net = _merged(fabrics, nodes, networks, node, rates, remarks)
    check_connected(net, paths[0])
    return net, tuple(remarks.lines)


def _merged(
    fabrics: Sequence[tuple[str, Fabric]],
    nodes: Sequence[tuple[str, NodeDescription]],
    networks: Sequence[tuple[str, Network]],
    node: str,
    rates: Rates,
    remarks: Remarks,
) -> Network:
    """The network of the files: one alone, or a fabric of nodes."""
    from quadrille.topologies.nodes.node_kinds import NODE_KINDS

    if networks:
        path, net = networks[0]
        if len(networks) + len(fabrics) + len(nodes) > 1 or node:
            raise InputError(f"{path}: is a whole network; it is read alone, and without --node")
        return net
    if len(nodes) > 1:
        raise InputError(f"{nodes[1][0]}: is a second node; every node of a network is of one kind")
    inside = nodes[0][1] if nodes else NodeDescription(NODE_KINDS[node]) if node else None
    if node and nodes and inside is not None and NODE_KINDS[node].gpus != inside.kind.gpus:
        raise InputError(
            f"--node {node}: has {NODE_KINDS[node].gpus} GPUs, and the node of {nodes[0][0]} {inside.kind.gpus}"
        )
    if not fabrics:
        path, description = nodes[0]
        return replace(node_network(Path(path).stem, description), node_kind=node)
    path, fabric = fabrics[0]
    for other_path, plane in fabrics[1:]:
        if not all(cable.adapter for part in (plane, fabric) for cable in part.cables if cable.first in part.hosts[:1]):
            raise InputError(f"{other_path}: is a second fabric; several files of ibnetdiscover are planes of one")
        fabric = fabric.beside(plane)
    net = fabric_network(path, Path(path).stem, fabric, inside, rates, remarks.of(path))
    return replace(net, node_kind=node)


def read_file(path: str, kind: str, rates: Rates, ignored: Callable[[str], None]) -> Read:
    """What a file describes: a fabric, a node, or a whole network.

    Parameters
    ----------
    kind : kind of the file, one of `KINDS`; found by itself if empty
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : a file that cannot be read, is of no known kind, or has a fault
    """
    try:
        text = read_text(path, MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return read_content(text, path, kind, rates, ignored)


def read_content(text: str, path: str, kind: str, rates: Rates, ignored: Callable[[str], None]) -> Read:
    """What the text of a file describes; the parameters are those of `read_file`."""
    if not text.strip():
        raise InputError(f"{path}: is empty")
    if "\0" in text:
        raise InputError(f"{path}: has a zero byte, so it is no text")
    first = text.lstrip()[:1]
    if kind in ("nccl", "hwloc", "graphml") or (not kind and first == "<"):
        return _from_xml(text, path, kind, rates, ignored)
    if kind == "ibnetdiscover" or (not kind and ibnetdiscover.is_ibnetdiscover(text)):
        return ibnetdiscover.read_ibnetdiscover(text, path, ignored)
    if kind == "nvidia-smi" or (not kind and nvidia_smi.is_nvidia_smi(text)):
        return nvidia_smi.read_nvidia_smi(text, path, ignored)
    if kind == "simai" or (not kind and simai.is_simai(text)):
        return simai.read_simai(text, path, ignored)
    if kind in ("", "slurm") and slurm_topology.is_slurm_conf(text):
        return slurm_topology.read_slurm_conf(text, path, ignored)
    return _from_data(text, path, kind, rates, ignored)


def is_topology(head: str) -> bool:
    """Whether the first characters of a file are those of a description of a fabric or of a node.

    >>> is_topology("SwitchName=leaf Nodes=node[1-4]"), is_topology("npus_count: [8]"), is_topology("--num-layers 24")
    (True, True, False)
    """
    if head.lstrip()[:1] == "<":
        return True
    texts = ibnetdiscover.is_ibnetdiscover, nvidia_smi.is_nvidia_smi, slurm_topology.is_slurm_conf, simai.is_simai
    return any(fits(head) for fits in texts) or DATA_KEY.search(head) is not None


def _from_xml(text: str, path: str, kind: str, rates: Rates, ignored: Callable[[str], None]) -> Read:
    root = elements(text, path)
    tag = root.tag.rpartition(":")[2]
    expected = {"nccl": "system", "hwloc": "topology", "graphml": "graphml"}
    if kind and tag != expected[kind]:
        raise root.error(f"<{tag}> is not <{expected[kind]}>")
    if tag == "system":
        return nccl_xml.read_nccl_xml(root, ignored)
    if tag == "topology":
        return hwloc.read_hwloc(root, ignored)
    if tag == "graphml":
        return graphml.read_graphml(root, ignored, (rates.bandwidth, rates.latency))
    if tag == "graphs":
        raise root.error("is NCCL's graph file, the channels of a run; NCCL's topology file is accepted")
    if tag == "platform":
        raise root.error("is a SimGrid platform, which every command takes as it is: --machine FILE.xml")
    raise root.error(f"<{tag}> is none of <system> (NCCL), <topology> (hwloc) and <graphml>")


def _from_data(text: str, path: str, kind: str, rates: Rates, ignored: Callable[[str], None]) -> Read:
    """What a YAML or JSON text describes."""
    data: Any
    if text.lstrip()[:1] in ("{", "["):
        try:
            data = parse_json(text)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
    elif kind or DATA_KEY.search(text):
        data = parse_yaml(text, path)
    else:
        raise InputError(f"{path}: is not of a known kind: {', '.join(KINDS)}")
    if kind in ("", "astra-sim") and astra_sim.is_astra_sim(data):
        return astra_sim.read_astra_sim(data, path, ignored, (rates.bandwidth, rates.latency))
    if kind in ("", "topograph") and topograph.is_topograph(data):
        return topograph.read_topograph(data, path, ignored)
    if kind in ("", "slurm") and slurm_topology.is_slurm_yaml(data):
        return slurm_topology.read_slurm_yaml(data, path, ignored)
    if isinstance(data, dict) and "nodes" in data and ("edges" in data or "links" in data):
        raise InputError(f"{path}: is a node-link graph, which every command takes as it is: --machine FILE.json")
    what_is = f"of the kind {kind}" if kind else f"of a known kind: {', '.join(KINDS)}"
    raise InputError(f"{path}: is not {what_is}")
