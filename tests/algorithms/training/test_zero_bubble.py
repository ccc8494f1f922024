"""ZB-H1: the order of its passes, and split backward passes, executed, simulated and counted in memory."""

import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Pointwise, Send, reads, writes
from quadrille.algorithms.schedule.pass_rules import pass_order
from quadrille.algorithms.schedule.program import Pass, Repeat, ops, repeats
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.pipeline import Stages
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.training.zero_bubble import split_backward
from quadrille.experiments.predict.pipeline_slots import SlotSeconds, stage_ends
from quadrille.simulator.simulate import Shortcuts, simulate
from tests.support.toy_machines import PEAK, star
from tests.support.trainings import bits, check_training, schedule_of, trained, whole_matrices

BIG = Adam(rate=0.03, decay=0.1, clip=0.05)
ZERO_BUBBLE = "zb-h1"
STAGES_AND_MICROBATCHES = [(2, 1), (2, 4), (3, 7), (4, 2), (4, 5)]


def gpt(layers=3, batch=12, **options):
    sizes = {"hidden": 6, "heads": 3, "sequence": 3, "vocabulary": 11}
    defaults = {"dtype": "float64", "steps": 2, "adam": BIG, "micro_batch": 2, "pipeline_schedule": ZERO_BUBBLE}
    return Gpt(layers=layers, batch=batch, **(sizes | defaults | options))


def mlp(rows=24, widths=(7, 11, 5, 13, 3), **options):
    defaults = {"dtype": "float64", "steps": 2, "adam": BIG, "micro_batch": 2, "pipeline_schedule": ZERO_BUBBLE}
    return Mlp(widths, rows, **(defaults | options))


@pytest.mark.parametrize(("stages", "count"), STAGES_AND_MICROBATCHES)
def test_a_transformer_equals_serial(stages, count):
    check_training(gpt(layers=5, batch=2 * count), Grid(pipeline=stages))


@pytest.mark.parametrize(("stages", "count"), STAGES_AND_MICROBATCHES)
def test_linear_layers_equal_serial(stages, count):
    check_training(mlp(rows=2 * count), Grid(pipeline=stages, y=2))


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid(pipeline=2, x=3), {}),
        (Grid(pipeline=2, z=2, y=2), {"gathered": "keep"}),
        (Grid(pipeline=2, data=3, order=("pipeline", "y", "data")), {}),
        (Grid(pipeline=2, data=2), {"zero": 1}),
        (Grid(pipeline=2, data=2), {"zero": 2}),
        (Grid(pipeline=3, y=2), {"recompute": "full"}),
        (Grid(pipeline=2, x=3), {"attention": "unfused", "recompute": "selective"}),
        (Grid(pipeline=3), {"dropout": 0.3, "attention": "unfused"}),
        (Grid(pipeline=3), {"stages": (1, 2, 3), "layers": 6}),
        (Grid(pipeline=2), {"architecture": Architecture(norm="rms", gated=True, biases=False, positions="rotary")}),
        (Grid(pipeline=2, data=2), {"dtype": "float32"}),
    ],
    ids=str,
)
def test_other_axes_and_options_equal_serial(grid, options):
    check_training(gpt(batch=grid.data * grid.z * 18, micro_batch=6, **options), grid)


@pytest.mark.parametrize(
    ("scheme", "sequence_parallel", "grid"),
    [
        ("megatron", False, Grid(pipeline=2, data=2, x=2)),
        ("megatron", True, Grid(pipeline=2, data=2, x=2)),
        ("optimus", False, Grid(pipeline=2, z=2, x=2)),
        ("tesseract", False, Grid(pipeline=2, y=2, z=2, x=2)),
        ("bian", False, Grid(pipeline=2, y=2, z=2, x=2)),
    ],
)
def test_every_scheme_equals_serial(scheme, sequence_parallel, grid):
    problem = gpt(2, 12 * grid.data * grid.z, micro_batch=4, hidden=8, heads=4, sequence=4)
    check_training(problem, grid, find_scheme(scheme, sequence_parallel=sequence_parallel))


@pytest.mark.parametrize("overlaps", [("oar", "ors"), ("oar", "ors", "oag")])
def test_overlaps_equal_serial(overlaps):
    check_training(gpt(batch=12), Grid(pipeline=2, z=2, x=3), overlaps=overlaps)


def test_linear_layers_on_uneven_stages_of_all_axes_equal_serial():
    check_training(mlp(rows=24, stages=(1, 3)), Grid(pipeline=2, data=2, z=2, y=2, x=2))


