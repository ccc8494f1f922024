"""`best_training_grid`: the fastest grid for a training step under a scheme, by closed form and then by simulation.

A scheme is tried on grids of the form that its authors give it:

    megatron   data, x
    optimus    z × x meshes that are square
    tesseract  y square z × x meshes, with y no longer than x
    bian       cubes
    4d         any z, y, x with y no longer than x: sums over y move three times as many bytes as sums over x

Each form is repeated over data.  A model with experts is tried with every length of the expert axis
that divides its data ranks and its experts.  Without `--micro-batch`, a grid has the largest microbatch
that fits in memory, because weights are then gathered least often.  Grids whose groups of x
and y together span more than `MOST_NODES_OF_X_AND_Y` nodes are tried only if there are no
other grids, because sums of activations over more nodes are slow.

The closed form (`quadrille.experiments.predict`) hides no communication, so with overlap
its first grid need not be the fastest, and several grids are simulated.

Source of the bytes over x and y: the closed form of the 4D algorithm's paper, arXiv
2305.13525: 12 (y - 1) + 4 (x - 1) without recomputation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.sampled_step import closed_form_seconds
from quadrille.experiments.predict.training_step import TrainingStep, simulated_step
from quadrille.experiments.sweep.sweep_points import BestGrid, with_point_choices
from quadrille.experiments.sweep.sweep_result import SweepAnswer
from quadrille.experiments.sweep.time_limit import TimeLimitExceeded, processor_time_limit
from quadrille.experiments.sweep.training_point import sweep_answer
from quadrille.experiments.workloads.fullest_device import FullestDevice, fullest_device
from quadrille.experiments.workloads.grids import expert_grids, factorisations
from quadrille.experiments.workloads.no_grid import DIVISION, ExcludedGrids, TooLarge
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.topologies.machines.machine import Machine

MOST_NODES_OF_X_AND_Y = 2
GRID_FORMS: dict[str, Callable[[Grid], bool]] = {
    "4d": lambda grid: grid.y <= grid.x,
    "megatron": lambda grid: grid.z == grid.y == 1,
    "optimus": lambda grid: grid.z == grid.x > 1,
    "tesseract": lambda grid: grid.z == grid.x > 1 and 1 < grid.y <= grid.x,
    "bian": lambda grid: grid.z == grid.y == grid.x > 1,
}
FORM_WORDS = {
    "4d": "any z, y, x with y no longer than x",
    "megatron": "x",
    "optimus": "square z=q,x=q with q from 2",
    "tesseract": "z=q,y=r,x=q with r from 2 to q",
    "bian": "cubes z=q,y=q,x=q with q from 2",
}
"""The forms of `GRID_FORMS` as text; each is repeated over data."""
SEARCHED_AXES: tuple[Axis, ...] = ("data", "z", "y", "x")


@dataclass(frozen=True, slots=True)
class RankedStep:
    """A training step on a grid, with its closed-form time [s] and the largest memory of a rank [B]."""

    experiment: TrainingExperiment
    closed_form_seconds: float
    peak_bytes: int


def best_training_grid(point: BestGrid) -> SweepAnswer:
    """The simulated step on the fastest grid, among the grids that the closed form ranks first.

    Raises
    ------
    InputError : the model or the machine is not possible, or no grid of the scheme's form fits in memory
    """
    point = with_point_choices(point)
    machine = point.machine
    assert isinstance(point.experiment, TrainingExperiment)
    return simulated_best(ranked_steps(point.experiment, point.gpus, machine), machine, point.top, point.most_seconds)


def simulated_best(ranked: Sequence[RankedStep], machine: Machine, top: int, most_seconds: float) -> SweepAnswer:
    """The fastest of the first ranked steps, by simulation.

    Parameters
    ----------
    ranked : training steps, the fastest by the closed form first
    top : number of steps that are simulated
    most_seconds : processor time after which the simulation of a step stops [s]

    Raises
    ------
    InputError : no simulation ended in time
    """
    simulated: list[tuple[TrainingStep, RankedStep]] = []
    left_out: list[str] = []
    for candidate in ranked[:top]:
        try:
            with processor_time_limit(most_seconds):
                step = simulated_step(candidate.experiment, machine)
            simulated.append((step, candidate))
        except TimeLimitExceeded as error:
            experiment, closed = candidate.experiment, format_seconds(candidate.closed_form_seconds)
            named = f"{experiment.name} on {experiment.grid}"
            left_out.append(f"{named} is left out ({closed} by the closed form): {error}")
    if not simulated:
        raise InputError("; ".join(left_out))
    step, fastest = min(simulated, key=lambda pair: pair[0].seconds)
    answer = sweep_answer(
        fastest.experiment, machine, step, fastest.peak_bytes, closed_form_seconds=fastest.closed_form_seconds
    )
    return msgspec.structs.replace(
        answer, grids=len(ranked), simulated=len(simulated), remarks=(*answer.remarks, *left_out)
    )


def ranked_steps(experiment: TrainingExperiment, gpus: int, machine: Machine) -> list[RankedStep]:
    """Every grid of the scheme's form on which the model fits in memory, the fastest by the closed form first.

    Parameters
    ----------
    experiment : training step on any grid; its rank order, and its microbatch if there is one, hold for all grids
    gpus : number of GPUs

    Raises
    ------
    InputError : no grid is left; the message has the reason
    """
    execution = experiment.execution
    # The order of `axes:` says which ranks share a device, not how many: any grid of so many ranks tells.
    device = fullest_device(machine, gpus, execution.placement, Grid(x=gpus))
    closed_form_model = ClosedFormModel(machine, experiment.dtype, gpus, execution.choices, execution.threads)
    excluded = ExcludedGrids()
    ranked: list[RankedStep] = []
    for grids in _grids_by_width(step_grids(experiment, gpus), machine):
        if ranked:
            break
        for grid in grids:
            try:
                sized, peak_bytes = _with_largest_microbatch(replace(experiment, grid=grid), machine, device)
            except InputError as error:
                excluded.add(DIVISION, str(error))
                continue
            if device.fits(machine, peak_bytes):
                ranked.append(RankedStep(sized, closed_form_seconds(sized, closed_form_model), peak_bytes))
            else:
                excluded.add_too_large(TooLarge(sized, peak_bytes), machine)
    if not ranked and not excluded.counts:
        form = FORM_WORDS[experiment.name]
        raise InputError(f"scheme {experiment.name} has no grid of {gpus} ranks: it takes {form}, repeated over data")
    if not ranked:
        raise excluded.error(f"a step of scheme {experiment.name}", "grid", machine, device.ranks)
    return sorted(ranked, key=lambda step: float(f"{step.closed_form_seconds:.9e}"))


def step_grids(experiment: TrainingExperiment, gpus: int) -> Iterator[Grid]:
    """The grids of the scheme's form, with the rank order of the experiment's grid.

    >>> from quadrille.algorithms.training.gpt import gpt_from_shape
    >>> from quadrille.algorithms.training.model_shapes import SHAPES
    >>> from quadrille.algorithms.training.scheme_catalogue import find_scheme
    >>> tiny = TrainingExperiment(gpt_from_shape(SHAPES["tiny"], 8), scheme=find_scheme("optimus"))
    >>> [str(grid) for grid in step_grids(tiny, 16)]
    ['z=4,x=4', 'data=4,z=2,x=2']
    """
    form, problem = GRID_FORMS[experiment.scheme.name], experiment.problem
    experts = problem.experts.count if isinstance(problem, Gpt) and problem.experts else 1
    for lengths in factorisations(gpus, len(SEARCHED_AXES)):
        grid = Grid(**dict(zip(SEARCHED_AXES, lengths, strict=True)), order=experiment.grid.order)
        try:
            experiment.scheme.check(grid)
        except InputError:
            continue
        if form(grid):
            yield from expert_grids(grid, experts)


def _grids_by_width(grids: Iterable[Grid], machine: Machine) -> tuple[list[Grid], list[Grid]]:
    """The grids whose x and y together span at most `MOST_NODES_OF_X_AND_Y` nodes, and the other grids."""
    from quadrille.simulator.machine.network import network_of

    widest = MOST_NODES_OF_X_AND_Y * network_of(machine).per_node
    grids_by_width: tuple[list[Grid], list[Grid]] = [], []
    for grid in grids:
        grids_by_width[grid.x * grid.y > widest].append(grid)
    return grids_by_width


def _with_largest_microbatch(
    experiment: TrainingExperiment, machine: Machine, device: FullestDevice
) -> tuple[TrainingExperiment, int]:
    """The experiment with its largest microbatch that fits, else the smallest, and the largest memory of a rank [B]."""
    if not isinstance(experiment.problem, Gpt) or experiment.problem.micro_batch is not None:
        return experiment, experiment_peak_bytes(experiment)
    problem = experiment.problem
    sequences = -(-problem.batch // (experiment.grid.data * experiment.grid.z))
    peak_bytes = experiment_peak_bytes(experiment)
    for micro_batch in (size for size in range(sequences // 2, 0, -1) if sequences % size == 0):
        if device.fits(machine, peak_bytes):
            break
        smaller = replace(experiment, problem=replace(problem, micro_batch=micro_batch))
        try:
            peak_bytes, experiment = experiment_peak_bytes(smaller), smaller
        except InputError:
            break
    return experiment, peak_bytes
