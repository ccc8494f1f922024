"""Random small networks of capacities and flows, for tests of rates and end times."""

from math import inf

import numpy as np
from hypothesis import strategies as st

from quadrille.simulator.engine.max_min import Demands

NUMBERS = {
    "ties": st.sampled_from([1.0, 2.0, 3.0, 6.0]),
    "spread": st.floats(0.125, 1024.0, width=16),
}


@st.composite
def networks(draw, most_flows=14):
    """Capacities, one mapping from link to share per flow, weights and caps; many equal numbers or none."""
    numbers = NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))]
    links = draw(st.integers(1, 7))
    row = st.dictionaries(st.integers(0, links - 1), st.one_of(numbers, st.just(1.0)), max_size=4)
    rows = draw(st.lists(row, min_size=1, max_size=most_flows))
    capacities = draw(st.lists(st.one_of(numbers, numbers, st.just(inf)), min_size=links, max_size=links))
    capped = st.one_of(numbers, st.just(inf), st.just(inf))
    caps = [draw(capped if any(capacities[j] < inf for j in used) else numbers) for used in rows]
    weights = draw(st.lists(numbers, min_size=len(rows), max_size=len(rows)))
    return capacities, rows, weights, caps


def arrays(capacities, rows, weights, caps):
    """The arguments of `new_flow_state`."""
    demands = Demands.of(rows)
    return (
        np.array(capacities),
        np.array(demands.offsets),
        np.array(demands.resources, np.int64),
        np.array(demands.coefficients, np.float64),
        np.array(weights),
        np.array(caps),
    )
