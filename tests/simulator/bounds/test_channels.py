"""The channels that a walk at steady rates lists, and the rates that each keeps between."""

import numpy as np
import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.simulator.bounds.channels import list_channels, rate_channels
from quadrille.simulator.bounds.concurrency import concurrency_of
from quadrille.simulator.bounds.group_work import ScheduleWork
from quadrille.simulator.bounds.walk_inputs import rank_groups
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.symmetry.patterns import patterns
from tests.support.toy_machines import leaf_spine

CASES = [
    ("4d", Grid(data=2, z=3, x=2), "own:ring"),
    ("4d", Grid(z=4, y=2), "own:doubling"),
    ("summa", Grid(z=2, x=3), "own:ring"),
    ("cannon", Grid(z=3, x=3), "own:ring"),
    ("2.5d", Grid(z=2, x=2, y=2), "own:double_binary_tree"),
]


def listed(schedule, choices):
    each = [(one.ranks, int(one.ranks[0])) for one in rank_groups(schedule)]
    return list_channels(schedule, ScheduleWork(schedule, choices), each)


@pytest.mark.parametrize(("algorithm", "grid", "collectives"), CASES)
def test_they_are_those_of_the_patterns_that_folding_sees(algorithm, grid, collectives):
    schedule = matmul_schedule(Matmul(26, 34, 22, "float64", "training", panel=5), algorithm, grid)
    choices = parse_choices(collectives)
    found, known = listed(schedule, choices), patterns(schedule, choices, lambda op: ())
    assert channel_set(found) == channel_set(known)


def channel_set(found):
    rows = zip(found.lane.tolist(), found.sender.tolist(), found.receiver.tolist(), strict=True)
    return {(found.lanes[lane].split(" by ")[0], sender, receiver) for lane, sender, receiver in rows}


@pytest.mark.parametrize("overlaps", [frozenset(), frozenset(OVERLAPS)])
def test_the_least_rate_of_all_at_once_fills_no_link_and_alone_a_transfer_is_faster(overlaps):
    plain = matmul_schedule(Matmul(26, 34, 22, "float64", "training"), "4d", Grid(z=2, y=2, x=2))
    schedule, choices = overlap(plain, overlaps), parse_choices("own")
    machine = leaf_spine(4, 2)
    placement = place_ranks(machine, 8)
    busy = concurrency_of(schedule, [schedule.coordinates(0)])
    channels = rate_channels(listed(schedule, choices), placement, routes_of(machine, placement.net), busy)
    typical = channels.typical(np.arange(len(channels.keys)))
    assert (channels.least <= typical).all() and (typical <= channels.most).all()
    assert (channels.least <= channels.on_lane).all()
    for lane in range(len(channels.lanes)):
        own = np.flatnonzero(channels.keys // channels.size**2 == lane)
        rates = np.zeros(len(channels.keys))
        rates[own] = channels.least[own]
        assert (channels.link_bytes(rates) <= channels.capacities * (1 + 1e-12)).all()


def test_a_lane_that_is_busy_with_others_may_get_less_than_when_one_thing_is_done_at_a_time():
    plain = matmul_schedule(Matmul(26, 34, 22, "float64", "training"), "4d", Grid(z=2, y=2, x=2))
    machine, choices = leaf_spine(4, 2), parse_choices("own")
    placement = place_ranks(machine, 8)
    least = []
    for schedule in (plain, overlap(plain, frozenset(OVERLAPS))):
        busy = concurrency_of(schedule, [schedule.coordinates(0)])
        least.append(rate_channels(listed(schedule, choices), placement, routes_of(machine, placement.net), busy).least)
    assert (least[1] <= least[0]).all() and (least[1] < least[0]).any()
