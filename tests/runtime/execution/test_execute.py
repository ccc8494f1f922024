"""The executor on the in-process carrier: every algorithm, pass and collective mode against NumPy, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import bytes_sent
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap, parse_overlap
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.verifying.products import output_of_block
from quadrille.runtime.verifying.verify import verify
from tests.support.products import assembled, products, whole_integers

FORMS = ["none", "a", "b"]
MODES = ["own:ring", "own:doubling", "own:halving_doubling", "library"]


def factorisations(ranks, axes):
    """Every grid of `ranks` ranks over the axes."""
    if len(axes) == 1:
        return [{axes[0]: ranks}]
    return [
        {axes[0]: length, **rest}
        for length in range(1, ranks + 1)
        if ranks % length == 0
        for rest in factorisations(ranks // length, axes[1:])
    ]


def grids(most_ranks):
    """Every algorithm on every grid it accepts, of 1 to `most_ranks` ranks."""
    for ranks in range(1, most_ranks + 1):
        yield "1d-column", Grid(x=ranks)
        yield "1d-row", Grid(y=ranks)
        for lengths in factorisations(ranks, ("z", "x")):
            yield "summa", Grid(**lengths)
        for lengths in factorisations(ranks, ("z", "y", "x")):
            yield "3d", Grid(**lengths)
            if lengths["z"] == lengths["x"]:
                yield "2.5d", Grid(**lengths)
                if lengths["y"] == 1:
                    yield "cannon", Grid(**lengths)
        for lengths in factorisations(ranks, ("data", "z", "y", "x")):
            yield "4d", Grid(**lengths)


def rows_of_ranks(first, last):
    """Every algorithm on the grids of so many ranks along one axis; collectives of different axes do not interact."""
    for algorithm, grid in grids(last):
        if grid.size >= first and grid.size in grid.lengths.values():
            yield algorithm, grid


def turned(most_ranks):
    """Every algorithm that takes transposed operands on every grid it accepts, with A and with B transposed."""
    for algorithm, grid in grids(most_ranks):
        if find_algorithm(algorithm).any_form:
            yield from ((algorithm, grid, transposed) for transposed in FORMS[1:])


def run(problem, algorithm, grid, collectives="own:ring", overlaps="none", chunk_bytes=0, **options):
    schedule = overlap(matmul_schedule(problem, algorithm, grid), parse_overlap(overlaps))
    choices = parse_choices(collectives)
    matrices = whole_integers(problem)
    execution = execute(schedule, matrices, InProcess(grid.size, chunk_bytes=chunk_bytes), choices=choices, **options)
    for name, expected in products(problem, matrices).items():
        np.testing.assert_array_equal(assembled(schedule, execution, name, expected.shape), expected)
    for rank in range(grid.size):
        assert execution.bytes_sent[rank] == bytes_sent(schedule, rank, choices)
        assert execution.allocated_bytes[rank] == storage(schedule, schedule.coordinates(rank), choices).bytes
    return execution


def share(cases, turn, count):
    """The cases whose turn it is, where `count` values of another option take turns."""
    return [case for index, case in enumerate(cases) if (index + index // count) % count == turn]


def in_turns(cases, turn, count):
    """Cases on up to 4 ranks, which meet every value of another option, and a share of the larger cases."""
    cases = list(cases)
    larger = [case for case in cases if case[1].size > 4]
    return [case for case in cases if case[1].size <= 4] + share(larger, turn, count)


@pytest.mark.parametrize(
    ("turn", "passes", "collectives"),
    [(0, "training", "own:ring"), (1, "forward", "own:ring"), (2, "training", "library")],
)
def test_every_algorithm_on_every_grid_gives_numpy_s_product(turn, passes, collectives):
    for algorithm, grid in in_turns(grids(12), turn, 3):
        run(Matmul(13, 17, 11, "float64", passes, panel=3), algorithm, grid, collectives)


@pytest.mark.parametrize(("turn", "collectives"), [*enumerate(["own:doubling", "own:halving_doubling"])])
def test_every_algorithm_with_other_collectives_gives_numpy_s_product(turn, collectives):
    for algorithm, grid in [*in_turns(grids(8), turn, 4), *share([*rows_of_ranks(9, 12)], turn, 2)]:
        run(Matmul(13, 17, 11, "float64", "training", panel=3), algorithm, grid, collectives)


@pytest.mark.parametrize(
    ("turn", "passes", "collectives"),
    [(0, "forward", "own:ring"), (1, "forward", "library"), (2, "training", "own:ring"), (3, "training", "library")],
)
def test_operands_that_are_stored_transposed_give_numpy_s_product_on_every_grid(turn, passes, collectives):
    for algorithm, grid, transposed in in_turns(turned(8), turn, 4):
        run(Matmul(13, 17, 11, "float64", passes, panel=3, transposed=transposed), algorithm, grid, collectives)


@pytest.mark.parametrize(("turn", "overlaps"), [*enumerate(["oar", "ors", "oag", "oar,ors,oag"])])
def test_overlap_changes_no_bit_where_operands_are_transposed(turn, overlaps):
    cases_of_3d = [case for case in turned(8) if case[0] == "3d"]
    for algorithm, grid, transposed in in_turns(cases_of_3d, turn, 4):
        problem = Matmul(13, 17, 11, "float32", "training", transposed=transposed)
        run(problem, algorithm, grid, overlaps=overlaps)


@pytest.mark.parametrize(
    ("turn", "count", "overlaps", "collectives"),
    [
        *((turn, 3, one, "own:ring") for turn, one in enumerate(("oar", "ors", "oag"))),
        *((turn, 4, "oar,ors,oag", mode) for turn, mode in enumerate(MODES)),
    ],
)
def test_overlap_changes_no_bit(turn, count, overlaps, collectives):
    cases_of_3d_and_4d = [case for case in grids(8) if case[0] in ("3d", "4d")]
    for algorithm, grid in in_turns(cases_of_3d_and_4d, turn, count):
        run(Matmul(13, 17, 11, "float32", "training"), algorithm, grid, collectives, overlaps)


CHUNKED = [*MODES[:3], "own:double_binary_tree", "own:hierarchical"]


@pytest.mark.parametrize(("turn", "collectives"), [*enumerate(CHUNKED)])
@pytest.mark.parametrize("chunk_bytes", [40, 1 << 20])
def test_chunks_change_no_bit_and_no_word_sent(chunk_bytes, turn, collectives):
    """Grids take turns: of chunks larger than every message, which cut nothing, with all collectives."""
    turns = 2 if chunk_bytes == 40 else len(CHUNKED)
    for algorithm, grid in share(grids(4), turn % turns, turns):
        overlaps = "oar,ors,oag" if algorithm in ("3d", "4d") else "none"
        problem = Matmul(13, 17, 11, "float64", "training", panel=3)
        run(problem, algorithm, grid, collectives, overlaps, chunk_bytes=chunk_bytes)


@settings(max_examples=90, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 30)] * 3),
    case=st.sampled_from([(*one, "none") for one in grids(8)]) | st.sampled_from(list(turned(8))),
    passes=st.sampled_from(["forward", "training"]),
    panel=st.integers(1, 40),
    gathered=st.sampled_from(["keep", "again"]),
    order=st.permutations(AXES),
)
def test_any_sizes_panels_forms_and_rank_orders(sizes, case, passes, panel, gathered, order):
    algorithm, grid, transposed = case
    reordered = Grid(**grid.lengths, order=tuple(order))
    run(Matmul(*sizes, "float32", passes, gathered, panel, transposed), algorithm, reordered)


def test_more_ranks_than_rows_still_give_the_product():
    run(Matmul(2, 3, 1, "float32", "training"), "4d", Grid(data=2, z=3, y=2, x=2))
    run(Matmul(1, 1, 1, "float32", "training"), "3d", Grid(z=3, y=3, x=3))


def test_repeats_each_give_a_timeline_of_the_same_ops():
    execution = run(Matmul(8, 8, 8, "float32", "training"), "4d", Grid(z=2, y=2, x=2), repeats=3, warmups=2)
    names = [sorted((span.rank, span.op, span.index) for span in timeline.spans) for timeline in execution.timelines]
    assert len(names) == 3 and names[0] == names[1] == names[2]
    for timeline in execution.timelines:
        assert all(span.ready <= span.start <= span.end for span in timeline.spans)


@pytest.mark.parametrize(
    ("collectives", "dtype", "sizes"),
    [
        *(("own:ring", *numbers) for numbers in (("float32", (5, 6)), ("float64", (8,)))),
        *(("own:doubling", *numbers) for numbers in (("float32", (6,)), ("float64", (8,)))),
        ("own:halving_doubling", "float32", (5, 6)),
        ("library", "float64", (8,)),
    ],
)
def test_rounded_products_stay_within_the_bound_that_verification_uses(collectives, dtype, sizes):
    cases = [(*case, "none") for case in grids(12)] + (list(turned(12)) if collectives == "own:ring" else [])
    cases_of_sizes = [case for case in cases if case[1].size in sizes]
    assert {grid.size for _, grid, _ in cases_of_sizes} == set(sizes)
    for algorithm, grid, transposed in share(cases_of_sizes, 0, 3):
        problem = Matmul(61, 257, 53, dtype, "training", panel=17, transposed=transposed)
        operands = Operands(problem.m, problem.k, problem.n, dtype, seed=3, transposed=transposed)
        schedule = matmul_schedule(problem, algorithm, grid)
        execution = execute(schedule, operands, InProcess(grid.size), choices=parse_choices(collectives))
        outputs = [
            output_of_block(name, schedule.tensors[name].block(schedule.coordinates(rank)), array)
            for rank, blocks in execution.outputs.items()
            for name, array in blocks.items()
        ]
        verdict = verify(outputs, operands, ranks=grid.size)
        assert verdict.ok, f"{algorithm} on {grid}, transposed {transposed}: {verdict}"


def test_every_op_that_may_overlap_local_work_has_an_overlap_fraction():
    execution = run(
        Matmul(12, 8, 8, "float64", "training"), "4d", Grid(z=2, y=2, x=2), overlaps="oar,ors", chunk_bytes=16
    )
    assert set(execution.overlap_fractions) == {"sum dA", "scatter dB"}
    assert all(0 <= share <= 1 for share in execution.overlap_fractions.values())
    assert run(Matmul(12, 8, 8, "float64", "training"), "4d", Grid(z=2, y=2)).overlap_fractions == {}
