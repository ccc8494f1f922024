"""Collectives lowered to steps of point-to-point transfers.

Each is written twice, as steps of one member and as sections of all members at
once (`lowered.py`); reductions are gathers run backwards in time.

    ring all-gather of 4      recursive doubling of 4     binomial broadcast of 4
    0 → 1 → 2 → 3 → 0         0 ↔ 1   2 ↔ 3               0 → 1
    three times               then 0 ↔ 2   1 ↔ 3          then 0 → 2, 1 → 3

Here are the flat ones, of `exchanges.py` and `pipelines.py`.  Trees that are
used two at a time are in `trees.py`, groups that know which of their members
share a node in `hierarchies.py`; `lowering.py` picks among all.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005.
"""

from quadrille.algorithms.collectives import exchanges, pipelines
from quadrille.algorithms.collectives.lowered import Lowered, Name


def all_gather(members: int, algorithm: Name) -> Lowered:
    """At the start member i holds piece i, at the end each holds all."""
    match algorithm:
        case "ring":
            return exchanges.ring(members)
        case "doubling":
            return exchanges.doubling(members)
        case _:
            raise _unknown("all_gather", algorithm)


def reduce_scatter(members: int, algorithm: Name) -> Lowered:
    """At the start each member holds a summand of every piece, at the end member i holds the sum of piece i."""
    match algorithm:
        case "ring":
            return exchanges.summing_ring(members)
        case "halving":
            return _renamed("halving", exchanges.doubling(members).backwards())
        case _:
            raise _unknown("reduce_scatter", algorithm)


def all_reduce(members: int, algorithm: Name) -> Lowered:
    """At the start each member holds a summand, at the end each holds the sum."""
    match algorithm:
        case "ring":
            return exchanges.summing_ring(members).then(exchanges.ring(members))
        case "halving_doubling":
            doubling = exchanges.doubling(members)
            return _renamed("halving_doubling", doubling.backwards().then(doubling))
        case "doubling":
            return exchanges.exchange_all(members)
        case _:
            raise _unknown("all_reduce", algorithm)


def broadcast(members: int, algorithm: Name, root: int, pieces: int = 1) -> Lowered:
    """At the start the root holds all pieces, at the end each member does."""
    match algorithm:
        case "binomial":
            return pipelines.binomial(members, root)
        case "pipelined":
            return pipelines.pipelined(members, root, pieces)
        case _:
            raise _unknown("broadcast", algorithm)


def reduce(members: int, algorithm: Name, root: int, pieces: int = 1) -> Lowered:
    """At the start each member holds a summand, at the end the root holds the sum."""
    return broadcast(members, algorithm, root, pieces).backwards()


def all_to_all(members: int, algorithm: Name) -> Lowered:
    """Member i sends piece j of its source to j, and receives piece j of its result from j."""
    if algorithm != "pairwise":
        raise _unknown("all_to_all", algorithm)
    return exchanges.pairwise(members)


def barrier(members: int, algorithm: Name) -> Lowered:
    """No member ends before all have begun; its messages are empty."""
    if algorithm != "dissemination":
        raise _unknown("barrier", algorithm)
    return exchanges.dissemination(members)


def _unknown(kind: str, algorithm: str) -> AssertionError:
    return AssertionError(f"no {kind} by {algorithm}: algorithms are checked where the user's words enter")


def _renamed(algorithm: Name, lowered: Lowered) -> Lowered:
    return Lowered(algorithm, lowered.members, lowered.pieces, lowered.steps, lowered.step, lowered.sections)
