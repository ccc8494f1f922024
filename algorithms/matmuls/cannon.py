"""Cannon's algorithm on a q × q mesh: blocks of A shift along x, blocks of B along z.

Source: Cannon, "A cellular computer to implement the Kalman filter algorithm", PhD thesis, Montana State University,
1969.
"""

from quadrille.algorithms.matmuls.matmul import Matmul, make_schedule
from quadrille.algorithms.matmuls.summa import on_mesh, panelled, panels_of
from quadrille.algorithms.schedule.expressions import Affine
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Gemm, Op, Pointwise, Shift
from quadrille.algorithms.schedule.parts import Panel, Part
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor

LOOP = "t"


def cannon(problem: Matmul, grid: Grid) -> Schedule:
    """Returns the schedule of C_mn = A_mk @ B_kn in q iterations.

    The rank at (z, x) first receives block z + x of k, of A along x and of B along z.  It then multiplies and forwards
    both blocks, q - 1 times, and multiplies once more.  The gradients use SUMMA with whole blocks as panels.
    """
    form, rows, columns = problem.form, Part("m", ("z",)), Part("n", ("x",))
    matrices = [on_mesh(name, form) for name in (*problem.inputs, *problem.outputs)]
    tensors = [
        *matrices,
        Tensor("A turning", rows, Part("k", ("x",), rotated_by=("z", LOOP)), copies=((LOOP, 2),)),
        Tensor("B turning", Part("k", ("z",), rotated_by=("x", LOOP)), columns, copies=((LOOP, 2),)),
    ]
    program = _iterations(grid.x)
    if problem.training:
        panel = Panel("k", problem.k, ("x", "z"), loop="p")
        tensors += panels_of(matrices, panel)
        program += panelled([form.factors("dA"), form.factors("dB")], panel, sent=("A", "B"))
    return make_schedule(problem, grid, "cannon", declare(*tensors), program)


def _iterations(iterations: int) -> Program:
    multiply: Op = Gemm(name="multiply C", a="A turning", b="B turning", c="C", accumulate=True)
    pass_on: Program = (
        multiply,
        Shift(name="turn A", axis="x", distance=-1, source="A turning", into="A turning", iteration_offset=1),
        Shift(name="turn B", axis="z", distance=-1, source="B turning", into="B turning", iteration_offset=1),
    )
    return (
        Shift(name="skew A", axis="x", distance=Affine("z", -1), source="A", into="A turning"),
        Shift(name="skew B", axis="z", distance=Affine("x", -1), source="B", into="B turning"),
        Pointwise(name="zero C", function="zero", into="C"),
        Repeat(LOOP, iterations - 1, pass_on),
        Repeat(LOOP, 1, (multiply,), first=iterations - 1),
    )
