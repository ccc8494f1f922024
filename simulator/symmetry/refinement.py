"""Colour refinement (1-dimensional Weisfeiler-Leman) by hashes: the rounds, and the first rank without an equal.

A colour is a 64-bit hash. What is ordered (sender, receiver) is salted; bags (links
of a flow, flows of a link) are sums of mixed colours. Collisions are unlikely and
not trusted: `fold.py` checks the result.

Source of the mixing function: the finaliser of SplitMix64, Steele, Lea, Flood,
"Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quadrille.simulator.symmetry.partition import (
    COLUMN,
    CROSSING,
    LINK,
    MANY,
    RECEIVED,
    RECEIVER,
    SENDER,
    SENT,
    SHARE,
    Columns,
    Floats,
    Flows,
    Hashes,
    Ints,
)


@dataclass(slots=True)
class Refined:
    """The colours of ranks, flows and links after some rounds of refinement.

    Parameters
    ----------
    classes : number of classes of flows
    settled : whether no class split in the last round
    alone : the first rank that was a class by itself, and after how many rounds; None if there was none
    """

    ranks: Hashes
    flows: Hashes
    links: Hashes
    rounds: int = 0
    classes: int = 0
    settled: bool = False
    alone: tuple[int, int] | None = None


def refine(
    ranks: Columns, flows: Flows, links: Columns, *, most_rounds: int, most_classes: int, compiled_from: int = MANY
) -> Refined:
    """Rounds of refinement until no class splits, or there are too many rounds or classes.

    A link that one flow crosses tells that flow nothing after the first round, so
    it is coloured at the end; most links of a cluster are such.

    Parameters
    ----------
    compiled_from : number of entries from which compiled kernels go flow by flow
    """
    colours = Refined(_initial_colours(ranks), _initial_colours(flows.columns, flows.count), _initial_colours(links))
    rounds = _compiled_rounds(flows, colours) if len(flows.links) >= compiled_from else _ArrayRounds(flows, colours)
    while not colours.settled and colours.rounds < most_rounds and colours.classes <= most_classes:
        classes = rounds.another()
        colours.rounds += 1
        colours.settled = classes == colours.classes
        colours.classes = classes
        if colours.alone is None:
            colours.alone = _first_single(colours.ranks, colours.rounds)
    rounds.finish()
    return colours


class Rounds(Protocol):
    """Rounds of refinement, over whole arrays or flow by flow."""

    def another(self) -> int:
        """Does another round; returns the number of classes of flows."""

    def finish(self) -> None:
        """Colours the links that one flow crosses."""


def _compiled_rounds(flows: Flows, colours: Refined) -> Rounds:
    """The rounds flow by flow, for which Numba is loaded."""
    from quadrille.simulator.symmetry.flow_kernels import CompiledRounds

    ones = (flows.shares == 1.0).all()
    weights = np.zeros(0, dtype=np.uint64) if ones else _weights(flows.shares)
    return CompiledRounds(flows, (colours.flows, colours.ranks, colours.links), weights)


class _ArrayRounds:
    """The rounds with whole arrays: sums over the links of each flow, and the flows of each link and each rank.

    Links that one flow crosses are kept apart from links that several flows share.
    """

    def __init__(self, flows: Flows, colours: Refined) -> None:
        ranks, links = len(colours.ranks), len(colours.links)
        self._colours, self._sender, self._receiver = colours, flows.sender, flows.receiver
        owner = flows.entry_flows()
        shared = np.bincount(flows.links, minlength=links) > 1
        is_shared = shared[flows.links]
        weights = _weights(flows.shares)
        self._flows = flows.count
        self._own = flows.links[~is_shared], owner[~is_shared], weights[~is_shared]
        crossed, owner, self._weights = flows.links[is_shared], owner[is_shared], weights[is_shared]
        self._links, self._crossed = np.flatnonzero(shared), (np.cumsum(shared) - 1)[crossed]
        self._offsets = _offsets(owner, flows.count)
        order, self._link_offsets = _group_by_owner(self._crossed, len(self._links))
        self._crossing, self._weights_by_link = owner[order], self._weights[order]
        self._sent, self._sent_offsets = _group_by_owner(flows.sender, ranks)
        self._received, self._received_offsets = _group_by_owner(flows.receiver, ranks)
        colours.flows += self.own_links_of_flows(_hash(colours.links + LINK))

    def another(self) -> int:
        """Executes another round; returns the number of flow classes."""
        colours = self._colours
        colours.flows = _hash(
            3 * colours.flows
            + _hash(colours.ranks + SENDER)[self._sender]
            + _hash(colours.ranks + RECEIVER)[self._receiver]
            + self.links_of_flows(colours.links)
        )
        colours.ranks = _hash(
            3 * colours.ranks + self.sent(_hash(colours.flows + SENT)) + self.received(_hash(colours.flows + RECEIVED))
        )
        self.recolour(colours.links, colours.flows)
        return _count_distinct(colours.flows)

    def finish(self) -> None:
        """Colours the links that one flow crosses."""
        self.recolour_own(self._colours.links, self._colours.flows)

    def own_links_of_flows(self, links: Hashes) -> Hashes:
        """Sums over the links that only one flow crosses, for each flow."""
        own, owner, weights = self._own
        return _sums(links[own] * weights, _offsets(owner, self._flows))

    def links_of_flows(self, links: Hashes) -> Hashes:
        """Sums over the shared links of each flow."""
        seen = _hash(links[self._links] + LINK)
        return _sums(seen[self._crossed] * self._weights, self._offsets)

    def recolour(self, links: Hashes, flows: Hashes) -> None:
        """Colours the links that several flows share."""
        seen = _hash(flows + CROSSING)[self._crossing] * self._weights_by_link
        links[self._links] = _hash(3 * links[self._links] + _sums(seen, self._link_offsets))

    def recolour_own(self, links: Hashes, flows: Hashes) -> None:
        """Colours the links that one flow crosses."""
        own, owner, weights = self._own
        links[own] = _hash(3 * links[own] + _hash(flows + CROSSING)[owner] * weights)

    def sent(self, flows: Hashes) -> Hashes:
        """Sums over the flows that each rank sends."""
        return _sums(flows[self._sent], self._sent_offsets)

    def received(self, flows: Hashes) -> Hashes:
        """Sums over the flows that each rank receives."""
        return _sums(flows[self._received], self._received_offsets)


def _weights(shares: Floats) -> Hashes:
    """An odd factor for each share, with which a bag takes a colour."""
    if (shares == 1.0).all():
        return np.ones(len(shares), dtype=np.uint64)
    return _hash(np.ascontiguousarray(shares).view(np.uint64) + SHARE) | np.uint64(1)


def _offsets(owners: Ints, count: int) -> Ints:
    """The index of the first entry of each owner, and the number of entries [owners + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))])


