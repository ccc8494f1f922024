"""The search for the fastest configurations of training schemes: memory and step time by closed form.

An estimate (`lower_estimates.py`) orders the configurations of each scheme.  The best are
evaluated until enough of them fit: their memory from their own schedules,
their seconds by the closed form (`quadrille.experiments.predict`) of a few layers and
microbatches, combined in the order of the pipeline's slots (`sampled_step.py`).  In a wide space memory is counted
for the fastest alone (`search_rounds.py`).  A configuration whose
lower bound is above the times of the best is not evaluated.  NCCL's
rings have the bandwidths of the 4D model: measured if there is a table, else
simulated.  The best configurations are also tried in other rank orders.

Without a pipeline a grid takes the largest microbatch that fits, because weights
are then fetched least often.  With a pipeline each microbatch is its own configuration.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from quadrille.algorithms.analysis.axonn import MODELLED
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import EXPERT, REPLICA, Grid
from quadrille.algorithms.training.context import CONTEXT
from quadrille.algorithms.training.gpt import Gpt
from quadrille.experiments.output.progress import StepCount
from quadrille.experiments.rank.configuration_evaluator import Configuration, Evaluator, speed_key
from quadrille.experiments.rank.configurations import SearchSpace, configurations
from quadrille.experiments.rank.layout_variants import best_of_layouts
from quadrille.experiments.rank.lower_estimates import (
    best_flops_per_second,
    estimated_seconds,
    least_activation_bytes,
    least_bytes,
    offload_seconds,
)
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ring_bandwidths import (
    Ring,
    bandwidth_table,
    simulated_bandwidth,
    simulated_bandwidths,
    split_known_bandwidths,
)
from quadrille.experiments.rank.search_rounds import SLOWER, Alternatives, example, fastest_fitting, possibly_best
from quadrille.experiments.rank.stored_evaluations import (
    evaluation,
    fastest_evaluations,
    first_fitting_evaluations,
)
from quadrille.experiments.rank.work_sharing import WorkSharing
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.no_grid import DIVISION, ExcludedGrids, TooLarge
from quadrille.experiments.workloads.rank_orders import grids_in_every_order
from quadrille.experiments.workloads.training import TrainingExperiment

FITTING_WANTED, FITTING_WANTED_BY_SCHEME, EVALUATED_TOGETHER = 32, 20, 16
"""Number of fitting configurations that are wanted in all, and at least for each scheme; number evaluated at a time."""
MOST_EVALUATED = 4
"""Limit of the configurations that are evaluated, as a multiple of those wanted."""
OTHER_ORDER = "a slower rank order"


@dataclass(frozen=True, slots=True)
class RankedConfigurations:
    """The configurations that a search found.

    Parameters
    ----------
    best : evaluated configurations, the fastest by the closed form first
    evaluator : evaluator of the configurations, for simulations
    excluded : configurations that are left out, by reason
    bandwidths : bus bandwidth of each ring that was simulated [B/s]
    from_table : whether the bandwidths of the other rings were measured
    """

    best: tuple[Configuration, ...]
    evaluator: Evaluator
    excluded: ExcludedGrids
    bandwidths: dict[Ring, float]
    from_table: bool


def search_configurations(
    question: RankQuestion, space: SearchSpace, work_sharing: WorkSharing
) -> RankedConfigurations:
    """The fastest configurations of a search space that fit in memory.

    Parameters
    ----------
    question : model, machine, number of GPUs and limits of the grids
    space : schemes, pipelines, ZeRO stages and microbatches to try
    work_sharing : ranks that share the evaluations

    Raises
    ------
    InputError : no configuration is left; the message has the reasons
    """
    all_experiments, excluded = configurations(question, space)
    fitting = _possibly_fitting(question, all_experiments, excluded, with_activations=space.wide)
    rings, simulated = _ring_bandwidths(question, [experiment.grid for experiment in fitting], work_sharing)
    evaluator = Evaluator(question, rings, fitting)
    by_estimate = [_sorted_by_estimate(question, evaluator, group) for group in _evaluated_apart(fitting, space)]
    evaluate = fastest_fitting if space.wide else partial(_enough_of_each_scheme, space)
    best = evaluate(question, evaluator, by_estimate, excluded, work_sharing)
    if not best:
        raise _no_configuration(question, excluded)
    best = _sorted_by_seconds(best)
    if question.limits.order is None:
        chosen = best_of_layouts(best, question.top) if space.wide else best[: question.top]
        grids = [grid for configuration in chosen for grid in grids_in_every_order(configuration.experiment.grid)]
        rings, more = _ring_bandwidths(question, grids, work_sharing)
        evaluator, simulated = Evaluator(question, rings), simulated | more
        best = _with_best_orders(question, evaluator, best, chosen, excluded, work_sharing)
    measured = bandwidth_table(question.machine, question.gpus) is not None
    return RankedConfigurations(tuple(best), evaluator, excluded, simulated, measured)


def with_best_orders(
    question: RankQuestion, ranking: RankedConfigurations, chosen: Sequence[Configuration], work_sharing: WorkSharing
) -> tuple[RankedConfigurations, list[Configuration]]:
    """The ranking with some of its configurations in their fastest order of ranks, and these configurations.

    Parameters
    ----------
    chosen : configurations of the ranking, on grids of which the evaluator has the rings in all orders
    """
    if question.limits.order is not None:
        return ranking, list(chosen)
    others = {configuration.experiment for configuration in ranking.best} - {each.experiment for each in chosen}
    best = _with_best_orders(question, ranking.evaluator, ranking.best, chosen, ranking.excluded, work_sharing)
    ordered = [configuration for configuration in best if configuration.experiment not in others]
    return replace(ranking, best=tuple(best)), ordered


def _with_best_orders(
    question: RankQuestion,
    evaluator: Evaluator,
    best: Sequence[Configuration],
    chosen: Sequence[Configuration],
    excluded: ExcludedGrids,
    work_sharing: WorkSharing,
) -> list[Configuration]:
    """The configurations, of which the chosen ones are in their fastest order of ranks, the fastest first.

    Parameters
    ----------
    excluded : configurations that are left out; updated
    """
    if not chosen:
        return list(best)
    orders_of_chosen = [tuple(_in_all_orders(configuration.experiment)) for configuration in chosen]
    fastest = work_sharing.share(
        lambda orders: evaluation(evaluator.fastest(orders)),
        orders_of_chosen,
        "evaluated",
        "configurations in all rank orders",
        kind=fastest_evaluations(question, evaluator),
    )
    first = orders_of_chosen[0][-1]
    omitted = sum(map(len, orders_of_chosen)) - len(orders_of_chosen)
    excluded.add(OTHER_ORDER, f"{first.scheme.name} on {first.grid}", omitted)
    ordered = [result.result(orders) for result, orders in zip(fastest, orders_of_chosen, strict=True)]
    rest = (configuration for configuration in best if configuration not in chosen)
    return _sorted_by_seconds([*(result for result in ordered if isinstance(result, Configuration)), *rest])


def _evaluated_apart(fitting: Sequence[TrainingExperiment], space: SearchSpace) -> list[list[TrainingExperiment]]:
    """The configurations in groups, each of which is evaluated until enough fit: by scheme, and by recomputation.

    Recomputation counts only where the space has its own number, because few fit without recomputation.
    """
    groups: dict[object, list[TrainingExperiment]] = {scheme: [] for scheme in space.schemes if space.fitting is None}
    for experiment in fitting:
        assert isinstance(experiment.problem, Gpt)
        key = (experiment.scheme, experiment.problem.recompute) if space.fitting else experiment.scheme
        groups.setdefault(key, []).append(experiment)
    return list(groups.values())


def with_unsearched(ranking: RankedConfigurations, unsearched: Sequence[Configuration]) -> RankedConfigurations:
    """The ranking with the configurations of the space without the searched options, each once."""
    every = {configuration.experiment: configuration for configuration in (*ranking.best, *unsearched)}
    return replace(ranking, best=tuple(_sorted_by_seconds([*every.values()])))


def _no_configuration(question: RankQuestion, excluded: ExcludedGrids) -> InputError:
    """The error if no configuration is left: the reasons, and options that would help."""
    if not excluded.counts:
        return InputError(
            f"no grid of {question.gpus} GPUs with these pipelines has --min-model-parallel "
            f"{question.limits.least_model_parallel}"
        )
    sharing = fullest_device(question.machine, question.gpus).ranks
    error = excluded.error(f"model {question.shape.name}", "configuration", question.machine, sharing)
    batch, gpus = question.problem.batch, question.gpus
    if excluded.least is None and DIVISION in excluded.counts and batch % gpus:
        return InputError(f"{error}; --batch {gpus * (batch // gpus + 1)}, a multiple of the {gpus} GPUs, is divisible")
    return error


def _possibly_fitting(
    question: RankQuestion,
    all_experiments: Sequence[TrainingExperiment],
    excluded: ExcludedGrids,
    *,
    with_activations: bool,
) -> list[TrainingExperiment]:
    """The configurations whose weights, gradients and optimizer states fit, by a lower bound.

    Parameters
    ----------
    with_activations : whether the bound includes activations
    """
    bytes_per_rank = question.machine.device.memory_bytes / fullest_device(question.machine, question.gpus).ranks
    candidates = []
    for experiment in all_experiments:
        states = least_bytes(experiment, question.shape)
        needed = states + (least_activation_bytes(experiment, question.shape) if with_activations else 0)
        if needed <= bytes_per_rank:
            candidates.append(experiment)
            continue
        of_states = states > bytes_per_rank
        too_large = TooLarge(
            experiment, int(states if of_states else needed), states_only=of_states, is_bound=not of_states
        )
        excluded.add_too_large(too_large, question.machine)
    return candidates


def _ring_bandwidths(
    question: RankQuestion, grids: Sequence[Grid], work_sharing: WorkSharing
) -> tuple[dict[Ring, float], dict[Ring, float]]:
    """The bandwidths of NCCL's rings on these grids, and the simulated ones among them; empty for Quadrille's rings."""
    if question.training.execution.choices.implementation != "nccl":
        return {}, {}
    rings = {(grid.stride(axis), grid.length(axis)) for grid in grids for axis in MODELLED}
    rings |= {(grid.stride(CONTEXT), grid.context) for grid in grids if grid.context > 1}
    rings |= {(grid.stride(REPLICA), grid.length(REPLICA)) for grid in grids if grid.expert > 1}
    bandwidths, lacking = split_known_bandwidths(rings, bandwidth_table(question.machine, question.gpus))
    rate = simulated_bandwidth(question.machine, question.gpus)
    kind = simulated_bandwidths(question.machine, question.gpus)
    rates = work_sharing.share(rate, lacking, "simulated", "bandwidths that no table has", kind=kind)
    simulated = dict(zip(lacking, rates, strict=True))
    return bandwidths | simulated, simulated


def _sorted_by_estimate(
    question: RankQuestion, evaluator: Evaluator, all_experiments: Sequence[TrainingExperiment]
) -> list[Alternatives]:
    """The configurations of a scheme, the fastest by the estimate first."""
    products, rate = (
        question.products(),
        best_flops_per_second(question.machine, question.training.dtype, question.problem.products),
    )
    grouped: dict[object, list[TrainingExperiment]] = defaultdict(list)
    for number, experiment in enumerate(all_experiments):
        assert isinstance(experiment.problem, Gpt)
        alone = number if experiment.grid.pipeline > 1 else None
        grouped[replace(experiment, problem=replace(experiment.problem, micro_batch=None)), alone].append(experiment)

    def seconds(alternatives: Alternatives) -> float:
        experiment = alternatives[0]
        axes = (*MODELLED, EXPERT, REPLICA) if experiment.grid.expert > 1 else MODELLED
        bandwidths = {axis: evaluator.bandwidth(experiment, axis) for axis in axes}
        copies = offload_seconds(experiment, question.shape, question.machine.host_link)
        estimate = copies + estimated_seconds(experiment, question.shape, products, bandwidths, rate)
        return float(f"{estimate:.9e}")

    return sorted(map(tuple, grouped.values()), key=seconds)


def _enough_of_each_scheme(
    space: SearchSpace,
    question: RankQuestion,
    evaluator: Evaluator,
    by_estimate: Sequence[Sequence[Alternatives]],
    excluded: ExcludedGrids,
    work_sharing: WorkSharing,
) -> list[Configuration]:
    """The configurations that fit, evaluated in the order of the estimate until there are enough of each scheme."""
    fitting_wanted = space.fitting or max(FITTING_WANTED_BY_SCHEME, FITTING_WANTED // len(space.schemes))
    best: list[Configuration] = []
    total = sum(min(len(candidates), MOST_EVALUATED * fitting_wanted) for candidates in by_estimate)
    with work_sharing.progress("evaluated", "layouts", total) as step_count:
        for candidates in by_estimate:
            best += _evaluate_until_enough(
                question, evaluator, candidates, excluded, work_sharing, fitting_wanted, step_count
            )
    return best


def _evaluate_until_enough(
    question: RankQuestion,
    evaluator: Evaluator,
    by_estimate: Sequence[Alternatives],
    excluded: ExcludedGrids,
    work_sharing: WorkSharing,
    fitting_wanted: int,
    step_count: StepCount,
) -> list[Configuration]:
    """The configurations of a scheme that fit, evaluated in order until there are enough."""
    fitting: list[Configuration] = []
    evaluated, limit = 0, min(len(by_estimate), MOST_EVALUATED * fitting_wanted)
    while evaluated < limit and len(fitting) < fitting_wanted:
        together = by_estimate[evaluated : evaluated + EVALUATED_TOGETHER]
        evaluated += len(together)
        part = possibly_best(question, together, fitting, excluded)
        step_count.done += len(together) - len(part)
        evaluations = work_sharing.answers(
            lambda alternatives: evaluation(evaluator.first_fitting(alternatives)),
            part,
            step_count,
            kind=first_fitting_evaluations(question, evaluator),
        )
        for alternatives, evaluated_first in zip(part, evaluations, strict=True):
            result = evaluated_first.result(alternatives)
            if isinstance(result, Configuration):
                fitting.append(result)
            else:
                excluded.add_too_large(result, evaluator.machine, len(alternatives))
    step_count.total -= max(0, limit - evaluated)
    if remaining := sum(map(len, by_estimate[evaluated:])):
        excluded.add(SLOWER, example(by_estimate[evaluated]), remaining)
    return fitting


def _in_all_orders(experiment: TrainingExperiment) -> Iterator[TrainingExperiment]:
    """The configuration in all distinct rank orders, with the pipeline's axis outermost."""
    return (replace(experiment, grid=grid) for grid in grids_in_every_order(experiment.grid))


def _sorted_by_seconds(ranked: Sequence[Configuration]) -> list[Configuration]:
    return sorted(ranked, key=lambda configuration: speed_key(configuration.step))
