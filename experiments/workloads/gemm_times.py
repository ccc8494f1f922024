"""Times of matrix products by GEMM layout on a machine, by which `--gemm-layouts` chooses."""

from typing import TYPE_CHECKING

from quadrille.algorithms.analysis.volumes import Work
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType
from quadrille.algorithms.training.gemm_layouts import GemmTimes
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.topologies.find_machine import find_machine

if TYPE_CHECKING:
    from quadrille.topologies.machines.machine import Machine

WRITTEN = "written"
"""The word for products in their original layouts: NN, NT and TN."""


def times_on(machine: "Machine", dtype: DType, ranks: int, threads: int | None = None) -> GemmTimes:
    """Seconds of products by layout, and of transposes, where so many ranks are busy.

    >>> times = times_on(find_machine("perlmutter", gpus=4), "bfloat16", ranks=4)
    >>> times.product("NN", 512, 512, 512) == times.product("TN", 512, 512, 512)
    True
    >>> times.transposition(4096, 4096) > times.transposition(64, 64)
    True

    Parameters
    ----------
    threads : BLAS threads of a rank, by default its share of the cores
    """
    from quadrille.simulator.machine.compute_model import ComputeModel

    device = fullest_device(machine, ranks)
    model = ComputeModel(machine, dtype, threads or device.threads, min(device.ranks, device.cores))

    def product(layout: GemmLayout, m: int, k: int, n: int) -> float:
        return model.gemm(m, k, n, layout).seconds

    def transposition(rows: int, columns: int) -> float:
        touched = 2 * rows * columns * ITEM_BYTES[dtype]
        return model.kernel(Work(0, 0, touched), "transpose").seconds

    return GemmTimes(product, transposition)


def layouts_known(machine: "Machine", dtype: DType) -> int:
    """The layouts in which products of a dtype were measured on the machine."""
    return len({row.layout for row in machine.device.gemm if row.dtype == dtype})


def machine_for_layouts(name: str, ranks: int) -> "Machine":
    """The machine that `--gemm-layouts` names.

    Raises
    ------
    InputError : an unknown name, or a file that is not a machine file
    """
    return find_machine(name, gpus=ranks)
