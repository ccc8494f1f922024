"""A file that a command cannot take is refused by what it is, and by the command that takes it."""

import json
from pathlib import Path

import pytest

from quadrille.experiments.import_.other_files import description, refusal
from tests.support.quadrille import called

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


def test_what_is_no_job_and_no_fabric_is_refused_without_a_guess(tmp_path, capsys):
    path = tmp_path / "file.log"
    path.write_text(NCCL_TESTS + "  1024  256  float  sum  -1  35.2\n")
    assert "is no job: accepted are files of Megatron-LM, " in called(capsys, "import", "job", path).line
    assert "is not of a known kind: ibnetdiscover, " in called(capsys, "import", "topology", path).line
    path.write_text(json.dumps({"lr": 1}))
    assert "its keys are those of no job" in called(capsys, "import", "job", path).line
