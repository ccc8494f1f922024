"""Flags of training steps that name GPUs, kept weights and layouts of products; what a person reads of a step."""

import json
from itertools import pairwise

import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.schedule.ops import Gemm, Kernel
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.memory import largest_memory
from quadrille.algorithms.training.recompute import RECOMPUTES
from quadrille.cli.parsing.flags import TrainingFlags
from quadrille.cli.parsing.training import parse_training
from quadrille.experiments.workloads.command_flags import experiment_flags
from quadrille.experiments.workloads.training_lines import workload_flags
from tests.support.quadrille import HOST, called

FOUR = "layers=4,hidden=64,heads=8,sequence=32,vocabulary=256"
ON = ("--machine", "perlmutter")


# GPUs


def test_the_command_of_the_issue(capsys):
    words = ("--gpt", "80b", "--batch", "64", "--gpus", "16", *ON, "--grid", "data=2,z=2,x=4")
    ended = called(capsys, "simulate", *words, "--overlap", "oar,ors,oag", "--recompute", "full", "--json", "-")
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    keys = ("model_flops_per_second_per_gpu", "hardware_flops_per_second_per_gpu", "percent_of_peak")
    assert all(record[key] > 0 for key in keys)
    assert set(record["exposed_seconds_by_axis"]) == {"data", "z", "x"} and record["fits"] is False
    assert sum(record["memory_bytes_by_kind"].values()) == record["peak_bytes_per_rank_max"]
    assert sum(one["seconds"] for one in record["critical_path"]) == pytest.approx(record["seconds"])


@pytest.mark.parametrize("command", ["simulate", "schedule"])
def test_a_length_of_the_grid_follows_from_the_gpus(capsys, command):
    on = ON if command == "simulate" else ()
    words = (command, "--gpt", "tiny", "--batch", "8", *on)
    ended = called(capsys, *words, "--gpus", "8", "--grid", "data=*,x=4")
    assert ended.status == 0 and "data=2,x=4" in ended.out and "idle" not in ended.err
    assert ended.out == called(capsys, *words, "--grid", "data=2,x=4").out


def test_gpus_that_the_grid_leaves_idle_are_named(capsys):
    ended = called(capsys, "simulate", "--gpt", "tiny", "--batch", "8", *ON, "--gpus", "8", "--grid", "x=4")
    assert ended.status == 0 and "the grid x=4 has 4 ranks: 4 of 8 GPUs stay idle" in ended.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--gpus 8 --grid data=4,x=4", "--gpus 8: the grid data=4,x=4 has 16 ranks"),
        ("--gpus 8", "quadrille rank --gpt tiny --batch 8 --gpus 8 --machine perlmutter"),
        ("--gpus 9 --grid data=*,x=4", "9 GPUs cannot be shared out over groups of 4"),
        ("--gpus 8 --grid data=*,x=*", "one length * is accepted"),
        ("--grid data=*,x=4", "* follows from the number of GPUs; give --gpus N"),
        ("--gpus none", "--gpus 'none': a whole number from 1"),
    ],
)
def test_gpus_and_grids_that_do_not_fit(capsys, words, line):
    ended = called(capsys, "simulate", "--gpt", "tiny", "--batch", "8", *ON, *words.split())
    assert ended.status == 2 and line in ended.line, ended.err


def test_a_machine_with_fewer_gpus_is_refused(capsys, tmp_path):
    path = tmp_path / "host.toml"
    path.write_text(HOST)
    words = ("simulate", "--gpt", "tiny", "--batch", "8", "--machine", path, "--grid", "x=2")
    ended = called(capsys, *words, "--gpus", "4000")
    assert ended.status == 2 and "--gpus 4000: toy has 1 hosts" in ended.line


# Attention and recomputation

PAIRS = [(attention, recompute) for attention in ("fused", "unfused") for recompute in RECOMPUTES]


@pytest.mark.parametrize(("attention", "recompute"), PAIRS)
def test_a_step_says_its_share_of_recomputation(capsys, attention, recompute):
    """FOUR has 4 layers of hidden size 64, and 4 sequences of 32 tokens with 256 words."""
    squares, tokens = 2 * 4 * 32**2 * 64, 4 * 32
    layer = 24 * tokens * 64**2 + squares
    model = 3 * (4 * layer + 2 * tokens * 64 * 256)
    again = {"none": 0, "selective": squares if attention == "unfused" else 0, "full": layer}[recompute]
    again += squares // 2 if attention == "fused" else 0
    words = ("--attention", attention, "--recompute", recompute)
    ended = called(capsys, "simulate", "--gpt", FOUR, "--batch", "4", "--grid", "x=2", *ON, *words)
    share = f"; {100 * 4 * again / (model + 4 * again):.3g} % of the work is recomputation"
    assert (share in ended.out) if again else ("of the work is recomputation" not in ended.out), ended.out


