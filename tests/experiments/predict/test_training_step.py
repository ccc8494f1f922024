"""One training step predicted: flop/s, exposure and memory follow from the schedule and add up."""

from dataclasses import replace
from functools import cache

import msgspec
import pytest

from quadrille.algorithms.analysis.volumes import kernel_work, volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.formats.measured_rows import Achieved
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.program import ops
from quadrille.algorithms.training.architecture import LLAMA, Architecture
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.memory import KINDS, OFFLOAD_KINDS, largest_memory, memory_bytes_by_kind
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.predict.sampled_step import closed_form_seconds
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.simulator.machine.rooflines import attention_seconds, best_product_seconds, pass_seconds
from quadrille.topologies.machines.machine import Device, Machine
from quadrille.topologies.nodes.peak_shares import A100_PEAK, A100_PRODUCTS, BEST_PRODUCTS, peak_shares

DEVICE = Device(
    peak_flops_per_second={"float32": 1e12, "bfloat16": 2e12},
    memory_bytes_per_second=1e11,
    memory_bytes=1e9,
    overhead_seconds=1e-6,
)
PROBLEM = Gpt(3, 30, 6, 7, 23, 12)


def machine(hosts, **changes):
    topology = {"family": "star", "hosts": hosts, "bandwidth_bytes_per_second": 1e9, "latency_seconds": 1e-6}
    return Machine(name="toy", topology=topology, device=msgspec.structs.replace(DEVICE, **changes))


def training(grid, problem=PROBLEM):
    return TrainingExperiment(problem, grid, Scheme4D(), ExecutionOptions(choices=Choices("library")))


def predicted(grid, problem=PROBLEM, **changes):
    return predict_record_and_timeline(training(grid, problem), machine(grid.size, **changes))[0]


@pytest.mark.parametrize("grid", [Grid(), Grid(x=3), Grid(data=2, z=3), Grid(data=2, z=2, y=2, x=3)])
def test_rates_are_flops_by_seconds_and_gpus(grid):
    found = predicted(grid)
    flops, spent = (
        step_flops(ModelShape("odd", 3, 30, 6, 7, 23), 12, "fused", "none"),
        found.seconds_per_iteration * grid.size,
    )
    assert found.model_flops_per_second_per_gpu * spent == pytest.approx(flops.model)
    assert found.hardware_flops_per_second_per_gpu * spent == pytest.approx(flops.hardware)
    assert found.percent_of_peak == pytest.approx(100 * found.hardware_flops_per_second_per_gpu / 1e12)


@pytest.mark.parametrize("grid", [Grid(z=2, x=2), Grid(data=2, y=3)], ids=str)
def test_a_llama_is_predicted_as_it_is_carried_out(grid):
    """Flop and memory are those of its own products: of three in an MLP, four more columns of each."""
    problem = replace(PROBLEM, hidden=24, architecture=replace(LLAMA, key_heads=2), inner=40)
    found, wider = predicted(grid, problem), predicted(grid, replace(problem, inner=44))
    assert found.model_flops_per_second_per_gpu * found.seconds_per_iteration * grid.size == pytest.approx(
        step_flops(problem.shape, problem.batch).model
    )
    more = 4 * 3 * problem.layers * problem.hidden // (grid.x * grid.y * grid.z) * 4
    assert wider.memory_bytes_by_kind["gradients"] - found.memory_bytes_by_kind["gradients"] == more
    assert wider.seconds_per_iteration > found.seconds_per_iteration


def test_what_happens_once_is_not_of_an_iteration():
    one = predicted(Grid(z=2))
    three = predicted(Grid(z=2), replace(PROBLEM, steps=3))
    assert three.seconds_per_iteration == pytest.approx(one.seconds_per_iteration, rel=1e-6)
    once = sum(op.seconds for op in one.ops if op.name.startswith(("zero mean of", "zero square of")))
    assert once > 0
    assert one.seconds_per_iteration == pytest.approx(one.seconds - once, rel=1e-9)


def test_exposure_is_along_long_axes_and_no_more_than_the_iteration():
    found = predicted(Grid(data=2, z=2, y=2, x=3))
    assert set(found.exposed_seconds_by_axis) == {"data", "z", "y", "x"}
    assert all(seconds > 0 for seconds in found.exposed_seconds_by_axis.values())
    assert sum(found.exposed_seconds_by_axis.values()) < found.seconds_per_iteration
    assert predicted(Grid()).exposed_seconds_by_axis == {}


