"""What `quadrille rank` answers about schemes, pipelines, ZeRO and microbatches, as JSON and as a page."""

from typing import Any

import msgspec

from quadrille.algorithms.formats.record import Granularity, Shards
from quadrille.algorithms.formats.rows import Tabular
from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.training.gpt import Gpt
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.agreement import kendall_tau
from quadrille.experiments.rank.answer import CauseFound, RingSimulated, fastest_first, of_question, of_step
from quadrille.experiments.rank.disagreements import causes_beside, in_short
from quadrille.experiments.rank.one_configuration import Configuration
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.ranking_page import Columns, print_ranking, shown_lengths, shown_order
from quadrille.experiments.rank.search import RankedConfigurations

MODEL = "closed form of local work and collectives, put together by the turns of the pipeline"


class ModelledConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration by the closed form: an iteration, and bytes that the fullest rank keeps.

    Parameters
    ----------
    micro_batch : sequences at once on each coordinate of data and z
    interleave : chunks of layers of a stage
    waiting_seconds : of the mean stage, for others
    """

    scheme: str
    sequence_parallel: bool
    grid: dict[str, int]
    order: list[str]
    micro_batch: int
    zero: int
    interleave: int
    seconds: float
    compute_seconds: float
    communication_seconds: float
    waiting_seconds: float
    memory_bytes: int


class SimulatedConfiguration(ModelledConfiguration, frozen=True, kw_only=True):
    """The same as simulated: a few layers and microbatches on the ranks of a stage, put together as the closed form is.

    compute + communication - hidden + waiting are the seconds.
    """

    analytical_place: int
    analytical_seconds: float
    latency_seconds: float
    transfer_seconds: float
    hidden_seconds: float
    contention_seconds: float
    exposed_seconds_by_axis: dict[str, float]
    model_flops_per_second_per_gpu: float
    hardware_flops_per_second_per_gpu: float
    percent_of_peak: float | None
    granularity: Granularity
    layers_simulated: int
    shards: Shards


class Omitted(msgspec.Struct, frozen=True, kw_only=True):
    """Configurations that were left out for one reason, and the first of them."""

    reason: str
    configurations: int
    example: str


class SchemesAnswer(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes; the file has the provenance too, stdout is the same in every run."""

    analytical: list[ModelledConfiguration]
    simulated: list[SimulatedConfiguration]
    kendall_tau: float | None
    workload: Workload
    model: str
    machine: str
    gpus: int
    analytical_model: str
    options: dict[str, str | int]
    left_out: list[Omitted]
    bandwidths_measured: bool
    bandwidths_simulated: list[RingSimulated]
    causes: list[CauseFound]
    why: list[str]
    provenance: Provenance | None = None

    def rows(self) -> list[dict[str, object]]:
        """A row for each of those that were simulated, the fastest first."""
        return [msgspec.to_builtins(one) for one in self.simulated]


def answer_of(question: RankQuestion, found: RankedConfigurations, steps: list[TrainingStep]) -> SchemesAnswer:
    """The answer; `steps` are of the first configurations, in their order."""
    modelled = [one.step for one in found.best[: len(steps)]]
    tau = kendall_tau([step.seconds for step in modelled], [step.seconds for step in steps])
    why = causes_beside(modelled, steps)
    return SchemesAnswer(
        analytical=[ModelledConfiguration(**_modelled(one, one.step)) for one in found.best],
        simulated=[_simulated(question, found.best[place], place, steps[place]) for place in fastest_first(steps)],
        kendall_tau=tau,
        analytical_model=MODEL,
        left_out=[
            Omitted(reason=reason, configurations=count, example=found.left_out.examples[reason])
            for reason, count in found.left_out.counts.most_common()
        ],
        why=in_short(why, tau),
        **of_question(question, found.bandwidths, why, from_table=found.from_table),
    )


def _modelled(one: Configuration, step: TrainingStep) -> dict[str, Any]:
    experiment, problem = one.experiment, one.experiment.problem
    assert isinstance(problem, Gpt)
    return {
        "scheme": experiment.scheme.name,
        "sequence_parallel": experiment.sequence_parallel,
        "grid": {axis: experiment.grid.length(axis) for axis in AXES},
        "order": list(experiment.grid.order),
        "micro_batch": problem.micro_batch,
        "zero": problem.zero,
        "interleave": problem.interleave,
        "seconds": step.seconds,
        "compute_seconds": step.compute,
        "communication_seconds": step.latency + step.transfer,
        "waiting_seconds": step.waiting,
        "memory_bytes": one.peak_bytes,
    }


def _simulated(question: RankQuestion, one: Configuration, place: int, step: TrainingStep) -> SimulatedConfiguration:
    return SimulatedConfiguration(
        **_modelled(one, step),
        **of_step(question, one.experiment, step, place=place, modelled_seconds=one.step.seconds),
    )


# A page


def print_answer(answer: SchemesAnswer, again: str) -> None:
    """Prints both orders side by side, why they differ, and what was left out.

    Parameters
    ----------
    again : the command that simulates the fastest configuration in full
    """
    looked_at = (
        f"{len(answer.analytical):,} configurations that fit in memory are ranked by the {answer.analytical_model}; "
        f"the best {len(answer.simulated)} are simulated"
    )
    left_out = (
        f"left out: {one.configurations:,} by {one.reason} (the first: {one.example})" for one in answer.left_out
    )
    print_ranking(answer, COLUMNS, looked_at, again, left_out)


def _scheme(one: SimulatedConfiguration) -> str:
    return one.scheme + (", rows scattered" if one.sequence_parallel else "")


def _how(one: SimulatedConfiguration) -> str:
    """Microbatch, chunks and ZeRO, as flags name them."""
    words = [f"micro-batch {one.micro_batch}"]
    words += [f"interleave {one.interleave}"] if one.interleave > 1 else []
    words += [f"zero {one.zero}"] if one.zero else []
    return ", ".join(words)


COLUMNS: Columns[SimulatedConfiguration] = Columns(
    names={"scheme": _scheme, "grid": shown_lengths, "order": shown_order, "how": _how},
    parts=("compute", "communication", "hidden", "waiting"),
)
