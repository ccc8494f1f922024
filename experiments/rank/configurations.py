"""Configurations that train a model on a number of GPUs: scheme, grid, microbatch, and the options of `SEARCH_OPTIONS`.

A scheme is tried on grids of the form that its authors give it (`GRID_FORMS` of
`quadrille.experiments.sweep.best_grid`), whose groups of x and y span no more than `MOST_NODES_OF_X_AND_Y` nodes.  A
model with experts is tried with every length of the expert axis that divides its data ranks and experts.  The
pipeline's axis is the slowest.  Microbatches are powers of two, at most `LARGEST_MICROBATCH` sequences in a pipeline,
or all of a replica's share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from quadrille.algorithms.analysis.axonn import MODELLED
from quadrille.algorithms.errors import InputError, ParameterError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt, check_gpt
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.rank.candidate_grids import GridLimits, check_limits
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.search_options import SEARCH_OPTIONS, Value
from quadrille.experiments.sweep.best_grid import GRID_FORMS, MOST_NODES_OF_X_AND_Y
from quadrille.experiments.workloads.grids import divisors, expert_grids, factorisations
from quadrille.experiments.workloads.no_grid import DIVISION, ExcludedGrids
from quadrille.experiments.workloads.rank_orders import FASTEST_FIRST
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.machines.machine import Machine

LARGEST_MICROBATCH = 8


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The values that a search tries for each option.

    Parameters
    ----------
    schemes : schemes
    stages, micro_batches : numbers of stages, and sequences of a microbatch; None for all possible values
    contexts : numbers of ranks along context
    wide : whether options of the step are searched beside the grid, so that memory is counted for the fastest alone
    fitting : number of fitting configurations that are evaluated for each scheme and recomputation; None for the usual
        number for each scheme
    options : values of each option of `SEARCH_OPTIONS`; the question's training step decides about the others
    unsearched : the space without the options that the user asked to search, for comparison; None if there are none
    """

    schemes: tuple[Scheme, ...]
    stages: tuple[int, ...] | None = (1,)
    micro_batches: tuple[int, ...] | None = None
    options: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    unsearched: "SearchSpace | None" = None
    contexts: tuple[int, ...] = (1,)
    fitting: int | None = None
    wide: bool = False


def default_space() -> SearchSpace:
    """The search space of `quadrille rank` without flags: 4D and Megatron-LM's scheme, pipelines, ZeRO, recomputation.

    All overlaps are taken.

    >>> [scheme.name for scheme in default_space().schemes]
    ['4d', 'megatron']
    """
    options = {name: option.by_default for name, option in SEARCH_OPTIONS.items()}
    schemes = (find_scheme("4d"), find_scheme("megatron", sequence_parallel=True))
    return SearchSpace(schemes, None, None, options, wide=True)


def configurations(question: RankQuestion, space: SearchSpace) -> tuple[list[TrainingExperiment], ExcludedGrids]:
    """All possible configurations of a search space, and the excluded configurations by reason.

    Raises
    ------
    ParameterError : the number of GPUs has no grids within the limits
    """
    from quadrille.simulator.machine.network import network_of

    check_limits(question.gpus, question.limits)
    training, per_node = question.training, network_of(question.machine).per_node
    excluded, experiments = ExcludedGrids(), []
    for scheme, grid in product(space.schemes, _grids(question, space)):
        if reason := _exclusion_reason(scheme, grid, per_node) or _duplicate_reason(scheme, grid, space):
            excluded.add(reason, f"{scheme.name} on {grid}")
            continue
        for chosen in _with_options(replace(training, scheme=scheme, grid=grid), space, question.machine):
            for problem in _problems(chosen, space):
                experiment = replace(chosen, problem=problem)
                try:
                    _check_configuration(experiment)
                except InputError as error:
                    excluded.add(DIVISION, str(error))
                else:
                    experiments.append(experiment)
    return experiments, excluded


def _with_options(experiment: TrainingExperiment, space: SearchSpace, machine: Machine) -> Iterator[TrainingExperiment]:
    """The experiment with every combination of the values of options that differ on its grid."""
    with_values = [experiment]
    for name, values in space.options.items():
        option = SEARCH_OPTIONS[name]
        accepted = values if option.exists_on(machine) else (option.idle,)
        with_values = [
            option.applied(chosen, value) for chosen in with_values for value in option.values_on(chosen, accepted)
        ]
    yield from with_values