def test_what_a_step_is_made_of_adds_up_to_one_iteration():
    one, three = (simulated_step(training(Grid(data=2, z=3), replace(PROBLEM, steps=n)), machine(6)) for n in (1, 3))
    for step in (one, three):
        assert step.compute + step.latency + step.transfer - step.hidden + step.waiting == pytest.approx(step.seconds)
    for name in ("seconds", "compute", "latency", "transfer", "exposed", "product_flops"):
        assert getattr(three, name) == pytest.approx(getattr(one, name), rel=1e-6), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_by_kind_adds_up_to_the_buffers(dtype, zero):
    problem = replace(PROBLEM, dtype=dtype, zero=zero)
    grid = Grid(data=2, z=2, x=3)
    schedule = gpt_schedule(problem, grid, Scheme4D())
    most = sum(largest_memory(schedule, Choices("library")).values())
    assert most == volumes(schedule, Choices("library")).peak_bytes_per_rank_max
    if (dtype, zero) == ("bfloat16", 1):
        assert sum(predicted(grid, problem).memory_bytes_by_kind.values()) == most


def test_states_have_the_bytes_per_parameter_of_mixed_precision():
    schedule = gpt_schedule(replace(PROBLEM, dtype="bfloat16"), Grid(), Scheme4D())
    kinds = memory_bytes_by_kind(schedule, schedule.coordinates(0), Choices())
    parameters = ModelShape("odd", 3, 30, 6, 7, 23).parameters
    assert kinds["parameters"] == 2 * parameters
    assert kinds["optimizer"] == 12 * parameters
    assert kinds["gradients"] == 4 * parameters
    assert tuple(kinds) == tuple(kind for kind in KINDS if kind not in OFFLOAD_KINDS)


def test_gathered_weights_are_those_of_an_axis_that_shards():
    alone = gpt_schedule(PROBLEM, Grid(), Scheme4D())
    sharded = gpt_schedule(PROBLEM, Grid(z=2), Scheme4D())
    assert memory_bytes_by_kind(alone, alone.coordinates(0), Choices())["gathered weights"] == 0
    products = 12 * 30 * 30 + 23 * 30
    assert memory_bytes_by_kind(sharded, sharded.coordinates(0), Choices())["gathered weights"] == 4 * products


def test_a_step_fits_where_its_fullest_rank_does():
    need = sum(predicted(Grid(x=2)).memory_bytes_by_kind.values())
    assert predicted(Grid(x=2), memory_bytes=float(need)).fits
    assert not predicted(Grid(x=2), memory_bytes=float(need - 1)).fits


def numbers(generation, **changes):
    found = {one.quantity.removeprefix("achieved."): one.number for one in peak_shares(generation)}
    whole = ("tile_rows", "tile_columns", "multiprocessors")
    return Achieved(**{name: int(value) if name in whole else value for name, value in found.items()}, **changes)


@pytest.mark.parametrize("row", A100_PRODUCTS, ids=str)
def test_products_of_an_a100_are_met_within_seven_percent(row):
    seconds = best_product_seconds(row.count, row.m, row.k, row.n, A100_PEAK, numbers("ampere"))
    measured = 2 * row.count * row.m * row.k * row.n / row.flops_per_second
    assert seconds == pytest.approx(measured, rel=0.07)


