"""Orders of passes: GPipe and message-driven pipelines, executed and simulated; what does not depend on arrivals."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Receive, Send, message_lane
from quadrille.algorithms.schedule.pass_rules import StageState, next_pass, pass_order
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.timelines.pass_orders import pass_orders
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.pipeline import Stages
from quadrille.runtime.carriers.communicators import DONE, Wait
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.simulator.simulate import Shortcuts, simulate
from tests.support.toy_machines import star
from tests.support.trainings import bits, check_training, schedule_of, whole_matrices

BIG = Adam(rate=0.03, decay=0.1, clip=0.05)
DRIVEN = "message-driven"


def gpt(layers=3, batch=12, **options):
    return Gpt(
        layers, 6, 3, 3, 11, batch, **({"dtype": "float64", "steps": 2, "adam": BIG, "micro_batch": 2} | options)
    )


class Delayed(InProcess):
    """A carrier whose ranks pause after each wait, for a random number of rounds."""

    def __init__(self, size, seed):
        super().__init__(size)
        self._seed = seed

    def run(self, coroutine):
        return super().run(lambda rank: self._paused(coroutine(rank), random.Random(f"{self._seed} {rank}")))

    def _paused(self, work, draw):
        try:
            wait = next(work)
            while True:
                yield wait
                for _ in range(draw.choice((0, 0, 1, 5, 20))):
                    yield Wait((DONE,), ())
                wait = next(work)
        except StopIteration as end:
            return end.value


def passes_of(timeline, rank):
    """The kinds of a rank's passes in the order in which they ran, by their products."""
    ran = sorted((span.start, span.op) for span in timeline.spans if span.rank == rank)
    kinds = {"QKV multiply": "F", "QKV multiply dW": "B"}
    return "".join(kinds[op] for _, op in ran if op in kinds)


@pytest.mark.parametrize("schedule", ["gpipe", DRIVEN])
@pytest.mark.parametrize(("stages", "count"), [(2, 1), (2, 4), (3, 7), (4, 5)])
def test_every_order_equals_serial(schedule, stages, count):
    check_training(gpt(layers=5, batch=2 * count, pipeline_schedule=schedule), Grid(pipeline=stages))


@pytest.mark.parametrize(
    ("stages", "options"),
    [
        ((3, 1, 2), {}),
        ((1, 4, 1), {"pipeline_schedule": DRIVEN}),
        ((2, 3, 1), {"pipeline_schedule": "gpipe", "recompute": "full"}),
        ((1, 2, 1, 2), {"interleave": 2}),
    ],
)
def test_uneven_stages_equal_serial(stages, options):
    grid = Grid(pipeline=2 if "interleave" in options else 3)
    check_training(gpt(layers=6, batch=8, stages=stages, **options), grid)


def test_uneven_stages_of_linear_layers_equal_serial():
    problem = Mlp((7, 11, 5, 13, 3), 24, dtype="float64", steps=2, adam=BIG, micro_batch=2, stages=(1, 3))
    check_training(problem, Grid(pipeline=2, y=2))


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_every_limit_of_a_message_driven_pipeline_equals_serial(limit):
    check_training(gpt(layers=4, batch=10, pipeline_schedule=DRIVEN, pipeline_limit=limit), Grid(pipeline=4))


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid(pipeline=2, x=3), {}),
        (Grid(pipeline=2, z=2, y=2), {"gathered": "keep"}),
        (Grid(pipeline=2, data=3, order=("pipeline", "y", "data")), {}),
        (Grid(pipeline=2, data=2), {"zero": 1}),
        (Grid(pipeline=2, data=2), {"zero": 2}),
        (Grid(pipeline=2, y=2), {"recompute": "full"}),
    ],
    ids=str,
)
def test_a_message_driven_pipeline_of_other_axes_equals_serial(grid, options):
    problem = gpt(batch=grid.data * grid.z * 18, micro_batch=6, pipeline_schedule=DRIVEN, **options)
    check_training(problem, grid)


