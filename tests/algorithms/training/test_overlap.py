"""Overlaps of whole training steps: what is started when changes, and no bit of any result."""

from itertools import combinations

import pytest

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, ReduceScatter, lane, reads
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.simulator.simulate import Shortcuts, simulate
from tests.support.toy_machines import star
from tests.support.trainings import bits, schedule_of, trained, whole_matrices

ALL = OVERLAPS
OF_SCHEMES = OVERLAPS[:3]
OVER_DATA = OVERLAPS[3:]
SETS = [names for size in range(1, 4) for names in combinations(OF_SCHEMES, size)]
ADAM = Adam(clip=0.05, rate=0.05)
MLP = Mlp((7, 11, 5, 9), rows=13, steps=2, adam=ADAM)
GPT = Gpt(3, 12, 4, 5, 17, 6, steps=2, adam=ADAM)


def check_sets(plain, sets, collectives="own", vocabulary=17):
    """Each set of overlaps gives the same bits, sends the same bytes, and allocates what is predicted."""
    matrices = whole_matrices(plain, vocabulary)
    expected = trained(plain, matrices, collectives)
    for names in sets:
        changed = validate(overlap(plain, names))
        found = trained(changed, matrices, collectives)
        assert bits(found) == bits(expected), names
        assert found.bytes_sent == expected.bytes_sent, names
        assert max(found.allocated_bytes.values()) == volumes(changed, Choices()).peak_bytes_per_rank_max, names


@pytest.mark.parametrize(
    ("grid", "collectives"), [(Grid(z=3), "own"), (Grid(z=2, y=2), "library"), (Grid(z=2, x=2), "own")], ids=str
)
def test_no_overlap_changes_a_bit_of_an_mlp(grid, collectives):
    check_sets(schedule_of(MLP, grid), SETS, collectives)


def test_no_overlap_changes_a_bit_of_a_gpt():
    check_sets(schedule_of(GPT, Grid(z=2, y=2)), SETS)


@pytest.mark.parametrize(
    ("grid", "collectives"),
    [(Grid(z=3), "library"), (Grid(y=3, x=2), "own"), (Grid(z=2, x=2), "own"), (Grid(data=2, z=2, y=2), "own")],
    ids=str,
)
def test_all_overlaps_together(grid, collectives):
    check_sets(schedule_of(GPT, grid), [ALL], collectives)


@pytest.mark.parametrize("layers", [1, 2])
def test_few_layers(layers):
    check_sets(schedule_of(Gpt(layers, 12, 4, 5, 17, 6, steps=2, adam=ADAM), Grid(z=2)), [ALL, ("ors",), ("oag",)])


@pytest.mark.parametrize(
    "form, grid", [("sequences scattered", Grid(z=2, y=2, x=2)), ("rows scattered", Grid(z=2, x=2))], ids=str
)
def test_scattered_activations(form, grid):
    problem = Gpt(2, 12, 4, 5, 17, 8, adam=ADAM)
    check_sets(schedule_of(problem, grid, Scheme4D(activations=form)), [ALL, ("oag",)])


@pytest.mark.parametrize(
    ("name", "sequence_parallel", "grid"),
    [
        ("megatron", False, Grid(x=2)),
        ("megatron", True, Grid(data=2, x=2)),
        ("optimus", False, Grid(z=2, x=2)),
        ("bian", False, Grid(z=2, y=2, x=2)),
    ],
)
def test_other_schemes(name, sequence_parallel, grid):
    problem = Gpt(2, 12, 4, 5, 17, 8, adam=ADAM)
    check_sets(schedule_of(problem, grid, find_scheme(name, sequence_parallel=sequence_parallel)), [ALL])


@pytest.mark.parametrize(
    ("attention", "recompute", "gathered"),
    [
        ("unfused", "none", "keep"),
        ("unfused", "selective", "keep"),
        ("unfused", "selective", "again"),
        ("unfused", "full", "again"),
        ("fused", "full", "keep"),
        ("fused", "full", "again"),
    ],
)
def test_recomputation_and_weight_caching(attention, recompute, gathered):
    problem = Gpt(3, 12, 4, 5, 17, 6, adam=ADAM, attention=attention, recompute=recompute, gathered=gathered)
    check_sets(schedule_of(problem, Grid(z=2, x=2)), [ALL, ("oag",)])


@pytest.mark.parametrize(("micro_batch", "zero"), [(1, 0), (1, 2), (None, 2), (1, 3)])
def test_microbatches_and_zero(micro_batch, zero):
    problem = Gpt(3, 12, 4, 5, 17, 8, adam=ADAM, micro_batch=micro_batch, zero=zero)
    check_sets(schedule_of(problem, Grid(data=2, z=2)), [ALL, ("ors",)])


