"""Routing: which of the ways a flow takes.

    shortest   one way, by destination: D-mod-k on trees, dimension order on tori
    minimal    the same, by its name on dragonflies
    spray      an equal share of the flow on every shortest way (packet spraying; `spraying.py`)
    ecmp       one shortest way, by a hash of source, target and seed
    valiant    one detour by way of a group (dragonflies) or router (tori, meshes, rings)
               drawn by a hash of source, target and seed
    adaptive   the minimal way or that detour, by load (dragonflies; `adaptive.py`)
    balanced   shares on the minimal way and on a detour by every other group (dragonflies; `balanced.py`)

A topology's structure gives the ways (`structured_paths.py`).  Where a link of the chosen
way has failed, the next one in order is taken; where all have (or the next
`MOST_WAYS`), or where there is no structure, ways are searched (`search.py`).  A detour with a failed link
is drawn again, up to `DRAWS` times, and then given up for the shortest way.
Nothing here grows with the square of the number of places.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.routes.paths import Paths, joined, put_rows
from quadrille.topologies.structured_paths import Ways, detours

if TYPE_CHECKING:
    from quadrille.topologies.routes.adaptive import AdaptiveChoices
    from quadrille.topologies.routes.grouped import Grouped
    from quadrille.topologies.routes.search import SearchedWays
    from quadrille.topologies.routes.spraying import Spraying

Rule = Literal["shortest", "minimal", "spray", "ecmp", "valiant", "adaptive", "balanced"]
SEEDED = ("ecmp", "valiant", "adaptive")

DRAWS = 16
WAYS_AT_ONCE = 1 << 14
PAIRS_AT_ONCE = 1 << 14
"""Of so many pairs, what is worked out stays in the cache."""
SEED = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Routing:
    """A rule, and the seed of its hash."""

    rule: Rule = "shortest"
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.rule}:{self.seed}" if self.rule in SEEDED else self.rule


def parse_routing(text: str, offered: Sequence[Rule] = get_args(Rule)) -> Routing:
    """A rule, and for those that hash `:SEED`.

    >>> parse_routing("ecmp:7"), str(parse_routing("valiant"))
    (Routing(rule='ecmp', seed=7), 'valiant:0')

    Parameters
    ----------
    offered : the rules that are named where the word is none

    Raises
    ------
    InputError : another word
    """
    word, colon, seed = text.partition(":")
    for rule in get_args(Rule):
        if word == rule and (not colon or (rule in SEEDED and SEED.fullmatch(seed))):
            return Routing(rule, int(seed or 0))
    seeded = ", ".join(f"{rule}:SEED" for rule in SEEDED if rule in offered)
    raise InputError(f"routing {text!r}: accepted are {', '.join(offered)}, and {seeded}")


class Routes:
    """Routes through one network, between places given by number.

    >>> from quadrille.topologies.families.star import star
    >>> paths = Routes(star(3, bandwidth=1e9, latency=1e-6)).between([0, 1], [2, 1])
    >>> paths.offsets.tolist(), paths.links.tolist(), paths.latency.tolist()
    ([0, 2, 2], [0, 5], [2e-06, 0.0])
    """

    def __init__(self, net: Network, routing: Routing = Routing()) -> None:
        self.net = net
        self.routing = routing

    @cached_property
    def _search(self) -> "SearchedWays":
        from quadrille.topologies.routes.search import SearchedWays

        return SearchedWays(self.net)

    def between(self, sources: "Ints | list[int]", targets: "Ints | list[int]") -> Paths:
        """The paths of flows from sources[f] to targets[f]; one from a place to itself has no links.

        Raises
        ------
        InputError : a place that is not there, or no way between the two
        """
        sources, targets = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
        self._check(sources, targets)
        match self.routing.rule:
            case "shortest" | "minimal" | "ecmp":
                starts = range(0, max(1, len(sources)), PAIRS_AT_ONCE)
                parts = [slice(start, start + PAIRS_AT_ONCE) for start in starts]
                return joined([self._paths(self._shortest(sources[part], targets[part])) for part in parts])
            case "spray":
                return self._sprayed(sources, targets)
            case "valiant":
                return self._paths(self._detoured(sources, targets))
            case "adaptive":
                return self._paths(self._adapted(sources, targets))
            case "balanced":
                return self._balanced(sources, targets)
            case unknown:
                assert_never(unknown)

    def _shortest(self, sources: Ints, targets: Ints) -> Ints:
        """Links of one shortest way of each pair [pairs, hops]."""
        ways: Ways = self.net.ways or self._search
        return self._surviving(ways, sources, targets, self._chosen(ways, sources, targets))

    def _check(self, sources: Ints, targets: Ints) -> None:
        places = self.net.place_count
        for ends in (sources, targets):
            wrong = ends[(ends < 0) | (ends >= places)]
            if len(wrong):
                raise InputError(f"place {wrong[0]}: topology {self.net.name!r} has {places}, from 0")

    def _chosen(self, ways: Ways, sources: Ints, targets: Ints) -> Ints:
        if self.routing.rule == "ecmp":
            counts = ways.counts(sources, targets)
            from quadrille.topologies.routes.hashing import hashed

            return (hashed(sources, targets, self.routing.seed) % counts.astype(np.uint64)).astype(np.int64)
        return ways.usual(sources, targets)

    def _surviving(self, ways: Ways, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the chosen ways; the next way in order, or a searched one, where a link has failed."""
        table = ways.links(sources, targets, chosen)
        broken = np.flatnonzero(self._broken(table))
        if not len(broken):
            return table
        counts = ways.counts(sources, targets)
        if ways is not self._search:
            self._search.check_joined(sources[broken], targets[broken])
        tried, more = 1, 1
        from quadrille.topologies.routes.spraying import MOST_WAYS

        while tried < MOST_WAYS and len(again := broken[counts[broken] > tried]):
            # The next few of each pair at once, of which the first that is whole is taken.
            following = (chosen[again, None] + np.arange(tried, tried + more)) % counts[again, None]
            found = ways.links(np.repeat(sources[again], more), np.repeat(targets[again], more), following.ravel())
            whole = ~self._broken(found).reshape(following.shape)
            first, mended = whole.argmax(axis=1) + np.arange(len(again)) * more, whole.any(axis=1)
            table = put_rows(table, again[mended], found[first[mended]])
            broken = np.setdiff1d(broken, again[mended])
            tried, more = tried + more, max(1, min(2 * more, WAYS_AT_ONCE // len(again)))
        if len(broken):
            detour = self._search.usual(sources[broken], targets[broken])
            table = put_rows(table, broken, self._search.links(sources[broken], targets[broken], detour))
        return table

    def _broken(self, table: Ints) -> NDArray[np.bool_]:
        """Which paths have a link that has failed [pairs]."""
        failed = self.net.failed
        if not failed.any():
            return np.zeros(len(table), dtype=bool)
        return np.asarray((failed[table] & (table >= 0)).any(axis=1))

    def _paths(self, table: Ints) -> Paths:
        """One path a flow, from a table of links [flows, hops]."""
        lengths, latency = np.zeros(len(table), dtype=np.int64), np.zeros(len(table))
        for column in table.T:
            lengths += column >= 0
            latency += self._latencies[column]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        links = table[table >= 0]
        return Paths(offsets, links, np.ones(len(links)), latency)

    @cached_property
    def _latencies(self) -> Floats:
        """Of each link, and behind them that of none, whose number is -1 [s]."""
        return np.append(self.net.latencies, 0.0)

    # Detours

    def _detoured(self, sources: Ints, targets: Ints) -> Ints:
        """Links of one detour of each pair [pairs, hops].

        Raises
        ------
        InputError : a topology that has none
        """
        ways, rule = self.net.ways, self.routing.rule
        known = None if ways is None else detours(ways)
        if ways is None or known is None:
            accepted = (
                "dragonfly, dragonfly+, torus, mesh and ring" if rule == "valiant" else "dragonfly and dragonfly+"
            )
            raise InputError(f"routing {rule}: topology {self.net.name!r} has no detours; {accepted} have")
        table = ways.links(sources, targets, self._drawn(sources, targets, 0))
        broken = np.flatnonzero(self._broken(table))
        for draw in range(1, DRAWS):
            if not len(broken):
                return table
            found = ways.links(sources[broken], targets[broken], self._drawn(sources[broken], targets[broken], draw))
            whole = ~self._broken(found)
            table = put_rows(table, broken[whole], found[whole])
            broken = broken[~whole]
        return put_rows(table, broken, self._shortest(sources[broken], targets[broken]))

    def _drawn(self, sources: Ints, targets: Ints, draw: int) -> Ints:
        """Negative numbers that stand for random detours."""
        from quadrille.topologies.routes.hashing import hashed

        drawn = hashed(sources, targets, self.routing.seed + (draw << 32)) >> np.uint64(1)
        return ~drawn.astype(np.int64)

    @cached_property
    def _choices(self) -> "AdaptiveChoices":
        """What adaptive routing has decided so far."""
        from quadrille.topologies.routes.adaptive import AdaptiveChoices

        return AdaptiveChoices(self.net.place_count, self._grouped().global_links, self.net.bandwidths)

    def _grouped(self) -> "Grouped":
        """The detours of a topology with groups.

        Raises
        ------
        InputError : one without
        """
        from quadrille.topologies.routes.grouped import Grouped

        known = None if self.net.ways is None else detours(self.net.ways)
        if not isinstance(known, Grouped) or not known.has_groups:
            raise InputError(
                f"routing {self.routing.rule}: topology {self.net.name!r} has no groups; it is for dragonfly and "
                "dragonfly+"
            )
        return known

    def _adapted(self, sources: Ints, targets: Ints) -> Ints:
        """Links of the minimal way or of the detour of each pair [pairs, hops]."""
        choices = self._choices
        straight, around = self._shortest(sources, targets), self._detoured(sources, targets)
        taken = choices.around(sources, targets, straight, around)
        return put_rows(straight, taken, around[taken])

    def _balanced(self, sources: Ints, targets: Ints) -> Paths:
        known, ways = self._grouped(), self.net.ways
        assert ways is not None
        from quadrille.topologies.routes.balanced import balanced

        found = balanced(self.net, ways, known, sources, targets, self._shortest)
        return Paths(*found.ordered(), found.latency)

    @cached_property
    def _spraying(self) -> "Spraying":
        from quadrille.topologies.routes.spraying import Spraying

        return Spraying(self.net, lambda: self._search)

    def _sprayed(self, sources: Ints, targets: Ints) -> Paths:
        found = self._spraying.between(sources, targets)
        return Paths(*found.summed(self.net.link_count), found.latency)
