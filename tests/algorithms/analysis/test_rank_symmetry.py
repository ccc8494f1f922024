from collections import Counter
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.analysis.rank_symmetry import equivalent_ranks
from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.analysis.volumes import bytes_sent, gemm_sizes, volumes
from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.collectives.lowering import SETS
from quadrille.algorithms.matmuls.catalogue import find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.schedule.ops import Communication, Gemm, lane
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from tests.support.mpi_cases import CUSTOM, chosen_grids, custom
from tests.support.pairs import pairs

CASES = [case for ranks in (1, 2, 3, 5, 8, 12) for case in chosen_grids(ranks)]
CASES += [("4d", Grid(data=5, z=3, y=2, x=4)), ("3d", Grid(z=7, y=3, x=5))]
TURNED = [(*case, transposed) for case in CASES if find_algorithm(case[0]).any_form for transposed in ("a", "b")]


def behaviour(schedule, place, choices):
    """All that a rank does, op by op, in all turns together: instances, bytes sent, flop; and what it keeps."""
    done = {}
    for op, moment in walk(schedule.program(place), place):
        moved = traffic(op, schedule, moment, choices) if isinstance(op, Communication) else None
        sizes = gemm_sizes(op, schedule, moment) if isinstance(op, Gemm) else ()
        count, sent, flops = done.get(op.name, (0, 0, 0))
        done[op.name] = count + 1, sent + (moved.bytes_sent if moved else 0), flops + prod(sizes) * len(sizes)
    kept = storage(schedule, place, choices)
    buffers = {**kept.tensors, **kept.copies, **kept.reductions, **kept.packed}
    return kept.bytes, kept.products, frozenset(buffers.items()), frozenset(done.items())


def check(schedule, choices):
    classes = equivalent_ranks(schedule, choices)
    each = Counter(behaviour(schedule, schedule.coordinates(rank), choices) for rank in range(schedule.grid.size))
    stand_ins = Counter()
    for one in classes:
        stand_ins[behaviour(schedule, one.coordinates, choices)] += one.count
        assert schedule.grid.coordinates(one.rank) == dict(one.coordinates.along)
    assert stand_ins == each


@settings(max_examples=60)
@given(
    st.sampled_from([(*case, "none") for case in CASES] + TURNED),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.sampled_from([f"own:{name}" for name in SETS]),
)
def test_each_class_does_what_its_representative_does(case, sizes, collectives):
    algorithm, grid, transposed = case
    problem = Matmul(*sizes, "float32", "training", panel=5, transposed=transposed)
    schedule = matmul_schedule(problem, algorithm, grid)
    check(schedule, parse_choices(collectives))


@pytest.mark.parametrize("build", CUSTOM)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_ranks_of_schedules_with_roles_peers_and_turns_are_told_apart(build, ranks):
    check(custom(build, ranks)[0], Choices())


def test_pieces_that_differ_along_one_axis_alone_tell_ranks_apart_along_another():
    schedule = matmul_schedule(Matmul(15, 34, 6, passes="training"), "4d", Grid(data=3, z=5, y=2))
    check(schedule, Choices())


def test_even_cuts_leave_few_classes_however_many_ranks():
    def classes(length):
        grid = Grid(data=length, z=length, y=length, x=length)
        sizes = (length**2 * 4, length**2 * 8, length**2 * 2)
        return len(equivalent_ranks(matmul_schedule(Matmul(*sizes, passes="training"), "4d", grid), Choices()))

    assert classes(16) == classes(4) <= 3 ** len(AXES)


def test_classes_cover_all_ranks_whatever_the_order_of_ranks():
    grid = Grid(data=2, z=3, y=2, x=5, order=("z", "x", "data", "y"))
    check(matmul_schedule(Matmul(13, 17, 11, passes="training"), "4d", grid), Choices())


