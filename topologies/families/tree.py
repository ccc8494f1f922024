"""Fat trees: any levels, parents and parallel cables (`tree`), or three levels of equal switches (`fat_tree`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.number_lists import Numbers, WholeNumbers, as_word, numbers, whole_numbers
from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.network_builder import Builder, reverse
from quadrille.topologies.size_limits import check_cable, check_counts, check_size
from quadrille.topologies.structured_paths import MAX_COUNTED_PATHS


def tree(
    down: int | str | Sequence[int],
    up: int | str | Sequence[int],
    *,
    bandwidth: float | str | Sequence[float],
    latency: float | str | Sequence[float],
    parallel: int | str | Sequence[int] = 1,
    cores: int = 1,
) -> Network:
    """A fat tree with h levels of switches; lists have h numbers, from the hosts upwards, written 4x4x2.

    A switch of level l has down[l] children; every host or switch below level l
    has up[l] parents in level l and parallel[l] cables to each.  The network has

        hosts                 down[1] · … · down[h]
        switches of level l   up[1] · … · up[l] · down[l + 1] · … · down[h]

    If all cables are equal, level l is oversubscribed by
    down[l] / (up[l + 1] · parallel[l + 1]).  The levels are called leaf, spine and
    core; further levels below the core are spine_b, spine_c, …; the switch of a tree
    with one level is switch:0.

    >>> tree("4x4", "1x2", parallel="1x2", bandwidth=1e9, latency=1e-6).kinds
    {'host': (0, 16), 'leaf': (16, 4), 'spine': (20, 2)}

    Parameters
    ----------
    down : number of children of a switch, for each level
    up, parallel : number of parents, and of cables to each parent, for each level, or one number for all levels
    bandwidth, latency : rates of the cables below each level, per direction, or one number for all levels [B/s, s]
    cores : number of cores of each host

    Raises
    ------
    InputError : lists of different lengths; a number below one; a bandwidth or latency out of range

    Source: Zahavi, "D-Mod-K Routing Providing Non-Blocking Traffic for Shift
    Permutations on Real Life Fat Trees", Technion, 2010: PGFT(h; m; w; p).
    """
    shape = TreeShape.of("tree", down, up, parallel)
    check_counts("tree", cores=cores)
    check_size("tree", *shape.size(shape.room))
    arguments = {"down": as_word(down), "up": as_word(up), "parallel": as_word(parallel)}
    cable = {"bandwidth": as_word(bandwidth), "latency": as_word(latency)}
    builder = Builder("tree", {**arguments, **cable, "cores": cores})
    hosts = builder.nodes("host", shape.room)
    paths = add_tree(builder, hosts, down=down, up=up, parallel=parallel, bandwidth=bandwidth, latency=latency)
    return builder.network(("host", shape.room), paths, cores=cores)


def add_tree(
    builder: Builder,
    endpoints: Ints,
    *,
    down: WholeNumbers,
    up: WholeNumbers,
    bandwidth: Numbers,
    latency: Numbers,
    parallel: WholeNumbers = 1,
    kinds: Sequence[str] | None = None,
    family: str = "tree",
) -> "TreePaths":
    """Connects the endpoints by a tree; switches that have no endpoint below them are left out.

    Parameters
    ----------
    kinds : kind of node of each level; by default leaf, spine, …, core
    family : name of the family, for messages

    Raises
    ------
    InputError : as `tree`; more endpoints than the tree holds
    """
    shape = TreeShape.of(family, down, up, parallel)
    if len(endpoints) > shape.room:
        raise InputError(f"{family}: down={as_word(down)} has room for {shape.room} endpoints, not {len(endpoints)}")
    check_size(family, *shape.size(len(endpoints)))
    rates = numbers(family, "bandwidth", bandwidth, length=shape.levels)
    delays = numbers(family, "latency", latency, length=shape.levels)
    for rate, delay in zip(rates, delays, strict=True):
        check_cable(family, rate, delay)
    below, climbing = endpoints, list[Ints]()
    for level, kind in enumerate(kinds or _kinds(shape.levels)):
        # Links have the shape [node below, parent, parallel]; TreePaths describes how nodes are numbered.
        across, wide = -(-len(endpoints) // shape.under(level + 1)), shape.width(level + 1)
        above = builder.nodes(kind, across * wide).reshape(across, shape.width(level), shape.up[level])
        node = np.arange(len(below))
        parents = above[node // shape.width(level) // shape.down[level], node % shape.width(level)]
        cables = np.broadcast_to(parents[:, :, None], (*parents.shape, shape.parallel[level]))
        links = builder.cables(below[:, None, None], cables, bandwidth=rates[level], latency=delays[level])
        climbing.append(links.reshape(cables.shape))
        below = above.ravel()
    return TreePaths(shape, tuple(climbing))


def _kinds(levels: int) -> list[str]:
    if levels == 1:
        return ["switch"]
    middle = ["spine", *(f"spine_{chr(ord('b') + extra)}" for extra in range(levels - 3))]
    return ["leaf", *middle[: max(0, levels - 2)], "core" if levels > 2 else "spine"]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Numbers of children, parents and parallel cables at each level of a tree, from the hosts upwards."""

    down: tuple[int, ...]
    up: tuple[int, ...]
    parallel: tuple[int, ...]

    @classmethod
    def of(cls, family: str, down: WholeNumbers, up: WholeNumbers, parallel: WholeNumbers) -> "TreeShape":
        children = whole_numbers(family, "down", down)
        if len(children) > MAX_LEVELS:
            raise InputError(
                f"{family}: down={as_word(down)!s:.60} has {len(children)} levels; at most {MAX_LEVELS} are built"
            )
        levels = len(children)
        parents = whole_numbers(family, "up", up, length=levels)
        return cls(children, parents, whole_numbers(family, "parallel", parallel, length=levels))

    @property
    def levels(self) -> int:
        return len(self.down)

    @property
    def room(self) -> int:
        """Number of endpoints that the full tree holds."""
        return prod(self.down)

    def under(self, level: int) -> int:
        """Number of endpoints under a switch of a level; level 0 are the endpoints themselves."""
        return prod(self.down[:level])

    def width(self, level: int) -> int:
        """Number of switches of a level that are above the same endpoints."""
        return prod(self.up[:level])

    def size(self, endpoints: int) -> tuple[int, int]:
        """Number of nodes (endpoints included) and number of links of the tree above `endpoints` endpoints."""
        counts = [-(-endpoints // self.under(level)) * self.width(level) for level in range(self.levels + 1)]
        cables = sum(n * w * p for n, w, p in zip(counts, self.up, self.parallel, strict=False))
        return sum(counts), 2 * cables


MAX_LEVELS = 12


@dataclass(frozen=True)
class TreePaths:
    """The paths of a tree: up to the lowest level that is above source and target, then down.

    On the way up, any parent and parallel cable can be chosen; on the way down the
    switches follow from the way up, and only the parallel cable can be chosen.  A
    node of level l has the number (block of endpoints under it) · width + (the
    parents that lead to it, first choice most significant).

    A path's number has one digit for each level, the lowest level most significant:
    parent, cable up, cable down.  D-mod-k routing takes at level l the port

        target / (up[1] · … · up[l - 1])  mod  up[l] · parallel[l]

    The port's remainder by up[l] is the parent; its quotient is the cable, up and
    down.

    Parameters
    ----------
    shape : numbers of children, parents and parallel cables of each level
    climbing : for each level, links from each node below it to its parents [nodes, parents, parallel]

    Source: Zahavi 2010 (see `tree`) for D-mod-k.
    """

    shape: TreeShape
    climbing: tuple[Ints, ...]

    def _met(self, sources: Ints, targets: Ints) -> Ints:
        """Lowest level above both endpoints [pairs]; 0 from an endpoint to itself."""
        apart = [
            sources // self.shape.under(level) != targets // self.shape.under(level)
            for level in range(self.shape.levels)
        ]
        met: Ints = np.sum(apart, axis=0, dtype=np.int64)
        return met

    def _digit(self, level: int) -> int:
        """Number of choices at a level: parents times cables up times cables down."""
        return self.shape.up[level] * self.shape.parallel[level] ** 2

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        paths = [
            1,
            *(min(prod(map(self._digit, range(level + 1))), MAX_COUNTED_PATHS) for level in range(self.shape.levels)),
        ]
        return np.array(paths, dtype=np.int64)[self._met(sources, targets)]

    def default(self, sources: Ints, targets: Ints) -> Ints:
        met, path = self._met(sources, targets), np.zeros(len(sources), dtype=np.int64)
        for level in range(self.shape.levels):
            parents, cables = self.shape.up[level], self.shape.parallel[level]
            port = targets // self.shape.width(level) % (parents * cables)
            digit = (port % parents * cables + port // parents) * cables + port // parents
            path = np.where(level < met, path * self._digit(level) + digit, path)
        return path

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        met, levels = self._met(sources, targets), self.shape.levels
        digits = self._digits(met, chosen)
        table = np.full((len(sources), 2 * levels), -1, dtype=np.int64)
        choice = np.zeros(len(sources), dtype=np.int64)
        for level in range(levels):
            parents, cables = self.shape.up[level], self.shape.parallel[level]
            parent, ascent, descent = (
                digits[level] // cables**2,
                digits[level] // cables % cables,
                digits[level] % cables,
            )
            width, under, used = self.shape.width(level), self.shape.under(level), level < met
            ascending = self.climbing[level][sources // under * width + choice, parent, ascent]
            descending = reverse(self.climbing[level][targets // under * width + choice, parent, descent])
            table[:, level] = np.where(used, ascending, -1)
            table[:, 2 * levels - 1 - level] = np.where(used, descending, -1)
            choice = np.where(used, choice * parents + parent, choice)
        return table

    def _digits(self, met: Ints, chosen: Ints) -> list[Ints]:
        """The digits of the path numbers, lowest level first; 0 above the level where source and target meet."""
        digits, rest = list[Ints](), chosen
        for level in reversed(range(self.shape.levels)):
            used = level < met
            digits.append(np.where(used, rest % self._digit(level), 0))
            rest = np.where(used, rest // self._digit(level), rest)
        return digits[::-1]

    def spread(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Floats]:
        """Pair, link and share of each entry: at each level all possible links up and down, in equal shares."""
        met = self._met(sources, targets)
        owners, links, shares = [], [], []
        for level, climbing in enumerate(self.climbing):
            pairs = np.flatnonzero(level < met)
            width, under = self.shape.width(level), self.shape.under(level)
            for end, path in ((sources, climbing), (targets, reverse(climbing))):
                choices = path[(end[pairs] // under * width)[:, None] + np.arange(width)]
                count = width * self.shape.up[level] * self.shape.parallel[level]
                owners.append(np.repeat(pairs, count))
                links.append(choices.ravel())
                shares.append(np.full(choices.size, 1.0 / count))
        return np.concatenate(owners), np.concatenate(links), np.concatenate(shares)


def fat_tree(ports: int, *, bandwidth: float, latency: float, cores: int = 1) -> Network:
    """A non-blocking fat tree with three levels of switches with `ports` ports each (k in the paper).

    With h = ports / 2, the network has `ports` pods of h edge and h aggregation
    switches.  Every edge switch has cables to h hosts and to every aggregation
    switch of its pod.  Each of the h² core switches core:c has a cable to
    aggregation switch c // h of every pod.

    >>> {kind: count for kind, (_, count) in fat_tree(4, bandwidth=1e9, latency=1e-6).kinds.items()}
    {'host': 16, 'edge': 8, 'aggregation': 8, 'core': 4}

    Parameters
    ----------
    ports : number of ports of each switch, even
    bandwidth : bandwidth of each cable, per direction [B/s]
    latency : latency of each cable [s]
    cores : number of cores of each host

    Raises
    ------
    InputError : an odd number of ports, or fewer than 2; fewer than one core; a bandwidth or latency out of range

    Source: Al-Fares, Loukissas, Vahdat, "A Scalable, Commodity Data Center
    Network Architecture", SIGCOMM 2008, section 3.1.
    """
    check_counts("fat-tree", ports=ports, cores=cores)
    hosts = ports * (ports // 2) ** 2
    check_size("fat-tree", 2 * hosts, 6 * hosts)
    builder = Builder("fat-tree", {"ports": ports, "bandwidth": bandwidth, "latency": latency, "cores": cores})
    paths = add_fat_tree(builder, builder.nodes("host", hosts), ports=ports, bandwidth=bandwidth, latency=latency)
    return builder.network(("host", hosts), paths, cores=cores)


def add_fat_tree(builder: Builder, endpoints: Ints, *, ports: int, bandwidth: float, latency: float) -> TreePaths:
    """Connects the endpoints, at most ports³ / 4, by a fat tree; pods without endpoints are left out.

    Raises
    ------
    InputError : an odd number of ports; more endpoints than fit; a bandwidth or latency out of range
    """
    if ports < 2 or ports % 2:
        raise InputError(f"fat-tree: ports={ports} must be even: half of the ports go up and half down")
    half = ports // 2
    if len(endpoints) > ports * half * half:
        raise InputError(f"fat-tree: ports={ports} has room for {ports * half * half}, not for {len(endpoints)}")
    return add_tree(
        builder,
        endpoints,
        down=(half, half, ports),
        up=(1, half, half),
        bandwidth=bandwidth,
        latency=latency,
        kinds=("edge", "aggregation", "core"),
        family="fat-tree",
    )