@pytest.mark.parametrize(
    "layers, interleave, grid",
    [
        (4, 1, Grid(pipeline=3, z=2)),
        (4, 2, Grid(pipeline=2, z=2)),
        (3, 1, Grid(pipeline=3, x=2)),
    ],
    ids=str,
)
def test_pipelines(layers, interleave, grid):
    problem = Gpt(layers, 12, 4, 5, 17, 4 * grid.z, adam=ADAM, micro_batch=1, interleave=interleave)
    check_sets(schedule_of(problem, grid), [ALL, ("ors",)])


def steps_of(schedule, rank=0):
    """Each op of a rank as (name, layer, step), in program order."""
    place = schedule.coordinates(rank)
    return [
        (op, (op.name, moment.indices.get("layer"), moment.indices.get("step", 0)))
        for op, moment in walk(schedule.program(place), place)
    ]


def before_each(schedule):
    """For each op of rank 0 all those that have ended when it starts: by data, edge or lane."""
    dependencies, before, last, place = Dependencies(schedule), {}, {}, schedule.coordinates(0)
    for op, moment in walk(schedule.program(place), place):
        key = (op.name, moment.indices.get("layer"), moment.indices.get("step", 0))
        needed = [*dependencies.enter(op, moment, key), *([last[lane(op)]] if lane(op) in last else [])]
        before[key] = set(needed).union(*(before[one] for one in needed))
        last[lane(op)] = key
    return before


def free(before, one, other):
    return one not in before[other] and other not in before[one]


def test_without_overlap_a_rank_does_one_thing_at_a_time():
    before = before_each(schedule_of(GPT, Grid(z=2, x=2)))
    assert sorted(map(len, before.values())) == list(range(len(before)))


def test_oar_sums_di_while_dw_is_multiplied_in_every_layer():
    before = before_each(overlap(schedule_of(GPT, Grid(z=2, y=2, x=2)), ["oar"]))
    for layer in range(3):
        for name in ("QKV", "project", "up", "down"):
            assert free(before, (f"{name} sum dI", layer, 0), (f"{name} multiply dW", layer, 0))
        assert ("down sum dI", layer, 0) in before["gelu gradient", layer, 0]


def test_ors_scatters_while_the_next_layers_are_multiplied():
    before = before_each(overlap(schedule_of(GPT, Grid(z=2, y=2, x=2)), ["ors"]))
    for name in ("QKV", "project", "up", "down"):
        assert free(before, (f"{name} scatter dW", 2, 0), (f"{name} multiply dW", 1, 0))
        assert (f"{name} scatter dW", 2, 0) in before[f"{name} multiply dW", 0, 0], "a third buffer"
        assert (f"{name} scatter dW", 2, 0) in before[f"update {name} W", 2, 0]


def test_ors_multiplies_dw_first_in_those_layers_whose_di_one_rank_sums():
    names = [op.name for op in all_ops(overlap(schedule_of(GPT, Grid(z=2, x=2)), ["ors"]))]
    for name in ("QKV", "up"):
        assert names.index(f"{name} multiply dI") < names.index(f"{name} multiply dW")
    for name in ("project", "down"):
        order = [names.index(f"{name} {what}") for what in ("multiply dW", "scatter dW", "multiply dI", "sum dI")]
        assert order == sorted(order)


def test_oag_gathers_the_next_weight_while_one_is_used():
    before = before_each(overlap(schedule_of(GPT, Grid(z=2, x=2)), ["oag"]))
    pairs = [
        (("QKV gather W", 0, 0), ("embed", 0, 0)),
        (("project gather W", 0, 0), ("QKV multiply", 0, 0)),
        (("up gather W", 0, 0), ("project multiply", 0, 0)),
        (("down gather W", 0, 0), ("up multiply", 0, 0)),
        (("QKV gather W", 1, 0), ("down multiply", 0, 0)),
        (("gather table again", 3, 0), ("down multiply", 2, 0)),
        (("down gather W again", 2, 0), ("multiply logits", 3, 0)),
        (("up gather W again", 2, 0), ("down multiply dI", 2, 0)),
        (("down gather W again", 1, 0), ("QKV multiply dI", 2, 0)),
    ]
    for gather, product in pairs:
        assert free(before, gather, product), (gather, product)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("names", [("oag",), ALL], ids=",".join)
