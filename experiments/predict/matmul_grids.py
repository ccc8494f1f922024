"""The process grids of a number of ranks for a matmul, sorted by closed-form (alpha-beta) time."""

from collections.abc import Sequence
from dataclasses import dataclass

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import DEFAULT_CHOICES, Choices
from quadrille.algorithms.matmuls.catalogue import Algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.experiments.predict.closed_form import ClosedForm, ClosedFormModel
from quadrille.experiments.workloads.grids import grids
from quadrille.simulator.machine.default_collectives import machine_choices
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True)
class RankedGrid:
    """A grid of an algorithm with its closed-form time, and the largest memory of a rank [B]."""

    algorithm: str
    grid: Grid
    closed_form: ClosedForm
    peak_bytes: int


def rank_grids(
    problem: Matmul,
    algorithms: Sequence[Algorithm],
    ranks: int,
    machine: Machine,
    *,
    choices: Choices | None = None,
    overlaps: frozenset[OverlapName] = frozenset(),
    order: tuple[Axis, ...] = DEFAULT_ORDER,
    threads: int | None = None,
) -> list[RankedGrid]:
    """Every grid of `ranks` ranks for each of the algorithms, the fastest by closed-form time first.

    Grids whose times differ by less than one part in a billion keep the order of `algorithms`
    and of `grids`.  Overlaps change the memory, not the closed-form time.

    Parameters
    ----------
    choices : algorithm and library of each kind of collective; None for the default
    overlaps : kinds of communication that overlap local work
    order : order of the axes in the numbering of ranks, innermost first
    threads : number of BLAS threads of each rank; by default its share of the host's cores
    """
    chosen = machine_choices(choices or DEFAULT_CHOICES, machine)
    closed_form_model = ClosedFormModel(machine, problem.dtype, ranks, chosen, threads)
    ranked = []
    for algorithm in algorithms:
        for grid in grids(ranks, algorithm, order):
            schedule = overlap(matmul_schedule(problem, algorithm.name, grid), overlaps)
            peak_bytes = storage(schedule, schedule.coordinates(0), chosen).bytes
            ranked.append(RankedGrid(algorithm.name, grid, closed_form_model.closed_form(schedule), peak_bytes))
    return sorted(ranked, key=lambda grid: float(f"{grid.closed_form.seconds:.9e}"))
