"""Reader of hwloc's XML (`lstopo node.xml`): the inside of one node, or a host with cores where it has no GPUs.

    read          packages, PCI bridges, GPUs and network cards with their PCI rates and names; the number of cores
    ignored       caches, memory, other devices, CPU sets, distances (NVLinks among them)
    not there     NVLinks between GPUs (unless as distances), speeds of network cards, the model of the GPU

Source: hwloc, hwloc2.dtd and "Importing and exporting topologies from/to XML files", open-mpi.org/projects/hwloc.
"""

import re

from quadrille.topologies.families.basic import host
from quadrille.topologies.files.imported.fabric import NodeDescription
from quadrille.topologies.files.imported.pci_tree import Device, NvLinks, node_of_tree, numbered
from quadrille.topologies.files.imported.slurm_topology import Say
from quadrille.topologies.files.xml_elements import Element
from quadrille.topologies.network import Network

PCI_TYPE = re.compile(r"([0-9a-fA-F]{4})(?:\s+\[([0-9a-fA-F]{4}):.*)?", re.DOTALL)
GPU_CLASSES = ("0300", "0302", "1200")
GPU_VENDORS = ("10de", "1002")
"""NVIDIA and AMD; the screen of a server's management board has another vendor."""
NIC_CLASSES = ("0200", "0207", "0280")
FASTEST = 1e4
"""Fastest PCI link that is accepted [GB/s]."""


def read_hwloc(root: Element, ignored: Say) -> NodeDescription | Network:
    """The node in a document whose outermost element is `<topology>`.

    Parameters
    ----------
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : a value that cannot be, or neither GPUs nor cores
    """
    if any(element.tag.startswith("distances") for element in root.children):
        ignored("distances, so NVLinks too")
    machine = next((element for element in root.children if element.tag == "object"), None)
    if machine is None:
        raise root.error("<topology> has no <object>")
    elements = _below(machine)
    cpus = {id(element): Device("cpu", (place,)) for place, element in enumerate(_of_type(elements, "Package"))}
    roots = list(cpus.values()) or [Device("cpu", (0,))]
    _add_devices(machine, roots[0], cpus)
    if not numbered(roots, "gpu"):
        cores = len(_of_type(elements, "Core"))
        if not cores:
            raise machine.error("has neither GPUs nor cores")
        ignored("no GPUs are in the file: it is a host with cores")
        return host(cores)
    for cpu in roots:
        cpu.children = [child for child in cpu.children if _used(child)]
    kind = node_of_tree(root.path, "hwloc", roots, NvLinks())
    if kind.gpus > 1:
        ignored("no NVLinks are read, so GPUs reach each other over PCIe")
    return NodeDescription(kind, tuple(nic.name for nic in numbered(roots, "nic")))


def _below(element: Element) -> list[Element]:
    """All elements below an element, in the order of the file."""
    return [inner for child in element.children for inner in (child, *_below(child))]


def _of_type(elements: list[Element], word: str) -> list[Element]:
    return [element for element in elements if element.tag == "object" and element.attributes.get("type") == word]


def _add_devices(element: Element, parent: Device, cpus: dict[int, Device]) -> None:
    """Adds the PCI devices below an element to the device above them."""
    for child in element.children:
        if child.tag != "object":
            continue
        above, word = cpus.get(id(child), parent), child.attributes.get("type", "")
        if word == "Bridge" and child.attributes.get("bridge_type", "").startswith("1-"):
            above = Device("bridge", (child.line,), bandwidth=_rate(child))
            parent.children.append(above)
        elif word == "PCIDev" and (device := _device(child)) is not None:
            parent.children.append(device)
            continue
        _add_devices(child, above, cpus)


def _device(element: Element) -> Device | None:
    """The GPU or network card of a PCI device; None for another device."""
    text = element.attributes.get("pci_type", "")
    match = PCI_TYPE.fullmatch(text)
    if not match:
        raise element.error(f"<object> has pci_type={text!r:.40}; a class and a vendor are accepted: 0302 [10de:2330]")
    key = (element.line,)
    if match[1] in GPU_CLASSES and (match[2] or "").lower() in GPU_VENDORS:
        return Device("gpu", key, bandwidth=_rate(element))
    names = [child.attributes.get("name", "") for child in element.children if child.attributes.get("type") == "OSDev"]
    if match[1] in NIC_CLASSES:
        verbs = [name for name in names if re.match(r"mlx\d|hfi|hsi|cxi|efa|bnxt|irdma", name)]
        return Device("nic", key, name=next(iter([*verbs, *names]), ""), bandwidth=_rate(element))
    return None


def _rate(element: Element) -> float | None:
    """Bandwidth of the PCI link upwards [B/s]; hwloc writes GB/s, and 0 if it is unknown."""
    text = element.attributes.get("pci_link_speed", "0")
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < FASTEST:
        raise element.error(f"<object> has pci_link_speed={text!r:.40}; a number of GB/s below {FASTEST:g} is accepted")
    return rate * 1e9 or None


def _used(device: Device) -> bool:
    """Whether a device is a GPU or a card, or has one below it; bridges to other devices are taken out."""
    device.children = [child for child in device.children if _used(child)]
    return device.kind in ("gpu", "nic") or bool(device.children)
