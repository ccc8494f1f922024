"""What a transfer takes by itself: measured seconds by its bytes, or what the data sheet says.

Both kinds of prediction price transfers by these: one activity after the other (`wiring.py`), and many ranks at
once (`steady/prices.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from quadrille.algorithms.formats.measured_rows import TransferRow
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.machine.seconds_by_size import SecondsBySize
from quadrille.topologies.machines.machine import Machine

SAME_PLACE_TOUCHES = 2
"""Bytes of memory read and written for one byte that goes from a rank to another on its host."""


@dataclass(frozen=True, slots=True)
class TransferSeconds:
    """Seconds of a transfer by its bytes, as one step of a pattern.

    >>> TransferSeconds(latency=1e-6, bandwidth=1e9).moving(1000)
    1e-06

    Parameters
    ----------
    latency : paid before bytes move [s]
    measured : latency and movement together, None where nothing was measured
    bandwidth : where nothing was measured [B/s]
    by_route : whether nothing is known but the route, whose latency counts then
    takes_a_core : whether work beside it slows it; not where it was measured among more ranks than cores
    """

    latency: float
    measured: SecondsBySize | None = None
    bandwidth: float = inf
    by_route: bool = False
    takes_a_core: bool = True

    def moving(self, size: float) -> float:
        """Seconds behind the latency, with nothing else under way."""
        if self.measured is None:
            return size / self.bandwidth
        return max(0.0, self.measured.seconds(size) - self.measured.least)

    def touching(self, size: float) -> float:
        """Memory of the host that is read and written while bytes move [B/s]."""
        if self.measured is None:
            return SAME_PLACE_TOUCHES * self.bandwidth
        moving = self.moving(size)
        return SAME_PLACE_TOUCHES * size / moving if moving else 0.0

    def covers(self, size: float) -> bool:
        """Whether so many bytes are not many more than were measured."""
        return self.measured is None or self.measured.covers(size)


class TransferTable:
    """What a machine file says of transfers between the ranks of a run.

    Which rows count depends on how many take part: on a host its ranks, on the network the places that have ranks.
    """

    def __init__(self, machine: Machine, placement: RankPlacement) -> None:
        self._machine, self._homes = machine, placement
        self._found: dict[tuple[str, str, int, int], TransferSeconds] = {}

    def within(self, pattern: str, rank: int) -> TransferSeconds:
        """From this rank to another of its host."""
        cores, neighbours = self._homes.cores(self._homes.place(rank)), self._homes.neighbours(rank)
        key = ("host", pattern, neighbours, cores)
        if key not in self._found:
            self._found[key] = self._within(pattern, neighbours, cores)
        return self._found[key]

    def _within(self, pattern: str, neighbours: int, cores: int) -> TransferSeconds:
        host, device = self._machine.host, self._machine.device
        found = rows_of(host.transfer if host is not None else (), pattern, neighbours, cores)
        if found is None:
            return TransferSeconds(
                device.overhead_seconds, bandwidth=device.memory_bytes_per_second / SAME_PLACE_TOUCHES
            )
        measured, ranks = found
        return TransferSeconds(measured.least, measured, takes_a_core=ranks <= cores)

    def across(self, pattern: str) -> TransferSeconds:
        """Between places; nothing but the route bounds it where nothing was measured."""
        places = self._homes.used_places, self._homes.net.endpoint_count
        key = ("network", pattern, *places)
        if key not in self._found:
            network = self._machine.network
            found = rows_of(network.transfer if network is not None else (), pattern, *places)
            self._found[key] = (
                TransferSeconds(0.0, by_route=True) if found is None else TransferSeconds(found[0].least, found[0])
            )
        return self._found[key]


def rows_of(rows: Sequence[TransferRow], pattern: str, taking_part: int, most: int) -> tuple[SecondsBySize, int] | None:
    """The rows of this pattern, or of the one most like it, on the number of ranks nearest to those taking part.

    Rows of more ranks than `most`, cores or hosts, are used only where there are no others, as of the ranks of one GPU.
    Where two exchange, each sends and receives at once as in a shift, which is what was measured of two.
    """
    if not rows:
        return None
    of_two = {row.pattern for row in rows if row.ranks == taking_part == 2}
    if pattern == "exchange" and pattern not in of_two and "shift" in of_two:
        pattern = "shift"
    measured = {row.pattern for row in rows}
    nearest = next(p for p in (pattern, "shift", "exchange", "one_way") if p in measured)
    counts = {row.ranks for row in rows if row.pattern == nearest}
    ranks = min(counts, key=lambda count: (count > most, abs(count - taking_part), count))
    points = ((row.bytes, row.seconds) for row in rows if row.pattern == nearest and row.ranks == ranks)
    return SecondsBySize.growing(points), ranks
