"""Machines and schedules small enough to predict by hand: free memory, round bandwidths, one op."""

from dataclasses import replace

from quadrille.algorithms.formats.measured_rows import GemmRow, MemoryRow, TransferRow
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gemm,
    Reduce,
    ReduceScatter,
    Shift,
)
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, Tensor
from quadrille.topologies.machines.machine import Device, Host, Machine, NetworkCosts

FREE = 1e30
"""A rate so high that what runs at it takes no time."""
BANDWIDTH = 1e9
LATENCY = 1e-6
PEAK = 1e11


def device(*, peak=PEAK, memory=FREE, overhead=0.0, gemm=(), memory_rows=()):
    """A device that computes at `peak` in either dtype, float32 twice as fast."""
    return Device(
        peak_flops_per_second={"float64": peak, "float32": 2 * peak},
        memory_bytes_per_second=memory,
        memory_bytes=8e9,
        overhead_seconds=overhead,
        gemm=tuple(gemm),
        memory=tuple(memory_rows),
    )


def star(hosts, *, bandwidth=BANDWIDTH, latency=LATENCY, cores=1, network=(), **given):
    """Hosts on one switch; a message between two of them takes two latencies and its bytes."""
    cables = {"bandwidth_bytes_per_second": bandwidth, "latency_seconds": latency}
    topology = {"family": "star", "hosts": hosts, "cores": cores, **cables}
    measured = NetworkCosts(transfer=tuple(network)) if network else None
    return Machine(name="star", topology=topology, device=device(**given), network=measured)


def leaf_spine(leaves, hosts_per_leaf, *, spines=1, bandwidth=BANDWIDTH, latency=LATENCY, **given):
    """Hosts under leaves, every leaf wired to every spine with one cable."""
    topology = {
        "family": "leaf-spine",
        "leaves": leaves,
        "spines": spines,
        "hosts_per_leaf": hosts_per_leaf,
        "bandwidth_bytes_per_second": bandwidth,
        "latency_seconds": latency,
    }
    return Machine(name="leaf-spine", topology=topology, device=device(**given))


def one_host(cores, *, transfer=(), **given):
    """One host, whose ranks share its cores."""
    host = Host(cores=cores, transfer=tuple(transfer))
    return Machine(name="host", topology={"family": "host", "cores": cores}, device=device(**given), host=host)


def gemm_row(m, k, n, seconds, **given):
    """A measured product that took this time [s]."""
    given = {"dtype": "float64", "layout": "NN", **given}
    return GemmRow(m=m, k=k, n=n, flops_per_second=2.0 * m * k * n / seconds, **given)


def memory_row(operation, size, seconds, **given):
    """Measured memory-bound work that took this time [s]."""
    return MemoryRow(operation=operation, bytes=size, bytes_per_second=size / seconds, **given)


def transfer_row(size, seconds, *, pattern="shift", ranks=2):
    return TransferRow(pattern=pattern, ranks=ranks, bytes=size, seconds=seconds)


def program_of(grid, tensors, *ops, dtype="float64", roles=(), **sizes):
    """A schedule of a few ops without inputs, so that any op may consume any tensor."""
    return Schedule("toy", sizes, grid, dtype, declare(*tensors), (), (), roles or (Role(tuple(ops)),))


def products(ranks, m, k, n, *, count=1, dtype="float64"):
    """`count` whole products on each rank, one after the other, without communication."""
    rows, inner, columns = Part("m"), Part("k"), Part("n")
    tensors = [Tensor("A", rows, inner), Tensor("B", inner, columns), Tensor("C", rows, columns)]
    ops = [Gemm(name=f"multiply {i}", a="A", b="B", c="C") for i in range(count)]
    return program_of(Grid(x=ranks), tensors, *ops, dtype=dtype, m=m, k=k, n=n)


def collective(kind, members, block_bytes, *, grid=None, axis="x", root=0):
    """One collective along an axis on a whole of `block_bytes`, float64; the axis cuts it where the collective does."""
    rows = block_bytes // ITEM_BYTES["float64"]
    whole, part = Tensor("whole", Part("m"), Part("n")), Tensor("part", Part("m", (axis,)), Part("n"))
    across = Tensor("across", Part("m"), Part("n", (axis,)))
    other = replace(whole, name="other")
    names = {"name": kind, "axis": axis}
    op = {
        "all_gather": AllGather(**names, source="part", into="whole"),
        "reduce_scatter": ReduceScatter(**names, source="whole", into="part"),
        "all_reduce": AllReduce(**names, buffer="whole"),
        "broadcast": Broadcast(**names, root=root, source="whole", into="other"),
        "reduce": Reduce(**names, root=root, source="whole", into="other"),
        "all_to_all": AllToAll(**names, source="part", into="across"),
        "send_receive": Shift(**names, distance=1, source="whole", into="other"),
        "barrier": Barrier(**names),
    }[kind]
    columns = members if kind == "all_to_all" else 1
    tensors = [whole, part, across, other]
    return program_of(grid or Grid(**{axis: members}), tensors, op, m=rows // columns, n=columns)