MODELS = [
    ("optimus", Grid(z=4, x=2)),
    ("optimus", Grid(z=2, x=4)),
    ("optimus", Grid(data=2, z=3, x=3)),
    ("tesseract", Grid(z=3, y=2, x=3)),
    ("bian", Grid(z=2, y=3, x=3)),
    ("bian", Grid(z=3, y=2, x=4)),
    ("bian", Grid(z=2, y=4, x=2)),
]


def model(scheme, grid, *, hidden, vocabulary, batch, layers=2, heads=12):
    """Of so many heads that they fall to all of these grids."""
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": 12, "vocabulary": vocabulary}
    return gpt_schedule(Gpt(**shape, batch=batch), grid, find_scheme(scheme))


TREES_AND_RINGS = ["ring", "doubling", "double_binary_tree"]


@pytest.mark.parametrize("set_name", TREES_AND_RINGS)
@pytest.mark.parametrize(("scheme", "grid"), MODELS)
def test_ranks_at_turning_roots_and_on_diagonals_are_alike_in_all_turns_together(scheme, grid, set_name):
    """Each model with each set, its sizes even and uneven in turns."""
    turn = MODELS.index((scheme, grid)) + TREES_AND_RINGS.index(set_name)
    sizes = ({"hidden": 48, "vocabulary": 48}, {"hidden": 60, "vocabulary": 53})[turn % 2]
    check(model(scheme, grid, batch=12, **sizes), parse_choices(f"own:{set_name}"))


@pytest.mark.parametrize(
    ("scheme", "grid", "batch"),
    [
        ("4d", Grid(data=3, z=2, x=2), 42),
        ("optimus", Grid(data=3, z=2), 45),
        ("megatron", Grid(data=3, pipeline=2), 13),
    ],
)
def test_ranks_are_told_apart_by_their_rows_of_a_smaller_last_microbatch(scheme, grid, batch):
    problem = Gpt(2, 48, 4, 4, 48, batch, micro_batch=3)
    check(gpt_schedule(problem, grid, find_scheme(scheme)), Choices())


@pytest.mark.parametrize(
    ("case", "sizes", "set_name"),
    pairs(MODELS, [{"hidden": 48, "vocabulary": 48}, {"hidden": 60, "vocabulary": 53}], ["ring", "doubling"]),
    ids=str,
)
def test_turns_that_are_counted_together_come_to_what_all_turns_come_to(case, sizes, set_name):
    scheme, grid = case
    schedule, choices = model(scheme, grid, batch=12, layers=1, **sizes), parse_choices(f"own:{set_name}")
    sent, most = Counter(), Counter()
    for rank in range(grid.size):
        place, largest = schedule.coordinates(rank), Counter()
        for op, moment in walk(schedule.program(place), place):
            moved = traffic(op, schedule, moment, choices) if isinstance(op, Communication) else None
            if moved is not None:
                sent[op.name] += moved.bytes_sent
                received = [exchange.received for exchange in moved.exchanges() if exchange.reduce]
                largest[lane(op)] = max([largest[lane(op)], *received])
        assert Counter(storage(schedule, place, choices).reductions) == largest
        most[rank] = bytes_sent(schedule, rank, choices)
    found = volumes(schedule, choices)
    assert {name: one.sent_total for name, one in found.by_op.items() if one.sent_total} == dict(+sent)
    assert (found.sent_total, found.sent_per_rank_max) == (most.total(), max(most.values()))


@pytest.mark.parametrize("scheme", ["optimus", "tesseract", "bian"])
def test_meshes_of_even_sizes_have_few_classes_however_many_ranks(scheme):
    def classes(length):
        grid = Grid(z=length, x=length, y=1 if scheme == "optimus" else length)
        sizes = {"hidden": 48 * length**2, "vocabulary": 4 * length**3, "batch": length**3, "heads": 24}
        return len(equivalent_ranks(model(scheme, grid, **sizes), Choices()))

    assert classes(8) == classes(4) <= 4
