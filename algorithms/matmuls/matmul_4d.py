"""AxoNN's 4D algorithm: activations cut over two axes and replicated, weights sharded over z; Megatron's 1D algorithms
are special cases.

Source: Singh et al., "A 4D Hybrid Algorithm to Scale Parallel Training to Thousands of GPUs", arXiv 2305.13525; Shoeybi
et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", arXiv 1909.08053,
section 3.
"""

from quadrille.algorithms.matmuls.matmul import Matmul, make_schedule
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, Gemm, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.schedule import Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor


def matmul_4d(problem: Matmul, grid: Grid, name: str = "4d") -> Schedule:
    """Returns the schedule of C_mn = A_mk @ B_kn on a data × z × y × x grid.

    data, then z, cuts m; y cuts k; x cuts n.  Each (k/y, n/x) block of B is stored as z shards and gathered just before
    use.
    """
    rows, inner, columns = Part("m", ("data", "z")), Part("k", ("y",)), Part("n", ("x",))
    tensors = [
        Tensor("A", rows, inner),
        Tensor("B", inner, columns, sharded_over="z"),
        Tensor("C", rows, columns),
        Tensor("B whole", inner, columns),
    ]
    if problem.training:
        tensors += [
            Tensor("dC", rows, columns),
            Tensor("dA", rows, inner),
            Tensor("dB whole", inner, columns),
            Tensor("dB", inner, columns, sharded_over="z"),
        ]
    program = _forward() + (_backward(problem) if problem.training else ())
    return make_schedule(problem, grid, name, declare(*tensors), program)


def _forward() -> Program:
    return (
        AllGather(name="gather B", axis="z", source="B", into="B whole"),
        Gemm(name="multiply C", a="A", b="B whole", c="C"),
        AllReduce(name="sum C", axis="y", buffer="C"),
    )


def _backward(problem: Matmul) -> Program:
    again = AllGather(name="gather B again", axis="z", source="B", into="B whole", overlap="oag")
    return (
        *((again,) if problem.gathered == "again" else ()),
        Gemm(name="multiply dA", a="dC", b="B whole", c="dA", layout="NT"),
        AllReduce(name="sum dA", axis="x", buffer="dA", overlap="oar"),
        Gemm(name="multiply dB", a="A", b="dC", c="dB whole", layout="TN"),
        ReduceScatter(name="scatter dB", axis="z", source="dB whole", into="dB", overlap="ors"),
        AllReduce(name="sum dB", axis="data", buffer="dB"),
    )


def column(problem: Matmul, grid: Grid) -> Schedule:
    """Column-parallel product: A replicated, B and C cut over n; dA is all-reduced over x in the backward pass."""
    return matmul_4d(problem, grid, "1d-column")


def row(problem: Matmul, grid: Grid) -> Schedule:
    """Row-parallel product: A and B cut over k, C all-reduced over y; no communication in the backward pass."""
    return matmul_4d(problem, grid, "1d-row")
