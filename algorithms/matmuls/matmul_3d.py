"""Agarwal's 3D algorithm with Bian's balanced storage: one evenly distributed copy of each matrix.

Source: Agarwal et al., "A three-dimensional approach to parallel matrix
multiplication", IBM J. Res. Dev. 39(5), 1995; Bian et al., "Maximizing
Parallelism in Distributed Training for Huge Neural Networks", arXiv 2105.14450.
"""

from dataclasses import replace

from quadrille.algorithms.matmuls.matmul import MATRIX_OF, Dimension, Form, Letter, Matmul, Product, make_schedule
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import AllGather, Gemm, OverlapName, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.schedule import Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor

CUT: dict[Dimension, Axis] = {"m": "z", "k": "y", "n": "x"}
"""Axis that cuts a dimension."""
SHARD_AXIS: dict[Letter, Axis] = {"A": "x", "B": "z", "C": "y"}
"""Axis that cuts neither dimension of a matrix and shards its blocks."""


def matmul_3d(problem: Matmul, grid: Grid) -> Schedule:
    """Returns the schedule of C_mn = A_mk @ B_kn, A_km^T @ B_kn or A_mk @ B_nk^T on a z × y × x grid.

    The (m/z, k/y) blocks of A are sharded over x, the (k/y, n/x) blocks of B over z, and the (m/z, n/x) blocks of C
    over y.  Two are sharded by rows; the second matrix of the form (B, or C for A^T B) is sharded in contiguous ranges,
    like weights. All three are gathered, or reduce-scattered, along their third axis.
    """
    form, training = problem.form, problem.training
    names = ("A", "B", "C", "dC", "dA", "dB") if training else ("A", "B", "C")
    tensors = [*(_stored(name, form) for name in names), *(_whole(name, form) for name in names)]
    program = (*_gather("A"), *_gather("B"), *_multiply("C", form), *(_backward(problem) if training else ()))
    return make_schedule(problem, grid, "3d", declare(*tensors), program)


def _whole(name: str, form: Form) -> Tensor:
    """Block of a matrix that a product reads or writes."""
    rows, columns = (Part(dimension, (CUT[dimension],)) for dimension in form.shape(name))
    return Tensor(f"{name} whole", rows, columns)


def _stored(name: str, form: Form) -> Tensor:
    """The block, sharded over the third axis."""
    whole, axis = replace(_whole(name, form), name=name), SHARD_AXIS[MATRIX_OF[name]]
    if MATRIX_OF[name] == form.second:
        return replace(whole, sharded_over=axis)
    return replace(whole, rows=replace(whole.rows, axes=(*whole.rows.axes, axis)))


def _gather(name: str, suffix: str = "", overlap: OverlapName | None = None) -> Program:
    op = f"gather {name}{suffix}"
    return (AllGather(name=op, axis=SHARD_AXIS[MATRIX_OF[name]], source=name, into=f"{name} whole", overlap=overlap),)


def _multiply(product: Product, form: Form, overlap: OverlapName | None = None) -> Program:
    """A product of gathered blocks, reduce-scattered."""
    of, whole, axis = form.factors(product), f"{product} whole", SHARD_AXIS[MATRIX_OF[product]]
    return (
        Gemm(name=f"multiply {product}", a=f"{of.left} whole", b=f"{of.right} whole", c=whole, layout=of.layout),
        ReduceScatter(name=f"scatter {product}", axis=axis, source=whole, into=product, overlap=overlap),
    )


def _backward(problem: Matmul) -> Program:
    again = problem.gathered == "again"
    return (
        *_gather("dC"),
        *(_gather("B", " again", "oag") if again else ()),
        *_multiply("dA", problem.form, "oar"),
        *(_gather("A", " again", "oag") if again else ()),
        *_multiply("dB", problem.form, "ors"),
    )
