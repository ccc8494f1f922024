"""The peak of the precision in which a training step multiplies: the denominator of the MFU and of other shares.

With `--products` of 8 or 4 bits it is the data sheet's peak of that precision, though attention and the logits run in
16 bits: an MFU of 100 % cannot be reached, and two steps compare only with equal precisions.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a rank of a run imports no topologies
    from quadrille.algorithms.schedule.ops import Products
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.topologies.machines.machine import Machine


def products_of(experiment: "Experiment") -> "Products":
    """The precision of the products of linear layers of an experiment: `dtype`, or a small one."""
    products: Products = getattr(experiment.problem, "products", "dtype")  # a GPT has it; a matmul imports no GPT
    return products


def product_peak(experiment: "Experiment", machine: "Machine", threads: int) -> float | None:
    """The peak rate of a rank's products [flop/s]; None if the machine has none for the dtype.

    Parameters
    ----------
    threads : BLAS threads of a rank

    Raises
    ------
    InputError : a machine that lacks a small precision
    """
    products = products_of(experiment)
    if products == "dtype":
        return machine.device.peak(experiment.dtype, threads)
    from quadrille.topologies.small_rates import small_rate  # steps in 16 and 32 bits need no small peaks

    return small_rate(machine, products).peak


def check_products(experiment: "Experiment", machine: "Machine") -> None:
    """Checks that a machine computes the products of an experiment in their precision.

    Raises
    ------
    InputError : a machine that lacks a small precision
    """
    product_peak(experiment, machine, 1)
