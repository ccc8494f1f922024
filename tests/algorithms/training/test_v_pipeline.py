"""ZB-V: its order, executed, simulated and counted in memory."""

from collections import Counter

import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Communication, Receive, Send
from quadrille.algorithms.schedule.program import Pass, Repeat, walk
from quadrille.algorithms.schedule.v_order import v_order
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.layers import LOSS
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.pipeline import CHUNK, Stages
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.training.v_pipeline import buffers, gradient_buffers, pass_begins
from quadrille.algorithms.training.vocabulary import TABLE, TARGETS, TOKENS
from quadrille.experiments.predict.pipeline_slots import SlotSeconds, slots_in_time
from quadrille.simulator.simulate import Shortcuts, simulate
from tests.support.toy_machines import star
from tests.support.trainings import check_training, schedule_of

BIG = Adam(rate=0.03, decay=0.1, clip=0.05)
WIDTHS = (7, 11, 5, 13, 3, 9, 4, 6, 2)
STAGES_AND_MICROBATCHES = [(2, 1), (2, 2), (2, 5), (3, 7), (4, 3)]


def gpt(layers=4, batch=12, **options):
    sizes = {"hidden": 6, "heads": 3, "sequence": 3, "vocabulary": 11}
    defaults = {"dtype": "float64", "steps": 2, "adam": BIG, "micro_batch": 2, "pipeline_schedule": "zb-v"}
    return Gpt(layers=layers, batch=batch, **(sizes | defaults | options))


@pytest.mark.parametrize(("stages", "count"), STAGES_AND_MICROBATCHES)
def test_a_transformer_equals_serial(stages, count):
    check_training(gpt(layers=(4 if stages == 2 else 2) * stages, batch=2 * count), Grid(pipeline=stages))


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid(pipeline=2, x=3), {}),
        (Grid(pipeline=2, z=2, y=2), {"gathered": "keep"}),
        (Grid(pipeline=2, data=3, order=("pipeline", "y", "data")), {}),
        (Grid(pipeline=2, data=2), {"zero": 1}),
        (Grid(pipeline=2, data=2), {"zero": 2}),
        (Grid(pipeline=3, y=2), {"recompute": "full", "layers": 6}),
        (Grid(pipeline=2, x=3), {"attention": "unfused", "recompute": "selective"}),
        (Grid(pipeline=2), {"dropout": 0.3, "attention": "unfused"}),
        (Grid(pipeline=2), {"architecture": Architecture(norm="rms", gated=True, biases=False, positions="rotary")}),
        (Grid(pipeline=2), {"architecture": Architecture(shared_table=False)}),
        (Grid(pipeline=2, data=2), {"dtype": "float32"}),
    ],
    ids=str,
)
def test_other_axes_and_options_equal_serial(grid, options):
    check_training(gpt(batch=grid.data * grid.z * 18, micro_batch=6, **options), grid)


@pytest.mark.parametrize(
    ("scheme", "grid"),
    [
        ("megatron", Grid(pipeline=2, data=2, x=2)),
        ("optimus", Grid(pipeline=2, z=2, x=2)),
        ("tesseract", Grid(pipeline=2, y=2, z=2, x=2)),
        ("bian", Grid(pipeline=2, y=2, z=2, x=2)),
    ],
)
def test_every_scheme_equals_serial(scheme, grid):
    problem = gpt(batch=12 * grid.data * grid.z, micro_batch=4, hidden=8, heads=4, sequence=4)
    check_training(problem, grid, find_scheme(scheme))


@pytest.mark.parametrize("overlaps", [("oar", "ors"), ("oar", "ors", "oag")])
def test_overlaps_equal_serial(overlaps):
    check_training(gpt(batch=12), Grid(pipeline=2, z=2, x=3), overlaps=overlaps)


@pytest.mark.parametrize("microbatches", [1, 2, 5, 9, 16])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_each_pass_runs_once_and_after_what_it_needs(stages, microbatches):
    begins = pass_begins(stages, microbatches)
    assert len(begins) == 6 * stages * microbatches
    for (kind, part, microbatch), begin in begins.items():
        before = {"F": ("F", part - 1), "B": ("B", part + 1), "W": ("B", part)}[kind]
        needed = begins.get((*before, microbatch), begins["F", part, microbatch] if kind == "B" else -1)
        assert needed < begin


