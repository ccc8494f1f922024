"""`quadrille study which-grid`: the best grid for one training job on each of several machines, and why it is that.

All grids are ranked by the closed form and the first few simulated (`quadrille.experiments.sweep.best_step`).
Why is asked of the simulator: the same box of ranks is simulated once with each of its long
axes laid innermost, so that another axis has the links inside the node.  Beside them stands the
grid that the analytical model of `quadrille rank` puts first, which knows neither
latency nor overlap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.output.tables import UNKNOWN, table
from quadrille.experiments.rank.analytical import ranked
from quadrille.experiments.rank.candidates import Limits
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.sharing import Crew
from quadrille.experiments.sweep.answers import predicted_at
from quadrille.experiments.sweep.outcomes import SweepAnswer, SweepRow
from quadrille.experiments.sweep.points import BestGrid, Impossible, OneGrid
from quadrille.experiments.sweep.training_step import predicted_step
from quadrille.experiments.sweep.training_study import (
    Asking,
    Findings,
    Shown,
    asked_at,
    conclude,
    grid_words,
    on_grid,
    times,
)
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import run_as_program

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

MODEL = "the model's first"
INNERMOST = "innermost"
COLOURS: dict[Axis, str] = {"x": "#0072b2", "y": "#56b4e9", "z": "#009e73", "data": "#e69f00", "pipeline": "#999999"}
MODEL_TOP = 8
Search = BestGrid | Impossible
Step = OneGrid | Impossible
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridQuestion:
    """What is trained, and where."""

    machines: tuple[str, ...] = ("perlmutter", "frontier", "alps", "selene", "h100-superpod")
    gpt: str = "20b"
    gpus: int = 32
    batch: int = 64


QUICK = GridQuestion(machines=("perlmutter", "selene"), gpt="gpt3-1.3b", gpus=16, batch=32)


def main() -> None:
    """Ask about the default machines and keep the answer."""
    which_grid(GridQuestion(), Asking.into_folder("which-grid", RESULTS))


def which_grid(asked: GridQuestion, asking: Asking) -> Findings:
    """Search the best grid of every machine, predict its other orders, and print and write the results.

    Raises
    ------
    InputError : a model or a machine that is unknown, a file that cannot be written, no machine on which it fits
    """
    asking.check()
    searched = [_point(asked, machine, asking) for machine in asked.machines]
    results: list[tuple[dict[str, str], SweepAnswer]] = []
    orders: list[tuple[dict[str, str], Step]] = []
    for (point, search), best in zip(searched, asked_at(searched, predicted_at, asking), strict=True):
        results.append(({**point, "order": _order(best)}, best))
        if best.seconds is not None:
            orders += list(_other_orders(point, search, best))
    others = asked_at(orders, predicted_step, asking)
    modelled = asked_at(searched, first_of_model, asking)
    results += [(point, result) for (point, _), result in zip(orders, others, strict=True)]
    results += [({**point, "order": MODEL}, result) for (point, _), result in zip(searched, modelled, strict=True)]
    flags = {"gpt": asked.gpt, "gpus": str(asked.gpus), "batch": str(asked.batch), "recompute": "full", "scheme": "4d"}
    return conclude("which-grid", flags, results, Shown(tables, partial(worded, nodes_of(asked)), figure), asking)


def nodes_of(asked: GridQuestion) -> dict[str, int]:
    """GPUs of a node of every machine."""
    from quadrille.topologies.machines.machine_catalogue import machine

    return {name: machine(name).gpus_per_node for name in asked.machines}


def _point(asked: GridQuestion, machine: str, asking: Asking) -> tuple[dict[str, str], Search]:
    return {"machine": machine}, asking.search(asked.gpt, asked.batch, asked.gpus, machine)


def _other_orders(point: dict[str, str], search: Search, best: SweepAnswer) -> Iterator[tuple[dict[str, str], Step]]:
    """The best grid in other orders: each long axis innermost, except the axis that already is."""
    assert best.trained is not None
    for axis in _long(best)[1:]:
        turned = (axis, *(inner for inner in best.trained.order if inner not in (axis, "pipeline")))
        yield {**point, "order": f"{axis} {INNERMOST}"}, on_grid(search, best, turned)


def first_of_model(asked: Search) -> SweepAnswer:
    """The step on the grid that the analytical model of the ranker puts first, in microbatches as asked for."""
    if isinstance(asked, Impossible):
        return SweepAnswer(reason=asked.reason)
    assert isinstance(asked.experiment, TrainingExperiment)
    assert asked.experiment.shape is not None
    try:
        training = in_bfloat16(asked.experiment)
        question = RankQuestion(
            training=training,
            shape=asked.experiment.shape,
            gpus=asked.gpus,
            machine=asked.machine,
            top=MODEL_TOP,
            form="exact",
            limits=Limits(None, powers_of_two=False, least_model_parallel=1),
        )
        grid = ranked(question, Crew()).candidates.grid(0)
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))
    return predicted_step(OneGrid(replace(asked.experiment, grid=grid), asked.machine, asked.most_seconds))


def in_bfloat16(experiment: TrainingExperiment) -> TrainingExperiment:
    """The step in mixed precision, as the ranker takes it."""
    return replace(experiment, problem=replace(experiment.problem, dtype="bfloat16"))


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The best grid of every machine, then its box in other orders."""
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
    answer = row.answer
    if answer.seconds is None or answer.trained is None:
        return (row.point["machine"], row.point["order"], *(UNKNOWN,) * 5)
    exposed = answer.trained.exposed_seconds_by_axis
    return (
        row.point["machine"],
        row.point["order"],
        grid_words(answer),
        ",".join(_long(answer)),
        format_seconds(answer.seconds),
        format_seconds(answer.compute_seconds or 0.0),
        ", ".join(f"{axis} {format_seconds(seconds)}" for axis, seconds in exposed.items()) or UNKNOWN,
    )


