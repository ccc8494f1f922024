"""Microbatches and pipelines: equal to the serial reference; the order of turns, the bubble, what stages exchange."""

import re
from dataclasses import replace

import pytest

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.microbatches import microbatches
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.pipeline import Stages, slot_buffers
from quadrille.algorithms.training.recompute import RECOMPUTES
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.simulator.simulate import simulate
from tests.support.pairs import pairs
from tests.support.toy_machines import FREE, star
from tests.support.trainings import check_training, schedule_of

BIG = Adam(rate=0.03, decay=0.1, clip=0.05)


def gpt(layers=3, batch=12, **given):
    given = {"dtype": "float64", "steps": 2, "adam": BIG, **given}
    return Gpt(layers, 6, 3, 3, 11, batch, **given)


def mlp(**given):
    return Mlp((7, 11, 5, 13, 3), **{"dtype": "float64", "steps": 2, "adam": BIG, **given})


def name_of(value):
    return str(value) if isinstance(value, Grid) else None


@pytest.mark.parametrize(
    ("grid", "micro_batch"), [(Grid(), 1), (Grid(z=2), 3), (Grid(y=2), 2), (Grid(data=2, z=2, x=3), 2)], ids=name_of
)
def test_microbatches_equal_the_whole_batch(grid, micro_batch):
    check_training(gpt(layers=2, batch=24, micro_batch=micro_batch, steps=1), grid)


@pytest.mark.parametrize(("stages", "count"), [(2, 1), (2, 4), (3, 2), (3, 7), (4, 3), (4, 5)])
def test_a_pipeline_equals_serial(stages, count):
    check_training(gpt(layers=5, batch=2 * count, micro_batch=2, steps=1), Grid(pipeline=stages))


SCATTERED = "sequences scattered"


@pytest.mark.parametrize(
    ("grid", "activations", "gathered"),
    [
        (Grid(pipeline=2, x=3), SCATTERED, "keep"),
        (Grid(pipeline=2, y=2), "repeated", "again"),
        (Grid(pipeline=2, z=2), SCATTERED, "again"),
        (Grid(pipeline=3, z=2, y=2), "repeated", "keep"),
        (Grid(pipeline=2, data=3, y=2, order=("pipeline", "y", "data")), SCATTERED, "again"),
    ],
    ids=name_of,
)
def test_a_pipeline_of_other_axes_equals_serial(grid, activations, gathered):
    rows = grid.data * grid.z * 6
    problem = gpt(layers=3, batch=rows * 3, micro_batch=6, gathered=gathered, steps=1)
    check_training(problem, grid, Scheme4D(activations=activations))


@pytest.mark.parametrize(("stages", "chunks", "rounds"), [(2, 2, 1), (2, 3, 2), (3, 2, 2), (4, 3, 1)])
def test_interleaved_chunks_equal_serial(stages, chunks, rounds):
    problem = gpt(stages * chunks, batch=stages * rounds, micro_batch=1, interleave=chunks, steps=1)
    check_training(problem, Grid(pipeline=stages))


@pytest.mark.parametrize("stages", [(1, 1, 2, 2), (2, 1, 1, 2), (2, 2, 1, 1)])
def test_interleaved_chunks_of_unequal_length_equal_serial(stages):
    problem = gpt(6, batch=4, micro_batch=1, interleave=2, steps=1, stages=stages)
    check_training(problem, Grid(pipeline=2))


@pytest.mark.parametrize(("stages", "chunks", "count"), [(2, 2, 1), (2, 2, 3), (2, 3, 5), (3, 2, 8), (4, 2, 3)])
def test_interleaved_chunks_of_microbatches_that_stages_do_not_divide_equal_serial(stages, chunks, count):
    problem = gpt(stages * chunks, batch=count, micro_batch=1, interleave=chunks, steps=1)
    check_training(problem, Grid(pipeline=stages))


@pytest.mark.parametrize("grid", [Grid(pipeline=2, z=2), Grid(pipeline=2, data=2, x=3)], ids=name_of)
def test_interleaved_chunks_of_other_axes_equal_serial(grid):
    check_training(gpt(4, batch=8, micro_batch=2, interleave=2), grid)


