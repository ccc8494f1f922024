"""The study of published training runs: what is judged, what is not, and how far off it is."""

import csv
import json
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
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.algorithms.training.pipeline import Stages
from quadrille.experiments.predict.pipeline_slots import SlotSeconds, stage_ends
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
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
    AXONN_80B,
    LARGEST,
    ClaimPrediction,
    predicted_claims,
    relative_error,
)
from quadrille.studies.published_training.machine_calibration import CLOSE_ENOUGH, TrainingCalibration, calibrate
from quadrille.studies.published_training.megatron_search import (
    PLAIN_1F1B,
    MegatronSetup,
    fastest,
    megatron_configurations,
)
from quadrille.studies.published_training.published_runs import (
    PublishedRun,
    known_shape,
    layers_of_stages,
    run_or_reason,
)
from quadrille.studies.published_training.published_steps import (
    gpu_settings,
    peak_bytes,
    published_step,
    software_of,
    stage_parameters,
    step_of,
)
from quadrille.studies.published_training.report import Claim, claim_lines, nearest_assumption
from quadrille.studies.published_training.study import ROWS, judge, published_training, runs_of
from quadrille.studies.published_training.time_limit import run_with_time_limit
from quadrille.studies.published_training.training_rows import read_rows
from quadrille.topologies.nodes.gpus import A100_40GB
from tests.support.quadrille import called

PLAIN_FUSED = MegatronSetup(sequence_parallel=False, interleaving=False)


@pytest.fixture(scope="module")
def own():
    return read_rows(ROWS)


@pytest.fixture(scope="module")
def runs(own):
    return runs_of(own)


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


def test_rows_are_judged_by_what_simulate_predicts(own, rows_file, capsys):
    """Four of SC21's runs, of the sizes that fit on one node or less a replica."""
    answer = published_training(rows_file({"1", "4", "7", "10", "2"}))
    (spread,) = answer.summary.by_source.values()
    assert (spread.rows, spread.worst <= 0.05) == (4, True)
    assert not answer.calibration
    assert [(row.id, row.reason) for row in answer.rows if row.role == "skipped"] == [
        ("2", "the same run as another row that is printed in more detail")
    ]
    assert all(row.flops == "hardware" for row in answer.rows if row.metric == "model_flops_per_gpu")
    assert "GPT 18.4B" in capsys.readouterr().out


def test_rows_that_a_store_has_are_not_predicted_again(rows_file, tmp_path, capsys, monkeypatch):
    path, store = rows_file({"1", "4", "2"}), tmp_path / "s.sqlite"
    first = published_training(path, store=str(store), quiet=True)
    assert "0 of 2 answers were in" in capsys.readouterr().err
    monkeypatch.setattr(
        "quadrille.studies.published_training.study.step_of", lambda step: pytest.fail(f"{step} is predicted again")
    )
    again = published_training(path, store=str(store), quiet=True)
    assert "2 of 2 answers were in" in capsys.readouterr().err
    assert again.rows == first.rows


@pytest.mark.parametrize("row", ["4", "1144"])
def test_the_command_of_a_row_predicts_the_same_time(runs, row, capsys, tmp_path):
    """Megatron-LM's tensor parallelism, and PyTorch's FSDP with eager kernels."""
    step, path = published_step(runs[row]), tmp_path / "record.json"
    assert called(capsys, *step.command[1:], "--json", str(path)).status == 0
    record = json.loads(path.read_text())
    assert record["seconds_per_iteration"] == pytest.approx(step_of(step).seconds, rel=1e-9)


def test_a_pipeline_is_predicted_pass_by_pass_as_its_command_does(runs, capsys, tmp_path):
    run = runs["13"]
    small = replace(run, shape=replace(run.shape, layers=5), gpus=32, data=2, batch=32, micro=2)
    step, path = published_step(small), tmp_path / "record.json"
    assert step.experiment.problem.stages == (3, 2)
    assert called(capsys, *step.command[1:], "--json", str(path)).status == 0
    record = json.loads(path.read_text())
    assert record["simulation"]["granularity"] == "passes"
    assert record["seconds_per_iteration"] == pytest.approx(step_of(step).seconds, rel=1e-9)


def test_one_row_is_shown_with_its_command_and_causes(capsys):
    shown = called(capsys, "study", "published-training", "--row", "96", "--explain")
    assert shown.status == 0
    assert "quadrille simulate --gpt layers=" in shown.out
    assert "published" in shown.out and "predicted" in shown.out
    assert "most of the time is compute" in shown.out


def test_the_list_says_what_is_judged_without_predictions(rows_file, capsys):
    shown = called(capsys, "study", "published-training", "--list", "--rows", rows_file({"1", "2", "810"}))
    assert shown.status == 0
    assert "judged" in shown.out and "printed in more detail" in shown.out and "study megatron-bridge" in shown.out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--row", "none"], "--row none: no row of training has this id; accepted are 1 to "),
        (["--explain"], "--explain: explains one row; --row N is needed"),
        (["--row", "1", "--list"], "--row and --list: one of them is accepted"),
        (["--row", "1", "--claims"], "--row and --claims: one of them is accepted"),
    ],
)
def test_questions_about_single_rows_that_cannot_be_are_refused(capsys, words, line):
    ended = called(capsys, "study", "published-training", *words)
    assert (ended.status, line in ended.err) == (2, True)


