import json

from tests.support.kineto_traces import NORM, Work, all_reduce, events, write_trace
from tests.support.quadrille import called


def test_the_verdict_comes_first(tmp_path, capsys):
    ended = called(capsys, "explain", write_trace(tmp_path / "t.json.gz"))
    assert ended.status == 0
    first, most, second, third = ended.out.splitlines()[:4]
    assert first == "The GPU computes 60.0 % of the time; the largest loss is exposed communication, 24.7 %."
    assert most == "Most of it is in all-reduce of 2 MiB over 8 ranks (24.7 %)."
    assert second == "rank 0 of 8 on NVIDIA H100 80GB HBM3: 3 iterations (annotated) of 283 us each."
    assert third == "Computation hides 30.0 % of 100 us of communication in an iteration."


def test_the_largest_loss_is_named(tmp_path, capsys):
    slow = events([Work(NORM, 0, 10), all_reduce(0, 12)], period=100)
    assert "the largest loss is idle time" in called(capsys, "explain", write_trace(tmp_path / "idle.json", slow)).out
    busy = events([Work(NORM, 0, 100)], period=100)
    ended = called(capsys, "explain", write_trace(tmp_path / "busy.json", busy))
    assert ended.out.startswith("The GPU computes 100.0 % of the time, most in other kernels (100.0 %).\n")


def test_the_answer_is_written_as_json(tmp_path, capsys):
    ended = called(capsys, "explain", write_trace(tmp_path / "t.json"), "--json", "-")
    answer = json.loads(ended.out)
    assert answer["schema"] == "quadrille/trace/1" and answer["iterations"] == 3
    assert answer["works"][0]["work"] == "products" and answer["provenance"]["command"]


def test_a_trace_of_the_cpu_alone_is_refused(tmp_path, capsys):
    rows = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 3}]
    ended = called(capsys, "explain", write_trace(tmp_path / "t.json.gz", rows))
    assert ended.status == 2 and "no GPU kernels among 1 events" in ended.line
