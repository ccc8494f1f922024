"""`SchemesAnswer`: the answer of `quadrille rank` about configurations of schemes, as JSON and as printed text.

A configuration is a scheme, a grid with pipeline stages, a stage of ZeRO, chunks, and a microbatch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from quadrille.algorithms.field_units import Seconds, WholeBytes
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import AXES, FOLDED_AXES
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.recompute import Recompute
from quadrille.algorithms.units import format_percent, format_seconds
from quadrille.experiments.output.tables import UNKNOWN
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.configuration_evaluator import Configuration
from quadrille.experiments.rank.configuration_search import RankedConfigurations
from quadrille.experiments.rank.configurations import SearchSpace
from quadrille.experiments.rank.disagreements import Cause, causes_of_closed_form, short_explanation_lines
from quadrille.experiments.rank.kendall_tau import kendall_tau
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ranking import Ranking, SimulatedEntry, order_by_seconds, question_fields, step_fields
from quadrille.experiments.rank.ranking_page import GRID, Columns, ordered_lengths, print_ranking
from quadrille.experiments.rank.search_report import OptionEntry, option_entries, searched_lines
from quadrille.experiments.workloads.training_lines import pass_order_text

MICRO_BATCH = "micro-batch"
"""Heading of the column of microbatches."""
MODEL = "closed form of local work and collectives, combined in the order of the pipeline's slots"


class ModelledConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration by the closed form: time of an iteration [s], and largest memory of a rank [B].

    Parameters
    ----------
    micro_batch : sequences of a microbatch on each coordinate of data and z
    interleave : number of chunks of layers of a stage
    hidden_seconds : communication beside local work [s]
    waiting_seconds : time that the mean stage waits for other stages [s]
    """

    scheme: str
    sequence_parallel: bool
    grid: dict[str, int]
    order: list[str]
    micro_batch: int
    zero: int
    interleave: int
    pipeline_schedule: PipelineSchedule
    recompute: Recompute
    gathered: Gathered
    overlap: str
    offload: str
    seconds: Seconds
    compute_seconds: Seconds
    communication_seconds: Seconds
    hidden_seconds: Seconds
    waiting_seconds: Seconds
    memory_bytes: WholeBytes


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
    pipeline_schedule: PipelineSchedule
    recompute: Recompute
    gathered: Gathered
    overlap: str
    offload: str
    communication_seconds: Seconds


class ExcludedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The number of configurations that were left out for a reason, and the first of them."""

    reason: str
    configurations: int
    example: str


class SchemesAnswer(Ranking[SimulatedConfiguration], frozen=True, kw_only=True):
    """The ranking of configurations by the closed form, and the simulation of the best configurations.

    Parameters
    ----------
    tried : options, the values that were tried, and the flags that search the other options
    searches_options : whether `--search` names options, so that the answer compares with `--search none`
    place_without_search : place among the simulated configurations, from 1, of the fastest with `--search none`; None
        if there is no comparison, or if no configuration fits with `--search none`
    """

    analytical: list[ModelledConfiguration]
    analytical_model: str
    left_out: list[ExcludedEntry]
    tried: list[OptionEntry]
    searches_options: bool
    place_without_search: int | None

    @property
    def without_search(self) -> SimulatedConfiguration | None:
        """The fastest configuration with `--search none`; None if there is none."""
        place = self.place_without_search
        return None if place is None else self.simulated[place - 1]


def schemes_answer(
    question: RankQuestion,
    space: SearchSpace,
    ranking: RankedConfigurations,
    steps: Mapping[int, TrainingStep],
    unsearched: Sequence[int],
) -> SchemesAnswer:
    """The answer from a ranking of configurations and the simulated steps of the best configurations.

    Parameters
    ----------
    steps : simulated step of a configuration by its place in the ranking, from 0, in the ranking's order
    unsearched : places of the configurations without the searched options
    """
    modelled, simulated = [ranking.best[place].step for place in steps], [*steps.values()]
    tau = kendall_tau([step.seconds for step in modelled], [step.seconds for step in simulated])
    why = causes_of_closed_form(modelled, simulated)
    places = [*steps]
    entries = {
        places[number]: _simulated(question, ranking.best[places[number]], places[number], simulated[number])
        for number in order_by_seconds(simulated)
    }
    return SchemesAnswer(
        analytical=[_modelled(configuration) for configuration in ranking.best],
        simulated=[*entries.values()],
        kendall_tau=tau,
        analytical_model=MODEL,
        left_out=[
            ExcludedEntry(reason=reason, configurations=count, example=ranking.excluded.examples[reason])
            for reason, count in ranking.excluded.counts.most_common()
        ],
        why=short_explanation_lines(why, tau),
        tried=option_entries(question, space),
        searches_options=space.unsearched is not None,
        place_without_search=next((number for number, place in enumerate(entries, 1) if place in unsearched), None),
        **_fields_of_question(question, space, ranking, why),
    )


def _fields_of_question(
    question: RankQuestion, space: SearchSpace, ranking: RankedConfigurations, why: Sequence[Cause]
) -> dict[str, Any]:
    """The fields of the question, without options that belong to entries."""
    fields = question_fields(question, ranking.bandwidths, why, from_table=ranking.from_table)
    fields["options"] = {name: value for name, value in fields["options"].items() if name not in space.options}
    return fields


def _modelled(configuration: Configuration) -> ModelledConfiguration:
    step = configuration.step
    return ModelledConfiguration(
        seconds=step.seconds,
        compute_seconds=step.compute,
        hidden_seconds=step.hidden,
        waiting_seconds=step.waiting,
        **_common_fields(configuration, step),
    )


def _common_fields(configuration: Configuration, step: TrainingStep) -> dict[str, Any]:
    """The fields that a modelled and a simulated configuration share."""
    experiment, problem = configuration.experiment, configuration.experiment.problem
    assert isinstance(problem, Gpt)
    grid = experiment.grid
    shown = [axis for axis in AXES if axis != "context" or grid.context > 1]
    return {
        "scheme": experiment.scheme.name,
        "sequence_parallel": experiment.sequence_parallel,
        "grid": {
            axis: grid.length(axis) for axis in (*shown, *(axis for axis in FOLDED_AXES if grid.length(axis) > 1))
        },
        "order": [axis for axis in grid.order if axis in shown],
        "micro_batch": problem.micro_batch,
        "zero": problem.zero,
        "interleave": problem.interleave,
        "pipeline_schedule": problem.pipeline_schedule,
        "recompute": problem.recompute,
        "gathered": problem.gathered,
        "overlap": ",".join(experiment.execution.overlap_names) or "none",
        "offload": "none" if problem.offload is None else str(problem.offload),
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


def print_schemes_answer(answer: SchemesAnswer) -> None:
    """Prints the simulated configurations, why the model's order differs, and the excluded configurations."""
    counts = (
        f"{len(answer.analytical):,} configurations that fit in memory are ranked by the {answer.analytical_model}; "
        f"the best {len(answer.simulated)} are simulated"
    )
    lines = [
        *accounting_lines(answer),
        *(
            f"left out: {omitted.configurations:,} by {omitted.reason} (the first: {omitted.example})"
            for omitted in answer.left_out
        ),
        *searched_lines(answer.tried),
        *comparison_lines(answer),
    ]
    print_ranking(answer, COLUMNS, counts, lines)


