"""Catalogue of named machines: their networks for any number of GPUs, and a source for every number.

The numbers are peaks from data sheets, and the networks are those that the vendors
describe.  A calibration on the machine itself is always better.  A number whose
source begins with "assumption" is Quadrille's own.
"""

from collections.abc import Iterable

import msgspec

from quadrille.algorithms.errors import unknown_name
from quadrille.algorithms.formats.measured_rows import Achieved, Variant
from quadrille.topologies.lazy_table import LazyTable, named_values
from quadrille.topologies.machines.machine import Argument, Device, HostLink, Machine, Source
from quadrille.topologies.machines.named_machine import OVERHEAD, NamedMachine
from quadrille.topologies.nodes.gpus import TABLE_OF_GPU, Gpu
from quadrille.topologies.quantity import Quantity

WHOLE_NUMBERS = ("tile_rows", "tile_columns", "multiprocessors")


def _slingshot() -> Iterable[NamedMachine]:
    from quadrille.topologies.machines.slingshot import SLINGSHOT

    return SLINGSHOT


def _nvidia() -> Iterable[NamedMachine]:
    from quadrille.topologies.machines.nvidia import NVIDIA

    return NVIDIA


def _sites() -> Iterable[NamedMachine]:
    from quadrille.topologies.machines.site_machines import SITES

    return SITES


def _bench() -> Iterable[NamedMachine]:
    from quadrille.topologies.machines.benchmark_clusters import BENCH

    return BENCH


MACHINES: LazyTable[NamedMachine] = named_values(
    {
        _slingshot: ("perlmutter", "frontier", "alps"),
        _nvidia: (
            *("selene", "h100-superpod", "h200-superpod", "b200-superpod", "b300-superpod"),
            *("gb200-nvl72", "gb300-nvl72", "a100-node", "h100-node", "h200-node", "b200-node", "b300-node"),
        ),
        _sites: (
            *("summit", "longhorn", "jean-zay-v100", "jean-zay-a100", "abci-v100", "abci-a100"),
            *("aws-p4d", "aws-p6-b200", "mi300x-node", "mi325x-node", "mi355x-node", "unnamed-4x8"),
        ),
        _bench: ("bench-1to1", "bench-2to1"),
    },
)
"""Machines by name."""


def machine(name: str) -> NamedMachine:
    """The machine of this name; upper and lower case are the same.

    >>> machine("Perlmutter").peak_flops_per_second["bfloat16"]
    312000000000000.0
    >>> sorted(machine("frontier").peak_flops_per_second)
    ['bfloat16', 'float16', 'float32', 'float64']
    >>> machine("perlmutter").topology(6).node_count
    17

    Raises
    ------
    InputError : an unknown name; the message suggests the nearest names, or lists all
    """
    if name not in MACHINES:
        raise unknown_name("machine", name, machines_that_share_a_word(name) or MACHINES, "or give a machine file")
    return MACHINES[name]


def machines_that_share_a_word(name: str) -> list[str]:
    """The machines whose names have a word of an unknown name, such as that of a GPU.

    >>> machines_that_share_a_word("dgx-b300"), machines_that_share_a_word("tianhe")
    (['b300-superpod', 'b300-node'], [])
    """
    words = {*name.lower().split("-")} - {"node"}
    return [candidate for candidate in MACHINES if words & {*candidate.split("-")}]


def is_file_name(text: str) -> bool:
    """Whether a machine is given as a file, not by name or as a topology.

    >>> [is_file_name(text) for text in ("host.toml", "./host", "perlmutter", "star:hosts=2,bandwidth=10GB/s")]
    [True, True, False, False]
    """
    return text.endswith(".toml") or "/" in text.partition("=")[0]


# As machine files


def as_machine(named: NamedMachine, gpus: int | None = None) -> Machine:
    """A named machine with its network for `gpus` GPUs, and the source of every number."""
    device = device_of(named)
    sources = tuple(Source(number.quantity, number.value, number.source) for number in quantities_of(named))
    topology: dict[str, Argument] = {"family": named.name, **named.arguments(gpus)}
    return Machine(name=named.name, topology=topology, device=device, host_link=host_link_of(named), sources=sources)


