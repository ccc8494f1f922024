"""Collectives at scale: the hand formulas, the same answer however they are folded, and the simulator of ops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.collectives.lowering import SETS, lower
from quadrille.simulator.collectives.collective import SimulationOptions, simulate_collective
from quadrille.simulator.collectives.programs import CollectiveJob
from quadrille.simulator.simulate import simulate
from tests.support import toy_machines
from tests.support.draws import examples
from tests.support.toy_networks import LEAF, NIC, NODE, star, two_levels

EXACT = 1e-9
GIB = 2**30


def ring_all_reduce(gpus, size=GIB):
    """W1 of the reference: one ring over all GPUs in rank order."""
    return [CollectiveJob(lower("all_reduce", "ring", gpus).runs(), np.arange(gpus)[None, :], size, item_bytes=4)]


def strided_all_gathers(gpus, size=GIB):
    """W2 of the reference: rings of 16 GPUs a sixteenth of the cluster apart."""
    groups = np.arange(gpus).reshape(16, -1).T.copy()
    return [CollectiveJob(lower("all_gather", "ring", 16).runs(), groups, size, item_bytes=4)]


def agree(one, other):
    assert one.ends == pytest.approx(other.ends, rel=EXACT)
    assert one.seconds == pytest.approx(other.seconds, rel=EXACT)
    assert one.link_bytes == pytest.approx(other.link_bytes, rel=EXACT)


# The hand formulas (reference: peers.md, section 1)


@pytest.mark.parametrize("gpus", [64, 100, 256, 1000, 1024, 4096, 16384])
def test_a_ring_over_all_gpus_takes_what_it_takes_by_hand(gpus):
    capacities, route = two_levels(gpus, 32 * NIC)
    result = simulate_collective(ring_all_reduce(gpus), capacities, route)
    assert result.seconds == pytest.approx(2 * (gpus - 1) * (GIB / gpus / NIC + 4e-6), rel=EXACT)
    assert result.method == "sweep"
    if gpus % LEAF == 0:
        assert result.rank_classes == LEAF


@pytest.mark.parametrize("gpus", [64, 256, 1024, 4096, 16384])
def test_rings_across_an_oversubscribed_spine_take_what_they_take_by_hand(gpus):
    capacities, route = two_levels(gpus, 16 * NIC)
    result = simulate_collective(strided_all_gathers(gpus), capacities, route)
    rate = NIC / 2 if gpus >= 512 else NIC
    latency = 4e-6 if gpus >= 512 else result.seconds / 15 - 2**26 / NIC
    assert result.seconds == pytest.approx(15 * (2**26 / rate + latency), rel=EXACT)
    if gpus >= 1024:
        assert (result.rank_classes, result.flow_classes) == (1, 1)


def test_rings_of_a_small_cluster_do_not_contend():
    capacities, route = two_levels(64, 16 * NIC)
    result = simulate_collective(strided_all_gathers(64), capacities, route)
    assert result.seconds == pytest.approx(15 * (2**26 / NIC + 4e-6), rel=EXACT)


def test_one_slow_nic_breaks_all_symmetry_and_is_named():
    capacities, route = two_levels(1024, 32 * NIC)
    capacities[2 * 1024 + 519] /= 4  # GPU 519 sends out of its node
    result = simulate_collective(ring_all_reduce(1024), capacities, route)
    assert not result.folded
    assert result.not_folded_reason.startswith("link 2567 differs in bandwidth")
    slow, usual = GIB / 1024 / (NIC / 4) + 2e-6, GIB / 1024 / NIC + 4e-6
    assert slow > usual
    assert result.seconds == pytest.approx(2 * 1023 * slow, rel=EXACT)


# The same answer however it is found


@st.composite
def cases(draw):
    """Groups on a small two-level network with a few links of other bandwidths."""
    leaves, node = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 3]))
    leaf = node * draw(st.integers(1, 3))
    gpus = leaves * leaf
    members = draw(st.sampled_from([d for d in range(1, gpus + 1) if gpus % d == 0]))
    ranks = np.arange(gpus)
    groups = ranks.reshape(-1, members) if draw(st.booleans()) else ranks.reshape(members, -1).T
    capacities, route = two_levels(
        gpus, draw(st.sampled_from([0.5, 1.0, 2.0])) * leaf * NIC, node=node, leaf=leaf, nvlink=3 * NIC
    )
    for _ in range(draw(st.integers(0, 2))):
        capacities[draw(st.integers(0, len(capacities) - 1))] *= draw(st.sampled_from([0.5, 0.7]))
    kind = draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all"]))
    name = draw(st.sampled_from(sorted(SETS)))
    size = draw(st.sampled_from([1, 5, 60, 4_000, 10_000_000, 64_000_012]))
    lowered = lower(kind, SETS[name][kind], members, per_node=node, size_bytes=4 * size)
    return (
        [
            CollectiveJob(
                lowered.runs(),
                groups.copy(),
                4.0 * size,
                item_bytes=4,
                crosswise=kind == "all_to_all",
                at_once=lowered.at_once,
            )
        ],
        capacities,
        route,
    )


@given(cases(), st.sampled_from(["even", "exact"]))
@settings(max_examples=examples(150))
def test_folding_changes_neither_the_end_nor_the_end_of_any_rank(case, shards):
    plain = simulate_collective(
        *case, shards=shards, options=SimulationOptions(fold=False, fold_time=False, local=False)
    )
    assert not plain.folded
    assert plain.error_seconds == 0
    for options in (
        SimulationOptions(),
        SimulationOptions(fold=False),
        SimulationOptions(fold_time=False),
        SimulationOptions(fold=False, fold_time=False),
    ):
        agree(simulate_collective(*case, shards=shards, options=options), plain)


@given(cases())
@settings(max_examples=60)
def test_busy_links_are_busy_at_least_as_long_as_their_bytes_take(case):
    result = simulate_collective(*case)
    if result.method == "events":
        assert (result.busy_seconds >= result.link_bytes / case[1] * (1 - EXACT)).all()
    assert ((result.busy_seconds > 0) == (result.link_bytes > 0)).all()
    assert (result.busy_seconds <= result.seconds * (1 + EXACT)).all()


@pytest.mark.parametrize(
    "options",
    [
        SimulationOptions(),
        SimulationOptions(fold=False),
        SimulationOptions(fold_time=False),
        SimulationOptions(fold=False, fold_time=False),
    ],
)
def test_seconds_for_which_a_link_is_busy_do_not_depend_on_folding(options):
    capacities, route = two_levels(1024, 16 * NIC)
    result = simulate_collective(strided_all_gathers(1024), capacities, route, options=options)
    busy = result.busy_seconds[result.link_bytes > 0]
    assert busy == pytest.approx(15 * 2**26 / (NIC / 2), rel=EXACT)


def test_compiled_kernels_give_the_same_answer_as_plain_ones():
    capacities, route = two_levels(96, 2 * NIC)
    capacities[200] *= 0.7
    jobs = [
        CollectiveJob(lower("all_reduce", "ring", 12).runs(), np.arange(96).reshape(12, 8).T.copy(), 1e8, item_bytes=4)
    ]
    for shards in ("even", "exact"):
        plain, compiled, continued = (
            simulate_collective(
                jobs,
                capacities,
                route,
                shards=shards,
                options=SimulationOptions(fold=False, fold_time=False, plain_events=plain_events),
            )
            for plain_events in (1 << 60, 10, 150)  # 96 flows: never, from the first event, after 150 events
        )
        assert plain.method == "events"
        assert plain.events == compiled.events == continued.events
        agree(compiled, plain)
        agree(continued, plain)


def test_a_long_contended_ring_is_folded_in_time():
    """Two rings in opposite directions share links within nodes and across leaves; their steps repeat."""
    gpus = 192
    capacities, route = two_levels(gpus, 1.5 * NIC, leaf=64)
    groups = np.stack([np.arange(gpus), (5 * np.arange(gpus)) % gpus])
    runs = lower("all_reduce", "ring", gpus).runs()
    jobs = [CollectiveJob(runs, np.arange(2 * gpus).reshape(2, gpus), 1e9, item_bytes=4)]
    both = jobs, capacities, route
    slow = simulate_collective(*both, endpoints=groups.ravel(), options=SimulationOptions(fold=False, fold_time=False))
    fast = simulate_collective(*both, endpoints=groups.ravel(), options=SimulationOptions(fold=False))
    assert slow.method == fast.method == "events"
    assert fast.events < slow.events / 2
    agree(fast, slow)


def test_even_sizes_differ_from_exact_ones_by_less_than_an_element_a_step():
    capacities, route = two_levels(40, 32 * NIC)
    exact, even = (
        simulate_collective(ring_all_reduce(40, 4 * 1003), capacities, route, shards=shards).seconds
        for shards in ("exact", "even")
    )
    assert 0 < exact - even < 2 * 39 * 4 / NIC


# The simulator of ops


@pytest.mark.parametrize("members", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("name", sorted(SETS))
@pytest.mark.parametrize("kind", sorted(SETS["ring"]))
def test_all_ranks_end_when_the_simulator_of_ops_says(kind, name, members):
    elements = 3 * members if kind == "all_to_all" else 3001
    elements = 0 if kind == "barrier" else elements
    block = elements * members if kind == "all_to_all" else max(elements, members)
    schedule = toy_machines.collective(kind, members, 8 * block)
    timeline = simulate(schedule, toy_machines.star(members), choices=parse_choices(f"own:{name}")).timeline
    ends = [0.0] * members
    for span in timeline.spans:
        ends[span.rank] = max(ends[span.rank], span.end)
    lowered = lower(kind, SETS[name][kind], members, size_bytes=8 * elements)
    special = {"empty_messages": kind == "barrier", "crosswise": kind == "all_to_all", "at_once": lowered.at_once}
    jobs = [CollectiveJob(lowered.runs(), np.arange(members)[None], 8.0 * elements, item_bytes=8, **special)]
    result = simulate_collective(jobs, *star(members), shards="exact")
    assert result.ends == pytest.approx(ends, rel=EXACT)


@pytest.mark.parametrize("elements", [1, 2, 3, 5])
@pytest.mark.parametrize("name", sorted(SETS))
def test_pieces_without_elements_are_not_sent(name, elements):
    schedule = toy_machines.collective("all_reduce", 5, 8 * elements)
    timeline = simulate(schedule, toy_machines.star(5), choices=parse_choices(f"own:{name}")).timeline
    lowered = lower("all_reduce", SETS[name]["all_reduce"], 5, size_bytes=8 * elements, elements=elements)
    jobs = [CollectiveJob(lowered.runs(), np.arange(5)[None], 8.0 * elements, item_bytes=8)]
    result = simulate_collective(jobs, *star(5), shards="exact")
    assert result.seconds == pytest.approx(timeline.end, rel=EXACT)


# Several rings, caps, latencies


def test_two_channels_with_half_the_bytes_each_take_as_long_as_one_where_links_hold_them():
    capacities, route = star(6)
    one = [CollectiveJob(lower("all_reduce", "ring", 6).runs(), np.arange(6)[None], 6e6)]
    two = [CollectiveJob(lower("all_reduce", "ring", 6).runs(), np.arange(6)[None], 3e6)] * 2
    assert simulate_collective(two, capacities, route).seconds == pytest.approx(
        simulate_collective(one, capacities, route).seconds, rel=EXACT
    )


def test_a_cap_a_latency_and_a_wire_factor_are_what_they_say():
    capacities, route = star(4)
    job = CollectiveJob(
        lower("all_gather", "ring", 4).runs(), np.arange(4)[None], 4e6, cap=0.25e9, latency=5e-6, wire_factor=2
    )
    result = simulate_collective([job], capacities, route)
    assert result.seconds == pytest.approx(3 * (2e6 / 0.25e9 + 7e-6), rel=EXACT)
    assert result.link_bytes == pytest.approx(3 * 2e6)


def test_ranks_of_one_place_exchange_without_links():
    capacities, route = star(2)

    def here_too(sources, targets):
        paths = route(sources, targets)
        keep = np.repeat(sources != targets, 2)
        paths.links, paths.shares = paths.links[keep], paths.shares[keep]
        paths.offsets = np.concatenate([[0], np.cumsum(2 * (sources != targets))])
        paths.latency = np.where(sources != targets, paths.latency, 0.0)
        return paths

    jobs = [CollectiveJob(lower("all_gather", "ring", 4).runs(), np.arange(4)[None], 4e6)]
    for options in (SimulationOptions(), SimulationOptions(fold=False)):
        result = simulate_collective(jobs, capacities, here_too, endpoints=np.array([0, 0, 1, 1]), options=options)
        assert result.seconds == pytest.approx(3 * (1e6 / 1e9 + 2e-6), rel=EXACT)


def test_who_differs_by_an_attribute_is_in_a_class_of_its_own():
    capacities, route = two_levels(64, 32 * NIC)
    jobs = [CollectiveJob(lower("all_gather", "ring", NODE).runs(), np.arange(64).reshape(-1, NODE), 1e6)]
    same = simulate_collective(jobs, capacities, route)
    slow = np.ones(64)
    slow[13] = 0.8
    other = simulate_collective(jobs, capacities, route, rank_columns={"speed": slow})
    assert (same.rank_classes, other.rank_classes) == (1, 1 + NODE)
    agree(same, other)
