"""The study of published training runs: what is judged, what is not, and how far off it is."""

import csv
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape, gpt_schedule
from quadrille.algorithms.training.memory import largest_memory
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.pipeline import Stages
from quadrille.experiments.predict.pipeline_slots import SlotSeconds, stage_ends
from quadrille.simulator.simulate import Limits, simulate
from quadrille.simulator.symmetry.even_shards import with_even_shards
from quadrille.studies.published_training.claimed_steps import (
    OVERLAPS,
    UNFUSED,
    ClaimedTraining,
    paper_grid,
    step_time,
)
from quadrille.studies.published_training.claims import (
    AXONN_1F1B,
    AXONN_80B,
    LARGEST,
    SUMMIT_RUNS,
    ClaimPrediction,
    predicted_claims,
    relative_error,
)
from quadrille.studies.published_training.layer_times import ATTENTION_DROPOUT, MEGATRON, PassSeconds, layer_times
from quadrille.studies.published_training.machine_calibration import TrainingCalibration, calibrate
from quadrille.studies.published_training.megatron_search import (
    MEGATRON_CORE,
    PLAIN_1F1B,
    MegatronSetup,
    fastest,
    megatron_runs,
)
from quadrille.studies.published_training.memory import peak_bytes
from quadrille.studies.published_training.published_runs import PublishedRun, layers_of_stages, run_or_reason
from quadrille.studies.published_training.report import Claim, claim_lines, nearest_assumption
from quadrille.studies.published_training.study import ROWS, judge, published_training, runs_of
from quadrille.studies.published_training.time_limit import run_with_time_limit
from quadrille.studies.published_training.training_rows import read_rows
from quadrille.studies.published_training.training_step import machine_for, slot_seconds, stage_parameters, step_seconds
from quadrille.studies.published_training.zero_sharding import ShardingSeconds, zero_layer_seconds
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.nodes.gpus import A100_40GB, A100_80GB
from tests.support.quadrille import called

PLAIN_FUSED = MegatronSetup(sequence_parallel=False, interleaving=False)
SC21 = "Narayanan 2021 Megatron PTD-P (SC21)"


@pytest.fixture(scope="module")
def own():
    return read_rows(ROWS)


@pytest.fixture(scope="module")
def runs(own):
    return runs_of(own)


MOSAIC = "MosaicML llm-foundry MPT benchmarks"
JEAN_ZAY = "BigScience BLOOM tuning chronicles"


@pytest.fixture
def rows_file(tmp_path, own):
    """Writes a file of the project's rows with these ids, fields of all of them changed."""

    def write(ids, **changes):
        path = tmp_path / "rows.csv"
        chosen = [{**row.columns, **changes} for row in own if row.id in ids]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(own[0].columns))
            writer.writeheader()
            writer.writerows(chosen)
        return str(path)

    return write


def test_jean_zay_is_met_by_rows_that_nothing_was_learnt_from(own, rows_file):
    answer = published_training(rows_file({row.id for row in own if row.columns["paper"] == JEAN_ZAY}))
    spreads = answer.summary.by_source
    assert spreads[f"{JEAN_ZAY}: time"].rows > 60 and spreads[f"{JEAN_ZAY}: time"].median <= 0.10
    assert spreads[f"{JEAN_ZAY}: memory"].rows > 40 and spreads[f"{JEAN_ZAY}: memory"].median <= 0.12
    learnt = {row for one in answer.calibration for row in one.rows.values()}
    assert learnt and not learnt & {row.id for row in answer.rows if row.role == "judged"}


def test_sc21_is_met_without_any_training_row(own, runs, rows_file, capsys):
    answer = published_training(rows_file({row.id for row in own if row.columns["paper"] == SC21}))
    spread = answer.summary.by_source[f"{SC21}: time"]
    assert spread.rows == 8
    assert spread.mean <= 0.05
    assert spread.worst <= 0.12
    assert not any(one.machine == "selene" for one in answer.calibration)
    assert {row.reason for row in answer.rows if row.role == "skipped"} == {
        "the same run as another row that is printed in more detail"
    }
    assert all(row.flops == "hardware" for row in answer.rows if row.metric == "model_flops_per_gpu")
    assert "310.1B" in capsys.readouterr().out


