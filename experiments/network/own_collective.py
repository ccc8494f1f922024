"""Simulation of a collective by Quadrille's own algorithms (ring, tree, hierarchical …), not those of NCCL or MPI."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.collectives.lowered_collective import Lowered
from quadrille.algorithms.collectives.lowering import lower
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import ROOTED
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.collective import CollectiveResult, simulate_collective
from quadrille.simulator.collectives.node_layouts import ring_orders
from quadrille.simulator.collectives.programs import CollectiveJob, Ints
from quadrille.topologies.routes.routing import Routes


@dataclass(frozen=True, slots=True)
class OwnCollectiveResult:
    """A simulated collective.

    Parameters
    ----------
    algorithm, why : algorithm of the collective, and the reason for it
    channels : number of concurrent rings
    shards_bound : largest relative error of the time because shards have the mean size
    """

    result: CollectiveResult
    algorithm: str
    why: str
    channels: int
    shards_bound: float


def simulate_own_collective(
    question: CollectiveQuestion, groups: Ints, places: Ints, routes: Routes
) -> OwnCollectiveResult:
    """The collective, simulated by Quadrille's own algorithms in all groups at once.

    Parameters
    ----------
    question : collective, its size and its algorithm
    groups : ranks of each group [groups, members]
    places : endpoint of each rank [ranks]
    routes : paths between endpoints

    Raises
    ------
    InputError : channels for an algorithm that is not a ring
    """
    sharing = 1
    if question.choices.algorithm(question.kind) == "hierarchical":
        sharing = members_sharing(places[groups], routes.net.per_node)
    lowered, why = lowered_collective(question, sharing)
    rows = [groups]
    if question.channels != 1:
        _check_rings(question, lowered)
        orders = ring_orders(routes, places[groups], question.channels or None)
        rows = [np.take_along_axis(groups, order, axis=1) for order in orders]
        why += f"; {len(rows)} channels on different links" + ("" if question.channels else ", the fewest that pay")
    jobs = _jobs(question, lowered, rows)
    result = simulate_collective(
        jobs,
        routes.net.bandwidths,
        routes.between,
        endpoints=places,
        shards=question.sharding,
        options=question.options,
        link_name=lambda number: routes.net.link(number).name,
    )
    bound = _shards_bound(question, max(job.runs.pieces for job in jobs) * len(jobs))
    return OwnCollectiveResult(result, lowered.algorithm, why, len(jobs), bound)


def lowered_collective(question: CollectiveQuestion, sharing: int) -> tuple[Lowered, str]:
    """The steps of the collective in one group, and the reason for its algorithm.

    Parameters
    ----------
    sharing : number of consecutive members of the group that share a node
    """
    kind, algorithm = question.kind, question.choices.algorithm(question.kind)
    lowered = lower(
        kind,
        algorithm,
        question.group,
        root=question.root,
        size_bytes=question.bytes,
        per_node=sharing,
        chunk_bytes=question.choices.chunk_bytes,
        elements=int(question.bytes // question.item_bytes) if question.item_bytes > 1 else None,
    )
    why = f"{question.choices} has {lowered.algorithm} for {kind}"
    if algorithm == "hierarchical":
        why += f"; {sharing} members of each group share a node" if sharing > 1 else "; members share no node regularly"
    return lowered, why


def _check_rings(question: CollectiveQuestion, lowered: Lowered) -> None:
    """Raises InputError for channels of an algorithm that is not a ring."""
    if question.kind in (*ROOTED, "send_receive", "barrier") or lowered.algorithm != "ring":
        raise InputError(
            f"--channels {question.channels}: rings are laid in channels, not {question.kind} by {lowered.algorithm}; "
            "own:ring all-gather, reduce-scatter and all-reduce are rings"
        )


def _jobs(question: CollectiveQuestion, lowered: Lowered, rows: list[Ints]) -> list[CollectiveJob]:
    """The collective on each channel, with the channel's order of ranks and part of the buffer."""
    runs = lowered.runs()
    return [
        CollectiveJob(
            runs,
            row,
            question.bytes / len(rows),
            item_bytes=question.item_bytes,
            empty_messages=question.kind == "barrier",
            crosswise=question.kind == "all_to_all",
            at_once=lowered.at_once,
        )
        for row in rows
    ]


def members_sharing(places: Ints, per_node: int) -> int:
    """The number of consecutive members that share a node, if equal in all groups on several nodes; else 1.

    >>> members_sharing(np.array([[0, 1, 4, 5]]), 4), members_sharing(np.array([[0, 4, 1, 5]]), 4)
    (2, 1)
    """
    node = places // per_node
    members = node.shape[1]
    changes = node[0] != node[0, 0]
    sharing = int(np.argmax(changes)) if changes.any() else 1
    if sharing <= 1 or members % sharing:
        return 1
    blocks = node.reshape(len(node), -1, sharing)
    same_node = bool((blocks == blocks[:, :, :1]).all())
    different_nodes = bool((np.diff(np.sort(blocks[:, :, 0], axis=1), axis=1) != 0).all())
    return sharing if same_node and different_nodes else 1


def _shards_bound(question: CollectiveQuestion, pieces: int) -> float:
    """The largest relative difference between the size of an exact shard and the mean size."""
    if question.sharding == "exact" or not question.bytes:
        return 0.0
    elements = question.bytes / question.item_bytes
    mean = elements / pieces
    return float(max(np.ceil(mean) / mean - 1, 1 - np.floor(mean) / mean))