def as_machine_file(name: str, gpus: int | None = None) -> Machine:
    """A named machine as a file to edit: every number of its network that can be changed is written out.

    The file predicts what the name predicts.

    >>> as_machine_file("selene", gpus=8).topology["switch_latency_seconds"]
    1.3e-07

    Raises
    ------
    InputError : an unknown name
    """
    named = machine(name)
    written = as_machine(named, gpus)
    numbers = named.optional_arguments()
    del numbers["gpu_bandwidth_bytes_per_second"]  # it follows from the bandwidth of the node's cables
    return msgspec.structs.replace(written, topology={**written.topology, **numbers})


def device_of(named: NamedMachine) -> Device:
    """The device of a named machine: its peaks, its memory, and the shares of the peaks that kernels achieve."""
    return device_of_gpu(named.gpu, named.overhead_seconds, has_kernels=named.has_kernels)


def device_of_gpu(gpu: Gpu, overhead_seconds: float = OVERHEAD.number, *, has_kernels: bool = True) -> Device:
    """A GPU as a device: its peaks, its memory, and the shares of the peaks that kernels achieve.

    >>> from quadrille.topologies.nodes.gpus import A100_80GB
    >>> device_of_gpu(A100_80GB) == device_of(machine("selene"))
    True

    Parameters
    ----------
    overhead_seconds : time to issue an op [s]
    has_kernels : whether predictions use measured kernels of the GPU
    """
    return Device(
        peak_flops_per_second=dict(gpu.peak_flops_per_second),  # type: ignore[arg-type]
        memory_bytes_per_second=gpu.memory_bytes_per_second,
        memory_bytes=gpu.memory_bytes,
        overhead_seconds=overhead_seconds,
        achieved=achieved_of(gpu),
        overlap_slowdown=gpu.overlap_slowdown,
        communication_slowdown=gpu.communication_slowdown,
        speed_sigma=gpu.speed_sigma,
        kernel_table=TABLE_OF_GPU.get(gpu.name, "") if has_kernels else "",
    )


def host_link_of(named: NamedMachine) -> HostLink | None:
    """The link between a GPU of a named machine and the memory of its host; None if it is not known.

    >>> host_link_of(machine("summit")).bytes_per_second, host_link_of(machine("longhorn"))
    (50000000000.0, None)
    """
    if not named.host_link:
        return None
    numbers = {quantity.quantity.removeprefix("host_link."): quantity.number for quantity in named.host_link}
    whole = {name: int(numbers.pop(name)) for name in ("gpus", "memory_gpus")}
    return HostLink(**numbers, **whole)  # type: ignore[arg-type]


def achieved_of(gpu: Gpu, attention: Variant = "fused") -> Achieved | None:
    """The shares of a GPU's peaks that products and memory passes reach; None if only the peaks are known."""
    from quadrille.topologies.nodes.peak_shares import (
        peak_shares,  # it needs NumPy, and `machines` without a name does not
    )

    quantities = peak_shares(gpu.generation, gpu.name)
    if quantities is None:
        return None
    numbers = {quantity.quantity.removeprefix("achieved."): quantity.number for quantity in quantities}
    whole = {key: int(numbers.pop(key)) for key in WHOLE_NUMBERS}
    return Achieved(**numbers, **whole, attention=attention)  # type: ignore[arg-type]


def quantities_of(named: NamedMachine) -> tuple[Quantity, ...]:
    """Every number of a named machine, and the shares of the peaks that work reaches on its GPUs."""
    from quadrille.topologies.nodes.peak_shares import peak_shares

    return (*named.quantities, *(peak_shares(named.gpu.generation, named.gpu.name) or ()))


def larger_machine_remark(machine: Machine, gpus: int) -> str:
    """A sentence if a named machine has fewer GPUs than are modelled; empty otherwise, and for machines of own names.

    The networks of named machines follow rules for any number of GPUs.  A machine file with the network of a named
    machine and a name of its own is another machine, which has the GPUs that the file says.

    >>> larger_machine_remark(as_machine(MACHINES["h100-node"], 64), 64)
    'h100-node has 8 GPUs: predicted as a larger machine of the same kind with 64'
    """
    named = MACHINES.get(machine.name)
    if named is None or named.any_size or named.name != machine.topology.get("family") or gpus <= named.gpus:
        return ""
    return f"{named.name} has {named.gpus:,} GPUs: predicted as a larger machine of the same kind with {gpus:,}"
