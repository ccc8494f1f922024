"""`simulate`: the prediction of a schedule in Python, with the defaults of `quadrille simulate`."""

from dataclasses import replace
from typing import TYPE_CHECKING

from quadrille.algorithms.collectives.collective_choices import DEFAULT_CHOICES, Choices
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.simulate import ALL_SHORTCUTS, Prediction, Shortcuts
from quadrille.simulator.simulate import simulate as simulate_schedule

if TYPE_CHECKING:
    from quadrille.topologies.machines.machine import Machine


def simulate(
    schedule: Schedule,
    machine: "Machine",
    *,
    choices: Choices = DEFAULT_CHOICES,
    threads: int | None = None,
    placement: str = "packed",
    shortcuts: Shortcuts = ALL_SHORTCUTS,
    granularity: AskedGranularity = "auto",
) -> Prediction:
    """Predict a schedule on a machine.

    Parameters
    ----------
    choices : which implementation runs each collective; by default what the machine runs, NCCL on GPUs
    threads : BLAS threads of each rank, by default its share of the host's cores
    placement : rule of the rank placement
    shortcuts : shortcuts of the simulation, which change no answer
    granularity : `exact`, `collective` for bounds of the makespan, or `auto`: exact unless it takes too long or the
        collectives are NCCL's, whose steps are unknown

    Raises
    ------
    InputError : more ranks than GPUs, an unknown topology, a network that faults have cut in two
    Deadlock : ranks that wait on each other, with their ops
    """
    prediction = simulate_schedule(
        schedule,
        machine,
        choices=choices,
        threads=threads,
        placement=placement,
        shortcuts=shortcuts,
        granularity=granularity,
    )
    return replace(prediction, machine=machine.name)