def test_rows_that_teach_are_never_judged(own, runs):
    chosen = [(row, runs[row.id]) for row in own if isinstance(runs[row.id], PublishedRun)]
    jean_zay = [(row, run) for row, run in chosen if run.machine == "jean-zay-a100"]
    site = calibrate("jean-zay-a100", jean_zay, frozenset({"jean-zay-a100"}))
    assert set(site.rows) == {"between", "rest"}
    assert 0 < site.between < 1
    taught = {row.id: row for row, _ in jean_zay if row.id in site.rows.values()}
    for row in taught.values():
        found = judge(row, runs[row.id], None, {"jean-zay-a100": site})
        assert found.role == "calibration"
        assert found.relative_error == pytest.approx(0, abs=1e-6)
    timed = taught[site.rows["between"]]
    twin = next(row for row, _ in jean_zay if row.run == timed.run and row.columns["metric"] == "model_flops_per_gpu")
    assert judge(twin, runs[twin.id], timed, {"jean-zay-a100": site}).role == "calibration"


def test_a_machine_without_a_slow_network_learns_nothing_about_it(own, runs):
    selene = [
        (row, runs[row.id])
        for row in own
        if isinstance(runs[row.id], PublishedRun) and runs[row.id].machine == "selene"
    ]
    assert calibrate("selene", selene, frozenset()) == TrainingCalibration("selene")


@given(layers=st.integers(1, 200), stages=st.integers(1, 70))
def test_stages_hold_all_layers(layers, stages):
    assert sum(layers_of_stages(layers, stages)) == layers
    assert len(layers_of_stages(layers, stages)) == stages
    assert min(layers_of_stages(layers, stages)) >= 0


@given(count=st.integers(1, 9), chunks=st.integers(1, 4), rounds=st.integers(1, 4))
def test_equal_stages_follow_the_usual_form(count, chunks, rounds):
    """(m + (p - 1) / v) t."""
    chunks = chunks if count > 1 else 1
    microbatches, parts = rounds * count, count * chunks
    ends = stage_ends(Stages(count, parts, microbatches, chunks), SlotSeconds([1.0] * parts, [2.0] * parts))
    assert max(ends) == pytest.approx((microbatches + (count - 1) / chunks) * 3.0 * chunks)


def test_more_chunks_and_microbatches_shrink_the_bubble(runs):
    run = runs["16"]
    step, once = step_seconds(run), step_seconds(replace(run, interleave=1))
    assert once.steady == pytest.approx(step.steady)
    assert once.bubble > 2 * step.bubble
    assert step_seconds(replace(run, batch=2 * run.batch)).steady == pytest.approx(2 * step.steady)


def test_a_slower_network_slows_what_goes_over_it_alone(runs):
    run = runs["16"]
    fast, slow = step_seconds(run), step_seconds(run, 0.5)
    assert slow.replicas == pytest.approx(2 * fast.replicas)
    assert slot_seconds(run, 0.5).travel == pytest.approx(2 * slot_seconds(run).travel)
    assert slow.bubble > fast.bubble
    assert (slow.steady, slow.update) == (fast.steady, fast.update)


