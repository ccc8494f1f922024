import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import (
    MachineName,
    Options,
    Verified,
    load_record,
    save_record,
)
from quadrille.algorithms.formats.timeline_files import save_timeline
from quadrille.algorithms.formats.workload import MatmulSizes, Workload
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.compare.compare import compare
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.compare.comparison import SCHEMA, Comparison
from quadrille.experiments.compare.comparison_tables import comparison_tables
from quadrille.experiments.compare.record_folders import compare_folders
from quadrille.experiments.output.tables import print_tables, table
from tests.support.compared_records import BUSY, GATHER, GEMM, MEASURED, PREDICTED, replace


@pytest.fixture
def paths(tmp_path):
    """The two records as files."""
    for record in (PREDICTED, MEASURED):
        save_record(record, tmp_path / f"{record.kind}.json")
    return str(tmp_path / "predicted.json"), str(tmp_path / "measured.json")


def folders(tmp_path, predicted, measured):
    for kind, records in (("predicted", predicted), ("measured", measured)):
        (tmp_path / kind).mkdir()
        for name, record in records.items():
            save_record(record, tmp_path / kind / f"{name}.json")
    return tmp_path / "predicted", tmp_path / "measured"


def of_size(record, m, **changes):
    return replace(record, workload=Workload(MatmulSizes(m, 211, 103)), **changes)


def test_the_relative_error_is_predicted_over_measured_less_one():
    found = compare_records(PREDICTED, MEASURED)
    assert found.seconds.relative_error == pytest.approx(-0.05)
    assert [op.seconds.relative_error for op in found.ops] == pytest.approx([70 / 75 - 1, 20 / 16 - 1])
    assert [kind.kind for kind in found.kinds] == ["gemm", "all_gather"]


def test_drift_is_taken_out_of_each_op_by_the_kernel_it_resembles():
    found = compare_records(PREDICTED, MEASURED)
    assert [op.seconds.predicted_drift_removed for op in found.ops] == pytest.approx([0.077, 0.020])
    weighted = (1.1 * 0.070 + 0.020) / 0.090
    assert found.seconds.predicted_drift_removed == pytest.approx(0.095 * weighted)
    assert found.seconds.relative_error_drift_removed == pytest.approx(0.095 * weighted / 0.100 - 1)


def test_a_machine_that_did_not_drift_has_equal_errors_raw_and_removed():
    found = compare_records(PREDICTED, replace(MEASURED, reference=PREDICTED.reference))
    for times in (found.seconds, *(op.seconds for op in found.ops), *(kind.seconds for kind in found.kinds)):
        assert times.relative_error_drift_removed == pytest.approx(times.relative_error)


def test_without_reference_kernels_the_drift_is_not_known_and_a_remark_says_so():
    found = compare_records(PREDICTED, replace(MEASURED, reference=None))
    assert found.seconds.relative_error_drift_removed is None
    assert any("drift" in remark for remark in found.remarks)


@given(st.floats(0.001, 10), st.floats(0.001, 10))
def test_the_attribution_adds_up_to_predicted_less_measured(predicted, measured):
    found = compare_records(replace(PREDICTED, seconds=predicted), replace(MEASURED, seconds=measured))
    causes = found.attribution_seconds
    assert causes.total == predicted - measured
    assert sum(causes.by_cause().values()) == pytest.approx(causes.total, rel=1e-12, abs=1e-12)


def test_each_difference_goes_to_its_cause():
    causes = compare_records(PREDICTED, MEASURED).attribution_seconds.by_cause()
    assert causes == pytest.approx(
        {"compute": -0.005, "transfer": 0.003, "latency": 0.001, "waiting": -0.005, "other": 0.001}
    )


def test_the_spread_is_that_of_the_repeats():
    found = compare_records(PREDICTED, MEASURED)
    low, high = 0.098 + 0.1 * 0.002, 0.100 + 0.9 * 0.004
    assert found.noise.low_seconds == pytest.approx(low)
    assert found.noise.high_seconds == pytest.approx(high)
    assert found.seconds.spread == found.noise.spread == pytest.approx((high - low) / 2 / 0.100)
    assert found.ops[0].seconds.spread == found.kinds[0].seconds.spread > 0
    assert found.ops[1].seconds.spread is None


@pytest.mark.parametrize(("seconds", "within"), [(0.097, False), (0.099, True), (0.1035, True), (0.105, False)])
def test_an_error_is_within_the_noise_if_repeats_reach_as_far(seconds, within):
    assert compare_records(replace(PREDICTED, seconds=seconds), MEASURED).noise.within_noise is within


