import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import algorithms, find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul, parse_sizes
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Gemm
from quadrille.algorithms.schedule.program import Repeat
from quadrille.algorithms.schedule.schedule import all_ops
from tests.support.mpi_cases import chosen_grids

TURNED = ("a", "b")


def held(schedule, name):
    """How many ranks hold each element of a tensor, and how many elements each rank holds."""
    tensor = schedule.tensors[name]
    times = np.zeros([schedule.sizes[part.dimension] for part in (tensor.rows, tensor.columns)], int)
    counts = []
    for rank in range(schedule.grid.size):
        block = tensor.block(schedule.coordinates(rank))
        mine = np.zeros(block.rectangle_shape, int)
        mine.reshape(-1)[slice(*(block.flat_range or (0, mine.size)))] = 1
        times[slice(*block.rows), slice(*block.columns)] += mine
        counts.append(int(mine.sum()))
    return times, counts


def test_the_table_has_the_algorithms_of_the_design_page():
    table = {algorithm.name: (algorithm.axes, algorithm.square) for algorithm in algorithms()}
    assert table == {
        "1d-column": (("x",), False),
        "1d-row": (("y",), False),
        "cannon": (("z", "x"), True),
        "summa": (("z", "x"), False),
        "2.5d": (("z", "x", "y"), True),
        "3d": (("z", "y", "x"), False),
        "4d": (("data", "z", "y", "x"), False),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 9, 12])
def test_one_copy_of_each_matrix_evenly_spread_is_where_the_bound_holds(ranks):
    for name, grid in chosen_grids(ranks):
        cut = grid.size
        schedule = matmul_schedule(Matmul(2 * cut, 3 * cut, 5 * cut, passes="training"), name, grid)
        spread = [held(schedule, tensor) for tensor in (*schedule.inputs, *schedule.outputs)]
        once_and_even = all((times == 1).all() and len(set(counts)) == 1 for times, counts in spread)
        if find_algorithm(name).one_copy:
            assert once_and_even, (name, grid)
        for transposed in TURNED if find_algorithm(name).any_form else ():
            turned = Matmul(2 * cut, 3 * cut, 5 * cut, passes="training", transposed=transposed)
            schedule = matmul_schedule(turned, name, grid)
            for tensor in (*schedule.inputs, *schedule.outputs):
                times, counts = held(schedule, tensor)
                assert times.shape == turned.shape(tensor)
                assert (times == 1).all() and len(set(counts)) == 1, (name, grid, transposed, tensor)
        if name in ("1d-column", "1d-row") and ranks > 1:
            assert not once_and_even


@pytest.mark.parametrize("ranks", [2, 4, 6, 12])
def test_outputs_are_laid_out_as_their_inputs(ranks):
    cases = [(*case, "none") for case in chosen_grids(ranks)]
    cases += [(*case, one) for case in chosen_grids(ranks) if find_algorithm(case[0]).any_form for one in TURNED]
    for name, grid, transposed in cases:
        schedule = matmul_schedule(Matmul(13, 17, 11, passes="training", transposed=transposed), name, grid)
        for one, other in (("A", "dA"), ("B", "dB"), ("C", "dC")):
            for rank in range(ranks):
                place = schedule.coordinates(rank)
                assert schedule.tensors[one].block(place) == schedule.tensors[other].block(place), (name, grid)


@pytest.mark.parametrize(
    ("transposed", "in_3d", "on_a_mesh"),
    [
        (
            "a",
            ["A (k/y/x × m/z)", "B (k/y/z × n/x)", "C (m/z × n/x) sharded over y"],
            ["A (k/z × m/x)", "B (k/z × n/x)", "C (m/z × n/x)"],
        ),
        (
            "b",
            ["A (m/z/x × k/y)", "B (n/x × k/y) sharded over z", "C (m/z/y × n/x)"],
            ["A (m/z × k/x)", "B (n/z × k/x)", "C (m/z × n/x)"],
        ),
    ],
)
def test_transposed_operands_lie_on_the_axes_that_cut_their_dimensions(transposed, in_3d, on_a_mesh):
    for name, expected in (("3d", in_3d), ("summa", on_a_mesh)):
        schedule = matmul_schedule(Matmul(13, 17, 11, transposed=transposed), name, Grid(z=2))
        assert [str(schedule.tensors[tensor]) for tensor in "ABC"] == expected


@pytest.mark.parametrize(("transposed", "panelled"), [("none", "k"), ("a", "m"), ("b", "n")])
def test_summa_broadcasts_panels_of_the_dimension_that_does_not_stay(transposed, panelled):
    problem = Matmul(13, 17, 11, passes="training", panel=3, transposed=transposed)
    schedule = matmul_schedule(problem, "summa", Grid(z=2, x=3))
    loops = [entry for entry in schedule.roles[0].program if isinstance(entry, Repeat)]
    assert {entry.count.dimension for entry in loops} == {panelled}
    still = {"none": "dC", "a": "B", "b": "A"}[transposed]
    assert f"{still} panel" not in schedule.tensors
    layouts = {op.c.removesuffix(" panel"): op.layout for op in all_ops(schedule) if isinstance(op, Gemm)}
    assert (
        layouts
        == {
            "none": {"C": "NN", "dA": "NT", "dB": "TN"},
            "a": {"C": "TN", "dA": "NT", "dB": "NN"},
            "b": {"C": "NT", "dA": "NN", "dB": "TN"},
        }[transposed]
    )


