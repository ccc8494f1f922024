"""SUMMA on a z × x mesh: panels are broadcast, or partial panels reduced; no block is transposed across the mesh.

The three products share one panel dimension k, cut over x as columns and over z as rows:

    NN   C_mn = A_mk B_kn      panels of A go along x, those of B along z
    NT   C_mk = A_mn B_kn^T    panels of B go along z, those of C are summed along x
    TN   C_kn = A_mk^T B_mn    panels of A go along x, those of C are summed along z

Each one's gradients are the other two.

Source: van de Geijn, Watts, "SUMMA: Scalable Universal Matrix Multiplication
Algorithm", Concurrency 9(4), 1997; the NN, NT, TN triple as in Xu et al.,
"An Efficient 2D Method for Training Super-Large Deep Learning Models" (Optimus), arXiv 2104.05343.
"""

from dataclasses import dataclass

from algorithms.grid import Axis, Grid
from algorithms.matmuls.matmul import Matmul, make_schedule
from algorithms.numbers import Owner
from algorithms.ops import Broadcast, Gemm, OverlapName, Pointwise, Reduce
from algorithms.parts import Panel, Part
from algorithms.program import Program, Repeat
from algorithms.schedule import Schedule, declare
from algorithms.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Moved:
    """A matrix that moves panel by panel: broadcast by the panels' owners, or summed onto them.

    Parameters
    ----------
    op : the name of the broadcast or reduce
    matrix : the whole block
    window : the tensor that holds one panel
    overlap : which overlap may release the op
    """

    op: str
    matrix: str
    window: str
    overlap: OverlapName | None = None

    def send(self, panel: Panel, axis: Axis) -> Broadcast:
        owner = Owner(panel, axis)
        return Broadcast(
            name=self.op, axis=axis, root=owner, source=self.matrix, into=self.window, overlap=self.overlap
        )

    def collect(self, panel: Panel, axis: Axis) -> Reduce:
        owner = Owner(panel, axis)
        return Reduce(name=self.op, axis=axis, root=owner, source=self.window, into=self.matrix, overlap=self.overlap)


def product_nn(panel: Panel, zero: str, multiply: str, a: Moved, b: Moved, c: str) -> Program:
    """C = A B, k being summed over."""
    body: Program = (
        a.send(panel, "x"),
        b.send(panel, "z"),
        Gemm(name=multiply, a=a.window, b=b.window, c=c, accumulate=True),
    )
    return (Pointwise(name=zero, function="zero", into=c), Repeat(panel.loop, panel, body))


def product_nt(panel: Panel, multiply: str, a: str, b: Moved, c: Moved) -> Program:
    """C = A B^T, k being the columns of C."""
    body: Program = (
        b.send(panel, "z"),
        Gemm(name=multiply, a=a, b=b.window, c=c.window, layout="NT"),
        c.collect(panel, "x"),
    )
    return (Repeat(panel.loop, panel, body),)


def product_tn(panel: Panel, multiply: str, a: Moved, b: str, c: Moved) -> Program:
    """C = A^T B, k being the rows of C."""
    body: Program = (
        a.send(panel, "x"),
        Gemm(name=multiply, a=a.window, b=b, c=c.window, layout="TN"),
        c.collect(panel, "z"),
    )
    return (Repeat(panel.loop, panel, body),)


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
        Tensor("A panel", Part("m", ("z",)), window),
        Tensor("B panel", window, Part("n", ("x",))),
    ]


def gradient_panel_tensors(panel: Panel) -> list[Tensor]:
    """The partial panels of dA and dB that are reduced."""
    window = Part("k", panel=panel)
    return [
        Tensor("dA panel", Part("m", ("z",)), window),
        Tensor("dB panel", window, Part("n", ("x",))),
    ]


def multiply_panels(panel: Panel, a: str = "A", b: str = "B", c: str = "C") -> Program:
    """C = A B: each panel of A goes along x, each of B along z, and their product is added."""
    a_panel, b_panel = Moved("send A panel", a, "A panel"), Moved("send B panel", b, "B panel")
    return product_nn(panel, "zero C", "multiply C", a_panel, b_panel, c)


def gradient_panels(
    panel: Panel, a: str = "A", b: str = "B", dc: str = "dC", da: str = "dA", db: str = "dB"
) -> Program:
    """Both gradients, dA = dC B^T and dB = A^T dC: one operand's panels are broadcast, the result's reduced."""
    b_again, da_panel = Moved("send B panel again", b, "B panel"), Moved("sum dA panel", da, "dA panel")
    a_again, db_panel = Moved("send A panel again", a, "A panel"), Moved("sum dB panel", db, "dB panel")
    return (
        *product_nt(panel, "multiply dA", dc, b_again, da_panel),
        *product_tn(panel, "multiply dB", a_again, dc, db_panel),
    )
