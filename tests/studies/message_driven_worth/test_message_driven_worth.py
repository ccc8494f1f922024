"""The study of message-driven pipelines: its points, its answer, and the laboratories of its measured part."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.pass_rules import pass_order
from quadrille.algorithms.training.gpt import pipeline_stages
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.predict.predict import prediction_record
from quadrille.experiments.sweep.training_study import Findings, StudyOptions
from quadrille.studies.message_driven_worth import measured_gains
from quadrille.studies.message_driven_worth import study as worth
from tests.support.quadrille import ROOT, called
from tests.support.toy_machines import star

SMALL = "layers=8,hidden=512,heads=8,sequence=256,vocabulary=512"
RESULTS = ROOT / "studies/message_driven_worth/results"
COMPARED = (worth.BASELINE, worth.DRIVEN)
QUESTION = worth.DrivenQuestion(gpt=SMALL, stages=8, microbatches=4, noise=(40,), seeds=2)


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
    (axis,) = worth.figure(findings.rows, findings.flags).axes
    assert len(axis.patches) == len(worth.disturbances_in(findings.rows)) * len(worth.COLOURS)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_page_holds_the_numbers_of_its_results(path):
    page = (RESULTS.parent / "README.md").read_text()
    stored = msgspec.json.decode(path.read_bytes())
    stored.pop("schema")
    rows = msgspec.convert(stored, Findings).rows
    lines = page[page.index(path.name) :].splitlines()
    for disturbance in worth.disturbances_in(rows):
        line = next(line for line in lines if line.startswith(f"| {disturbance.name} |"))
        for schedule in ("interleaved", "zb-h1", worth.DRIVEN):
            assert f"{100 * disturbance.gain(schedule):+.1f} %" in line


def test_a_pipeline_of_many_gpus_is_walked_pass_by_pass_without_noise(monkeypatch):
    monkeypatch.setattr(worth, "SCHEDULES", (worth.BASELINE, "interleaved", worth.DRIVEN))
    question = worth.DrivenQuestion(gpt=SMALL, stages=2, grid="data=2,x=2", microbatches=4, interleave=2)
    findings = worth.message_driven_worth(question, StudyOptions(quiet=True))
    assert {row.point["disturbance"] for row in findings.rows} == {worth.NONE, worth.SLOW_STAGE, worth.SLOW_LINK}
    assert {row.answer.ranks for row in findings.rows} == {8}
    assert findings.flags["batch"] == "8"


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


def test_orders_part_where_a_message_decides_otherwise():
    predicted = prediction_record(measured_gains.step_of("message-driven"), star(4), granularity="exact")
    static = prediction_record(measured_gains.step_of("1f1b"), star(4), granularity="exact")
    assert measured_gains.parting(static) == ""
    stages = pipeline_stages(measured_gains.MODEL, Grid(pipeline=4))
    usual = ["".join(pass_order("1f1b", stages.first_state(stage))) for stage in range(4)]
    parts = [stage for stage in range(4) if predicted.pass_orders[stage] != usual[stage]]
    assert measured_gains.parting(predicted).startswith(f"stage {parts[0]} pass ")


@pytest.mark.skipif(measured_gains.SLOW_CORE not in os.sched_getaffinity(0), reason="this machine has no such core")
def test_the_busy_process_computes_and_ends_with_its_context():
    with measured_gains.busy_process(0.01) as process:
        before = cpu_seconds(process.pid)
        wait_until(lambda: cpu_seconds(process.pid) > before + 0.1)
        assert process.poll() is None
    assert process.poll() is not None


def cpu_seconds(pid):
    """Processor time of a process [s]."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_measured_part_needs_a_machine_file():
    with pytest.raises(InputError, match="machine file is missing"):
        measured_gains.main()
