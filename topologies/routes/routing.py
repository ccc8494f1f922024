"""Routing rules, and `Routes`, the paths that flows take through a network under a rule.

    shortest   one path, by destination: D-mod-k on trees, dimension order on tori
    minimal    the same as `shortest`, by its name on dragonflies
    spray      an equal share of the flow on every shortest path (packet spraying; `spraying.py`); in a topology file,
               by bandwidth where parallel links differ
    ecmp       one shortest path, by a hash of source, target and seed
    valiant    one non-minimal path through a group (dragonflies) or router (tori, meshes, rings)
               drawn by a hash of source, target and seed
    adaptive   the minimal path or that non-minimal path, by load (dragonflies; `load_balancing.py`)
    balanced   shares on the minimal path and on paths through every other group (dragonflies; `load_balancing.py`)

The topology's structure gives the paths (`structured_paths.py`).  If a link of the
chosen path has failed, the next path in order is taken.  If all paths, or the next
`MAX_LISTED_PATHS`, have failed links, or if the topology has no structure, paths are
searched (`search.py`).  A non-minimal path with a failed link is drawn again, up to
`DRAWS` times; then the flow takes a shortest path.  No cost or memory here grows with
the square of the number of endpoints.
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
from quadrille.topologies.routes.paths import Paths, joined, reordered, replace_rows
from quadrille.topologies.structured_paths import PathSet, non_minimal_paths

if TYPE_CHECKING:
    from quadrille.topologies.routes.load_balancing import AdaptiveChoices
    from quadrille.topologies.routes.search import SearchedPaths
    from quadrille.topologies.routes.spraying import Spraying
    from quadrille.topologies.structured_paths import GroupedPaths

Rule = Literal["shortest", "minimal", "spray", "ecmp", "valiant", "adaptive", "balanced"]
SEEDED = ("ecmp", "valiant", "adaptive")

DRAWS = 16
"""Largest number of draws of a non-minimal path."""
PATHS_AT_ONCE = 1 << 14
"""Number of paths of broken flows that are checked together."""
PAIRS_AT_ONCE = 1 << 14
"""Number of pairs that are routed together; their arrays fit into the processor's cache."""
SEED = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Routing:
    """A routing rule, and the seed of its hash."""

    rule: Rule = "shortest"
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.rule}:{self.seed}" if self.rule in SEEDED else self.rule


def parse_routing(text: str, offered: Sequence[Rule] = get_args(Rule)) -> Routing:
    """The routing that a word names: a rule, followed by `:SEED` for rules that draw paths.

    >>> parse_routing("ecmp:7"), str(parse_routing("valiant"))
    (Routing(rule='ecmp', seed=7), 'valiant:0')

    Parameters
    ----------
    offered : rules that the error message names

    Raises
    ------
    InputError : a word that is not a routing
    """
    word, colon, seed = text.partition(":")
    for rule in get_args(Rule):
        if word == rule and (not colon or (rule in SEEDED and SEED.fullmatch(seed))):
            return Routing(rule, int(seed or 0))
    seeded = ", ".join(f"{rule}:SEED" for rule in SEEDED if rule in offered)
    hint = "; loads of experts are --expert-load" if word == "zipf" else ""
    raise InputError(f"routing {text!r}: accepted are {', '.join(offered)}, and {seeded}{hint}")


