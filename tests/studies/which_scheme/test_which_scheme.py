"""The study of schemes: savings follow from the times of the best layouts, and causes add up to them."""

from dataclasses import replace
from math import isclose

import msgspec
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.experiments.rank.rank import ranking
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow, TrainingResult
from quadrille.experiments.sweep.training_study import Findings, StudyOptions, seconds_by_cause
from quadrille.studies.which_scheme import study

SMALL = "layers=4,hidden=512,heads=8,sequence=256,vocabulary=2048"
ASKED = study.SchemeQuestion(models=(SMALL,), machines=("h100-superpod",), gpus=(8,), sharing=2, each=2)


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemes")
    options = StudyOptions(top=1, quiet=True, json=str(folder / "schemes.json"), plot=str(folder / "schemes.png"))
    return study.which_scheme(ASKED, options), folder


def row(scheme, seconds, compute, exposed, gpus=8, size=study.SMALL):
    trained = TrainingResult(
        scheme=scheme,
        order=("x",),
        model_flops_per_second_per_gpu=1.0,
        hardware_flops_per_second_per_gpu=1.0,
        exposed_seconds_by_axis=exposed,
        layers_simulated=1,
    )
    step = SweepAnswer(seconds=seconds, compute_seconds=compute, trained=trained, grid_lengths={"x": gpus})
    batch = gpus // 4 if size == study.SMALL else 2 * gpus
    point = {"model": "gpt", "machine": "alps", "gpus": str(gpus), "size": size, "batch": str(batch), "scheme": scheme}
    return SweepRow(point=point, answer=step)


@pytest.fixture
def pair():
    """1-D's step of 4 s and 4D's of 3 s."""
    return [row("megatron", 4.0, 2.0, {"x": 0.5, "data": 1.0}), row("4d", 3.0, 2.25, {"z": 0.25})]


def test_every_batch_is_asked_of_every_scheme_on_all_gpus(findings):
    found, folder = findings
    assert len(found.rows) == 2 * 2
    for answered in found.rows:
        assert answered.answer.ranks == int(answered.point["gpus"])
        assert answered.answer.trained.scheme == answered.point["scheme"]
        assert answered.answer.peak_bytes_per_rank_max <= 80e9
    batches = {(answered.point["gpus"], answered.point["size"]): answered.point["batch"] for answered in found.rows}
    assert batches == {("8", "small"): "4", ("8", "large"): "16"}
    kept = msgspec.json.decode((folder / "schemes.json").read_bytes())
    kept.pop("schema")
    assert msgspec.convert(kept, Findings).rows == found.rows
    assert (folder / "schemes.png").read_bytes()[1:4] == b"PNG"


def test_each_recomputation_has_its_own_number_of_evaluated_layouts():
    (job, *_) = ASKED.jobs(StudyOptions(top=1))
    question = replace(next(iter(job.questions.values())), fitting=1)
    ranked = ranking(question.rank_question(), question.space())
    assert {entry.recompute for entry in ranked.analytical} == {"none", "full"}


def test_causes_add_up_to_the_saving(findings, pair):
    for rows in (findings[0].rows, pair):
        for answered in rows:
            assert isclose(sum(seconds_by_cause(answered.answer).values()), answered.answer.seconds)
            causes = study.saved_by_cause(rows, answered)
            assert isclose(sum(causes.values()), study.saving(rows, answered), abs_tol=1e-12)
            if answered.point["scheme"] == study.BASE:
                assert study.saving(rows, answered) == 0


def test_a_saving_is_a_share_of_the_time_of_1_d_and_sums_over_data_can_be_left_out(pair):
    assert study.saving(pair, pair[1]) == 0.25
    assert study.saving_with_data_hidden(pair, pair[1]) == 0
    assert study.saved_by_cause(pair, pair[1]) == {
        "computing": -0.0625,
        "x exposed": 0.125,
        "data exposed": 0.25,
        "waiting": 0.0,
        "z exposed": -0.0625,
    }


def test_the_answer_says_where_4d_is_faster_by_how_much_and_why(pair):
    more = [row("megatron", 1.0, 1.0, {}, gpus=64), row("4d", 1.01, 1.01, {}, gpus=64)]
    (text,) = study.answer([*pair, *more])
    assert text == (
        "On alps with 0.25 sequences for each GPU, 4D (4d) trains gpt faster by 25.0 % on 8; equal on 64 GPUs. "
        "On 8 GPUs x=8 has, in shares of the time on x=8, -25.0 % data exposed, -12.5 % x exposed, +6.2 % computing; "
        "with all sums over data hidden it saves +0.0 %."
    )
    (slower,) = study.answer([pair[0], msgspec.structs.replace(pair[1], answer=row("4d", 8.0, 8.0, {}).answer)])
    assert " trains gpt slower by 100.0 % on 8 GPUs." in slower


def test_the_figure_has_a_line_for_each_batch_and_marks_missing_layouts(pair):
    missing = SweepRow(point={**pair[1].point, "size": "large"}, answer=SweepAnswer(reason="too large"))
    (axes,) = study.figure([*pair, missing]).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["4D (4d), small batch"] == [pytest.approx(4 / 3)]
    assert lines["4D (4d), large batch"] == []
    assert [text.get_text() for text in axes.texts] == ["no layout"]


def test_numbers_of_gpus_with_too_many_grids_have_the_reason():
    asked = study.SchemeQuestion(machines=("gb200-nvl72",), gpus=(4096,))
    (job,) = asked.jobs(StudyOptions())
    steps = study.layouts_of(job)
    assert len(steps) == 4
    assert {step.reason for step in steps} == {
        "4,608 GPUs are not searched: a power of two, or at most 1,024 GPUs, is accepted"
    }


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"schemes": ("megatron", "5d")}, "scheme '5d'"),
        ({"schemes": ("4d",)}, "schemes 4d: megatron and at least one more is accepted"),
        ({"machines": ("nowhere",)}, "machine 'nowhere'"),
        ({"sharing": 0}, "sharing 0: a whole number from 1 is accepted"),
        ({"gpus": (8, 0)}, "gpus 0: a whole number from 1 is accepted"),
    ],
)
def test_a_wrong_question_is_refused_in_one_line(asked, words):
    with pytest.raises(InputError, match=words) as raised:
        study.which_scheme(study.SchemeQuestion(**asked), StudyOptions(quiet=True))
    assert "\n" not in str(raised.value)
