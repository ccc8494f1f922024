"""Agarwal's 3D product in Bian's balanced storage: one evenly spread copy of each matrix.

Source: Agarwal et al., "A three-dimensional approach to parallel matrix
multiplication", IBM J. Res. Dev. 39(5), 1995; Bian et al., "Maximizing
Parallelism in Distributed Training for Huge Neural Networks", arXiv 2105.14450.
"""

from algorithms.grid import Grid
from algorithms.matmuls.matmul import Matmul, make_schedule
from algorithms.ops import AllGather, Gemm, ReduceScatter
from algorithms.parts import Part
from algorithms.program import Program
from algorithms.schedule import Schedule, declare
from algorithms.tensors import Tensor


def matmul_3d(problem: Matmul, grid: Grid) -> Schedule:
    """Ops of every rank for C_mn = A_mk @ B_kn on a z × y × x grid.

    The (m/z, k/y) blocks of A are sharded over x and the (m/z, n/x) blocks of
    C over y, by rows; the (k/y, n/x) blocks of B over z, by contiguous pieces.
    All three are gathered, or summed and scattered, along their third axis.
    """
    rows, inner, columns = Part("m", ("z",)), Part("k", ("y",)), Part("n", ("x",))
    rows_over_x, rows_over_y = Part("m", ("z", "x")), Part("m", ("z", "y"))
    tensors = [
        Tensor("A", rows_over_x, inner),
        Tensor("B", inner, columns, sharded_over="z"),
        Tensor("C", rows_over_y, columns),
        Tensor("A whole", rows, inner),
        Tensor("B whole", inner, columns),
        Tensor("C whole", rows, columns),
    ]
    if problem.training:
        tensors += [
            Tensor("dC", rows_over_y, columns),
            Tensor("dC whole", rows, columns),
            Tensor("dA whole", rows, inner),
            Tensor("dA", rows_over_x, inner),
            Tensor("dB whole", inner, columns),
            Tensor("dB", inner, columns, sharded_over="z"),
        ]
    program = _forward() + (_backward(problem) if problem.training else ())
    return make_schedule(problem, grid, "3d", declare(*tensors), program)


def _forward() -> Program:
    return (
        AllGather(name="gather A", axis="x", source="A", into="A whole"),
        AllGather(name="gather B", axis="z", source="B", into="B whole"),
        Gemm(name="multiply C", a="A whole", b="B whole", c="C whole"),
        ReduceScatter(name="scatter C", axis="y", source="C whole", into="C"),
    )


def _backward(problem: Matmul) -> Program:
    again = problem.gathered == "again"
    gather_b = AllGather(name="gather B again", axis="z", source="B", into="B whole", overlap="oag")
    gather_a = AllGather(name="gather A again", axis="x", source="A", into="A whole", overlap="oag")
    return (
        AllGather(name="gather dC", axis="y", source="dC", into="dC whole"),
        *((gather_b,) if again else ()),
        Gemm(name="multiply dA", a="dC whole", b="B whole", c="dA whole", layout="NT"),
        ReduceScatter(name="scatter dA", axis="x", source="dA whole", into="dA", overlap="oar"),
        *((gather_a,) if again else ()),
        Gemm(name="multiply dB", a="A whole", b="dC whole", c="dB whole", layout="TN"),
        ReduceScatter(name="scatter dB", axis="z", source="dB whole", into="dB", overlap="ors"),
    )
