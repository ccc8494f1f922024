"""Lowering: from a kind of collective and the name of an algorithm to its steps of point-to-point messages.

Each algorithm is written as steps of one member and as sections of all members (`lowered_collective.py`).  Reductions
are gathers in reverse.

    ring all-gather of 4      recursive doubling of 4     binomial broadcast of 4
    0 → 1 → 2 → 3 → 0         0 ↔ 1   2 ↔ 3               0 → 1
    three times               then 0 ↔ 2   1 ↔ 3          then 0 → 2, 1 → 3

Flat algorithms are in `flat_collectives.py`, double binary trees in `double_binary_trees.py`, node-aware algorithms in
`hierarchical_collectives.py`.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005.
"""

from functools import lru_cache
from typing import get_args

from quadrille.algorithms.collectives import flat_collectives
from quadrille.algorithms.collectives.lowered_collective import CollectiveAlgorithm, Lowered
from quadrille.algorithms.schedule.ops import CollectiveKind


def all_gather(members: int, algorithm: CollectiveAlgorithm) -> Lowered:
    """All-gather: member i starts with piece i; at the end each member holds all pieces."""
    match algorithm:
        case "ring":
            return flat_collectives.ring_all_gather(members)
        case "doubling":
            return flat_collectives.doubling_all_gather(members)
        case _:
            raise _unknown("all_gather", algorithm)


def reduce_scatter(members: int, algorithm: CollectiveAlgorithm) -> Lowered:
    """Reduce-scatter: each member starts with a summand of every piece; member i ends with the sum of piece i."""
    match algorithm:
        case "ring":
            return flat_collectives.ring_reduce_scatter(members)
        case "halving":
            return _renamed("halving", flat_collectives.doubling_all_gather(members).backwards())
        case _:
            raise _unknown("reduce_scatter", algorithm)


def all_reduce(members: int, algorithm: CollectiveAlgorithm) -> Lowered:
    """All-reduce: each member starts with a summand; at the end each holds the sum."""
    match algorithm:
        case "ring":
            return flat_collectives.ring_reduce_scatter(members).then(flat_collectives.ring_all_gather(members))
        case "halving_doubling":
            doubling = flat_collectives.doubling_all_gather(members)
            return _renamed("halving_doubling", doubling.backwards().then(doubling))
        case "doubling":
            return flat_collectives.doubling_all_reduce(members)
        case _:
            raise _unknown("all_reduce", algorithm)


def broadcast(members: int, algorithm: CollectiveAlgorithm, root: int, pieces: int = 1) -> Lowered:
    """Broadcast: the root starts with all pieces; at the end each member holds them.

    Parameters
    ----------
    members : number of members of the group
    algorithm : name of the algorithm
    root : member that has the pieces
    pieces : number of pieces of a pipelined broadcast
    """
    match algorithm:
        case "binomial":
            return flat_collectives.binomial_broadcast(members, root)
        case "pipelined":
            return flat_collectives.pipelined_broadcast(members, root, pieces)
        case _:
            raise _unknown("broadcast", algorithm)


def reduce(members: int, algorithm: CollectiveAlgorithm, root: int, pieces: int = 1) -> Lowered:
    """Reduce, the reverse of the broadcast: each member starts with a summand; at the end the root holds the sum."""
    return broadcast(members, algorithm, root, pieces).backwards()


def all_to_all(members: int, algorithm: CollectiveAlgorithm) -> Lowered:
    """All-to-all: member i sends piece j of its source to j, and receives piece j of its result from j."""
    match algorithm:
        case "direct":
            return flat_collectives.direct_all_to_all(members)
        case "pairwise":
            return flat_collectives.pairwise_all_to_all(members)
        case _:
            raise _unknown("all_to_all", algorithm)


def send_receive(members: int, algorithm: CollectiveAlgorithm) -> Lowered:
    """Send-receive: member i sends its whole buffer to i + 1, and receives that of i - 1, in a ring."""
    if algorithm != "shift":
        raise _unknown("send_receive", algorithm)
    return flat_collectives.shift(members)


def barrier(members: int, algorithm: CollectiveAlgorithm) -> Lowered:
    """Barrier with empty messages: no member ends before all have begun."""
    if algorithm != "dissemination":
        raise _unknown("barrier", algorithm)
    return flat_collectives.dissemination_barrier(members)


def _unknown(kind: str, algorithm: str) -> AssertionError:
    return AssertionError(f"no {kind} by {algorithm}: algorithms are checked where the user's words enter")


def _renamed(algorithm: CollectiveAlgorithm, lowered: Lowered) -> Lowered:
    return Lowered(algorithm, lowered.members, lowered.pieces, lowered.steps, lowered.step, lowered.sections)


