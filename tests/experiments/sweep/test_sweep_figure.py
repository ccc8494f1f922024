from itertools import product

import pytest

from quadrille.experiments.sweep.sweep_figure import MISSING_MEMORY, sweep_figure
from quadrille.experiments.sweep.sweep_result import Sweep, SweepAnswer, sweep_rows
from quadrille.experiments.sweep.varied_key import VariedKey


def swept(answer_of=lambda **point: SweepAnswer(seconds=1.0), flags=None, **varied):
    """The figure of a sweep with an answer for each combination of values."""
    points = [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]
    rows, baseline = sweep_rows([(point, answer_of(**point)) for point in points])
    sweep = Sweep(flags=flags or {}, varied=varied, best_grid=False, points=rows, baseline=baseline)
    return sweep_figure(sweep, [VariedKey(key, values) for key, values in varied.items()])


def ticks(axis):
    return [label.get_text() for label in axis.get_xticklabels()]


def data_lines(axes):
    return [line for line in axes.lines if line.get_label() != MISSING_MEMORY]


def test_the_key_with_the_most_numbers_is_x_wherever_it_is_named():
    figure = swept(gpus=("64",), zero=("0", "1", "2"), batch=("8", "16", "32", "64", "128", "256"))
    axes = figure.axes[0]
    assert axes.get_xlabel() == "batch"
    assert len(data_lines(axes)) == 3
    assert {len(set(line.get_xdata())) for line in axes.lines} == {6}


def test_few_numbers_have_ticks_at_these_numbers():
    assert ticks(swept(zero=("0", "1", "2")).axes[0]) == ["0", "1", "2"]


def test_gpus_over_decades_are_on_a_logarithmic_axis():
    axes = swept(gpus=("8", "64", "1024")).axes[0]
    assert axes.get_xscale() == "log"
    assert ticks(axes) == ["8", "64", "1,024"]
    assert axes.get_xlabel() == "GPUs"


def test_categories_are_not_joined():
    axes = swept(scheme=("4d", "megatron"), dtype=("a", "b", "c")).axes[0]
    assert ticks(axes) == ["a", "b", "c"]
    assert {line.get_linestyle() for line in data_lines(axes)} == {"None"}


def test_points_that_do_not_fit_are_marked_and_no_others():
    def answer(gpus):
        return SweepAnswer(seconds=8 / int(gpus), fits=gpus != "2")

    (marked,) = [line for line in swept(answer, gpus=("2", "4")).axes[0].lines if line.get_label() == MISSING_MEMORY]
    assert list(marked.get_xdata()) == [2.0]
    assert list(marked.get_ydata()) == [4.0]
    assert marked.get_markerfacecolor() == "white"


def test_a_job_by_gpus_has_a_panel_with_its_efficiency():
    def answer(gpus):
        return SweepAnswer(seconds=1.0, flops_per_second_per_gpu={"8": 200.0, "16": 150.0}[gpus])

    _, efficiency = swept(answer, gpus=("8", "16")).axes
    assert list(efficiency.lines[0].get_ydata()) == [100.0, 75.0]
    assert efficiency.get_ylim()[0] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"gpt": "20b", "machine": "perlmutter", "batch": "64"}, ("a training step", "gpt 20b", "on perlmutter")),
        ({"collective": "all-reduce", "machine": "frontier"}, ("the collective", "all-reduce", "on frontier")),
    ],
)
def test_the_title_is_the_question_with_workload_and_machine(flags, words):
    title = swept(flags=flags, gpus=("8", "16")).get_suptitle()
    assert title.startswith("How long does ")
    assert "GPUs?" in title
    assert all(word in title for word in words)
    several = swept(flags=flags, gpus=("8", "16"), zero=("0", "1"), dtype=("float32", "float64")).get_suptitle()
    assert "by GPUs, zero and dtype?" in " ".join(several.split())


def test_the_title_counts_points_without_an_answer():
    def answer(gpus):
        return SweepAnswer(seconds=1.0) if gpus == "8" else SweepAnswer(reason="too many")

    assert "1 of 2 points have no answer" in swept(answer, gpus=("8", "16")).get_suptitle()
