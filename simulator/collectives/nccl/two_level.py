"""All-to-all in two levels, as DeepEP sends tokens to experts: once to each node over the network, then inside it.

    gpu:1 of node 0 → network → gpu:1 of node 2 → NVLink → each GPU of node 2 that has experts of the token

So no message crosses from rail to rail, and a token with several experts on a node crosses the network once. Inside, it
goes once to each GPU that has experts of it (`routed_rows.py`). Both levels are busy at once, as chunks follow each
other, and the links alone limit them. The way back carries the same bytes.

Source: DeepSeek-AI, DeepEP, README.md, 2025 (tokens of each node once, forwarded over NVLink).
"""

import numpy as np

from quadrille.algorithms.schedule.routed_rows import RoutedRows
from quadrille.simulator.collectives.collective import CollectiveResult
from quadrille.simulator.collectives.nccl.layout import PlacedPlan, simulate_concurrently
from quadrille.simulator.collectives.programs import Floats, Ints

Flows = tuple[Ints, Ints, Floats]
"""Sources, targets and bytes of flows."""


def simulate_two_levels(placed: PlacedPlan, routed: RoutedRows | None) -> CollectiveResult:
    """The all-to-all, after the latency of a step between nodes and of a step inside.

    Parameters
    ----------
    routed : how a router spread the rows; None if every row goes to one rank
    """
    per_node, flows = placed.routes.net.per_node, []
    for group in placed.endpoints[placed.groups]:
        flows += two_level_flows(group, per_node, placed.bytes, routed)
    sources, targets, sizes = (np.concatenate(column) for column in zip(*flows, strict=True))
    plan = placed.plan
    before = plan.base_latency + plan.step_latency_inter + plan.step_latency_intra
    return simulate_concurrently(placed, placed.without_latency(sources, targets), sizes, np.inf, before=before)


def two_level_flows(group: Ints, per_node: int, size: float, routed: RoutedRows | None) -> list[Flows]:
    """The flows of a group: into each node, and inside it.

    >>> into, inside, *_ = two_level_flows(np.array([0, 1, 2, 3]), 2, 4.0, None)
    >>> [column.tolist() for column in into], [column.tolist() for column in inside]
    ([[2, 3], [0, 1], [2.0, 2.0]], [[0, 1], [1, 0], [2.0, 2.0]])

    Parameters
    ----------
    group : endpoints of the members
    size : buffer of a member [B]
    """
    members = np.sort(group)
    nodes, first, counts = np.unique(members // per_node, return_index=True, return_counts=True)
    place = np.arange(len(members)) - np.repeat(first, counts)
    node, pair, flows = np.repeat(nodes, counts), size / len(members), []
    for number, begin, count in zip(nodes.tolist(), first.tolist(), counts.tolist(), strict=True):
        here, outside = members[begin : begin + count], node != number
        rail = place[outside] % count
        to_node = pair * count * _share(routed, len(members), count)
        flows.append((members[outside], here[rail], np.full(len(rail), to_node)))
        holds = (1 + np.bincount(rail, minlength=count)) * pair * _share(routed, len(members), 1)
        away = np.flatnonzero(~np.eye(count, dtype=bool).ravel())
        flows.append((here[away // count], here[away % count], holds[away // count]))
    return flows


def _share(routed: RoutedRows | None, members: int, ranks: int) -> float:
    """The rows that travel to some ranks, each once, for each of the rows for their experts."""
    return 1.0 if routed is None else routed.distinct_share(max(1, routed.experts * ranks // members))
