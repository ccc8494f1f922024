import json
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from quadrille.algorithms.formats.chrome_trace import chrome_trace, write_chrome_trace
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.timelines.counters import Counter
from quadrille.algorithms.timelines.spans import Span, with_arrivals
from quadrille.algorithms.timelines.timeline import Timeline

times = st.floats(0, 1e-3)
spans = st.builds(
    lambda rank, lane, start, length, waited, name: Span(
        rank, name, "all_reduce", lane, start, start, start + waited, start + length, None if lane == "compute" else "x"
    ),
    st.integers(0, 2),
    st.sampled_from(["compute", "x", "y:1"]),
    times,
    times,
    times,
    st.sampled_from(["sum C", 'odd "name"', "é"]),
)
timelines = st.lists(spans, min_size=1, max_size=8).map(lambda made: Timeline(tuple(made), "measured", 3))


def slices(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def metadata(trace, name):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == name}


@pytest.fixture
def timeline():
    spans = [
        Span(0, "multiply", "gemm", "compute", 0, 10, 10, 12),
        Span(0, "sum C", "all_reduce", "y", 12, 12, 12, 16, "y", 0, 0),
        Span(1, "sum C", "all_reduce", "y", 13, 13, 13, 16, "y", 0, 0),
    ]
    return Timeline(tuple(with_arrivals(spans)), "predicted", 2)


@given(timelines)
def test_slices_of_one_thread_nest(timeline):
    threads = {}
    for event in slices(chrome_trace([timeline])):
        begin = round(event["ts"] * 1000)
        threads.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    assert {pid for pid, _ in threads} == {span.rank for span in timeline.spans}
    for intervals in threads.values():
        for (a, b), (c, d) in combinations(intervals, 2):
            assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


@given(timelines)
def test_every_span_is_one_slice_of_its_length(timeline):
    found = sorted(event["dur"] for event in slices(chrome_trace([timeline])) if event["name"] != "waiting")
    assert found == pytest.approx(sorted((span.end - span.start) * 1e6 for span in timeline.spans), abs=2e-3)


@given(timelines)
def test_the_trace_is_json_that_starts_at_time_zero(timeline):
    trace = json.loads(json.dumps(chrome_trace([timeline]), allow_nan=False))
    assert min(event["ts"] for event in slices(trace)) == 0


def test_one_process_per_rank_and_one_thread_per_lane(timeline):
    trace = chrome_trace([timeline])
    assert metadata(trace, "process_name") == {(0, 0): "predicted rank 0", (1, 0): "predicted rank 1"}
    assert metadata(trace, "thread_name") == {(0, 0): "compute", (0, 1): "y", (1, 0): "y"}


def test_predicted_and_measured_stand_under_each_other_from_their_own_time_zero(timeline):
    later = replace(
        timeline,
        kind="measured",
        spans=tuple(
            structs.replace(span, start=span.start + 1e6, arrival=span.arrival + 1e6, end=span.end + 1e6)
            for span in timeline.spans
        ),
    )
    trace = chrome_trace([timeline, later])
    assert list(metadata(trace, "process_name").values()) == [
        "predicted rank 0",
        "predicted rank 1",
        "measured rank 0",
        "measured rank 1",
    ]
    first, second = (
        [event for event in slices(trace) if (event["pid"] >= 2) == measured] for measured in (False, True)
    )
    assert [(event["name"], event["ts"], event["dur"]) for event in first] == [
        (event["name"], event["ts"], event["dur"]) for event in second
    ]


def test_waiting_is_a_slice_inside_the_op(timeline):
    op, waiting = [event for event in slices(chrome_trace([timeline])) if event["tid"] == 1]
    assert (op["name"], op["ts"], op["dur"]) == ("sum C", 2e6, 4e6)
    assert (waiting["name"], waiting["ts"], waiting["dur"]) == ("waiting", 2e6, 1e6)


def test_the_file_opens_with_the_events_and_names_its_schema_and_command(timeline, tmp_path):
    write_chrome_trace(tmp_path / "trace.json", [timeline], provenance(["quadrille", "run"]))
    text = (tmp_path / "trace.json").read_text()
    assert text.startswith('{"traceEvents":[{')
    about = json.loads(text)["otherData"]
    assert (about["schema"], about["provenance"]["command"]) == ("quadrille/trace/1", "quadrille run")


def test_an_arrow_leads_from_each_send_to_its_receive():
    def message(rank, kind, lane, start, end, index=0, to_peer=1):
        return Span(rank, f"{kind} X", kind, lane, start, start, start, end, "pipeline", index, to_peer=to_peer)

    spans = (
        message(0, "send", "pipeline", 1, 3),
        message(0, "send", "pipeline", 4, 6, 1),
        message(1, "receive", "pipeline posted", 0, 3, 0, -1),
        message(1, "receive", "pipeline posted", 5, 6, 1, -1),
        message(1, "send", "pipeline", 7, 8, 0, 5),
    )
    events = chrome_trace([Timeline(spans, "predicted", 2)])["traceEvents"]
    starts, ends = ([event for event in events if event["ph"] == phase] for phase in "sf")
    assert [event["id"] for event in starts] == [event["id"] for event in ends] == ["0.0", "0.1"]
    assert [(event["pid"], event["ts"]) for event in starts] == [(0, 1e6), (0, 4e6)]
    assert [(event["pid"], event["ts"], event["bp"]) for event in ends] == [(1, 1e6, "e"), (1, 5e6, "e")]


def test_counters_are_tracks_of_their_rank_and_of_a_process_of_the_network(timeline):
    memory = Counter("memory in bytes", ((10.0, {"weights": 5, "activations": 0}), (11.0, {"weights": 5})), rank=1)
    load = Counter(
        "a>b", ((9.0, {"share": 0.75}), (10.0, {"share": 0.5}), (12.0, {"share": 0.5}), (12.0 + 1e-10, {"share": 0.25}))
    )
    trace = json.loads(json.dumps(chrome_trace([timeline, timeline], counters=[memory, load])))
    counted = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert [(event["pid"], event["name"], event["ts"], event["args"]) for event in counted] == [
        (1, "memory in bytes", 0, {"weights": 5, "activations": 0}),
        (1, "memory in bytes", 1e6, {"weights": 5}),
        (2, "a>b", 0, {"share": 0.5}),
        (2, "a>b", 2e6, {"share": 0.25}),
    ]
    names = {pid: name for (pid, _), name in metadata(trace, "process_name").items()}
    assert names == {
        0: "predicted rank 0",
        1: "predicted rank 1",
        2: "predicted network",
        3: "predicted rank 0",
        4: "predicted rank 1",
    }