@pytest.mark.parametrize(("attention", "recompute"), PAIRS)
def test_attention_and_recomputation_stand_in_the_record_and_repeat_it(capsys, tmp_path, attention, recompute):
    path = tmp_path / "record.json"
    flags = ("--attention", attention, "--recompute", recompute)
    words = ("simulate", "--gpt", FOUR, "--batch", "4", "--grid", "x=2", *ON)
    assert called(capsys, *words, *flags, "--json", path).status == 0
    options = load_record(path).options
    assert (options.attention, options.recompute) == (attention, recompute)
    said = {word for word in workload_flags(load_record(path)) if word.startswith(("--attention", "--recompute"))}
    usual = {"--attention fused", "--recompute none"}
    assert said == {f"--attention {attention}", f"--recompute {recompute}"} - usual
    repeated = experiment_flags(
        parse_training(TrainingFlags(gpt=FOUR, batch="4", attention=attention, recompute=recompute))
    )
    assert {" ".join(pair) for pair in pairwise(repeated)} & (said | usual) == said


def test_a_sweep_varies_attention_and_recomputation(capsys):
    words = ("sweep", "--gpt", FOUR, "--batch", "4", "--grid", "x=2", *ON, "--json", "-")
    ended = called(capsys, *words, "--vary", "attention=fused,unfused", "--vary", "recompute=none,selective,full")
    answers = {
        (row["point"]["attention"], row["point"]["recompute"]): row["answer"] for row in json.loads(ended.out)["rows"]
    }
    assert list(answers) == PAIRS
    seconds = {pair: answer["seconds"] for pair, answer in answers.items()}
    memory = {pair: answer["peak_bytes_per_rank_max"] for pair, answer in answers.items()}
    assert seconds["fused", "none"] == seconds["fused", "selective"] < seconds["fused", "full"]
    assert seconds["unfused", "none"] < seconds["unfused", "selective"] < seconds["unfused", "full"]
    assert (
        memory["unfused", "none"] > memory["unfused", "selective"] > memory["fused", "none"] > memory["fused", "full"]
    )
    refused = called(capsys, *words, "--vary", "attention=fused,flash")
    assert refused.status == 2 and "attention 'flash': accepted are fused, unfused" in refused.line


# Weights that are kept, and layouts of products


def schedule_of(**flags):
    return parse_training(TrainingFlags(gpt=FOUR, batch="4", **flags)).schedule()


def test_some_layers_keep_their_gathered_weights():
    bytes_of = [
        largest_memory(schedule_of(grid="z=2", keep_first=kept), Choices())["gathered weights"] for kept in "012"
    ]
    assert bytes_of[1] - bytes_of[0] == bytes_of[2] - bytes_of[1] == 4 * 12 * 64 * 64


def test_kept_layers_stand_in_the_record(capsys, tmp_path):
    path = tmp_path / "kept.json"
    words = ("simulate", "--gpt", FOUR, "--batch", "4", "--grid", "z=2", *ON, "--json", path)
    assert called(capsys, *words, "--keep-first", "2").status == 0
    assert load_record(path).options.keep_first == 2
    assert "--keep-first 2" in workload_flags(load_record(path))
    assert called(capsys, *words).status == 0
    assert "keep_first" not in path.read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (f"--gpt {FOUR} --grid z=2 --keep-first 4", "keep_first 4: up to 3 is accepted"),
        (f"--gpt {FOUR} --grid z=2 --keep-first x", "--keep-first 'x': a whole number from 0"),
        (f"--gpt {FOUR} --grid z=2 --keep-first 1 --gathered keep", "gathers no weights of a layer again"),
        ("--mlp 8,8 --grid z=2 --keep-first 1", "--keep-first 1: is for --gpt"),
        (f"--gpt {FOUR} --gemm-layouts nowhere", "machine 'nowhere' is unknown"),
    ],
)
def test_kept_layers_and_layouts_that_cannot_be(capsys, words, line):
    ended = called(capsys, "schedule", "--batch", "4", *words.split())
    assert ended.status == 2 and line in ended.line, ended.err


