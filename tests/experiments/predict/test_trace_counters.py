"""Counters of a trace against the record of the same prediction."""

import json
from itertools import pairwise

import pytest

from tests.support.quadrille import called

GPT = ("--gpt", "tiny", "--batch", 4, "--micro-batch", 1, "--machine", "perlmutter")


def predicted(capsys, folder, *words):
    """The record of a prediction, and the counter events of its trace by process and name."""
    ended = called(capsys, "simulate", *words, "--json", folder / "r.json", "--trace", folder / "t.json")
    assert ended.status == 0, ended.err
    trace = json.loads((folder / "t.json").read_text())
    counters = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            counters.setdefault((event["pid"], event["name"]), []).append(event)
    return json.loads((folder / "r.json").read_text()), counters


@pytest.mark.parametrize(
    "words",
    [
        ("--grid", "pipeline=2"),
        ("--grid", "pipeline=2,data=2", "--granularity", "collective"),
        ("--grid", "pipeline=2", "--granularity", "passes"),
        ("--grid", "x=2", "--collectives", "auto"),
    ],
)
def test_the_most_memory_of_a_rank_is_the_peak_of_the_record(capsys, tmp_path, words):
    record, counters = predicted(capsys, tmp_path, *GPT, *words)
    memory = [events for (_, name), events in counters.items() if name == "memory in bytes"]
    assert len(memory) == record["ranks"]
    assert (
        max(sum(event["args"].values()) for events in memory for event in events) == record["peak_bytes_per_rank_max"]
    )
    for events in memory:
        assert all(set(event) == {"ph", "name", "pid", "tid", "ts", "args"} for event in events)
        times = [event["ts"] for event in events]
        assert times == sorted(set(times))
        assert all(before["args"] != after["args"] for before, after in pairwise(events))


def test_memory_that_no_schedule_tells_has_no_counter(capsys, tmp_path):
    """Messages order the passes of a message-driven pipeline, and a matmul has no kinds."""
    driven = predicted(capsys, tmp_path, *GPT, "--grid", "pipeline=2", "--pipeline-schedule", "message-driven")
    matmul = predicted(capsys, tmp_path, "--matmul", "64,64,64", "--grid", "x=2", "--machine", "perlmutter")
    assert not [name for _, counters in (driven, matmul) for _, name in counters if name == "memory in bytes"]


@pytest.mark.parametrize("words", [("--grid", "data=2,x=4"), ("--grid", "data=2,x=4", "--ranks", "5")])
def test_the_busiest_links_of_the_record_have_counters_of_the_network(capsys, tmp_path, words):
    """Times are whole nanoseconds, so the integral of a share is not exact."""
    gpt = ("--gpt", "tiny", "--batch", 4, "--machine", "perlmutter", "--collectives", "own")
    record, counters = predicted(capsys, tmp_path, *gpt, *words)
    bytes_of = {load["link"]: load["bytes"] for load in record["links"]}
    shares = {name: events for (pid, name), events in counters.items() if pid == record["ranks"]}
    assert 0 < len(shares) <= 8
    bandwidths = {"gpu:0>nic:0": 31.5e9, "nic:0>router:0": 25e9, "gpu:0>gpu:1": 100e9}
    assert {name.split(" ")[0] for name in shares} == bandwidths.keys() & bytes_of.keys()
    for name, events in shares.items():
        link = name.split(" ")[0]
        seconds = sum(
            (after["ts"] - before["ts"]) * 1e-6 * before["args"]["share"] for before, after in pairwise(events)
        )
        assert seconds * bandwidths[link] == pytest.approx(bytes_of[link], rel=1e-3)
