"""The speed of a sweep's engine: a small measurement, and the table of its figures."""

import pytest

from quadrille.experiments.sweep.sweep_result import SweepAnswer
from quadrille.studies.benchmarks.sweep_speed import SweepSpeed, answer_all, rows, sweep_speed

SPEED = SweepSpeed(0.05, (2.0, 3.0, 2.0), (1.0, 2.0, 1.25), (1.9, 1.9, 1.9), (2.0, 2.0, 1.9), (0.001, 0.002, 0.004))


def test_the_figures_are_medians_and_the_rows_have_their_ends():
    (speedup, engine) = rows(SPEED)
    assert speedup[:3] == ("sweep, two processes over one", "1.60 times", "1.8 times")
    assert "median of 3 pairs, 1.50 to 2.00; points of 50 ms" in speedup[3] and "; 1.90 by" in speedup[3]
    assert engine[:3] == ("engine of a sweep, for each point", "2.00 ms", "3 ms") and "1.00 to 4.00 ms" in engine[3]


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_point_has_its_own_answer(jobs):
    answers = answer_all(lambda point: SweepAnswer(seconds=point.experiment.problem.m), 5, jobs)
    assert [answer.seconds for answer in answers] == [8, 9, 10, 11, 12]


def test_a_small_measurement_counts_the_work_of_all_processes():
    speed = sweep_speed(pairs=1, points=4, engine_points=20)
    work = 4 * speed.point_seconds
    assert speed.one_process_work[0] > 0.5 * work and speed.two_process_work[0] > 0.5 * work
    assert len(speed.engine_seconds_per_point) == 7 and 0 < speed.engine_seconds < 0.1
