"""The study of oversubscription: at 1:1 every placement is as fast, and uplinks bound what leaves a rack."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.experiments.sweep.sweep_result import SweepAnswer, sweep_rows
from quadrille.experiments.sweep.training_study import StudyOptions
from quadrille.simulator.machine.network import network_of
from quadrille.studies.oversubscription import study as tree

SMALL = tree.TreeQuestion(
    gpt="layers=2,hidden=512,heads=16,sequence=256,vocabulary=512",
    experts="",
    gpus=32,
    rack=2,
    stages=2,
    ratios=(1, 4),
    names=("data, ZeRO 1", "pipeline 2"),
)


@pytest.fixture(scope="module")
def jobs():
    findings = tree.oversubscription(SMALL, StudyOptions(quiet=True))
    return {(job.layout, job.placement): job for job in tree.jobs_in(findings.rows)}


def test_every_layout_is_predicted_in_every_placement(jobs):
    assert len(jobs) == 2 * 2 + 1
    assert all(len(job.seconds) == 2 for job in jobs.values())


def test_at_1_to_1_it_costs_nothing_to_be_scattered(jobs):
    for layout in {layout for layout, _ in jobs}:
        packed, scattered = jobs[layout, tree.PACKED], jobs[layout, tree.SCATTERED]
        assert scattered.seconds["1:1"] == pytest.approx(packed.seconds["1:1"], rel=0.01)


def test_less_bandwidth_makes_no_step_faster_nor_more_than_its_factor_slower(jobs):
    for job in jobs.values():
        assert -1e-9 <= job.cost("4:1") <= 3


def test_the_upper_bound_of_a_pipeline_is_no_less_than_its_prediction(jobs):
    pipeline = f"pipeline {SMALL.stages}"
    assert jobs[pipeline, tree.BOUND].seconds["4:1"] >= jobs[pipeline, tree.SCATTERED].seconds["4:1"] * (1 - 1e-9)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_the_uplink_of_a_rack_has_the_bandwidth_of_its_nics_over_the_ratio(ratio):
    net = network_of(tree.in_racks(tree.TreeQuestion(), ratio))
    up = net.link_numbers("leaf:0>spine:0")
    into = [number for number in range(net.link_count) if net.link_names([number])[0].endswith(">leaf:0")]
    from_nics = [n for n in into if net.link_names([n])[0].startswith("nic:")]
    assert len(from_nics) == 4 * 8
    assert float(net.bandwidths[up].sum()) * ratio == pytest.approx(float(net.bandwidths[from_nics].sum()))


def test_the_answer_has_the_costs_of_the_rows():
    def row(placement: str, ratio: str, seconds: float | None) -> tuple[dict[str, str], SweepAnswer]:
        point = {"model": "m", "layout": "data", "placement": placement, "oversubscription": ratio}
        return point, SweepAnswer(seconds=seconds)

    rows, _ = sweep_rows([row(tree.PACKED, "1:1", 2.0), row(tree.PACKED, "2:1", 2.5)])
    assert tree.answer(rows) == ["Packed, 2:1 costs data +25.0 %."]
    (axis,) = tree.figure(rows).axes
    assert {text.get_text().strip() for text in axis.texts} == {"no pipeline"}
    rows, _ = sweep_rows([row(tree.PACKED, "1:1", 2.0), row(tree.PACKED, "2:1", None)])
    (axis,) = tree.figure(rows).axes
    assert "not predicted" in {text.get_text().strip() for text in axis.texts}


def test_gpus_that_do_not_fill_racks_are_refused_in_one_line():
    with pytest.raises(InputError, match="do not fill two or more racks") as raised:
        tree.oversubscription(tree.TreeQuestion(gpus=48), StudyOptions(quiet=True))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("ratios", [(1,), (2, 2)])
def test_ratios_that_compare_nothing_are_refused_in_one_line(ratios):
    with pytest.raises(InputError, match="two or more different ones are accepted"):
        tree.TreeQuestion(ratios=ratios)


def test_experts_over_eight_nodes_are_left_out_on_four():
    names = [layout.name for layout in tree.TreeQuestion(gpus=32, rack=2).layouts()]
    assert "experts 8" in names and "experts 64" not in names
