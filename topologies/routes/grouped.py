"""Ways whose detours go by another group: what routing must know of a dragonfly's groups."""

from typing import Protocol, runtime_checkable

from quadrille.topologies.structured_paths import Detours, Ints


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
class Grouped(Detours, Protocol):
    """Detours by way of another group: the remainder of `random` by the number of groups less two says by which."""

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
