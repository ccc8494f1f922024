"""`SchemesAnswer`: the answer of `quadrille rank` about configurations of schemes, as JSON and as printed text.

A configuration is a scheme, a grid with pipeline stages, a stage of ZeRO, chunks, and a microbatch.
"""

from typing import Any

import msgspec

from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.recompute import Recompute
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.configuration_evaluator import Configuration
from quadrille.experiments.rank.configuration_search import RankedConfigurations
from quadrille.experiments.rank.disagreements import causes_of_closed_form, short_explanation_lines
from quadrille.experiments.rank.kendall_tau import kendall_tau
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ranking import Ranking, SimulatedEntry, order_by_seconds, question_fields, step_fields
from quadrille.experiments.rank.ranking_page import Columns, print_ranking, shown_lengths, shown_order

MODEL = "closed form of local work and collectives, combined in the order of the pipeline's slots"


class ModelledConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration by the closed form: time of an iteration [s], and largest memory of a rank [B].

    Parameters
    ----------
    micro_batch : sequences of a microbatch on each coordinate of data and z
    interleave : number of chunks of layers of a stage
    waiting_seconds : time that the mean stage waits for other stages [s]
    """

    scheme: str
    sequence_parallel: bool
    grid: dict[str, int]
    order: list[str]
    micro_batch: int
    zero: int
    interleave: int
    recompute: Recompute
    seconds: float
    compute_seconds: float
    communication_seconds: float
    waiting_seconds: float
    memory_bytes: int


class SimulatedConfiguration(SimulatedEntry, frozen=True, kw_only=True):
    """A simulated configuration: a few layers and microbatches on the ranks of a stage, combined as in the closed form.

    Parameters
    ----------
    micro_batch, interleave : as in `ModelledConfiguration`
    communication_seconds : latency + transfer [s]
    """

    scheme: str
    sequence_parallel: bool
    micro_batch: int
    zero: int
    interleave: int
    recompute: Recompute
    communication_seconds: float


class ExcludedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The number of configurations that were left out for a reason, and the first of them."""

    reason: str
    configurations: int
    example: str


class SchemesAnswer(Ranking[SimulatedConfiguration], frozen=True, kw_only=True):
    """The ranking of configurations by the closed form, and the simulation of the best configurations."""

    analytical: list[ModelledConfiguration]
    analytical_model: str
    left_out: list[ExcludedEntry]


def schemes_answer(question: RankQuestion, ranking: RankedConfigurations, steps: list[TrainingStep]) -> SchemesAnswer:
    """The answer from a ranking of configurations and the simulated steps of the first ones, in the ranking's order."""
    modelled = [configuration.step for configuration in ranking.best[: len(steps)]]
    tau = kendall_tau([step.seconds for step in modelled], [step.seconds for step in steps])
    why = causes_of_closed_form(modelled, steps)
    return SchemesAnswer(
        analytical=[_modelled(configuration) for configuration in ranking.best],
        simulated=[_simulated(question, ranking.best[place], place, steps[place]) for place in order_by_seconds(steps)],
        kendall_tau=tau,
        analytical_model=MODEL,
        left_out=[
            ExcludedEntry(reason=reason, configurations=count, example=ranking.excluded.examples[reason])
            for reason, count in ranking.excluded.counts.most_common()
        ],
        why=short_explanation_lines(why, tau),
        **question_fields(question, ranking.bandwidths, why, from_table=ranking.from_table),
    )


def _modelled(configuration: Configuration) -> ModelledConfiguration:
    step = configuration.step
    return ModelledConfiguration(
        seconds=step.seconds,
        compute_seconds=step.compute,
        waiting_seconds=step.waiting,
        **_common_fields(configuration, step),
    )


def _common_fields(configuration: Configuration, step: TrainingStep) -> dict[str, Any]:
    """The fields that a modelled and a simulated configuration share."""
    experiment, problem = configuration.experiment, configuration.experiment.problem
    assert isinstance(problem, Gpt)
    return {
        "scheme": experiment.scheme.name,
        "sequence_parallel": experiment.sequence_parallel,
        "grid": {axis: experiment.grid.length(axis) for axis in AXES},
        "order": list(experiment.grid.order),
        "micro_batch": problem.micro_batch,
        "zero": problem.zero,
        "interleave": problem.interleave,
        "recompute": problem.recompute,
        "communication_seconds": step.latency + step.transfer,
        "memory_bytes": configuration.peak_bytes,
    }


def _simulated(
    question: RankQuestion, configuration: Configuration, place: int, step: TrainingStep
) -> SimulatedConfiguration:
    return SimulatedConfiguration(
        **_common_fields(configuration, step),
        **step_fields(
            question, configuration.experiment, step, place=place, modelled_seconds=configuration.step.seconds
        ),
    )


# Printed text


def print_schemes_answer(answer: SchemesAnswer, again: str) -> None:
    """Prints both orders side by side, why they differ, and the excluded configurations.

    Parameters
    ----------
    again : command that simulates the fastest configuration in full
    """
    looked_at = (
        f"{len(answer.analytical):,} configurations that fit in memory are ranked by the {answer.analytical_model}; "
        f"the best {len(answer.simulated)} are simulated"
    )
    left_out = (
        f"left out: {omitted.configurations:,} by {omitted.reason} (the first: {omitted.example})"
        for omitted in answer.left_out
    )
    print_ranking(answer, COLUMNS, looked_at, again, left_out)


def _scheme(configuration: SimulatedConfiguration) -> str:
    return configuration.scheme + (", rows scattered" if configuration.sequence_parallel else "")


def _options_text(configuration: SimulatedConfiguration) -> str:
    """The microbatch, the chunks, the stage of ZeRO and what is recomputed, as flags name them."""
    words = [f"micro-batch {configuration.micro_batch}"]
    words += [f"interleave {configuration.interleave}"] if configuration.interleave > 1 else []
    words += [f"zero {configuration.zero}"] if configuration.zero else []
    words += [f"recompute {configuration.recompute}"] if configuration.recompute != "none" else []
    return ", ".join(words)


COLUMNS: Columns[SimulatedConfiguration] = Columns(
    names={"scheme": _scheme, "grid": shown_lengths, "order": shown_order, "how": _options_text},
    parts=("compute", "communication", "hidden", "waiting"),
    model="time by model",
)