def test_oag_has_at_most_two_gathered_weights_in_use(names, recompute):
    """From the moment that a gather may start to the last reader of what it gathers.

    Full recomputation uses each of a layer's four weights twice, the last one's second use first.
    """
    problem = Gpt(3, 12, 4, 5, 17, 6, steps=2, recompute=recompute)
    walked = steps_of(overlap(schedule_of(problem, Grid(z=2, x=2)), names))
    last_use, uses = {}, {}
    for position, (op, key) in enumerate(walked):
        if isinstance(op, AllGather) and op.overlap == "oag":
            last_use[op.into] = key
            uses[key] = (position, position)
        for name in reads(op):
            if name in last_use:
                uses[last_use[name]] = (uses[last_use[name]][0], position)
    alive = [sum(start <= position <= stop for start, stop in uses.values()) for position in range(len(walked))]
    assert max(alive) == (2 if recompute == "none" else 4)


def test_released_scatters_have_a_lane_of_their_own_beside_the_gathers():
    plain = schedule_of(GPT, Grid(z=2, x=2))
    for names, expected in (
        (ALL, {"z:1"}),
        (("ors", "oag"), {"z:1"}),
        (("ors",), {"z:1"}),
        (("oar",), {"z"}),
        (("oag",), {"z"}),
    ):
        scatters = {lane(op) for op in all_ops(overlap(plain, names)) if isinstance(op, ReduceScatter)}
        assert scatters == expected, names


def test_a_gradient_is_added_to_the_sum_while_the_next_layer_is_multiplied():
    problem = Gpt(4, 12, 4, 5, 17, 8, micro_batch=2)
    changed = overlap(schedule_of(problem, Grid(z=2)), ["ors"])
    keys = [
        (op.name, moment.indices.get("layer"), moment.indices["microbatch"])
        for op, moment in walk(changed.program(changed.coordinates(0)), changed.coordinates(0))
        if "microbatch" in moment.indices
    ]
    for name in ("QKV", "project", "up", "down"):
        for layer in (3, 2, 1):
            late = keys.index((f"add d{name} W", layer, 0))
            assert keys.index((f"{name} multiply dW", layer - 1, 0)) < late
            assert late < keys.index((f"{name} scatter dW", layer - 1, 0))
        assert keys.index((f"add d{name} W", 0, 0)) > keys.index(("embed gradient", None, 0))


def test_only_ors_needs_more_memory_for_a_second_buffer_of_each_gradient():
    plain = schedule_of(GPT, Grid(z=2, x=2))
    found = [
        storage(overlap(plain, names), plain.coordinates(0), Choices()) for names in ((), ("oar",), ("oag",), ("ors",))
    ]
    rooms = [sum(one.reductions.values()) * one.scratch_item_bytes for one in found]
    kept = [one.bytes - room for one, room in zip(found, rooms, strict=True)]
    weights = 12 * 12 * 12 * 4 // 2
    assert kept[0] == kept[1] == kept[2] == kept[3] - weights
    assert rooms[0] == rooms[1] == rooms[2] < rooms[3], "room for what the second lane receives"


def test_overlaps_are_worth_time_where_there_is_communication_to_hide():
    problem = Gpt(4, 96, 4, 32, 64, 8)
    plain = schedule_of(problem, Grid(z=2, y=2, x=2))
    machine = star(8, bandwidth=1e9, peak=2e11)
    seconds = {names: simulate(overlap(plain, names), machine).timeline.makespan for names in [(), *SETS]}
    for name in OF_SCHEMES:
        assert seconds[name,] < 0.99 * seconds[()]
    assert seconds[OF_SCHEMES] < 0.97 * min(seconds[name,] for name in OF_SCHEMES)


def test_folding_over_time_knows_rotated_loops():
    plain = schedule_of(Gpt(40, 12, 4, 5, 17, 4), Grid(z=2, x=2))
    machine = star(4, bandwidth=1e9, peak=2e11)
    changed = overlap(plain, ALL)
    folded, whole = (simulate(changed, machine, shortcuts=Shortcuts(fold_time=fold)) for fold in (True, False))
    assert folded.extent.iterations_skipped > whole.extent.iterations_skipped == 0
    assert folded.timeline.makespan == pytest.approx(whole.timeline.makespan, rel=1e-9)


def test_the_ops_and_their_counts_stay():
    for problem in (MLP, GPT, Gpt(5, 12, 4, 5, 17, 8, micro_batch=1)):
        plain = schedule_of(problem, Grid(z=2, y=2))
        for names in SETS:
            changed = overlap(plain, names)
            assert volumes(changed, Choices()).by_op == volumes(plain, Choices()).by_op
            assert sorted(key for _, key in steps_of(changed)) == sorted(key for _, key in steps_of(plain))
