"""NCCL's trees: one flow up and one down each edge, all at once."""

import numpy as np

from quadrille.algorithms.collectives.nccl.costs import bandwidth
from quadrille.algorithms.errors import InputError
from quadrille.simulator.collectives.collective import CollectiveResult
from quadrille.simulator.collectives.nccl.layout import Laid, fluid
from quadrille.simulator.collectives.node_trees import tree_edges

MOST_FLOWS = 1 << 21
"""Of trees, about 1 kB each."""


def trees(on: Laid) -> tuple[CollectiveResult, int]:
    orders = on.orders()
    if (flows := 4 * len(orders) * on.groups.size) > MOST_FLOWS:
        raise InputError(
            f"NCCL's trees over {on.groups.size} GPUs have {flows} flows; at most {MOST_FLOWS} are simulated: "
            "--collectives nccl:ring is folded"
        )
    part = on.bytes / len(orders) / 2 * on.plan.wire_factor
    places = on.places[on.groups]
    ends = []
    for group, child, parent, _ in tree_edges(on.routes, places, orders):
        down, up = places[group, child], places[group, parent]
        ends += [(down, up), (up, down)]
    sources, targets = (np.concatenate(column) for column in zip(*ends, strict=True))
    caps = on.cap(len(orders)) / 2
    paths = on.without_latency(sources, targets)
    return fluid(on, paths, np.full(len(sources), part), caps, correction=_correction(on)), len(orders)


def _correction(on: Laid) -> float:
    """Of a tree's rate, what NCCL's own correction for short pipelines leaves; another version's plan has its own."""
    if on.settings.planned is not None:
        return 1.0
    speed = bandwidth(on.kind, on.group, on.plan.algorithm, on.plan.protocol)
    carried = on.plan.seconds - on.before
    return min(1.0, on.bytes / speed / carried) if carried > 0 and on.bytes and speed > 0 else 1.0
