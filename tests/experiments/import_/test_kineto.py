import gzip
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.experiments.import_ import event_lists
from quadrille.experiments.import_.kineto import read_kineto
from quadrille.experiments.traces.collective_calls import CollectiveCall
from tests.support.kineto_traces import ALL_REDUCE, FLASH, GEMM, ITERATION, Work, events, trace_text, write_trace
from tests.support.quadrille import called

SAMPLES = Path(__file__).parent / "samples"


def test_a_trace_has_the_work_of_the_gpu_in_columns(tmp_path):
    trace = read_kineto(write_trace(tmp_path / "t.json.gz"))
    assert (trace.rank, trace.ranks, trace.device) == (0, 8, "NVIDIA H100 80GB HBM3")
    assert [trace.kernels[name] for name in trace.names[:3]] == [GEMM, FLASH, ALL_REDUCE]
    assert trace.works == ("products", "attention", "communication", "other kernels", "copies")
    assert np.allclose(trace.starts[:6] * 1e6, [0, 100, 120, 220, 240, 300], atol=1e-3)
    assert np.allclose(trace.seconds[:5] * 1e6, [100, 50, 100, 20, 10])
    assert trace.collectives == (CollectiveCall("all_reduce", 2**21, 8, "0"),)
    assert np.allclose((trace.starts - trace.launches) * 1e6, 150, atol=1e-3)
    assert trace.marks.names == ("ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7")


@pytest.mark.parametrize("chunk", [64, 1000, 2**23])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_trace_reads_the_same_whatever_the_chunks_and_the_spaces(tmp_path, monkeypatch, chunk, indent):
    rows = events()
    rows[3]["args"]["hard"] = 'a }, { "ph": [ \\ " ] ünï'
    rows[4]["args"]["nested"] = [{"a": 1}, {"b": [{}, {"c": "]"}]}]
    whole = read_kineto(write_trace(tmp_path / "whole.json", rows))
    monkeypatch.setattr(event_lists, "CHUNK_BYTES", chunk)
    cut = read_kineto(write_trace(tmp_path / "cut.json", rows, indent=indent))
    for column in ("starts", "seconds", "names", "lanes", "calls", "launches"):
        assert np.array_equal(getattr(whole, column), getattr(cut, column))
    assert (whole.kernels, whole.marks, whole.rank) == (cut.kernels, cut.marks, cut.rank)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(rows=st.lists(st.dictionaries(st.text(max_size=4), values, max_size=4), max_size=12), chunk=st.integers(9, 90))
@settings(max_examples=50)
def test_the_events_are_those_of_the_json_module(rows, chunk):
    text = json.dumps({"a": [1], "traceEvents": rows, "b": {"c": 2}}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_lists, "CHUNK_BYTES", chunk)
        lists = event_lists.EventLists(io.BytesIO(text), dict)
        assert [event for events_of_chunk in lists for event in events_of_chunk] == rows
        assert lists.header(dict) == {"a": [1], "traceEvents": [], "b": {"c": 2}}


def test_a_bare_list_of_events_is_a_trace_too(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(" " + json.dumps(events()))
    trace = read_kineto(path)
    assert len(trace.starts) == 3 * len(ITERATION) and trace.rank is None


def test_the_gpu_with_most_work_counts(tmp_path):
    rows = events()
    stray = dict(rows[2], args=rows[2]["args"] | {"device": 5})
    trace = read_kineto(write_trace(tmp_path / "t.json", [*rows, stray]))
    assert len(trace.starts) == 3 * len(ITERATION)
    assert trace.remarks == ("the work of GPU 0 counts; other GPUs of this trace do not",)


def test_the_samples_of_other_people_read():
    trace = read_kineto(SAMPLES / "amd_mi250_minitoy.json.gz")
    assert len(trace.starts) == 16 and trace.marks.names == ("ProfilerStep#1", "ProfilerStep#2")
    assert sum(trace.works[name] == "products" for name in trace.names) == 2
    trace = read_kineto(SAMPLES / "benchmark_simple_add_trace.json.gz")
    assert len(trace.starts) == 4 and set(trace.works) == {"other kernels"}


TEXT = trace_text(events())
KERNEL = next(row for row in events() if row["cat"] == "kernel")


def with_kernel(**changes):
    return trace_text([*events(), KERNEL | changes])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "t.json.gz: is empty: a record, .* or a profiler.s trace is accepted"),
        (gzip.compress(TEXT, mtime=0)[:-200], "truncated: the gzip data end after byte"),
        (gzip.compress(TEXT, mtime=0)[:100] + b"\xff" * 100, "damaged gzip data after byte"),
        (gzip.compress(b"", mtime=0), 'no "traceEvents"'),
        (gzip.compress(b'{"schema": "x"}', mtime=0), 'no "traceEvents"'),
        (gzip.compress(bytes(range(256)) * 40, mtime=0), 'no "traceEvents"'),
        (TEXT[: len(TEXT) // 2], "byte [0-9]+: truncated or not JSON"),
        (TEXT.rstrip(b'"t}raceNm:, '), "before or after traceEvents"),
        (TEXT.replace(b'"dur": 50', b'"dur": 5O'), "byte [0-9]+: truncated or not JSON|event"),
        (TEXT.replace(b'"dur": 50', b'"dur": "50"'), r"event [0-9]+ \(byte [0-9]+\): Expected float, got str: dur"),
        (TEXT.replace(b'"dur": 50', b'"dur": NaN'), r"event [0-9]+ \(byte [0-9]+\): JSON is malformed"),
        (TEXT.replace(b"nvjet", b"\xff\xfe"), r"event [0-9]+ \(byte [0-9]+\): is not text in UTF-8"),
        (trace_text([]), "no GPU kernels among 0 events"),
        (trace_text([row for row in events() if row["cat"] == "cuda_runtime"]), "no GPU kernels among 15 events"),
        (with_kernel(dur=-1.0), r"event 33 \('nvjet.*'\): duration -1: durations from 0 and times"),
        (with_kernel(dur=7.25).replace(b"7.25", b"1e999"), "event 33"),
        (with_kernel(ts=1e300), r"event 33 \('nvjet.*'\): start 1e\+300"),
        (with_kernel(args={"x": 0}).replace(b'{"x": 0}', b"[" * 10**5 + b"]" * 10**5), "nested too deeply"),
    ],
)
def test_a_bad_trace_is_refused_in_one_line_with_the_place(tmp_path, capsys, content, said):
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    ended = called(capsys, "explain", path)
    assert ended.status == 2 and ended.out == "" and len(ended.line) < 600
    assert re.search(said, ended.line), ended.line


def test_a_stream_of_an_odd_type_is_a_name(tmp_path):
    rows = [Work(GEMM, 10 * place, 5, arguments=(("stream", odd),)) for place, odd in enumerate([[1, 2], 10**400, "s"])]
    trace = read_kineto(write_trace(tmp_path / "t.json", events(rows)))
    assert trace.streams == ("0/?", "0/s")


def test_a_long_run_of_braces_is_refused_soon(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents": [' + b'{"a":' * 10**6)
    with pytest.raises(InputError, match=r"nested too deeply|truncated or not JSON"):
        read_kineto(path)
