import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.experiments.import_.kineto import read_kineto
from quadrille.experiments.import_.nsight import read_nsight
from quadrille.experiments.traces.trace_summary import summarise
from tests.support.kineto_traces import write_trace
from tests.support.nsight_reports import write_report
from tests.support.quadrille import called


def test_a_report_has_the_times_of_the_trace_of_the_same_events(tmp_path):
    report, trace = read_nsight(write_report(tmp_path / "r.sqlite")), read_kineto(write_trace(tmp_path / "t.json"))
    assert sorted(zip(report.starts.round(9), report.seconds.round(9), strict=True)) == sorted(
        zip(trace.starts.round(9), trace.seconds.round(9), strict=True)
    )
    assert (report.device, report.rank) == (trace.device, None)
    first, second = summarise(report), summarise(trace)
    for value in ("iterations", "iterations_from"):
        assert getattr(first, value) == getattr(second, value)
    for name in (
        "seconds",
        "computing_seconds",
        "exposed_communication_seconds",
        "hidden_communication_seconds",
        "idle_seconds",
    ):
        assert np.isclose(getattr(first, name), getattr(second, name), atol=1e-9)
    assert [(row.kind, row.bytes) for row in first.collectives] == [("all_reduce", None)]


@pytest.mark.parametrize(
    ("step", "source"),
    [("ProfilerStep#{}", "annotations"), ("train_step {}", "annotations"), ("forward {}", "repeated kernels")],
)
def test_iterations_are_ranges_that_number_steps(tmp_path, step, source):
    assert summarise(read_nsight(write_report(tmp_path / "r.sqlite", step=step))).iterations_from == source


def test_explain_takes_a_report(tmp_path, capsys):
    ended = called(capsys, "explain", write_report(tmp_path / "r.sqlite"))
    assert ended.status == 0 and "on NVIDIA H100 80GB HBM3: 3 iterations (annotated) of 283 us each." in ended.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "no kernels in CUPTI_ACTIVITY_KIND_KERNEL"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "no kernels in"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 5 WHERE rowid = 3", "KERNEL row 2: duration -"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x' WHERE rowid = 1", "row 0: start 'x'"),
        ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET start = NULL", "MEMCPY row 0: start None"),
        ("UPDATE NVTX_EVENTS SET end = 1", "NVTX_EVENTS row 0: duration -"),
        (
            "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE "
            "f(start) AS (SELECT 1 UNION ALL SELECT start FROM f) SELECT start FROM f",
            "no kernels in",
        ),
    ],
)
def test_a_bad_report_is_refused_in_one_line_with_the_place(tmp_path, capsys, more, said):
    ended = called(capsys, "explain", write_report(tmp_path / "r.sqlite", more=more))
    assert ended.status == 2 and ended.out == "" and re.search(said, ended.line), ended.line


@given(place=st.floats(0, 1), junk=st.binary(min_size=1, max_size=40), cut=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_damaged_report_is_read_or_refused(tmp_path_factory, place, junk, cut):
    folder = tmp_path_factory.getbasetemp()
    if not (folder / "valid.sqlite").exists():
        write_report(folder / "valid.sqlite")
    content = (folder / "valid.sqlite").read_bytes()
    at = int(place * len(content))
    (folder / "bad.sqlite").write_bytes(content[:at] + junk + (b"" if cut else content[at + len(junk) :]))
    try:
        assert len(read_nsight(folder / "bad.sqlite").starts) > 0
    except InputError as error:
        assert "\n" not in str(error)
