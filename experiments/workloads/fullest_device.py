"""`FullestDevice`: the device that the largest number of ranks share, and the node of each rank, by rank placement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quadrille.algorithms.schedule.grid import Grid
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:  # a rank imports no simulator
    from quadrille.simulator.machine.placement import RankPlacement


@dataclass(frozen=True, slots=True)
class FullestDevice:
    """The GPU or host that the largest number of ranks of a run share.

    Parameters
    ----------
    ranks : number of ranks on the device
    cores : number of cores of the host; a GPU counts as one core
    threads : default number of BLAS threads of each rank: its share of the cores
    """

    ranks: int
    cores: int
    threads: int

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more ranks than cores."""
        return self.ranks > self.cores

    def remark(self, machine: Machine) -> str:
        """A remark about an oversubscribed device; empty if each rank has a core.

        >>> from quadrille.topologies.find_machine import find_machine
        >>> FullestDevice(ranks=3, cores=1, threads=1).remark(find_machine("perlmutter", gpus=4))
        'perlmutter: 3 ranks share 1 core, more ranks than cores'
        """
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return f"{machine.name}: {self.ranks} ranks share {cores}, more ranks than cores" if self.oversubscribed else ""

    def fits(self, machine: Machine, rank_bytes: int) -> bool:
        """Whether the memory of the device holds this number of bytes for each of its ranks."""
        return self.ranks * rank_bytes <= machine.device.memory_bytes


def fullest_device(machine: Machine, ranks: int, rule: str = "packed", grid: Grid | None = None) -> FullestDevice:
    """The device with the largest number of ranks in a run on a machine.

    >>> from quadrille.topologies.find_machine import find_machine
    >>> fullest_device(find_machine("perlmutter", gpus=8), 8)
    FullestDevice(ranks=1, cores=1, threads=1)

    Parameters
    ----------
    ranks : number of ranks of the run
    rule : placement rule, as `--placement` names it
    grid : grid of the ranks, for rules that place ranks by axis

    Raises
    ------
    InputError : more ranks than the machine has GPUs, a rule that does not fit
    """
    from quadrille.simulator.machine.placement import place_ranks

    return fullest_of(place_ranks(machine, ranks, rule, grid))


def fullest_of(placement: "RankPlacement") -> FullestDevice:
    """The fullest device, given the placement of ranks."""
    rank = placement.rank_on_fullest_endpoint
    return FullestDevice(placement.sharing(rank), placement.cores(placement.endpoint(rank)), placement.threads(rank))


def nodes_of_ranks(placement: "RankPlacement") -> list[int]:
    """The number of the node of each rank.

    >>> from quadrille.simulator.machine.placement import place_ranks
    >>> from quadrille.topologies.find_machine import find_machine
    >>> nodes_of_ranks(place_ranks(find_machine("perlmutter", gpus=8), 6))
    [0, 0, 0, 0, 1, 1]
    """
    nodes: list[int] = (placement.of_rank // placement.net.per_node).tolist()
    return nodes


def host_grouping_remark(machine: Machine, nodes: Sequence[int], hosts: Sequence[int]) -> Iterator[str]:
    """A remark if the run groups ranks on hosts otherwise than the machine of the prediction does.

    >>> from quadrille.topologies.find_machine import find_machine
    >>> machine = find_machine("perlmutter", gpus=8)
    >>> list(host_grouping_remark(machine, [0, 0, 0, 0, 1, 1], [3, 3, 3, 3, 0, 0]))
    []
    >>> print(*host_grouping_remark(machine, [0, 0], [0, 1]))
    perlmutter has the 2 ranks on 1 host, and this run has them on 2: the prediction is for other messages

    Parameters
    ----------
    nodes : number of the node of each rank on the machine
    hosts : number of the host of each rank in the run
    """
    if [nodes.index(node) for node in nodes] != [hosts.index(host) for host in hosts]:
        there, here = len(set(nodes)), len(set(hosts))
        where = f"{there} host{'s' if there > 1 else ''}"
        yield (
            f"{machine.name} has the {len(nodes)} ranks on {where}, and this run has them on {here}"
            f"{' in another grouping' if there == here else ''}: the prediction is for other messages"
        )