def accounting_lines(answer: SchemesAnswer) -> list[str]:
    """What the communication of pipelines that are simulated in full has, as at most one line.

    Messages between stages are ops of a simulation in full.  An op lasts from its post to its end, so its time has the
    wait for the stage at the other end, and it overlaps passes and other messages.  A sample has no messages; their
    bare times are added, none of it hidden, and the wait is what remains of the step.
    """
    assert answer.workload.gpt is not None
    pipelines = [entry for entry in answer.simulated if entry.grid["pipeline"] > 1]
    if all(entry.layers_simulated < answer.workload.gpt.layers for entry in pipelines):
        return []
    return [
        "comm. of pipelines has the wait for other stages, and hidden their messages beside passes and other messages"
    ]


def comparison_lines(answer: SchemesAnswer) -> list[str]:
    """How much faster the best configuration is than the best without the searched options, as at most one line."""
    if not answer.searches_options:
        return []
    if answer.without_search is None:
        return ["with --search none nothing fits in memory"]
    gain = 1 - answer.simulated[0].seconds / answer.without_search.seconds
    seconds = format_seconds(answer.without_search.seconds)
    return [
        f"with --search none {seconds}, which the search shortens by {format_percent(gain)}: "
        f"{answer.without_search.command}"
    ]


def scheme_text(configuration: SimulatedConfiguration) -> str:
    """The scheme, and whether it has sequence parallelism."""
    return configuration.scheme + (" seq-par" if configuration.sequence_parallel else "")


def schedule_text(configuration: SimulatedConfiguration) -> str:
    """The order of passes and the chunks of layers; unknown without a pipeline."""
    if configuration.grid["pipeline"] == 1:
        return UNKNOWN
    return pass_order_text(configuration.pipeline_schedule, configuration.interleave)


def overlap_text(configuration: SimulatedConfiguration) -> str:
    """The names of the overlaps, or `all`."""
    names = configuration.overlap.split(",")
    return "all" if set(names) == set(get_args(OverlapName)) else configuration.overlap


COLUMNS: Columns[SimulatedConfiguration] = Columns(
    names={
        "scheme": scheme_text,
        GRID: ordered_lengths,
        MICRO_BATCH: lambda entry: str(entry.micro_batch),
        "schedule": schedule_text,
        "zero": lambda entry: str(entry.zero),
        "recompute": lambda entry: entry.recompute,
        "gathered": lambda entry: entry.gathered,
        "overlap": overlap_text,
        "offload": lambda entry: entry.offload,
    },
    parts={"compute": "compute", "communication": "comm.", "hidden": "hidden", "waiting": "waiting"},
    model="by model",
)
