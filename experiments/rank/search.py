"""The configurations of schemes ranked by the closed form: which fit in memory, and how long a step of each takes.

Of each scheme the first by an estimate (`estimate.py`) are looked at in full,
until enough fit: their memory from their own schedules, their seconds by the
closed form (`quadrille.experiments.predict`) of a few layers and microbatches, put
together as the turns of the pipeline follow each other (`turns.py`).  NCCL's
rings have the bandwidths that the 4D model has: measured where there is a
table, else simulated.  Of the best, other rank orders are tried too.

Without a pipeline a grid takes the largest microbatch that fits, for then
weights are fetched least often; with one, each is a configuration of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.analysis.axonn import MODELLED
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.rank.bandwidths import Ring, known, simulated_bandwidth, table_of
from quadrille.experiments.rank.configurations import LeftOut, Space, configurations
from quadrille.experiments.rank.estimate import estimated_seconds, least_bytes
from quadrille.experiments.rank.one_configuration import Configuration, Looker, too_large
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.sharing import Crew
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.rank_orders import in_every_order
from quadrille.experiments.workloads.training import TrainingExperiment

ENOUGH, FOR_EACH_SCHEME, TOGETHER = 32, 20, 16
"""Configurations that fit, of all schemes and of each at least; and how many are looked at before these are counted."""
MOST = 4
"""Times as many are looked at as are to fit, at most."""
MEMORY, SLOWER, TURNED = "memory", "the estimate, slower than those looked at", "another rank order, slower"
Alternatives = tuple[TrainingExperiment, ...]
"""Of which the first that fits is taken."""


@dataclass(frozen=True, slots=True)
class RankedConfigurations:
    """Configurations by the closed form, the fastest first.

    Parameters
    ----------
    bandwidths : of the rings that were simulated [B/s]
    from_table : whether others were measured
    """

    best: tuple[Configuration, ...]
    looker: Looker
    left_out: LeftOut
    bandwidths: dict[Ring, float]
    from_table: bool


def search(question: RankQuestion, space: Space, crew: Crew) -> RankedConfigurations:
    """The configurations that were looked at and fit.

    Raises
    ------
    InputError : none is left, with the reasons
    """
    every, left_out = configurations(question, space)
    fitting = _that_may_fit(question, every, left_out)
    rings, simulated = _rings(question, [one.grid for one in fitting], crew)
    looker = Looker(question, rings)
    best: list[Configuration] = []
    enough = max(FOR_EACH_SCHEME, ENOUGH // len(space.schemes))
    for scheme in space.schemes:
        first = _by_estimate(question, looker, [one for one in fitting if one.scheme == scheme])
        best += _looked_at(looker, first, left_out, crew, enough)
    if not best:
        raise InputError(_nothing_left(question, left_out))
    best = _in_order(best)
    if question.limits.order is None:
        turned = [tuple(_orders(one.experiment)) for one in best[: question.top]]
        rings, more = _rings(question, [one.grid for orders in turned for one in orders], crew)
        looker, simulated = Looker(question, rings), simulated | more
        fastest = crew.share(looker.fastest, turned, "rank orders looked at")
        left_out.add(
            TURNED, f"{turned[0][-1].scheme.name} on {turned[0][-1].grid}", sum(map(len, turned)) - len(turned)
        )
        best = _in_order([*fastest, *best[question.top :]])
    measured = table_of(question.machine, question.gpus) is not None
    return RankedConfigurations(tuple(best), looker, left_out, simulated, measured)


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
    """Those whose weights and what belongs to them fit."""
    room = question.machine.device.memory_bytes / fullest_device(question.machine, question.gpus).ranks
    found = []
    for one in every:
        needed = least_bytes(one, question.shape)
        if needed <= room:
            found.append(one)
        else:
            left_out.add(MEMORY, too_large(question.machine, one, int(needed)))
    return found


def _rings(question: RankQuestion, grids: Sequence[Grid], crew: Crew) -> tuple[dict[Ring, float], dict[Ring, float]]:
    """Bandwidths of NCCL's rings on these grids, and those of them that were simulated; none of our own rings."""
    if question.training.execution.choices.carriage != "nccl":
        return {}, {}
    rings = {(grid.stride(axis), grid.length(axis)) for grid in grids for axis in MODELLED}
    found, lacking = known(rings, table_of(question.machine, question.gpus))
    rate = simulated_bandwidth(question.machine, question.gpus)
    simulated = dict(zip(lacking, crew.share(rate, lacking, "bandwidths that no table has"), strict=True))
    return found | simulated, simulated


def _by_estimate(question: RankQuestion, looker: Looker, every: Sequence[TrainingExperiment]) -> list[Alternatives]:
    """The configurations of a scheme, those that are likely to be fast first."""
    products, peak = question.products(), question.peak_flops_per_second
    grouped: dict[object, list[TrainingExperiment]] = defaultdict(list)
    for number, one in enumerate(every):
        alone = number if one.grid.pipeline > 1 else None
        grouped[one.grid, one.problem.zero, alone].append(one)

    def seconds(alternatives: Alternatives) -> float:
        one = alternatives[0]
        bandwidths = {axis: looker.bandwidth(one, axis) for axis in MODELLED}
        return float(f"{estimated_seconds(one, question.shape, products, bandwidths, peak):.9e}")

    return sorted(map(tuple, grouped.values()), key=seconds)


def _looked_at(
    looker: Looker, first: Sequence[Alternatives], left_out: LeftOut, crew: Crew, enough: int
) -> list[Configuration]:
    """Those of a scheme that fit, until there are enough."""
    found: list[Configuration] = []
    looked = 0
    while looked < min(len(first), MOST * enough) and len(found) < enough:
        part = first[looked : looked + TOGETHER]
        looked += len(part)
        for alternatives, seen in zip(
            part, crew.share(looker.first_that_fits, part, "configurations looked at"), strict=True
        ):
            if isinstance(seen, Configuration):
                found.append(seen)
            else:
                left_out.add(MEMORY, too_large(looker.machine, alternatives[0], seen), len(alternatives))
    if left := sum(map(len, first[looked:])):
        left_out.add(SLOWER, f"{first[looked][0].scheme.name} on {first[looked][0].grid}", left)
    return found


def _orders(one: TrainingExperiment) -> Iterator[TrainingExperiment]:
    """The configuration in all rank orders that differ, the pipeline's axis the slowest."""
    return (replace(one, grid=grid) for grid in in_every_order(one.grid))


def _in_order(found: Sequence[Configuration]) -> list[Configuration]:
    return sorted(found, key=lambda one: float(f"{one.step.seconds:.9e}"))
