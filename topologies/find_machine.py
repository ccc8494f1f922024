"""Machines as the command line names them: a file, or one of those known by name; and what-if changes to either."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import Achieved, Variant
from quadrille.topologies.build import FAMILIES, parse_topology
from quadrille.topologies.machines.machine import Argument, Device, Machine, Source, load_machine
from quadrille.topologies.machines.named import MACHINES, NamedMachine, machine
from quadrille.topologies.machines.what_if import apply
from quadrille.topologies.nodes.gpus import Gpu
from quadrille.topologies.quantity import Quantity

UNKNOWN_DEVICE = Device(
    peak_flops_per_second={"float32": 1.0}, memory_bytes_per_second=1.0, memory_bytes=1.0, overhead_seconds=0.0
)
"""Of a machine that is a topology alone, where nothing is computed."""
TOPOLOGY_FILES = (".json", ".xml")
WHOLE_NUMBERS = ("tile_rows", "tile_columns", "multiprocessors")


def find_machine(text: str, settings: Sequence[str] = (), gpus: int | None = None) -> Machine:
    """The machine that `text` names, after the what-if settings.

    >>> find_machine("perlmutter", ["device.overhead_seconds=x2"], gpus=8).device.overhead_seconds
    1e-05

    Parameters
    ----------
    text : a file if it ends in `.toml` or holds a `/`, else a name
    settings : each `path=value` or `path=xFACTOR`
    gpus : how many of a named machine's GPUs are modelled, by default all that it has

    Raises
    ------
    InputError : an unknown name, a file that holds no machine, a setting that does not fit
    """
    if not text:
        raise InputError(f"machine is missing: --machine takes a .toml file or one of {', '.join(MACHINES)}")
    if text.endswith(TOPOLOGY_FILES) or (":" in text and text.partition(":")[0] in FAMILIES):
        raise InputError(
            f"machine {text!r:.80}: is a topology alone, enough for collective, flows and topology show; "
            "speeds of GPUs are needed too: give a machine file (.toml) or a name"
        )
    found = _from_file(text) if is_file_name(text) else of_name(machine(text), gpus)
    return apply(found, settings)


def is_file_name(text: str) -> bool:
    """Whether a machine is given as a file, and not by name.

    >>> [is_file_name(text) for text in ("host.toml", "./host", "perlmutter")]
    [True, True, False]
    """
    return text.endswith(".toml") or "/" in text


def find_machine_or_topology(text: str, settings: Sequence[str] = (), gpus: int | None = None) -> Machine:
    """The machine that `text` names, or one that is a topology alone: enough where nothing is computed.

    >>> find_machine_or_topology("star:hosts=3,bandwidth=25e6", ["topology.hosts=4"]).topology
    {'family': 'star', 'hosts': 4, 'bandwidth_bytes_per_second': 25000000.0}

    Parameters
    ----------
    text : a machine, `family:key=value,…`, or a topology file (.json, .xml)
    gpus : how many of a named machine's GPUs are modelled, by default all that it has

    Raises
    ------
    InputError : no such machine, family or file; a setting that does not fit
    """
    if text.endswith(TOPOLOGY_FILES):
        return apply(Machine(name=text, topology={"file": text}, device=UNKNOWN_DEVICE), settings)
    if text in MACHINES or is_file_name(text) or text.partition(":")[0] not in FAMILIES:
        return find_machine(text, settings, gpus)
    family, arguments = parse_topology(text)
    wiring: dict[str, Argument] = {"family": family, **{_with_unit(name): value for name, value in arguments.items()}}
    try:
        return apply(Machine(name=text, topology=wiring, device=UNKNOWN_DEVICE), settings)
    except ValueError as error:
        raise InputError(f"machine {text!r:.80}: {error}") from None


def _with_unit(argument: str) -> str:
    """The name that an argument of a topology has in machine files.

    >>> _with_unit("bandwidth"), _with_unit("uplink_latency"), _with_unit("hosts")
    ('bandwidth_bytes_per_second', 'uplink_latency_seconds', 'hosts')
    """
    units = {"bandwidth": "_bytes_per_second", "latency": "_seconds"}
    return argument + units.get(argument.rpartition("_")[2], "")


def _from_file(path: str) -> Machine:
    """The machine in a file; a topology file is looked for in the machine file's folder."""
    found = load_machine(path)
    wiring = found.topology.get("file")
    if not isinstance(wiring, str) or Path(wiring).is_absolute():
        return found
    return msgspec.structs.replace(found, topology={**found.topology, "file": str(Path(path).parent / wiring)})


def of_name(named: NamedMachine, gpus: int | None = None) -> Machine:
    """A named machine with its wiring for `gpus` GPUs, and a source for every number."""
    device = Device(
        peak_flops_per_second=dict(named.peak_flops_per_second),  # type: ignore[arg-type]
        memory_bytes_per_second=named.memory_bytes_per_second,
        memory_bytes=named.memory_bytes,
        overhead_seconds=named.overhead_seconds,
        achieved=achieved_of(named.gpu),
        overlap_slowdown=named.gpu.overlap_slowdown,
        communication_slowdown=named.gpu.communication_slowdown,
    )
    sources = tuple(Source(number.quantity, number.value, number.source) for number in _quantities(named))
    topology: dict[str, str | bool | int | float | list[str | int | float]]
    topology = {"family": named.name, **named.arguments(gpus)}
    return Machine(name=named.name, topology=topology, device=device, sources=sources)


def achieved_of(gpu: Gpu, attention: Variant = "fused") -> Achieved | None:
    """What products and passes over memory reach on a GPU, or None where nothing is known but its peaks."""
    from quadrille.topologies.nodes.achieved import achieved  # it takes NumPy, which `machines` alone can do without

    found = achieved(gpu.generation)
    if found is None:
        return None
    numbers = {one.quantity.removeprefix("achieved."): one.number for one in found}
    whole = {key: int(numbers.pop(key)) for key in WHOLE_NUMBERS}
    return Achieved(**numbers, **whole, attention=attention)  # type: ignore[arg-type]


def _quantities(named: NamedMachine) -> tuple[Quantity, ...]:
    """Every number of a named machine, and what work reaches on its GPUs."""
    from quadrille.topologies.nodes.achieved import achieved

    return (*named.quantities, *(achieved(named.gpu.generation) or ()))


def describe_machines(name: str = "") -> str:
    """The named machines, or one of them, with the source of every number, in lines."""
    chosen = [machine(name)] if name else list(MACHINES.values())
    return "\n".join(line for named in chosen for line in _described(named))


def _described(named: NamedMachine) -> Iterator[str]:
    yield f"{named.name}: {named.summary}"
    numbers = _quantities(named)
    width = max(len(number.quantity) for number in numbers)
    values = [f"{number.value:g}" if not isinstance(number.value, str) else number.value for number in numbers]
    longest = max(map(len, values))
    for number, value in zip(numbers, values, strict=True):
        yield f"  {number.quantity:{width}}  {value:>{longest}}  {number.source}"
    yield ""
