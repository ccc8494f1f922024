"""The collectives of a prediction that names none: what the machine would run.

GPUs of a known kind run NCCL, AMD's run RCCL. Hosts run Quadrille's own steps, as do GPUs whose kind the machine does
not name, ranks that share a GPU, and the clusters of benchmarks of simulators.
"""

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.topologies.machines.machine import Machine

BENCHMARKS = "bench-"
"""Begin of the names of machines on which simulators are compared by their rings."""
OWN, NCCL = Choices(), Choices("nccl")


def machine_choices(choices: Choices, machine: Machine) -> Choices:
    """The choices, with those of the machine where none were named.

    >>> from quadrille.algorithms.collectives.collective_choices import DEFAULT_CHOICES
    >>> from quadrille.topologies.find_machine import find_machine
    >>> str(machine_choices(DEFAULT_CHOICES, find_machine("perlmutter", gpus=8)))
    'nccl'
    """
    if not choices.by_machine:
        return choices
    from quadrille.topologies.gpu_kind import gpu_generation

    is_benchmark = str(machine.topology.get("family", "")).startswith(BENCHMARKS)
    runs_nccl = machine.host is None and not is_benchmark and gpu_generation(machine) is not None
    return NCCL if runs_nccl else OWN