def test_a_single_repeat_shows_no_noise():
    once = replace(MEASURED, repeats=1, seconds_of_repeats=(0.1,), seconds_low=0.1, seconds_high=0.1)
    found = compare_records(PREDICTED, once)
    assert found.noise.within_noise is None
    assert found.seconds.spread is None
    assert any("single repeat" in remark for remark in found.remarks)


@pytest.mark.parametrize(("low", "high", "holds"), [(0.09, 0.099, False), (0.09, 0.1, True), (0.101, 0.12, False)])
def test_a_prediction_interval_holds_the_measured_median_or_not(low, high, holds):
    found = compare_records(replace(PREDICTED, seconds_low=low, seconds_high=high), MEASURED)
    assert found.noise.interval_holds_measurement is holds


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.3), (0.1, 0.1)])
def test_an_interval_that_begins_at_0_or_has_no_width_is_unknown_and_a_miss(capsys, low, high):
    compared = compare_records(replace(PREDICTED, seconds_low=low, seconds_high=high), MEASURED)
    assert low <= MEASURED.seconds <= high and not compared.noise.interval_holds_measurement
    print_tables(*comparison_tables(compared))
    assert "unknown, counted as a miss" in capsys.readouterr().out


def test_beside_a_busy_machine_no_error_is_given_with_the_drift_removed():
    compared = compare_records(PREDICTED, BUSY)
    assert compared.drift.gemm == pytest.approx(18.86)
    every = [compared.seconds, *(part.seconds for part in (*compared.kinds, *compared.ops))]
    assert {times.predicted_drift_removed for times in every} == {None}
    assert compared.seconds.relative_error == pytest.approx(-0.05)


def test_compare_says_in_one_sentence_that_the_machine_was_busy(tmp_path, capsys):
    files = folders(tmp_path, {"1": PREDICTED, "2": of_size(PREDICTED, 29)}, {"1": BUSY, "2": of_size(MEASURED, 29)})
    compare(*map(str, files))
    assert "quadrille: the machine was busy during 1 of these 2 measurements: the reference product took" in (
        capsys.readouterr().err
    )
    compare(*(str(folder / "1.json") for folder in files))
    written = capsys.readouterr()
    busy = [line for line in written.err.splitlines() if "busy" in line]
    assert busy == [
        "quadrille: the machine was busy during these measurements: the reference product took 18.9 times as long as "
        "during calibration; measure again when it is idle"
    ]
    assert "1786" not in written.out and "gemm 18.9 times as long" in written.out


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"options": Options(collectives="own:doubling")}, "quadrille simulate … --collectives own:doubling"),
        ({"grid": {"z": 5}, "ranks": 5}, "quadrille simulate … --grid z=5"),
        ({"dtype": "float64", "options": Options(threads=2)}, "quadrille simulate … --dtype float64 --threads 2"),
        ({"backend": "cupy"}, "the same are needed on both sides"),
    ],
)
def test_a_refusal_is_short_and_ends_with_the_flags_that_predict_what_was_measured(change, remedy):
    ops = [tuple(replace(GATHER, name=f"gather {number}", algorithm=name) for number in range(50)) for name in "ab"]
    with pytest.raises(InputError) as refusal:
        compare_records(replace(PREDICTED, ops=ops[0]), replace(MEASURED, ops=ops[1], **change))
    assert str(refusal.value).endswith(remedy)
    assert len(str(refusal.value)) < 400


def test_the_times_of_a_kind_are_those_of_its_ops_together():
    ops = [(*record.ops, replace(record.ops[0], name="again")) for record in (PREDICTED, MEASURED)]
    found = compare_records(replace(PREDICTED, ops=ops[0]), replace(MEASURED, ops=ops[1]))
    gemms = found.kinds[0]
    assert (gemms.ops, gemms.seconds.predicted, gemms.seconds.measured) == pytest.approx((2, 0.14, 0.15))
    assert gemms.seconds.spread == pytest.approx(found.ops[0].seconds.spread)


