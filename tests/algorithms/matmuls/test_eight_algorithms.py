"""Bian's eight algorithms, arXiv 2105.14450: the ops of each in order, and the words that a rank of a cube receives.

On p³ ranks a gathered, or summed and scattered, matrix of S elements moves (p - 1) / p³ S words to
each rank.  X, W and Y of the paper, the directions of the two operands and of the result, are x, z and y.
"""

import numpy as np
import pytest

from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.analysis.volumes import gemm_sizes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Communication, Gemm, Kernel, Pointwise, kind
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import in_sequence, ops
from quadrille.algorithms.schedule.schedule import Role, Schedule, all_ops, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.normalisation import Norm, normalisation
from quadrille.algorithms.training.scheme import Linear
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.training.vector_parameters import bias_of
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from tests.support.products import assembled

P = 3
CUBE = Grid(z=P, y=P, x=P)
M, K, N = 2 * P**2, 3 * P**2, 5 * P**2
MK, KN, MN = M * K, K * N, M * N
AB = [("all_gather", "A", "x", MK), ("all_gather", "B", "z", KN)]
PRODUCTS = {
    "1: C = A B": ("none", "forward", [*AB, ("NN", "A", "B"), ("reduce_scatter", "C", "y", MN)]),
    "2: the gradients of 1, by 3 and 5": (
        "none",
        "backward",
        [
            ("all_gather", "dC", "y", MN),
            ("all_gather", "B", "z", KN),
            ("NT", "dC", "B"),
            ("reduce_scatter", "dA", "x", MK),
            ("all_gather", "A", "x", MK),
            ("TN", "A", "dC"),
            ("reduce_scatter", "dB", "z", KN),
        ],
    ),
    "3: C = A B^T": ("b", "forward", [*AB, ("NT", "A", "B"), ("reduce_scatter", "C", "y", MN)]),
    "4: the gradients of 3, by 1 and 5": (
        "b",
        "backward",
        [
            ("all_gather", "dC", "y", MN),
            ("all_gather", "B", "z", KN),
            ("NN", "dC", "B"),
            ("reduce_scatter", "dA", "x", MK),
            ("all_gather", "A", "x", MK),
            ("TN", "dC", "A"),
            ("reduce_scatter", "dB", "z", KN),
        ],
    ),
    "5: C = A^T B": ("a", "forward", [*AB, ("TN", "A", "B"), ("reduce_scatter", "C", "y", MN)]),
    "6: the gradients of 5, by 3 and 1": (
        "a",
        "backward",
        [
            ("all_gather", "dC", "y", MN),
            ("all_gather", "B", "z", KN),
            ("NT", "B", "dC"),
            ("reduce_scatter", "dA", "x", MK),
            ("all_gather", "A", "x", MK),
            ("NN", "A", "dC"),
            ("reduce_scatter", "dB", "z", KN),
        ],
    ),
}


def received(op, schedule, rank):
    """Words that a rank receives in an op."""
    exchanges = traffic(op, schedule, schedule.coordinates(rank), Choices())
    return sum(exchange.received for exchange in exchanges.exchanges()) if exchanges else 0


def said(op, schedule):
    """An op as the table above has it; what each rank receives is that share of a whole matrix."""
    if isinstance(op, Gemm):
        return op.layout, op.a.removesuffix(" whole"), op.b.removesuffix(" whole")
    stored, whole = sorted((op.source, op.into), key=lambda name: name.endswith(" whole"))
    assert whole == f"{stored} whole"
    (words,) = {received(op, schedule, rank) for rank in range(schedule.grid.size)}
    return kind(op), stored, op.axis, words * P**3 / (P - 1)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_gathered_multiplied_and_scattered_as_in_the_paper(name):
    transposed, half, table = PRODUCTS[name]
    schedule = matmul_schedule(Matmul(M, K, N, passes="training", transposed=transposed), "3d", CUBE)
    forward = matmul_schedule(Matmul(M, K, N, transposed=transposed), "3d", CUBE)
    every, first = [[said(op, one) for op in all_ops(one)] for one in (schedule, forward)]
    assert every[: len(first)] == first
    assert (first if half == "forward" else every[len(first) :]) == table


