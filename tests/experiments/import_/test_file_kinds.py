"""The kind of a file is found by its content, and a command says what a file is that it cannot take."""

import json
from pathlib import Path

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.cli.main import main
from quadrille.experiments.import_.file_kinds import KINDS, command_of, description, refusal
from quadrille.experiments.tasks.task_store import TaskStore
from tests.support.quadrille import called

ARGUMENTS = {
    "--num-layers": 2, "--hidden-size": 64, "--num-attention-heads": 4, "--seq-length": 32, "--micro-batch-size": 1,
    "--vocab-size": 100, "--bf16": True,
}  # fmt: skip

SAMPLES = Path(__file__).with_name("samples")
NCCL_TESTS = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
FILES = {
    "": "is empty",
    " \n": "is empty",
    "PNG\0\0": "is binary data",
    NCCL_TESTS: "quadrille check FILE --machine NAME",
    '{"header": {}, "coll_perf": {}}': "quadrille check FILE --machine NAME",
    " iteration 5/ 9 | elapsed time per iteration (ms): 812.5 |": "quadrille compare PREDICTED FILE",
    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64": "quadrille simulate FILE",
    "SwitchName=leaf Nodes=node[1-4]": "quadrille import topology FILE",
    "hello": "",
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ARGUMENTS),
        "MODEL_ARGS:\n  --num-layers: 2\n",
        "torchrun pretrain_gpt.py --hidden_size=64",
        "node-01:   num_layers ...................................... 2\n",
    ],
)
def test_arguments_of_megatron_are_a_job(text, tmp_path):
    (tmp_path / "file").write_text(text)
    assert command_of(str(tmp_path / "file")) == "job"


@pytest.mark.parametrize(
    "text",
    [
        '<system version="1">',
        "SwitchName=leaf Nodes=node[1-4]\n",
        "- topology: default\n  tree:\n",
        "switches:\n  leaf:\n    nodes: [a, b]\n",
        '{\n  "logical-dims": ["8"]\n}',
        "npus_count: [ 8 ]\n",
        "\tGPU0\tGPU1\nGPU0\tX\tNV4\n",
        'Switch\t36 "S-0002c9000100d050"\t\t# "leaf" enhanced port 0 lid 1 lmc 0\n',
    ],
)
def test_fabrics_and_nodes_are_a_topology(text, tmp_path):
    (tmp_path / "file").write_text(text)
    assert command_of(str(tmp_path / "file")) == "topology"


@pytest.mark.parametrize(
    "text",
    [
        "# OSU MPI Allreduce Latency Test v7.3\n",
        "#       size         count      type   redop     time\n",
        '{"header": {"id": "0x7"}, "coll_perf": {"coll": "AllReduce"}}\n',
        '{"config": {}, "results": [{"size": 8, "out_of_place": {"time": 7}}]}',
    ],
)
def test_measured_collectives_are_a_machine(text, tmp_path):
    (tmp_path / "file").write_text(text)
    assert command_of(str(tmp_path / "file")) == "machine"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x1f\x8b rest", "quadrille explain FILE"),
        (b"SQLite format 3\x00", "quadrille explain FILE"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "quadrille explain FILE"),
        (b"<?xml version='1.0'?>\n<platform version='4.1'>", "--machine FILE"),
        (b'{"directed": true, "nodes": [{"id": "a"}], "edges": []}', "--machine FILE"),
        (b'schema = "quadrille/machine/2"\nname = "x"\n', "no import is needed"),
    ],
)
def test_files_that_other_commands_read_name_them(content, said, tmp_path, capsys):
    (tmp_path / "file").write_bytes(content)
    assert main(["import", str(tmp_path / "file")]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert said in printed.err


def test_import_finds_the_kind_by_itself(tmp_path, capsys):
    (tmp_path / "job").write_text(json.dumps(ARGUMENTS))
    assert main(["import", str(tmp_path / "job"), "--gpus", "1"]) == 0
    by_itself = capsys.readouterr().out
    assert main(["import", "job", str(tmp_path / "job"), "--gpus", "1"]) == 0
    assert capsys.readouterr().out == by_itself


@pytest.mark.parametrize("content", [b"", b"\0--num-layers 2", b"hello", b"\xff\xfe\x00\x01", b"{}"])
def test_another_file_is_refused_in_one_line(content, tmp_path, capsys):
    (tmp_path / "file").write_bytes(content)
    assert main(["import", str(tmp_path / "file")]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "quadrille import KIND FILE" in printed.err


def test_a_folder_and_a_missing_file_are_refused(tmp_path, capsys):
    with pytest.raises(InputError, match="not a regular file"):
        command_of(str(tmp_path))
    assert main(["import", str(tmp_path / "missing")]) == 2
    assert "missing: cannot be read: No such file" in capsys.readouterr().err
    assert main(["import", "jib"]) == 2
    assert "No such command 'jib'" in capsys.readouterr().err


def test_each_kind_names_a_command_of_import():
    from quadrille.cli.app import import_group

    commands = {command.removeprefix("import ") for kind in KINDS for command in kind.commands}
    assert commands - {"replay"} == set(import_group.list_commands(None))


@pytest.mark.parametrize("text", FILES)
def test_a_text_is_described_with_the_command_that_takes_it(text):
    words = description("file", text)
    assert FILES[text] in words and bool(words) == bool(FILES[text])


def test_a_trace_is_described_by_its_content():
    assert description(str(SAMPLES / "amd_mi250_minitoy.json.gz"), "\x1f\ufffd") == (
        "is a profiler's trace (for quadrille explain FILE)"
    )


@pytest.mark.parametrize(
    "content", [b'{"schema": "quadrille/record/2"', b"schema = 'x'\nschema = \"quadrille/machine/2\""]
)
def test_a_file_with_a_schema_is_left_to_its_reader(content, tmp_path):
    (tmp_path / "file").write_bytes(content)
    assert refusal(str(tmp_path / "file"), "") is None
    assert refusal(str(tmp_path / "missing"), "") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"[1,2", "names no schema of Quadrille"), (b"\xff" * 99, "is binary data")],
)
def test_explain_and_compare_name_the_fault_and_what_they_take(content, said, tmp_path, capsys):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    for words, accepted in ((["explain"], "a record, "), (["compare", path], "quadrille simulate --json FILE")):
        ended = called(capsys, *words, path)
        assert ended.status == 2 and f"{said}: " in ended.line and accepted in ended.line


