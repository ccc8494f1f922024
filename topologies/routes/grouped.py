"""Paths whose detours go by another group: what routing must know of a dragonfly's groups."""

from typing import Protocol, runtime_checkable

from quadrille.topologies.structured_paths import Ints, NonMinimalPaths


class GroupLinks(Protocol):
    """Links between groups of switches, which are numbered through, group by group; `targets` is the switch of each."""

    @property
    def groups(self) -> int: ...
    @property
    def per_group(self) -> int: ...
    @property
    def links(self) -> Ints: ...
    @property
    def targets(self) -> Ints: ...


@runtime_checkable
class GroupedPaths(NonMinimalPaths, Protocol):
    """Non-minimal paths by way of another group.

    The remainder of `random` by the number of groups less two selects the group.
    """

    @property
    def switch_of(self) -> Ints:
        """Switch of each endpoint, numbered through, group by group."""
        ...

    @property
    def local(self) -> Ints:
        """Links within groups, a row for each such switch."""
        ...

    @property
    def between(self) -> GroupLinks:
        """The links between groups."""
        ...
