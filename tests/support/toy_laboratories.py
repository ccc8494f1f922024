"""Emulated networks on one machine: hosts that share cores, links with token buckets."""

import msgspec

from quadrille.algorithms.formats.measured_rows import TransferRow
from quadrille.topologies.machines.machine import Device, Emulation, Host, Machine, NetworkCosts

DEVICE = Device(
    peak_flops_per_second={"float64": 1e10}, memory_bytes_per_second=1e10, memory_bytes=8e9, overhead_seconds=0.0
)
LEAF_SPINE = {"family": "leaf-spine", "leaves": 2, "spines": 1, "hosts_per_leaf": 2}


def laboratory(bursts, *, family=None, cores=2, cost=0.0):
    """Four hosts that share cores, on links with token buckets of `bursts` bytes."""
    topology = family or {"family": "star", "hosts": 4}
    return Machine(
        name="lab",
        topology={**topology, "bandwidth_bytes_per_second": 25e6, "latency_seconds": 1e-5},
        device=DEVICE,
        host=Host(cores=cores),
        network=NetworkCosts(),
        emulation=Emulation(shared_cores=True, burst_bytes=bursts, core_seconds_per_byte=cost),
    )


def with_messages(machine):
    """The machine with messages between its hosts measured, as a calibration leaves it."""
    transfer = TransferRow(pattern="shift", ranks=4, bytes=1, seconds=1e-5)
    return msgspec.structs.replace(machine, network=msgspec.structs.replace(machine.network, transfer=(transfer,)))