@pytest.mark.parametrize(
    ("stages", "chunks", "microbatches", "layers"), [(2, 1, 4, 12), (4, 1, 6, 12), (3, 1, 4, 14), (2, 3, 4, 12)]
)
def test_the_walk_of_slots_is_as_long_as_the_simulated_schedule(runs, stages, chunks, microbatches, layers):
    """Whole messages from each GPU, as the schedule sends them; SC21's are scattered over the tensor-parallel group."""
    shape = replace(runs["19"].shape, layers=layers)
    run = replace(
        runs["19"],
        shape=shape,
        gpus=8 * stages,
        pipeline=stages,
        interleave=chunks,
        data=1,
        batch=2 * microbatches,
        micro=2,
    )
    problem = Gpt(
        layers,
        shape.hidden,
        shape.heads,
        shape.sequence,
        shape.vocabulary,
        run.batch,
        dtype="float16",
        micro_batch=run.micro,
        interleave=chunks,
        recompute="full",
        gradient_bytes=2,
        attention_dropout=ATTENTION_DROPOUT,
    )
    schedule = gpt_schedule(problem, Grid(x=8, pipeline=stages), MEGATRON)
    machine = machine_for("selene", run.gpu, run.gpus)
    simulated = simulate(schedule, machine, choices=parse_choices("library")).timeline.makespan
    message = run.micro * shape.sequence * shape.hidden * 2 / MACHINES["selene"].node.nic_bandwidth
    ends = stage_ends(Stages(stages, layers, microbatches, chunks), replace(slot_seconds(run), travel=message))
    step = step_seconds(run)
    assert max(ends) + step.table + step.update == pytest.approx(simulated, rel=0.005)
    assert step.seconds < simulated


def test_what_is_made_again_takes_its_part_of_the_layer(runs):
    """Selective recomputation makes the scores and their softmax again; fused attention does so anyway."""
    full, selective, none = (
        slot_seconds(replace(runs["16"], recompute=word)) for word in ("full", "selective", "none")
    )
    times = layer_times(runs["16"].shape, 8, runs["16"].micro, "float16", machine_for("selene", A100_80GB, 8))
    layers = runs["16"].layers[1] / runs["16"].interleave
    assert 0.05 < times.attention.forward / times.layer.forward < 0.2
    assert selective.backward[1] - none.backward[1] == pytest.approx(layers * times.attention.forward)
    assert full.backward[1] - none.backward[1] == pytest.approx(layers * times.layer.forward)
    fused = [replace(runs["16"], attention="fused", recompute=word) for word in ("selective", "none")]
    assert slot_seconds(fused[0]) == slot_seconds(fused[1])


def test_sequence_parallelism_saves_passes_and_hides_communication_towards_inputs(runs):
    """Not the products, nor the gathers and scatters that nothing runs beside: it saves less than a fifth."""
    given = runs["16"].shape, 8, 4, "float16", machine_for("selene", A100_80GB, 8)
    whole, cut = (layer_times(*given, sequence_parallel=on).layer for on in (False, True))
    assert 0.8 * whole.forward < cut.forward < whole.forward
    assert 0.8 * whole.backward < cut.backward < whole.backward
    assert whole.backward - cut.backward > whole.forward - cut.forward


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"algorithm": "Megatron TP+SP+PP", "recompute": "selective"}, (True, "selective")),
        ({"algorithm": "Megatron", "recompute": "selective + sequence-parallel"}, (True, "selective")),
        ({"algorithm": "Megatron, dispatched", "recompute": "none"}, (False, "none")),
    ],
)
def test_sequence_parallelism_is_what_the_row_says(own, changes, expected):
    row = next(row for row in own if row.id == "16")
    run = run_or_reason(replace(row, columns={**row.columns, **changes}), [row])
    assert (run.sequence_parallel, run.recompute) == expected
    alone = replace(row, columns={**row.columns, **changes}, tensor=1, data=row.data * row.tensor, batch=row.gpus * 8)
    assert not run_or_reason(alone, [alone]).sequence_parallel


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("micro", [4, 8])
def test_sharded_layers_take_about_as_long_as_the_simulated_schedule(runs, zero, micro):
    """Less than the schedule without overlaps; up to 6 % less than with them, which gathers ahead by one product."""
    shape = ModelShape("sharded", 6, 2048, 16, 1024, 8192)
    run = replace(runs["1"], gpus=8, data=8, zero=zero, shape=shape, batch=16 * micro, micro=micro, recompute="full")
    problem = gpt_from_shape(
        shape,
        run.batch,
        dtype="float16",
        micro_batch=micro,
        zero=zero,
        gradient_bytes=2,
        recompute="full",
        attention_dropout=ATTENTION_DROPOUT,
    )
    schedule = gpt_schedule(problem, Grid(data=8), MEGATRON)
    machine = machine_for("selene", run.gpu, 8)
    serial, beside = (
        simulate(one, machine, choices=parse_choices("library")).timeline.makespan
        for one in (schedule, overlap(schedule, {"oag", "ors"}))
    )
    step = step_seconds(run)
    assert 0.94 * beside < step.seconds < serial
    assert step.replicas == 0


