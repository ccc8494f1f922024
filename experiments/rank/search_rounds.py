"""The evaluation of a wide search space: times by the closed form first, and memory of the fastest alone.

Memory is counted from the schedule of every stage, which takes many times as long as the closed form.  A round takes
the next configurations of each scheme in the order of the estimate and bounds their times from below, without a walk
through the pipeline.  In the order of these bounds the closed form gives their times, and the memory of the fastest is
counted, until enough fit and no bound is below their times.  The rounds end when a round adds no configuration to the
best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from quadrille.experiments.output.progress import StepCount
from quadrille.experiments.rank.configuration_evaluator import Configuration, Evaluator, speed_key
from quadrille.experiments.rank.lower_estimates import best_flops_per_second, least_seconds
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.stored_evaluations import (
    Evaluation,
    evaluation,
    first_fitting_evaluations,
    least_times,
    modelled_steps,
)
from quadrille.experiments.rank.work_sharing import WorkSharing
from quadrille.experiments.workloads.no_grid import ExcludedGrids
from quadrille.experiments.workloads.training import TrainingExperiment

ROUND, MOST_ROUNDS = 96, 8
"""Number of configurations of each scheme in a round; limit of the rounds."""
FITTING_KEPT, COUNTED_TOGETHER = 16, 8
"""Number of fitting configurations that are kept, at least; number whose memory is counted at a time."""
SLOWER, SLOWER_MODELLED = "a slower estimate", "a slower closed form"
BOUNDED = "a lower bound of the time above the times of the best"
Alternatives = tuple[TrainingExperiment, ...]
"""Configurations in order of preference: the first that fits in memory is used."""


def fastest_fitting(
    question: RankQuestion,
    evaluator: Evaluator,
    by_estimate: Sequence[Sequence[Alternatives]],
    excluded: ExcludedGrids,
    work_sharing: WorkSharing,
) -> list[Configuration]:
    """The fastest configurations by the closed form that fit in memory, of all schemes together.

    Parameters
    ----------
    by_estimate : configurations of each scheme, the fastest by the estimate first
    excluded : configurations that are left out; updated
    """
    that_fit: list[Configuration] = []
    examined, functions = 0, _Functions(evaluator)
    with work_sharing.kept_processes(*functions.shared) as together:
        while any(len(group) > examined for group in by_estimate) and examined < MOST_ROUNDS * ROUND:
            part = [alternatives for group in by_estimate for alternatives in group[examined : examined + ROUND]]
            examined += ROUND
            added = _round(question, functions, part, that_fit, excluded, together)
            that_fit = sorted([*that_fit, *added], key=lambda configuration: speed_key(configuration.step))
            best = that_fit[: question.top]
            if len(best) == question.top and not any(configuration in added for configuration in best):
                break
    for group in by_estimate:
        if remaining := sum(map(len, group[examined:])):
            excluded.add(SLOWER, example(group[examined]), remaining)
    return that_fit


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of an evaluator that processes share during all rounds."""

    evaluator: Evaluator

    @property
    def shared(self) -> tuple[Callable[[Alternatives], object], ...]:
        """All functions that are asked."""
        return self.evaluator.least_seconds, self.evaluator.modelled, self.first_fitting

    def first_fitting(self, alternatives: Alternatives) -> Evaluation:
        """The first of the alternatives that fits in memory, or the one that needs least."""
        return evaluation(self.evaluator.first_fitting(alternatives))


def _round(
    question: RankQuestion,
    functions: _Functions,
    part: Sequence[Alternatives],
    that_fit: Sequence[Configuration],
    excluded: ExcludedGrids,
    work_sharing: WorkSharing,
) -> list[Configuration]:
    """The configurations of a round that fit in memory and may be among the best.

    Parameters
    ----------
    that_fit : configurations of earlier rounds
    """
    kept, evaluator = max(question.top, FITTING_KEPT), functions.evaluator
    possible = possibly_best(question, part, that_fit, excluded)
    bounds = work_sharing.share(
        evaluator.least_seconds, possible, "bounded", "layouts", kind=least_times(question, evaluator)
    )
    waiting = sorted(range(len(possible)), key=lambda number: bounds[number])
    added: list[Configuration] = []
    slower: list[Alternatives] = []
    with work_sharing.progress("found", "layouts that fit in memory", kept) as step_count:
        while waiting:
            limit = _seconds_at(kept, [*that_fit, *added])
            if bounds[waiting[0]] > limit:
                break
            together = [possible[number] for number in waiting[:COUNTED_TOGETHER]]
            del waiting[:COUNTED_TOGETHER]
            configurations, too_slow = _configurations_that_fit(
                question, functions, together, limit, excluded, work_sharing
            )
            added += configurations
            slower += too_slow
            step_count.done = len(that_fit) + len(added)
    slower += [possible[number] for number in waiting]
    if slower:
        excluded.add(SLOWER_MODELLED, example(slower[0]), sum(map(len, slower)))
    return added


def _seconds_at(place: int, configurations: Sequence[Configuration]) -> float:
    """The time of the configuration at a place by speed, from 1 [s]; infinite if there are fewer."""
    seconds = sorted(configuration.step.seconds for configuration in configurations)
    return seconds[place - 1] if len(seconds) >= place else inf


def _configurations_that_fit(
    question: RankQuestion,
    functions: _Functions,
    together: Sequence[Alternatives],
    limit: float,
    excluded: ExcludedGrids,
    work_sharing: WorkSharing,
) -> tuple[list[Configuration], list[Alternatives]]:
    """The configurations that fit in memory, and the alternatives that are too slow, whose memory is not counted.

    Parameters
    ----------
    limit : time by the closed form above which alternatives are too slow [s]
    """
    evaluator = functions.evaluator

    def uncounted(number: int) -> StepCount:
        return StepCount("evaluated", "layouts", number)

    steps = work_sharing.answers(
        evaluator.modelled, together, uncounted(len(together)), kind=modelled_steps(question, evaluator)
    )
    is_slow = [step.seconds > limit for step in steps]
    slower = [alternatives for alternatives, slow in zip(together, is_slow, strict=True) if slow]
    fast = [alternatives for alternatives, slow in zip(together, is_slow, strict=True) if not slow]
    evaluations = work_sharing.answers(
        functions.first_fitting,
        fast,
        uncounted(len(fast)),
        kind=first_fitting_evaluations(question, evaluator),
    )
    that_fit = []
    for alternatives, evaluated in zip(fast, evaluations, strict=True):
        result = evaluated.result(alternatives)
        if isinstance(result, Configuration):
            that_fit.append(result)
        else:
            excluded.add_too_large(result, evaluator.machine, len(alternatives))
    return that_fit, slower


def possibly_best(
    question: RankQuestion,
    every: Sequence[Alternatives],
    that_fit: Sequence[Configuration],
    excluded: ExcludedGrids,
) -> list[Alternatives]:
    """The alternatives that may be among the best, by the lower bounds of their times.

    Parameters
    ----------
    that_fit : configurations that fit in memory
    excluded : configurations that are left out; updated
    """
    if len(that_fit) < question.top:
        return list(every)
    rate = best_flops_per_second(question.machine, question.training.dtype, question.problem.products)
    limit = _seconds_at(question.top, that_fit)
    possible = []
    for alternatives in every:
        if min(least_seconds(experiment, rate) for experiment in alternatives) <= limit:
            possible.append(alternatives)
        else:
            excluded.add(BOUNDED, example(alternatives), len(alternatives))
    return possible


def example(alternatives: Alternatives) -> str:
    """The first of the alternatives as text."""
    return f"{alternatives[0].scheme.name} on {alternatives[0].grid}"
