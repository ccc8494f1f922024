"""Rates of products in small numbers: which GPUs have which, their peaks, and the shares of the peaks they reach.

A GPU without a table of measured kernels reaches

    share of the peak in small numbers = share of the peak in 16 bits · `SMALL_SHARES`

The factors are the ratio of both median rates over the same products (at least 2,048 x 1,024 x 1,024), each divided by
its peak, on one GPU; the other GPUs judge it:

    float8, fp8      learnt on H100 0.70    B200 0.68, GB200 0.68, GB300 0.65
    float8, blocks   learnt on H100 0.72    B200 0.80, GB200 0.83, GB300 0.78
    float4           learnt on B200 0.55    GB200 0.54, GB300 0.33 (of a peak that is 1.5 times that of GB200)

MXFP8 has the factor and the tables of products in blocks: Blackwell computes both with scales of blocks.

Source: aiconfigurator-core 0.12.0 (NVIDIA, PyPI), GEMM tables; NVIDIA, Transformer Engine, "FP8 primer" (FP8 from
Hopper on, MXFP8 and NVFP4 from Blackwell on); AMD, "CDNA 3" and "CDNA 4" white papers (FP8; MXFP8).
"""

from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.topologies.gpu_kind import node_kind_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.nodes.gpus import Generation, Gpu

FROM_HOPPER: tuple[Generation, ...] = ("hopper", "blackwell", "cdna3", "cdna4")
GENERATIONS: dict[str, tuple[Generation, ...]] = {
    "fp8": FROM_HOPPER,
    "fp8-delayed": FROM_HOPPER,
    "fp8-block": FROM_HOPPER,
    "mxfp8": ("blackwell", "cdna4"),
    "nvfp4": ("blackwell",),
}
"""Generations whose matrix units compute a precision."""
TABLES = {"fp8": "fp8", "fp8-delayed": "fp8", "fp8-block": "fp8_block", "mxfp8": "fp8_block", "nvfp4": "nvfp4"}
"""Precision of a table of measured kernels (`kernel_tables.py`) by precision of products."""
SMALL_SHARES = {"fp8": 0.70, "fp8_block": 0.72, "nvfp4": 0.55}
"""Share of the peak in small numbers / share of the peak in 16 bits, by precision of a table; see above."""


@dataclass(frozen=True, slots=True)
class SmallRate:
    """The rate of products in small numbers on a device.

    Parameters
    ----------
    peak : peak rate [flop/s]
    share : share of the peak / share of the peak in 16 bits, without a table
    table : precision of the tables of measured kernels
    any_layout : whether products read operands of 8 bits along rows and columns, so that none is transposed
    """

    peak: float
    share: float
    table: str
    any_layout: bool


def small_rate(machine: Machine, precision: str) -> SmallRate:
    """The rate of products in a small precision.

    Raises
    ------
    InputError : a machine whose GPUs lack the precision, or are not known
    """
    gpu = _gpu_of(machine)
    if gpu is None:
        raise InputError(
            f"products {precision} on {machine.name}: the kind of its GPU is not known, and with it no peak of 8 or 4 "
            "bits; a named machine, or a topology with a node of GPUs, is accepted"
        )
    peak = gpu.small_peaks.get("float4" if precision == "nvfp4" else "float8")
    if peak is None or gpu.generation not in GENERATIONS[precision]:
        raise InputError(f"products {precision} on {machine.name}: {_accepted(gpu)}")
    table = TABLES[precision]
    return SmallRate(peak, SMALL_SHARES[table], table, gpu.generation != "hopper")


def _gpu_of(machine: Machine) -> Gpu | None:
    kind = node_kind_of(machine)
    return None if kind is None else kind.gpu


def _accepted(gpu: Gpu) -> str:
    """The precisions of products that a GPU computes, as text."""
    names = [name for name, generations in GENERATIONS.items() if gpu.generation in generations]
    if not names:
        return f"{gpu.name} computes no products of 8 or 4 bits: dtype is accepted"
    return f"{gpu.name} does not compute them: accepted are {', '.join(names)} and dtype"