def test_gradients_that_are_scattered_in_fp32_are_made_so_in_every_microbatch(runs):
    run = replace(runs["1"], zero=3, recompute="full", batch=runs["1"].data * runs["1"].micro)
    parameters = stage_parameters(run)[0]
    more = slot_seconds(replace(run, amp=True)).backward[0] - slot_seconds(run).backward[0]
    assert more > 6 * parameters / run.gpu.memory_bytes_per_second


def test_layers_that_communicate_longer_than_they_work_take_as_long_as_that():
    moved, work = ShardingSeconds(gather=3.0, scatter=5.0, outer_gather=1.0, outer_scatter=2.0), PassSeconds(1.0, 4.0)
    assert zero_layer_seconds(10, work, moved, zero=3) == PassSeconds(1 + 10 * 3 + 1, 4 + 9 * 8 + 5 + 2)
    assert zero_layer_seconds(10, work, moved, zero=2) == PassSeconds(1 + 10 * 3 + 1, 4 + 9 * 5 + 5 + 2)


def test_fused_attention_takes_its_share_of_the_peak_and_the_rest_stays(runs):
    shape, machine = replace(runs["16"].shape, sequence=8192), machine_for("selene", A100_80GB, 1)
    stored, fused = (
        layer_times(shape, 8, 1, "float16", machine_for("selene", A100_80GB, 8), fused_on=on) for on in (None, "ampere")
    )
    squares = 8192**2 * shape.hidden / 8
    peak = machine.device.peak_flops_per_second["float16"]
    assert fused.attention == PassSeconds(2 * squares / (0.4 * peak), 5 * squares / (0.3 * peak))
    assert stored.attention.forward > 2 * fused.attention.forward
    assert stored.layer.backward - stored.attention.backward == pytest.approx(
        fused.layer.backward - fused.attention.backward
    )


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        ({}, "unfused"),
        ({"note": "with FlashAttention-2"}, "fused"),
        ({"note": "without flash attention"}, "unfused"),
        ({"machine": "DGX H100 cluster", "gpu_type": "H100-SXM5-80GB"}, "fused"),
    ],
)
def test_attention_is_fused_where_a_row_or_its_gpu_says_so(own, changes, attention):
    row = next(row for row in own if row.id == "1")
    assert run_or_reason(replace(row, columns={**row.columns, **changes}), []).attention == attention


def test_mosaic_runs_are_judged_once_by_their_tokens(own, runs, rows_file):
    ids = {row.id for row in own if row.columns["paper"] == MOSAIC}
    answer = published_training(rows_file(ids))
    assert answer.summary.by_source[f"{MOSAIC}: time"].rows >= 100
    assert answer.summary.by_source[f"{MOSAIC}: time"].median <= 0.15
    roles = {row.metric: {one.role for one in answer.rows if one.metric == row.metric} for row in answer.rows}
    assert roles == {"throughput": {"judged", "skipped"}, "mfu": {"skipped"}}
    tokens, share = (next(row for row in answer.rows if row.id == number) for number in ("1144", "1145"))
    assert share.relative_error == pytest.approx(tokens.relative_error, abs=0.01)  # its flop have those of biases too
    assert (tokens.flops, share.flops) == (None, "model")
    assert {run.machine for run in map(runs.get, ids) if isinstance(run, PublishedRun)} == {"selene", "h100-superpod"}
    assert {runs[one].sums_in_fp32 for one in ("1144", "1202")} == {True, False}
    assert {runs[one].attention for one in ("1144", "1202", "928")} == {"fused"}


