"""The study of the best layouts: the best is the best of `quadrille rank`, and causes add up to the step."""

from dataclasses import replace
from math import isclose

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.cli.parsing.flags import RankFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.ranking import parse_question, parse_space
from quadrille.experiments.output.tables import print_tables
from quadrille.experiments.rank.rank import ranking
from quadrille.experiments.rank.ranked_layouts import LayoutQuestion, fastest_layouts, sharded_data_layout
from quadrille.experiments.report.study_sections import findings_part
from quadrille.experiments.sweep.sweep_result import SweepRow
from quadrille.experiments.sweep.training_study import StudyOptions
from quadrille.studies.best_layout import study
from quadrille.studies.best_layout.study import (
    BEST,
    LAYOUTS,
    SECOND,
    BestLayoutQuestion,
    answer,
    behind_best,
    causes,
    figure,
    layouts_of,
)
from quadrille.topologies.find_machine import find_machine

SMALL = "layers=4,hidden=512,heads=8,sequence=256,vocabulary=2048"
QUESTION = LayoutQuestion(
    gpt=SMALL, batch=16, gpus=8, machine=find_machine("h100-superpod", gpus=8), stages=(1, 2), top=2
)
POINT = {"model": "small", "machine": "h100-superpod", "gpus": "8"}


@pytest.fixture(scope="module")
def rows():
    pairs = zip(LAYOUTS, layouts_of(QUESTION), strict=True)
    return [SweepRow(point={**POINT, "layout": layout}, answer=answer) for layout, answer in pairs]


def test_the_layouts_are_those_of_rank(rows):
    flags = RankFlags(
        gpt=SMALL,
        batch="16",
        gpus="8",
        top="2",
        scheme="megatron",
        sequence_parallel=True,
        pipeline="1,2",
        micro_batch="1",
        powers_of_two=True,
        order="x,y,z,data",
        search="none",
        overlap="oar,ors,oag,ogr,opg",
    )
    ranked = ranking(parse_question(flags, MachineFlags(machine="h100-superpod")), parse_space(flags)).simulated
    for row, entry in zip(rows[:2], ranked, strict=True):
        assert (row.answer.seconds, row.answer.grid_lengths) == (entry.seconds, entry.grid)
        assert row.answer.peak_bytes_per_rank_max == entry.memory_bytes


def test_the_table_has_recomputation_and_utilisation(rows, capsys):
    assert [row.answer.trained.recompute for row in rows] == ["none", "none", "full"]
    for row in rows:
        model, hardware = study.model_utilisation(row), row.answer.trained.percent_of_peak / 100
        assert 0 < model <= hardware
    assert study.model_utilisation(rows[2]) < 0.8 * rows[2].answer.trained.percent_of_peak / 100
    print_tables(*study.tables(rows))
    page = capsys.readouterr().out
    assert "h100-superpod: 8 GPUs are 1 domain of 8" in page and "MFU" in page
    assert all(len(line) <= 160 for line in page.splitlines())


def test_no_layout_is_faster_than_the_best(rows):
    assert [row.point["layout"] for row in rows[:2]] == [BEST, SECOND]
    assert behind_best(rows, rows[0]) == 0
    assert behind_best(rows, rows[1]) >= 0


def test_causes_add_up_to_the_step(rows):
    for row in rows:
        assert isclose(sum(causes(row).values()), row.answer.seconds)


def test_the_layout_along_data_has_every_gpu_there(rows):
    assert rows[2].answer.grid == "data=8"
    assert rows[2].answer.trained.exposed_seconds_by_axis.keys() == {"data"}


def test_the_answer_names_the_best_and_the_figure_has_a_bar_for_each_layout(rows):
    (text,) = answer(rows)
    assert text.startswith(f"The best layout of small on 8 GPUs of h100-superpod is {rows[0].answer.grid}: ")
    axes = figure(rows).axes[0]
    named = [label.get_text().split("\n") for label in axes.get_xticklabels()]
    assert [lines[0] for lines in named] == list(LAYOUTS)
    assert [",".join(lines[1:]) for lines in named] == [row.answer.grid for row in rows]
    (legend,) = axes.figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        cause for row in rows for cause, seconds in causes(row).items() if seconds
    }
    top = max(bar.get_y() + bar.get_height() for bar in axes.patches)
    assert isclose(top, max(row.answer.seconds for row in rows))


def test_the_report_has_the_flags_of_all_points_alone_and_settings_that_differ_as_columns():
    asked = BestLayoutQuestion(models=(SMALL,), machines=("h100-superpod",), gpus=(8,))
    findings = study.best_layout(asked, StudyOptions(quiet=True))
    part = findings_part(findings, "layouts.json")
    settings = [row.answer.trained for row in findings.rows]
    assert [(each.micro_batch, each.recompute) for each in settings] == [(1, "none"), (1, "none"), (2, "full")]
    tables = {section.title: section.tables[0] for section in part.sections if section.tables}
    points = tables["All points"]
    cells = [[row[points.columns.index(name)] for name in ("micro-batch", "recompute")] for row in points.rows]
    assert cells == [[str(each.micro_batch), each.recompute] for each in settings]
    flags = dict(tables["Flags of all points"].rows)
    assert not {"micro-batch", "recompute"} & set(flags)
    assert flags["overlap"] == "oar,ors,oag,ogr,opg"


def test_a_model_that_fits_on_no_gpu_has_the_reason():
    large = LayoutQuestion(
        gpt="llama3-70b", batch=2, gpus=2, machine=find_machine("h100-superpod", gpus=2), stages=(1,)
    )
    (found,) = fastest_layouts(large)
    assert found.seconds is None
    assert "GiB" in found.reason


def test_a_number_of_gpus_for_each_machine_is_needed():
    with pytest.raises(InputError, match="gpus 8: a number for each of 2 machines is accepted"):
        BestLayoutQuestion(machines=("alps", "frontier"), gpus=(8,))


def test_a_layout_along_data_that_takes_too_long_has_the_reason():
    found = sharded_data_layout(replace(QUESTION, most_seconds=1e-6))
    assert found.seconds is None
    assert found.reason.startswith("given up")


def test_an_interrupted_study_keeps_the_jobs_that_were_reached(rows, monkeypatch, capsys):
    def interrupted(asked):
        if asked.gpt == "tiny":
            raise KeyboardInterrupt
        return tuple(row.answer for row in rows)

    monkeypatch.setattr(study, "layouts_of", interrupted)
    asked = BestLayoutQuestion(models=("gpt3-350m", "tiny"), machines=("h100-superpod",), gpus=(8,))
    findings = study.best_layout(asked, StudyOptions(quiet=True))
    assert [row.answer.seconds is None for row in findings.rows] == [False] * 3 + [True] * 3
    assert "interrupted; the answer is of the jobs that were reached" in capsys.readouterr().err
