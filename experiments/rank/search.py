"""The configurations of schemes ranked by the closed form: which fit in memory, and how long a step of each takes.

An estimate (`estimate.py`) orders the configurations of each scheme.  The best are
evaluated in full until enough of them fit: their memory from their own schedules,
their seconds by the closed form (`quadrille.experiments.predict`) of a few layers and
microbatches, combined in the order of the pipeline's slots (`sampled_step.py`).  NCCL's
rings have the bandwidths of the 4D model: measured if there is a table, else
simulated.  The best configurations are also tried in other rank orders.

Without a pipeline a grid takes the largest microbatch that fits, because weights
are then fetched least often.  With a pipeline each microbatch is its own configuration.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.analysis.axonn import MODELLED
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.output.progress import StepCount
from quadrille.experiments.rank.bandwidths import Ring, known, simulated_bandwidth, table_of
from quadrille.experiments.rank.configurations import LeftOut, Space, configurations
from quadrille.experiments.rank.estimate import estimated_seconds, least_bytes
from quadrille.experiments.rank.one_configuration import Configuration, Evaluator, too_large
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.sharing import Crew
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.rank_orders import grids_in_every_order
from quadrille.experiments.workloads.training import TrainingExperiment

ENOUGH, FOR_EACH_SCHEME, TOGETHER = 32, 20, 16
"""Fitting configurations that are wanted in all, and at least of each scheme; configurations evaluated at a time."""
MOST = 4
"""Limit of the configurations that are evaluated, as a multiple of those wanted."""
MEMORY, SLOWER, TURNED = "memory", "the estimate, slower than those looked at", "another rank order, slower"
Alternatives = tuple[TrainingExperiment, ...]
"""Configurations of which the first that fits is taken."""


@dataclass(frozen=True, slots=True)
class RankedConfigurations:
    """Configurations by the closed form, the fastest first.

    Parameters
    ----------
    bandwidths : bus bandwidth of each ring that was simulated [B/s]
    from_table : whether the bandwidths of the other rings were measured
    """

    best: tuple[Configuration, ...]
    evaluator: Evaluator
    left_out: LeftOut
    bandwidths: dict[Ring, float]
    from_table: bool


def search(question: RankQuestion, space: Space, crew: Crew) -> RankedConfigurations:
    """The evaluated configurations that fit.

    Raises
    ------
    InputError : no configuration is left; the message has the reasons
    """
    every, left_out = configurations(question, space)
    fitting = _that_may_fit(question, every, left_out)
    rings, simulated = _rings(question, [experiment.grid for experiment in fitting], crew)
    evaluator = Evaluator(question, rings)
    best: list[Configuration] = []
    enough = max(FOR_EACH_SCHEME, ENOUGH // len(space.schemes))
    first = [
        _by_estimate(question, evaluator, [experiment for experiment in fitting if experiment.scheme == scheme])
        for scheme in space.schemes
    ]
    with crew.progress("evaluated", "layouts", sum(min(len(of_scheme), MOST * enough) for of_scheme in first)) as tally:
        for of_scheme in first:
            best += _looked_at(evaluator, of_scheme, left_out, crew, enough, tally)
    if not best:
        raise InputError(_nothing_left(question, left_out))
    best = _in_order(best)
    if question.limits.order is None:
        turned = [tuple(_orders(configuration.experiment)) for configuration in best[: question.top]]
        rings, more = _rings(question, [experiment.grid for orders in turned for experiment in orders], crew)
        evaluator, simulated = Evaluator(question, rings), simulated | more
        fastest = crew.share(evaluator.fastest, turned, "evaluated", "configurations in all rank orders")
        left_out.add(
            TURNED, f"{turned[0][-1].scheme.name} on {turned[0][-1].grid}", sum(map(len, turned)) - len(turned)
        )
        best = _in_order([*fastest, *best[question.top :]])
    measured = table_of(question.machine, question.gpus) is not None
    return RankedConfigurations(tuple(best), evaluator, left_out, simulated, measured)


def _nothing_left(question: RankQuestion, left_out: LeftOut) -> str:
    """Why no configuration is left, and what would help."""
    if not left_out.counts:
        return f"no grid of {question.gpus} GPUs has --min-model-parallel {question.limits.least_model_parallel}" + (
            " and powers of two alone: leave --powers-of-two out" if question.limits.powers_of_two else ""
        )
    helps = (
        "; more --gpus, --recompute full or a machine with more memory would help" if MEMORY in left_out.counts else ""
    )
    return f"no configuration is left: {'; '.join(left_out.lines())}{helps}"


def _that_may_fit(
    question: RankQuestion, every: Sequence[TrainingExperiment], left_out: LeftOut
) -> list[TrainingExperiment]:
    """The configurations whose weights, gradients and optimizer states fit."""
    room = question.machine.device.memory_bytes / fullest_device(question.machine, question.gpus).ranks
    candidates = []
    for experiment in every:
        needed = least_bytes(experiment, question.shape)
        if needed <= room:
            candidates.append(experiment)
        else:
            left_out.add(MEMORY, too_large(question.machine, experiment, int(needed)))
    return candidates


def _rings(question: RankQuestion, grids: Sequence[Grid], crew: Crew) -> tuple[dict[Ring, float], dict[Ring, float]]:
    """Bandwidths of NCCL's rings on these grids, and the simulated bandwidths; empty for our own rings."""
    if question.training.execution.choices.carriage != "nccl":
        return {}, {}
    rings = {(grid.stride(axis), grid.length(axis)) for grid in grids for axis in MODELLED}
    bandwidths, lacking = known(rings, table_of(question.machine, question.gpus))
    rate = simulated_bandwidth(question.machine, question.gpus)
    simulated = dict(zip(lacking, crew.share(rate, lacking, "simulated", "bandwidths that no table has"), strict=True))
    return bandwidths | simulated, simulated


