"""The study of faults: a slow GPU costs at most its factor, and a flapping NIC a share of one that is down."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.experiments.sweep.training_study import StudyOptions
from quadrille.studies.fault_cost import study as faults

SMALL = faults.FaultQuestion(
    gpt="layers=1,hidden=512,heads=16,sequence=256,vocabulary=512", gpus=16, stages=1, slower=(30,)
)
ROUNDING = 1e-9


@pytest.fixture(scope="module")
def findings():
    return faults.fault_cost(SMALL, StudyOptions(quiet=True))


@pytest.fixture(scope="module")
def costs(findings):
    layouts = {row.point["layout"] for row in findings.rows}
    return {layout: faults.costs_of(findings.rows, layout) for layout in layouts}


def test_every_layout_is_predicted_with_every_fault(findings):
    points = {tuple(row.point.values()) for row in findings.rows}
    assert len(points) == len(findings.rows) == 3 * 6
    assert all(row.answer.seconds is not None for row in findings.rows)


def test_a_slow_gpu_costs_at_most_its_own_factor(costs):
    for own in costs.values():
        assert 0 < own["GPU 30 % slower"] <= (1 / 0.7 - 1) * (1 + ROUNDING)


def test_a_nic_at_half_rate_costs_at_most_a_factor_of_two(costs):
    for own in costs.values():
        assert -ROUNDING <= own[faults.HALF] <= 1 + ROUNDING


def test_a_lost_rail_costs_at_least_as_much_as_one_nic_of_it(costs):
    for own in costs.values():
        assert own[faults.LOST] >= own[faults.DOWN] - 1e-3


def test_a_flapping_nic_costs_its_share_of_one_that_is_down(costs):
    for own in costs.values():
        assert own["NIC down 10 % of the time"] == pytest.approx(0.1 * own[faults.DOWN])


@pytest.mark.parametrize("question", [faults.FaultQuestion(machine="perlmutter"), faults.FaultQuestion(gpus=12)])
def test_a_machine_without_rails_or_with_a_part_of_a_node_is_refused_in_one_line(question):
    with pytest.raises(InputError, match="whole nodes of one scalable unit") as raised:
        faults.fault_cost(question, StudyOptions(quiet=True))
    assert "\n" not in str(raised.value)