@pytest.mark.parametrize(
    ("grid", "count", "activations", "gathered"),
    [
        (Grid(pipeline=2), 5, "repeated", "again"),
        (Grid(pipeline=3), 1, "repeated", "keep"),
        (Grid(pipeline=4), 2, "repeated", "again"),
        (Grid(pipeline=2, z=2, y=3), 2, SCATTERED, "keep"),
        (Grid(pipeline=2, z=2, y=3), 5, "repeated", "again"),
        (Grid(pipeline=3, data=2), 5, SCATTERED, "again"),
    ],
    ids=name_of,
)
def test_a_pipeline_of_an_mlp_equals_serial(grid, count, activations, gathered):
    rows = 6 * grid.data * grid.z
    problem = mlp(rows=rows * count, micro_batch=6, gathered=gathered)
    check_training(problem, grid, Scheme4D(activations=activations))


@pytest.mark.parametrize("zero", [1, 2])
def test_a_pipeline_of_a_sharded_mlp_equals_serial(zero):
    check_training(mlp(rows=24, micro_batch=3, zero=zero), Grid(pipeline=2, data=2, x=3))


def test_the_library_carries_a_pipeline_too():
    check_training(gpt(layers=3, batch=8, micro_batch=2), Grid(pipeline=2, z=2), collectives="library")


def test_the_order_of_1f1b_by_hand():
    stages = Stages(3, layers=3, microbatches=4)
    assert stages.order(0) == ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]
    assert stages.order(1) == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]
    assert stages.order(2) == ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]


def test_the_order_of_interleaved_chunks_by_hand():
    stages = Stages(2, layers=4, microbatches=2, chunks=2)
    assert stages.order(0) == ["F0.0", "F1.0", "F0.1", "F1.1", "B0.1", "B1.1", "B0.0", "B1.0"]
    assert stages.order(1) == ["F0.0", "F1.0", "F0.1", "B0.1", "F1.1", "B1.1", "B0.0", "B1.0"]


@pytest.mark.parametrize(
    ("count", "chunks", "turns"),
    [(2, 1, 5), (4, 1, 2), (4, 1, 9), (2, 2, 4), (3, 2, 6), (4, 3, 8), (3, 2, 4), (4, 3, 10)],
)
def test_the_program_has_its_slots_in_that_order(count, chunks, turns):
    """The program's loops, walked on a rank of every stage, say what `order` says."""
    from quadrille.algorithms.schedule.ops import Pointwise
    from quadrille.algorithms.schedule.program import walk

    stages = Stages(count, layers=count * chunks, microbatches=turns, chunks=chunks)
    passes = [(Pointwise(name=letter, function="zero", into=letter),) for letter in "FB"]
    schedule = schedule_of(gpt(count, micro_batch=12), Grid(pipeline=count))
    for stage in range(count):
        walked = walk(stages.interleaved(*passes), schedule.coordinates(stage))
        names = [
            f"{op.name}{at.indices['microbatch']}" + (f".{at.indices['chunk']}" if chunks > 1 else "")
            for op, at in walked
        ]
        assert names == stages.order(stage)


@pytest.mark.parametrize(("count", "turns"), [(4, 8), (4, 2), (2, 5)])
def test_as_many_microbatches_are_in_flight_as_stages_that_follow(count, turns):
    stages = Stages(count, layers=count, microbatches=turns)
    assert [stages.in_flight(stage) for stage in range(count)] == [min(count - stage, turns) for stage in range(count)]