@pytest.mark.parametrize(
    ("metric", "unit", "of_seconds"),
    [
        ("iteration_time", "ms", lambda seconds: 1e3 * seconds),
        ("throughput", "samples/s", lambda seconds: 512 / seconds),
        ("throughput", "tokens/s", lambda seconds: 512 * 2048 / seconds),
        ("throughput_per_gpu", "tokens/s/GPU", lambda seconds: 512 * 2048 / 32 / seconds),
    ],
)
def test_a_step_is_predicted_in_the_unit_of_the_row(rows_file, runs, metric, unit, of_seconds):
    (row,) = published_training(rows_file({"1"}, metric=metric, unit=unit)).rows
    assert row.predicted == pytest.approx(of_seconds(step_seconds(runs["1"]).seconds))
    assert row.role == "judged"


def test_fsdp_over_all_replicas_is_zero_3(rows_file):
    def zero(words, replicas):
        (row,) = read_rows(rows_file({"1"}, zero_stage=words, dp=replicas, num_gpus=replicas))
        return row.zero

    assert (zero("FSDP 32", "32"), zero("fsdp", "32"), zero("FSDP 8", "32"), zero("2", "32")) == (3, 3, -1, 2)


def test_slots_wait_for_each_other_as_they_must():
    """A slow stage sets the pace, and hides what comes behind it; messages count both ways."""
    slow = SlotSeconds([1.0, 5.0, 1.0], [2.0, 5.0, 2.0])
    assert max(stage_ends(Stages(3, 3, 10), slow)) == pytest.approx(1 + 10 * 10 + 2)
    even = SlotSeconds([1.0] * 4, [1.0] * 4, travel=0.1)
    assert max(stage_ends(Stages(4, 4, 1), even)) == pytest.approx(8 + 6 * 0.1)
    chunked = stage_ends(Stages(2, 4, 8, 2), SlotSeconds([0.5] * 4, [1.0] * 4))
    assert max(chunked) == pytest.approx((8 + 1 / 2) * 3)


def test_parameters_of_all_stages_are_those_of_the_model(runs):
    run = runs["22"]
    shape = run.shape
    held = sum(stage_parameters(run)) * run.tensor
    assert held == pytest.approx(shape.parameters + shape.table - 2 * shape.hidden)


