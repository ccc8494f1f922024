"""The study of the end of strong scaling: efficiency, gain and losses follow from the times of steps."""

from math import isclose

import pytest

from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow, TrainingResult
from quadrille.studies.scaling_end.study import (
    QUICK,
    ScalingEndQuestion,
    answer,
    best_layout_of,
    curves,
    efficiency,
    end_of_scaling,
    figure,
    gain_of_doubling,
    losses,
    most_lost,
)

STEPS = {8: (8.0, 8.0, 0.0), 16: (4.2, 4.0, 0.1), 64: (1.9, 1.0, 0.7), 256: (1.6, 0.3, 1.0)}
"""Time of a step, its computing, and its exposed communication along data [s], by number of GPUs."""


def row(gpus, seconds, compute, exposed):
    trained = TrainingResult(
        scheme="megatron",
        order=("x",),
        model_flops_per_second_per_gpu=1.0,
        hardware_flops_per_second_per_gpu=1.0,
        exposed_seconds_by_axis={"data": exposed},
        layers_simulated=1,
    )
    found = SweepAnswer(seconds=seconds, compute_seconds=compute, trained=trained)
    return SweepRow(point={"model": "gpt", "machine": "alps", "batch": "64", "gpus": str(gpus)}, answer=found)


@pytest.fixture
def curve():
    return [row(gpus, *times) for gpus, times in STEPS.items()]


def test_the_fewest_gpus_have_efficiency_1_and_others_that_of_their_gpu_seconds(curve):
    assert efficiency(curve, curve[0]) == 1
    assert isclose(efficiency(curve, curve[1]), 64 / 67.2)


def test_the_gain_of_a_doubling_is_1_in_ideal_scaling_and_0_without_any():
    assert isclose(gain_of_doubling(row(8, 4.0, 4.0, 0.0), row(32, 1.0, 1.0, 0.0)), 1)
    assert gain_of_doubling(row(8, 4.0, 4.0, 0.0), row(32, 4.0, 1.0, 3.0)) == 0


def test_scaling_ends_where_twice_the_gpus_gain_less_than_a_fifth(curve):
    assert gain_of_doubling(curve[1], curve[2]) > 0.2 > gain_of_doubling(curve[2], curve[3])
    assert end_of_scaling(curve) is curve[2]
    assert end_of_scaling(curve[:3]) is None


def test_losses_add_up_to_the_lost_efficiency_and_the_largest_is_named(curve):
    for step in curve:
        assert isclose(sum(losses(curve, step).values()), 1 - efficiency(curve, step), abs_tol=1e-12)
    assert most_lost(curve, curve[3]) == "data exposed 62.5 %"


def test_the_answer_says_where_it_ends_and_what_is_lost(curve):
    (text,) = answer(curve)
    start = "Scaling of gpt on alps with 64 sequences a step ends at 64 GPUs: 1.90 s a step, efficiency 52.6 %"
    assert text == f"{start}, most is lost to {most_lost(curve, curve[2])}."


def test_the_figure_has_times_a_ring_at_the_end_and_gains_by_gpus_of_a_sequence(curve):
    left, right = figure(curve).axes
    assert list(left.lines[0].get_ydata()) == [seconds for seconds, *_ in STEPS.values()]
    assert list(left.lines[1].get_xdata()) == [64]
    assert list(right.lines[0].get_xdata()) == [8 / 64, 16 / 64, 64 / 64]
    assert right.lines[0].get_ydata()[2] < 20


def test_points_without_an_answer_are_in_no_curve(curve):
    impossible = SweepRow(point=curve[0].point | {"gpus": "4"}, answer=SweepAnswer(reason="too large"))
    assert curves([impossible, *curve]) == {("gpt", "alps", "64"): curve}


def test_the_quick_question_has_an_answer():
    (_, asked), *_ = QUICK.points()
    found = best_layout_of(asked)
    assert found.ranks == 8
    assert found.seconds >= found.compute_seconds


def test_numbers_of_gpus_are_asked_about_once_and_in_ascending_order():
    asked = ScalingEndQuestion(models=("tiny",), machines=("perlmutter",), gpus=(32, 8, 32), batches=(64,))
    assert [point["gpus"] for point, _ in asked.points()] == ["8", "32"]