@pytest.mark.parametrize("stages", [2, 3, 5, 8])
def test_equal_passes_leave_only_the_idle_slots_of_filling_the_pipeline(stages):
    for microbatches in (2 * stages - 1, 4 * stages):
        last = max(pass_begins(stages, microbatches).values())
        assert last + 1 == 6 * microbatches + stages - 1


@pytest.mark.parametrize("stages", [2, 4, 6])
def test_no_stage_stores_more_chunks_than_the_first_stage_of_1f1b(stages):
    for row in buffers(stages, 4 * stages, "F", "W"):
        assert max(row) + 1 <= 2 * stages


@pytest.mark.parametrize("microbatches", [1, 4, 11])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_no_buffer_is_taken_before_it_is_free(stages, microbatches):
    for first, last in ("FB", "FW", "BW"):
        table = buffers(stages, microbatches, first, last)
        for stage in range(stages):
            used = {}
            for kind, chunk, microbatch in v_order(stages, stage, microbatches):
                buffer = table[stage][chunk * microbatches + microbatch]
                if kind == first:
                    assert buffer not in used
                    used[buffer] = chunk, microbatch
                elif kind == last:
                    assert used.pop(buffer) == (chunk, microbatch)
            assert not used


@pytest.mark.parametrize("microbatches", [1, 4, 11])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_gradient_is_taken_before_the_next_is_written_in_its_buffer(stages, microbatches):
    pipeline = Stages(stages, 2 * stages, microbatches, 2, "zb-v")
    begins, table = pass_begins(stages, microbatches), gradient_buffers(stages, microbatches)
    for stage in range(stages):
        taken = {}
        backward = [(chunk, number) for kind, chunk, number in v_order(stages, stage, microbatches) if kind == "B"]
        for chunk, microbatch in backward:
            part, buffer = pipeline.part(stage, chunk), table[stage][chunk * microbatches + microbatch]
            assert taken.get(buffer, -1) < begins["B", part, microbatch]
            taken[buffer] = begins["B", part - 1, microbatch] if part else begins["B", part, microbatch]


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_no_stage_sends_and_receives_on_one_lane_and_both_ends_of_a_message_agree(stages):
    schedule = schedule_of(gpt(layers=2 * stages), Grid(pipeline=stages))
    sent, received = set(), set()
    for stage in range(stages):
        coordinates = schedule.coordinates(stage)
        each = [*walk(schedule.program(coordinates), coordinates)]
        sends = {(stage, evaluate(op.to, at), op.lane) for op, at in each if isinstance(op, Send)}
        receives = {(evaluate(op.sender, at), stage, op.lane) for op, at in each if isinstance(op, Receive)}
        assert not {lane for *_, lane in sends} & {lane for *_, lane in receives}
        sent, received = sent | sends, received | receives
    assert sent == received
    assert len(sent) == 4 * (stages - 1)


def passes_of(program, coordinates, kind=None, chunk=0):
    """Kind, chunk and op of each op inside the passes of a program, in order."""
    for entry in program:
        if not isinstance(entry, Repeat):
            if kind is not None:
                yield kind, chunk, entry
            continue
        for index in entry.indices(coordinates):
            inside = entry.kind if isinstance(entry, Pass) else kind
            yield from passes_of(
                entry.body, coordinates.during(entry.loop, index), inside, index if entry.loop == CHUNK else chunk
            )


