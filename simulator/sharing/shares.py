"""Who uses which resource, and the rates of those whose share may have changed.

*Which rates to solve again.*  A start or an end can change only the rates of the
connected component it lies in (classes joined by resources); with `local=False`
everything is solved.  When a component holds more than a quarter of what is
active, finding it costs more than it saves, and everything is solved.

*Remembered states.*  A component is known by its classes and their numbers of
members; its rates are kept, within `REMEMBERED` entries, unless `memory=False`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from simulator.sharing.filled_at_once import Filling
from simulator.sharing.flow_class import FlowClass

State = tuple[tuple[int, ...], tuple[int, ...]]  # numbers of classes, and their numbers of members

REMEMBERED = 1 << 20  # classes in all remembered states together, about 100 MB
COUPLED = 64  # classes in a component up to which it is solved by itself in any case

_number = attrgetter("number")


@dataclass(slots=True)
class Tally:
    """How often what was done: changes of state, components solved, components remembered."""

    changes: int = 0
    solved: int = 0
    remembered: int = 0


class Shares:
    """Classes of activities that are under way, by resource.

    >>> shares = Shares(memory=True, local=True)
    >>> shares.capacities.append(10.0), shares.users.append({})
    (None, None)
    >>> one, other = (FlowClass(i, (0,), (1.0,), ((0, 1.0),), 1.0, cap) for i, cap in enumerate((2.0, 9.0)))
    >>> for flow_class in (one, other):
    ...     flow_class.members.append((1.0, 1, None))
    ...     shares.enter(flow_class)
    >>> [rate for _, rate in shares.found()]
    [2.0, 8.0]

    Parameters
    ----------
    memory : remember the rates of states seen before
    local : solve only the connected component that changed
    """

    def __init__(self, *, memory: bool, local: bool) -> None:
        self.tally = Tally()
        self.capacities: list[float] = []
        self.users: list[dict[FlowClass, None]] = []  # active classes by resource
        self.active: dict[FlowClass, None] = {}
        self.changed: dict[FlowClass, None] = {}  # members came or went since the last sharing
        self._memory = memory
        self._local = local
        self._filling = Filling()
        self._states: dict[State, list[float]] = {}
        self._remembered = 0

    def enter(self, c: FlowClass) -> None:
        """A class has its first member."""
        self.active[c] = None
        self.changed[c] = None
        for resource in c.resources:
            self.users[resource][c] = None

    def leave(self, c: FlowClass) -> None:
        """A class has lost its last member."""
        del self.active[c]
        self.changed[c] = None
        for resource in c.resources:
            del self.users[resource][c]

    def found(self) -> Iterator[tuple[FlowClass, float]]:
        """Classes whose rate may have changed since the last time, and the rate of a member of each."""
        self.tally.changes += 1
        for component in self._components() if self._local else [list(self.active)]:
            yield from zip(component, self._rates(component), strict=True)
        self.changed.clear()

    # Which rates are found again

    def _components(self) -> list[list[FlowClass]]:
        """The connected components that changed, or everything when one of them is much of it."""
        limit = max(COUPLED, len(self.active) // 4)
        components: list[list[FlowClass]] = []
        visited: set[FlowClass] = set()
        for seed in self._seeds():
            if seed in visited:
                continue
            component = self._component(seed, visited, limit)
            if len(component) > limit:
                return [list(self.active)]
            components.append(component)
        return components

    def _seeds(self) -> Iterable[FlowClass]:
        """Classes that changed, and the neighbours of those that are now empty."""
        for c in self.changed:
            if c.members:
                yield c
            else:
                for resource in c.resources:
                    yield from self.users[resource]

    def _component(self, seed: FlowClass, visited: set[FlowClass], limit: int) -> list[FlowClass]:
        """Classes joined to `seed` by resources of finite capacity, itself included; breaks off above `limit`."""
        component = [seed]
        visited.add(seed)
        crossed: set[int] = set()
        for c in component:  # grows while it is walked
            if len(component) > limit:
                break
            for resource, _ in c.entries:
                users = self.users[resource]
                if len(users) == 1 or resource in crossed:
                    continue
                crossed.add(resource)
                for neighbour in users:
                    if neighbour not in visited:
                        visited.add(neighbour)
                        component.append(neighbour)
        return component

    # Rates of a component

    def _rates(self, component: list[FlowClass]) -> Sequence[float]:
        """Rate of a member of each class; the component is put in order of class number."""
        if len(component) == 1:
            return (self._alone(component[0]),)
        component.sort(key=_number)
        if not self._memory:
            return self._solved(component)
        key = tuple([c.number for c in component]), tuple([len(c.members) for c in component])
        rates = self._states.get(key)
        if rates is None:
            rates = self._solved(component)
            self._remember(key, rates)
        else:
            self.tally.remembered += 1
        return rates

    def _remember(self, key: State, rates: list[float]) -> None:
        """Keeps a solved state, in place of the oldest ones when there are too many."""
        self._states[key] = rates
        self._remembered += len(rates)
        while self._remembered > REMEMBERED:
            oldest = next(iter(self._states))
            self._remembered -= len(self._states.pop(oldest))

    def _alone(self, c: FlowClass) -> float:
        """Rate of a member of a class that shares with no other."""
        members, rate = len(c.members), c.cap
        for j, d in c.entries:
            rate = min(rate, self.capacities[j] / (d * members))
        return rate

    def _solved(self, component: Sequence[FlowClass]) -> list[float]:
        """Max-min rates of a component; a class of n members demands n times as much."""
        self.tally.solved += 1
        rows = [
            c.entries if len(c.members) == 1 else [(j, d * len(c.members)) for j, d in c.entries] for c in component
        ]
        return self._filling.rates(self.capacities, rows, [c.weight for c in component], [c.cap for c in component])