@pytest.mark.parametrize(("count", "chunks"), [(2, 2), (2, 3), (3, 2), (4, 2), (4, 5), (5, 3)])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 5, 6, 7, 9, 10, 15, 20, 35])
def test_slots_in_flight_never_share_a_buffer_and_take_no_more_buffers_than_slots(count, chunks, microbatches):
    stages = Stages(count, count * chunks, microbatches, chunks)
    in_round = stages.round_length
    assert microbatches % in_round == 0 and in_round >= min(count, microbatches)
    for stage in range(count):
        table, taken, most, used = slot_buffers(stages, stage), {}, 0, set()
        for name in stages.order(stage):
            microbatch, chunk = map(int, name[1:].split("."))
            first, begin, length = table[chunk * in_round + microbatch % in_round]
            slot = first + (begin + microbatch // in_round) % length
            if name[0] == "B":
                assert taken.pop((microbatch, chunk)) == slot
                continue
            assert slot not in taken.values()
            taken[microbatch, chunk] = slot
            most, used = max(most, len(taken)), used | {slot}
        assert most == len(used) == stages.in_flight(stage)
        assert used == set(range(most))


def test_four_stages_of_two_chunks_keep_eleven_slots_as_megatron_does():
    """Warm-up turns and one: (stages - 1) · 2 + (chunks - 1) · stages + 1."""
    assert [Stages(4, 8, 16, 2).in_flight(stage) for stage in range(4)] == [11, 9, 7, 5]


def zero_cost(ranks):
    """A network that takes no time, and memory that takes none: products alone count."""
    return star(ranks, bandwidth=FREE, latency=0.0)


def pass_seconds(problem):
    """One microbatch through all layers and the head, both ways, on one rank."""
    return simulate(schedule_of(replace(problem, interleave=1), Grid()), zero_cost(1)).timeline.makespan


def even(count, microbatches, chunks=1):
    """A pipeline in which the head costs as good as nothing: a layer's products are all there is."""
    layers = count * chunks
    return Gpt(layers, 64, 2, 16, 2, microbatches, micro_batch=1, interleave=chunks, dtype="float64")


@pytest.mark.parametrize(("count", "turns"), [(2, 2), (2, 5), (3, 4), (4, 2)])
def test_the_bubble_is_one_less_than_the_stages_over_the_microbatches(count, turns):
    problem = even(count, turns)
    piped = simulate(schedule_of(problem, Grid(pipeline=count)), zero_cost(count)).timeline.makespan
    alone = pass_seconds(problem) / count
    assert piped / alone - 1 == pytest.approx((count - 1) / turns, rel=0.01)


@pytest.mark.parametrize(("count", "turns", "chunks"), [(2, 4, 2), (2, 6, 3), (3, 6, 2)])
def test_interleaving_divides_the_bubble_by_the_chunks(count, turns, chunks):
    problem = even(count, turns, chunks)
    piped = simulate(schedule_of(problem, Grid(pipeline=count)), zero_cost(count)).timeline.makespan
    alone = pass_seconds(problem) / count
    assert piped / alone - 1 == pytest.approx((count - 1) / (turns * chunks), rel=0.01)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("grid", [Grid(pipeline=2), Grid(pipeline=2, x=3), Grid(pipeline=4, data=2, z=2)], ids=name_of)
def test_bytes_between_stages(grid, chunks):
    """Of each microbatch, its rows × hidden once forward and once back at every boundary, repeated over x."""
    problem = Gpt(8, 12, 6, 5, 17, 16 * grid.z * grid.data, micro_batch=2, interleave=chunks, dtype="float64")
    schedule = schedule_of(problem, grid)
    sent = volumes(schedule, Choices()).by_op
    between = sum(volume.sent_total for name, volume in sent.items() if re.match(r"send d?X", name))
    boundaries = grid.pipeline * chunks - 1
    assert between == 2 * boundaries * problem.tokens * problem.hidden * 8 * grid.x


@pytest.mark.parametrize(
    ("problem", "grid", "said"),
    [
        (gpt(3), Grid(pipeline=4), "grid pipeline=4: every stage needs a layer of its own, and there are 3"),
        (gpt(6, micro_batch=1, interleave=2), Grid(pipeline=2, x=3), "layers = 6 must be a multiple of pipeline=2"),
        (gpt(4, interleave=2), Grid(), "chunks are interleaved in a pipeline"),
        (gpt(4, interleave=0), Grid(pipeline=2), "interleave 0: a whole number from 1"),
        (gpt(batch=9, micro_batch=4), Grid(data=2), "last microbatch of 1: at least data=2 times z=1, 2 sequences"),
        (mlp(rows=12), Grid(pipeline=5), "grid pipeline=5: every stage needs a layer of its own, and there are 4"),
        (mlp(rows=3), Grid(data=2, z=2), "rows 3: at least data=2 times z=2, 4 rows, are needed"),
        (gpt(micro_batch=0), Grid(), "micro-batch 0: a whole number from 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(problem, grid, said):
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        schedule_of(problem, grid)
    assert "\n" not in str(refused.value)


def test_one_microbatch_is_the_whole_batch_unless_a_size_is_given():
    assert microbatches(13, None, Grid(data=2)).count == 1
    assert microbatches(24, 2, Grid(data=2, z=3)).count == 2


@pytest.mark.parametrize(("attention", "recompute", "chunks"), pairs(["fused", "unfused"], sorted(RECOMPUTES), [1, 2]))
def test_recomputation_in_a_pipeline_equals_serial(attention, recompute, chunks):
    options = {"interleave": chunks, "attention": attention, "recompute": recompute}
    problem = gpt(layers=4, batch=12, micro_batch=3, steps=1, **options)
    check_training(problem, Grid(pipeline=2, z=2))