def _long(answer: SweepAnswer) -> list[Axis]:
    """Axes of more than one rank, the innermost first."""
    assert answer.trained is not None
    assert answer.grid_lengths is not None
    return [axis for axis in answer.trained.order if answer.grid_lengths.get(axis, 1) > 1]


def _order(answer: SweepAnswer) -> str:
    long = _long(answer) if answer.seconds is not None else []
    return f"{long[0]} {INNERMOST}" if long else UNKNOWN


def inside(answer: SweepAnswer, per_node: int) -> list[Axis]:
    """Axes whose groups lie entirely inside a node.

    >>> from quadrille.experiments.sweep.outcomes import Trained
    >>> trained = Trained(
    ...     scheme="4d", order=("x", "y", "z", "data"), model_flops_per_second_per_gpu=1,
    ...     hardware_flops_per_second_per_gpu=1, layers_simulated=1)
    >>> inside(SweepAnswer(grid_lengths={"data": 4, "z": 2, "y": 1, "x": 2}, trained=trained), per_node=4)
    ['x', 'z']
    """
    assert answer.grid_lengths is not None
    axes, span = [], 1
    for axis in _long(answer):
        span *= answer.grid_lengths[axis]
        if per_node % span == 0:
            axes.append(axis)
    return axes


def best_of(rows: Sequence[SweepRow], machine: str) -> SweepRow | None:
    """The fastest that was looked for on a machine, in any order."""
    own = [row for row in rows if row.point["machine"] == machine and row.point["order"] != MODEL]
    done = [row for row in own if row.answer.seconds is not None]
    return min(done, key=lambda row: row.answer.seconds or 0.0, default=None)


def worded(per_node: dict[str, int], rows: Sequence[SweepRow]) -> str:
    """Which grid is the best where, what lies inside its nodes, and what laying another axis there costs."""
    return " ".join(_of_machine(machine, per_node[machine], rows) for machine in per_node)


def _of_machine(machine: str, per_node: int, rows: Sequence[SweepRow]) -> str:
    best = best_of(rows, machine)
    if best is None or best.answer.seconds is None or best.answer.trained is None:
        return f"{machine}: no grid was simulated."
    seconds, exposed = best.answer.seconds, best.answer.trained.exposed_seconds_by_axis
    within, long = inside(best.answer, per_node), _long(best.answer)
    lies = f"with {' and '.join(within)} inside" if within else "with no axis wholly inside"
    grid, order = grid_words(best.answer), ",".join(long)
    text = f"On {machine} {grid} is best, {order} from the inside out, {lies} its nodes of {per_node}"
    text += f": {format_seconds(seconds)}"
    if exposed:
        most = max(exposed, key=lambda axis: exposed[axis])
        text += f"; {most} is exposed longest, {100 * exposed[most] / seconds:.0f} % of the step"
    others = [row for row in rows if row.point["machine"] == machine and row is not best and row.answer.seconds]
    moved = [f"{_called(row)} takes {times((row.answer.seconds or 0.0) / seconds)} as long" for row in others]
    return f"{text}; {', '.join(moved)}." if moved else f"{text}."


def _called(row: SweepRow) -> str:
    """What a row is called beside the best."""
    order = row.point["order"]
    return f"{order} ({grid_words(row.answer)})" if order == MODEL else f"the same box with {order}"


def figure(rows: Sequence[SweepRow]) -> "Figure":
    """A bar chart of every machine's orders: computing time, then exposed communication by axis."""
    from matplotlib.figure import Figure

    some = [row for row in rows if row.answer.seconds is not None and row.answer.trained is not None]
    ordered = sorted(some, key=lambda row: [member.point["machine"] for member in rows].index(row.point["machine"]))
    drawing = Figure(figsize=(9, 1.5 + 0.32 * len(ordered)), layout="constrained")
    axis = drawing.subplots()
    places = range(len(ordered))
    left = [row.answer.compute_seconds or 0.0 for row in ordered]
    axis.barh(places, left, color="#cccccc", label="computing")
    for name in AXES:
        parts = [
            row.answer.trained.exposed_seconds_by_axis.get(name, 0.0) if row.answer.trained else 0.0 for row in ordered
        ]
        if any(parts):
            axis.barh(places, parts, left=left, color=COLOURS[name], label=f"exposed, {name}")
        left = [start + part for start, part in zip(left, parts, strict=True)]
    names = [f"{row.point['machine']}: {grid_words(row.answer)}, {','.join(_long(row.answer))}" for row in ordered]
    axis.set_yticks(places, names, fontsize=7)
    axis.invert_yaxis()
    axis.set(xlabel="step [s], predicted; axes from the inside out")
    axis.legend(fontsize=8)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
