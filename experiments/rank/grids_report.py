"""`GridsAnswer`: the answer of `quadrille rank` about grids, as JSON and as printed text."""

import msgspec

from quadrille.algorithms.analysis.axonn import MODELLED, Form
from quadrille.algorithms.field_units import Seconds, Share, WholeBytes
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.analytical_ranking import RankedGrids
from quadrille.experiments.rank.disagreements import causes_of_communication_model, explanation_lines
from quadrille.experiments.rank.kendall_tau import kendall_tau
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ranking import Ranking, SimulatedEntry, order_by_seconds, question_fields, step_fields
from quadrille.experiments.rank.ranking_page import GRID, Columns, ordered_lengths, print_ranking


class ModelledGrid(msgspec.Struct, frozen=True, kw_only=True):
    """A grid by the analytical model: communication time [s], and largest memory of a rank [B]."""

    grid: dict[str, int]
    order: list[str]
    seconds: Seconds
    seconds_by_axis: dict[str, Seconds]
    memory_bytes: WholeBytes


class SimulatedGrid(SimulatedEntry, frozen=True, kw_only=True):
    """A simulated grid.

    Parameters
    ----------
    compute_efficiency : share of the peak that products reach while the compute lane of the mean rank is busy
    """

    compute_efficiency: Share | None


class GridsAnswer(Ranking[SimulatedGrid], frozen=True, kw_only=True):
    """The ranking of grids by the analytical model, and the simulation of the best grids.

    Parameters
    ----------
    analytical : grids that fit, the fastest by the model first
    form : form of the analytical model
    without_memory : number of grids that do not fit in memory
    """

    analytical: list[ModelledGrid]
    form: Form
    without_memory: int


def grids_answer(question: RankQuestion, ranking: RankedGrids, steps: list[TrainingStep]) -> GridsAnswer:
    """The answer from a ranking of grids and the simulated steps of the first grids, in the ranking's order."""
    modelled = [float(seconds) for seconds in ranking.seconds[: len(steps)]]
    tau = kendall_tau(modelled, [step.seconds for step in steps])
    why = causes_of_communication_model(modelled, steps)
    return GridsAnswer(
        analytical=[_modelled_grid(ranking, place) for place in range(len(ranking))],
        simulated=[_simulated_grid(question, ranking, place, steps[place]) for place in order_by_seconds(steps)],
        kendall_tau=tau,
        form=question.form,
        without_memory=ranking.without,
        why=explanation_lines(why, tau, steps, question.training.execution.choices, question.peak_flops_per_second),
        **question_fields(question, ranking.bandwidths, why, from_table=ranking.from_table),
    )


def _lengths_and_order(grid: Grid) -> tuple[dict[str, int], list[str]]:
    """The lengths of the axes by name, and the axes from the innermost to the outermost."""
    return {axis: grid.length(axis) for axis in MODELLED}, [axis for axis in grid.order if axis in MODELLED]


def _modelled_grid(ranking: RankedGrids, place: int) -> ModelledGrid:
    lengths, order = _lengths_and_order(ranking.candidate_grids.grid(place))
    return ModelledGrid(
        grid=lengths,
        order=order,
        seconds=float(ranking.seconds[place]),
        seconds_by_axis={axis: float(seconds[place]) for axis, seconds in ranking.by_axis.items() if lengths[axis] > 1},
        memory_bytes=int(ranking.peak_bytes[place]),
    )


def _simulated_grid(question: RankQuestion, ranking: RankedGrids, place: int, step: TrainingStep) -> SimulatedGrid:
    grid = ranking.candidate_grids.grid(place)
    lengths, order = _lengths_and_order(grid)
    return SimulatedGrid(
        grid=lengths,
        order=order,
        compute_efficiency=step.compute_efficiency(question.peak_flops_per_second),
        memory_bytes=int(ranking.peak_bytes[place]),
        **step_fields(
            question, question.experiment(grid), step, place=place, modelled_seconds=float(ranking.seconds[place])
        ),
    )


COLUMNS: Columns[SimulatedGrid] = Columns(
    names={GRID: ordered_lengths},
    parts={name: name for name in ("compute", "latency", "transfer", "hidden", "waiting")},
    model="communication by model",
)


def print_grids_answer(answer: GridsAnswer) -> None:
    """Prints the simulated grids, and why the model's order differs."""
    counts = (
        f"{len(answer.analytical):,} grids with a rank order fit in memory, {answer.without_memory:,} do not; "
        f"the best {len(answer.simulated)} by the {answer.form} form of the model are simulated"
    )
    print_ranking(answer, COLUMNS, counts)
