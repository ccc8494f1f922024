"""`quadrille study which-grid`: the predicted fastest grid for one training job on each of several machines.

All grids are ranked by a closed form and the first few are simulated (`quadrille.experiments.sweep.best_grid`).  To
show why the fastest grid is fast, the same grid is simulated in other orders: each long axis in turn is the innermost,
whose groups have the links inside the nodes.  The table also has the grid that the analytical model of `quadrille rank`
puts first, which contains neither latency nor overlap.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.figure_style import legend_below, new_figure, styled
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.tabular import TimedText
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.explain.explanation_figure import Stack, draw_stacks
from quadrille.experiments.output.tables import UNKNOWN, duration, table
from quadrille.experiments.rank.analytical_ranking import rank_candidates
from quadrille.experiments.rank.candidate_grids import GridLimits
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.work_sharing import WorkSharing
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.sweep_points import BestGrid, Impossible, OneGrid
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow
from quadrille.experiments.sweep.training_point import predict_training_point
from quadrille.experiments.sweep.training_study import (
    Findings,
    StudyOptions,
    StudyPresentation,
    answer_study_points,
    grid_text,
    point_on_best_grid,
    ratio_text,
    write_findings,
)
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import run_as_program

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

MODEL_FIRST = "the model's first"
INNERMOST = "innermost"
QUESTION = "Which grid and which order of its axes is the fastest?"
"""Title of the figure."""
COLOURS = {
    "computing": "#cccccc",
    "exposed, x": "#0072b2",
    "exposed, y": "#56b4e9",
    "exposed, z": "#009e73",
    "exposed, data": "#e69f00",
    "exposed, pipeline": "#cc79a7",
    "waiting": "#999999",
}
"""Colour of each part of a step in the figure."""
ROOM = 1.12
"""Length of the axis of time / the longest step, so that its time can be written behind it."""
LEAST_WAITING = 1e-9
"""Waiting that is drawn; less is the rounding of a sum [s]."""
MODEL_TOP = 8
Search = BestGrid | Impossible
Step = OneGrid | Impossible
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridQuestion:
    """The training job, and the machines.

    Parameters
    ----------
    machines : names of the machines
    gpt : name of the model
    gpus : number of GPUs
    batch : number of sequences of the global batch
    """

    machines: tuple[str, ...] = ("perlmutter", "frontier", "alps", "selene", "h100-superpod")
    gpt: str = "20b"
    gpus: int = 32
    batch: int = 64


QUICK = GridQuestion(machines=("perlmutter", "selene"), gpt="gpt3-1.3b", gpus=16, batch=32)


def main() -> None:
    """Run the study on the default machines, and write the answer to `results/`."""
    which_grid(GridQuestion(), StudyOptions.into_folder("which-grid", RESULTS))


def which_grid(asked: GridQuestion, asking: StudyOptions) -> Findings:
    """Search the fastest grid of every machine, predict its other orders, and print and write the results.

    Parameters
    ----------
    asked : training job and machines
    asking : options of the search, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; a file that cannot be written; no machine on which the job fits
    """
    asking.check()
    searched = [_point(asked, machine, asking) for machine in asked.machines]
    results: list[tuple[dict[str, str], SweepAnswer]] = []
    orders: list[tuple[dict[str, str], Step]] = []
    for (point, search), best in zip(searched, answer_study_points(searched, predict_point, asking), strict=True):
        results.append(({**point, "order": _order_label(best)}, best))
        if best.seconds is not None:
            orders += list(_other_orders(point, search, best))
    others = answer_study_points(orders, predict_training_point, asking)
    modelled = answer_study_points(searched, predict_model_first, asking)
    results += [(point, result) for (point, _), result in zip(orders, others, strict=True)]
    results += [
        ({**point, "order": MODEL_FIRST}, result) for (point, _), result in zip(searched, modelled, strict=True)
    ]
    flags = {"gpt": asked.gpt, "gpus": str(asked.gpus), "batch": str(asked.batch), "recompute": "full", "scheme": "4d"}
    return write_findings(
        "which-grid",
        flags,
        results,
        StudyPresentation(tables, partial(answer_sentences, nodes_of(asked)), partial(figure, flags=flags)),
        asking,
    )


def nodes_of(asked: GridQuestion) -> dict[str, int]:
    """GPUs of a node of every machine."""
    from quadrille.topologies.machines.machine_catalogue import machine

    return {name: machine(name).gpus_per_node for name in asked.machines}


def _point(asked: GridQuestion, machine: str, asking: StudyOptions) -> tuple[dict[str, str], Search]:
    """The search for the fastest grid of one machine."""
    return {"machine": machine}, asking.search(asked.gpt, asked.batch, asked.gpus, machine)


def _other_orders(point: dict[str, str], search: Search, best: SweepAnswer) -> Iterator[tuple[dict[str, str], Step]]:
    """The points of the fastest grid in other orders: each long axis innermost, except the one that already is."""
    assert best.trained is not None
    for axis in _long_axes(best)[1:]:
        order = (axis, *(inner for inner in best.trained.order if inner not in (axis, "pipeline")))
        yield {**point, "order": f"{axis} {INNERMOST}"}, point_on_best_grid(search, best, order)


def predict_model_first(asked: Search) -> SweepAnswer:
    """The prediction of the grid that the analytical model of `quadrille rank` puts first.

    Parameters
    ----------
    asked : search for the fastest grid of a machine, or the reason why the job is impossible there
    """
    if isinstance(asked, Impossible):
        return SweepAnswer(reason=asked.reason)
    assert isinstance(asked.experiment, TrainingExperiment)
    assert asked.experiment.shape is not None
    try:
        training = with_bfloat16(asked.experiment)
        question = RankQuestion(
            training=training,
            shape=asked.experiment.shape,
            gpus=asked.gpus,
            machine=asked.machine,
            top=MODEL_TOP,
            form="exact",
            limits=GridLimits(None, powers_of_two=False, least_model_parallel=1),
        )
        grid = rank_candidates(question, WorkSharing()).candidate_grids.grid(0)
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))
    return predict_training_point(OneGrid(replace(asked.experiment, grid=grid), asked.machine, asked.most_seconds))


def with_bfloat16(experiment: TrainingExperiment) -> TrainingExperiment:
    """The training step with 16-bit weights and activations, for which the ranker's model counts memory."""
    return replace(experiment, problem=replace(experiment.problem, dtype="bfloat16"))


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of every machine's fastest grid, of its other orders, and of the analytical model's first grid."""
    columns = ("machine", "order", "grid", "inside out", "step", "computing", "exposed")
    machines = dict.fromkeys(row.point["machine"] for row in rows)
    sections = [[_cells(row) for row in rows if row.point["machine"] == machine] for machine in machines]
    return [
        table(
            "the best grid, the same box in other orders, and the analytical model's first, predicted",
            columns,
            *sections,
            names=4,
        )
    ]


def _cells(row: SweepRow) -> tuple[str, ...]:
    """The cells of a row."""
    answer = row.answer
    if answer.seconds is None or answer.trained is None:
        return (row.point["machine"], row.point["order"], *(UNKNOWN,) * 5)
    exposed = answer.trained.exposed_seconds_by_axis
    exposed_parts = [part for axis, seconds in exposed.items() for part in (", ", f"{axis} ", seconds)]
    return (
        row.point["machine"],
        row.point["order"],
        grid_text(answer),
        ",".join(_long_axes(answer)),
        duration(answer.seconds),
        duration(answer.compute_seconds or 0.0),
        TimedText(*exposed_parts[1:]) if exposed else UNKNOWN,
    )


def _long_axes(answer: SweepAnswer) -> list[Axis]:
    """The axes with more than one rank, the innermost first."""
    assert answer.trained is not None
    assert answer.grid_lengths is not None
    return [axis for axis in answer.trained.order if answer.grid_lengths.get(axis, 1) > 1]


def _order_label(answer: SweepAnswer) -> str:
    """The name of the innermost long axis as text."""
    long = _long_axes(answer) if answer.seconds is not None else []
    return f"{long[0]} {INNERMOST}" if long else UNKNOWN


def axes_inside_node(answer: SweepAnswer, per_node: int) -> list[Axis]:
    """The axes whose groups lie entirely inside a node.

    Parameters
    ----------
    answer : prediction on a grid
    per_node : number of GPUs of a node

    >>> from quadrille.experiments.sweep.sweep_result import TrainingResult
    >>> trained = TrainingResult(
    ...     scheme="4d", order=("x", "y", "z", "data"), model_flops_per_second_per_gpu=1,
    ...     hardware_flops_per_second_per_gpu=1, layers_simulated=1)
    >>> axes_inside_node(SweepAnswer(grid_lengths={"data": 4, "z": 2, "y": 1, "x": 2}, trained=trained), per_node=4)
    ['x', 'z']
    """
    assert answer.grid_lengths is not None
    axes, span = [], 1
    for axis in _long_axes(answer):
        span *= answer.grid_lengths[axis]
        if per_node % span == 0:
            axes.append(axis)
    return axes


def best_of(rows: Sequence[SweepRow], machine: str) -> SweepRow | None:
    """The fastest row of a machine in any order, without the analytical model's grid; None if there is none."""
    own = [row for row in rows if row.point["machine"] == machine and row.point["order"] != MODEL_FIRST]
    done = [row for row in own if row.answer.seconds is not None]
    return min(done, key=lambda row: row.answer.seconds or 0.0, default=None)