def _by_estimate(
    question: RankQuestion, evaluator: Evaluator, every: Sequence[TrainingExperiment]
) -> list[Alternatives]:
    """The configurations of a scheme, the fastest by the estimate first."""
    products, peak = question.products(), question.peak_flops_per_second
    grouped: dict[object, list[TrainingExperiment]] = defaultdict(list)
    for number, experiment in enumerate(every):
        alone = number if experiment.grid.pipeline > 1 else None
        grouped[experiment.grid, experiment.problem.zero, alone].append(experiment)

    def seconds(alternatives: Alternatives) -> float:
        experiment = alternatives[0]
        bandwidths = {axis: evaluator.bandwidth(experiment, axis) for axis in MODELLED}
        return float(f"{estimated_seconds(experiment, question.shape, products, bandwidths, peak):.9e}")

    return sorted(map(tuple, grouped.values()), key=seconds)


def _looked_at(
    evaluator: Evaluator, first: Sequence[Alternatives], left_out: LeftOut, crew: Crew, enough: int, tally: StepCount
) -> list[Configuration]:
    """The configurations of a scheme that fit, until there are enough."""
    fitting: list[Configuration] = []
    looked, most = 0, min(len(first), MOST * enough)
    while looked < most and len(fitting) < enough:
        part = first[looked : looked + TOGETHER]
        looked += len(part)
        for alternatives, seen in zip(part, crew.answers(evaluator.first_that_fits, part, tally), strict=True):
            if isinstance(seen, Configuration):
                fitting.append(seen)
            else:
                left_out.add(MEMORY, too_large(evaluator.machine, alternatives[0], seen), len(alternatives))
    tally.total -= max(0, most - looked)
    if left := sum(map(len, first[looked:])):
        left_out.add(SLOWER, f"{first[looked][0].scheme.name} on {first[looked][0].grid}", left)
    return fitting


def _orders(experiment: TrainingExperiment) -> Iterator[TrainingExperiment]:
    """The configuration in all distinct rank orders, with the pipeline's axis the slowest."""
    return (replace(experiment, grid=grid) for grid in grids_in_every_order(experiment.grid))


def _in_order(ranked: Sequence[Configuration]) -> list[Configuration]:
    return sorted(ranked, key=lambda configuration: float(f"{configuration.step.seconds:.9e}"))
