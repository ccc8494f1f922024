"""The kind of a file is found by its content."""

import json

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.cli.main import main
from quadrille.experiments.import_.file_kinds import FILE_KINDS, command_of

ARGUMENTS = {
    "--num-layers": 2, "--hidden-size": 64, "--num-attention-heads": 4, "--seq-length": 32, "--micro-batch-size": 1,
    "--vocab-size": 100, "--bf16": True,
}  # fmt: skip


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

    assert {kind.command for kind in FILE_KINDS} <= set(import_group.list_commands(None))