def answer_sentences(per_node: dict[str, int], rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: the fastest grid of each machine, and the times of its other orders.

    Parameters
    ----------
    per_node : number of GPUs of a node, by the name of the machine
    rows : predicted rows
    """
    return [_machine_sentence(machine, per_node[machine], rows) for machine in per_node]


def _machine_sentence(machine: str, per_node: int, rows: Sequence[SweepRow]) -> str:
    """The sentence about one machine."""
    best = best_of(rows, machine)
    if best is None or best.answer.seconds is None or best.answer.trained is None:
        return f"{machine}: no grid was simulated."
    seconds, exposed = best.answer.seconds, best.answer.trained.exposed_seconds_by_axis
    within, long = axes_inside_node(best.answer, per_node), _long_axes(best.answer)
    lies = f"with {' and '.join(within)} inside" if within else "with no axis wholly inside"
    grid, order = grid_text(best.answer), ",".join(long)
    text = f"On {machine} {grid} is best, {order} from the inside out, {lies} its nodes of {per_node}"
    text += f": {format_seconds(seconds)}"
    if exposed:
        most = max(exposed, key=lambda axis: exposed[axis])
        text += f"; {most} is exposed longest, {100 * exposed[most] / seconds:.0f} % of the step"
    others = [row for row in rows if row.point["machine"] == machine and row is not best and row.answer.seconds]
    moved = [f"{_row_label(row)} takes {ratio_text((row.answer.seconds or 0.0) / seconds)} as long" for row in others]
    return f"{text}; {', '.join(moved)}." if moved else f"{text}."


def _row_label(row: SweepRow) -> str:
    """The name of a row that is compared with the fastest."""
    order = row.point["order"]
    return f"{order} ({grid_text(row.answer)})" if order == MODEL_FIRST else f"the same box with {order}"


@styled
def figure(rows: Sequence[SweepRow], flags: Mapping[str, str]) -> "Figure":
    """The bars of each machine's orders: computing, then exposed communication by axis; a panel for each machine.

    Parameters
    ----------
    rows : predicted rows
    flags : flags that all points share, for the title
    """
    machines = list(dict.fromkeys(row.point["machine"] for row in rows))
    bars = {name: [row for row in rows if row.point["machine"] == name] for name in machines}
    job = f"a training step of {flags['gpt']} on {flags['gpus']} GPUs, {flags['batch']} sequences, predicted"
    heights = [1.0 + len(bars[name]) for name in machines]
    drawing = new_figure(9, 1.6 + 0.36 * sum(heights), question=QUESTION, setting=job)
    panels = drawing.subplots(len(machines), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, name in zip(panels, machines, strict=True):
        draw_stacks(panel, [_stack(row) for row in bars[name]], COLOURS, "s", lambda s: format_seconds(s) if s else "")
        panel.set_title(name, loc="left")
    longest = max(sum(_stack(row).amounts.values()) for row in rows)
    panels[-1].set(xlim=(0, ROOM * longest), xlabel="time of a step")
    legend_below(drawing)
    return drawing


def _stack(row: SweepRow) -> Stack:
    """The parts of a step [s], under the grid and the order of a row; no parts for a row without an answer."""
    step, order = row.answer, row.point["order"]
    if step.seconds is None or step.trained is None:
        return Stack(f"{order}: no answer")
    exposed = {f"exposed, {axis}": step.trained.exposed_seconds_by_axis.get(axis, 0.0) for axis in AXES}
    parts = {"computing": step.compute_seconds or 0.0, **exposed}
    waiting = step.seconds - sum(parts.values())
    label = "first of rank's model" if order == MODEL_FIRST else order
    return Stack(f"{grid_text(step)}, {label}", parts | {"waiting": waiting if waiting > LEAST_WAITING else 0.0})


if __name__ == "__main__":
    run_as_program(main)