def test_memory_follows_what_is_sharded(runs):
    run = next(
        one
        for one in runs.values()
        if isinstance(one, PublishedRun) and one.machine == "jean-zay-a100" and one.zero == 1
    )
    half, wide = (replace(run, dtype=dtype, deepspeed=True) for dtype in ("float16", "bfloat16"))
    each = max(stage_parameters(run))
    assert 4 * each <= peak_bytes(wide) - peak_bytes(half) <= 5 * each
    assert peak_bytes(replace(half, zero=0)) - peak_bytes(half) > (12 - 12 / run.data) * 0.9 * each
    assert peak_bytes(replace(run, recompute="none")) > peak_bytes(replace(run, recompute="selective"))
    assert peak_bytes(replace(run, recompute="selective")) > peak_bytes(run)
    assert peak_bytes(replace(run, micro=2 * run.micro)) > peak_bytes(run)
    selective = replace(run, recompute="selective")
    assert peak_bytes(replace(selective, sequence_parallel=True)) < peak_bytes(selective)
    assert peak_bytes(replace(run, recompute="none", attention="fused")) == peak_bytes(selective)
    single = replace(half, pipeline=1, data=run.gpus // run.tensor, batch=2 * run.gpus, micro=1)
    assert [peak_bytes(replace(single, zero=zero)) for zero in (3, 2, 1)] == sorted(
        peak_bytes(replace(single, zero=zero)) for zero in (1, 2, 3)
    )


def test_memory_is_that_of_the_schedule_that_simulate_predicts(runs):
    run = next(
        one
        for one in runs.values()
        if isinstance(one, PublishedRun) and one.machine == "jean-zay-a100" and one.zero == 1
    )
    small = replace(run, shape=replace(run.shape, layers=4), pipeline=2, data=2, dtype="float16", batch=8, micro=1)
    problem = gpt_from_shape(
        small.shape, 8, dtype="float16", micro_batch=1, zero=1, gradient_bytes=2, recompute=small.recompute
    )
    schedule = gpt_schedule(problem, Grid(pipeline=2, data=2, x=small.tensor), MEGATRON)
    assert peak_bytes(small) == sum(largest_memory(schedule, parse_choices("library")).values())


def test_recomputation_follows_from_seconds_and_flops_where_it_is_not_said(own):
    rows = [row for row in own if row.id in ("96", "97")]
    assert run_or_reason(rows[0], rows).recompute == "full"
    halved = [
        row if row.columns["metric"] != "model_flops_per_gpu" else replace(row, value=row.value * 0.75) for row in rows
    ]
    assert run_or_reason(halved[0], halved).recompute == "none"
    assert "does not follow" in run_or_reason(rows[0], rows[:1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machine": "a laptop"}, "none of ours"),
        ({"precision": "fp8"}, "precision 'fp8'"),
        ({"metric": "mfu"}, "mfu in"),
        ({"layers": ""}, "does not print layers"),
        ({"zero_stage": "FSDP 64"}, "zero 'FSDP 64' is no whole number"),
        ({"tp": "1.5"}, "tensor '1.5' is no whole number"),
        ({"cp": "2"}, "context parallelism (cp=2)"),
        ({"model": "Llama-2 7B"}, "the plain GPT alone"),
        ({"global_batch": "7"}, "a batch of 7 is less than"),
        ({"num_gpus": "64000", "dp": "32000", "global_batch": "512000"}, "are more than"),
        ({"zero_stage": "3", "pp": "2", "dp": "16"}, "ZeRO 2 and 3 are not modelled with a pipeline"),
        ({"gpu_type": "A100-PCIe-80GB"}, "none of ours"),
        (
            {"machine": "IDRIS Jean Zay gpu_p13", "gpu_type": "V100-SXM2-32GB", "note": "FlashAttention"},
            "fused attention on V100",
        ),
        ({"dp": "31"}, "not the number of GPUs"),
        ({"heads": "7"}, "do not divide"),
    ],
)
def test_rows_that_are_not_modelled_say_why(rows_file, changes, words):
    answer = published_training(rows_file({"4"}, **changes))
    (row,) = answer.rows
    assert (row.role, row.predicted) == ("skipped", None)
    assert words in row.reason


def test_a_row_that_is_there_twice_is_judged_once_and_gpus_follow_from_the_groups(rows_file):
    path = Path(rows_file({"4"}, num_gpus=""))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1].replace("4,", "4b,", 1)]) + "\n")
    one, again = published_training(str(path)).rows
    assert one.gpus > 0
    assert (one.role, again.role) == ("judged", "skipped")
    assert "row 4" in again.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"value": "many"}, "column value: 'many'"), ({"num_gpus": "all"}, "column num_gpus: 'all'")],
)
def test_a_file_that_cannot_be_is_refused_with_its_line(rows_file, changes, words):
    with pytest.raises(InputError) as refused:
        published_training(rows_file({"4"}, **changes))
    assert words in str(refused.value)
    assert "line 2" in str(refused.value)


SMALL = ClaimedTraining("perlmutter", 8, ModelShape("small", 7, 1024, 16, 256, 512), 8)


@pytest.mark.parametrize("overlaps", [frozenset(), OVERLAPS])
def test_a_step_continued_from_few_layers_is_that_of_all(overlaps):
    grid = Grid(x=4, z=2)
    whole = simulate(
        with_even_shards(SMALL.schedule(grid, 7, overlaps)),
        SMALL.model,
        choices=parse_choices("library"),
        granularity="exact",
    )
    step = step_time(SMALL, grid, overlaps).seconds
    assert step == pytest.approx(whole.timeline.makespan, rel=0.02)


