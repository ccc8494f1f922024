"""Routing: which of the paths a flow takes.

    shortest   one path, by destination: D-mod-k on trees, dimension order on tori
    minimal    the same, by its name on dragonflies
    spray      an equal share of the flow on every shortest path (packet spraying; `spraying.py`)
    ecmp       one shortest path, by a hash of source, target and seed
    valiant    one detour by way of a group (dragonflies) or router (tori, meshes, rings)
               drawn by a hash of source, target and seed
    adaptive   the minimal path or that detour, by load (dragonflies; `load_balancing.py`)
    balanced   shares on the minimal path and on a detour by every other group (dragonflies; `load_balancing.py`)

A topology's structure gives the paths (`structured_paths.py`).  Where a link of the chosen
path has failed, the next one in order is taken; where all have (or the next
`MAX_LISTED_PATHS`), or where there is no structure, paths are searched (`search.py`).  A detour with a failed link
is drawn again, up to `DRAWS` times, and then given up for the shortest path.
Nothing here grows with the square of the number of endpoints.
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
from quadrille.topologies.structured_paths import PathSet, detours

if TYPE_CHECKING:
    from quadrille.topologies.routes.load_balancing import AdaptiveChoices
    from quadrille.topologies.routes.search import SearchedPaths
    from quadrille.topologies.routes.spraying import Spraying
    from quadrille.topologies.structured_paths import GroupedPaths

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
    """Routes through one network, between endpoints given by number.

    >>> from quadrille.topologies.families.basic import star
    >>> paths = Routes(star(3, bandwidth=1e9, latency=1e-6)).between([0, 1], [2, 1])
    >>> paths.offsets.tolist(), paths.links.tolist(), paths.latency.tolist()
    ([0, 2, 2], [0, 5], [2e-06, 0.0])
    """

    def __init__(self, net: Network, routing: Routing = Routing()) -> None:
        self.net = net
        self.routing = routing

    @cached_property
    def _search(self) -> "SearchedPaths":
        from quadrille.topologies.routes.search import SearchedPaths

        return SearchedPaths(self.net)

    def between(self, sources: "Ints | list[int]", targets: "Ints | list[int]") -> Paths:
        """The paths of flows from sources[f] to targets[f]; one from a place to itself has no links.

        Raises
        ------
        InputError : a place that is not there, or no path between the two
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
        """Links of one shortest path of each pair [pairs, hops]."""
        paths: PathSet = self.net.paths or self._search
        return self._surviving(paths, sources, targets, self._chosen(paths, sources, targets))

    def _check(self, sources: Ints, targets: Ints) -> None:
        endpoints = self.net.endpoint_count
        for ends in (sources, targets):
            wrong = ends[(ends < 0) | (ends >= endpoints)]
            if len(wrong):
                raise InputError(f"place {wrong[0]}: topology {self.net.name!r} has {endpoints}, from 0")

    def _chosen(self, paths: PathSet, sources: Ints, targets: Ints) -> Ints:
        if self.routing.rule == "ecmp":
            counts = paths.counts(sources, targets)
            from quadrille.topologies.routes.paths import hashed

            return (hashed(sources, targets, self.routing.seed) % counts.astype(np.uint64)).astype(np.int64)
        return paths.default(sources, targets)

    def _surviving(self, paths: PathSet, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the chosen paths; the next path in order, or a searched one, where a link has failed."""
        table = paths.links(sources, targets, chosen)
        broken = np.flatnonzero(self._broken(table))
        if not len(broken):
            return table
        counts = paths.counts(sources, targets)
        if paths is not self._search:
            self._search.check_reachable(sources[broken], targets[broken])
        tried, more = 1, 1
        from quadrille.topologies.routes.spraying import MAX_LISTED_PATHS

        while tried < MAX_LISTED_PATHS and len(again := broken[counts[broken] > tried]):
            # The next few of each pair at once, of which the first that is whole is taken.
            following = (chosen[again, None] + np.arange(tried, tried + more)) % counts[again, None]
            found = paths.links(np.repeat(sources[again], more), np.repeat(targets[again], more), following.ravel())
            whole = ~self._broken(found).reshape(following.shape)
            first, mended = whole.argmax(axis=1) + np.arange(len(again)) * more, whole.any(axis=1)
            table = put_rows(table, again[mended], found[first[mended]])
            broken = np.setdiff1d(broken, again[mended])
            tried, more = tried + more, max(1, min(2 * more, WAYS_AT_ONCE // len(again)))
        if len(broken):
            detour = self._search.default(sources[broken], targets[broken])
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

    # NonMinimalPaths

    def _detoured(self, sources: Ints, targets: Ints) -> Ints:
        """Links of one detour of each pair [pairs, hops].

        Raises
        ------
        InputError : a topology that has none
        """
        paths, rule = self.net.paths, self.routing.rule
        known = None if paths is None else detours(paths)
        if paths is None or known is None:
            accepted = (
                "dragonfly, dragonfly+, torus, mesh and ring" if rule == "valiant" else "dragonfly and dragonfly+"
            )
            raise InputError(f"routing {rule}: topology {self.net.name!r} has no detours; {accepted} have")
        table = paths.links(sources, targets, self._drawn(sources, targets, 0))
        broken = np.flatnonzero(self._broken(table))
        for draw in range(1, DRAWS):
            if not len(broken):
                return table
            found = paths.links(sources[broken], targets[broken], self._drawn(sources[broken], targets[broken], draw))
            whole = ~self._broken(found)
            table = put_rows(table, broken[whole], found[whole])
            broken = broken[~whole]
        return put_rows(table, broken, self._shortest(sources[broken], targets[broken]))

    def _drawn(self, sources: Ints, targets: Ints, draw: int) -> Ints:
        """Negative numbers that stand for random detours."""
        from quadrille.topologies.routes.paths import hashed

        drawn = hashed(sources, targets, self.routing.seed + (draw << 32)) >> np.uint64(1)
        return ~drawn.astype(np.int64)

    @cached_property
    def _choices(self) -> "AdaptiveChoices":
        """What adaptive routing has decided so far."""
        from quadrille.topologies.routes.load_balancing import AdaptiveChoices

        return AdaptiveChoices(self.net.endpoint_count, self._grouped().global_links, self.net.bandwidths)

    def _grouped(self) -> "GroupedPaths":
        """The detours of a topology with groups.

        Raises
        ------
        InputError : one without
        """
        from quadrille.topologies.structured_paths import GroupedPaths

        known = None if self.net.paths is None else detours(self.net.paths)
        if not isinstance(known, GroupedPaths) or not known.has_groups:
            raise InputError(
                f"routing {self.routing.rule}: topology {self.net.name!r} has no groups; it is for dragonfly and "
                "dragonfly+"
            )
        return known

    def _adapted(self, sources: Ints, targets: Ints) -> Ints:
        """Links of the minimal path or of the detour of each pair [pairs, hops]."""
        choices = self._choices
        straight, around = self._shortest(sources, targets), self._detoured(sources, targets)
        taken = choices.around(sources, targets, straight, around)
        return put_rows(straight, taken, around[taken])

    def _balanced(self, sources: Ints, targets: Ints) -> Paths:
        known, paths = self._grouped(), self.net.paths
        assert paths is not None
        from quadrille.topologies.routes.load_balancing import balanced

        found = balanced(self.net, paths, known, sources, targets, self._shortest)
        return Paths(*found.ordered(), found.latency)

    @cached_property
    def _spraying(self) -> "Spraying":
        from quadrille.topologies.routes.spraying import Spraying

        return Spraying(self.net, lambda: self._search)

    def _sprayed(self, sources: Ints, targets: Ints) -> Paths:
        found = self._spraying.between(sources, targets)
        return Paths(*found.summed(self.net.link_count), found.latency)
