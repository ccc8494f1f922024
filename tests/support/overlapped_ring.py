"""A ring all-reduce that overlaps a product of matrices."""

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Gemm
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from tests.support.toy_machines import program_of

MEMBERS, ROWS = 3, 60
WHOLE = Part("m")


def ring_beside_product(inner, after=()):
    """A schedule of a ring over x and a product with this inner dimension; the product waits for the ops in `after`."""
    tensors = [
        Tensor("S", WHOLE, Part("n")),
        Tensor("A", Part("k"), Part("l")),
        Tensor("B", Part("l"), Part("k")),
        Tensor("C", Part("k"), Part("k")),
    ]
    role = Role((AllReduce(name="sum", axis="x", buffer="S"), Gemm(name="multiply", a="A", b="B", c="C", after=after)))
    return program_of(Grid(x=MEMBERS), tensors, roles=(role,), m=6, n=1000, k=ROWS, l=inner)
