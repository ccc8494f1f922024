"""How crowded the places of a machine are: the ranks that share a host or a GPU, and the cores they share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quadrille.algorithms.schedule.grid import Grid
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True)
class Placement:
    """The fullest place of a run.

    Parameters
    ----------
    ranks : that live there
    cores : of the place; a GPU counts as one
    threads : BLAS threads of each rank unless told otherwise: its share of the cores
    """

    ranks: int
    cores: int
    threads: int

    @property
    def crowded(self) -> bool:
        """Whether ranks outnumber cores."""
        return self.ranks > self.cores

    def remark(self, machine: Machine) -> str:
        """What a user should know of crowded places; empty where each rank has a core.

        >>> from quadrille.experiments.options.machines import find_machine
        >>> Placement(ranks=3, cores=1, threads=1).remark(find_machine("perlmutter", gpus=4))
        'perlmutter: 3 ranks share 1 core, more ranks than cores'
        """
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return f"{machine.name}: {self.ranks} ranks share {cores}, more ranks than cores" if self.crowded else ""

    def fits(self, machine: Machine, rank_bytes: int) -> bool:
        """Whether the memory of the place holds so many bytes of each of its ranks."""
        return self.ranks * rank_bytes <= machine.device.memory_bytes


def placement(machine: Machine, ranks: int, rule: str = "packed", grid: Grid | None = None) -> Placement:
    """How `ranks` ranks live on the machine, as the simulator places them.

    >>> from quadrille.experiments.options.machines import find_machine
    >>> placement(find_machine("perlmutter", gpus=8), 8)
    Placement(ranks=1, cores=1, threads=1)

    Parameters
    ----------
    rule, grid : as `--placement` and `--grid` name them

    Raises
    ------
    InputError : more ranks than the machine has GPUs, a rule that does not fit
    """
    from quadrille.simulator.machine.placement import place_ranks  # a rank that measures has no use for the simulator

    placement = place_ranks(machine, ranks, rule, grid)
    rank = placement.rank_on_fullest_place
    return Placement(placement.sharing(rank), placement.cores(placement.place(rank)), placement.threads(rank))


def nodes_of_ranks(machine: Machine, ranks: int, rule: str = "packed", grid: Grid | None = None) -> list[int]:
    """Number of the node of each rank, by a rule of placement; errors as `placement`.

    >>> from quadrille.experiments.options.machines import find_machine
    >>> nodes_of_ranks(find_machine("perlmutter", gpus=8), 6)
    [0, 0, 0, 0, 1, 1]
    """
    from quadrille.simulator.machine.placement import place_ranks

    placement = place_ranks(machine, ranks, rule, grid)
    nodes: list[int] = (placement.of_rank // placement.net.per_node).tolist()
    return nodes


def lying_otherwise(
    machine: Machine, hosts: Sequence[int], rule: str = "packed", grid: Grid | None = None
) -> Iterator[str]:
    """A line where the machine has ranks on hosts otherwise than they are; errors as `placement`.

    >>> from quadrille.experiments.options.machines import find_machine
    >>> machine = find_machine("perlmutter", gpus=8)
    >>> list(lying_otherwise(machine, [3, 3, 3, 3, 0, 0]))
    []
    >>> print(*lying_otherwise(machine, [0, 1]))
    perlmutter has the 2 ranks on 1 host, and here they are on 2: what it predicts is of other messages than these

    Parameters
    ----------
    hosts : number of the host of each rank, as they are
    """
    nodes = nodes_of_ranks(machine, len(hosts), rule, grid)
    if [nodes.index(node) for node in nodes] != [hosts.index(host) for host in hosts]:
        there, here = len(set(nodes)), len(set(hosts))
        where = f"{there} host{'s' if there > 1 else ''}"
        yield (
            f"{machine.name} has the {len(nodes)} ranks on {where}, and here they are on {here}"
            f"{', otherwise' if there == here else ''}: what it predicts is of other messages than these"
        )
