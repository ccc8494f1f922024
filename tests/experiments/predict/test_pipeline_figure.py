from itertools import pairwise

import pytest

from quadrille.algorithms.training.pipeline import Stages
from quadrille.experiments.predict.pipeline_figure import MOST_PASSES, pipeline_figure
from tests.support.quadrille import called

JOB = "schedule --gpt layers=4,hidden=64,heads=4,sequence=16,vocabulary=64 --batch 8 --micro-batch 1"


def bars(axes):
    """The bars of a label: [stage, start, length]."""
    return {
        container.get_label(): [(round(bar.get_y() + 0.4), bar.get_x(), bar.get_width()) for bar in container]
        for container in axes.containers
    }


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 3), (4, 8), (4, 4)])
def test_the_bubble_is_the_share_of_the_literature(stages, microbatches):
    """Source: Narayanan et al., SC21, section 2.2.1: (p - 1) / m of the ideal time."""
    axes = pipeline_figure(Stages(stages, stages, microbatches)).axes[0]
    idle = (stages - 1) / (microbatches + stages - 1)
    assert f"bubble, {100 * idle:.3g} % of the time" in bars(axes)
    assert axes.get_xlim() == (0, 3 * (microbatches + stages - 1))
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [str(stage) for stage in range(stages)]


@pytest.mark.parametrize("stages", [Stages(3, 6, 5, schedule="zb-h1"), Stages(2, 8, 4, 2)])
def test_each_pass_is_one_bar_and_no_bars_of_a_stage_overlap(stages):
    drawn = bars(pipeline_figure(stages).axes[0])
    passes = [bar for label, some in drawn.items() if not label.startswith("bubble") for bar in some]
    assert len(passes) == stages.count * stages.chunks * stages.microbatches * (3 if stages.splits else 2)
    for stage in range(stages.count):
        own = sorted((start, start + length) for of, start, length in passes if of == stage)
        assert all(end <= start for (_, end), (start, _) in pairwise(own))


def test_schedule_draws_a_pipeline_and_prints_as_without_a_figure(capsys, tmp_path):
    without = called(capsys, *JOB.split(), "--grid", "pipeline=2")
    ended = called(capsys, *JOB.split(), "--grid", "pipeline=2", "--plot", str(tmp_path / "grid.svg"))
    assert (ended.status, ended.out) == (0, without.out)
    figure = (tmp_path / "grid.svg").read_text()
    assert "bubble, 11.1 % of the time" in figure
    assert "gpt of 4 layers, hidden 64" in figure.replace("\n", " ")


def test_bad_figures_are_refused_in_a_line(capsys, tmp_path):
    drawn = ("--grid", "pipeline=2", "--plot")
    for words, message in [
        ((*drawn, "grid.gif"), "one of png, svg, pdf is needed"),
        ((*drawn, str(tmp_path / "none" / "grid.svg")), "none"),
        (("--plot", "grid.svg"), "goes with a pipeline"),
        ((*drawn, str(tmp_path / "grid.svg"), "--batch", str(MOST_PASSES)), "at most 20,000 are drawn"),
    ]:
        ended = called(capsys, *JOB.split(), *words)
        assert ended.status == 2
        assert message in ended.line
