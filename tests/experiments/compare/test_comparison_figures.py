import re
import subprocess
import sys

import pytest
from matplotlib.figure import Figure

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import OpRecord, Options, Record
from quadrille.algorithms.formats.workload import MatmulSizes, Workload
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.timelines.timeline_figure import COLOURS, MOST_RANKS
from quadrille.experiments.compare import comparison_figures
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.compare.comparison_figures import draw_cases, draw_ops, draw_timelines
from quadrille.experiments.output.pictures import check_figure_path

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def timeline(kind, ranks=2, seconds=1.0):
    spans = []
    for rank in range(ranks):
        spans.append(Span(rank, "multiply", "gemm", "compute", 0, 0, 0, seconds))
        arrival = seconds * 1.25
        spans.append(Span(rank, "sum C", "all_reduce", "y", seconds, seconds, arrival, seconds * 2, "y", 0, 0))
    return Timeline(tuple(spans), kind, ranks)


@pytest.fixture
def comparison():
    ops = (OpRecord(name="multiply", kind="gemm", seconds=1.0), OpRecord(name="sum C", kind="new_kind", seconds=0.5))
    predicted = Record(
        kind="predicted", workload=Workload(MatmulSizes(2, 3, 5)), dtype="float64", passes="forward", algorithm="4d",
        grid={"y": 2}, order=("x", "y", "z", "data"), ranks=2, options=Options(), backend="numpy", seconds=1.5,
        seconds_low=1.5, seconds_high=1.5, flops_per_rank_max=1, bytes_sent_per_rank_max=1, bytes_sent_total=1,
        peak_bytes_per_rank_max=1, ops=ops,
    )  # fmt: skip
    measured = Record(
        **{**{name: getattr(predicted, name) for name in predicted.__struct_fields__}, "kind": "measured"}
    )
    return compare_records(predicted, measured)


@pytest.mark.parametrize("ending", STARTS)
def test_a_figure_is_of_the_format_its_name_ends_in(tmp_path, comparison, ending):
    for name, draw in {
        "lanes": lambda path: draw_timelines(timeline("predicted"), timeline("measured"), path, title="both"),
        "bars": lambda path: draw_ops(comparison, path),
        "cases": lambda path: draw_cases([comparison, comparison], path),
    }.items():
        draw(tmp_path / f"{name}.{ending}")
        assert (tmp_path / f"{name}.{ending}").read_bytes().startswith(STARTS[ending])
    assert len(list(tmp_path.iterdir())) == 3


@pytest.fixture
def drawn(monkeypatch):
    """The figures drawn, instead of files."""
    kept = []
    monkeypatch.setattr(comparison_figures, "write_figure", lambda figure, path: kept.append(figure))
    return kept


def test_both_timelines_share_one_axis_of_time(drawn):
    draw_timelines(timeline("predicted", seconds=1.0), timeline("measured", seconds=1.5), "x.png")
    upper, lower = drawn[0].axes
    assert upper.get_xlim() == lower.get_xlim()
    assert upper.get_xlim()[1] >= 3
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("predicted", "measured")


@pytest.mark.parametrize(("seconds", "unit"), [(40.0, "s"), (0.01, "ms"), (1e-5, "us")])
def test_the_axis_of_time_has_the_unit_of_the_longer_timeline(drawn, seconds, unit):
    draw_timelines(timeline("predicted", seconds=seconds / 4000), timeline("measured", seconds=seconds), "x.png")
    assert drawn[0].axes[1].get_xlabel() == f"time [{unit}]"
    assert 20 <= drawn[0].axes[1].get_xlim()[1] <= 100


def test_every_lane_of_a_rank_is_a_row_the_compute_lane_first(drawn):
    draw_timelines(timeline("predicted"), timeline("measured"), "x.png")
    rows = [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]
    assert rows == ["rank 0 compute", "rank 0 y", "rank 1 compute", "rank 1 y"]


def test_of_many_ranks_the_first_eight_are_shown(drawn):
    draw_timelines(timeline("predicted", ranks=11), timeline("measured", ranks=11), "x.png")
    axis = drawn[0].axes[0]
    assert len(axis.get_yticks()) == 2 * MOST_RANKS
    assert "of 11" in axis.get_ylabel()


def test_a_rank_that_stands_for_others_says_so(drawn):
    alone = Timeline(timeline("predicted").spans[:2], "predicted", 2, copies={0: 2})
    draw_timelines(alone, timeline("measured"), "x.png")
    assert "rank 0 y (as 2 ranks)" in [label.get_text() for label in drawn[0].axes[0].get_yticklabels()]


def test_bars_are_drawn_from_the_first_start_and_waiting_apart(drawn):
    late = Timeline((Span(0, "sum", "all_reduce", "y", 5.0, 5.0, 6.0, 8.0, "y", 0, 0),), "predicted", 1)
    draw_timelines(late, timeline("measured"), "x.png")
    bars = sorted(
        tuple(path.get_extents().intervalx) for bar in drawn[0].axes[0].collections for path in bar.get_paths()
    )
    assert bars == [(0.0, 1.0), (1.0, 3.0)]


def test_empty_timelines_make_an_empty_figure(tmp_path):
    draw_timelines(Timeline((), "predicted", 1), Timeline((), "measured", 1), tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 0


def test_the_same_figure_is_the_same_file(tmp_path, comparison):
    for ending in STARTS:
        for name in ("one", "two"):
            draw_ops(comparison, tmp_path / f"{name}.{ending}")
        assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_no_error_lies_on_the_line_of_cases(drawn, comparison):
    draw_cases([comparison], "x.png")
    cases, line = drawn[0].axes[0].lines
    assert list(cases.get_xdata()) == list(cases.get_ydata()) == [1.5]
    assert list(line.get_xdata()) == list(line.get_ydata())


@pytest.mark.parametrize(("name", "said"), [("c.gif", "png, svg, pdf"), ("c", "png, svg, pdf"), ("no/c.png", "folder")])
def test_a_figure_that_cannot_be_written_is_refused(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        check_figure_path(tmp_path / name)


def test_a_figure_that_fails_leaves_what_was_there(tmp_path, monkeypatch, comparison):
    target = tmp_path / "c.png"
    target.write_bytes(b"before")

    def full(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(MemoryError):
        draw_ops(comparison, target)
    assert target.read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_every_kind_of_op_has_its_own_colour():
    from quadrille.algorithms.schedule.ops import COLLECTIVE_KINDS, OTHER_KINDS

    kinds = {*COLLECTIVE_KINDS.values(), *OTHER_KINDS.values()}

    colours = [COLOURS[kind] for kind in kinds]
    assert len(set(colours)) == len(colours)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


def test_matplotlib_is_imported_only_when_a_figure_is_drawn():
    program = "import sys, quadrille.experiments.compare.compare; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
