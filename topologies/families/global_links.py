"""Global links: the cables between the groups of a dragonfly, their lookup by router or group, and paths over them.

Every group has routers · per_router global ports, numbered router by router.
With g groups, port p of group i leads to group (i + 1 + p mod (g - 1)) mod g: the
first g - 1 ports lead to one other group each, and so do the next g - 1.  Each
pair of groups therefore has

    routers · per_router // (g - 1)   global cables,

spread evenly over the routers.  The remaining ports, fewer than g - 1, stay
unused.  The arrangement is symmetric under a cyclic shift of the groups (the
"relative" arrangement of Hastings et al., "Comparing Global Link Arrangements
for Dragonfly Networks", CLUSTER 2015).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.network import Ints
from quadrille.topologies.network_builder import Builder, reverse
from quadrille.topologies.size_limits import check_cable
from quadrille.topologies.structured_paths import link_table


def global_cables(family: str, groups: int, routers: int, per_router: int) -> int:
    """Number of cables between each pair of groups.

    >>> global_cables("dragonfly", 9, 4, 2), global_cables("dragonfly", 3, 4, 2)
    (1, 4)

    Raises
    ------
    InputError : more groups than the global ports of a group can reach
    """
    if groups == 1:
        return 0
    if routers * per_router < groups - 1:
        raise InputError(
            f"{family}: groups={groups} must be at most {routers * per_router + 1}: "
            f"a group has {routers} × {per_router} global links, at least one to every other group"
        )
    return routers * per_router // (groups - 1)


@dataclass(frozen=True, slots=True)
class Rates:
    """Bandwidth [B/s] and latency [s] of a kind of cable."""

    bandwidth: float
    latency: float


def local_and_global(
    family: str,
    bandwidth: float,
    latency: float,
    *,
    local_bandwidth: float | None,
    local_latency: float | None,
    global_bandwidth: float | None,
    global_latency: float | None,
) -> tuple[Rates, Rates]:
    """Rates of the cables within a group and between groups; they default to the rates of the hosts' cables.

    Raises
    ------
    InputError : a bandwidth or latency out of range
    """
    near = Rates(
        bandwidth if local_bandwidth is None else local_bandwidth, latency if local_latency is None else local_latency
    )
    far = Rates(
        bandwidth if global_bandwidth is None else global_bandwidth,
        latency if global_latency is None else global_latency,
    )
    for cable, prefix in ((Rates(bandwidth, latency), ""), (near, "local_"), (far, "global_")):
        check_cable(family, cable.bandwidth, cable.latency, prefix=prefix)
    return near, far


@dataclass(frozen=True)
class GlobalLinks:
    """Links between routers of different groups; routers are numbered through, group by group.

    Parameters
    ----------
    groups : number of groups
    per_group : number of routers in a group that have global ports
    links : link numbers, both directions of each cable [links]
    sources, targets : routers at the two ends of each link [links]
    between_routers, from_router, to_router, between_groups : index of `links` by source and target: router to router,
        router to group, group to router, group to group
    """

    groups: int
    per_group: int
    links: Ints
    sources: Ints
    targets: Ints
    between_routers: "ByKey"
    from_router: "ByKey"
    to_router: "ByKey"
    between_groups: "ByKey"

    @classmethod
    def wire(cls, builder: Builder, routers: Ints, per_router: int, *, family: str, cable: Rates) -> "GlobalLinks":
        """Adds the global cables between these routers [groups, per group], arranged as described above."""
        groups, per_group = routers.shape
        count = global_cables(family, groups, per_group, per_router)
        near, far = np.triu_indices(groups, 1)
        lap = (groups - 1) * np.arange(count)[:, None]
        there = (near * per_group + (lap + far - near - 1) // per_router).ravel()
        back = (far * per_group + (lap + groups - (far - near) - 1) // per_router).ravel()
        flat = routers.ravel()
        cables = builder.cables(flat[there], flat[back], bandwidth=cable.bandwidth, latency=cable.latency)
        sources, targets = np.concatenate([there, back]), np.concatenate([back, there])
        source_groups, target_groups, total = sources // per_group, targets // per_group, groups * per_group
        return cls(
            groups,
            per_group,
            np.concatenate([cables, reverse(cables)]),
            sources,
            targets,
            ByKey.of(sources * total + targets, total * total),
            ByKey.of(sources * groups + target_groups, total * groups),
            ByKey.of(source_groups * total + targets, total * groups),
            ByKey.of(source_groups * groups + target_groups, groups * groups),
        )

    def direct(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints]:
        """First position in `between_routers`, and number, of the links between two routers."""
        return self.between_routers.find(sources * self.groups * self.per_group + targets)

    def leaving(self, sources: Ints, groups: Ints) -> tuple[Ints, Ints]:
        """First position in `from_router`, and number, of the links from a router to a group."""
        return self.from_router.find(sources * self.groups + groups)

    def arriving(self, groups: Ints, targets: Ints) -> tuple[Ints, Ints]:
        """First position in `to_router`, and number, of the links from a group to a router."""
        return self.to_router.find(groups * self.groups * self.per_group + targets)

    def joining(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints]:
        """First position in `between_groups`, and number, of the links between two groups."""
        return self.between_groups.find(sources * self.groups + targets)


@dataclass(frozen=True)
class GroupPaths(ABC):
    """Base of the paths of families whose groups are joined by global links.

    A path leads from the source to its switch, over switches and global links, and
    from the target's switch to the target.

    Parameters
    ----------
    up : link from each endpoint to its switch [endpoints]
    switch_of : router or leaf of each endpoint, numbered through, group by group [endpoints]
    between : links between groups
    """

    up: Ints
    switch_of: Ints
    between: GlobalLinks

    @property
    def has_groups(self) -> bool:
        return True

    @property
    def global_links(self) -> Ints:
        return self.between.links

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        return self._minimal(self.switch_of[sources], self.switch_of[targets])

    def default(self, sources: Ints, targets: Ints) -> Ints:
        """Path number target mod count, so that the targets are spread over the paths [pairs]."""
        return targets % self.counts(sources, targets)

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        first, last, same = self.switch_of[sources], self.switch_of[targets], sources == targets
        around = chosen < 0
        across = self._across(first, last, np.where(around, 0, chosen))
        if around.any():
            detour = self._around(first, last, np.where(around, ~chosen, 0))
            straight = np.concatenate([across, np.full((len(across), detour.shape[1] - 3), -1)], axis=1)
            across = np.where(around[:, None], detour, straight)
        up, down = link_table(self.up[sources], reverse(self.up[targets]), absent=[same, same]).T
        return np.concatenate([up[:, None], across, down[:, None]], axis=1)

    @abstractmethod
    def _minimal(self, first: Ints, last: Ints) -> Ints:
        """Number of minimal paths between two switches [pairs]."""

    @abstractmethod
    def _across(self, first: Ints, last: Ints, chosen: Ints) -> Ints:
        """Links of the chosen minimal paths between switches [pairs, 3]."""

    @abstractmethod
    def _around(self, first: Ints, last: Ints, random: Ints) -> Ints:
        """Links of the non-minimal paths through another group that `random` draws [pairs, 6]."""


@dataclass(frozen=True)
class ByKey:
    """An index: positions sorted by key, so that the positions of one key are consecutive.

    Parameters
    ----------
    keys : keys in ascending order [positions]
    order : position of each sorted key [positions]
    offsets : start of each possible key in `order`; None if there are more than `MAX_OFFSETS` possible keys
    """

    keys: Ints
    order: Ints
    offsets: Ints | None

    @classmethod
    def of(cls, keys: Ints, possible: int) -> "ByKey":
        """The index of these keys, which are all below `possible`."""
        order = np.argsort(keys, kind="stable")
        few = possible <= MAX_OFFSETS
        offsets = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=possible))]) if few else None
        return cls(keys[order], order, offsets)

    def find(self, keys: Ints) -> tuple[Ints, Ints]:
        """First entry in `order`, and number of entries, of each key."""
        if self.offsets is not None:
            first = self.offsets[keys]
            return first, self.offsets[keys + 1] - first
        first = np.searchsorted(self.keys, keys, side="left")
        return first, np.searchsorted(self.keys, keys, side="right") - first

    def at(self, positions: Ints) -> Ints:
        """Original positions of these entries of `order`; 0 if the index is empty."""
        if not len(self.order):
            return np.zeros(len(positions), dtype=np.int64)
        return self.order[np.minimum(positions, len(self.order) - 1)]


MAX_OFFSETS = 1 << 22
"""Largest number of possible keys for which an index stores an offset each."""