@pytest.mark.parametrize("generation", ["volta", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"])
def test_other_gpus_stay_below_their_best_product_as_far_as_an_a100_does(generation):
    def below(name):
        row, peak, _ = BEST_PRODUCTS[name]
        seconds = best_product_seconds(1, row.m, row.k, row.n, peak, numbers(name))
        return 2 * row.m * row.k * row.n / seconds / row.flops_per_second

    assert below(generation) == pytest.approx(below("ampere"), rel=0.05)
    assert below(generation) < 1


LONG = replace(PROBLEM, hidden=768, heads=6, sequence=2048)


def attention(problem=LONG, **changes):
    schedule = gpt_schedule(problem, Grid(), Scheme4D())
    found = {}
    for op in ops(schedule.roles[0].program):
        if isinstance(op, Kernel) and op.function in ("attention", "attention_gradient"):
            work = kernel_work(op, schedule, schedule.coordinates(0))
            found[op.function] = attention_seconds(
                work.squares, work.touched, 312e12, 2e12, numbers("ampere", **changes)
            )
    return found


def test_unfused_attention_takes_longer_and_twice_as_long_backward():
    fused, unfused = attention(), attention(attention="unfused")
    assert unfused["attention_gradient"] == pytest.approx(2 * unfused["attention"])
    assert all(unfused[function] > 2 * fused[function] for function in fused)


def test_rotary_positions_are_a_pass_of_their_own_where_attention_is_unfused():
    """Queries and keys of every group, read and written; fused they are turned on their way."""
    still, turning = (
        replace(LONG, architecture=Architecture(key_heads=2, positions=positions)) for positions in ("none", "rotary")
    )
    assert attention(still) == attention(turning)
    before, after = (attention(problem, attention="unfused") for problem in (still, turning))
    passed = 2 * LONG.batch * 2048 * (768 + 256) * 4 / (2e12 * numbers("ampere").memory_share)
    assert after["attention"] - before["attention"] == pytest.approx(passed, rel=1e-6)
    assert after["attention_gradient"] - before["attention_gradient"] == pytest.approx(2 * passed, rel=1e-6)


def test_fused_attention_in_a_window_leaves_out_products_and_unfused_attention_only_masks_them():
    whole, windowed = (replace(LONG, architecture=Architecture(window=window)) for window in (0, 1024))
    share = (2048**2 - 1024**2) / 2048**2
    for function, seconds in attention(windowed).items():
        assert seconds == pytest.approx(share * attention(whole)[function])
    assert attention(windowed, attention="unfused") == attention(whole, attention="unfused")


def test_groups_of_heads_have_the_squares_of_all_their_queries():
    plain, grouped = (
        attention(replace(LONG, architecture=Architecture(key_heads=key_heads)), attention="unfused")
        for key_heads in (0, 2)
    )
    assert grouped == pytest.approx(plain, rel=1e-12)


def test_sums_of_rmsnorm_are_passes_as_those_of_layernorm_are_and_its_squares_are_free_where_fused():
    fused, unfused = numbers("ampere"), numbers("ampere", pointwise="unfused")
    assert pass_seconds("row_squares", 700, 1e3, fused) == 0
    assert pass_seconds("row_squares", 700, 1e3, unfused) == pytest.approx(0.7 / unfused.memory_share)
    for achieved in (fused, unfused):
        assert pass_seconds("rms_sums", 700, 1e3, achieved) == pass_seconds("normalise_sums", 700, 1e3, achieved) > 0


def test_unfused_passes_cost_what_a_products_epilogue_saves():
    fused, unfused = numbers("ampere"), numbers("ampere", pointwise="unfused")
    whole = pytest.approx(0.7 / fused.memory_share)
    assert pass_seconds("add_bias", 700, 1e3, fused) == 0
    assert pass_seconds("add_bias", 700, 1e3, unfused) == whole
    assert pass_seconds("gelu", 700, 1e3, fused) == pass_seconds("gelu", 700, 1e3, unfused) == whole


@pytest.mark.parametrize(("item_bytes", "eager_bytes"), [(2, 6 + 8 + 4 + 12 + 6), (4, 8 + 4 + 12)])
def test_unfused_cross_entropy_touches_what_the_kernels_of_pytorch_touch(item_bytes, eager_bytes):
    """Cast, log-softmax, zeroed gradient, its gradient and cast back; without casts in 32 bits."""

    def seconds(**changes):
        achieved = numbers("ampere", **changes)
        touches = {"row_maxima": 1, "exponential_sums": 1, "cross_entropy": 2}
        return achieved.memory_share * sum(
            pass_seconds(function, 1000 * times * item_bytes, 1e3, achieved, item_bytes)
            for function, times in touches.items()
        )

    assert seconds(pointwise="unfused") == pytest.approx(eager_bytes)
    assert seconds() == pytest.approx(4 * item_bytes)


def test_a_device_that_says_what_it_achieves_is_slower_than_its_peaks():
    at_peak = predicted(Grid(x=2))
    short = predicted(Grid(x=2), achieved=numbers("ampere"))
    assert short.seconds_per_iteration > at_peak.seconds_per_iteration


@cache
def pipelined(stages, microbatches, interleave=1):
    """Seconds of a step on links that cost nothing."""
    problem = Gpt(6, 64, 4, 32, 17, microbatches, micro_batch=1, interleave=interleave)
    free = Machine(
        name="free",
        topology={"family": "star", "hosts": 3, "bandwidth_bytes_per_second": 1e15, "latency_seconds": 0},
        device=msgspec.structs.replace(DEVICE, memory_bytes_per_second=1e12, overhead_seconds=0),
    )
    return predict_record_and_timeline(training(Grid(pipeline=stages), problem), free)[0].seconds_per_iteration


def test_a_pipelines_schedule_takes_what_the_closed_form_says():
    """m max t + (Σ t - max t) / v, and the update: the form that the study of published training uses."""
    whole = pipelined(1, 5) - pipelined(1, 4)
    update = pipelined(1, 5) - 5 * whole
    slowest = pipelined(3, 7) - pipelined(3, 6)
    assert slowest > whole / 3
    for microbatches, interleave in ((5, 1), (6, 2)):
        form = microbatches * slowest + (whole - slowest) / interleave
        assert form + update / 3 <= pipelined(3, microbatches, interleave) * 1.02
        assert form + update >= pipelined(3, microbatches, interleave) * 0.98


@pytest.mark.parametrize("layers", [13, 14])
def test_layers_with_windows_are_extrapolated_in_whole_periods(layers):
    """Windows are a quarter of the sequence, so a mean of wrong layers would be far off."""
    architecture = replace(LLAMA, window=512, global_every=6)
    experiment = training(Grid(), Gpt(layers, 256, 4, 2048, 512, 4, architecture=architecture))
    model = ClosedFormModel(machine(1), "float32", 1, experiment.execution.choices)
    whole = model.closed_form(experiment.unchecked_schedule()).seconds
    assert closed_form_seconds(experiment, model) == pytest.approx(whole, rel=1e-9)
