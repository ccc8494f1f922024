"""Whether flows may hold each other back: against the definition, link by link."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.simulator.collectives.run import contends
from quadrille.simulator.symmetry.partition import Flows


@st.composite
def networks(draw):
    """Capacities, and flows between members over some of the links."""
    capacities = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=4)))
    links, ends = st.integers(0, len(capacities) - 1), st.integers(0, 4)
    routes = draw(st.lists(st.lists(links, min_size=1, max_size=3, unique=True), min_size=1, max_size=8))
    sender, receiver = (np.array([draw(ends) for _ in routes]) for _ in range(2))
    offsets = np.cumsum([0, *map(len, routes)])
    entries = np.concatenate(routes)
    return capacities, Flows(sender, receiver, offsets, entries, np.ones(len(entries)), {}), routes


def asked_of(link, ends, routes, alone):
    """What members ask of a link if each drives its greatest flow over it."""
    greatest = {}
    for end, route, rate in zip(ends.tolist(), routes, alone.tolist(), strict=True):
        if link in route:
            greatest[end] = max(greatest.get(end, 0.0), rate)
    return sum(greatest.values())


@pytest.mark.parametrize("roomy", [0, 100])
@given(network=networks())
def test_links_are_short_where_both_sides_may_ask_for_more_than_they_have(roomy, network):
    capacities, flows, routes = network
    alone = np.array([capacities[route].min() for route in routes])
    short = [
        min(asked_of(link, ends, routes, alone) for ends in (flows.sender, flows.receiver)) > capacity * (1 + 1e-9)
        for link, capacity in enumerate(capacities.tolist())
    ]
    assert contends(flows, alone, capacities, roomy=roomy) == any(short)
