from collections import Counter
from itertools import combinations

import pytest

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import algorithms, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap, parse_overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Communication, kind, lane, reads, writes
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import all_ops

SETS = [names for size in range(4) for names in combinations(OVERLAPS[:3], size)]
GRIDS = {
    "1d-column": Grid(x=3),
    "1d-row": Grid(y=3),
    "cannon": Grid(z=2, x=2),
    "summa": Grid(z=2, x=3),
    "2.5d": Grid(z=2, y=2, x=2),
    "3d": Grid(z=2, y=3, x=2),
    "4d": Grid(data=2, z=2, y=3, x=2),
}


def schedule_of(algorithm="4d", grid=None, passes="training", gathered="again"):
    return matmul_schedule(
        Matmul(13, 17, 11, "float32", passes, gathered, panel=5), algorithm, grid or GRIDS[algorithm]
    )


def sizes(schedule, rank):
    """Each op with the shapes that it reads and writes, as often as the rank runs it."""
    place = schedule.coordinates(rank)
    return Counter(
        (
            op.name,
            kind(op),
            lane(op),
            *(schedule.tensors[name].block(moment).shape for name in (*reads(op), *writes(op))),
        )
        for op, moment in walk(schedule.program(place), place)
    )


def unordered(schedule):
    """Pairs of ops that may run at the same time on rank 0: neither waits for the other, by data, edge or lane."""
    dependencies, before, last = Dependencies(schedule), {}, {}
    place = schedule.coordinates(0)
    for op, moment in walk(schedule.program(place), place):
        needed = [*dependencies.enter(op, moment, op.name), *([last[lane(op)]] if lane(op) in last else [])]
        before[op.name] = set(needed).union(*(before[name] for name in needed))
        last[lane(op)] = op.name
    pairs = combinations(before, 2)
    return {frozenset(pair) for pair in pairs if pair[0] not in before[pair[1]] and pair[1] not in before[pair[0]]}


def pairs(op, *others):
    return {frozenset((op, other)) for other in others}


@pytest.mark.parametrize("names", SETS)
@pytest.mark.parametrize("gathered", ["keep", "again"])
@pytest.mark.parametrize("algorithm", GRIDS)
def test_overlap_keeps_the_ops_their_sizes_and_what_they_send(algorithm, gathered, names):
    plain = schedule_of(algorithm, gathered=gathered)
    changed = validate(overlap(plain, names))
    for rank in range(plain.grid.size):
        assert sizes(changed, rank) == sizes(plain, rank)
    assert volumes(changed, Choices()).by_op == volumes(plain, Choices()).by_op
    assert changed.overlap == frozenset(names)


def test_without_overlap_a_rank_does_one_thing_at_a_time():
    for algorithm in algorithms():
        assert unordered(schedule_of(algorithm.name)) == set()


def test_no_overlap_changes_nothing():
    plain = schedule_of()
    assert overlap(plain, []) is plain
    assert unordered(overlap(schedule_of(passes="forward"), OVERLAPS)) == set()


def test_oar_frees_the_sum_of_da_while_db_is_multiplied():
    changed = overlap(schedule_of(), ["oar"])
    assert unordered(changed) == pairs("sum dA", "multiply dB", "scatter dB", "sum dB")
    assert concurrent(changed) == {"sum dA"}


def test_ors_frees_the_scatter_of_db_which_only_its_own_sum_uses():
    changed = overlap(schedule_of(), ["ors"])
    assert unordered(changed) == set()
    assert concurrent(changed) == {"scatter dB"}


def test_ors_multiplies_db_first_where_one_rank_sums_da():
    changed = overlap(schedule_of(grid=Grid(z=2, y=3)), ["ors"])
    names = [op.name for op in all_ops(changed)]
    assert names.index("multiply dB") < names.index("scatter dB") < names.index("multiply dA") < names.index("sum dA")
    assert unordered(changed) == pairs("scatter dB", "multiply dA", "sum dA")
    straight = [op.name for op in all_ops(overlap(schedule_of(grid=Grid(z=2, x=3)), ["ors"]))]
    assert straight.index("multiply dA") < straight.index("multiply dB")


def test_oag_gathers_ahead_while_c_is_multiplied():
    changed = overlap(schedule_of(), ["oag"])
    assert unordered(changed) == pairs("gather B again", "multiply C", "sum C")
    assert concurrent(changed) == {"gather B again"}


def test_oag_keeps_at_most_two_gathered_weights():
    plain, changed = schedule_of(), overlap(schedule_of(), ["oag"])
    assert set(changed.tensors) - set(plain.tensors) == {"B whole ahead"}
    readers = [op.name for op in all_ops(changed) if "B whole ahead" in reads(op)]
    assert readers == ["multiply dA"]


def test_what_is_kept_need_not_be_gathered_ahead():
    plain = schedule_of(gathered="keep")
    assert overlap(plain, ["oag"]).tensors == plain.tensors


def test_3d_gathers_both_operands_ahead():
    changed = overlap(schedule_of("3d"), OVERLAPS)
    assert concurrent(changed) == {"gather A again", "gather B again", "scatter dA", "scatter dB"}
    free = unordered(changed)
    assert pairs("multiply C", "gather A again", "gather B again") <= free
    assert pairs("scatter dA", "multiply dB") <= free
    assert not pairs("gather B again", "multiply dA") & free


@pytest.mark.parametrize("algorithm", ["cannon", "summa", "2.5d"])
def test_algorithms_without_marked_ops_stay_in_sequence(algorithm):
    assert unordered(overlap(schedule_of(algorithm), OVERLAPS)) == set()


def concurrent(schedule):
    return {op.name for op in all_ops(schedule) if isinstance(op, Communication) and op.concurrent}


def test_overlaps_are_named_in_any_order():
    assert parse_overlap("none") == frozenset()
    assert parse_overlap(" oag , oar ") == {"oar", "oag"}


@pytest.mark.parametrize("text", ["", "all", "oar,none", "oar;ors", "OAR"])
def test_another_overlap_is_refused_with_those_accepted(text):
    with pytest.raises(InputError, match="accepted are none, or a list of oar, ors, oag, ogr, opg"):
        parse_overlap(text)
