"""Times of matrix products on a machine by BLAS layout (NN, NT, TN), by which `--gemm-layouts` chooses layouts."""

from typing import TYPE_CHECKING

from quadrille.algorithms.analysis.volumes import Work
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType
from quadrille.algorithms.training.gemm_layouts import GemmTimes
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.topologies.find_machine import find_machine

if TYPE_CHECKING:
    from quadrille.topologies.machines.machine import Machine

ORIGINAL_LAYOUTS = "written"
"""The value of `--gemm-layouts` that leaves every product in the layout in which the schedule has it."""


def gemm_times(machine: "Machine", dtype: DType, ranks: int, threads: int | None = None) -> GemmTimes:
    """The times of products by layout, and of transposes, while all ranks of a device compute [s].

    >>> times = gemm_times(find_machine("perlmutter", gpus=4), "bfloat16", ranks=4)
    >>> times.product("NN", 512, 512, 512) == times.product("TN", 512, 512, 512)  # tables know one layout
    True
    >>> times.transposition(4096, 4096) > times.transposition(64, 64)
    True

    Parameters
    ----------
    dtype : type of the matrix elements
    ranks : number of ranks of the run
    threads : number of BLAS threads of a rank; by default its share of the cores
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


def measured_layout_count(machine: "Machine", dtype: DType) -> int:
    """The number of layouts in which products of a dtype were measured on the machine."""
    return len({row.layout for row in machine.device.gemm if row.dtype == dtype})


def gemm_layouts_machine(name: str, ranks: int) -> "Machine":
    """The machine that `--gemm-layouts` names, with as many GPUs as ranks.

    Raises
    ------
    InputError : an unknown name, or a file that is not a machine file
    """
    return find_machine(name, gpus=ranks)
