"""Rates that are kept up to date as flows begin and end, against a solver that starts anew each time."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.simulator.engine import max_min
from quadrille.simulator.engine import rates as sharing
from quadrille.simulator.engine.kernel_compiler import compile_kernels
from quadrille.simulator.engine.max_min import Demands
from quadrille.simulator.engine.rates import as_lists, begin_flow, end_flow, new_flow_state, update_rates
from tests.support.draws import examples
from tests.support.random_networks import arrays, networks


def expected_rates(network, active):
    """Rates of these flows alone, from the plain reference solver."""
    capacities, rows, weights, caps = network
    used = [rows[f] for f in active]
    return max_min.max_min_rates(capacities, Demands.of(used), [weights[f] for f in active], [caps[f] for f in active])


def check_all_held(network, active, rates):
    """Every flow is at its cap, or on a full link where no flow has a higher level; no link carries too much."""
    capacities, rows, weights, caps = network
    load = [sum(rows[f].get(j, 0.0) * rates[f] for f in active) for j in range(len(capacities))]
    assert all(used <= capacity * (1 + 1e-9) for used, capacity in zip(load, capacities, strict=True))
    for f in active:
        level = rates[f] / weights[f]
        holders = [
            j
            for j in rows[f]
            if load[j] >= capacities[j] * (1 - 1e-9)
            and all(rates[g] / weights[g] <= level * (1 + 1e-9) for g in active if j in rows[g])
        ]
        assert holders or rates[f] >= caps[f] * (1 - 1e-9)


@settings(max_examples=examples(300), deadline=None)
@given(network=networks(), local=st.booleans(), data=st.data())
def test_rates_after_any_begins_and_ends_are_max_min(network, local, data):
    state = as_lists(new_flow_state(*arrays(*network), local=local))
    count = len(network[1])
    active, before = set(), [0.0] * count
    for _ in range(data.draw(st.integers(1, 8))):
        for flow in data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=6)):
            (end_flow if flow in active else begin_flow)(state, flow)
            active ^= {flow}
        changed = [0] * count
        told = set(changed[: update_rates(state, changed)])
        those = sorted(active)
        assert [state.rate[f] for f in those] == pytest.approx(expected_rates(network, those), rel=1e-9, abs=0)
        check_all_held(network, those, state.rate)
        assert {f for f in those if abs(state.rate[f] - before[f]) > 1e-12 * state.rate[f]} <= told <= active
        assert all(state.rate[f] == 0 for f in range(count) if f not in active)
        before = list(state.rate)


@pytest.fixture(scope="module")
def twins():
    return compile_kernels(sharing.KERNELS)


def large_network(flows, links, seed, ties):
    numbers = np.random.default_rng(seed)
    rows = [
        {int(j): 1.0 if ties else float(numbers.uniform(0.1, 2)) for j in numbers.choice(links, 3, replace=False)}
        for _ in range(flows)
    ]
    capacities = [60.0] * links if ties else numbers.uniform(20, 100, links).tolist()
    weights = [1.0] * flows if ties else numbers.uniform(0.5, 2, flows).tolist()
    return capacities, rows, weights, [inf] * flows


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize(("flows", "links"), [(600, 40), (600, 900)])
def test_compiled_kernels_keep_rates_of_large_networks_exact(twins, flows, links, ties):
    network = large_network(flows, links, 11, ties)
    state = new_flow_state(*arrays(*network))
    numbers = np.random.default_rng(12)
    active, changed = set(), np.zeros(flows, np.int64)
    for step in range(60):
        for flow in numbers.choice(flows, flows // 2 if step == 0 else 2, replace=False).tolist():
            twins["end_flow" if flow in active else "begin_flow"](state, flow)
            active ^= {flow}
        twins["update_rates"](state, changed)
        those = sorted(active)
        assert state.rate[those].tolist() == pytest.approx(expected_rates(network, those), rel=1e-9, abs=0)
    if links > flows:  # loosely coupled: what changes stays near
        assert state.counts[sharing.STAYED_LOCAL] > 30


def test_compiled_and_plain_kernels_give_the_very_same_rates(twins):
    network = large_network(80, 30, 3, ties=False)
    plain, fast = as_lists(new_flow_state(*arrays(*network))), new_flow_state(*arrays(*network))
    changed = [0] * 80
    for flow in range(80):
        begin_flow(plain, flow)
        twins["begin_flow"](fast, flow)
        if flow % 7 == 0:
            update_rates(plain, changed)
            twins["update_rates"](fast, np.zeros(80, np.int64))
            assert fast.rate.tolist() == plain.rate


def test_a_distant_begin_fills_only_its_neighbours_again():
    # 100 pairs of flows, each pair on a link of its own.
    network = [8.0] * 100, [{f // 2: 1.0} for f in range(200)], [1.0] * 200, [inf] * 200
    state = as_lists(new_flow_state(*arrays(*network)))
    for flow in range(199):
        begin_flow(state, flow)
    changed = [0] * 200
    update_rates(state, changed)
    filled = state.counts[sharing.FILLED]
    begin_flow(state, 199)
    assert update_rates(state, changed) == 2
    assert sorted(changed[:2]) == [198, 199]
    assert state.rate[198:] == [4.0, 4.0]
    assert state.counts[sharing.FILLED] - filled <= 4


def test_links_that_cannot_fill_are_left_out():
    # Link 1 could carry both flows at what link 0 gives them; link 2 is infinite.
    network = [10.0, 25.0, inf], [{0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 1.0}], [1.0, 1.0], [inf, inf]
    state = new_flow_state(*arrays(*network))
    assert set(state.links.tolist()) == {0}


def test_of_two_equal_links_one_is_kept():
    state = new_flow_state(*arrays([10.0, 10.0], [{0: 1.0, 1: 1.0}], [1.0], [inf]))
    assert len(state.links) == 1


def test_a_flow_that_nothing_holds_is_refused():
    with pytest.raises(InputError, match="flow 1 has neither a finite cap nor a link of finite bandwidth"):
        new_flow_state(*arrays([inf, 1.0], [{1: 1.0}, {0: 1.0}], [1.0, 1.0], [inf, inf]))


def test_a_flow_may_begin_again():
    state = new_flow_state(*arrays([10.0], [{0: 1.0}, {0: 1.0}], [1.0, 1.0], [inf, inf]))
    changed = np.zeros(2, np.int64)
    for expected in ([10.0, 0.0], [5.0, 5.0], [0.0, 10.0], [5.0, 5.0]):
        for flow, rate in enumerate(expected):
            if (rate > 0) != (state.rate[flow] > 0):
                (begin_flow if rate else end_flow)(state, flow)
        update_rates(state, changed)
        assert state.rate.tolist() == expected