def test_layouts_are_those_of_the_design_page():
    def layouts(name, grid):
        schedule = matmul_schedule(Matmul(13, 17, 11), name, grid)
        return [str(schedule.tensors[tensor]) for tensor in "ABC"]

    four = ["A (m/data/z × k/y)", "B (k/y × n/x) sharded over z", "C (m/data/z × n/x)"]
    mesh = ["A (m/z × k/x)", "B (k/z × n/x)", "C (m/z × n/x)"]
    assert layouts("4d", Grid(data=2, z=2)) == layouts("1d-row", Grid(y=3)) == four
    assert layouts("cannon", Grid(z=2, x=2)) == layouts("summa", Grid(z=2, x=3)) == mesh
    assert layouts("2.5d", Grid(z=2, x=2, y=2)) == [f"{text} on y=0" for text in mesh]
    assert layouts("3d", Grid(y=2)) == ["A (m/z/x × k/y)", "B (k/y × n/x) sharded over z", "C (m/z/y × n/x)"]


@pytest.mark.parametrize(
    ("name", "grid", "said"),
    [
        ("cannon", Grid(z=2, x=3), "grid z=2, x=3 is not square: cannon takes z=q,x=q, that is 1, 4, 9, 16, …"),
        ("2.5d", Grid(z=2, x=1, y=2), "grid z=2, x=1 is not square: 2.5d"),
        ("1d-column", Grid(x=2, y=3), "grid y=3: 1d-column takes the axes x only"),
        ("summa", Grid(data=2, y=2), "grid data=2, y=2: summa takes the axes z, x only"),
        ("3d", Grid(data=2), "grid data=2: 3d takes the axes z, y, x only"),
        ("5d", Grid(), "algorithm '5d': accepted are 1d-column, 1d-row, cannon, summa, 2.5d, 3d, 4d"),
    ],
)
def test_a_grid_or_algorithm_that_cannot_be_is_refused(name, grid, said):
    with pytest.raises(InputError) as refused:
        matmul_schedule(Matmul(8, 8, 8), name, grid)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("name", ["1d-column", "1d-row", "cannon", "2.5d", "4d"])
@pytest.mark.parametrize("transposed", TURNED)
def test_a_transposed_operand_is_refused_by_those_that_do_not_take_it(name, transposed):
    with pytest.raises(InputError) as refused:
        matmul_schedule(Matmul(8, 8, 8, transposed=transposed), name, Grid())
    assert str(refused.value) == f"transposed {transposed}: {name} takes none only; summa and 3d take a and b"


@pytest.mark.parametrize(
    "text", ["", "4", "4,4", "4,4,4,4", "4,0,4", "4,-1,4", "4,4.0,4", "a,b,c", "4,,4", "4,1e3,4", "²,4,4"]
)
def test_sizes_that_cannot_be_are_refused_with_their_text(text):
    with pytest.raises(InputError) as refused:
        parse_sizes(text)
    assert repr(text) in str(refused.value)
    assert "M,K,N, three whole numbers from 1" in str(refused.value)


def test_sizes_are_three_whole_numbers():
    assert parse_sizes("13, 17 ,11") == (13, 17, 11)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"m": 0}, "matmul m=0: a dimension is a whole number from 1"),
        ({"n": -3}, "matmul n=-3"),
        ({"dtype": "int8"}, "dtype 'int8': accepted are float64, float32, float16, bfloat16"),
        ({"passes": "backward"}, "passes 'backward': accepted are forward, training"),
        ({"gathered": "never"}, "gathered 'never': accepted are keep, again"),
        ({"panel": 0}, "panel 0: a panel is a whole number of columns from 1"),
        ({"transposed": "c"}, "transposed 'c': accepted are none, a, b"),
    ],
)
def test_a_problem_checks_itself(wrong, said):
    with pytest.raises(InputError) as refused:
        Matmul(**{"m": 2, "k": 3, "n": 5} | wrong)
    assert str(refused.value).startswith(said)


def test_training_is_three_products():
    assert Matmul(7, 5, 3, passes="training").flops == 3 * Matmul(7, 5, 3).flops == 3 * 2 * 7 * 5 * 3


def test_what_is_kept_is_not_gathered_again():
    for name, gathers in (("4d", {"gather B again"}), ("3d", {"gather A again", "gather B again"})):
        names = {
            gathered: {op.name for op in matmul_schedule(problem, name, Grid(z=2)).roles[0].program}
            for gathered in ("keep", "again")
            for problem in [Matmul(7, 5, 3, passes="training", gathered=gathered)]
        }
        assert names["again"] - names["keep"] == gathers
