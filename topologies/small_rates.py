"""Rates of products in small numbers: which GPUs have which, their peaks, and the shares of the peaks they reach.

A GPU without a table of measured kernels reaches

    share of the peak in small numbers = share of the peak in 16 bits · `SMALL_SHARES`

The factors are the ratio of both median rates over products of at least 5e11 flop, as training has them, each divided
by its peak, on one GPU; the other GPUs judge it:

    float8, fp8      learnt on H100 0.85    B200 0.84, GB200 0.87, GB300 0.80
    float8, blocks   learnt on H100 0.81    B200 0.88, GB200 0.98, GB300 0.86
    float4           learnt on B200 0.69    GB200 0.72, GB300 0.43 (of a peak that is 1.5 times that of GB200)

MXFP8 has the factor and the tables of FP8 with one scale: training multiplies both with cuBLASLt, at equal peaks.  The
tables of products in blocks are of kernels for inference; with them, steps of Llama 3 8B in MXFP8 are 5 to 8 % faster
(`studies/small_numbers`).

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
TABLES = {"fp8": "fp8", "fp8-delayed": "fp8", "fp8-block": "fp8_block", "mxfp8": "fp8", "nvfp4": "nvfp4"}
"""Precision of a table of measured kernels (`kernel_tables.py`) by precision of products."""
SMALL_SHARES = {"fp8": 0.85, "fp8_block": 0.81, "nvfp4": 0.69}
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