def measured_host(tmp_path, **speeds):
    """A machine file whose products are as fast as `speeds` say, by layout [flop/s]."""
    rows = [
        f"[[device.gemm]]\nm = {size}\nk = {size}\nn = {2 * size}\ndtype = 'float32'\nlayout = '{layout}'\n"
        f"busy_ranks = 1\nflops_per_second = {speed}\n"
        for layout, speed in speeds.items()
        for size in (16, 32, 64, 128, 256, 512)
    ]
    path = tmp_path / "measured.toml"
    path.write_text(HOST.replace("[host]", "".join(rows) + "[host]"))
    return str(path)


def test_products_are_issued_in_the_layouts_that_a_machine_is_fast_in(tmp_path):
    slow = measured_host(tmp_path, NN=1e11, NT=1e11, TN=1e6)
    layouts = {op.layout for op in all_ops(schedule_of(gemm_layouts=slow)) if isinstance(op, Gemm)}
    assert layouts == {"NN", "NT"}
    even = measured_host(tmp_path, NN=1e11, NT=1e11, TN=1e11)
    changed, written = schedule_of(gemm_layouts=even), schedule_of()
    assert str(changed) == str(written)


def test_layouts_and_kept_layers_are_trained_right(capsys, tmp_path):
    slow = measured_host(tmp_path, NN=1e6, NT=1e11, TN=1e11)
    words = ("run", "--gpt", FOUR, "--batch", "4", "--repeats", "1", "--warmups", "0", "--steps", "2", "--verify")
    path = tmp_path / "run.json"
    ended = called(capsys, *words, "--gemm-layouts", slow, "--keep-first", "1", "--json", path)
    assert ended.status == 0, ended.err
    record = load_record(path)
    assert record.verified.ok and record.options.gemm_layouts == slow
    transposes = [op for op in all_ops(schedule_of(gemm_layouts=slow)) if isinstance(op, Kernel)]
    assert any(op.function == "transpose" for op in transposes)
    assert "transpose" in " ".join(op.name for op in record.ops)


# What a person reads


def test_what_changes_nothing_is_said(capsys):
    words = (
        "simulate",
        "--gpt",
        FOUR,
        "--batch",
        "4",
        "--grid",
        "x=2",
        *ON,
        "--overlap",
        "oar,oag",
        "--keep-first",
        "1",
    )
    said = called(capsys, *words, "--gemm-layouts", "perlmutter").err
    assert "--overlap oag changes nothing: 4d on x=2 has no such communication" in said
    assert "--keep-first 1 changes nothing: 4d on x=2 gathers no weights" in said
    assert "--gemm-layouts perlmutter changes nothing: perlmutter has no measured products in bfloat16" in said
    used = called(capsys, *words[:6], "z=2", *ON, "--overlap", "oar,oag", "--keep-first", "1").err
    assert "keep-first" not in used and "--overlap oar changes nothing" in used


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--grid x=2 --zero 1", "--zero 1 changes nothing: 4d on x=2 does the same without"),
        ("--grid x=2 --gathered keep", "--gathered keep changes nothing: 4d on x=2"),
        ("--grid data=2 --gradient-bytes 2 --dtype float32", "--gradient-bytes 2 changes nothing: 4d on data=2"),
        (
            "--grid data=2 --scheme megatron --sequence-parallel",
            "--sequence-parallel changes nothing: megatron",
        ),
        ("--recompute selective", "--recompute selective changes nothing: fused attention stores no attention weights"),
    ],
)
def test_what_is_chosen_and_comes_to_nothing_is_said(capsys, words, line):
    said = called(capsys, "simulate", "--gpt", FOUR, "--batch", "4", *ON, *words.split()).err
    assert line in said
    used = ["--zero", "1", "--gathered", "keep", "--gradient-bytes", "2", "--grid", "data=2,z=2"]
    used += ["--attention", "unfused", "--recompute", "selective"]
    assert "changes nothing" not in called(capsys, "simulate", "--gpt", FOUR, "--batch", "4", *ON, *used).err


def test_bands_stand_in_the_record_and_are_said_to_change_nothing_where_no_product_is_summed(capsys):
    words = (
        "simulate",
        "--mlp",
        "2048,8192,2048",
        "--batch",
        "2048",
        *ON,
        "--dtype",
        "float32",
        "--json",
        "-",
        "--grid",
    )
    whole, banded = (json.loads(called(capsys, *words, "y=2,x=2", "--bands", bands).out) for bands in ("1", "4"))
    assert banded["options"]["bands"] == 4 and "bands" not in whole["options"]
    assert banded["bytes_sent_total"] == whole["bytes_sent_total"]
    said = called(capsys, *words, "z=4", "--bands", "4").err
    assert "--bands 4 changes nothing: 4d on z=4 has no product that is summed right after it" in said