SETS: dict[str, dict[CollectiveKind, CollectiveAlgorithm]] = {
    "ring": {
        "all_gather": "ring",
        "reduce_scatter": "ring",
        "all_reduce": "ring",
        "broadcast": "pipelined",
        "reduce": "pipelined",
        "all_to_all": "direct",
        "send_receive": "shift",
        "barrier": "dissemination",
    },
    "doubling": {
        "all_gather": "doubling",
        "reduce_scatter": "halving",
        "all_reduce": "doubling",
        "broadcast": "binomial",
        "reduce": "binomial",
        "all_to_all": "direct",
        "send_receive": "shift",
        "barrier": "dissemination",
    },
    "halving_doubling": {
        "all_gather": "doubling",
        "reduce_scatter": "halving",
        "all_reduce": "halving_doubling",
        "broadcast": "binomial",
        "reduce": "binomial",
        "all_to_all": "direct",
        "send_receive": "shift",
        "barrier": "dissemination",
    },
    "double_binary_tree": {
        "all_gather": "doubling",
        "reduce_scatter": "halving",
        "all_reduce": "double_binary_tree",
        "broadcast": "double_binary_tree",
        "reduce": "double_binary_tree",
        "all_to_all": "direct",
        "send_receive": "shift",
        "barrier": "dissemination",
    },
    "hierarchical": {
        "all_gather": "hierarchical",
        "reduce_scatter": "hierarchical",
        "all_reduce": "hierarchical",
        "broadcast": "hierarchical",
        "reduce": "hierarchical",
        "all_to_all": "direct",
        "send_receive": "shift",
        "barrier": "dissemination",
    },
}
SETS["pairwise"] = SETS["ring"] | {"all_to_all": "pairwise"}
CHUNK_BYTES = 1 << 20
"""Default chunk size of pipelined broadcasts and reduces [B]."""
MOST_CACHED = 512
"""Largest number of cached lowered collectives; a schedule has the same collective in many ops."""
MOST_CHUNKS = 64


@lru_cache(MOST_CACHED)
def lower(
    kind: CollectiveKind,
    algorithm: CollectiveAlgorithm,
    members: int,
    *,
    root: int = 0,
    size_bytes: int = 0,
    per_node: int = 1,
    elements: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Lowered:
    """Returns the steps of a collective.

    Parameters
    ----------
    kind : kind of collective
    algorithm : name of the algorithm
    members : number of members of the group
    root : root of a broadcast or reduce
    size_bytes : size of the whole buffer [B]; it determines the number of chunks
    per_node : neighbouring members that share a node, equal in the whole group; used by hierarchies
    elements : number of elements of the whole buffer; None if it is not known (`is_tiny`)
    chunk_bytes : chunk size of chains and trees [B]
    """
    if elements is not None and is_tiny(kind, algorithm, members, elements):
        algorithm = "doubling"
    match algorithm:
        case "double_binary_tree":
            return _double_binary_tree(kind, members, root, 2 * chunks(members, size_bytes // 2, chunk_bytes))
        case "hierarchical":
            return _hierarchical(kind, members, per_node, root, size_bytes, chunk_bytes)
        case _:
            return _flat(kind, algorithm, members, root, chunks(members, size_bytes, chunk_bytes))


def is_tiny(kind: CollectiveKind, algorithm: CollectiveAlgorithm, members: int, elements: int) -> bool:
    """Whether a ring all-reduce would have empty pieces; the whole buffer then goes by recursive doubling.

    A loss or a norm is one element.  A ring of p members would take 2 (p - 1) steps for it, most of them without data.

    >>> is_tiny("all_reduce", "ring", 8, 7), is_tiny("all_reduce", "ring", 8, 8)
    (True, False)
    """
    return kind == "all_reduce" and algorithm == "ring" and elements < members


def _flat(kind: CollectiveKind, algorithm: CollectiveAlgorithm, members: int, root: int, pieces: int) -> Lowered:
    match kind:
        case "all_gather":
            return all_gather(members, algorithm)
        case "reduce_scatter":
            return reduce_scatter(members, algorithm)
        case "all_reduce":
            return all_reduce(members, algorithm)
        case "broadcast":
            return broadcast(members, algorithm, root, pieces)
        case "reduce":
            return reduce(members, algorithm, root, pieces)
        case "all_to_all":
            return all_to_all(members, algorithm)
        case "send_receive":
            return send_receive(members, algorithm)
        case "barrier":
            return barrier(members, algorithm)


def _double_binary_tree(kind: CollectiveKind, members: int, root: int, pieces: int) -> Lowered:
    from quadrille.algorithms.collectives import double_binary_trees

    match kind:
        case "all_reduce":
            return double_binary_trees.all_reduce(members, pieces)
        case "broadcast":
            return double_binary_trees.broadcast(members, root, pieces)
        case "reduce":
            return double_binary_trees.broadcast(members, root, pieces).backwards()
        case _:
            raise AssertionError(f"no {kind} by double_binary_tree: no set has it")


def _hierarchical(
    kind: CollectiveKind, members: int, per_node: int, root: int, size_bytes: int, chunk_bytes: int
) -> Lowered:

    from quadrille.algorithms.collectives import hierarchical_collectives

    if not hierarchical_collectives.applies(members, per_node):
        return _flat(kind, SETS["ring"][kind], members, root, chunks(members, size_bytes, chunk_bytes))
    along_rails = chunks(members // per_node, size_bytes // per_node, chunk_bytes)
    match kind:
        case "all_gather":
            return hierarchical_collectives.all_gather(members, per_node)
        case "reduce_scatter":
            return hierarchical_collectives.reduce_scatter(members, per_node)
        case "all_reduce":
            return hierarchical_collectives.all_reduce(members, per_node)
        case "broadcast":
            return hierarchical_collectives.broadcast(members, per_node, root, along_rails)
        case "reduce":
            return hierarchical_collectives.reduce(members, per_node, root, along_rails)
        case _:
            raise AssertionError(f"no {kind} by hierarchy: no set has it")


def chunks(members: int, size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Number of chunks of a pipelined buffer; 1 if the chain is a single hop.

    >>> chunks(4, 10 << 20), chunks(2, 10 << 20)
    (10, 1)
    """
    return 1 if members <= 2 else max(1, min(MOST_CHUNKS, size_bytes // chunk_bytes))


assert all(set(names) == set(get_args(CollectiveKind)) for names in SETS.values())
