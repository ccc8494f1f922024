"""NCCL's collectives in equal places of a network: one simulation, and the results of a simulation of each place."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, AllToAll, Broadcast, ReduceScatter
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.simulator.bounds import nccl_times
from quadrille.simulator.bounds.equal_places import MOST_PAIRS, place_of
from quadrille.simulator.bounds.nccl_times import LEAST_ITEM_BYTES, NcclTimes
from quadrille.simulator.collectives.nccl.collective import NEUTRAL_SETTINGS, nccl_collective
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import place_ranks
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.routes.routing import Routes, Routing

STAGE, STAGES = 16, 4
OPS = [
    (AllReduce(name="sum", axis="x", buffer="A"), "all_reduce", 8, 1),
    (AllReduce(name="sum", axis="data", buffer="A"), "all_reduce", 4, 4),
    (ReduceScatter(name="scatter", axis="data", source="A", into="B"), "reduce_scatter", 2, 8),
    (AllToAll(name="exchange", axis="data", source="A", into="B"), "all_to_all", 8, 2),
    (Broadcast(name="copy", axis="data", source="A", into="B", root=1), "broadcast", 4, 4),
]


def groups_of_stage(stage, members, stride):
    """The groups of a stage of 16 ranks; neighbours in a group are `stride` ranks apart."""
    ranks = STAGE * stage + np.arange(STAGE)
    return ranks.reshape(-1, members, stride).transpose(0, 2, 1).reshape(-1, members)


def placed(machine, ranks=STAGE * STAGES):
    placement = place_ranks(machine, ranks)
    return placement, routes_of(machine, placement.net)


@pytest.mark.parametrize(("op", "kind", "members", "stride"), OPS)
def test_a_result_in_an_equal_place_is_that_of_its_own_simulation(op, kind, members, stride, monkeypatch):
    machine, grid, simulated = find_machine("h100-superpod"), Grid(data=STAGE * STAGES), []
    placement, routes = placed(machine)
    monkeypatch.setattr(
        nccl_times, "nccl_collective", lambda *given, **named: simulated.append(1) or nccl_collective(*given, **named)
    )
    times, coordinates = NcclTimes(machine, placement, parse_choices("nccl")), Coordinates(grid, {}, {})
    settings = replace(NEUTRAL_SETTINGS, between=machine.device.collectives_between_share)
    for stage in range(STAGES):
        groups = groups_of_stage(stage, members, stride)
        found = times.seconds(op, coordinates, groups, 3e7), times.link_bytes(op, coordinates, groups, 3e7)
        alone = nccl_collective(
            *(kind, 3e7, groups, placement.of_rank, machine, routes),
            root=getattr(op, "root", 0), settings=settings, item_bytes=LEAST_ITEM_BYTES,
        ).result  # fmt: skip
        ends = alone.ends[groups]
        assert found[0] == pytest.approx(ends + (alone.seconds - np.nanmax(ends)), rel=1e-12)
        assert found[1] == pytest.approx(alone.link_bytes, rel=1e-12)
    assert len(simulated) == 1


def test_places_with_other_routes_or_slower_links_differ():
    _, routes = placed(find_machine("h100-superpod"))
    places = [0, 1, 8, 9], [16, 17, 24, 25], [0, 1, 8, 10], [0, 1, 2, 3]
    keys = [place_of(np.array(place), routes).key for place in places]
    assert keys[0] == keys[1] and len({*keys}) == 3
    net = routes.net
    slower = net.bandwidths.copy()
    slower[net.sources == net.endpoint_nodes()[17]] /= 2
    other = Routes(replace(net, bandwidths=slower), routes.routing)
    assert place_of(np.array([16, 17, 24, 25]), other).key != keys[1]
    assert place_of(np.array([0, 1, 8, 9]), other).key == keys[0]


def test_places_are_not_compared_where_routes_depend_on_other_flows_or_links_failed_or_pairs_are_many():
    machine = find_machine("h100-superpod")
    _, routes = placed(machine)
    ends = np.arange(4)
    assert place_of(ends, Routes(routes.net, Routing("adaptive"))) is None
    failed = routes.net.bandwidths.copy()
    failed[-1] = 0
    assert place_of(ends, Routes(replace(routes.net, bandwidths=failed), routes.routing)) is None
    assert place_of(np.arange(int(MOST_PAIRS**0.5) + 1), placed(machine, 512)[1]) is None