@pytest.mark.parametrize("overlaps", [("oar", "ors"), ("oag",), ("oar", "ors", "oag")])
def test_overlaps_in_a_message_driven_pipeline_equal_serial(overlaps):
    problem = gpt(2, batch=12, micro_batch=2, pipeline_schedule=DRIVEN)
    check_training(problem, Grid(pipeline=2, z=2, x=3), overlaps=overlaps)


@pytest.mark.parametrize("schedule", ["gpipe", DRIVEN])
def test_linear_layers_in_every_order_equal_serial(schedule):
    widths = (7, 11, 5, 13, 3)
    problem = Mlp(widths, 24, dtype="float64", steps=2, adam=BIG, micro_batch=2, pipeline_schedule=schedule)
    check_training(problem, Grid(pipeline=3, y=2))


@cache
def usual_run(grid):
    """The schedule of a message-driven pipeline, its matrices, and its run without delays."""
    schedule = schedule_of(gpt(batch=10 * grid.data, pipeline_schedule=DRIVEN, steps=1), grid)
    matrices = whole_matrices(schedule, 11)
    return schedule, matrices, bits(execute(schedule, matrices, InProcess(grid.size)))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([Grid(pipeline=3), Grid(pipeline=2, y=2), Grid(pipeline=2, data=2)]))
def test_no_order_of_arrival_changes_a_bit_or_ends_in_a_deadlock(seed, grid):
    schedule, matrices, usual = usual_run(grid)
    assert bits(execute(schedule, matrices, Delayed(grid.size, seed))) == usual


def test_arrivals_decide_the_order_of_a_message_driven_pipeline_and_of_no_other():
    def orders(pipeline_schedule):
        grid = Grid(pipeline=3)
        schedule = schedule_of(gpt(batch=20, pipeline_schedule=pipeline_schedule, steps=1), grid)
        matrices = whole_matrices(schedule, 11)
        runs = (execute(schedule, matrices, Delayed(grid.size, seed)) for seed in range(3))
        return {passes_of(run.timelines[0], 1) for run in runs}

    assert len(orders(DRIVEN)) > 1
    assert orders("1f1b") == {"FFBFBFBFBFBFBFBFBFBB"}
    assert orders("gpipe") == {"F" * 10 + "B" * 10}


@pytest.mark.parametrize("grid", [Grid(pipeline=3, y=2), Grid(pipeline=2, z=2, data=2)], ids=str)
def test_a_message_driven_pipeline_takes_equally_long_with_all_ranks_and_with_folded_ranks(grid):
    problem = Gpt(
        2 * grid.pipeline, 64, 4, 16, 128, 8 * grid.data * grid.z, steps=2, micro_batch=2, pipeline_schedule=DRIVEN
    )
    schedule = schedule_of(problem, grid)
    folded, whole = (
        simulate(schedule, star(grid.size), shortcuts=Shortcuts(fold=fold, fold_time=fold)) for fold in (True, False)
    )
    assert folded.extent.folded
    assert folded.timeline.makespan == pytest.approx(whole.timeline.makespan, rel=1e-9)


def test_posted_receives_hide_transfers_behind_passes():
    problem = {"steps": 1, "micro_batch": 2, "dtype": "float32"}
    seconds = {
        name: simulate(
            schedule_of(Gpt(8, 64, 4, 16, 128, 32, pipeline_schedule=name, **problem), Grid(pipeline=4)), star(4)
        ).timeline.makespan
        for name in ("gpipe", "1f1b", DRIVEN)
    }
    assert seconds[DRIVEN] < seconds["1f1b"] < seconds["gpipe"]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_static_rules_look_at_their_own_order_only(schedule, stages):
    pipeline = Stages(stages, 7, 6, schedule=schedule)
    for stage in range(stages):
        order = "".join(pass_order(schedule, pipeline.first_state(stage)))
        assert order == "".join(name[0] for name in pipeline.order(stage))
        assert order.count("F") == order.count("B") == 6
        in_flight = max(order[:end].count("F") - order[:end].count("B") for end in range(13))
        assert in_flight == pipeline.in_flight(stage) == (6 if schedule == "gpipe" else min(6, stages - stage))


