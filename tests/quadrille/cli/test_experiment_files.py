"""An experiment as a file, and the experiment of a record again."""

import json
from itertools import pairwise

import pytest

from tests.support.quadrille import ROOT, called

JOB = """schema = "quadrille/experiment/1"
matmul = [96, 64, 32]
grid = { z = 2, x = 2 }
passes = "training"
overlap = ["oar", "ors"]
machine = "perlmutter"
set = { "device.overhead_seconds" = "x2" }
sequence-parallel = false
"""
WORDS = [
    "--matmul",
    "96,64,32",
    "--grid",
    "z=2,x=2",
    "--passes",
    "training",
    "--overlap",
    "oar,ors",
    "--machine",
    "perlmutter",
    "--set",
    "device.overhead_seconds=x2",
]


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def record_of(capsys, *words):
    ended = called(capsys, *words, "--json", "-")
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    del record["provenance"]
    return record


def test_a_file_predicts_what_its_words_predict(capsys, job):
    assert record_of(capsys, "simulate", job) == record_of(capsys, "simulate", *WORDS)


def test_words_on_the_command_line_come_before_those_of_the_file(capsys, job):
    changed = record_of(capsys, "simulate", job, "--matmul", "50,40,30", "--overlap", "none")
    words = ["--matmul", "50,40,30", "--grid", "z=2,x=2", "--passes", "training", *WORDS[-4:]]
    assert changed == record_of(capsys, "simulate", *words)


TRAIN = (
    "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
    "--seq-length 32 --micro-batch-size 1 --vocab-size 100 --bf16"
)


def test_the_job_of_another_program_predicts_what_its_experiment_file_predicts(capsys, tmp_path):
    script, experiment = tmp_path / "train.sh", tmp_path / "train.toml"
    script.write_text(f"#!/bin/bash\n{TRAIN}\n")
    assert called(capsys, "import", script, "--out", experiment).status == 0
    machine = ["--machine", "a100-node"]
    assert record_of(capsys, "simulate", script, *machine) == record_of(capsys, "simulate", experiment, *machine)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TRAIN.replace("--nproc_per_node 2", ""), "number of GPUs is missing"),
        (f"{TRAIN} --squared-relu", "import job --approximate"),
        ('[model]\nname = "llama3"\n[training]\nseq_len = 32\n[parallelism]\n', "--model"),
    ],
)
def test_a_job_that_the_file_does_not_say_is_one_line(capsys, tmp_path, text, words):
    path = tmp_path / "job.toml"
    path.write_text(text)
    ended = called(capsys, "simulate", path, "--machine", "a100-node")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert words in ended.err and str(path) in ended.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": "quadrille/record/2"}', "is a record: --from "),
        ("SwitchName=leaf Nodes=node[1-4]\n", "quadrille import topology FILE"),
        ("matmul = \n", "is truncated or not TOML"),
    ],
)
def test_a_file_that_is_no_experiment_is_named_as_what_it_is(capsys, tmp_path, text, said):
    path = tmp_path / "job.toml"
    path.write_text(text)
    ended = called(capsys, "simulate", path, "--machine", "a100-node")
    assert ended.status == 2 and said in ended.line and str(path) in ended.line


@pytest.mark.parametrize("command", [["schedule"], ["run"], ["sweep", "--vary", "bands=1,2"]])
def test_other_verbs_take_the_file_too(capsys, tmp_path, command):
    path = tmp_path / "job.toml"
    machine = 'machine = "perlmutter"\n' if command[0] == "sweep" else ""
    path.write_text('matmul = "12,8,4"\n' + machine)
    assert called(capsys, command[0], path, *command[1:]).status == 0


@pytest.mark.parametrize("verb", ["simulate", "run"])
def test_a_records_experiment_is_repeated_without_its_destinations(capsys, tmp_path, verb):
    record = tmp_path / "first.json"
    words = ["--matmul", "24,16,8", "--dtype", "float64", "--passes", "training", "--machine", "perlmutter"]
    assert called(capsys, verb, *words, "--json", record).status == 0
    before = record.read_text()
    again = record_of(capsys, "simulate", "--from", record, "--dtype", "float32")
    assert (again["workload"]["matmul"]["m"], again["dtype"], again["passes"]) == (24, "float32", "training")
    assert record.read_text() == before