def test_an_op_of_one_side_only_took_no_time_on_the_other_and_is_remarked():
    found = compare_records(PREDICTED, replace(MEASURED, ops=MEASURED.ops[:1]))
    assert found.ops[1].seconds.measured == 0
    assert found.ops[1].seconds.relative_error is None
    assert any("only in the predicted record: gather B" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"workload": Workload(MatmulSizes(307, 211, 107))}, ["n=103", "n=107"]),
        ({"workload": Workload(MatmulSizes(307, 211, 103, "a"))}, ["transposed=a measured"]),
        ({"dtype": "float64"}, ["dtype float32 predicted, float64 measured"]),
        ({"passes": "training"}, ["passes"]),
        ({"algorithm": "3d"}, ["algorithm 4d predicted, 3d measured"]),
        ({"grid": {"z": 3, "x": 2}}, ["grid", "z=2", "z=3"]),
        ({"grid": {"z": 5}, "ranks": 5}, ["ranks 6 predicted, 5 measured"]),
        ({"order": ("z", "y", "x", "data")}, ["order"]),
        ({"backend": "cupy"}, ["backend numpy predicted, cupy measured"]),
        ({"options": Options(overlap=("oar",))}, ["overlap none predicted, oar measured"]),
        ({"options": Options(gathered="keep")}, ["gathered"]),
        ({"options": Options(collectives="library")}, ["collectives own:ring predicted, library measured"]),
        ({"options": Options(threads=2)}, ["threads 1 predicted, 2 measured"]),
        ({"options": Options(panel=64)}, ["panel none predicted, 64 measured"]),
        ({"ops": (GEMM, replace(GATHER, algorithm="doubling"))}, ["'gather B'", "ring", "doubling"]),
        ({"dtype": "float64", "passes": "training"}, ["dtype", "passes"]),
    ],
)
def test_records_of_different_problems_are_refused_naming_all_that_differs(change, named):
    with pytest.raises(InputError) as refusal:
        compare_records(PREDICTED, replace(MEASURED, **change))
    assert all(word in str(refusal.value) for word in named)
    assert "\n" not in str(refusal.value)


def test_one_problem_written_differently_is_one_problem():
    short = replace(MEASURED, grid={"x": 3, "z": 2}, options=Options(collectives="own"))
    assert compare_records(PREDICTED, short).problem == compare_records(PREDICTED, MEASURED).problem


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (PREDICTED, PREDICTED, "both records are predicted"),
        (MEASURED, MEASURED, "both records are measured"),
        (MEASURED, PREDICTED, "give the predicted one first"),
        (PREDICTED, replace(MEASURED, seconds=0), "seconds = 0"),
        (PREDICTED, replace(MEASURED, ops=(GEMM, GEMM)), "'multiply' stands twice in the measured"),
    ],
)
def test_records_that_cannot_be_compared_are_refused(one, other, said):
    with pytest.raises(InputError, match=said):
        compare_records(one, other)


def test_what_lessens_trust_is_remarked():
    predicted = replace(
        PREDICTED,
        ops=(replace(GEMM, extrapolated=True), GATHER),
        machine=MachineName("one", "a" * 64),
        bytes_sent_total=31,
    )
    wrong = Verified(method="serial", max_error=1.0, bound=0.1, ok=False)
    measured = replace(MEASURED, verified=wrong, machine=MachineName("two", "b" * 64))
    remarks = "\n".join(compare_records(predicted, measured).remarks)
    for words in (
        "extrapolated beyond the calibration: multiply",
        "did not verify",
        "31 predicted, 30 counted",
        "machine one",
    ):
        assert words in remarks


def test_the_table_shows_total_kinds_ops_causes_and_noise(paths, capsys):
    compare(*paths)
    shown = capsys.readouterr().out
    for words in ("-5.0 %", "all_gather", "gather B", "waiting", "latency", "prediction interval", "drift removed"):
        assert words in shown
    assert "4d, matmul m=307 k=211 n=103, float32 forward, grid z=2 x=3 (6 ranks), own:ring" in shown
    assert not any(line != line.rstrip() for line in shown.splitlines())


def test_the_json_has_the_keys_of_the_issue_and_can_be_read_again(paths, tmp_path):
    compare(*paths, json=str(tmp_path / "out.json"), command=["quadrille", "compare", *paths])
    raw = json.loads((tmp_path / "out.json").read_text())
    assert raw.pop("schema") == SCHEMA
    assert {"predicted", "measured", "relative_error", "relative_error_drift_removed"} <= set(raw["seconds"])
    assert {"compute", "transfer", "latency", "waiting", "other"} <= set(raw["attribution"])
    assert raw["noise"]["repeats"] == 3
    assert raw["provenance"]["command"] == f"quadrille compare {paths[0]} {paths[1]}"
    assert msgspec.convert(raw, Comparison).ops[0].name == "multiply"


def test_json_on_stdout_stands_alone(paths, capsys):
    compare(*paths, json="-")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schema"] == SCHEMA