def test_a_folder_is_refused_as_such(tmp_path, capsys):
    assert "is a folder: a record, " in called(capsys, "explain", tmp_path).line
    assert "cannot be read: not a regular file" in called(capsys, "import", tmp_path).line


OTHERS = {
    ("import", "job"): ["nccl", "trace", "goal", "own"],
    ("import", "topology"): ["nccl", "trace", "goal", "own", "log"],
    ("replay",): ["nccl", "trace", "log", "own"],
    ("simulate",): ["nccl", "trace", "goal", "log"],
}
CONTENTS = {
    "nccl": (NCCL_TESTS.encode(), "has measured collectives (for quadrille check FILE --machine NAME)"),
    "trace": (b"\x1f\x8b rest", "is a profiler's trace (for quadrille explain FILE)"),
    "goal": (b"num_ranks 2\n", "is a message graph of GOAL (for quadrille replay FILE --machine NAME)"),
    "log": (
        b" iteration 5/ 9 | elapsed time per iteration (ms): 812.5 |\n",
        "is the log of a training program (for quadrille compare PREDICTED FILE)",
    ),
    "own": (b'{"schema": "quadrille/record/2"}', "is a file of Quadrille"),
}


@pytest.mark.parametrize(("words", "name"), [(words, name) for words, names in OTHERS.items() for name in names])
def test_every_reader_says_what_another_file_is(words, name, tmp_path, capsys):
    content, said = CONTENTS[name]
    path = tmp_path / "file"
    path.write_bytes(content)
    machine = ["--machine", "star:hosts=2,bandwidth=1e9,latency=0"] if words == ("replay",) else []
    line = called(capsys, *words, path, *machine).line
    assert f"{path}: {said}" in line and "accepted" in line


def test_a_file_of_no_kind_is_refused_without_a_guess(tmp_path, capsys):
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"lr": 1}))
    assert "its keys are those of no job" in called(capsys, "import", "job", path).line
    assert "is not of a known kind: ibnetdiscover, " in called(capsys, "import", "topology", path).line
    assert "TOML with the key matmul, mlp or gpt" in called(capsys, "simulate", path).line


def test_a_log_with_its_arguments_is_a_job_and_its_faults_are_those_of_a_job(tmp_path, capsys):
    path = tmp_path / "file.log"
    path.write_text(
        "num_layers ........ 2\nhidden_size ....... x\n iteration 5/ 9 | elapsed time per iteration (ms): 8 |\n"
    )
    assert command_of(str(path)) == "job"
    assert "--hidden-size" in called(capsys, "import", "job", path, "--gpus", "1").line


@pytest.mark.parametrize(
    "words", ["report STORE --out a.html", "explain STORE", "compare STORE STORE", "simulate STORE", "import job STORE"]
)
def test_a_store_of_answers_is_no_trace(words, tmp_path, capsys):
    store = tmp_path / "results.sqlite"
    with TaskStore(str(store)) as kept:
        kept.keep(b"hash", "function", "label", "1", "code")
    ended = called(capsys, *words.replace("STORE", str(store)).replace("a.html", str(tmp_path / "a.html")).split())
    assert ended.status == 2
    assert f"{store}: is a store of answers (for quadrille sweep … or rank … --store FILE)" in ended.line
    assert {path.name for path in tmp_path.iterdir()} == {"results.sqlite"}