def test_microbatches_are_added_in_the_order_of_1f1b():
    grid = Grid(pipeline=3, y=2)
    runs = []
    for order in ("1f1b", ZERO_BUBBLE):
        schedule = schedule_of(gpt(batch=10, dtype="float32", pipeline_schedule=order), grid)
        runs.append(bits(trained(schedule, whole_matrices(schedule, 11))))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 9])
def test_the_rule_keeps_the_limits_of_each_stage(stages, microbatches):
    pipeline = Stages(stages, 7, microbatches, schedule=ZERO_BUBBLE)
    for stage in range(stages):
        order = "".join(pass_order(ZERO_BUBBLE, pipeline.first_state(stage)))
        assert order.count("F") == order.count("B") == order.count("W") == microbatches
        begun = [{kind: order[:end].count(kind) for kind in "FBW"} for end in range(len(order) + 1)]
        assert all(counts["F"] >= counts["B"] >= counts["W"] for counts in begun)
        assert max(counts["F"] - counts["B"] for counts in begun) == min(microbatches, stages - stage)
        assert max(counts["B"] - counts["W"] for counts in begun) == min(microbatches, stage + 1)
        assert max(counts["F"] - counts["W"] for counts in begun) == min(microbatches, stages)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 11])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_loops_of_the_program_follow_the_rule(stages, microbatches):
    schedule = schedule_of(gpt(layers=6, batch=2 * microbatches, steps=1), Grid(pipeline=stages))
    pipeline = Stages(stages, 6, microbatches, schedule=ZERO_BUBBLE)
    for stage in range(stages):
        coordinates = schedule.coordinates(stage)
        passes = list(passes_of(schedule.program(coordinates), coordinates))
        assert "".join(kind for kind, _ in passes) == "".join(pass_order(ZERO_BUBBLE, pipeline.first_state(stage)))
        for letter in "FBW":
            assert [number for kind, number in passes if kind == letter] == list(range(microbatches))


def passes_of(program, coordinates):
    """Kind and microbatch of each pass of a program, in order."""
    for entry in (entry for entry in program if isinstance(entry, Repeat)):
        for index in entry.indices(coordinates):
            if isinstance(entry, Pass):
                yield entry.kind, index
            else:
                yield from passes_of(entry.body, coordinates.during(entry.loop, index))


def bodies_of(role):
    """Ops of the passes of each kind in the program of a role."""
    bodies = {kind: [] for kind in "FBW"}
    for entry in repeats(role.program):
        if isinstance(entry, Pass):
            bodies[entry.kind] += ops(entry.body)
    return bodies


@pytest.mark.parametrize("problem", [gpt(), mlp()], ids=["gpt", "mlp"])
def test_no_w_pass_sends_or_computes_what_a_b_pass_reads(problem):
    schedule = schedule_of(problem, Grid(pipeline=2))
    for role in schedule.roles:
        bodies = bodies_of(role)
        assert not any(isinstance(op, Send) for op in bodies["W"])
        products = {op.name for op in bodies["W"] if op.name.endswith("multiply dW")}
        assert products and not products & {op.name for op in bodies["B"]}
        written = {name for op in bodies["W"] for name in writes(op)}
        assert not written & {name for op in bodies["B"] for name in reads(op)}


@pytest.mark.parametrize(
    "options", [{"recompute": "full"}, {"attention": "unfused", "recompute": "selective"}], ids=str
)
def test_recomputation_and_gradients_of_normalisations_stay_in_b_passes(options):
    for role in schedule_of(gpt(**options), Grid(pipeline=3, x=3)).roles:
        bodies = bodies_of(role)
        in_b = ("again attention", "norm2 sum dγ dβ", "add dnorm2 γ")
        assert {op.name for op in bodies["B"]} >= set(in_b)
        assert not [op.name for op in bodies["W"] if op.name.startswith(("again", "norm", "add dnorm"))]
        assert {op.name for op in bodies["W"]} >= {"up multiply dW", "up sum db", "up scatter dW", "add dup W"}


def stored_elements(order, stage):
    problem = Gpt(8, 64, 4, 16, 128, 32, micro_batch=2, dtype="float32", pipeline_schedule=order)
    schedule = schedule_of(problem, Grid(pipeline=4))
    held = storage(schedule, schedule.coordinates(stage), Choices())
    return {name: held.tensors[name] * held.copies[name] for name in held.tensors}


def test_stages_store_as_many_microbatches_as_the_first_and_gradients_of_those_that_wait():
    for stage in range(4):
        split, whole = (stored_elements(order, stage) for order in (ZERO_BUBBLE, "1f1b"))
        assert split["N1"] == stored_elements("1f1b", 0)["N1"]
        assert split["U"] == whole["U"]
        assert split["X2"] == whole["X2"]
        assert split["dU"] == whole["dU"] * 2 * (stage + 1)
        assert split["dX saved 0"] == whole["dN1"] * 2 * (stage + 1)