def test_a_message_driven_stage_takes_what_arrived_first_and_respects_its_limit():
    state = StageState(passes=4, warmup=0, limit=2, forward=2, backward=1, arrived=("F", "B"))
    assert next_pass(DRIVEN, state) == "F"
    assert next_pass(DRIVEN, state.after("F")) == "B"
    assert next_pass(DRIVEN, StageState(passes=4, warmup=0, limit=2)) is None


def test_no_other_message_travels_on_a_lane_of_posted_receives():
    schedule = schedule_of(gpt(batch=12, pipeline_schedule=DRIVEN), Grid(pipeline=3, x=3))
    ops = list(all_ops(schedule))
    posted = {message_lane(op) for op in ops if isinstance(op, Receive) and op.posted}
    assert len(posted) == 2
    users = {op.name for op in ops if getattr(op, "axis", "") == "pipeline" and message_lane(op) in posted}
    assert users == {"receive X", "receive dX", "send X", "send dX"}
    assert any(isinstance(op, Send) and message_lane(op) not in posted for op in ops)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": "interleaved"}, "interleave 2 or more"),
        ({"schedule": "gpipe", "chunks": 2}, "interleaved is accepted"),
        ({"limit": 3}, "message-driven, not for 1f1b"),
        ({"schedule": DRIVEN, "limit": -1}, "a whole number from 1"),
        ({"sizes": (1, 2, 1)}, "2 numbers from 1 that add up to 4 layers"),
        ({"sizes": (1, 2)}, "2 numbers from 1 that add up to 4 layers"),
        ({"sizes": (4, 0)}, "2 numbers from 1 that add up to 4 layers"),
    ],
)
def test_wrong_orders_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        Stages(2, 4, 4, **options)


def test_a_message_driven_stage_has_a_buffer_for_each_microbatch_that_its_limit_allows():
    def activations(limit):
        problem = gpt(batch=16, pipeline_schedule=DRIVEN, pipeline_limit=limit)
        return dict(schedule_of(problem, Grid(pipeline=2)).tensors["X"].copies)["microbatch"]

    assert [activations(limit) for limit in (1, 3, 8, 20)] == [1, 3, 8, 8]


@pytest.mark.parametrize("grid", [Grid(pipeline=3), Grid(pipeline=2, y=2)], ids=str)
def test_the_order_of_passes_is_read_from_a_timeline(grid):
    schedule = schedule_of(gpt(layers=4, batch=12, pipeline_schedule=DRIVEN, steps=1), grid)
    matrices = whole_matrices(schedule, 11)
    run = execute(schedule, matrices, Delayed(grid.size, 3))
    orders = pass_orders(schedule, run.timelines[0])
    assert len(orders) == grid.pipeline
    for stage, order in enumerate(orders):
        rank = grid.rank_at({"pipeline": stage})
        assert order == passes_of_first_layer(run.timelines[0], rank)
        assert order.count("F") == order.count("B") == 6
    simulated = pass_orders(schedule, simulate(schedule, star(grid.size)).timeline)
    assert [len(order) for order in simulated] == [12] * grid.pipeline
    assert simulated[-1] == "FB" * 6


def passes_of_first_layer(timeline, rank):
    """As `passes_of`, for stages of several layers: each product runs once for each layer."""
    spans = sorted((span for span in timeline.spans if span.rank == rank), key=lambda span: span.start)
    layers = len([span for span in spans if span.op == "QKV multiply"]) // 6
    return passes_of(timeline, rank)[::layers]


def test_the_order_of_other_pipelines_is_in_no_record():
    schedule = schedule_of(gpt(batch=12, steps=1), Grid(pipeline=3))
    assert pass_orders(schedule, simulate(schedule, star(3)).timeline) == ()