class Routes:
    """Computes the paths between endpoints of one network under one routing rule.

    >>> from quadrille.topologies.families.basic import star
    >>> paths = Routes(star(3, bandwidth=1e9, latency=1e-6)).between([0, 1], [2, 1])
    >>> paths.offsets.tolist(), paths.links.tolist(), paths.latency.tolist()
    ([0, 2, 2], [0, 5], [2e-06, 0.0])
    """

    def __init__(self, net: Network, routing: Routing = Routing()) -> None:
        self.net = net
        self.routing = routing

    def expected(self) -> "Routes":
        """The routes of the network without degraded links, by which libraries lay out their channels."""
        net = self.net.expected()
        return self if net is self.net else Routes(net, self.routing)

    @cached_property
    def _search(self) -> "SearchedPaths":
        from quadrille.topologies.routes.search import SearchedPaths

        return SearchedPaths(self.net)

    def between(self, sources: "Ints | list[int]", targets: "Ints | list[int]") -> Paths:
        """The paths of flows from endpoints sources[f] to targets[f]; a flow from an endpoint to itself has no links.

        Raises
        ------
        InputError : an unknown endpoint, or no path between two endpoints
        """
        sources, targets = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
        self._check(sources, targets)
        match self.routing.rule:
            case "shortest" | "minimal" | "ecmp":
                starts = range(0, max(1, len(sources)), PAIRS_AT_ONCE)
                parts = [slice(start, start + PAIRS_AT_ONCE) for start in starts]
                return joined([self._paths(self._shortest(sources[part], targets[part])) for part in parts])
            case "spray":
                return self._spray(sources, targets)
            case "valiant":
                return self._paths(self._non_minimal(sources, targets))
            case "adaptive":
                return self._paths(self._adaptive(sources, targets))
            case "balanced":
                return self._balanced(sources, targets)
            case unknown:
                assert_never(unknown)

    def _shortest(self, sources: Ints, targets: Ints) -> Ints:
        """Links of one shortest path of each pair [pairs, hops]."""
        paths: PathSet = self.net.paths or self._search
        return self._unbroken(paths, sources, targets, self._path_numbers(paths, sources, targets))

    def _check(self, sources: Ints, targets: Ints) -> None:
        endpoints = self.net.endpoint_count
        for ends in (sources, targets):
            wrong = ends[(ends < 0) | (ends >= endpoints)]
            if len(wrong):
                raise InputError(f"place {wrong[0]}: topology {self.net.name!r} has {endpoints}, from 0")

    def _path_numbers(self, paths: PathSet, sources: Ints, targets: Ints) -> Ints:
        if self.routing.rule == "ecmp":
            counts = paths.counts(sources, targets)
            from quadrille.topologies.routes.paths import hashed

            return (hashed(sources, targets, self.routing.seed) % counts.astype(np.uint64)).astype(np.int64)
        return paths.default(sources, targets)

    def _unbroken(self, paths: PathSet, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the chosen path, or of the next or a searched path, without a failed link [pairs, hops]."""
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
            # Checks the next few paths of each pair together, and takes the first without a failed link.
            following = (chosen[again, None] + np.arange(tried, tried + more)) % counts[again, None]
            ends = np.repeat(sources[again], more), np.repeat(targets[again], more)
            candidates = paths.links(*ends, following.ravel())
            unbroken = ~self._broken(candidates).reshape(following.shape)
            first, mended = unbroken.argmax(axis=1) + np.arange(len(again)) * more, unbroken.any(axis=1)
            table = replace_rows(table, again[mended], candidates[first[mended]])
            broken = np.setdiff1d(broken, again[mended])
            tried, more = tried + more, max(1, min(2 * more, PATHS_AT_ONCE // len(again)))
        if len(broken):
            searched = self._search.default(sources[broken], targets[broken])
            table = replace_rows(table, broken, self._search.links(sources[broken], targets[broken], searched))
        return table

    def _broken(self, table: Ints) -> NDArray[np.bool_]:
        """Whether each path has a failed link [pairs]."""
        failed = self.net.failed
        if not failed.any():
            return np.zeros(len(table), dtype=bool)
        return np.asarray((failed[table] & (table >= 0)).any(axis=1))

    def _paths(self, table: Ints) -> Paths:
        """The paths of flows that take one path each, given a table of links [flows, hops]."""
        lengths, latency = np.zeros(len(table), dtype=np.int64), np.zeros(len(table))
        for column in table.T:
            lengths += column >= 0
            latency += self._latencies[column]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        links = table[table >= 0]
        return Paths(offsets, links, np.ones(len(links)), latency)

    @cached_property
    def _latencies(self) -> Floats:
        """Latency of each link [s]; the last entry is 0, for link -1, which stands for no link [links + 1]."""
        return np.append(self.net.latencies, 0.0)

    # Non-minimal paths

    def _non_minimal(self, sources: Ints, targets: Ints) -> Ints:
        """Links of one non-minimal path of each pair [pairs, hops].

        Raises
        ------
        InputError : a topology without non-minimal paths
        """
        paths, rule = self.net.paths, self.routing.rule
        if paths is None or non_minimal_paths(paths) is None:
            accepted = (
                "dragonfly, dragonfly+, torus, mesh and ring" if rule == "valiant" else "dragonfly and dragonfly+"
            )
            raise InputError(f"routing {rule}: topology {self.net.name!r} has no non-minimal paths; {accepted} have")
        table = paths.links(sources, targets, self._random_numbers(sources, targets, 0))
        broken = np.flatnonzero(self._broken(table))
        for draw in range(1, DRAWS):
            if not len(broken):
                return table
            redrawn = paths.links(
                sources[broken], targets[broken], self._random_numbers(sources[broken], targets[broken], draw)
            )
            unbroken = ~self._broken(redrawn)
            table = replace_rows(table, broken[unbroken], redrawn[unbroken])
            broken = broken[~unbroken]
        return replace_rows(table, broken, self._shortest(sources[broken], targets[broken]))

    def _random_numbers(self, sources: Ints, targets: Ints, draw: int) -> Ints:
        """Negative path numbers of random non-minimal paths [pairs]."""
        from quadrille.topologies.routes.paths import hashed

        drawn = hashed(sources, targets, self.routing.seed + (draw << 32)) >> np.uint64(1)
        return ~drawn.astype(np.int64)

    @cached_property
    def _choices(self) -> "AdaptiveChoices":
        """The choices of adaptive routing so far."""
        from quadrille.topologies.routes.load_balancing import AdaptiveChoices

        return AdaptiveChoices(self.net.endpoint_count, self._grouped().global_links, self.net.bandwidths)

    def _grouped(self) -> "GroupedPaths":
        """The non-minimal paths of a topology with groups.

        Raises
        ------
        InputError : a topology without groups
        """
        from quadrille.topologies.structured_paths import GroupedPaths

        paths = None if self.net.paths is None else non_minimal_paths(self.net.paths)
        if not isinstance(paths, GroupedPaths) or not paths.has_groups:
            raise InputError(
                f"routing {self.routing.rule}: topology {self.net.name!r} has no groups; it is for dragonfly and "
                "dragonfly+"
            )
        return paths

    def _adaptive(self, sources: Ints, targets: Ints) -> Ints:
        """Links of the minimal or the non-minimal path of each pair [pairs, hops]."""
        choices = self._choices
        minimal, non_minimal = self._shortest(sources, targets), self._non_minimal(sources, targets)
        taken = choices.choose_non_minimal(sources, targets, minimal, non_minimal)
        return replace_rows(minimal, taken, non_minimal[taken])

    def _balanced(self, sources: Ints, targets: Ints) -> Paths:
        groups, paths = self._grouped(), self.net.paths
        assert paths is not None
        from quadrille.topologies.routes.load_balancing import balanced

        split = balanced(self.net, paths, groups, sources, targets, self._shortest)
        return Paths(*split.ordered(), split.latency)

    @cached_property
    def _spraying(self) -> "Spraying":
        from quadrille.topologies.routes.spraying import Spraying

        return Spraying(self.net, lambda: self._search)

    def _spray(self, sources: Ints, targets: Ints) -> Paths:
        inside = self._between_gpus(sources, targets)
        if not inside.any():
            return self._sprayed(self._spraying, sources, targets)
        if inside.all():
            return self._sprayed(self._spraying_between_gpus, sources, targets)
        parts = [
            self._sprayed(self._spraying, sources[~inside], targets[~inside]),
            self._sprayed(self._spraying_between_gpus, sources[inside], targets[inside]),
        ]
        return reordered(joined(parts), np.argsort(np.argsort(inside, kind="stable"), kind="stable"))

    def _sprayed(self, spraying: "Spraying", sources: Ints, targets: Ints) -> Paths:
        split = spraying.between(sources, targets)
        return Paths(*split.summed(self.net.link_count), split.latency)

    def _between_gpus(self, sources: Ints, targets: Ints) -> NDArray[np.bool_]:
        """Whether links between GPUs join the two ends of each pair, on a network whose paths are searched [pairs].

        A path through the network may have as few links, and does not share such traffic. Where links have failed, all
        paths are searched.
        """
        if self.net.paths is not None or self.net.endpoints[0] != "gpu" or self.net.failed.any():
            return np.zeros(len(sources), dtype=bool)
        return np.asarray(self._joined[sources] == self._joined[targets])

    @cached_property
    def _joined(self) -> Ints:
        from quadrille.topologies.joined_gpus import joined_groups

        return joined_groups(self.net)

    @cached_property
    def _spraying_between_gpus(self) -> "Spraying":
        from quadrille.topologies.joined_gpus import links_between_gpus
        from quadrille.topologies.routes.search import SearchedPaths
        from quadrille.topologies.routes.spraying import Spraying

        net = self.net.with_bandwidths(np.where(links_between_gpus(self.net), self.net.bandwidths, 0.0))
        return Spraying(net, lambda: SearchedPaths(net))