def test_zero_bubbles_shorten_a_step_of_many_microbatches():
    seconds = {}
    for order in ("1f1b", ZERO_BUBBLE):
        problem = Gpt(4, 64, 4, 16, 128, 32, steps=1, micro_batch=2, dtype="float32", pipeline_schedule=order)
        seconds[order] = simulate(schedule_of(problem, Grid(pipeline=4)), star(4)).timeline.makespan
    assert seconds[ZERO_BUBBLE] < seconds["1f1b"]


@pytest.mark.parametrize("microbatches", [2, 4, 9])
@pytest.mark.parametrize("order", ["1f1b", ZERO_BUBBLE])
def test_the_simulated_schedule_takes_as_long_as_the_walk_of_its_slots(order, microbatches):
    width, rows, stages = 64, 16, 4
    problem = mlp(rows=rows * microbatches, widths=(width,) * 5, micro_batch=rows, steps=1, pipeline_schedule=order)
    machine = star(stages, bandwidth=1e30, latency=0.0)
    simulated = simulate(schedule_of(problem, Grid(pipeline=stages)), machine).timeline.makespan
    product = 2 * rows * width**2 / PEAK
    inputs = [0.0, product, product, product]  # the first layer computes no gradient of its input
    weights = [product] * stages
    times = SlotSeconds(weights, inputs, weights=weights)
    if order == "1f1b":
        times = SlotSeconds(weights, [product + seconds for seconds in inputs])
    ends = stage_ends(Stages(stages, stages, microbatches, schedule=order), times)
    assert simulated == pytest.approx(max(ends), rel=1e-9)


@pytest.mark.parametrize("grid", [Grid(pipeline=3, y=2), Grid(pipeline=2, z=2, x=2)], ids=str)
def test_a_pipeline_takes_equally_long_with_all_ranks_and_with_folded_ranks_and_time(grid):
    batch = 24 * grid.data * grid.z
    problem = Gpt(2 * grid.pipeline, 64, 4, 16, 128, batch, steps=1, micro_batch=2, pipeline_schedule=ZERO_BUBBLE)
    schedule = schedule_of(problem, grid)
    folded, whole = (
        simulate(schedule, star(grid.size), shortcuts=Shortcuts(fold=fold, fold_time=fold)) for fold in (True, False)
    )
    assert folded.extent.folded
    assert folded.timeline.makespan == pytest.approx(whole.timeline.makespan, rel=1e-9)


def test_several_chunks_are_refused():
    with pytest.raises(InputError, match="pipeline-schedule zb-h1: a stage has one chunk of layers"):
        Stages(2, 4, 4, 2, ZERO_BUBBLE)


def test_one_stage_has_whole_backward_passes():
    split, whole = (schedule_of(gpt(pipeline_schedule=order), Grid(y=2)) for order in (ZERO_BUBBLE, "1f1b"))
    assert split.roles == whole.roles
    assert split.tensors == whole.tensors


def kernel(name, into, *sources):
    return Pointwise(name=name, function="copy", into=into, sources=sources)


def test_gradients_of_weights_read_what_their_b_pass_has_computed():
    body = (
        kernel("weights 1", "dW1", "dX"),
        kernel("change 1", "dX", "dX"),
        kernel("weights 2", "dW2", "dX"),
        kernel("inner", "dU", "dX"),
        kernel("weights 3", "dW3", "dU"),
        kernel("weights 4", "dW4", "N"),
        kernel("change 2", "dX", "dU"),
    )
    split = split_backward(body, ("dX", "N"), ())
    assert [op.name for op in split.inputs] == ["save dX saved 0", "change 1", "save dX saved 1", "inner", "change 2"]
    assert [(op.name, op.sources) for op in split.weights] == [
        ("weights 1", ("dX saved 0",)),
        ("weights 2", ("dX saved 1",)),
        ("weights 3", ("dU",)),
        ("weights 4", ("N",)),
    ]
    assert (split.kept, split.stored) == ({"dU"}, {"N"})
    assert dict(split.saved) == {"dX saved 0": "dX", "dX saved 1": "dX"}


def test_gradients_of_weights_in_a_loop_with_what_they_read_are_refused():
    loop = Repeat("panel", 3, (kernel("inner", "dU", "dX"), kernel("weights", "dW", "dU"), kernel("add", "dX", "dU")))
    with pytest.raises(InputError, match="a loop over panels writes dU"):
        split_backward((loop,), ("dX",), ())