def test_remarks_go_to_stderr(paths, capsys):
    save_record(replace(MEASURED, reference=None), paths[1])
    compare(*paths, json="-")
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err.startswith("quadrille: the drift of the machine is not known")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        ('{"schema": "quadrille/record/1", "ki', "truncated"),
        ('{"schema": "quadrille/record/3"}', "newer"),
        ('{"schema": "quadrille/timeline/1"}', "quadrille/record/2 is accepted"),
        ('{"other": 1}', "names no schema"),
    ],
)
def test_a_file_that_holds_no_record_of_ours_is_refused_by_name(paths, content, said):
    Path(paths[1]).unlink()
    if content is not None:
        Path(paths[1]).write_text(content)
    with pytest.raises(InputError, match=said) as refusal:
        compare(*paths)
    assert "measured.json" in str(refusal.value)


@pytest.mark.parametrize("outputs", [{"json": "nowhere/c.json"}, {"figure": "nowhere/c.png"}, {"figure": "c.gif"}])
def test_outputs_that_cannot_be_written_are_refused_before_anything_is_read(outputs):
    with pytest.raises(InputError, match=r"nowhere|gif"):
        compare("missing.json", "missing.json", **outputs)


def test_a_refused_comparison_writes_nothing(paths, tmp_path):
    save_record(replace(MEASURED, dtype="float64"), paths[1])
    with pytest.raises(InputError):
        compare(*paths, json=str(tmp_path / "out.json"), figure=str(tmp_path / "out.png"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["measured.json", "predicted.json"]


def test_records_of_two_folders_are_paired_by_problem_whatever_their_names(tmp_path):
    one, other = folders(
        tmp_path,
        {"a": of_size(PREDICTED, 2), "b": of_size(PREDICTED, 3), "c": of_size(PREDICTED, 5)},
        {"x": of_size(MEASURED, 5), "y": of_size(MEASURED, 2), "z": of_size(MEASURED, 7)},
    )
    found = compare_folders(one, other)
    names = [(pair.files.predicted[-6:], pair.files.measured[-6:]) for pair in found.comparisons]
    assert names == [("a.json", "y.json"), ("c.json", "x.json")]
    assert [remark.split()[0][-6:] for remark in found.remarks] == ["b.json", "z.json"]


def test_one_prediction_is_compared_with_each_measurement_of_its_problem(tmp_path):
    one, other = folders(tmp_path, {"a": PREDICTED}, {"x": MEASURED, "y": replace(MEASURED, seconds=0.2)})
    assert [pair.seconds.measured for pair in compare_folders(one, other).comparisons] == [0.1, 0.2]


def test_records_of_both_kinds_may_lie_in_one_folder_among_timelines_and_traces(paths, tmp_path):
    save_timeline(Timeline((), "predicted", 6), tmp_path / "predicted.timeline.json")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    found = compare_folders(tmp_path, tmp_path)
    assert len(found.comparisons) == 1
    assert [remark.endswith("trace.json is no record, left out") for remark in found.remarks] == [True]


def test_the_summary_is_of_sizes_of_errors(tmp_path):
    sizes = [2, 3, 5]
    one, other = folders(
        tmp_path,
        {str(m): of_size(PREDICTED, m, seconds=seconds) for m, seconds in zip(sizes, (0.9, 1.02, 1.3), strict=True)},
        {str(m): of_size(MEASURED, m, seconds=1.0) for m in sizes},
    )
    summary = compare_folders(one, other).summary
    assert (summary.cases, summary.median, summary.worst) == pytest.approx((3, 0.1, 0.3))
    assert summary.p90 == pytest.approx(0.1 + 0.8 * 0.2)
    assert summary.drift_removed.cases == 3


def test_folders_make_one_table_and_one_json(tmp_path, capsys):
    one, other = folders(tmp_path, {"a": PREDICTED}, {"x": MEASURED, "y": of_size(MEASURED, 7)})
    compare(str(one), str(other), json=str(tmp_path / "out.json"))
    raw = json.loads((tmp_path / "out.json").read_text())
    assert raw["schema"] == "quadrille/comparisons/1"
    assert len(raw["comparisons"]) == raw["summary"]["cases"] == 1
    captured = capsys.readouterr()
    assert "90th percentile" in captured.out
    assert "y.json has no partner" in captured.err


@pytest.mark.parametrize("content", ['{"schema": "quadrille/record/1", "ki', '{"other": 1}'])
def test_a_broken_or_foreign_file_in_a_folder_is_refused_by_name(paths, tmp_path, content):
    (tmp_path / "broken.json").write_text(content)
    with pytest.raises(InputError, match=r"broken\.json"):
        compare_folders(tmp_path, tmp_path)


def test_folders_without_a_pair_and_a_folder_with_a_file_are_refused(paths, tmp_path):
    with pytest.raises(InputError, match="two folders of records, or a record and a folder"):
        compare(str(tmp_path), paths[1])
    one, other = folders(tmp_path, {"a": PREDICTED}, {"x": of_size(MEASURED, 7)})
    with pytest.raises(InputError, match="at least one pair"):
        compare_folders(one, other)


def test_timelines_beside_the_records_are_drawn_and_must_be_theirs(paths, tmp_path, capsys):
    span = Span(0, "multiply", "gemm", "compute", 0.0, 0.0, 0.0, 0.07)
    for kind in ("predicted", "measured"):
        spans = tuple(replace(span, rank=rank) for rank in range(6))
        save_timeline(Timeline(spans, kind, 6), tmp_path / f"{kind}.timeline.json")
    compare(*paths, figure=str(tmp_path / "both.svg"))
    assert "rank 5 compute" in (tmp_path / "both.svg").read_text()  # text drawn as shapes keeps it as a comment
    assert "bars by op" not in capsys.readouterr().err
    wrong = str(tmp_path / "measured.timeline.json")
    with pytest.raises(InputError, match="predicted on 6 ranks is needed"):
        compare(*paths, figure=str(tmp_path / "c.svg"), timelines=(wrong, wrong))


def test_without_timelines_the_figure_shows_bars_and_a_remark_says_so(paths, tmp_path, capsys):
    compare(*paths, figure=str(tmp_path / "bars.png"))
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    assert "bars by op" in capsys.readouterr().err
    with pytest.raises(InputError, match="without --plot"):
        compare(*paths, timelines=("a", "b"))


def test_both_timelines_go_to_one_trace_the_measured_ranks_after_the_predicted_ones(paths, tmp_path, capsys):
    span = Span(0, "multiply", "gemm", "compute", 0.0, 0.0, 0.0, 0.07)
    named = tuple(str(tmp_path / f"other-{kind}.json") for kind in ("predicted", "measured"))
    for kind, name in zip(("predicted", "measured"), named, strict=True):
        save_timeline(Timeline(tuple(replace(span, rank=rank) for rank in range(6)), kind, 6), name)
    trace = tmp_path / "trace.json"
    with pytest.raises(InputError, match=r"there are no timelines .*predicted\.timeline\.json and .*: make them"):
        compare(*paths, trace=str(trace))
    assert not trace.exists()
    compare(*paths, trace=str(trace), timelines=named)
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert (names[0], names[5], names[6], names[11]) == (
        *("predicted 4d rank 0", "predicted 4d rank 5"),
        *("measured 4d rank 0", "measured 4d rank 5"),
    )
    assert sum(event["name"] == "multiply" for event in events) == 12
    capsys.readouterr()
    compare(*paths, trace="-", timelines=named)
    assert json.loads(capsys.readouterr().out)["traceEvents"] == events


def test_a_trace_is_of_two_records_and_goes_to_a_file_of_its_own(paths, tmp_path):
    with pytest.raises(InputError, match="--trace goes with two records, not with two folders"):
        compare(str(tmp_path), str(tmp_path), trace=str(tmp_path / "t.json"))
    with pytest.raises(InputError, match="--json and --trace both name -: give each its own file"):
        compare(*paths, json="-", trace="-")


def test_repeats_of_ops_survive_the_file(tmp_path):
    save_record(MEASURED, tmp_path / "r.json")
    assert load_record(tmp_path / "r.json").ops[0].seconds_of_repeats == (0.075, 0.074, 0.079)


def test_a_table_in_a_pipe_is_as_wide_as_its_words(capsys):
    name = "a long name " * 20
    print_tables(table("t", ("", "time"), [(name, "1 ms")]))
    assert name in capsys.readouterr().out


def test_orders_of_passes_show_where_they_part(capsys):
    before = msgspec.structs.replace(PREDICTED, pass_orders=("FFBFBB", "FBFBFB"))
    after = msgspec.structs.replace(MEASURED, pass_orders=("FFFBBB", "FBFBFB"))
    compared = compare_records(before, after)
    assert [(stage.stage, stage.predicted, stage.measured, stage.parts_at) for stage in compared.pass_orders] == [
        (0, "FFBFBB", "FFFBBB", 3),
        (1, "FBFBFB", "FBFBFB", 0),
    ]
    print_tables(*comparison_tables(compared))
    printed = capsys.readouterr().out
    assert "pass 3" in printed
    assert "nowhere" in printed


def test_a_name_that_no_file_can_have_is_refused_in_one_line(paths):
    for records in (("a" * 300, paths[1]), (paths[0], "a" * 300)):
        with pytest.raises(InputError, match="cannot be read: File name too long"):
            compare(*records)
