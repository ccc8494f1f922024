"""Many flows at once, against an event loop that solves everything anew at every change."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.simulator.engine import bundles, max_min
from quadrille.simulator.engine.flow_simulation import FlowSet, simulate_flows
from quadrille.simulator.engine.flow_state import new_flow_state
from quadrille.simulator.engine.max_min import Demands
from quadrille.studies.simulator_speed.workloads import random_pairs
from tests.support.draws import examples
from tests.support.random_networks import arrays, networks


def traffic(network, sizes, starts, latencies):
    _, offsets, links, shares, weights, caps = arrays(*network)
    columns = (np.array(column, np.float64) for column in (sizes, starts, latencies))
    return FlowSet(offsets, links, shares, *columns, weights, caps)


def slow_ends(network, sizes, starts, latencies):
    """End of each flow: from change to change, all rates from the reference solver; finish = begin where empty."""
    capacities, rows, weights, caps = network
    begins = [start + latency for start, latency in zip(starts, latencies, strict=True)]
    ends = [begin if size == 0 else None for begin, size in zip(begins, sizes, strict=True)]
    left, now, active = list(sizes), 0.0, []
    waiting = sorted((f for f in range(len(sizes)) if sizes[f] > 0), key=lambda f: begins[f], reverse=True)
    while waiting or active:
        rates = max_min.max_min_rates(
            capacities, Demands.of([rows[f] for f in active]), [weights[f] for f in active], [caps[f] for f in active]
        )
        due = {f: now + left[f] / rate for f, rate in zip(active, rates, strict=True)}
        then = min(*due.values(), begins[waiting[-1]] if waiting else inf, inf)
        ended = {f for f in active if due[f] <= then + 1e-12 * (then - begins[f]) + 1e-15 * then}
        for f, rate in zip(active, rates, strict=True):
            left[f] -= rate * (then - now)
        now, active = then, [f for f in active if f not in ended]
        for f in ended:
            ends[f] = now
        while waiting and begins[waiting[-1]] <= now * (1 + 1e-15):
            active.append(waiting.pop())
    return ends


def busy_seconds(begins, ends):
    """Time in which any of these intervals is open."""
    total, until = 0.0, -inf
    for begin, end in sorted(zip(begins, ends, strict=True)):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


TIMES = {
    "ties": st.sampled_from([0.0, 0.0, 1.0, 2.0]),
    "spread": st.floats(0, 16, width=16),
}
SIZES = {
    "ties": st.sampled_from([0.0, 6.0, 12.0, 12.0]),
    "spread": st.one_of(st.just(0.0), st.floats(0.5, 2000, width=16)),
}


@st.composite
def cases(draw):
    network = draw(networks())
    kind = draw(st.sampled_from(sorted(TIMES)))
    count = len(network[1])
    columns = [draw(st.lists(some, min_size=count, max_size=count)) for some in (SIZES[kind], TIMES[kind], TIMES[kind])]
    return network, *columns


@settings(max_examples=examples(300), deadline=None)
@given(case=cases(), local=st.booleans())
def test_ends_are_those_of_a_loop_that_solves_everything_anew(case, local):
    network, sizes, starts, latencies = case
    found = simulate_flows(np.array(network[0]), traffic(network, sizes, starts, latencies), local=local)
    expected = slow_ends(network, sizes, starts, latencies)
    assert found.finish.tolist() == pytest.approx(expected, rel=1e-9, abs=0)
    for link in range(len(network[0])):
        used = [f for f, row in enumerate(network[1]) if link in row]
        assert found.carried[link] == pytest.approx(sum(network[1][f][link] * sizes[f] for f in used), rel=1e-12)
        moving = [f for f in used if sizes[f] > 0]
        begins = [starts[f] + latencies[f] for f in moving]
        assert found.busy[link] == pytest.approx(busy_seconds(begins, [expected[f] for f in moving]), rel=1e-9)


def test_three_flows_by_hand():
    # 0 and 1 share link 0 (10 B/s), 1 and 2 link 1 (4 B/s): rates 8, 2, 2; 0 ends at 2 s, then 1 and 2 stay at 2.
    network = [10.0, 4.0], [{0: 1.0}, {0: 1.0, 1: 1.0}, {1: 1.0}], [1.0] * 3, [inf] * 3
    found = simulate_flows(np.array(network[0]), traffic(network, [16.0, 8.0, 12.0], [0.0] * 3, [0.0] * 3))
    assert found.finish.tolist() == pytest.approx([2.0, 4.0, 5.0])  # 2 has 4 B left at 4 s, and then all of link 1
    assert found.carried.tolist() == [24.0, 20.0]
    assert found.busy.tolist() == pytest.approx([4.0, 5.0])
    assert found.events == 4


def test_latency_is_paid_once_and_before():
    network = [10.0], [{0: 1.0}, {0: 1.0}], [1.0, 1.0], [inf, inf]
    found = simulate_flows(np.array([10.0]), traffic(network, [10.0, 0.0], [1.0, 1.0], [0.25, 0.5]))
    assert found.finish.tolist() == [2.25, 1.5]
    assert found.busy.tolist() == [1.0]


def test_short_flows_long_after_the_beginning_are_not_lumped_together():
    network = [1e9], [{0: 1.0}] * 2, [1.0] * 2, [inf] * 2
    found = simulate_flows(np.array([1e9]), traffic(network, [1.0, 2.0], [1e5, 1e5], [0.0, 0.0]))
    assert (found.finish - 1e5).tolist() == pytest.approx([2e-9, 3e-9], abs=3e-11)  # the clock's own grain


def test_a_flow_that_nothing_holds_is_refused():
    network = [inf], [{0: 1.0}], [1.0], [inf]
    with pytest.raises(InputError, match="flow 0"):
        simulate_flows(np.array([inf]), traffic(network, [1.0], [0.0], [0.0]))


# W3


def two_to_one(sources, targets):
    """Capacities, and routes of flows between 1,024 GPUs as the pinned cluster has them, links numbered here anew."""
    gpus = 1024
    node, leaf = np.arange(gpus) // 8, np.arange(gpus) // 32
    capacities = np.repeat([450e9, 50e9, 800e9], [2 * gpus, 2 * gpus, 64])
    rows = []
    for s, t in zip(sources.tolist(), targets.tolist(), strict=True):
        if node[s] == node[t]:
            rows.append([s, gpus + t])
        elif leaf[s] == leaf[t]:
            rows.append([2 * gpus + s, 3 * gpus + t])
        else:
            rows.append([2 * gpus + s, 4 * gpus + leaf[s], 4 * gpus + 32 + leaf[t], 3 * gpus + t])
    return capacities, rows


def w3(count, sizes, weighted=False):
    sources, targets, volumes = random_pairs(count, sizes)
    capacities, rows = two_to_one(sources, targets)
    hops = np.array([len(row) for row in rows])
    weights = 1 / (hops * 1e-6) if weighted else np.ones(count)
    offsets, links = np.concatenate([[0], np.cumsum(hops)]), np.concatenate(rows)
    ends = np.zeros(count), hops * 1e-6
    return capacities, FlowSet(offsets, links, np.ones(len(links)), volumes, *ends, weights, np.full(count, inf))


MAKESPANS = {  # ms, of plain and of weighted shares: peers.md, simulation_at_scale.md
    (1000, "equal"): (8.057064, 8.057064),
    (1000, "random"): (6.990658, 6.990658),
    (10_000, "equal"): (29.531900, 29.652134),
    (10_000, "random"): (27.351233, 27.351233),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("count", "sizes"), MAKESPANS)
def test_w3_ends_when_the_peers_say(count, sizes, weighted):
    found = simulate_flows(*w3(count, sizes, weighted))
    assert 1000 * found.finish.max() == pytest.approx(MAKESPANS[count, sizes][weighted], abs=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", ["equal", "random"])
def test_all_ends_of_w3_are_those_of_the_slow_loop(sizes, weighted):
    capacities, given = w3(1000, sizes, weighted)
    rows = [dict.fromkeys(row.tolist(), 1.0) for row in np.split(given.links, given.offsets[1:-1])]
    network = capacities.tolist(), rows, given.weights.tolist(), given.caps.tolist()
    expected = slow_ends(network, given.sizes.tolist(), [0.0] * 1000, given.latencies.tolist())
    assert simulate_flows(capacities, given).finish.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", ["equal", "random"])
def test_what_is_kept_and_bundled_changes_no_end(sizes, weighted):
    capacities, given = w3(3000, sizes, weighted)
    kept, anew = (simulate_flows(capacities, given, local=local) for local in (True, False))
    assert kept.finish.tolist() == pytest.approx(anew.finish.tolist(), rel=1e-9)
    assert kept.busy.tolist() == pytest.approx(anew.busy.tolist(), rel=1e-9)
    assert kept.filled < anew.filled


def test_plain_and_compiled_kernels_give_the_same_ends():
    capacities, given = w3(300, "random")
    plain, compiled = (simulate_flows(capacities, given, compiled_from=least) for least in (301, 0))
    assert compiled.finish.tolist() == pytest.approx(plain.finish.tolist(), rel=1e-13)


# Bundles


@pytest.mark.parametrize("seed", range(6))
def test_bundles_change_no_end_whatever_the_shares_weights_caps_and_starts(seed):
    """Trunks that many flows share in parts, branches, loose flows and caps, compared with filling flow by flow."""
    limits = bundles.BundleLimits(least_flows=0, least_users=8)
    numbers = np.random.default_rng(seed)
    count, branches, trunks = 240, 60, 4
    rows = []
    for _ in range(count):
        row = {int(j): 1.0 for j in numbers.choice(branches, 2, replace=False)}
        if numbers.random() < 0.9:
            first = int(numbers.integers(trunks))
            share = 0.5 if first % 2 else 1.0
            row |= {branches + first: share, branches + (first + 1) % trunks: share}
        rows.append(row)
    capacities = [*numbers.uniform(5, 50, branches), *numbers.uniform(60, 200, trunks)]
    weights = numbers.choice([1.0, 2.0], count).tolist()
    caps = np.where(numbers.random(count) < 0.2, numbers.uniform(1, 5, count), inf).tolist()
    network = capacities, rows, weights, caps
    sizes = numbers.choice([10.0, 20.0, 40.0], count) if seed % 2 else numbers.uniform(10, 90, count)
    given = traffic(network, sizes, numbers.choice([0.0, 1.0], count), numbers.choice([0.0, 0.5], count))
    state = new_flow_state(*arrays(*network))
    made = bundles.new_bundles(state, limits)
    assert bundles.has_bundles(made)
    assert 0 < len(made.members) <= count / bundles.LEAST_MEMBERS
    bundled, anew = (
        simulate_flows(np.array(capacities), given, local=local, compiled_from=0, bundle_limits=limits)
        for local in (True, False)
    )
    assert bundled.finish.tolist() == pytest.approx(anew.finish.tolist(), rel=1e-9)
    expected = slow_ends(network, given.sizes.tolist(), given.starts.tolist(), given.latencies.tolist())
    assert bundled.finish.tolist() == pytest.approx(expected, rel=1e-9)


def test_there_are_no_bundles_where_every_flow_has_trunks_of_its_own():
    network = [10.0] * 3000, [{f: 1.0, (f + 1) % 3000: 1.0} for f in range(3000)], [1.0] * 3000, [inf] * 3000
    assert not bundles.has_bundles(bundles.new_bundles(new_flow_state(*arrays(*network))))
