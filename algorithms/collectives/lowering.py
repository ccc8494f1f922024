"""Which of our own algorithms carries out each kind of collective, and the steps that it makes of it."""

from typing import get_args

from quadrille.algorithms.collectives import flat, hierarchies, trees
from quadrille.algorithms.collectives.lowered import Lowered, Name
from quadrille.algorithms.schedule.ops import CollectiveKind


def all_gather(members: int, algorithm: Name) -> Lowered:
    """At the start member i holds piece i, at the end each holds all."""
    match algorithm:
        case "ring":
            return flat.ring(members)
        case "doubling":
            return flat.doubling(members)
        case _:
            raise _unknown("all_gather", algorithm)


def reduce_scatter(members: int, algorithm: Name) -> Lowered:
    """At the start each member holds a summand of every piece, at the end member i holds the sum of piece i."""
    match algorithm:
        case "ring":
            return flat.summing_ring(members)
        case "halving":
            return _renamed("halving", flat.doubling(members).backwards())
        case _:
            raise _unknown("reduce_scatter", algorithm)


def all_reduce(members: int, algorithm: Name) -> Lowered:
    """At the start each member holds a summand, at the end each holds the sum."""
    match algorithm:
        case "ring":
            return flat.summing_ring(members).then(flat.ring(members))
        case "halving_doubling":
            doubling = flat.doubling(members)
            return _renamed("halving_doubling", doubling.backwards().then(doubling))
        case "doubling":
            return flat.exchange_all(members)
        case _:
            raise _unknown("all_reduce", algorithm)


def broadcast(members: int, algorithm: Name, root: int, pieces: int = 1) -> Lowered:
    """At the start the root holds all pieces, at the end each member does."""
    match algorithm:
        case "binomial":
            return flat.binomial(members, root)
        case "pipelined":
            return flat.pipelined(members, root, pieces)
        case _:
            raise _unknown("broadcast", algorithm)


def reduce(members: int, algorithm: Name, root: int, pieces: int = 1) -> Lowered:
    """At the start each member holds a summand, at the end the root holds the sum."""
    return broadcast(members, algorithm, root, pieces).backwards()


def all_to_all(members: int, algorithm: Name) -> Lowered:
    """Member i sends piece j of its source to j, and receives piece j of its result from j."""
    if algorithm != "pairwise":
        raise _unknown("all_to_all", algorithm)
    return flat.pairwise(members)


def barrier(members: int, algorithm: Name) -> Lowered:
    """No member ends before all have begun; its messages are empty."""
    if algorithm != "dissemination":
        raise _unknown("barrier", algorithm)
    return flat.dissemination(members)


def _unknown(kind: str, algorithm: str) -> AssertionError:
    return AssertionError(f"no {kind} by {algorithm}: algorithms are checked where the user's words enter")


def _renamed(algorithm: Name, lowered: Lowered) -> Lowered:
    return Lowered(algorithm, lowered.members, lowered.pieces, lowered.steps, lowered.step, lowered.sections)


SETS: dict[str, dict[CollectiveKind, Name]] = {
    "ring": {
        "all_gather": "ring",
        "reduce_scatter": "ring",
        "all_reduce": "ring",
        "broadcast": "pipelined",
        "reduce": "pipelined",
        "all_to_all": "pairwise",
        "barrier": "dissemination",
    },
    "doubling": {
        "all_gather": "doubling",
        "reduce_scatter": "halving",
        "all_reduce": "doubling",
        "broadcast": "binomial",
        "reduce": "binomial",
        "all_to_all": "pairwise",
        "barrier": "dissemination",
    },
    "halving_doubling": {
        "all_gather": "doubling",
        "reduce_scatter": "halving",
        "all_reduce": "halving_doubling",
        "broadcast": "binomial",
        "reduce": "binomial",
        "all_to_all": "pairwise",
        "barrier": "dissemination",
    },
    "double_binary_tree": {
        "all_gather": "doubling",
        "reduce_scatter": "halving",
        "all_reduce": "double_binary_tree",
        "broadcast": "double_binary_tree",
        "reduce": "double_binary_tree",
        "all_to_all": "pairwise",
        "barrier": "dissemination",
    },
    "hierarchical": {
        "all_gather": "hierarchical",
        "reduce_scatter": "hierarchical",
        "all_reduce": "hierarchical",
        "broadcast": "hierarchical",
        "reduce": "hierarchical",
        "all_to_all": "pairwise",
        "barrier": "dissemination",
    },
}
CHUNK_BYTES = 1 << 20
"""Size of the pieces of a pipelined broadcast or reduce, if nothing else is said [B]."""
MOST_CHUNKS = 64


