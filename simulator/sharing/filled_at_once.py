"""Max-min rates of one set of flows after the other, by the kernels of `filling.py`.

All sets are laid out in the same arrays, which have room for the largest so far.
The kernels begin in plain Python; once more has been filled than loading Numba
costs, their compiled twins take over.
"""

from collections.abc import Sequence
from math import inf

from algorithms.errors import InputError
from simulator.sharing import filling
from simulator.sharing.compiled import Kernel, as_table, compiled
from simulator.sharing.filling import fill
from simulator.sharing.flow_state import State, as_lists, blank_state

PLAIN_ENTRIES = 200_000
"""Entries filled in plain Python, in all, from which on loading Numba pays."""
LEAST_ROOM = 64


def fill_all(s: State, flows: int) -> None:
    """Rates of the flows 0 .. flows - 1, in `current`."""
    for e in range(s.offsets[flows]):
        s.users[s.links[e]] += 1
    last = 0
    for e in range(s.offsets[flows]):
        j = s.links[e]
        if s.loose[j] == 0:
            s.loose[j] = 1
            s.starts[j] = last
            last += s.users[j]
            s.users[j] = 0
    for f in range(flows):
        s.chosen[f] = f
        for e in range(s.offsets[f], s.offsets[f + 1]):
            j = s.links[e]
            k = s.starts[j] + s.users[j]
            s.users[j] += 1
            s.slot_flow[k] = f
            s.slot_share[k] = s.shares[e]
    fill(s, flows)
    for e in range(s.offsets[flows]):
        s.users[s.links[e]] = 0
        s.loose[s.links[e]] = 0


KERNELS = (*filling.KERNELS, fill_all)


class Filling:
    """Resources, and the rates of whatever set of flows uses them.

    >>> filling = Filling()
    >>> filling.rates([10.0], [[(0, 1.0)], [(0, 1.0)]], [1.0, 1.0], [2.0, inf])
    [2.0, 8.0]
    """

    def __init__(self) -> None:
        self._entries = 0
        self._known = 0  # resources whose capacities have been laid down
        self._room = (0, 0, 0)  # flows, entries, resources
        self._state: State | None = None
        self._table: object = None
        self._twin: Kernel | None = None

    def rates(
        self,
        capacities: Sequence[float],
        rows: Sequence[Sequence[tuple[int, float]]],
        weights: Sequence[float],
        caps: Sequence[float],
    ) -> list[float]:
        """Rate of each flow.

        Parameters
        ----------
        capacities : of all resources, used or not; more than the last time, but those that were there the same
        rows : by flow, resources of finite capacity and what a unit of its rate takes of them, above 0
        weights : above 0
        caps : largest rates, infinite where there are none
        """
        flows = len(rows)
        entries = sum(map(len, rows)) + sum(cap < inf for cap in caps)
        self._entries += entries
        s = self._laid_out(capacities, flows, entries)
        at, first_cap = 0, self._room[2]
        links, shares, offsets = [], [], [0]
        for f, (row, cap) in enumerate(zip(rows, caps, strict=True)):
            for j, share in row:
                links.append(j)
                shares.append(share)
            if cap < inf:
                links.append(first_cap + f)
                shares.append(1.0)
            elif not row:
                raise InputError(f"flow {f} has neither a finite cap nor a resource of finite capacity to hold it back")
            at = len(links)
            offsets.append(at)
        s.offsets[: flows + 1] = offsets
        s.links[:at], s.shares[:at] = links, shares
        s.weights[:flows] = weights
        s.capacities[first_cap : first_cap + flows] = caps
        if self._twin is not None:
            self._twin(self._table, flows)
            found: list[float] = s.current[:flows].tolist()
            return found
        fill_all(s, flows)
        return list(s.current[:flows])

    def _laid_out(self, capacities: Sequence[float], flows: int, entries: int) -> State:
        """The state, with room for so many, and the capacities of all resources."""
        compiles = self._twin is None and self._entries > PLAIN_ENTRIES
        if compiles:
            self._twin = compiled(KERNELS, ["fill_all"])["fill_all"]
        found, room = self._state, self._room
        if found is None or compiles or flows > room[0] or entries > room[1] or len(capacities) > room[2]:
            self._room = (_roomy(flows, room[0]), _roomy(entries, room[1]), _roomy(len(capacities), room[2]))
            found = blank_state(self._room[2] + self._room[0], self._room[0], self._room[1])
            if self._twin is None:
                found = as_lists(found)
            else:
                self._table = as_table(found)
            self._state, self._known = found, 0
        if self._known < len(capacities):
            found.capacities[self._known : len(capacities)] = capacities[self._known :]
            self._known = len(capacities)
        return found


def _roomy(wanted: int, room: int) -> int:
    """Room for what is wanted, and for some more where there was too little."""
    return room if wanted <= room else max(LEAST_ROOM, 2 * wanted)
