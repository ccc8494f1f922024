"""The weak scaling of AxoNN: its runs, its predictions, its commands and its figure."""

import json

import pytest

from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.experiments.output.pictures import write_figure
from quadrille.studies.published_training.claimed_steps import DIFFERING, paper_grid, share_by_nccl
from quadrille.studies.published_training.figure import scaling_figure
from quadrille.studies.published_training.weak_scaling import RUNS, ScalingRun, scaling_point
from tests.support.quadrille import called

SMALL = ScalingRun("perlmutter", "5b", 64, Grid(z=64), 50.0, "nobody")


@pytest.fixture(scope="module")
def point():
    return scaling_point(SMALL)


def test_parameters_grow_with_the_gpus_on_every_machine():
    for machine in {run.machine for run in RUNS}:
        part = [run for run in RUNS if run.machine == machine]
        assert [run.gpus for run in part] == sorted(run.gpus for run in part)
        each = [SHAPES[run.model].parameters / run.gpus for run in part]
        assert max(each) < 1.25 * min(each)
        assert [run.published is not None for run in part][-1]


def test_grids_hold_all_gpus():
    assert all(run.grid is None or run.grid.size == run.gpus for run in RUNS)


def test_what_is_added_makes_a_step_slower(point):
    assert point.untapered >= point.equal * (1 - 1e-9)
    assert point.equal > point.differing > 0.9 * point.equal
    assert point.measured <= point.differing


def test_the_faster_candidate_is_chosen(point):
    shares = {
        "rule": share_by_nccl(SMALL.training, paper_grid(SMALL.training)),
        "model": share_by_nccl(SMALL.training, SMALL.grid),
    }
    assert shares[point.chosen] == max(shares.values()) == point.equal


def test_the_command_predicts_the_point(point, capsys, tmp_path):
    record = tmp_path / "record.json"
    assert called(capsys, *point.command.split()[1:], "--json", record).status == 0
    seconds = json.loads(record.read_text())["seconds"]
    assert SMALL.training.share_of_peak(seconds) == pytest.approx(point.differing, rel=1e-6)
    assert point.differing == share_by_nccl(SMALL.training, parse_grid(point.grid), DIFFERING)


def test_the_figure_is_written(point, tmp_path):
    path = tmp_path / "figure.svg"
    write_figure(scaling_figure([point]), path)
    text = path.read_text()
    assert "perlmutter" in text
    assert "<path" in text


def test_a_figure_of_claims_is_refused(capsys):
    ended = called(capsys, "study", "published-training", "--claims", "--plot", "figure.png")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "claims have no figure" in ended.err
