"""How crowded the places of a machine are: the ranks that share a host or a GPU, and the cores they share."""

from dataclasses import dataclass

from algorithms.machine import Machine


@dataclass(frozen=True, slots=True)
class Placement:
    """The fullest place of a run, which is where rank 0 lives.

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

    def fits(self, machine: Machine, rank_bytes: int) -> bool:
        """Whether the memory of the place holds so many bytes of each of its ranks."""
        return self.ranks * rank_bytes <= machine.device.memory_bytes


def placement(machine: Machine, ranks: int) -> Placement:
    """How `ranks` ranks live on the machine, as the simulator places them.

    >>> from studies.machines import find_machine
    >>> placement(find_machine("perlmutter", gpus=8), 8)
    Placement(ranks=1, cores=1, threads=1)

    Raises
    ------
    InputError : more ranks than the machine has GPUs
    """
    import simpy  # a rank that measures has no use for the simulator

    from simulator.engine import FlowEngine
    from simulator.wiring import Wiring

    wiring = Wiring(machine, ranks, FlowEngine(simpy.Environment()))
    return Placement(wiring.neighbours(0), wiring.cores_of(wiring.home(0)), wiring.threads(0))
