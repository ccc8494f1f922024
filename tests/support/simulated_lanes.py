"""Exact simulations of all ranks, with the options that `simulate` does not take."""

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.simulator.loops.period_detector import PeriodDetector
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.lane_simulation import LaneSimulation, SimulationInputs
from quadrille.simulator.ranks.simulated_ranks import choose_ranks


def simulated_spans(schedule, machine, **options):
    """The spans of every rank and iteration, by rank, op and index; options as for `LaneSimulation`."""
    return {(span.rank, span.op, span.index): span for span in _simulated(schedule, machine, options).spans}


def counts_of(schedule, machine, **options):
    """The numbers of rate updates and of events; options as for `LaneSimulation`."""
    engine = _simulated(schedule, machine, options).engine
    return engine.counts, engine.events


def _simulated(schedule, machine, options):
    placement = place_ranks(machine, schedule.grid.size, "packed", schedule.grid)
    ranks = choose_ranks(schedule, Choices(), placement, fold=False, iterations=False)
    simulation = LaneSimulation(SimulationInputs(schedule, machine, Choices(), ranks), PeriodDetector(), **options)
    simulation.run()
    return simulation