def test_seconds_of_sums_over_data_are_reported_and_overlaps_gain():
    assert step_time(SMALL, Grid(x=4, z=2)).sums == 0
    found = step_time(SMALL, Grid(x=4, data=2))
    assert 0 < found.sums < found.seconds
    assert step_time(SMALL, Grid(x=4, z=2), OVERLAPS).seconds < step_time(SMALL, Grid(x=4, z=2), frozenset()).seconds


def test_a_step_that_would_take_long_is_known_between_bounds():
    grid = Grid(x=4, data=2)
    exact = step_time(SMALL, grid)
    assert exact.exact
    assert exact.low == exact.seconds == exact.high
    found = step_time(SMALL, grid, limits=Limits(long_seconds=0.0))
    assert not found.exact
    assert found.low <= exact.seconds * (1 + 1e-9)
    assert exact.seconds <= found.high * (1 + 1e-9)
    assert found.low <= found.seconds <= found.high


@pytest.mark.parametrize("training", [AXONN_80B, *(training for training, _ in LARGEST)], ids=lambda one: one.machine)
def test_the_grid_of_a_claim_is_the_first_that_fits(training):
    def kept(grid):
        schedule = training.schedule(grid, training.shape.layers)
        return storage(schedule, schedule.coordinates(0), parse_choices("library")).bytes

    grid = paper_grid(training)
    assert grid.size == training.gpus
    room = training.model.device.memory_bytes
    assert kept(grid) <= room
    assert kept(replace(grid, z=grid.z // 2, data=grid.data * 2)) > room


def test_megatron_is_given_every_run_that_fits():
    runs = megatron_runs(AXONN_80B)
    assert all(run.tensor * run.pipeline * run.data == 1024 for run in runs)
    assert all(peak_bytes(run) <= A100_40GB.memory_bytes for run in runs)
    assert {(run.tensor, run.pipeline) for run in runs} >= {(4, 4), (8, 2)}
    assert (1, 1) not in {(run.tensor, run.pipeline) for run in runs}
    assert {run.attention for run in runs} == {"fused"}
    assert all(run.sequence_parallel is (run.tensor > 1) for run in runs)
    assert any(run.interleave > 1 for run in runs)


def test_groups_need_not_be_powers_of_two_and_stages_hold_whole_chunks():
    few = ClaimedTraining("summit", 6, ModelShape("few", 6, 256, 16, 512, 512), 24, half="float16")
    runs = megatron_runs(few, replace(PLAIN_1F1B, interleaving=True, zero=(0,)))
    assert {(run.tensor, run.pipeline, run.data) for run in runs} >= {(1, 3, 2), (2, 3, 1), (1, 6, 1), (1, 2, 3)}
    assert {run.micro * run.shape.sequence for run in runs} == {2048, 4096, 8192}  # as many tokens as longer sequences
    interleaved = [run for run in runs if run.interleave > 1]
    assert {(run.pipeline, run.interleave) for run in interleaved} == {(3, 2), (2, 3)}
    assert all(run.microbatches % run.pipeline == 0 for run in interleaved)


def test_memory_decides_which_runs_of_the_12_billion_parameters_fit():
    tight, roomy = (
        {run.pipeline for run in megatron_runs(SUMMIT_RUNS[0], replace(AXONN_1F1B, memory=memory))} for memory in (1, 2)
    )
    assert tight == {48}
    assert roomy == {12, 16, 24, 48}


def test_more_features_never_slow_the_fastest_run():
    few, more = (fastest(megatron_runs(SMALL, setup))[1] for setup in (PLAIN_FUSED, MEGATRON_CORE))
    assert more <= few
    unfused = fastest(megatron_runs(SMALL, replace(PLAIN_FUSED, attention="unfused")))[1]
    assert few < unfused


def test_the_fastest_run_is_found_without_looking_at_all(runs):
    some = [replace(runs["13"], pipeline=pipeline, data=64 // pipeline) for pipeline in (8, 1, 2, 4)]
    assert fastest(some) == min(((run, step_seconds(run).seconds) for run in some), key=lambda one: one[1])


def _slow():
    time.sleep(60)


def _wrong():
    raise SystemExit(3)


def test_work_is_ended_when_its_time_is_up():
    assert run_with_time_limit(partial(pow, 2, 10), 60) == 1024
    begun = time.monotonic()
    assert run_with_time_limit(_slow, 0.5) is None
    assert time.monotonic() - begun < 20
    with pytest.raises(RuntimeError, match="has failed in its process, with status 3"):
        run_with_time_limit(_wrong, 60)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--only", "80b"], "--only 80b: names claims; --claims is needed"),
        (["--claims", "--only", "7z"], "--only 7z: is in no name of a claim; accepted are parts of them, such as '80b"),
    ],
)
def test_claims_that_do_not_exist_are_refused(capsys, words, line):
    ended = called(capsys, "study", "published-training", *words)
    assert ended.status == 2
    assert line in ended.err


def test_a_claim_that_takes_too_long_is_left_out_and_said_so(capsys):
    claim = ("luck", "x", 2.0, "nobody", partial(_found, 3.0))
    (late,) = predicted_claims(limit=0.01, claims=(claim,))
    assert (late.predicted, late.relative_error, late.predicted_low) == (None, None, None)
    assert late.setting == "left out: not done after 0.01 s"
    (found,) = predicted_claims(claims=(claim,))
    assert (found.predicted, found.relative_error, found.what_if) == (3.0, 0.5, {"luck": 4.0})
    assert (found.predicted_low, found.predicted_high) == (2.0, 4.0)
    said = capsys.readouterr().err
    assert "quadrille: luck: left out" in said
    assert "quadrille: luck: 3 x (exact: 2 to 4)" in said


def _found(value):
    return ClaimPrediction(value, "a setting", {"luck": value + 1}, low=value - 1, high=value + 1)


@pytest.mark.parametrize(
    ("predicted", "claimed", "error"),
    [(3.0, 2.0, 0.5), (3.0, (2.0, 4.0), 0.0), (5.0, (2.0, 4.0), 0.25), (1.0, (2.0, 4.0), -0.5)],
)
def test_the_error_of_a_range_is_the_distance_from_its_nearest_end(predicted, claimed, error):
    assert relative_error(predicted, claimed) == pytest.approx(error)
    work = partial(_found, predicted)
    (claim,) = predicted_claims(claims=(("luck", "x", claimed, "nobody", work),))
    assert claim.relative_error == pytest.approx(error)
    assert claim.claimed_high == (claimed[1] if isinstance(claimed, tuple) else None)


@pytest.mark.parametrize(
    ("predicted", "nearest"),
    [(11.0, None), (12.0, "less"), (8.0, "more"), (20.0, "less")],
)
def test_a_prediction_that_is_far_off_names_what_brings_it_nearest_to_the_claim(predicted, nearest):
    what_if = {"less": predicted - 2, "more": predicted + 2}
    claim = Claim(
        name="luck",
        source="nobody",
        unit="x",
        claimed=10.0,
        claimed_high=None,
        predicted=predicted,
        predicted_low=None,
        predicted_high=None,
        relative_error=predicted / 10 - 1,
        setting="a setting",
        what_if=what_if,
        assumptions=["a", "b"],
    )
    assert nearest_assumption(claim) == nearest
    text = "\n".join(claim_lines(claim))
    assert "assumed: a, b" in text
    assert ("off by" in text) is (nearest is not None)
    worse = msgspec.structs.replace(claim, what_if={"worse": 3 * predicted})
    assert nearest_assumption(worse) in (None, "none of these")


def test_axonn_has_fused_attention_and_what_if_changes_its_machine_alone():
    changed = AXONN_80B.what_if(UNFUSED)
    assert (AXONN_80B.model.device.achieved.attention, changed.model.device.achieved.attention) == ("fused", "unfused")
    assert replace(changed, settings=AXONN_80B.settings) == AXONN_80B
    assert SMALL.share_of_peak(2.0) == pytest.approx(SMALL.share_of_peak(1.0) / 2)