def lower(
    kind: CollectiveKind,
    algorithm: Name,
    members: int,
    *,
    root: int = 0,
    size_bytes: int = 0,
    per_node: int = 1,
    elements: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Lowered:
    """The collective as steps.

    Parameters
    ----------
    size_bytes : the whole buffer [B]; pipelined ones go in chunks that suit it
    per_node : how many neighbouring members share a node, in all of the group alike: what a hierarchy goes by
    elements : of the whole buffer, where they are known: see `is_tiny`
    chunk_bytes : size of the pieces that follow each other down chains and trees [B]
    """
    if elements is not None and is_tiny(kind, algorithm, members, elements):
        algorithm = "doubling"
    match algorithm:
        case "double_binary_tree":
            return _double_binary_tree(kind, members, root, 2 * chunks(members, size_bytes // 2, chunk_bytes))
        case "hierarchical" if hierarchies.applies(members, per_node):
            return _hierarchical(kind, members, per_node, root, size_bytes, chunk_bytes)
        case "hierarchical":
            return _flat(kind, SETS["ring"][kind], members, root, chunks(members, size_bytes, chunk_bytes))
        case _:
            return _flat(kind, algorithm, members, root, chunks(members, size_bytes, chunk_bytes))


def is_tiny(kind: CollectiveKind, algorithm: Name, members: int, elements: int) -> bool:
    """Whether a ring would have pieces without an element: then the whole sum goes in every step of a doubling.

    A loss or a norm is one element.  A ring of p members would take 2 (p - 1) steps for it, in most of which most
    members have nothing to send.

    >>> is_tiny("all_reduce", "ring", 8, 7), is_tiny("all_reduce", "ring", 8, 8)
    (True, False)
    """
    return kind == "all_reduce" and algorithm == "ring" and elements < members


def _flat(kind: CollectiveKind, algorithm: Name, members: int, root: int, pieces: int) -> Lowered:
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
        case "barrier":
            return barrier(members, algorithm)


def _double_binary_tree(kind: CollectiveKind, members: int, root: int, pieces: int) -> Lowered:
    match kind:
        case "all_reduce":
            return trees.all_reduce(members, pieces)
        case "broadcast":
            return trees.broadcast(members, root, pieces)
        case "reduce":
            return trees.broadcast(members, root, pieces).backwards()
        case _:
            raise AssertionError(f"no {kind} by double_binary_tree: no set has it")


def _hierarchical(
    kind: CollectiveKind, members: int, per_node: int, root: int, size_bytes: int, chunk_bytes: int
) -> Lowered:
    along_rails = chunks(members // per_node, size_bytes // per_node, chunk_bytes)
    match kind:
        case "all_gather":
            return hierarchies.all_gather(members, per_node)
        case "reduce_scatter":
            return hierarchies.reduce_scatter(members, per_node)
        case "all_reduce":
            return hierarchies.all_reduce(members, per_node)
        case "broadcast":
            return hierarchies.broadcast(members, per_node, root, along_rails)
        case "reduce":
            return hierarchies.reduce(members, per_node, root, along_rails)
        case _:
            raise AssertionError(f"no {kind} by hierarchy: no set has it")


def chunks(members: int, size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Pieces in which a pipelined buffer goes down the chain; one where the chain is a single hop.

    >>> chunks(4, 10 << 20), chunks(2, 10 << 20)
    (10, 1)
    """
    return 1 if members <= 2 else max(1, min(MOST_CHUNKS, size_bytes // chunk_bytes))


assert all(set(names) == set(get_args(CollectiveKind)) for names in SETS.values())
