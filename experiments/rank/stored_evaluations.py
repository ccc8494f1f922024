"""The evaluations and simulations of `rank` as tasks of a store: what decides them, and the form of their answers.

An answer is a value that msgspec encodes. An evaluation therefore names its configuration by what differs between the
alternatives of a question: the microbatch and the order of ranks.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from quadrille.algorithms.schedule.grid import Axis
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.configuration_evaluator import Configuration, Evaluator
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.work_sharing import TaskKind
from quadrille.experiments.workloads.no_grid import TooLarge
from quadrille.experiments.workloads.training import TrainingExperiment

Alternatives = Sequence[TrainingExperiment]


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of an evaluation of alternatives.

    Parameters
    ----------
    micro_batch, order : microbatch and order of ranks of the alternative that the result is of
    rank_bytes : largest memory of a rank [B]
    step : training step by the closed form; None if no alternative fits
    host_shortage : text about the host memory that does not suffice; empty if it does
    """

    micro_batch: int | None
    order: tuple[Axis, ...]
    rank_bytes: int
    step: TrainingStep | None = None
    host_shortage: str = ""

    def result(self, alternatives: Alternatives) -> Configuration | TooLarge:
        """The configuration among the alternatives, or what does not suffice for it."""
        experiment = alternatives[0]
        experiment = replace(
            experiment,
            problem=replace(experiment.problem, micro_batch=self.micro_batch),
            grid=replace(experiment.grid, order=self.order),
        )
        if self.step is None:
            return TooLarge(experiment, self.rank_bytes, host_shortage=self.host_shortage)
        return Configuration(experiment, self.step, self.rank_bytes)


def evaluation(result: Configuration | TooLarge) -> Evaluation:
    """The result of an evaluation in the form that a store keeps."""
    experiment = result.experiment
    micro_batch, order = getattr(experiment.problem, "micro_batch", None), experiment.grid.order
    if isinstance(result, Configuration):
        return Evaluation(micro_batch=micro_batch, order=order, rank_bytes=result.peak_bytes, step=result.step)
    return Evaluation(
        micro_batch=micro_batch, order=order, rank_bytes=result.rank_bytes, host_shortage=result.host_shortage
    )


def first_fitting_evaluations(question: RankQuestion, evaluator: Evaluator) -> TaskKind:
    """The evaluations that find the first of several alternatives that fits in memory."""

    def arguments(alternatives: Alternatives) -> object:
        return _model(question), evaluator.rings_digest, alternatives, evaluator.smallest(alternatives[-1])

    return TaskKind("rank: first fitting", arguments, Evaluation, _label)


def modelled_steps(question: RankQuestion, evaluator: Evaluator) -> TaskKind:
    """The times by the closed form of the first of several alternatives, without their memory."""

    def arguments(alternatives: Alternatives) -> object:
        return _model(question), evaluator.rings_digest, alternatives[0]

    return TaskKind("rank: modelled", arguments, TrainingStep, _label)


def least_times(question: RankQuestion, evaluator: Evaluator) -> TaskKind:
    """The lower bounds of the closed-form times of the first of several alternatives."""

    def arguments(alternatives: Alternatives) -> object:
        return _model(question), evaluator.rings_digest, alternatives[0]

    return TaskKind("rank: lower bound", arguments, float, _label)


def fastest_evaluations(question: RankQuestion, evaluator: Evaluator) -> TaskKind:
    """The evaluations that find the fastest of several alternatives."""

    def arguments(alternatives: Alternatives) -> object:
        return _model(question), evaluator.rings_digest, alternatives

    return TaskKind("rank: fastest order", arguments, Evaluation, _label)


def sampled_steps(question: RankQuestion, evaluator: Evaluator) -> TaskKind:
    """The simulations of configurations, of pipelines by a sample and the closed form."""

    def arguments(experiment: TrainingExperiment) -> object:
        rings = evaluator.rings_digest if experiment.grid.pipeline > 1 else ""
        return _model(question), rings, experiment, question.granularity

    return TaskKind("rank: simulated", arguments, TrainingStep, lambda experiment: _label([experiment]))


def simulated_steps(question: RankQuestion) -> TaskKind:
    """The simulations of training steps with all layers and microbatches."""

    def arguments(experiment: TrainingExperiment) -> object:
        return question.machine, experiment, question.granularity

    return TaskKind("training step", arguments, TrainingStep, lambda experiment: _label([experiment]))


def _model(question: RankQuestion) -> object:
    return question.machine, question.gpus, question.training.dtype, question.training.execution


def _label(alternatives: Alternatives) -> str:
    """The first of the alternatives as text."""
    experiment = alternatives[0]
    return f"{experiment.scheme.name} on {experiment.grid}"
