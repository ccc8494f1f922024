"""The 2.5D product: SUMMA on each of c layers, each with 1/c of the panels, summed over the layers.

Source: Solomonik, Demmel, "Communication-optimal parallel 2.5D matrix
multiplication and LU factorization algorithms", Euro-Par 2011.
"""

from algorithms.grid import Axis, Grid
from algorithms.matmuls.matmul import Matmul, make_schedule
from algorithms.matmuls.summa import (
    gradient_panel_tensors,
    gradient_panels,
    mesh_inputs,
    multiply_panels,
    panel_tensors,
)
from algorithms.ops import Broadcast, Pointwise, Reduce
from algorithms.parts import Panel, Part
from algorithms.program import Program
from algorithms.schedule import Schedule, declare
from algorithms.tensors import Tensor

LAYER: Axis = "y"
FIRST_LAYER = (LAYER, 0)


def matmul_25d(problem: Matmul, grid: Grid) -> Schedule:
    """Ops of every rank for C_mn = A_mk @ B_kn on c layers of a q × q mesh.

    One copy of every matrix lives on layer y=0.  A and B (and dC) are copied
    to the other layers, each layer takes its run of the panels of k, and the
    layers' results are summed over y onto layer 0.
    """
    panel = Panel("k", problem.panel, ("x", "z"), loop="p", shared_over=LAYER)
    rows, columns = Part("m", ("z",)), Part("n", ("x",))
    inner_over_x, inner_over_z = Part("k", ("x",)), Part("k", ("z",))
    tensors = [
        *mesh_inputs(problem, FIRST_LAYER),
        Tensor("A copy", rows, inner_over_x),
        Tensor("B copy", inner_over_z, columns),
        *panel_tensors(panel),
        Tensor("C layer", rows, columns),
        Tensor("C", rows, columns, held_at=FIRST_LAYER),
    ]
    program = _copy("A") + _copy("B") + multiply_panels(panel, "A copy", "B copy", "C layer") + _sum("C")
    if problem.training:
        tensors += [
            Tensor("dC copy", rows, columns),
            *gradient_panel_tensors(panel),
            Tensor("dA layer", rows, inner_over_x),
            Tensor("dB layer", inner_over_z, columns),
            Tensor("dA", rows, inner_over_x, held_at=FIRST_LAYER),
            Tensor("dB", inner_over_z, columns, held_at=FIRST_LAYER),
        ]
        program += (
            *_copy("dC"),
            Pointwise(name="zero dA", function="zero", into="dA layer"),
            Pointwise(name="zero dB", function="zero", into="dB layer"),
            *gradient_panels(panel, "A copy", "B copy", "dC copy", "dA layer", "dB layer"),
            *_sum("dA"),
            *_sum("dB"),
        )
    return make_schedule(problem, grid, "2.5d", declare(*tensors), program)


def _copy(matrix: str) -> Program:
    return (Broadcast(name=f"copy {matrix}", axis=LAYER, root=0, source=matrix, into=f"{matrix} copy"),)


def _sum(matrix: str) -> Program:
    return (Reduce(name=f"sum {matrix}", axis=LAYER, root=0, source=f"{matrix} layer", into=matrix),)