def timed_passes(schedule, stage, timeline):
    """Kind, chunk, op and span of each op inside the passes of a stage."""
    spans = {(span.op, span.index): span for span in timeline.unrolled().spans if span.rank == stage}
    instances = Counter()
    coordinates = schedule.coordinates(stage)
    for kind, chunk, op in passes_of(schedule.program(coordinates), coordinates):
        yield kind, chunk, op, spans[op.name, instances[op.name]]
        instances[op.name] += 1


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 5), (3, 4), (3, 9)])
def test_the_simulated_schedule_takes_as_long_as_the_walk_of_its_slots(stages, microbatches):
    pipeline = Stages(stages, 2 * stages, microbatches, 2, "zb-v")
    problem = Gpt(2 * stages, 64, 4, 16, 128, 2 * microbatches, micro_batch=2, pipeline_schedule="zb-v")
    schedule = schedule_of(problem, Grid(pipeline=stages))
    timeline = simulate(schedule, star(stages, bandwidth=1e30, latency=0.0)).timeline
    seconds, begins, ends = Counter(), [], []
    for stage in range(stages):
        timed = list(timed_passes(schedule, stage, timeline))
        for kind, chunk, op, span in timed:
            if not isinstance(op, Communication):
                seconds[kind, pipeline.part(stage, chunk)] += span.seconds / microbatches
        begins.append(0.0 if stage else timed[0][3].start)
        ends.append(max(span.end for *_, span in timed))
    each = {kind: [seconds[kind, part] for part in range(2 * stages)] for kind in "FBW"}
    slots = slots_in_time(pipeline, SlotSeconds(each["F"], each["B"], weights=each["W"], begins=begins))
    for stage in range(stages):
        assert max(slot.end for slot in slots if slot.stage == stage) == pytest.approx(ends[stage], rel=1e-9)


@pytest.mark.parametrize("grid", [Grid(pipeline=3, y=2), Grid(pipeline=2, x=2, data=2)], ids=str)
def test_a_pipeline_takes_equally_long_with_all_ranks_and_with_folded_ranks_and_time(grid):
    batch = 24 * grid.data * grid.z
    problem = Gpt(2 * grid.pipeline, 64, 4, 16, 128, batch, steps=1, micro_batch=2, pipeline_schedule="zb-v")
    schedule = schedule_of(problem, grid)
    folded, whole = (
        simulate(schedule, star(grid.size), shortcuts=Shortcuts(fold=fold, fold_time=fold)) for fold in (True, False)
    )
    assert folded.timeline.makespan == pytest.approx(whole.timeline.makespan, rel=1e-9)


def stored_elements(order, stage, microbatches=16):
    problem = Gpt(8, 64, 4, 16, 128, 2 * microbatches, micro_batch=2, dtype="float32", pipeline_schedule=order)
    schedule = schedule_of(problem, Grid(pipeline=4))
    stored = storage(schedule, schedule.coordinates(stage), Choices())
    return {name: stored.tensors[name] * stored.copies[name] for name in stored.tensors}


def test_each_stage_stores_as_many_activations_as_the_first_stage_of_1f1b():
    most = stored_elements("1f1b", 0)["N1"]
    assert [stored_elements("zb-v", stage)["N1"] for stage in range(4)] == [most] * 4


def test_the_first_stage_holds_embedding_and_loss_and_the_last_stage_hands_over():
    schedule = schedule_of(gpt(layers=6), Grid(pipeline=3))
    stored = [storage(schedule, schedule.coordinates(stage), Choices()).tensors for stage in range(3)]
    each = [{name for name, elements in tensors.items() if elements} for tensors in stored]
    assert [{TABLE, LOSS, TOKENS, TARGETS} <= tensors for tensors in each] == [True, False, False]
    assert ["X handed over" in tensors for tensors in each] == [False, False, True]


@pytest.mark.parametrize(
    ("stages", "sizes"), [((2, 2), (1, 1, 1, 1)), ((5, 4), (3, 2, 2, 2)), ((3, 2, 6), (2, 1, 3, 3, 1, 1))]
)
def test_the_first_chunk_of_a_stage_has_the_larger_half_of_its_layers(stages, sizes):
    pipeline = Stages(len(stages), sum(stages), 4, 2, "zb-v", sizes=stages)
    assert pipeline.part_sizes == sizes
    assert [pipeline.sum_of_stage(sizes, stage) for stage in range(len(stages))] == [*stages]