@pytest.mark.parametrize("transposed", ["none", "a", "b"])
def test_every_product_of_every_form_multiplies_blocks_of_the_cube_of_one_size(transposed):
    schedule = matmul_schedule(Matmul(M, K, N, passes="training", transposed=transposed), "3d", CUBE)
    sizes = [
        sorted(gemm_sizes(op, schedule, schedule.coordinates(5))) for op in all_ops(schedule) if isinstance(op, Gemm)
    ]
    assert sizes == [sorted((M // P, K // P, N // P))] * 3


# 7 and 8: a matrix and a vector, C = A + b, and the vector's gradient

BIAN = find_scheme("bian")
ROWS, COLUMNS = Part("m"), Part("n")


def with_vector(grid=CUBE, m=M, n=N):
    """7, then 8: C = A + b of a matrix in the layout after a product, and the sum over rows of dC."""
    after = BIAN.inner
    linear = Linear("I", ROWS, Part("k"), COLUMNS, "I", "C", "dI", "dC")
    bias = bias_of(linear, BIAN, after)
    (b,) = bias.parameters
    activations = [after.tensor(name, ROWS, COLUMNS) for name in ("A", "C", "dC")]
    stored = [b.tensor, Tensor(b.gradient, b.tensor.rows, b.tensor.columns)]
    take = Pointwise(name="take A", function="copy", into="C", sources=("A",))
    roles = (Role(in_sequence((take, *bias.add, *bias.gradient))),)
    tensors = declare(*activations, *stored, *bias.tensors)
    sizes = {"m": m, "n": n, "one": 1}
    return Schedule("7 and 8", sizes, grid, "float64", tensors, ("A", b.name, "dC"), ("C", b.gradient), roles)


def moves(program):
    """Kinds, axes and functions of ops, in order."""
    return [
        (kind(op), op.axis) if isinstance(op, Communication) else op.function
        for op in ops(program)
        if isinstance(op, Communication | Kernel)
    ]


def ways(third):
    """Of a vector to all ranks, and of its gradient back, where `third` cuts rows and z too."""
    return [("broadcast", third), ("all_gather", "z")], [("reduce_scatter", "z"), ("reduce", third)]


def test_7_and_8_a_vector_comes_from_the_diagonal_and_its_gradient_goes_back():
    schedule, (to_all, back) = with_vector(), ways("y")
    assert moves(schedule.roles[0].program) == [*to_all, "add_bias", "column_sums", *back]
    for name in ("I b", "dI b"):
        blocks = [schedule.tensors[name].block(schedule.coordinates(rank)) for rank in range(P**3)]
        held = [block.elements for block in blocks if block.elements]
        assert held == [N // P**2] * P**2, f"{name}: p² of the p³ ranks hold a piece of n / p²"


@pytest.mark.parametrize(
    ("kind_of_op", "words"),
    [
        ("broadcast", (P - 1) * P**2 * N // P**2),  # to all but the diagonal, a piece each
        ("all_gather", P**3 * (P - 1) * N // P**2),
        ("reduce_scatter", P**3 * (P - 1) * N // P**2),
        ("reduce", (P - 1) * P**2 * N // P**2),
    ],
)
def test_7_and_8_move_shards_of_the_vector_and_nothing_of_the_matrix(kind_of_op, words):
    schedule = with_vector()
    (op,) = [op for op in all_ops(schedule) if kind(op) == kind_of_op]
    assert sum(received(op, schedule, rank) for rank in range(P**3)) == words


@pytest.mark.parametrize("grid", [CUBE, Grid(z=2, y=3, x=2), Grid(y=2, x=3), Grid()], ids=str)
def test_7_and_8_give_the_sum_of_matrix_and_vector_and_the_sum_over_rows(grid):
    schedule, random = with_vector(grid, m=37, n=23), np.random.default_rng(1)
    shapes = {"A": (37, 23), "I b": (1, 23), "dC": (37, 23)}
    given = {name: random.integers(-4, 5, shape).astype(float) for name, shape in shapes.items()}
    execution = execute(schedule, given, InProcess(grid.size))
    c = assembled(schedule, execution, "C", (37, 23))
    db = assembled(schedule, execution, "dI b", (1, 23))
    np.testing.assert_array_equal(c, given["A"] + given["I b"])
    np.testing.assert_array_equal(db, given["dC"].sum(axis=0, keepdims=True))


def test_7_and_8_carry_the_vectors_of_a_normalisation_too():
    layer = normalisation(Norm("norm", ROWS, COLUMNS, N, "X", "Y", "dY", "dX"), BIAN)
    (to_all, back), moments = ways("x"), ("all_reduce", "y")
    assert moves(layer.forward) == ["row_moments", moments, *to_all, *to_all, "normalise"]
    gradients = ["normalise_sums", moments, "normalise_gradient", "normalise_parameter_sums"]
    assert moves(layer.backward) == [*to_all, *gradients, *back, *back]
