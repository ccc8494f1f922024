"""The answer of `quadrille rank` about grids, as JSON and as a page."""

import msgspec

from quadrille.algorithms.analysis.axonn import MODELLED, Form
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.agreement import kendall_tau
from quadrille.experiments.rank.analytical import RankedGrids
from quadrille.experiments.rank.answer import Ranking, SimulatedEntry, fastest_first, of_question, of_step
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


class SimulatedGrid(SimulatedEntry, frozen=True, kw_only=True):
    """A simulated grid.

    Parameters
    ----------
    compute_efficiency : share of the peak that products reach while the compute lane of the first rank is busy
    """

    compute_efficiency: float | None


class RankAnswer(Ranking[SimulatedGrid], frozen=True, kw_only=True):
    """The grids ranked, and the best of them simulated."""

    analytical: list[ModelledGrid]
    form: Form
    without_memory: int


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
