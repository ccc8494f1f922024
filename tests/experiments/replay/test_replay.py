"""`export goal` and `replay`: an experiment goes out and comes in again."""

import json
from math import log2

import pytest

from quadrille.algorithms.formats.chakra import COMPUTE, RECEIVE, SEND, read_nodes
from tests.support.quadrille import ROOT, called

STAR = "star:hosts=32,bandwidth=1e9,latency=1e-6"
SMALL = ("--matmul", "64,64,64", "--grid", "z=2,x=2", "--machine", "perlmutter", "--collectives", "own:ring")


def binomial_tree(ranks):
    """A broadcast in GOAL: rank r sends to r + 2^k for all 2^k above r, as LogGOPSim's generator writes it."""
    lines = [f"num_ranks {ranks}"]
    for rank in range(ranks):
        lines.append(f"rank {rank} {{")
        if rank:
            lines.append(f"l0: recv 1b from {rank - (1 << rank.bit_length() - 1)} tag 0")
        for k in range(rank.bit_length(), int(log2(ranks))):
            lines.append(f"l{k + 1}: send 1b to {rank + (1 << k)} tag 0")
            lines += [f"l{k + 1} requires l0"] if rank else []
        lines.append("}")
    return "\n".join(lines)


def test_a_binomial_tree_takes_as_many_hops_as_it_has_levels(capsys, tmp_path):
    path = tmp_path / "tree.goal"
    path.write_text(binomial_tree(32))
    answer = json.loads(called(capsys, "replay", path, "--machine", STAR, "--json", "-").out)
    assert (answer["ranks"], answer["messages"], answer["bytes"]) == (32, 31, 31)
    assert answer["makespan_s"] == pytest.approx(log2(32) * 2e-6, rel=2e-2)


def test_an_experiment_comes_back_with_its_predicted_time(capsys, tmp_path):
    path = tmp_path / "job.goal"
    ended = called(capsys, "export", "goal", *SMALL, "--out", path)
    assert ended.status == 0
    assert "4 ranks, 8 calculations, 4 messages of 16 KiB" in ended.line
    called(capsys, "simulate", *SMALL, "--json", tmp_path / "predicted.json")
    predicted = json.loads((tmp_path / "predicted.json").read_text())["seconds"]
    answer = json.loads(called(capsys, "replay", path, "--machine", "perlmutter", "--json", "-").out)
    assert answer["makespan_s"] == pytest.approx(predicted, abs=10e-9)


SAMPLES = ROOT / "tests/experiments/import_/samples"
RING = [SAMPLES / f"all_reduce_4npus_1MB.{rank}.et" for rank in range(4)]


def answer_of(capsys, *words):
    return json.loads(called(capsys, "replay", *words, "--json", "-").out)


def test_a_collective_of_another_tool_takes_the_time_of_its_formula(capsys):
    star = "star:hosts=4,bandwidth=1e9,latency=1e-6"
    answer = answer_of(capsys, *RING, "--machine", star)
    assert (answer["messages"], answer["bytes"]) == (24, 6 << 20)
    assert answer["makespan_s"] == pytest.approx(6 * (2e-6 + (1 << 18) / 1e9))
    doubled = answer_of(capsys, *RING, "--machine", star, "--collectives", "own:doubling")
    assert doubled["makespan_s"] == pytest.approx(2 * (2e-6 + (1 << 20) / 1e9))


def test_a_trace_of_messages_is_read(capsys):
    path = SAMPLES / "custom_ring_allreduce_8npus_1MB.0.et"
    ring = list(read_nodes(path.read_bytes()))
    assert [node.kind for node in ring[:3]] == [SEND, RECEIVE, COMPUTE]
    assert [node.needs for node in ring[1:3]] == [(0,), (1,)]
    assert {node.number("comm_size") for node in ring if node.kind == SEND} == {131072}
    assert sum(node.seconds for node in ring) == pytest.approx(7 * 7e-6)


@pytest.mark.parametrize("words", [[], ["--messages"]])
@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling"])
def test_chakra_traces_come_back_with_their_predicted_time(capsys, tmp_path, words, collectives):
    job = (*SMALL[:-2], "--collectives", collectives)
    called(capsys, "export", "chakra", *job, *words, "--out", tmp_path / "step")
    called(capsys, "simulate", *job, "--json", tmp_path / "predicted.json")
    predicted = json.loads((tmp_path / "predicted.json").read_text())["seconds"]
    files = sorted(path for path in tmp_path.iterdir() if path.name.startswith("step."))
    assert len(files) == 4 + (not words)
    answer = answer_of(capsys, *files, "--machine", "perlmutter", "--collectives", collectives)
    assert answer["makespan_s"] == pytest.approx(predicted, rel=1e-9)


def test_nccl_goes_out_as_rings_and_says_so(capsys):
    ended = called(capsys, "export", "goal", *SMALL[:-2])
    assert ended.status == 0
    assert "written as rings" in ended.err
    assert ended.out.startswith("num_ranks 4\n")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["export", "goal", *SMALL, "--order", "auto"], "order 'auto'"),
        (["export", "goal", *SMALL, "--out", "/no/folder/x.goal"], "does not exist"),
        (["replay", "none.goal", "--machine", STAR], "cannot be read"),
        (["replay", "binary.goal", "--machine", STAR], "is not text"),
        (["export", "chakra", *SMALL], "--out: the beginning"),
        (["replay", *RING[:2], RING[3], "--machine", STAR], "the trace of rank 2 is missing"),
        (["replay", *RING, "truth.json", "--machine", STAR], "[False, True] is no list of ranks"),
        (["replay", RING[0], RING[0], "--machine", STAR], "stands twice"),
        (["replay", *RING, "--machine", STAR, "--collectives", "nccl"], "accepted are own"),
        (["replay", *RING, "traffic.csv", "--machine", STAR], "traffic.csv is truncated or not JSON"),
        (["replay", "cut.0.et", *RING[1:], "--machine", STAR], "cut.0.et: ends within a message"),
        (["replay", "traffic.csv", "--machine", STAR], "GOAL file"),
        (["replay", "tree.goal", "--machine", "perlmutter", "--gpus", "8"], "32 ranks"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, words, fault):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.goal").write_bytes(b"num_ranks \xff\xfe")
    (tmp_path / "truth.json").write_text('{"1": [false, true]}')
    (tmp_path / "cut.0.et").write_bytes(RING[0].read_bytes()[:-2])
    (tmp_path / "traffic.csv").write_text("source,destination,bytes,start_s\n0,1,8,0\n")
    (tmp_path / "tree.goal").write_text(binomial_tree(32))
    ended = called(capsys, *words)
    assert ended.status == 2
    assert fault in ended.line
