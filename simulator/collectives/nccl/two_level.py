"""All-to-all in two levels, as DeepEP sends tokens to experts: once to each node over the network, then inside it.

    gpu:1 of node 0 → network → gpu:1 of node 2 → NVLink → each GPU of node 2 that has experts of the token

So no message crosses from rail to rail, and a token with several experts on a node crosses the network once. Inside, it
goes once to each GPU that has experts of it (`routed_rows.py`). Both levels are busy at once, as chunks follow each
other, and the links alone limit them. The way back carries the same bytes. On one node there is the level inside alone.

Where experts have uneven loads, each piece has its bytes; the share of rows that several experts have in common is that
of even loads.

Source: DeepSeek-AI, DeepEP, README.md, 2025 (tokens of each node once, forwarded over NVLink).
"""

import numpy as np

from quadrille.algorithms.schedule.routed_rows import RoutedRows
from quadrille.simulator.collectives.collective import CollectiveResult
from quadrille.simulator.collectives.nccl.layout import PlacedPlan, simulate_concurrently
from quadrille.simulator.collectives.programs import Floats, Ints, PairBytes

Flows = tuple[Ints, Ints, Floats]
"""Sources, targets and bytes of flows."""


def simulate_two_levels(
    placed: PlacedPlan, routed: RoutedRows | None, pairs: PairBytes | None = None
) -> CollectiveResult:
    """The all-to-all, after the latency of a step between nodes and of a step inside.

    Parameters
    ----------
    routed : how a router spread the rows; None if every row goes to one rank
    pairs : bytes from each member to each; None for equal pieces
    """
    per_node, members, flows = placed.routes.net.per_node, placed.groups.shape[1], []
    pieces = np.full((members, members), placed.bytes / members) if pairs is None else np.array(pairs)
    for group in placed.endpoints[placed.groups]:
        flows += two_level_flows(group, per_node, pieces, routed)
    sources, targets, sizes = (np.concatenate(column) for column in zip(*flows, strict=True))
    plan = placed.plan
    between = plan.step_latency_inter if placed.group.nodes > 1 else 0.0
    before = plan.base_latency + between + plan.step_latency_intra
    return simulate_concurrently(placed, placed.without_latency(sources, targets), sizes, np.inf, before=before)


def two_level_flows(group: Ints, per_node: int, pieces: Floats, routed: RoutedRows | None) -> list[Flows]:
    """The flows of a group: into each node, and inside it.

    >>> into, inside, *_ = two_level_flows(np.array([0, 1, 2, 3]), 2, np.ones((4, 4)), None)
    >>> [column.tolist() for column in into], [column.tolist() for column in inside]
    ([[2, 3], [0, 1], [2.0, 2.0]], [[0, 1], [1, 0], [2.0, 2.0]])

    Parameters
    ----------
    group : endpoints of the members
    pieces : rows from each member to each, a row for each expert [members, members] [B]
    """
    order = np.argsort(group)
    members, pieces = group[order], pieces[np.ix_(order, order)]
    nodes, first, counts = np.unique(members // per_node, return_index=True, return_counts=True)
    place = np.arange(len(members)) - np.repeat(first, counts)
    node, flows = np.repeat(nodes, counts), list[Flows]()
    for number, begin, count in zip(nodes.tolist(), first.tolist(), counts.tolist(), strict=True):
        here, outside = members[begin : begin + count], node != number
        into, rail = pieces[:, begin : begin + count], place % count
        to_node = into.sum(axis=1) * _share(routed, len(members), count)
        flows.append((members[outside], here[rail[outside]], to_node[outside]))
        holds = np.zeros((count, count))
        np.add.at(holds, np.where(outside, rail, np.arange(len(members)) - begin), into)
        holder, receiver = np.nonzero(~np.eye(count, dtype=bool))
        held = holds[holder, receiver] * _share(routed, len(members), 1)
        flows.append((here[holder], here[receiver], held))
    return flows


def _share(routed: RoutedRows | None, members: int, ranks: int) -> float:
    """The rows that travel to some ranks, each once, for each of the rows for their experts."""
    return 1.0 if routed is None else routed.distinct_share(max(1, routed.experts * ranks // members))
