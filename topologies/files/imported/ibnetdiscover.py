"""Reader of the output of `ibnetdiscover`: switches, channel adapters and the cables of an InfiniBand fabric.

    read          switches, adapters, each cable once, its width and speed (4xNDR), host and adapter in a description;
                  a device that only a port names, with the description there
    ignored       LIDs, GUIDs but as names, aggregation nodes of switches, adapters whose description has no host,
                  routers
    not there     latencies, routes of the subnet manager, ports that are down

A description such as `dgx-001 mlx5_5` is the host and its adapter.

Source: OFED, ibnetdiscover(8); InfiniBand Trade Association, "InfiniBand Roadmap" (rates of a lane).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.imported.fabric import Fabric, FabricCable
from quadrille.topologies.files.imported.slurm_topology import Say
from quadrille.topologies.size_limits import MAX_LINKS

LANE_BITS_PER_SECOND = {
    "SDR": 2e9, "DDR": 4e9, "QDR": 8e9, "FDR10": 10e9, "FDR": 13.64e9, "EDR": 25e9, "HDR": 50e9, "NDR": 100e9,
    "XDR": 200e9,
}  # fmt: skip
"""Data rate of a lane by its speed [bit/s].

Source: InfiniBand Trade Association, "InfiniBand Roadmap", infinibandta.org; SDR to QDR without 8b/10b coding.
"""
DEVICE = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,5})\s+"([SHR]-[0-9a-f]{1,16})"\s*#\s*"([^"]*)"')
PORT = re.compile(
    r'\[(\d{1,5})\](?:\([0-9a-f]+\))?\s+"([SHR]-[0-9a-f]{1,16})"\[(\d{1,5})\](?:\([0-9a-f]+\))?\s*#\s*(.*)$'
)
DESCRIPTION = re.compile(r'"([^"]*)"')
RATE = re.compile(r"\b(1|2|4|8|12)x([A-Z]+\d*)\b")
OTHER_LINE = re.compile(r"(#.*|vendid=\S*|devid=\S*|sysimgguid=\S*|(switch|ca|rt|router)guid=\S*)?$")
PRODUCT = re.compile(r"Mellanox|MT\d|ConnectX|Aggregation Node|InfiniBand|HCA$", re.IGNORECASE)
"""Words of descriptions that name a product instead of a host."""
SHOWN = 60


def is_ibnetdiscover(text: str) -> bool:
    """Whether a text has a device of ibnetdiscover."""
    return re.search(r'^(Switch|Ca|Rt)\s+\d+\s+"[SHR]-', text, re.MULTILINE) is not None


@dataclass(slots=True)
class _Discovered:
    """The devices and cables read so far.

    Parameters
    ----------
    descriptions : description of each device that has lines, by its identifier
    named : description of each device as a port has it
    ports : rate [B/s] of the cable between two ports (device, port), the smaller first
    """

    descriptions: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    ports: dict[tuple[tuple[str, int], tuple[str, int]], float | None] = field(default_factory=dict)


def read_ibnetdiscover(text: str, path: str, ignored: Say) -> Fabric:
    """The fabric that ibnetdiscover found.

    Parameters
    ----------
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : a line that is not of this format, a device twice, a speed that is unknown, or no hosts
    """
    devices = _discovered(text, path)
    if missing := devices.named.keys() - devices.descriptions.keys():
        ignored(f"{len(missing)} devices that ports name have no lines: the file may be truncated")
    descriptions = {**devices.named, **devices.descriptions}
    names = _switch_names(descriptions)
    cables = _cables(devices, descriptions, names, ignored)
    adapters = (cable.first for cable in cables if cable.adapter)
    hosts = sorted({*adapters}, key=natural_key)
    if not hosts:
        raise InputError(f"{path}: has no adapter whose description names a host")
    return Fabric(tuple(hosts), tuple(names.values()), tuple(cables))


def _cables(
    devices: _Discovered, descriptions: dict[str, str], names: dict[str, str], ignored: Say
) -> list[FabricCable]:
    """The cables between named hosts and switches; a host is the first end of its cable."""
    cables = []
    left_out: dict[str, set[str]] = {}
    for ((first, _), (second, _)), bandwidth in devices.ports.items():
        ends = [_end(device, descriptions[device], names) for device in (first, second)]
        for identifier, (name, adapter) in zip((first, second), ends, strict=True):
            if not name:
                left_out.setdefault(adapter, set()).add(identifier)
        ends.sort(key=lambda end: not end[1])
        (name, adapter), (far_name, far_adapter) = ends
        if first == second or (adapter and far_adapter and name and far_name):
            ignored("cables between two hosts, or between two ports of one device")
        elif name and far_name:
            cables.append(FabricCable(name, far_name, bandwidth, adapter))
    for reason, identifiers in left_out.items():
        ignored(f"{len(identifiers)} {reason}")
    return cables


def _discovered(text: str, path: str) -> _Discovered:
    """The devices and cables of all lines."""
    devices = _Discovered()
    current = ""
    for number, line in _lines_of(text):
        here = f"{path}, line {number}"
        if match := PORT.match(line):
            if not current:
                raise InputError(f"{here}: a port before its device")
            _add_port(devices, here, current, match)
        elif match := DEVICE.match(line):
            current = match[3]
            if current in devices.descriptions:
                raise InputError(f"{here}: {current} is there twice")
            devices.descriptions[current] = match[4]
        elif not OTHER_LINE.match(line):
            raise InputError(f"{here}: {line!r:.{SHOWN}} is not a line of ibnetdiscover; it may be truncated")
    return devices


def _lines_of(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _add_port(devices: _Discovered, here: str, current: str, match: re.Match[str]) -> None:
    """Adds the cable of a port, unless it was found at its other end."""
    ends = ((current, int(match[1])), (match[2], int(match[3])))
    ordered = ends if ends[0] <= ends[1] else (ends[1], ends[0])
    if ends[0] == ends[1]:
        raise InputError(f"{here}: a cable from a port to itself")
    if description := DESCRIPTION.search(match[4]):
        devices.named.setdefault(match[2], description[1])
    else:
        raise InputError(f"{here}: {match[2]} has no description; the line may be truncated")
    if ordered in devices.ports:
        return
    rates = RATE.findall(match[4])
    bandwidth = None
    if rates:
        width, speed = rates[-1]
        if speed not in LANE_BITS_PER_SECOND:
            raise InputError(f"{here}: speed {speed!r} is unknown; accepted are {', '.join(LANE_BITS_PER_SECOND)}")
        bandwidth = int(width) * LANE_BITS_PER_SECOND[speed] / 8
    if len(devices.ports) >= MAX_LINKS // 2:
        raise InputError(f"{here}: more than {MAX_LINKS // 2} cables")
    devices.ports[ordered] = bandwidth


def _switch_names(descriptions: dict[str, str]) -> dict[str, str]:
    """A name for each switch: the device's name in its description, or its identifier where that is not unique."""
    shown = {device: _switch_name(text) for device, text in descriptions.items() if device.startswith("S-")}
    counts: dict[str, int] = {}
    for name in shown.values():
        counts[name] = counts.get(name, 0) + 1
    return {device: name if name and counts[name] == 1 else device for device, name in shown.items()}