def test_software_decides_what_rows_do_not_print(runs):
    """MosaicML's layers are not fused and drop nothing; gradients of mixed precision are summed in 32 bits."""
    mosaic, megatron = published_step(runs["1144"]), published_step(runs["1"])
    assert mosaic.model.device.achieved.pointwise == "unfused"
    assert megatron.model.device.achieved.pointwise == "fused"
    assert (mosaic.experiment.problem.dropout, megatron.experiment.problem.dropout) == (0.0, 0.1)
    assert mosaic.experiment.execution.overlaps == {"oag", "ors"}
    assert not megatron.experiment.execution.overlaps
    assert [published_step(runs[row]).experiment.problem.gradient_bytes for row in ("1144", "1202")] == [4, 2]
    assert [runs[row].attention for row in ("1144", "1202", "928")] == ["flash1", "flash1", "flash2"]
    assert [(runs[row].attention, runs[row].zero) for row in ("956", "928")] == [("flash2", 2), ("flash2", 3)]
    assert software_of(replace(runs["1144"], deepspeed=True)) is software_of(runs["1"])


def test_gpus_of_another_size_are_settings_of_the_machine(runs):
    run = runs["1"]
    assert gpu_settings(run) == ()
    step = published_step(replace(run, gpu=A100_40GB))
    assert step.model.device.memory_bytes == A100_40GB.memory_bytes
    assert step.model.device.memory_bytes_per_second == A100_40GB.memory_bytes_per_second


def test_a_slower_network_slows_sums_between_nodes_alone(runs):
    run = runs["1"]
    fast, slow = step_of(published_step(run)), step_of(published_step(run, 0.5))
    assert slow.exposed_seconds_by_axis["data"] > 1.5 * fast.exposed_seconds_by_axis["data"]
    assert slow.compute == pytest.approx(fast.compute)


def test_models_that_the_product_knows_bring_their_shape(own):
    row = next(row for row in own if row.id == "810")
    changes = {"precision": "bf16", "recompute": "none"}
    named = replace(row, layers=0, hidden=0, heads=0, vocabulary=0, columns={**row.columns, **changes})
    run = run_or_reason(named, [named])
    assert run.shape == SHAPES["llama3-70b"]
    assert (run.machine, run.tensor, run.pipeline, run.interleave) == ("h100-superpod", 4, 8, 5)
    assert known_shape("GPT 175B") is None
    assert run.products == "dtype"
    assert "judged by the study megatron-bridge" in run_or_reason(row, [row])
    assert "groups of heads" in run_or_reason(replace(named, tensor=16, pipeline=2, interleave=1), [named])


def test_mixed_precision_of_8_bits_is_that_of_products(runs):
    """MosaicML's `amp_fp8` is Transformer Engine's delayed scaling; weights and activations keep 16 bits."""
    wide, small = runs["1144"], runs["1068"]
    assert (wide.products, small.products, small.dtype, small.sums_in_fp32) == (
        "dtype",
        "fp8-delayed",
        "bfloat16",
        True,
    )
    command = published_step(small).command
    assert command[command.index("--products") + 1] == "fp8-delayed"


