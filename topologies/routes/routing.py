"""Routing: which of the ways a flow takes.

    shortest   one way, by destination: D-mod-k on trees, dimension order on tori
    minimal    the same, by its name on dragonflies
    spray      an equal share of the flow on every shortest way (packet spraying; `spraying.py`)
    ecmp       one shortest way, by a hash of source, target and seed
    valiant    one detour by way of a group (dragonflies) or router (tori, meshes, rings)
               drawn by a hash of source, target and seed
    adaptive   the minimal way or that detour, by load (dragonflies; `adaptive.py`)

A topology's structure gives the ways (`ways.py`).  Where a link of the chosen
way has failed, the next one in order is taken; where all have (or the next
`MOST_WAYS`), or where there is no structure, ways are searched (`search.py`).  A detour with a failed link
is drawn again, up to `DRAWS` times, and then given up for the shortest way.
Nothing here grows with the square of the number of places.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from algorithms.errors import InputError
from topologies.network import Floats, Ints, Network
from topologies.routes.adaptive import AdaptiveChoices
from topologies.routes.search import SearchedWays
from topologies.routes.spraying import MOST_WAYS, Spraying
from topologies.routes.ways import Ways, detours

Rule = Literal["shortest", "minimal", "spray", "ecmp", "valiant", "adaptive"]
SEEDED = ("ecmp", "valiant", "adaptive")

DRAWS = 16
WAYS_AT_ONCE = 1 << 14
SEED = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Routing:
    """A rule, and the seed of its hash."""

    rule: Rule = "shortest"
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.rule}:{self.seed}" if self.rule in SEEDED else self.rule


def parse_routing(text: str) -> Routing:
    """A rule, and for those that hash `:SEED`.

    >>> parse_routing("ecmp:7"), str(parse_routing("valiant"))
    (Routing(rule='ecmp', seed=7), 'valiant:0')

    Raises
    ------
    InputError : another word
    """
    word, colon, seed = text.partition(":")
    for rule in get_args(Rule):
        if word == rule and (not colon or (rule in SEEDED and SEED.fullmatch(seed))):
            return Routing(rule, int(seed or 0))
    seeded = ", ".join(f"{rule}:SEED" for rule in SEEDED)
    raise InputError(f"routing {text!r}: accepted are {', '.join(get_args(Rule))}, and {seeded}")


@dataclass(frozen=True, slots=True)
class Paths:
    """What each of many flows takes of which links.

    Flow f takes shares[e] units of links[e] for a unit of its own, for e from
    offsets[f] to offsets[f + 1]; a flow on one way takes 1 of each of its links,
    in order.  The order of the links of a flow on several ways says nothing:
    compare these as sets of (link, share).

    Parameters
    ----------
    offsets : [flows + 1]
    links, shares : [entries]
    latency : of each flow, the sum over its links; the largest of its ways [s]
    """

    offsets: Ints
    links: Ints
    shares: Floats
    latency: Floats


class Routes:
    """Routes through one network, between places given by number.

    >>> from topologies.families.star import star
    >>> paths = Routes(star(3, bandwidth=1e9, latency=1e-6)).between([0, 1], [2, 1])
    >>> paths.offsets.tolist(), paths.links.tolist(), paths.latency.tolist()
    ([0, 2, 2], [0, 5], [2e-06, 0.0])
    """

    def __init__(self, net: Network, routing: Routing = Routing()) -> None:
        self.net = net
        self.routing = routing

    @cached_property
    def _search(self) -> SearchedWays:
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
                return self._paths(self._shortest(sources, targets))
            case "spray":
                return self._sprayed(sources, targets)
            case "valiant":
                return self._paths(self._detoured(sources, targets))
            case "adaptive":
                return self._paths(self._adapted(sources, targets))
            case unknown:
                assert_never(unknown)

    def _shortest(self, sources: Ints, targets: Ints) -> Ints:
        """Links of one shortest way of each pair [pairs, hops]."""
        ways: Ways = self.net.ways or self._search
        counts = ways.counts(sources, targets)
        return self._surviving(ways, sources, targets, self._chosen(ways, sources, targets, counts), counts)

    def _check(self, sources: Ints, targets: Ints) -> None:
        places = self.net.place_count
        for ends in (sources, targets):
            wrong = ends[(ends < 0) | (ends >= places)]
            if len(wrong):
                raise InputError(f"place {wrong[0]}: topology {self.net.name!r} has {places}, from 0")

    def _chosen(self, ways: Ways, sources: Ints, targets: Ints, counts: Ints) -> Ints:
        if self.routing.rule == "ecmp":
            return (hashed(sources, targets, self.routing.seed) % counts.astype(np.uint64)).astype(np.int64)
        return ways.usual(sources, targets)

    def _surviving(self, ways: Ways, sources: Ints, targets: Ints, chosen: Ints, counts: Ints) -> Ints:
        """Links of the chosen ways; the next way in order, or a searched one, where a link has failed."""
        table = ways.links(sources, targets, chosen)
        broken = np.flatnonzero(self._broken(table))
        if len(broken) and ways is not self._search:
            self._search.check_joined(sources[broken], targets[broken])
        tried, more = 1, 1
        while tried < MOST_WAYS and len(again := broken[counts[broken] > tried]):
            # The next few of each pair at once, of which the first that is whole is taken.
            following = (chosen[again, None] + np.arange(tried, tried + more)) % counts[again, None]
            found = ways.links(np.repeat(sources[again], more), np.repeat(targets[again], more), following.ravel())
            whole = ~self._broken(found).reshape(following.shape)
            first, mended = whole.argmax(axis=1) + np.arange(len(again)) * more, whole.any(axis=1)
            table = _put(table, again[mended], found[first[mended]])
            broken = np.setdiff1d(broken, again[mended])
            tried, more = tried + more, max(1, min(2 * more, WAYS_AT_ONCE // len(again)))
        if len(broken):
            detour = self._search.usual(sources[broken], targets[broken])
            table = _put(table, broken, self._search.links(sources[broken], targets[broken], detour))
        return table

    def _broken(self, table: Ints) -> NDArray[np.bool_]:
        """Which paths have a link that has failed [pairs]."""
        failed = self.net.failed
        if not failed.any():
            return np.zeros(len(table), dtype=bool)
        return np.asarray((failed[table] & (table >= 0)).any(axis=1))

    def _paths(self, table: Ints) -> Paths:
        """One path a flow, from a table of links [flows, hops]."""
        used = table >= 0
        latency = (
            np.where(used, self.net.latencies[table], 0.0).sum(axis=1) if self.net.link_count else np.zeros(len(table))
        )
        offsets = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
        links = table[used]
        return Paths(offsets, links, np.ones(len(links)), latency)

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
                "dragonfly and dragonfly+" if rule == "adaptive" else "dragonfly, dragonfly+, torus, mesh and ring"
            )
            raise InputError(f"routing {rule}: topology {self.net.name!r} has no detours; {accepted} have")
        table = ways.links(sources, targets, self._drawn(sources, targets, 0))
        broken = np.flatnonzero(self._broken(table))
        for draw in range(1, DRAWS):
            if not len(broken):
                return table
            found = ways.links(sources[broken], targets[broken], self._drawn(sources[broken], targets[broken], draw))
            whole = ~self._broken(found)
            table = _put(table, broken[whole], found[whole])
            broken = broken[~whole]
        return _put(table, broken, self._shortest(sources[broken], targets[broken]))

    def _drawn(self, sources: Ints, targets: Ints, draw: int) -> Ints:
        """Negative numbers that stand for random detours."""
        drawn = hashed(sources, targets, self.routing.seed + (draw << 32)) >> np.uint64(1)
        return ~drawn.astype(np.int64)

    @cached_property
    def _choices(self) -> AdaptiveChoices:
        """What adaptive routing has decided so far."""
        known = None if self.net.ways is None else detours(self.net.ways)
        if known is None or not known.has_groups:
            raise InputError(
                f"routing adaptive: topology {self.net.name!r} has no groups; it is for dragonfly and dragonfly+"
            )
        return AdaptiveChoices(self.net.place_count, known.global_links, self.net.bandwidths)

    def _adapted(self, sources: Ints, targets: Ints) -> Ints:
        """Links of the minimal way or of the detour of each pair [pairs, hops]."""
        choices = self._choices
        straight, around = self._shortest(sources, targets), self._detoured(sources, targets)
        taken = choices.around(sources, targets, straight, around)
        return _put(straight, taken, around[taken])

    @cached_property
    def _spraying(self) -> Spraying:
        return Spraying(self.net, lambda: self._search)

    def _sprayed(self, sources: Ints, targets: Ints) -> Paths:
        found = self._spraying.between(sources, targets)
        return Paths(*found.summed(self.net.link_count), found.latency)


def hashed(sources: Ints, targets: Ints, seed: int) -> NDArray[np.uint64]:
    """A number for each (source, target, seed) that looks random (the finaliser of SplitMix64).

    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014, section 5.
    """
    mixed = np.full(len(sources), seed % 2**64, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in (sources, targets):
            mixed = mixed + part.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


def _put(table: Ints, rows: Ints, paths: Ints) -> Ints:
    """The table with some rows replaced, widened where the new ones are longer."""
    hops = max(table.shape[1], paths.shape[1])
    wider = np.full((len(table), hops), -1, dtype=np.int64)
    wider[:, : table.shape[1]] = table
    wider[rows] = -1
    wider[rows, : paths.shape[1]] = paths
    return wider