def _grids(question: RankQuestion, space: SearchSpace) -> Iterator[Grid]:
    """The grids within the limits, for a model of experts with every length of the expert axis."""
    experts = question.problem.experts.count if question.problem.experts else 1
    for grid in _boxes(question.gpus, space, question.limits):
        yield from expert_grids(grid, experts, powers_of_two=question.limits.powers_of_two)


def _boxes(gpus: int, space: SearchSpace, limits: GridLimits) -> Iterator[Grid]:
    for count, context in product(space.stages or divisors(gpus), space.contexts):
        if gpus % count:
            raise ParameterError("pipeline", f"{count}: a number of stages that divides {gpus} GPUs is accepted")
        if context > 1 and gpus % context:
            raise ParameterError("context", f"{context}: a number of ranks that divides {gpus} GPUs is accepted")
        for lengths in (
            factorisations(gpus // (count * context), len(MODELLED)) if gpus % (count * context) == 0 else ()
        ):
            grid = Grid(
                **dict(zip(MODELLED, lengths, strict=True)),
                pipeline=count,
                context=context,
                order=limits.order or FASTEST_FIRST,
            )
            if limits.powers_of_two and any(length & (length - 1) for length in (*lengths, count, context)):
                continue
            if grid.x * grid.y * grid.z >= limits.least_model_parallel:
                yield grid


def _exclusion_reason(scheme: Scheme, grid: Grid, per_node: int) -> str:
    """The reason why a scheme is not tried on a grid; empty if it is tried."""
    try:
        scheme.check(grid)
    except InputError:
        return "axes that the scheme lacks"
    if not GRID_FORMS[scheme.name](grid):
        return "the form of grids that the scheme is tried on"
    if grid.x * grid.y > MOST_NODES_OF_X_AND_Y * per_node:
        return f"sums of activations over more than {MOST_NODES_OF_X_AND_Y} nodes"
    return ""


def _duplicate_reason(scheme: Scheme, grid: Grid, space: SearchSpace) -> str:
    """The reason why a configuration is a duplicate; empty if it is none.

    On x alone, 4D is Megatron-LM's scheme; without x, it is that with sequence parallelism, too.
    """
    if scheme != find_scheme("4d") or grid.z * grid.y > 1:
        return ""
    equal = [find_scheme("megatron"), *([find_scheme("megatron", sequence_parallel=True)] if grid.x == 1 else [])]
    is_duplicate = any(tried in space.schemes for tried in equal)
    return "the 4D algorithm on x alone, which is megatron's" if is_duplicate else ""


def _problems(experiment: TrainingExperiment, space: SearchSpace) -> Iterator[Gpt]:
    """The model with each microbatch that is tried, the largest first."""
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    share = -(-problem.batch // (grid.data * grid.z))  # of a batch that data and z do not divide, the larger parts
    sizes: Sequence[int] = space.micro_batches or _microbatch_sizes(
        share, most=share if grid.pipeline == 1 else LARGEST_MICROBATCH
    )
    for size in sorted(sizes, reverse=True):
        yield replace(problem, micro_batch=size)


def _microbatch_sizes(share: int, most: int) -> list[int]:
    """Powers of two that divide the share, and the share itself, up to `most`.

    >>> _microbatch_sizes(12, most=12), _microbatch_sizes(12, most=8)
    ([1, 2, 4, 12], [1, 2, 4])
    """
    powers = [2**power for power in range(share.bit_length())]
    return [size for size in sorted({*powers, share}) if share % size == 0 and size <= most]


def _check_configuration(experiment: TrainingExperiment) -> None:
    """Checks that a configuration is possible.

    Raises
    ------
    InputError : the configuration is not possible; the message has the reason
    """
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    check_gpt(problem, grid, experiment.scheme)
    if grid.y > problem.hidden or grid.x > problem.vocabulary:
        raise InputError(
            f"grid {grid}: hidden = {problem.hidden} is cut over y, and vocabulary = {problem.vocabulary} over x: "
            "each part needs one"
        )
