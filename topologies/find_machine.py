"""`find_machine`: the machine with this name or in this file, after what-if settings; and named machines as text."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import parse_integer
from quadrille.topologies.build import FAMILIES, parse_topology
from quadrille.topologies.gpu_kind import node_kind_of
from quadrille.topologies.machines.machine import Argument, Device, Machine
from quadrille.topologies.machines.machine_catalogue import (
    MACHINES,
    as_machine,
    device_of_gpu,
    is_file_name,
    machine,
    quantities_of,
)
from quadrille.topologies.machines.named_machine import NamedMachine
from quadrille.topologies.nodes.gpus import SMALL_DTYPES
from quadrille.topologies.quantity import Quantity, name_with_unit

UNKNOWN_DEVICE = Device(
    peak_flops_per_second={"float32": 1.0}, memory_bytes_per_second=1.0, memory_bytes=1.0, overhead_seconds=0.0
)
"""Device of a machine that is only a topology, for questions in which nothing is computed."""
TOPOLOGY_FILES = (".json", ".xml")
RENAMED_ARGUMENTS = {
    "nic_bandwidth_bytes_per_second": "bandwidth_bytes_per_second",
    "nic_latency_seconds": "latency_seconds",
}
"""Quantities of nodes that are called differently as arguments of the topology."""


def find_machine(text: str, settings: Sequence[str] = (), gpus: int | None = None) -> Machine:
    """The machine that `text` names, after the what-if settings.

    >>> find_machine("Perlmutter", ["device.overhead_seconds=x2"], gpus=8).device.overhead_seconds
    1e-05

    Parameters
    ----------
    text : a file name, which ends in `.toml` or has a `/`, or the name of a machine; or a topology file (.json) that
        names the kind of its nodes, whose GPU computes
    settings : each `path=value` or `path=xFACTOR`
    gpus : number of GPUs of a named machine that are modelled, by default all

    Raises
    ------
    InputError : an unknown name; a file without a machine; a setting that does not fit
    """
    if not text:
        raise InputError(f"machine is missing: --machine takes a .toml file or one of {', '.join(MACHINES)}")
    if text.endswith(".json"):
        return _with_settings(_of_named_nodes(text), settings)
    if text.endswith(TOPOLOGY_FILES) or (":" in text and text.partition(":")[0] in FAMILIES):
        raise _lacks_speeds(text)
    return _with_settings(_from_file(text) if is_file_name(text) else as_machine(machine(text), gpus), settings)


def gpus_with_placement(text: str, ranks: int, placement: str) -> int:
    """Number of GPUs of a named machine among which ranks are placed: whole nodes for `packed:N`, else the ranks.

    >>> gpus_with_placement("gb200-nvl72", 256, "packed:64"), gpus_with_placement("gb200-nvl72", 256, "packed")
    (288, 256)
    """
    each = parse_integer(placement.removeprefix("packed:")) if placement.startswith("packed:") else None
    named = MACHINES.get(text.lower())
    if not each or named is None:
        return ranks
    return min(-(-ranks // each) * named.gpus_per_node, named.gpus)


def find_machine_or_topology(text: str, settings: Sequence[str] = (), gpus: int | None = None) -> Machine:
    """The machine that `text` names, or a machine that is only a topology; nothing can be computed on the latter.

    >>> find_machine_or_topology("star:hosts=3,bandwidth=25MB/s", ["topology.hosts=4"]).topology
    {'family': 'star', 'hosts': 4, 'bandwidth_bytes_per_second': 25000000.0}

    Parameters
    ----------
    text : a machine, `family:key=value,…`, or a topology file (.json, .xml)
    gpus : number of GPUs of a named machine that are modelled, by default all

    Raises
    ------
    InputError : no such machine, family or file; a setting that does not fit
    """
    if text.endswith(TOPOLOGY_FILES):
        topology_alone = _topology_alone(text)
        return _with_settings(topology_alone, settings)
    if text in MACHINES or is_file_name(text) or text.partition(":")[0] not in FAMILIES:
        return find_machine(text, settings, gpus)
    family, arguments = parse_topology(text)
    topology: dict[str, Argument] = {
        "family": family,
        **{name_with_unit(name): value for name, value in arguments.items()},
    }
    try:
        return _with_settings(Machine(name=text, topology=topology, device=UNKNOWN_DEVICE), settings)
    except ValueError as error:
        raise InputError(f"machine {text!r:.80}: {error}") from None


def _topology_alone(path: str) -> Machine:
    """A machine that is only the topology in a file."""
    return Machine(name=path, topology={"file": path}, device=UNKNOWN_DEVICE, routing=_graph_routing(path))


def _of_named_nodes(path: str) -> Machine:
    """The machine of a topology file that names the kind of its nodes, and with it the GPU.

    Raises
    ------
    InputError : a topology without a kind of node
    """
    machine = _topology_alone(path)
    kind = node_kind_of(machine)
    if kind is None or kind.gpu is None:
        raise _lacks_speeds(path, '; or the file\'s graph names its nodes: "node": "hgx-h100"')
    return msgspec.structs.replace(machine, device=device_of_gpu(kind.gpu))


def _lacks_speeds(text: str, more: str = "") -> InputError:
    return InputError(
        f"machine {text!r:.80}: is a topology alone, enough for collective, flows and topology show; "
        f"speeds of GPUs are needed too: give a machine file (.toml) or a name{more}"
    )


def _with_settings(original: Machine, settings: Sequence[str]) -> Machine:
    """The machine after the what-if settings."""
    if not settings:
        return original
    from quadrille.topologies.machines.what_if import apply_settings  # needed only for settings

    return apply_settings(original, settings)


def _graph_routing(path: str) -> str:
    """The default routing of a topology file; most machine files name a family instead."""
    from quadrille.topologies.files.topology_file import default_routing

    return default_routing(path)


def _from_file(path: str) -> Machine:
    """The machine in a file; the name of a topology file is relative to the folder of the machine file."""
    from quadrille.topologies.machines.machine_file import load_machine

    loaded = load_machine(path, _graph_routing)
    file = loaded.topology.get("file")
    if not isinstance(file, str) or Path(file).is_absolute():
        return loaded
    return msgspec.structs.replace(loaded, topology={**loaded.topology, "file": str(Path(path).parent / file)})


# Text


def describe_machines(name: str = "") -> str:
    """The named machines, one per line; or one machine, with the path of every number for `--set` and its source."""
    if name:
        return "\n".join(_description_lines(machine(name)))
    width = max(map(len, MACHINES))
    return "\n".join(f"{word:{width}}  {named.summary}" for word, named in MACHINES.items())


def _description_lines(named: NamedMachine) -> Iterator[str]:
    yield f"{named.name}: {named.summary}"
    quantities = quantities_of(named)
    paths = [path_of(named, quantity) or f"({quantity.quantity})" for quantity in quantities]
    values = [f"{q.value:g}" if not isinstance(q.value, str) else q.value for q in quantities]
    width, longest = max(map(len, paths)), max(map(len, values))
    for path, value, quantity in zip(paths, values, quantities, strict=True):
        yield f"  {path:{width}}  {value:>{longest}}  {quantity.source}"
    yield "  --set PATH=VALUE changes a number, except those in brackets"


def path_of(named: NamedMachine, quantity: Quantity) -> str | None:
    """The path by which `--set` changes a quantity of a named machine; None if no setting changes it.

    >>> perlmutter = machine("perlmutter")
    >>> [path_of(perlmutter, quantity) for quantity in perlmutter.quantities if "ic_" in quantity.quantity]
    ['topology.bandwidth_bytes_per_second', 'topology.latency_seconds']
    """
    name = quantity.quantity
    name = RENAMED_ARGUMENTS.get(name, name)
    if name.startswith("host_link."):
        return name
    table, _, key = name.partition(".")
    if table in Device.__struct_fields__:
        return None if key in SMALL_DTYPES else f"device.{name}"
    if name in named.arguments() or name in named.optional_arguments():
        return f"topology.{name}"
    return None
