"""The study of message-driven pipelines: its points, its answer, and the laboratories of its measured part."""

from pathlib import Path

import msgspec
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.sweep.training_study import Findings, StudyOptions
from quadrille.studies.message_driven_worth import measured_gains
from quadrille.studies.message_driven_worth import study as worth
from tests.support.quadrille import ROOT, called

SMALL = "layers=8,hidden=512,heads=8,sequence=256,vocabulary=512"
COMPARED = (worth.BASELINE, worth.DRIVEN)
QUESTION = worth.DrivenQuestion(gpt=SMALL, stages=8, microbatches=8, noise=(40,), seeds=2)


@pytest.fixture(scope="module")
def findings():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worth, "SCHEDULES", COMPARED)
        return worth.message_driven_worth(QUESTION, StudyOptions(quiet=True, most_seconds=240))


def test_every_disturbance_is_simulated_with_the_schedules_and_every_seed(findings):
    points = [tuple(row.point.values()) for row in findings.rows]
    assert len(points) == len(set(points)) == 3 * 2 + 2 * 2
    assert {schedule for _, schedule, _ in points} == set(COMPARED)
    assert all(row.answer.seconds is not None and not row.answer.trained.bounded for row in findings.rows)


def test_disturbances_cost_time_and_gains_are_ratios_of_means(findings):
    by_name = {disturbance.name: disturbance for disturbance in worth.disturbances_in(findings.rows)}
    usual = by_name[worth.NONE].mean(worth.BASELINE)
    for name in (worth.SLOW_STAGE, worth.SLOW_LINK, "noise 40 %"):
        assert by_name[name].mean(worth.BASELINE) > usual
    noisy = by_name["noise 40 %"]
    assert len(set(noisy.seconds[worth.DRIVEN])) == QUESTION.seeds
    expected = sum(noisy.seconds[worth.BASELINE]) / sum(noisy.seconds[worth.DRIVEN]) - 1
    assert noisy.gain(worth.DRIVEN) == pytest.approx(expected)
    assert f"noise 40 % {100 * expected:+.1f} %" in findings.answer


def test_the_figure_has_a_bar_for_each_gain(findings):
    (axis,) = worth.figure(findings.rows).axes
    assert len(axis.patches) == len(worth.disturbances_in(findings.rows)) * len(worth.COLOURS)


def test_the_page_holds_the_numbers_of_its_results():
    page = (ROOT / "studies/message_driven_worth/README.md").read_text()
    (path,) = sorted((ROOT / "studies/message_driven_worth/results").glob("*.json"))[-1:]
    stored = msgspec.json.decode(path.read_bytes())
    stored.pop("schema")
    rows = msgspec.convert(stored, Findings).rows
    for disturbance in worth.disturbances_in(rows):
        line = next(line for line in page.splitlines() if line.startswith(f"| {disturbance.name} |"))
        assert f"{100 * disturbance.gain(worth.DRIVEN):+.1f} %" in line


def test_a_model_with_too_few_layers_is_refused_in_one_line(capsys):
    ended = called(capsys, "study", "message-driven-worth", "--gpt", "7z", "--stages", "2")
    assert ended.status == 2
    assert "'7z'" in ended.err


def test_the_slow_cable_of_a_laboratory_is_the_cable_of_one_host(tmp_path):
    path = measured_gains.write_network(Path(tmp_path, "network.json"), 0.25)
    rates = parse_laboratory(str(path)).rates
    assert {name: rate for name, rate in rates.items() if "host:1" in name} == {
        "host:1>switch:0": 0.25 * measured_gains.RATE,
        "switch:0>host:1": 0.25 * measured_gains.RATE,
    }
    assert {rate for name, rate in rates.items() if "host:1" not in name} == {measured_gains.RATE}


def test_a_slow_stage_has_more_layers_of_the_same_model():
    cases = {case.name: case.stages for case in measured_gains.CASES}
    assert {sum(stages) for stages in cases.values()} == {len(measured_gains.MODEL.widths) - 1}
    assert cases["slow stage"][measured_gains.SLOW_HOST] == 2 * cases["none"][measured_gains.SLOW_HOST]


def test_the_measured_part_needs_a_machine_file():
    with pytest.raises(InputError, match="machine file is missing"):
        measured_gains.main()
