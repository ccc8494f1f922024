"""Training steps on the command line: run on ranks, predicted, compared, printed, and refused in one line."""

import csv
import json
import shlex
from io import StringIO

import pytest

from quadrille.algorithms.formats.record import load_record
from quadrille.cli.parsing.experiment import experiment_of
from quadrille.cli.parsing.flags import TrainingFlags
from quadrille.cli.parsing.machines import MachineFlags, with_default_dtype
from quadrille.cli.parsing.training import parse_training
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.workloads.run_options import RunOptions
from tests.support.quadrille import HOST, called

RANKS = 6
FULL = ("--recompute", "full", "--json", "-")
SMALL = "layers=3,hidden=30,heads=6,sequence=7,vocabulary=127"
DEEP = SMALL.replace("layers=3", "layers=6")
LONG = "layers=2,hidden=24,heads=6,sequence=12,vocabulary=127"
ON_RANKS = [
    {"mlp": "13,7,11,5", "batch": "17", "grid": "z=3,y=2"},
    {"gpt": "tiny", "batch": "6", "grid": "z=3,x=2", "overlap": "oar,ors,oag"},
    {"gpt": SMALL, "batch": "6", "grid": "data=2,x=3", "scheme": "megatron", "sequence_parallel": True,
     "attention": "unfused", "recompute": "selective"},
    {"gpt": SMALL, "batch": "6", "grid": "z=2,x=3", "scheme": "optimus", "collectives": "library"},
    {"gpt": SMALL, "batch": "6", "grid": "pipeline=3,z=2", "micro_batch": "1", "clip": "0.1",
     "attention": "unfused", "recompute": "full"},
    {"gpt": SMALL, "batch": "6", "grid": "data=3,y=2", "zero": "2", "dtype": "float64"},
    {"gpt": SMALL, "batch": "6", "grid": "data=2,z=3", "zero": "3", "recompute": "full"},
    {"gpt": SMALL, "batch": "6", "grid": "y=2,x=3", "scheme": "tesseract", "recompute": "selective"},
    {"gpt": SMALL, "batch": "6", "grid": "y=2,x=3", "scheme": "bian", "attention": "unfused"},
    {"gpt": SMALL, "batch": "6", "grid": "pipeline=2,x=3", "scheme": "megatron", "sequence_parallel": True},
    {"gpt": DEEP, "batch": "6", "grid": "pipeline=3,data=2", "micro_batch": "1", "interleave": "2"},
    {"gpt": LONG, "batch": "4", "grid": "context=3,x=2", "scheme": "megatron", "sequence_parallel": True,
     "overlap": "oar,ors,oag"},
    {"gpt": LONG, "batch": "4", "grid": "context=3,data=2", "zero": "1", "context_parallel": "all_gather"},
    {"gpt": LONG, "batch": "4", "grid": "context=3,z=2", "zero": "3", "context_parallel": "ulysses"},
    {"gpt": f"{SMALL},experts=6,top_k=2,expert_ffn=20,aux_loss=0.01,capacity=1.25", "batch": "6",
     "grid": "pipeline=2,data=3,expert=3", "micro_batch": "1", "dtype": "float64", "collectives": "library"},
    {"gpt": f"{LONG},experts=6,top_k=2,expert_ffn=20,expert_biases=yes,shared_ffn=12,shared_gate=yes", "batch": "8",
     "grid": "data=2,x=3,expert=6", "scheme": "megatron", "sequence_parallel": True, "recompute": "full-keep-exchange"},
]  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Records of all cases, made in one launch; the last goes on from what the second left, on another grid."""
    folder = tmp_path_factory.mktemp("records")
    saved = str(folder / "gpt.ckpt")
    cases = []
    for number, chosen in enumerate(ON_RANKS):
        run_flags = RunOptions(verify=True, repeats=1, warmups=0, save=saved if chosen.get("gpt") == "tiny" else "")
        cases.append(
            RunCase(parse_training(TrainingFlags(**chosen, steps="2")), str(folder / f"{number}.json"), run_flags)
        )
    on = RunOptions(verify=True, repeats=1, warmups=0, load=saved)
    flags = TrainingFlags(gpt="tiny", batch="6", grid="data=3,y=2", zero="1")
    cases.append(RunCase(parse_training(flags), str(folder / "on.json"), on))
    measure(RANKS, cases)
    return [load_record(case.record) for case in cases]


@pytest.mark.parametrize("number", range(len(ON_RANKS)), ids=lambda number: str(ON_RANKS[number]))
def test_training_on_ranks_is_right_and_its_record_says_what_it_was(measured, number):
    record, chosen = measured[number], ON_RANKS[number]
    assert record.verified is not None and record.verified.ok
    assert record.algorithm == chosen.get("scheme", "4d") and record.passes == "training"
    assert len(record.losses) == 2 and record.losses[1] < record.losses[0]
    assert record.options.zero == int(chosen.get("zero", "0"))
    if "gpt" in chosen:
        pair = (record.options.attention, record.options.recompute)
        assert pair == (chosen.get("attention", "fused"), chosen.get("recompute", "none"))
    assert sum(record.memory_bytes_by_kind.values()) == record.peak_bytes_per_rank_max
    long = {axis for axis, length in record.grid.items() if length > 1}
    assert set(record.exposed_seconds_by_axis) == long
    assert 0 < record.seconds_per_iteration <= record.seconds / 2
    assert record.model_flops_per_second_per_gpu <= record.hardware_flops_per_second_per_gpu
    assert record.fits is None and record.percent_of_peak is None


def test_ranks_go_on_from_a_checkpoint_of_another_grid(measured, capsys):
    words = ("run", "--gpt", "tiny", "--batch", "6", "--steps", "3", "--repeats", "1", "--warmups", "0", "--json", "-")
    alone = json.loads(called(capsys, *words).out)
    assert measured[-1].losses == pytest.approx(alone["losses"][2:], rel=1e-5)
    assert measured[1].losses == pytest.approx(alone["losses"][:2], rel=1e-5)


# Predicted


@pytest.fixture
def host(tmp_path):
    path = tmp_path / "host.toml"
    path.write_text(HOST)
    return path


def test_a_prediction_has_the_same_problem_as_the_run_and_compares_with_it(measured, capsys, host, tmp_path):
    words = ["--gpt", SMALL, "--batch", "6", "--grid", "data=3,y=2", "--zero", "2", "--dtype", "float64"]
    predicted, other = tmp_path / "predicted.json", tmp_path / "measured.json"
    ended = called(capsys, "simulate", *words, "--steps", "2", "--machine", host, "--json", predicted)
    assert ended.status == 0, ended.err
    record = load_record(predicted)
    assert record.workload.gpt.batch == 6 and record.fits is True and record.percent_of_peak > 0
    assert record.peak_bytes_per_rank_max == measured[5].peak_bytes_per_rank_max
    assert record.bytes_sent_total == measured[5].bytes_sent_total
    assert record.memory_bytes_by_kind == measured[5].memory_bytes_by_kind
    from quadrille.algorithms.formats.record import save_record

    save_record(measured[5], other)
    compared = called(capsys, "compare", predicted, other)
    assert compared.status == 0 and "gpt layers=3" in compared.out, compared.err
    explained = called(capsys, "explain", other)
    assert "--batch 6 --scheme 4d --zero 2 --steps 2 --grid data=3,y=2 --dtype float64" in explained.out


def test_simulate_prints_rates_memory_and_what_does_not_fit(capsys):
    words = ["simulate", "--gpt", "5b", "--batch", "16", "--grid", "x=4", "--machine", "perlmutter"]
    ended = called(capsys, *words)
    assert ended.status == 0
    for line in (
        "MFU ",
        "HFU ",
        " tokens/s, ",
        "% of the work is recomputation",
        "exposed communication of all steps: x ",
        "memory of a rank: ",
        "DOES NOT FIT",
    ):
        assert line in ended.out, ended.out
    assert "bfloat16" in ended.out and "more, " in ended.out and "would not fit" not in ended.err
    as_json = called(capsys, *words, "--json", "-")
    assert json.loads(as_json.out)["fits"] is False and "it would not fit" in as_json.err
    fitting = called(capsys, *words, "--json", "-", "--zero", "1", "--grid", "data=4,x=4", "--recompute", "full")
    assert json.loads(fitting.out)["fits"] is True


def test_a_gpt_without_a_dtype_is_predicted_as_it_is_trained(host):
    flags = TrainingFlags(gpt="tiny", batch="2", dtype="")
    assert with_default_dtype(flags, MachineFlags(machine="perlmutter")).dtype == "bfloat16"
    assert with_default_dtype(flags, MachineFlags(machine=str(host))).dtype == "float32"
    assert parse_training(flags).dtype == "float32"


def test_rates_follow_from_the_seconds_and_the_stated_formula(capsys):
    words = ("--gpt", "5b", "--batch", "16", "--grid", "data=4,x=4", "--machine", "perlmutter")
    ended = called(capsys, "simulate", *words, *FULL)
    record = json.loads(ended.out)
    b, s, layers, h, v = 16, 2048, 24, 4096, 51200
    model = 72 * b * s * layers * h**2 * (1 + s / (12 * h) + v / (12 * layers * h))
    hardware = 96 * b * s * layers * h**2 * (1 + s / (12 * h) + v / (16 * layers * h))
    hardware += b * s**2 * h * layers  # the gradient kernel computes the scores again
    seconds = record["seconds_per_iteration"]
    assert record["model_flops_per_second_per_gpu"] == pytest.approx(model / seconds / 16)
    assert record["hardware_flops_per_second_per_gpu"] == pytest.approx(hardware / seconds / 16)
    assert record["percent_of_peak"] == pytest.approx(100 * hardware / seconds / 16 / 312e12)


ONE_STEP = {"gpt": "layers=3,hidden=96,heads=6,sequence=32,vocabulary=192", "batch": "16", "recompute": "full"}
"""Of which rank simulates all layers."""


@pytest.mark.parametrize(("overlap", "collectives"), [("none", "own:hierarchical"), ("oar,ors,oag", "library")])
def test_simulate_sweep_and_rank_say_the_same_of_a_step(capsys, overlap, collectives):
    """Seconds of an iteration, without what happens once before the first, and the rates that follow from them."""
    chosen = {"overlap": overlap, "collectives": collectives}
    of_step = [word for name, value in (ONE_STEP | chosen).items() for word in (f"--{name}", value)]
    on, algorithms = ("--machine", "perlmutter"), set()
    ranked = json.loads(
        called(
            capsys,
            "rank",
            *of_step,
            *on,
            "--gpus",
            "8",
            "--top",
            "2",
            "--form",
            "exact",
            "--granularity",
            "exact",
            "--json",
            "-",
        ).out
    )
    assert len({one["seconds"] for one in ranked["simulated"]}) > 1
    for one in ranked["simulated"]:
        grid = ",".join(f"{axis}={length}" for axis, length in one["grid"].items())
        words = (
            *of_step,
            *on,
            "--dtype",
            "bfloat16",
            "--grid",
            grid,
            "--order",
            ",".join(one["order"]),
            "--shards",
            one["shards"],
        )
        record = json.loads(called(capsys, "simulate", *words, "--json", "-").out)
        (row,) = csv.DictReader(StringIO(called(capsys, "sweep", *words, "--vary", "threads=1", "--csv", "-").out))
        algorithms |= {op["algorithm"] for op in record["ops"]}
        assert record["seconds_per_iteration"] < record["seconds"]
        assert one["seconds"] == pytest.approx(record["seconds_per_iteration"], rel=1e-9)
        assert float(row["seconds"]) == pytest.approx(record["seconds_per_iteration"], rel=1e-9)
        model = record["model_flops_per_second_per_gpu"]
        assert float(row["flops_per_second_per_gpu"]) == pytest.approx(model, rel=1e-9)
        for key in ("model_flops_per_second_per_gpu", "hardware_flops_per_second_per_gpu", "percent_of_peak"):
            assert one[key] == pytest.approx(record[key], rel=1e-9)
        exposed = sum(record["exposed_seconds_by_axis"].values())
        assert float(row["exposed_seconds"]) == pytest.approx(exposed, rel=1e-9, abs=1e-12)
        assert sum(one["exposed_seconds_by_axis"].values()) == pytest.approx(exposed, rel=1e-9, abs=1e-12)
        assert one["percent_of_peak"] / 100 < one["compute_efficiency"] < 1
    assert ("hierarchical (4 to a node)" in algorithms) == (collectives == "own:hierarchical")


def test_steps_are_equal_in_a_sweep_however_many_there_are(capsys):
    words = ("--gpt", ONE_STEP["gpt"], "--batch", "12", "--grid", "z=3,x=2", "--machine", "perlmutter")
    rows = list(csv.DictReader(StringIO(called(capsys, "sweep", *words, "--vary", "steps=1,4", "--csv", "-").out)))
    for key in ("seconds", "compute_seconds", "exposed_seconds", "flops_per_second_per_gpu"):
        assert float(rows[1][key]) == pytest.approx(float(rows[0][key]), rel=1e-6), key


@pytest.mark.parametrize("batch", ["12", "13"])
def test_the_command_that_rank_prints_gives_the_seconds_that_it_prints(capsys, tmp_path, batch):
    path = tmp_path / "rank.json"
    more = ("--gradient-bytes", "2", "--set", "device.memory_bytes_per_second=x2", "--slow", "gpu:5=0.9")
    more = ("--recompute", "full", *more)
    asked = ("--gpt", ONE_STEP["gpt"], "--batch", batch, "--gpus", "6", "--machine", "perlmutter", *more)
    page = called(capsys, "rank", *asked, "--search", "none", "--top", "2", "--json", str(path)).out
    _, _, command = page.partition("an iteration: ")
    words = shlex.split(command)
    assert words[:2] == ["quadrille", "simulate"] and "--recompute full" in command
    record = json.loads(called(capsys, *words[1:], "--json", "-").out)
    best = json.loads(path.read_text())["simulated"][0]
    assert {"pipeline": 1} | record["grid"] == best["grid"]
    assert record["simulation"]["shards"] == best["shards"] == "exact"
    assert record["seconds_per_iteration"] == pytest.approx(best["seconds"], rel=1e-6)
    assert record["percent_of_peak"] == pytest.approx(best["percent_of_peak"], rel=1e-6)


def test_schedule_prints_training_steps(capsys):
    ended = called(capsys, "schedule", "--gpt", "tiny", "--batch", "4", "--grid", "z=2", "--recompute", "full")
    assert ended.status == 0 and "again QKV multiply" in ended.out and "repeat layer" in ended.out


def test_a_sweep_predicts_training_steps(capsys):
    words = ("sweep", "--gpt", "5b", "--batch", "32", "--machine", "perlmutter", "--recompute", "full", "--json", "-")
    ended = called(capsys, *words, "--gpus", "16", "--grid", "data=*,x=4", "--vary", "overlap=none;oar,ors,oag")
    found = json.loads(ended.out)
    assert len(found["rows"]) == 2 and found["flags"]["gpt"] == "5b" and "matmul" not in found["flags"]
    assert "bfloat16" not in found["flags"].values(), "a dtype that was not typed follows from the machine"
    assert found["rows"][1]["answer"]["seconds"] <= found["rows"][0]["answer"]["seconds"]
    schemes = called(capsys, *words, "--grid", "x=8", "--vary", "scheme=4d,megatron", "--vary", "zero=0,1")
    assert [row["answer"]["reason"] for row in json.loads(schemes.out)["rows"]] == [None] * 4
    for vary, line in (("zero=5", "--zero '5'"), ("scheme=5d", "scheme '5d'"), ("gpt=huge", "model 'huge'")):
        refused = called(capsys, *words, "--grid", "x=8", "--vary", vary)
        assert refused.status == 2 and line in refused.line, refused.err
    small = ("sweep", "--gpt", ONE_STEP["gpt"], "--batch", "32", "--machine", "perlmutter")
    best = called(capsys, *small, "--vary", "gpus=2,4", "--best-grid")
    assert best.status == 0 and len(best.out.splitlines()) >= 4 and "best grid" in best.out


# Refused


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "matmul is missing: --matmul M,K,N is needed"),
        ("--gpt tiny --mlp 3,4 --batch 2", "--mlp and --gpt: one of them"),
        ("--gpt tiny --matmul 3,4,5 --batch 2", "--matmul and --gpt: one of them"),
        ("--gpt tiny", "batch is missing: --gpt needs --batch N, the sequences"),
        ("--mlp 3,4", "batch is missing: --mlp needs --batch N, the rows"),
        (
            "--gpt huge --batch 2",
            "model 'huge': accepted are names such as tiny, tiny-llama, 5b (`quadrille models` lists them); numbers as",
        ),
        ("--gpt no.json --batch 2", "no.json"),
        ("--gpt layers=2,hidden=8 --batch 2", "heads is missing"),
        ("--gpt tiny --batch 0", "--batch '0': a whole number from 1"),
        ("--mlp 3,x --batch 2", "width 'x'"),
        ("--mlp 3 --batch 2", "at least two widths"),
        ("--matmul 3,4,5 --scheme bian", "--scheme bian: is for --mlp and --gpt"),
        ("--matmul 3,4,5 --sequence-parallel", "--sequence-parallel: is for --mlp and --gpt"),
        ("--matmul 3,4,5 --batch 2", "--batch 2: is for --mlp and --gpt"),
        ("--matmul 3,4,5 --save f", "--save f: is for --mlp and --gpt"),
        ("--gpt tiny --batch 2 --algorithm 3d", "--algorithm 3d: is for --matmul"),
        ("--gpt tiny --batch 2 --passes training", "--passes training: is for --matmul"),
        ("--gpt tiny --batch 2 --operands integers", "--operands integers: is for --matmul"),
        ("--gpt tiny --batch 2 --a a.npy", "--a a.npy: is for --matmul"),
        ("--gpt tiny --batch 2 --verify-method freivalds", "a serial run: serial"),
        ("--mlp 3,4 --batch 2 --interleave 2", "--interleave 2: is for --gpt"),
        ("--gpt tiny --batch 2 --zero 4", "--zero '4': a whole number from 0 to 3"),
        ("--gpt tiny --batch 2 --attention flash", "attention 'flash': accepted are fused, unfused"),
        ("--mlp 3,4 --batch 2 --attention unfused", "--attention unfused: is for --gpt"),
        ("--gpt tiny --batch 2 --recompute all", "recompute 'all': accepted are none, selective, full"),
        ("--gpt tiny --batch 2 --gradient-bytes 3", "gradient-bytes '3': accepted are 4, 2"),
        (
            "--gpt tiny --batch 2 --products fp6",
            "products 'fp6': accepted are dtype, fp8, fp8-delayed, fp8-block, mxfp8",
        ),
        (
            "--gpt tiny --batch 2 --products fp8 --dtype float32",
            "products fp8 with dtype float32: accepted are bfloat16",
        ),
        (
            "--gpt tiny --batch 2 --products fp8 --dtype bfloat16",
            "--products fp8: no array library of a run multiplies",
        ),
        ("--gpt tiny --batch 2 --fp8-param-gather", "fp8 param gather with products dtype"),
        ("--mlp 3,4 --batch 2 --products fp8", "--products fp8: is for --gpt"),
        ("--gpt tiny --batch 2 --sparsity 1", "--sparsity '1': a number from 0 and below 1"),
        ("--mlp 3,4 --batch 2 --sparsity -0.1", "--sparsity '-0.1': a number from 0 and below 1"),
        ("--mlp 3,4 --batch 2 --sparsity nan", "--sparsity 'nan': a number from 0 and below 1"),
        ("--mlp 3,4 --batch 2 --sparsity much", "--sparsity 'much': a number from 0 and below 1"),
        ("--gpt tiny --batch 2 --prune random", "--prune random: nothing is pruned without --sparsity S"),
        ("--gpt tiny --batch 2 --sparse-states", "--sparse-states: nothing is pruned without --sparsity S"),
        ("--gpt tiny --batch 2 --sparsity 0.5 --prune least", "prune 'least': accepted are magnitude, random"),
        ("--matmul 3,4,5 --sparsity 0.5", "--sparsity 0.5: is for --mlp and --gpt"),
        ("--matmul 3,4,5 --sparse-states", "--sparse-states: is for --mlp and --gpt"),
        ("--gpt tiny --batch 2 --scheme 5d", "scheme '5d': accepted are 4d, megatron"),
        ("--gpt tiny --batch 2 --sequence-parallel", "--sequence-parallel with scheme 4d"),
        ("--gpt tiny --batch 2 --scheme megatron --grid y=2", "has no axis y"),
        ("--gpt tiny --batch 2 --clip -1", "--clip '-1': a number from 0"),
        ("--gpt tiny --batch 2 --learning-rate 0", "--learning-rate '0': a number above 0"),
        (f"--gpt layers={'9' * 5000} --batch 2", "a whole number from 1"),
        (f"--gpt tiny --batch 2 --grid x={'9' * 5000}", "is not x=N with a whole number N from 1"),
        ("--gpt tiny --batch 2 --steps 0", "--steps '0'"),
        ("--gpt tiny --batch 2 --load none.ckpt", "there is no such file"),
        ("--gpt tiny --batch 2 --dtype bfloat16", "float16 and bfloat16 need cupy"),
        ("--gpt layers=1,hidden=8,heads=2,sequence=4,vocabulary=50 --batch 2", "vocabulary 50"),
        ("--gpt layers=1,hidden=8,heads=2,sequence=5000,vocabulary=256 --batch 2", "sequence 5000"),
    ],
)
def test_a_run_that_cannot_be_is_one_line_and_exit_status_2(capsys, words, line):
    ended = called(capsys, "run", *words.split())
    assert ended.status == 2 and line in ended.line, ended.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "--gpt tiny --batch 8 --products fp8",
            "A100 SXM 40 GB computes no products of 8 or 4 bits: dtype is accepted",
        ),
        ("--gpt tiny --batch 8 --grid x=3", "which must divide heads = 8"),
        ("--gpt tiny --batch 3 --grid data=2,z=2", "at least data=2 times z=2"),
        ("--gpt tiny --batch 8 --grid pipeline=3", "every stage needs a layer"),
        ("--gpt tiny --batch 8 --grid pipeline=2,data=2 --zero 3", "zero 0, 1 and 2 are accepted with a pipeline"),
        ("--gpt tiny --batch 9 --grid z=2 --micro-batch 2", "last microbatch of 1: at least data=1 times z=2"),
        ("--gpt tiny --batch 8 --grid pipeline=2 --interleave 2", "must be a multiple of"),
    ],
)
def test_a_prediction_that_cannot_be_is_one_line_and_exit_status_2(capsys, words, line):
    ended = called(capsys, "simulate", *words.split(), "--machine", "perlmutter")
    assert ended.status == 2 and line in ended.line, ended.err


def test_products_in_small_numbers_are_predicted_recorded_and_repeated(capsys, tmp_path):
    path = tmp_path / "first.json"
    words = ["--gpt", "tiny", "--batch", "8", "--machine", "b200-node", "--products", "mxfp8", "--fp8-param-gather"]
    first = called(capsys, "simulate", *words, "--grid", "data=2", "--zero", "1", "--verbose", "--json", path)
    assert "of 4500 TFLOP/s in mxfp8, with bfloat16 beside it" in first.out and "up I cast" in first.out
    other = tmp_path / "again.json"
    assert called(capsys, "simulate", "--from", path, "--json", other).status == 0
    record, again = (json.loads(file.read_text()) for file in (path, other))
    assert (record["options"]["products"], record["options"]["fp8_param_gather"]) == ("mxfp8", True)
    assert again["options"] == record["options"] and again["seconds"] == record["seconds"]
    assert record["percent_of_peak"] == pytest.approx(100 * record["hardware_flops_per_second_per_gpu"] / 4.5e15)


def test_flags_that_are_shared_mean_the_same():
    one = experiment_of(TrainingFlags(matmul="4,4,4", grid="x=2", overlap="oag", threads="2"))
    other = experiment_of(TrainingFlags(mlp="4,4", batch="4", grid="x=2", overlap="oag", threads="2"))
    assert (one.grid, one.execution) == (other.grid, other.execution)


def test_a_remark_about_a_model_file_shows_the_beginning_of_a_long_value(capsys, tmp_path):
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 256, "hidden_act": "a" * 5000}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes, **more}))
    run = called(capsys, "simulate", "--gpt", str(path), "--grid", "x=2", "--batch", "4", "--machine", "perlmutter")
    remark = next(line for line in run.err.splitlines() if "the MLP's gate is silu" in line)
    assert len(remark) < 300