def test_a_llama_of_a_config_file_is_trained_as_it_is(capsys, tmp_path):
    path = tmp_path / "config.json"
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"intermediate_size": 24, "max_position_embeddings": 8, "vocab_size": 128}
    path.write_text(json.dumps({"model_type": "llama", **sizes, **more}))
    words = ("--batch", "2", "--repeats", "1", "--warmups", "0", "--verify")
    ended = called(capsys, "run", "--gpt", path, *words)
    assert ended.status == 0 and not ended.err
    assert "gpt of 1 layers, hidden 16, 4 heads, vocabulary 128" in ended.out
    assert "model: 2 key heads, gated MLP, RMSNorm, no biases, rotary positions, two tables" in ended.out
    record = json.loads(called(capsys, "run", "--gpt", path, *words, "--json", "-").out)
    sizes = {"layers": 1, "hidden": 16, "heads": 4, "sequence": 8, "vocabulary": 128, "batch": 2, "inner": 24}
    more = {"key_heads": 2, "gated": True, "norm": "rms", "biases": False, "positions": "rotary", "shared_table": False}
    assert record["workload"] == {"gpt": {**sizes, **more}} and record["verified"]["ok"]


def test_what_a_model_has_that_no_schedule_has_is_said(capsys, tmp_path):
    path = tmp_path / "config.json"
    sizes = {"n_layer": 1, "hidden_size": 16, "n_head": 4, "seq_length": 8, "vocab_size": 128}
    path.write_text(json.dumps({"model_type": "bloom", **sizes}))
    words = (
        "run",
        "--gpt",
        path,
        "--batch",
        "2",
        "--repeats",
        "1",
        "--warmups",
        "0",
        "--json",
        tmp_path / "record.json",
    )
    refused = called(capsys, *words)
    assert refused.status == 2 and "ALiBi (and 1 more); --approximate goes on with that" in refused.line
    ended = called(capsys, *words, "--approximate")
    assert "differs from the published model: model_type = bloom: attention's scores have no ALiBi" in ended.err
    texts = json.loads((tmp_path / "record.json").read_text())["options"]["approximate"]
    assert len(texts) == 2
    explained = called(capsys, "explain", tmp_path / "record.json").out
    assert all(text in shown for text in texts for shown in (explained, ended.out))


def test_a_prediction_says_its_peak_its_critical_path_and_what_does_not_fit(capsys):
    words = ("simulate", "--gpt", "5b", "--batch", "16", "--grid", "x=4", *ON)
    out = called(capsys, *words).out
    record = json.loads(called(capsys, *words, "--json", "-").out)
    of_model = 100 * record["model_flops_per_second_per_gpu"] / 312e12
    assert f"MFU {of_model:.3g} % (" in out
    assert f"HFU {record['percent_of_peak']:.3g} % (" in out
    assert "of 312 TFLOP/s in bfloat16; " in out
    assert "DOES NOT FIT: a device of perlmutter has less memory than" in out
    (line,) = [line for line in out.splitlines() if line.startswith("critical path: ")]
    by_op = {}
    for one in record["critical_path"]:
        by_op[one["op"]] = by_op.get(one["op"], 0.0) + one["seconds"]
    assert f"most of it in {max(by_op, key=by_op.get)} (" in line and "compute" in line


# Memory of a stack of layers


@pytest.mark.parametrize("grid", ["x=1", "z=2,x=2", "pipeline=2"])
def test_what_a_stack_keeps_for_its_backward_pass_are_activations(grid):
    flags = TrainingFlags(mlp="8,16,12,4", batch="8", grid=grid, micro_batch="4" if "pipeline" in grid else "")
    experiment = parse_training(flags)
    found = largest_memory(experiment.schedule(), Choices())["activations"]
    # inputs and sums of the layers: 8, 16, 16, 12, 12 and 4 wide
    elements = {
        "x=1": 8 * (8 + 2 * (16 + 12) + 4),
        "z=2,x=2": 4 * (8 + 8 + 8 + 12 + 12 + 2),
        "pipeline=2": 2 * 4 * (8 + 16 + 16 + 12 + 12),  # two microbatches under way in the first stage
    }
    assert found == 4 * elements[grid]
