"""The 2.5D product: SUMMA on each of c layers, each with 1/c of the panels, summed over the layers.

Source: Solomonik, Demmel, "Communication-optimal parallel 2.5D matrix
multiplication and LU factorization algorithms", Euro-Par 2011.
"""

from dataclasses import replace

from quadrille.algorithms.matmuls.matmul import Matmul, make_schedule
from quadrille.algorithms.matmuls.summa import on_mesh, panelled, panels_of
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Broadcast, Pointwise, Reduce
from quadrille.algorithms.schedule.parts import Panel
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.schedule import Schedule, declare

LAYER: Axis = "y"
FIRST_LAYER = (LAYER, 0)


def matmul_25d(problem: Matmul, grid: Grid) -> Schedule:
    """Ops of every rank for C_mn = A_mk @ B_kn on c layers of a q × q mesh.

    One copy of every matrix lives on layer y=0.  A and B (and dC) are copied
    to the other layers, each layer takes its run of the panels of k, and the
    layers' results are summed over y onto layer 0.
    """
    form, panel = problem.form, Panel("k", problem.panel, ("x", "z"), loop="p", shared_over=LAYER)
    inputs, outputs = problem.inputs, problem.outputs
    blocks = {name: f"{name} copy" for name in inputs} | {name: f"{name} layer" for name in outputs}
    stored = [on_mesh(name, form, FIRST_LAYER) for name in (*inputs, *outputs)]
    in_layers = [replace(one, name=blocks[one.name], held_at=None) for one in stored]
    program = (*_copy("A"), *_copy("B"), *panelled([form.factors("C")], panel, blocks), *_sum("C"))
    if problem.training:
        program += (
            *_copy("dC"),
            Pointwise(name="zero dA", function="zero", into="dA layer"),
            Pointwise(name="zero dB", function="zero", into="dB layer"),
            *panelled([form.factors("dA"), form.factors("dB")], panel, blocks, sent=("A", "B")),
            *_sum("dA"),
            *_sum("dB"),
        )
    return make_schedule(problem, grid, "2.5d", declare(*stored, *in_layers, *panels_of(stored, panel)), program)


def _copy(matrix: str) -> Program:
    return (Broadcast(name=f"copy {matrix}", axis=LAYER, root=0, source=matrix, into=f"{matrix} copy"),)


def _sum(matrix: str) -> Program:
    return (Reduce(name=f"sum {matrix}", axis=LAYER, root=0, source=f"{matrix} layer", into=matrix),)
