"""Reader of NCCL's topology XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`): the inside of one node.

    read          processors, PCIe bridges, GPUs, NICs; rates of PCIe links; NVLinks and their counts; speeds of NICs
    ignored       affinities, GDR, registers of the GPU and the NIC, chelsio and NVLS tags
    not there     the model of the GPU, latencies; which NVSwitch a link leads to (all are one switch);
                  NVLinks, if the file is one that a user writes: NCCL finds them itself

Numbers of GPUs are NCCL's `dev`, else the order of bus addresses.

Source: NVIDIA, NCCL, src/graph/xml.cc and topo.cc, github.com/NVIDIA/nccl.
"""

import re

from quadrille.topologies.files.imported.fabric import NodeDescription
from quadrille.topologies.files.imported.pci_tree import (
    NVLINK5_BYTES_PER_SECOND,
    NVLINK_BYTES_PER_SECOND,
    Device,
    NvLinks,
    node_of_tree,
    numbered,
    pcie_bandwidth,
)
from quadrille.topologies.files.imported.slurm_topology import Say
from quadrille.topologies.files.xml_elements import Element

GPU_CLASSES = ("0x0300", "0x0302", "0x1200")
NIC_CLASSES = ("0x0200", "0x0207", "0x0280")
NVSWITCH_CLASS = "0x0680"
VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
ARCHITECTURES = {"ppc64": "ibm", "arm64": "arm"}
SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s(?:\s*PCIe)?")
BUS = re.compile(r"[0-9a-fA-F]{1,8}(?::[0-9a-fA-F]{1,8}){0,3}(?:\.[0-9a-fA-F]{1,2})?")
BLACKWELL = 100
"""First compute capability, times 10, of GPUs with NVLink 5."""
MOST_LINKS = 1000
FASTEST_NIC = 10_000_000
"""Fastest NIC that is accepted [Mb/s]."""


def read_nccl_xml(root: Element, ignored: Say) -> NodeDescription:
    """The node in a document whose outermost element is `<system>`.

    Parameters
    ----------
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : a value that cannot be, or no GPUs
    """
    roots: list[Device] = []
    gpus: list[tuple[Device, Element]] = []
    for place, element in enumerate(root.children):
        if element.tag != "cpu":
            ignored(f"<{element.tag}>")
            continue
        architecture = element.attributes.get("arch", "")
        vendor = VENDORS.get(element.attributes.get("vendor", ""), ARCHITECTURES.get(architecture, ""))
        cpu = Device("cpu", (place,), vendor=vendor)
        cpu.children = _devices(element, gpus, ignored)
        roots.append(cpu)
    order = {id(device): number for number, device in enumerate(numbered(roots, "gpu"))}
    nvlinks = _nvlinks([(order[id(device)], element) for device, element in gpus])
    if len(gpus) > 1 and not (nvlinks.to_switch or nvlinks.between):
        ignored("no NVLinks are in the file, so GPUs reach each other over PCIe; NCCL_TOPO_DUMP_FILE writes NVLinks")
    kind = node_of_tree(root.path, "nccl-xml", roots, nvlinks)
    return NodeDescription(kind, tuple(nic.name for nic in numbered(roots, "nic")))


def _devices(parent: Element, gpus: list[tuple[Device, Element]], ignored: Say) -> list[Device]:
    """The devices below a processor or a bridge."""
    devices: list[Device] = []
    for element in parent.children:
        if element.tag == "pci":
            device = _device(element, gpus, ignored)
            if device is not None:
                devices.append(device)
        elif element.tag == "nic":  # a NIC that is not on the PCI bus
            devices.append(_nic(element, element))
        elif element.tag not in ("gpu", "net", "nvlink"):
            ignored(f"<{element.tag}>")
    return devices


