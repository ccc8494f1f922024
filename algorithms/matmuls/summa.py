"""SUMMA on a z × x mesh of ranks, and the 2.5D algorithm, which runs SUMMA on several such meshes (layers).

A panel is a few columns or rows of a matrix.  In each iteration panels are broadcast, or partial panels reduced.

The three products share one panel dimension k, cut over x as columns and over z as rows:

    NN   C_mn = A_mk B_kn      panels of A are broadcast along x, those of B along z
    NT   C_mk = A_mn B_kn^T    panels of B are broadcast along z, those of C are reduced along x
    TN   C_kn = A_mk^T B_mn    panels of A are broadcast along x, those of C are reduced along z

The gradients of each product are the two others (`matmul.py`).

Source: van de Geijn, Watts, "SUMMA: Scalable Universal Matrix Multiplication Algorithm", Concurrency 9(4), 1997; the
NN, NT, TN triple as in Xu et al., "An Efficient 2D Method for Training Super-Large Deep Learning Models" (Optimus),
arXiv 2104.05343; Solomonik, Demmel, "Communication-optimal parallel 2.5D matrix multiplication and LU factorization
algorithms", Euro-Par 2011.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from quadrille.algorithms.matmuls.matmul import Factors, Form, Matmul, make_schedule
from quadrille.algorithms.schedule.expressions import PanelOwner
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Broadcast, Gemm, OverlapName, Pointwise, Reduce
from quadrille.algorithms.schedule.parts import Panel, Part
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor


@dataclass(frozen=True, slots=True)
class MovedPanels:
    """A matrix that moves panel by panel: broadcast by the panels' owners, or reduced onto them.

    Parameters
    ----------
    op : name of the broadcast or reduce
    matrix : tensor with the whole block
    window : tensor that holds one panel
    overlap : overlap that may release the op
    """

    op: str
    matrix: str
    window: str
    overlap: OverlapName | None = None

    def send(self, panel: Panel, axis: Axis) -> Broadcast:
        """The broadcast of the current panel from its owner along an axis."""
        owner = PanelOwner(panel, axis)
        return Broadcast(
            name=self.op, axis=axis, root=owner, source=self.matrix, into=self.window, overlap=self.overlap
        )

    def collect(self, panel: Panel, axis: Axis) -> Reduce:
        """The reduction of the current panel onto its owner along an axis."""
        owner = PanelOwner(panel, axis)
        return Reduce(name=self.op, axis=axis, root=owner, source=self.window, into=self.matrix, overlap=self.overlap)


def product_nn(panel: Panel, zero: str, multiply: str, a: MovedPanels, b: MovedPanels, c: str) -> Program:
    """Returns the program of C = A B, where k is contracted.

    Parameters
    ----------
    panel : panels of k
    zero, multiply : names of the op that zeroes C and of the product
    a, b : operands that are broadcast panel by panel
    c : tensor of the result
    """
    body: Program = (
        a.send(panel, "x"),
        b.send(panel, "z"),
        Gemm(name=multiply, a=a.window, b=b.window, c=c, accumulate=True),
    )
    return (Pointwise(name=zero, function="zero", into=c), Repeat(panel.loop, panel, body))


def product_nt(panel: Panel, multiply: str, a: str, b: MovedPanels, c: MovedPanels) -> Program:
    """Returns the program of C = A B^T, where k is the column dimension of C.

    Parameters
    ----------
    panel : panels of k
    multiply : name of the product
    a : operand that stays in place
    b : operand that is broadcast panel by panel
    c : result that is reduced panel by panel
    """
    body: Program = (
        b.send(panel, "z"),
        Gemm(name=multiply, a=a, b=b.window, c=c.window, layout="NT"),
        c.collect(panel, "x"),
    )
    return (Repeat(panel.loop, panel, body),)


def product_tn(panel: Panel, multiply: str, a: MovedPanels, b: str, c: MovedPanels) -> Program:
    """Returns the program of C = A^T B, where k is the row dimension of C.

    Parameters
    ----------
    panel : panels of k
    multiply : name of the product
    a : operand that is broadcast panel by panel
    b : operand that stays in place
    c : result that is reduced panel by panel
    """
    body: Program = (
        a.send(panel, "x"),
        Gemm(name=multiply, a=a.window, b=b, c=c.window, layout="TN"),
        c.collect(panel, "z"),
    )
    return (Repeat(panel.loop, panel, body),)


def summa(problem: Matmul, grid: Grid) -> Schedule:
    """Returns the schedule of C_mn = A_mk @ B_kn, A_km^T @ B_kn or A_mk @ B_nk^T, panel by panel.

    z cuts the rows of every matrix, x the columns.  Panels run over the dimension that the first and second matrix of
    the form share: k, or m (A^T B), or n (A B^T).
    """
    form = problem.form
    panel = Panel(form.inner, problem.panel, ("x", "z"), loop="p")
    matrices = [on_mesh(name, form) for name in (*problem.inputs, *problem.outputs)]
    program = panelled([form.factors(product) for product in problem.outputs], panel)
    return make_schedule(problem, grid, "summa", declare(*matrices, *panels_of(matrices, panel)), program)


def on_mesh(name: str, form: Form, held_at: tuple[Axis, int] | None = None) -> Tensor:
    """A matrix on the mesh: rows cut over z, columns over x."""
    rows, columns = form.shape(name)
    return Tensor(name, Part(rows, ("z",)), Part(columns, ("x",)), held_at=held_at)


def panels_of(matrices: Iterable[Tensor], panel: Panel) -> list[Tensor]:
    """Panel tensors of the matrices that have the panel dimension."""
    window = Part(panel.dimension, panel=panel)
    panels = []
    for matrix in matrices:
        rows, columns = (
            window if part.dimension == panel.dimension else part for part in (matrix.rows, matrix.columns)
        )
        if window in (rows, columns):
            panels.append(Tensor(f"{matrix.name} panel", rows, columns))
    return panels


def panelled(
    products: Iterable[Factors], panel: Panel, blocks: Mapping[str, str] | None = None, sent: Iterable[str] = ()
) -> Program:
    """Returns the program of several products, one after the other, each panel by panel.

    Parameters
    ----------
    products : the products
    panel : panels of the shared dimension
    blocks : block tensors of matrices, where they have other names than the matrices
    sent : matrices whose panels were sent before
    """
    program: Program = ()
    before = set(sent)
    for of in products:
        program += _panelled(of, panel, blocks or {}, before)
        before |= {of.left, of.right}
    return program


def _panelled(of: Factors, panel: Panel, blocks: Mapping[str, str], sent: Collection[str]) -> Program:
    def block(name: str) -> str:
        return blocks.get(name, name)

    def send(name: str) -> MovedPanels:
        again = " again" if name in sent else ""
        return MovedPanels(f"send {name} panel{again}", block(name), f"{name} panel")

    product, multiply = of.product, f"multiply {of.product}"
    summed = MovedPanels(f"sum {product} panel", block(product), f"{product} panel")
    match of.layout:
        case "NN":
            return product_nn(panel, f"zero {product}", multiply, send(of.left), send(of.right), block(product))
        case "NT":
            return product_nt(panel, multiply, block(of.left), send(of.right), summed)
        case "TN":
            return product_tn(panel, multiply, send(of.left), block(of.right), summed)


LAYER: Axis = "y"
FIRST_LAYER = (LAYER, 0)


def matmul_25d(problem: Matmul, grid: Grid) -> Schedule:
    """Returns the schedule of C_mn = A_mk @ B_kn on c layers of a q × q mesh.

    Layer y=0 stores one copy of every matrix.  A and B (and dC) are copied to the other layers, each layer processes
    its range of the panels of k, and the results are reduced over y onto layer 0.
    """
    form, panel = problem.form, Panel("k", problem.panel, ("x", "z"), loop="p", shared_over=LAYER)
    inputs, outputs = problem.inputs, problem.outputs
    blocks = {name: f"{name} copy" for name in inputs} | {name: f"{name} layer" for name in outputs}
    stored = [on_mesh(name, form, FIRST_LAYER) for name in (*inputs, *outputs)]
    in_layers = [replace(tensor, name=blocks[tensor.name], held_at=None) for tensor in stored]
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