def test_a_record_of_a_repeated_experiment_names_all_its_flags_and_is_repeated_itself(capsys, tmp_path):
    paths = [tmp_path / name for name in ("first.json", "second.json", "third.json")]
    first = "--gpt tiny --batch 8 --sequence-parallel --scheme megatron --grid x=2 --machine perlmutter"
    changes = "--set device.overhead_seconds=x2 --set device.memory_bytes=x3"
    assert called(capsys, "simulate", *first.split(), *changes.split(), "--json", paths[0]).status == 0
    for source, path in pairwise(paths):
        assert called(capsys, "simulate", f"--from={source}", "--grid", "x=4", "--json", path).status == 0
    records = [json.loads(path.read_text()) for path in paths]
    commands = [record["provenance"]["command"] for record in records]
    assert all("--from" not in command and "first.json" not in command for command in commands[1:])
    assert commands[1].count("--set") == commands[2].count("--set") == 2
    assert [record["grid"]["x"] for record in records] == [2, 4, 4]
    assert commands[2].count("--grid") == 1
    assert records[1]["seconds"] == records[2]["seconds"]
    assert records[1]["options"]["sequence_parallel"]
    again = "--set device.overhead_seconds=x4"
    assert called(capsys, "simulate", "--from", paths[0], *again.split(), "--json", paths[1]).status == 0
    command = json.loads(paths[1].read_text())["provenance"]["command"]
    assert command.count("--set") == 1
    assert again in command


@pytest.mark.parametrize(
    ("flag", "pair"),
    [
        ("", ("fused", "none")),
        ("--recompute selective", ("fused", "none")),
        ("--recompute none", ("unfused", "none")),
        ("--recompute full", ("fused", "full")),
    ],
)
def test_the_experiment_of_an_older_record_is_repeated_as_it_was_meant(capsys, tmp_path, flag, pair):
    record = json.loads((ROOT / "tests/golden/records/predicted-gpt.json").read_text())
    record["options"]["recompute"] = flag.rpartition(" ")[2] or "selective"
    command = f"quadrille simulate --gpt tiny --batch 4 --grid z=2 {flag} --machine perlmutter"
    record["provenance"] = {**record["provenance"], "command": command}
    path = tmp_path / "older.json"
    path.write_text(json.dumps(record))
    again = record_of(capsys, "simulate", "--from", path)["options"]
    assert (again["attention"], again["recompute"]) == pair
    changed = record_of(capsys, "simulate", "--from", path, "--attention", "unfused", "--recompute", "selective")
    assert (changed["options"]["attention"], changed["options"]["recompute"]) == ("unfused", "selective")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gridd = 'z=2'", ["gridd", "grid"]),
        ("grid = true", ["grid = true", "accepted"]),
        ("verify = 'yes'", ["verify = 'yes'", "true or false"]),
        ("matmul = [", ["truncated or not TOML"]),
        ("schema = 'quadrille/record/1'", ["quadrille/record/1", "quadrille/experiment/1"]),
    ],
)
def test_a_file_that_cannot_be_is_one_line(capsys, tmp_path, text, said):
    path = tmp_path / "job.toml"
    path.write_text(text)
    ended = called(capsys, "simulate", path)
    assert ended.status == 2
    assert all(word in ended.line for word in said)


def test_a_missing_file_and_a_record_of_no_command_are_one_line(capsys, tmp_path):
    assert "cannot be read" in called(capsys, "simulate", tmp_path / "none.toml").line
    record = tmp_path / "record.json"
    assert called(capsys, "run", "--matmul", "4,4,4", "--json", record).status == 0
    content = json.loads(record.read_text())
    content["provenance"]["command"] = ""
    record.write_text(json.dumps(content))
    assert "a record of simulate or run is accepted" in called(capsys, "simulate", "--from", record).line