@pytest.mark.parametrize(("stages", "layers"), [(2, 6), (2, 7), (3, 8), (4, 11)])
def test_chunks_are_as_even_as_possible_and_the_first_chunk_of_a_stage_is_never_shorter(stages, layers):
    pipeline = Stages(stages, layers, 4, 2, "zb-v")
    sizes = pipeline.part_sizes
    assert sum(sizes) == layers and max(sizes) - min(sizes) <= 1
    assert all(sizes[stage] >= sizes[pipeline.part(stage, 1)] for stage in range(stages))


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid(pipeline=2), {"layers": 5}),
        (Grid(pipeline=3), {"layers": 8}),
        (Grid(pipeline=2, x=3), {"layers": 5, "stages": (2, 3)}),
        (Grid(pipeline=3), {"layers": 8, "stages": (2, 3, 3)}),
        (Grid(pipeline=2, data=2), {"layers": 5, "stages": (2, 3), "zero": 2}),
        (Grid(pipeline=2, y=2), {"layers": 6, "stages": (4, 2), "recompute": "full"}),
    ],
    ids=str,
)
def test_uneven_stages_equal_serial(grid, options):
    check_training(gpt(batch=grid.data * 18, micro_batch=6, **options), grid)


def test_a_buffer_has_room_for_the_longer_chunk_of_its_stage():
    schedule = schedule_of(gpt(layers=5, stages=(2, 3)), Grid(pipeline=2))
    of_stage = [storage(schedule, schedule.coordinates(stage), Choices()).copies["N1"] for stage in range(2)]
    each = [max(row) + 1 for row in buffers(2, 6, "F", "W")]
    assert of_stage == [each[0] * 1, each[1] * 2]


def mlp(rows, widths=WIDTHS, **options):
    defaults = {"dtype": "float64", "steps": 2, "adam": BIG, "micro_batch": 2, "pipeline_schedule": "zb-v"}
    return Mlp(widths, rows, **(defaults | options))


@pytest.mark.parametrize(("stages", "count"), STAGES_AND_MICROBATCHES)
def test_linear_layers_equal_serial(stages, count):
    check_training(mlp(rows=2 * count), Grid(pipeline=stages))


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid(pipeline=2, x=3), {"stages": (6, 2)}),
        (Grid(pipeline=3, z=2, y=2), {"gathered": "keep", "stages": (2, 3, 3)}),
        (Grid(pipeline=2, data=3, y=2, order=("pipeline", "y", "data")), {"zero": 1}),
        (Grid(pipeline=2, data=2), {"zero": 2, "dtype": "float32"}),
        (Grid(pipeline=2, data=2), {"widths": (7, 11, 5, 13, 3)}),
    ],
    ids=str,
)
def test_linear_layers_on_other_axes_equal_serial(grid, options):
    check_training(mlp(rows=grid.data * grid.z * 24, micro_batch=6, **options), grid)


def test_linear_layers_take_equally_long_with_all_ranks_and_with_folded_ranks_and_time():
    schedule = schedule_of(mlp(rows=48, steps=1, micro_batch=2, dtype="float32"), Grid(pipeline=3, y=2))
    folded, whole = (
        simulate(schedule, star(6), shortcuts=Shortcuts(fold=fold, fold_time=fold)) for fold in (True, False)
    )
    assert folded.timeline.makespan == pytest.approx(whole.timeline.makespan, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "sizes", "message"),
    [
        ((2, 3, 4, 2), (), "pipeline-schedule zb-v: layers = 3: two chunks on each of 2 stages need 4 layers or more"),
        ((2, 8, 4, 3), (), "interleave 3: pipeline-schedule zb-v has two chunks on a stage: 2 is accepted"),
        ((2, 8, 4, 2), (1, 2, 3, 2), "stages 1,2,3,2: 2 numbers from 2 that add up to 8 layers are accepted"),
        ((2, 8, 4, 2), (7, 1), "stages 7,1: 2 numbers from 2 that add up to 8 layers are accepted"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, sizes, message):
    with pytest.raises(InputError, match=message):
        Stages(*arguments, schedule="zb-v", sizes=sizes)


def test_one_stage_has_whole_backward_passes():
    split, whole = (schedule_of(gpt(pipeline_schedule=order), Grid(y=3)) for order in ("zb-v", "1f1b"))
    assert split.roles == whole.roles
    assert split.tensors == whole.tensors
