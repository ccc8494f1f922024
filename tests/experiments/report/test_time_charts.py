"""Charts of time in reports of sweeps and studies: lines for numbers, points for categories, whole legends."""

import pytest

from quadrille.experiments.report.report import parts_of_files
from quadrille.experiments.report.search_sections import sweep_part
from quadrille.experiments.sweep.sweep_result import Sweep, SweepAnswer, SweepRow
from tests.support.quadrille import ROOT


def time_charts(varied):
    """The charts of time of a sweep over these values, all combinations with different times."""
    points = [{}]
    for key, values in varied.items():
        points = [point | {key: value} for point in points for value in values]
    rows = tuple(SweepRow(point=point, answer=SweepAnswer(seconds=1.0 + n / 10)) for n, point in enumerate(points))
    sweep = Sweep(flags={}, varied={key: tuple(values) for key, values in varied.items()}, best_grid=False, points=rows)
    return next(
        section for section in sweep_part(sweep, "a file").sections if section.title.startswith("Time over")
    ).charts


def layers(chart):
    return [layer["mark"] if isinstance(layer["mark"], str) else layer["mark"]["type"] for layer in chart.spec["layer"]]


def test_numbers_are_joined_by_lines_whose_colours_and_dashes_are_two_keys():
    (chart,) = time_charts({"gpus": ["4", "8", "16"], "zero": ["0", "1"], "recompute": ["none", "full"]})
    assert layers(chart) == ["line", "point"]
    assert chart.spec["encoding"]["color"]["scale"]["domain"] == ["0", "1"]
    assert chart.spec["layer"][0]["encoding"]["strokeDash"]["scale"]["domain"] == ["none", "full"]
    assert chart.spec["encoding"]["color"]["legend"]["title"] == "zero"


def test_categories_are_points_side_by_side():
    (chart,) = time_charts({"scheme": ["4d", "megatron", "optimus"], "network": ["fast", "slow"]})
    assert layers(chart) == ["point"]
    assert chart.spec["encoding"]["xOffset"]["field"] == "line"


def test_keys_that_are_left_over_have_a_chart_for_each_value_or_menus():
    charts = time_charts({"scheme": ["4d", "bian", "optimus"], "model": ["a", "b"], "network": ["fast", "slow"]})
    assert [chart.spec["title"]["text"] for chart in charts] == [["network=fast"], ["network=slow"]]
    assert sum(len(chart.spec["data"]["values"]) for chart in charts) == 12
    many = {"scheme": list("abcdefgh"), "model": list("abcdefg"), "network": list("abc"), "layout": list("abc")}
    (chart,) = time_charts(many)
    assert len(chart.spec["data"]["values"]) == 8 * 7 * 9
    assert [menu["bind"]["name"] for menu in chart.spec["params"]] == ["network ", "layout "]


def points_table(points):
    """The section of all points of a sweep with these points and times [s], and the cells under `speed-up`."""
    rows = tuple(SweepRow(point=point, answer=SweepAnswer(seconds=seconds)) for point, seconds in points)
    varied = {key: tuple(dict.fromkeys(point[key] for point, _ in points)) for key in points[0][0]}
    sweep = Sweep(flags={}, varied=varied, best_grid=False, points=rows)
    section = next(each for each in sweep_part(sweep, "a file").sections if each.title == "All points")
    columns, cells = section.tables[0].columns, section.tables[0].rows
    place = columns.index("speed-up") if "speed-up" in columns else None
    return section, [] if place is None else [row[place] for row in cells]


def test_a_speed_up_is_over_the_first_point_of_the_same_model():
    times = {("a", "8"): 4.0, ("a", "16"): 2.0, ("b", "8"): 90.0, ("b", "16"): 60.0}
    section, speedups = points_table([({"model": model, "gpus": gpus}, time) for (model, gpus), time in times.items()])
    assert speedups == ["1", "2", "1", "1.5"]
    assert section.lines == ["A speed-up is over the first point that fits, with the same model."]


def test_points_of_one_job_compare_with_the_first_and_need_no_words():
    section, speedups = points_table([({"gpus": "8"}, 3.0), ({"gpus": "16"}, 2.0)])
    assert (section.lines, speedups) == ([], ["1", "1.5"])


def test_points_of_different_jobs_have_no_speed_up():
    section, speedups = points_table([({"gpt": "a"}, 3.0), ({"gpt": "b"}, 2.0)])
    assert (section.lines, speedups) == ([], [])


def test_times_of_a_table_have_one_unit():
    section, _ = points_table([({"gpus": "8"}, 2.51), ({"gpus": "16"}, 5.94e-4)])
    shown = section.tables[0].shown()
    assert [row[shown.columns.index("time")] for row in shown.rows] == ["2.510 s", "0.0005940 s"]


FINDINGS = [
    path for path in sorted(ROOT.glob("studies/*/results/*.json")) if "quadrille/findings/" in path.read_text()[:80]
]


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.parent.parent.name)
def test_legends_of_a_study_are_short_enough_to_be_whole(path):
    (part,) = parts_of_files([str(path)])
    names = [
        name
        for section in part.sections
        if section.title.startswith("Time over")
        for chart in section.charts
        for name in chart.spec["encoding"]["color"]["scale"]["domain"]
    ]
    assert names
    assert max(map(len, names)) <= 40
