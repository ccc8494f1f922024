"""Reader of the matrix of `nvidia-smi topo -m`: the inside of one node.

    read          GPUs and NICs; NV#, PIX, PXB, PHB, NODE and SYS between them; the legend of the NICs
    ignored       CPU and NUMA affinities, GPU NUMA IDs, devices that are neither GPU nor NIC
    not there     rates: an NVLink counts 25 GB/s (NVLink 2 to 4), a PCIe link is x16 of the generation of GPUs with
                  6, 12 or 18 NVLinks, else PCIe 4; speeds of NICs; the model of the GPU

The same number of links to every GPU, more than a GPU has, are links to NVSwitches.

Source: NVIDIA, nvidia-smi(1), section `topo`.
"""

import re
from collections.abc import Iterable, Sequence

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.imported.fabric import NodeDescription
from quadrille.topologies.files.imported.pci_tree import Device, NvLinks, node_of_tree
from quadrille.topologies.files.imported.slurm_topology import Say
from quadrille.topologies.nodes.gpu_node import MAX_GPUS, PCIE3, PCIE4, PCIE5

ESCAPES = re.compile(r"\x1b\[[0-9;]{0,8}m")
DEVICE = re.compile(r"(GPU|NIC)([0-9]{1,4})|(mlx[0-9]_[0-9]{1,4})")
ENTRY = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV([0-9]{1,3})")
LEGEND = re.compile(r"^\s*NIC([0-9]{1,4}):\s*(\S+)\s*$", re.MULTILINE)
PCIE_OF_NVLINKS = {6: PCIE3[0], 12: PCIE4[0], 18: PCIE5[0]}
"""Bandwidth of PCIe x16 beside GPUs with so many NVLinks: V100, A100, H100 [B/s]."""
LEVELS = (("PIX",), ("PXB",), ("PHB", "NODE"))
"""Words by the level of the tree that joins two devices: a bridge, a bridge above bridges, a processor."""


def is_nvidia_smi(text: str) -> bool:
    """Whether a text has the header of the matrix."""
    return re.search(r"^\s+GPU0\b.*$", ESCAPES.sub("", text), re.MULTILINE) is not None


def read_nvidia_smi(text: str, path: str, ignored: Say) -> NodeDescription:
    """The node that the matrix describes.

    Parameters
    ----------
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : a matrix that is not complete or not symmetric, or an entry that is unknown
    """
    plain = ESCAPES.sub("", text)
    names, entries = _matrix(plain, path)
    gpus = [name for name in names if name.startswith("GPU")]
    nics = [name for name in names if name not in gpus]
    if not gpus or len(gpus) > MAX_GPUS:
        raise InputError(f"{path}: has {len(gpus)} GPUs; a node of 1 to {MAX_GPUS} GPUs is accepted")
    number = {name: place for place, name in enumerate(gpus)}
    between = {
        (number[first], number[second]): int(entries[first, second][2:])
        for place, first in enumerate(gpus)
        for second in gpus[place + 1 :]
        if entries[first, second].startswith("NV") and int(entries[first, second][2:])
    }
    nvlinks = NvLinks(between=between).through_switch(len(gpus))
    rate = PCIE_OF_NVLINKS.get(max(nvlinks.to_switch.values(), default=0), PCIE4[0])
    ignored("rates are not in the file: NVLinks count 25 GB/s each, PCIe links the rate of 16 lanes")
    if "Affinity" in plain:
        ignored("affinities")
    legend = {f"NIC{match[1]}": match[2] for match in LEGEND.finditer(plain)}
    kind = node_of_tree(path, "nvidia-smi", _tree(gpus, nics, entries, rate), nvlinks)
    return NodeDescription(kind, tuple(legend.get(name, name if name.startswith("mlx") else "") for name in nics))


def _matrix(text: str, path: str) -> tuple[list[str], dict[tuple[str, str], str]]:
    """Names of the devices, and the entry of each pair."""
    lines = list(enumerate(text.split("\n"), 1))
    head = next((place for place, (_, line) in enumerate(lines) if re.match(r"\s+GPU0\b", line)), None)
    if head is None:
        raise InputError(f"{path}: has no line that begins with GPU0, the header of nvidia-smi topo -m")
    columns = [word for word in lines[head][1].split() if DEVICE.fullmatch(word)]
    if len(set(columns)) < len(columns):
        raise InputError(f"{path}, line {lines[head][0]}: a device is there twice")
    entries = _entries(lines[head + 1 :], columns, path)
    for (first, second), word in entries.items():
        if entries[second, first] != word:
            raise InputError(f"{path}: {first} to {second} is {word} and {second} to {first} {entries[second, first]}")
    return columns, entries


def _entries(lines: Sequence[tuple[int, str]], columns: Sequence[str], path: str) -> dict[tuple[str, str], str]:
    """The entry of each pair, from the lines below the header; other lines follow the rows of the matrix."""
    entries: dict[tuple[str, str], str] = {}
    rows: list[str] = []
    for number, line in lines:
        words = line.split()
        if not words or words[0] not in columns:
            if rows:
                break
            continue
        name = words[0]
        if name in rows or len(words) <= len(columns):
            raise InputError(f"{path}, line {number}: {name} has {len(words) - 1} entries; {len(columns)} are needed")
        for column, word in zip(columns, words[1:], strict=False):
            if not ENTRY.fullmatch(word) or (word == "X") != (column == name):
                raise InputError(
                    f"{path}, line {number}: {name} to {column} is {word!r:.20}; X, NV#, PIX, PXB, PHB, NODE and SYS "
                    "are accepted"
                )
            entries[name, column] = word
        rows.append(name)
    if missing := [name for name in columns if name not in rows]:
        raise InputError(f"{path}: {missing[0]} has no row; the file may be truncated")
    return entries


def _tree(gpus: Sequence[str], nics: Sequence[str], entries: dict[tuple[str, str], str], rate: float) -> list[Device]:
    """The processors of the node, with the bridges and devices below them."""
    names = [*gpus, *nics]
    devices = {name: Device("gpu", (place,), name, rate) for place, name in enumerate(gpus)}
    devices |= {name: Device("nic", (place,), name, rate) for place, name in enumerate(nics)}
    groups: list[list[str]] = [[name] for name in names]
    nodes = [devices[name] for name in names]
    for level, words in enumerate(LEVELS):
        joined = _joined(groups, entries, words)
        merged: list[Device] = []
        for members in joined:
            top = level == len(LEVELS) - 1
            if len(members) == 1 and not top:
                merged.append(nodes[members[0]])
                continue
            parent = Device("cpu" if top else "bridge", (level, len(merged)), bandwidth=rate)
            parent.children = [nodes[member] for member in members]
            merged.append(parent)
        groups = [[name for member in members for name in groups[member]] for members in joined]
        nodes = merged
    return nodes


def _joined(
    groups: Sequence[Sequence[str]], entries: dict[tuple[str, str], str], words: Iterable[str]
) -> list[list[int]]:
    """Groups of devices that one of these words joins, as lists of their numbers."""
    accepted = {*words}
    label = list(range(len(groups)))
    for first, members in enumerate(groups):
        for second in range(first):
            if label[second] == label[first]:
                continue
            if any(entries[a, b] in accepted for a in members for b in groups[second]):
                old, new = label[first], label[second]
                label = [new if entry == old else entry for entry in label]
    by_label: dict[int, list[int]] = {}
    for place, entry in enumerate(label):
        by_label.setdefault(entry, []).append(place)
    return list(by_label.values())