def _switch_name(description: str) -> str:
    """The name of a switch in a description such as `MF0;leaf-01:MQM9700/U1`; empty if it has no name.

    >>> _switch_name("MF0;rack-0908-A:MCS8500/S01/U1"), _switch_name("Quantum Mellanox Technologies")
    ('rack-0908-A/S01', '')
    """
    if match := re.fullmatch(r"(?:MF0;)?([^:;\s>]+):\w+((?:/\w+)*?)(?:/U\d+)?", description):
        return match[1] + match[2]
    return "" if PRODUCT.search(description) or " " in description or ">" in description else description


def _end(device: str, description: str, switches: dict[str, str]) -> tuple[str, str]:
    """Name of a device and its adapter; the adapter of a switch is empty, and the name of a device left out."""
    if device in switches:
        return switches[device], ""
    if device.startswith("R-"):
        return "", "routers"
    if "Aggregation Node" in description:
        return "", "aggregation nodes of switches"
    host, _, adapter = description.strip("' ").partition(" ")
    if not host or PRODUCT.search(host) or PRODUCT.search(adapter.replace("HCA", "")):
        return "", "adapters whose description has no host"
    return host, adapter.strip() or device


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers in texts by their values.

    >>> sorted(["mlx5_10", "mlx5_9"], key=natural_key)
    ['mlx5_9', 'mlx5_10']
    """
    parts = re.findall(r"\d+|\D+", text)
    return tuple((0, int(part), part) if part.isdecimal() and len(part) < 19 else (1, 0, part) for part in parts)
