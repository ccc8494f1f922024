"""Loads of links over time: by hand on a star, and against the bytes that each simulation counts on its links."""

from dataclasses import replace
from itertools import pairwise

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Receive, Send
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.simulator.link_rates import busiest_links
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.simulate import Shortcuts, Simulator
from quadrille.topologies.find_machine import find_machine
from tests.support.toy_machines import BANDWIDTH, LATENCY, leaf_spine, program_of, star

PROBLEM = Gpt(layers=2, hidden=32, heads=4, sequence=8, vocabulary=64, batch=4)
PIPELINE = gpt_schedule(replace(PROBLEM, micro_batch=1), Grid(pipeline=2, x=2), Scheme4D())
ALL_LINKS = 1000


def predicted(schedule, machine, choices, granularity):
    """The prediction of a schedule, its timeline of all ranks, and the rates of all links."""
    grid, choices = schedule.grid, parse_choices(choices)
    placement = place_ranks(machine, grid.size, "packed", grid)
    prediction = Simulator(
        schedule,
        machine,
        choices=choices,
        threads=None,
        placement="packed",
        shortcuts=Shortcuts(),
        granularity=granularity,
        rank_placement=placement,
    ).run(range(grid.size))
    timeline = prediction.timeline.unrolled().expanded(grid)
    by_model = choices.implementation == "nccl" and granularity != "exact"
    return (
        prediction,
        timeline,
        busiest_links(schedule, choices, placement, timeline, by_model=by_model, most=ALL_LINKS),
    )


def bytes_over_time(rates):
    """The integral of the rate of a link [B]."""
    return sum((end - begin) * share * rates.bandwidth for (begin, share), (end, _) in pairwise(rates.shares))


@pytest.mark.parametrize(
    ("schedule", "machine", "choices", "granularity"),
    [
        (matmul_schedule(Matmul(64, 48, 32), "4d", Grid(z=2, x=4)), leaf_spine(4, 2), "own", "exact"),
        (matmul_schedule(Matmul(64, 48, 32), "4d", Grid(z=2, x=4)), leaf_spine(4, 2), "own:hierarchical", "exact"),
        (matmul_schedule(Matmul(64, 48, 32), "4d", Grid(z=2, x=4)), leaf_spine(4, 2), "own", "collective"),
        (gpt_schedule(PROBLEM, Grid(data=2, x=4), Scheme4D()), find_machine("perlmutter"), "nccl", "collective"),
        (PIPELINE, find_machine("perlmutter"), "nccl", "collective"),
        (PIPELINE, find_machine("perlmutter"), "own", "exact"),
    ],
)
def test_the_integral_of_each_rate_is_what_the_simulation_counts_on_the_link(schedule, machine, choices, granularity):
    prediction, timeline, rates = predicted(schedule, machine, choices, granularity)
    by_load = sorted((each.bytes / each.bandwidth for each in rates), reverse=True)
    assert [each.bytes / each.bandwidth for each in rates] == by_load
    counted = {load.link: load.bytes for load in prediction.links if " of " not in load.link}
    listed = {each.link: each for each in rates}
    assert counted.keys() & listed.keys()
    for link in counted.keys() & listed.keys():
        assert listed[link].bytes == pytest.approx(counted[link], rel=1e-9)
    for each in rates:
        assert bytes_over_time(each) == pytest.approx(each.bytes, rel=1e-6)
        times = [time for time, _ in each.shares]
        assert times == sorted(set(times)) and timeline.start <= times[0] and times[-1] <= timeline.end
        assert each.shares[-1][1] == 0 <= min(share for _, share in each.shares)
        assert all(before[1] != after[1] for before, after in pairwise(each.shares))


def test_a_message_fills_its_links_but_for_its_latency():
    """A message of n bytes over two cables takes 2 latencies and n / bandwidth."""
    tensor, grid, size = Tensor("X", Part("m"), Part("n")), Grid(pipeline=2), 1000 * 1000 * 8
    send = Send(name="send X", axis="pipeline", to=1, source="X")
    receive = Receive(name="receive X", axis="pipeline", sender=0, into="X")
    roles = (Role((send,), "pipeline", 0, 1), Role((receive,), "pipeline", 1, 2))
    schedule = program_of(grid, [tensor], roles=roles, m=1000, n=1000)
    *_, (rates,) = predicted(schedule, star(2), "own", "exact")
    seconds = 2 * LATENCY + size / BANDWIDTH
    assert (rates.links, rates.bandwidth, rates.bytes) == (2, BANDWIDTH, size)
    assert [time for time, _ in rates.shares] == pytest.approx([0, seconds])
    assert [share for _, share in rates.shares] == pytest.approx([size / BANDWIDTH / seconds, 0])


def test_links_whose_bytes_are_not_known_have_no_rates():
    """A rank is missing; a library executes collectives; messages decide the order of passes."""
    schedule, machine = gpt_schedule(PROBLEM, Grid(x=4), Scheme4D()), find_machine("perlmutter")
    placement, own = place_ranks(machine, 4), parse_choices("own")
    _, timeline, rates = predicted(schedule, machine, "own", "exact")
    assert rates
    some = timeline.expanded(schedule.grid, [0, 1, 2])
    assert not busiest_links(schedule, own, placement, some, by_model=False, most=1)
    assert not busiest_links(schedule, parse_choices("library"), placement, timeline, by_model=False, most=1)
    driven = replace(PROBLEM, micro_batch=1, pipeline_schedule="message-driven")
    assert not predicted(gpt_schedule(driven, Grid(pipeline=2), Scheme4D()), machine, "own", "exact")[2]
