"""Tables of measured collectives: interpolation, and what predictions take from them."""

import math

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.collective import SimulationOptions
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.nodes.collective_tables import (
    MEASURED,
    collective_bound,
    collective_table,
    collective_table_names,
    collective_table_of,
)
from quadrille.topologies.nodes.node_kinds import NODE_KINDS

MIB = 1 << 20


def predicted(kind="all_gather", size=64 * MIB, machine="h100-node", choices="nccl", settings=(), gpus=8, **question):
    asked = CollectiveQuestion(
        kind=kind, bytes=size, gpus=gpus, **{"group": gpus, **question}, choices=parse_choices(choices)
    )
    return predict_collective(asked, find_machine(machine, settings, gpus=gpus))


@pytest.mark.parametrize("name", collective_table_names())
def test_a_table_has_a_ratio_for_every_grid_point_of_every_kind(name):
    table = collective_table(name)
    assert sorted(table.collectives) == sorted(MEASURED)
    for ratios in table.collectives.values():
        assert len(ratios.thousandths) == math.prod(map(len, ratios.axes.values()))
        assert ratios.rows > 50


@pytest.mark.parametrize("name", collective_table_names())
def test_only_in_switch_sums_pass_the_links_rate(name):
    table = collective_table(name)
    rate = table.nvlink_bytes_per_second
    for kind, ratios in table.collectives.items():
        for gpus in ratios.axes["gpus"]:
            seconds, _ = table.seconds(kind, gpus, 512 * MIB, rate)
            share = collective_bound(kind, gpus, 512 * MIB, rate) / seconds
            assert 0.3 < share < (1.56 if kind == "all_reduce" else 1.0)


def test_between_sizes_the_ratio_is_interpolated_and_beyond_them_the_last_octave_continues():
    table = collective_table("h100-sxm")
    rate, sizes = table.nvlink_bytes_per_second, [2**power * MIB for power in (6, 7, 8, 9, 10, 11)]
    times = [table.seconds("all_gather", 8, size, rate) for size in sizes]
    assert [beyond for _, beyond in times] == [False] * 4 + [True] * 2
    assert times[5][0] - times[4][0] == pytest.approx(4 * (times[3][0] - times[2][0]))
    seconds, beyond = table.seconds("all_gather", 8, 96 * MIB, rate)
    assert not beyond
    assert times[0][0] < seconds < times[1][0]


def test_a_table_says_nothing_of_more_gpus_or_other_kinds():
    table = collective_table("gb200")
    assert table.seconds("all_gather", 8, MIB, 900e9) is None
    assert table.seconds("broadcast", 4, MIB, 900e9) is None


def test_a_prediction_inside_a_node_is_the_tables_time():
    seconds, _ = collective_table("h100-sxm").seconds("all_gather", 8, 64 * MIB, 450e9)
    answer = predicted(options=SimulationOptions(causes=True))
    assert answer.seconds == pytest.approx(seconds, rel=1e-12)
    assert sum(answer.seconds_by_part.values()) == pytest.approx(seconds, rel=1e-12)
    assert answer.why.endswith("time of measured collectives (h100-sxm)")
    assert predicted(size=1024 * MIB).why.endswith("(h100-sxm, extrapolated)")


def test_groups_in_one_node_do_not_slow_each_other():
    alone = predicted(gpus=8, group=4)
    assert predicted(gpus=8, group=4, concurrent="all").seconds == alone.seconds


@pytest.mark.parametrize(
    "changed",
    [
        {"choices": "nccl:ring"},
        {"settings": ("device.collective_table=none",)},
        {"kind": "broadcast"},
        {"machine": "h100-superpod", "gpus": 16},
        {"machine": "gb200-nvl72", "gpus": 8},
        {"machine": "perlmutter", "gpus": 4},
    ],
)
def test_everything_else_is_predicted_by_the_model(changed):
    assert "measured" not in predicted(**changed).why


def test_slower_links_slow_measured_collectives():
    usual, slow = (
        predicted(size=512 * MIB),
        predicted(size=512 * MIB, settings=("topology.nvlink_bandwidth_bytes_per_second=225e9",)),
    )
    assert slow.seconds / usual.seconds == pytest.approx(2, rel=0.02)


def test_the_nodes_that_have_a_table():
    tables = {name: collective_table_of(NODE_KINDS[name]) for name in ("dgx-a100", "hgx-b300", "perlmutter", "mi300x")}
    assert tables == {"dgx-a100": "a100-sxm", "hgx-b300": "b300-sxm", "perlmutter": "", "mi300x": ""}
    assert collective_table_of(None) == ""


def test_an_unknown_table_is_refused():
    with pytest.raises(InputError, match=r"collective_table 'h10': accepted are a100-sxm, .*, none"):
        find_machine("h100-node", ("device.collective_table=h10",))
    with pytest.raises(InputError, match="collectives of 'h10': accepted are a100-sxm, "):
        collective_table("h10")
