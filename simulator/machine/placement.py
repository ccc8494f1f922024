"""Where the ranks of a run live, and what that means for their speed."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from quadrille.algorithms.schedule.grid import Grid
from quadrille.simulator.machine.network import bursts_of, cores_of_places, homes, network_of, speeds_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats, Ints, Network


@dataclass(frozen=True, eq=False)
class RankPlacement:
    """The compute place of each rank.

    Parameters
    ----------
    net : the network of the machine, faults included
    of_rank : place of each rank
    """

    machine: Machine
    net: Network
    of_rank: Ints

    @cached_property
    def _ranks_at(self) -> Ints:
        """How many ranks live at each place."""
        return np.bincount(self.of_rank, minlength=self.net.endpoint_count)

    @cached_property
    def _speeds(self) -> Floats:
        return speeds_of(self.machine, self.net)

    def place(self, rank: int) -> int:
        return int(self.of_rank[rank])

    def cores(self, place: int) -> int:
        """Cores of a host; a GPU counts as one."""
        return int(self._cores[place])

    @cached_property
    def _cores(self) -> Ints:
        return cores_of_places(self.machine, self.net)

    @property
    def hosts_share_cores(self) -> bool:
        """Whether all places are hosts on one machine, whose cores and memory they share."""
        host = self.machine.host
        return host is not None and host.shared_by_hosts and self.net.endpoints[0] != "gpu"

    @property
    def pinned_evenly(self) -> bool:
        """Whether each rank keeps to one core of those that hosts share, as ranks do where cores go round evenly."""
        return self.hosts_share_cores and len(self.of_rank) % self.cores(0) == 0

    @property
    def uneven(self) -> bool:
        """Whether ranks share the cores of all hosts and cannot be dealt out to them."""
        return self.hosts_share_cores and not self.pinned_evenly and len(self.of_rank) > self.cores(0)

    @cached_property
    def core_of_rank(self) -> Ints:
        """The core that each rank keeps to, where these are dealt out; 0 where all share all of them."""
        return np.arange(len(self.of_rank)) % (self.cores(0) if self.pinned_evenly else 1)

    @property
    def _alike_by_core(self) -> Ints:
        """What ranks have in common that may be alike: a core; nothing where ranks change cores, each at its time."""
        return np.arange(len(self.of_rank)) if self.uneven else self.core_of_rank

    def neighbours(self, rank: int) -> int:
        """Ranks that live where this one does, itself included."""
        return int(self._ranks_at[self.of_rank[rank]])

    def sharing(self, rank: int) -> int:
        """Ranks that share cores with this one, itself included."""
        return len(self.of_rank) if self.hosts_share_cores else self.neighbours(rank)

    def threads(self, rank: int) -> int:
        """BLAS threads of a rank unless told otherwise: its share of the cores."""
        return max(1, self.cores(self.place(rank)) // self.sharing(rank))

    def speed(self, rank: int) -> float:
        """Share of its speed that a rank computes with."""
        return float(self._speeds[self.of_rank[rank]])

    @cached_property
    def bursts(self) -> Floats:
        """What each link lets through at once after an idle time [links] [B]; empty where none has a token bucket."""
        return bursts_of(self.machine, self.net)

    @cached_property
    def used_places(self) -> int:
        """Places where ranks live."""
        return int(np.count_nonzero(self._ranks_at))

    @cached_property
    def rank_on_fullest_place(self) -> int:
        """A rank at a place where most ranks live."""
        return int(np.argmax(self._ranks_at[self.of_rank]))

    @property
    def shared(self) -> bool:
        """Whether any two ranks share a place."""
        return self.used_places < len(self.of_rank)

    def columns(self) -> dict[str, Floats]:
        """What tells ranks apart by where they live: an attribute of each."""
        return {
            "core": self._alike_by_core.astype(np.float64),
            "speed": self._speeds[self.of_rank],
            "ranks that share its place": self._ranks_at[self.of_rank].astype(np.float64),
            "cores": self._cores[self.of_rank].astype(np.float64),
        }


def place_ranks(machine: Machine, ranks: int, placement: str = "packed", grid: Grid | None = None) -> RankPlacement:
    """Where the ranks of a run live on a machine.

    Raises
    ------
    InputError : more ranks than GPUs, a placement or a fault that does not fit
    """
    net = network_of(machine)
    return RankPlacement(machine, net, homes(machine, net, ranks, placement, grid))
