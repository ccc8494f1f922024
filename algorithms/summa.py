"""SUMMA on a z × x mesh: panels are broadcast, or partial panels reduced; no block is transposed across the mesh.

Source: van de Geijn, Watts, "SUMMA: Scalable Universal Matrix Multiplication
Algorithm", Concurrency 9(4), 1997; the NN, NT, TN triple as in Xu et al.,
"An Efficient 2D Method for Training Super-Large Deep Learning Models" (Optimus), arXiv 2104.05343.
"""

from algorithms.grid import Axis, Grid
from algorithms.matmul import Matmul, make_schedule
from algorithms.ops import Broadcast, Gemm, Pointwise, Reduce
from algorithms.parts import Owner, Panel, Part
from algorithms.schedule import Program, Repeat, Schedule, declare
from algorithms.tensors import Tensor


def summa(problem: Matmul, grid: Grid) -> Schedule:
    """Ops of every rank for C_mn = A_mk @ B_kn, panel by panel of k.

    A and C are cut (m over z, k or n over x), B (k over z, n over x).
    """
    panel = Panel("k", problem.panel, ("x", "z"), loop="p")
    tensors = [*mesh_inputs(problem), *panel_tensors(panel), Tensor("C", Part("m", ("z",)), Part("n", ("x",)))]
    program: Program = multiply_panels(panel)
    if problem.training:
        tensors += [*mesh_gradients(), *gradient_panel_tensors(panel)]
        program += gradient_panels(panel)
    return make_schedule(problem, grid, "summa", declare(*tensors), program)


def mesh_inputs(problem: Matmul, held_at: tuple[Axis, int] | None = None) -> list[Tensor]:
    """A, B and dC on the mesh: rows over z, columns over x."""
    rows, columns = Part("m", ("z",)), Part("n", ("x",))
    inputs = [
        Tensor("A", rows, Part("k", ("x",)), held_at=held_at),
        Tensor("B", Part("k", ("z",)), columns, held_at=held_at),
    ]
    return inputs + ([Tensor("dC", rows, columns, held_at=held_at)] if problem.training else [])


def mesh_gradients() -> list[Tensor]:
    """The gradients: dA laid out as A, dB as B."""
    return [
        Tensor("dA", Part("m", ("z",)), Part("k", ("x",))),
        Tensor("dB", Part("k", ("z",)), Part("n", ("x",))),
    ]


def panel_tensors(panel: Panel) -> list[Tensor]:
    """The panels of A and B that are broadcast."""
    window = Part("k", panel=panel)
    return [
        Tensor("A panel", Part("m", ("z",)), window, loop=panel.loop),
        Tensor("B panel", window, Part("n", ("x",)), loop=panel.loop),
    ]


def gradient_panel_tensors(panel: Panel) -> list[Tensor]:
    """The partial panels of dA and dB that are reduced."""
    window = Part("k", panel=panel)
    return [
        Tensor("dA panel", Part("m", ("z",)), window, loop=panel.loop),
        Tensor("dB panel", window, Part("n", ("x",)), loop=panel.loop),
    ]


def multiply_panels(panel: Panel, a: str = "A", b: str = "B", c: str = "C") -> Program:
    """C = A B: each panel of A goes along x, each of B along z, and their product is added."""
    body: Program = (
        Broadcast(name="send A panel", axis="x", root=Owner(panel, "x"), source=a, into="A panel"),
        Broadcast(name="send B panel", axis="z", root=Owner(panel, "z"), source=b, into="B panel"),
        Gemm(name="multiply C", a="A panel", b="B panel", c=c, accumulate=True),
    )
    return (Pointwise(name="zero C", function="zero", into=c), Repeat(panel.loop, panel, body))


def gradient_panels(
    panel: Panel, a: str = "A", b: str = "B", dc: str = "dC", da: str = "dA", db: str = "dB"
) -> Program:
    """Both gradients, dA = dC B^T and dB = A^T dC: one operand's panels are broadcast, the result's reduced."""
    towards_da: Program = (
        Broadcast(name="send B panel again", axis="z", root=Owner(panel, "z"), source=b, into="B panel"),
        Gemm(name="multiply dA", a=dc, b="B panel", c="dA panel", layout="NT"),
        Reduce(name="sum dA panel", axis="x", root=Owner(panel, "x"), source="dA panel", into=da),
    )
    towards_db: Program = (
        Broadcast(name="send A panel again", axis="x", root=Owner(panel, "x"), source=a, into="A panel"),
        Gemm(name="multiply dB", a="A panel", b=dc, c="dB panel", layout="TN"),
        Reduce(name="sum dB panel", axis="z", root=Owner(panel, "z"), source="dB panel", into=db),
    )
    return (Repeat(panel.loop, panel, towards_da), Repeat(panel.loop, panel, towards_db))
