"""The answer of `quadrille rank` about grids, as JSON and as a page."""

import msgspec

from quadrille.algorithms.analysis.axonn import MODELLED, Form
from quadrille.algorithms.formats.record import Granularity, Shards
from quadrille.algorithms.formats.rows import Tabular
from quadrille.algorithms.formats.workload import Workload
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.agreement import kendall_tau
from quadrille.experiments.rank.analytical import RankedGrids
from quadrille.experiments.rank.answer import CauseFound, RingSimulated, fastest_first, of_question, of_step
from quadrille.experiments.rank.disagreements import causes, in_words
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.ranking_page import Columns, print_ranking, shown_lengths, shown_order


class ModelledGrid(msgspec.Struct, frozen=True, kw_only=True):
    """A grid by the analytical model: seconds of communication, and bytes of its fullest rank."""

    grid: dict[str, int]
    order: list[str]
    seconds: float
    seconds_by_axis: dict[str, float]
    memory_bytes: int


class SimulatedGrid(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated grid: one training iteration on it.

    The seconds are compute + latency + transfer - hidden + waiting.  With `granularity`
    collective, `layers_simulated` layers represent all layers.

    Parameters
    ----------
    seconds : time of an iteration [s], without setup: `seconds_per_iteration` of a record
    analytical_place : place in the model's order of all grids that fit, from 1
    model_flops_per_second_per_gpu, hardware_flops_per_second_per_gpu, percent_of_peak : as in a record
        (`quadrille.experiments.workloads.training_figures` has the formulas)
    compute_efficiency : share of the peak that products reach while the compute lane of the first rank is busy
    shards : even if all shards have the mean size, as in `--shards`
    """

    grid: dict[str, int]
    order: list[str]
    seconds: float
    analytical_place: int
    analytical_seconds: float
    compute_seconds: float
    latency_seconds: float
    transfer_seconds: float
    hidden_seconds: float
    waiting_seconds: float
    contention_seconds: float
    exposed_seconds_by_axis: dict[str, float]
    model_flops_per_second_per_gpu: float
    hardware_flops_per_second_per_gpu: float
    percent_of_peak: float | None
    compute_efficiency: float | None
    memory_bytes: int
    granularity: Granularity
    layers_simulated: int
    shards: Shards


class RankAnswer(Tabular, msgspec.Struct, frozen=True, kw_only=True):
    """The answer that `--json` writes; a file also has the provenance, stdout is the same in every run."""

    analytical: list[ModelledGrid]
    simulated: list[SimulatedGrid]
    kendall_tau: float | None
    workload: Workload
    model: str
    machine: str
    gpus: int
    form: Form
    options: dict[str, str | int]
    without_memory: int
    bandwidths_measured: bool
    bandwidths_simulated: list[RingSimulated]
    causes: list[CauseFound]
    why: list[str]
    provenance: Provenance | None = None

    def rows(self) -> list[dict[str, object]]:
        """A row for each simulated grid, the fastest first."""
        return [msgspec.to_builtins(grid) for grid in self.simulated]


def answer_of(question: RankQuestion, ranking: RankedGrids, steps: list[TrainingStep]) -> RankAnswer:
    """The answer; `steps` belong to the first candidates, in their order."""
    modelled = [float(seconds) for seconds in ranking.seconds[: len(steps)]]
    tau = kendall_tau(modelled, [step.seconds for step in steps])
    why = causes(modelled, steps)
    return RankAnswer(
        analytical=[_modelled(ranking, place) for place in range(len(ranking))],
        simulated=[_simulated(question, ranking, place, steps[place]) for place in fastest_first(steps)],
        kendall_tau=tau,
        form=question.form,
        without_memory=ranking.without,
        why=in_words(why, tau, steps, question.training.execution.choices, question.peak_flops_per_second),
        **of_question(question, ranking.bandwidths, why, from_table=ranking.from_table),
    )


def _named(grid: Grid) -> tuple[dict[str, int], list[str]]:
    """Lengths, and the axes of the model from the fastest to the slowest."""
    return {axis: grid.length(axis) for axis in MODELLED}, [axis for axis in grid.order if axis in MODELLED]


def _modelled(ranking: RankedGrids, place: int) -> ModelledGrid:
    lengths, order = _named(ranking.candidates.grid(place))
    return ModelledGrid(
        grid=lengths,
        order=order,
        seconds=float(ranking.seconds[place]),
        seconds_by_axis={axis: float(seconds[place]) for axis, seconds in ranking.by_axis.items() if lengths[axis] > 1},
        memory_bytes=int(ranking.peak_bytes[place]),
    )


def _simulated(question: RankQuestion, ranking: RankedGrids, place: int, step: TrainingStep) -> SimulatedGrid:
    grid = ranking.candidates.grid(place)
    lengths, order = _named(grid)
    return SimulatedGrid(
        grid=lengths,
        order=order,
        seconds=step.seconds,
        compute_seconds=step.compute,
        waiting_seconds=step.waiting,
        compute_efficiency=step.compute_efficiency(question.peak_flops_per_second),
        memory_bytes=int(ranking.peak_bytes[place]),
        **of_step(
            question, question.experiment(grid), step, place=place, modelled_seconds=float(ranking.seconds[place])
        ),
    )


COLUMNS: Columns[SimulatedGrid] = Columns(
    names={"grid": shown_lengths, "order": shown_order},
    parts=("compute", "latency", "transfer", "hidden", "waiting"),
)


def print_answer(answer: RankAnswer, again: str) -> None:
    """Prints both orders side by side, and why they differ; `again` is the command that simulates the fastest grid."""
    looked_at = (
        f"{len(answer.analytical):,} grids with a rank order fit in memory, {answer.without_memory:,} do not; "
        f"the best {len(answer.simulated)} by the {answer.form} form of the model are simulated"
    )
    print_ranking(answer, COLUMNS, looked_at, again)