def _device(element: Element, gpus: list[tuple[Device, Element]], ignored: Say) -> Device | None:
    """The device of a `<pci>` element; None for a device that is none of a node's parts."""
    pci_class = element.attributes.get("class", "")[:6].lower()
    inside = {child.tag: child for child in element.children}
    if "gpu" in inside or pci_class in GPU_CLASSES:
        gpu = inside.get("gpu", element)
        number = _whole(gpu, "dev", 4096) if "dev" in gpu.attributes else 0
        device = Device("gpu", (number, *_bus_key(element)), bandwidth=_bandwidth(element))
        gpus.append((device, element))
        return device
    if "nic" in inside or pci_class in NIC_CLASSES:
        return _nic(element, inside.get("nic", element))
    if not element.children:
        ignored(f"PCI devices of class {element.attributes.get('class', '')!r:.20}")
        return None
    bridge = Device("bridge", _bus_key(element), bandwidth=_bandwidth(element))
    bridge.children = _devices(element, gpus, ignored)
    return bridge


def _nic(element: Element, nic: Element) -> Device:
    ports = [child for child in nic.children if child.tag == "net"]
    speeds = [_whole(port, "speed", FASTEST_NIC) for port in ports if "speed" in port.attributes]
    numbers = [_whole(port, "dev", 4096) for port in ports if "dev" in port.attributes]
    return Device(
        "nic",
        (min(numbers, default=0), *_bus_key(element)),
        name=next((port.attributes["name"] for port in ports if "name" in port.attributes), ""),
        bandwidth=_bandwidth(element),
        network_bandwidth=sum(speeds) * 1e6 / 8 or None,
    )


def _nvlinks(gpus: list[tuple[int, Element]]) -> NvLinks:
    """The links that the `<nvlink>` elements of the GPUs name."""
    number_of_bus = {element.attributes.get("busid", ""): number for number, element in gpus}
    to_switch: dict[int, int] = {}
    between: dict[tuple[int, int], int] = {}
    bandwidth = NVLINK_BYTES_PER_SECOND
    for number, element in gpus:
        for gpu in (child for child in element.children if child.tag == "gpu"):
            if "sm" in gpu.attributes and _whole(gpu, "sm", 999) >= BLACKWELL:
                bandwidth = NVLINK5_BYTES_PER_SECOND
            for link in (child for child in gpu.children if child.tag == "nvlink"):
                count, target = _whole(link, "count", MOST_LINKS), link.needed("target")
                if count == 0:
                    continue
                if target in number_of_bus and number_of_bus[target] != number:
                    first, second = sorted((number, number_of_bus[target]))
                    between[first, second] = max(count, between.get((first, second), 0))
                elif link.attributes.get("tclass", "").lower().startswith(NVSWITCH_CLASS):
                    to_switch[number] = to_switch.get(number, 0) + count
    return NvLinks(to_switch, between, bandwidth)


def _bandwidth(element: Element) -> float | None:
    """Bandwidth of the link from a device upwards [B/s]; None if the file does not say."""
    text, lanes = element.attributes.get("link_speed", ""), element.attributes.get("link_width", "")
    if not text or lanes in ("", "0"):
        return None
    match = SPEED.fullmatch(text.strip())
    if not match:
        if text.startswith("Unknown"):
            return None
        raise element.error(f"<{element.tag}> has link_speed={text!r:.40}; a rate such as 16.0 GT/s PCIe is accepted")
    width = _whole(element, "link_width", 32)
    if not (width and 0.5 < float(match[1]) < 1000):
        raise element.error(f"<{element.tag}> has link_speed={text!r:.40} and link_width={lanes!r:.20}")
    return pcie_bandwidth(float(match[1]), width)


def _bus_key(element: Element) -> tuple[int, ...]:
    text = element.attributes.get("busid", "")
    if text and not BUS.fullmatch(text):
        raise element.error(f"<{element.tag}> has busid={text!r:.40}; an address such as 0000:1a:00.0 is accepted")
    return tuple(int(word, 16) for word in re.split("[:.]", text) if word)


def _whole(element: Element, name: str, most: int) -> int:
    text = element.needed(name)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most):
        raise element.error(f"<{element.tag}> has {name}={text!r:.40}; a whole number up to {most} is accepted")
    return int(text)