def _group_by_owner(owners: Ints, count: int) -> tuple[Ints, Ints]:
    """Indices sorted by owner, and where those of each owner begin."""
    entries = max(1, len(owners))
    order = np.sort(owners * entries + np.arange(len(owners))) % entries  # four times as fast as argsort
    return order, _offsets(owners, count)


def _sums(values: Hashes, offsets: Ints) -> Hashes:
    """Sums of values[offsets[i] : offsets[i + 1]], modulo 2^64."""
    running = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values, out=running[1:])
    sums: Hashes = running[offsets[1:]] - running[offsets[:-1]]
    return sums


def _hash(colours: Hashes) -> Hashes:
    """The hash of each colour; the argument is overwritten."""
    colours ^= colours >> np.uint64(30)
    colours *= np.uint64(0xBF58476D1CE4E5B9)
    colours ^= colours >> np.uint64(27)
    colours *= np.uint64(0x94D049BB133111EB)
    colours ^= colours >> np.uint64(31)
    return colours


def _initial_colours(columns: Columns, count: int = 0) -> Hashes:
    """One colour for all attributes of a thing; -0 and 0 are the same number."""
    colours = np.zeros(count or len(next(iter(columns.values()))), dtype=np.uint64)
    for values in columns.values():
        numbers = np.asarray(values, dtype=np.float64 if values.dtype == np.float64 else np.int64) + 0
        colours = _hash(3 * colours + _hash(numbers.view(np.uint64) + COLUMN))
    return colours


def _count_distinct(colours: Hashes) -> int:
    """Number of different colours."""
    ordered = np.sort(colours)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(1, len(ordered))


def _first_single(colours: Hashes, rounds: int) -> tuple[int, int] | None:
    """The first rank whose colour no other rank has, with the number of rounds."""
    ordered = np.sort(colours)
    differs = np.concatenate([[True], ordered[1:] != ordered[:-1], [True]])
    single = ordered[differs[1:] & differs[:-1]]
    return (int(np.flatnonzero(np.isin(colours, single))[0]), rounds) if len(single) else None