def test_a_context_axis_cuts_the_ranks(own):
    row = next(row for row in own if row.id == "4")
    halved = replace(row, context=2, data=row.data // 2)
    run = run_or_reason(halved, [halved])
    assert (run.context, published_step(run).experiment.grid.context) == (2, 2)


def test_rows_that_contradict_themselves_are_refused_by_name(own):
    row = next(row for row in own if row.id == "1")
    assert isinstance(run_or_reason(row, [row]), PublishedRun)  # flop/s alone contradict nothing
    seconds = replace(row, value=1.0, columns={**row.columns, "metric": "iteration_time", "unit": "s"})
    seconds = replace(seconds, batch=4 * row.batch)
    assert "TFLOP/s on a GPU of 312" in run_or_reason(seconds, [seconds])
    rate, timed = (next(row for row in own if row.id == number) for number in ("97", "96"))
    halved = [replace(each, value=each.value / 2) if each is rate else each for each in (rate, timed)]
    assert "time and flop/s contradict each other by" in run_or_reason(timed, halved)


def test_rows_that_teach_are_never_judged(own, runs):
    """The timed run is a small run whose printed time is that of a network of a known share of the bandwidth."""
    chosen = [(row, runs[row.id]) for row in own if isinstance(runs[row.id], PublishedRun)]
    jean_zay = [(row, run) for row, run in chosen if run.machine == "jean-zay-a100"]
    with_memory = [pair for pair in jean_zay if pair[0].metric[0] == "memory"][:8]
    row, run = max((pair for pair in jean_zay if pair[0].metric[0] == "seconds"), key=lambda pair: pair[1].data)
    run = replace(run, shape=replace(run.shape, layers=2), gpus=64, data=4, batch=16)
    timed = replace(row, value=step_of(published_step(run, 0.3)).seconds / row.metric[1])
    site = calibrate("jean-zay-a100", [*with_memory, (timed, run)], frozenset({"jean-zay-a100"}))
    assert site.rows == {"between": timed.id, "rest": site.rows["rest"]}
    assert site.between == pytest.approx(0.3, rel=0.01)
    taught = [(timed, run), *(pair for pair in with_memory if pair[0].id == site.rows["rest"])]
    assert len(taught) == 2
    for each, of_row in taught:
        found = judge(each, of_row, None, {"jean-zay-a100": site})
        assert found.role == "calibration"
        assert found.relative_error == pytest.approx(0, abs=CLOSE_ENOUGH)
    twin = next(each for each, _ in jean_zay if each.run == row.run and each.columns["metric"] == "model_flops_per_gpu")
    assert judge(twin, run, timed, {"jean-zay-a100": site}).role == "calibration"


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
    value = f"{of_seconds(3.5):.6g}"
    (row,) = published_training(rows_file({"1"}, metric=metric, unit=unit, value=value)).rows
    assert row.predicted == pytest.approx(of_seconds(step_of(published_step(runs["1"])).seconds))
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
    assert peak_bytes(replace(run, recompute="none", attention="fused")) <= peak_bytes(selective)
    single = replace(half, pipeline=1, data=run.gpus // run.tensor, batch=2 * run.gpus, micro=1)
    assert [peak_bytes(replace(single, zero=zero)) for zero in (3, 2, 1)] == sorted(
        peak_bytes(replace(single, zero=zero)) for zero in (1, 2, 3)
    )


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
        ({"cp": "2"}, "tensor x pipeline x data x context is not the number of GPUs"),
        ({"paper": "NVIDIA Megatron-Bridge performance summary", "precision": "fp8"}, "the study megatron-bridge"),
        ({"model": "Mixtral 8x7B"}, "not yet: experts of 'Mixtral 8x7B'"),
        ({"model": "Llama 9"}, "it is none of ours"),
        ({"global_batch": "7"}, "a batch of 7 is less than"),
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


FEW = ClaimedTraining("summit", 6, ModelShape("few", 6, 256, 16, 512, 512), 24, half="float16")
FEWER = replace(FEW, batch=12)
FEWEST_OPTIONS = replace(PLAIN_1F1B, zero=(0,))


def test_megatron_is_given_every_configuration_that_fits():
    """Groups need not be powers of two, stages hold whole chunks, and microbatches have as many tokens."""
    configurations = megatron_configurations(FEW, replace(PLAIN_1F1B, interleaving=True, zero=(0,)))
    steps = [configuration.experiment for configuration in configurations]
    assert {(step.grid.x, step.grid.pipeline, step.grid.data) for step in steps} >= {
        *((1, 3, 2), (2, 3, 1), (1, 6, 1), (1, 2, 3)),
    }
    assert {step.problem.micro_batch * step.problem.sequence for step in steps} <= {2048, 4096, 8192}
    interleaved = [step for step in steps if step.problem.interleave > 1]
    assert {(step.grid.pipeline, step.problem.interleave) for step in interleaved} == {(3, 2), (2, 3)}
    assert all(step.microbatches.count % step.grid.pipeline == 0 for step in interleaved)
    assert all(experiment_peak_bytes(step) <= FEW.model.device.memory_bytes for step in steps)
    seconds = [configuration.step.seconds for configuration in configurations]
    assert seconds == sorted(seconds)


def test_features_restrict_what_is_searched():
    sharded = megatron_configurations(FEWER, MegatronSetup(interleaving=False))
    assert all(each.experiment.sequence_parallel is (each.experiment.grid.x > 1) for each in sharded)
    alone = megatron_configurations(FEWER, replace(PLAIN_1F1B, tensor=False))
    assert {each.experiment.grid.x for each in alone} == {1}
    with pytest.raises(InputError, match="no configuration of Megatron-LM fits in memory"):
        megatron_configurations(FEW.what_if("device.memory_bytes=1e6"), PLAIN_FUSED)


def test_the_fastest_of_megatron_is_predicted_as_simulate_does():
    step, seconds = fastest(FEWER, FEWEST_OPTIONS)
    candidates = megatron_configurations(FEWER, FEWEST_OPTIONS)[:3]
    assert step in [each.experiment for each in candidates]
    assert seconds > 0


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
    ranged = ("chance", "x", (2.0, 4.0), "nobody", partial(_found, 5.0))
    found, of_range = predicted_claims(claims=(claim, ranged))
    assert (found.predicted, found.relative_error, found.what_if) == (3.0, 0.5, {"luck": 4.0})
    assert (found.predicted_low, found.predicted_high, found.claimed_high) == (2.0, 4.0, None)
    assert (of_range.relative_error, of_range.claimed_high) == (0.25, 4.0)
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
