"""`quadrille study overlap-worth`: what each overlap of the 4D algorithm is worth, and when it is worth nothing.

    oar    the sum of dI over x (of every second layer over y) runs beside the product that makes dW
    ors    the scatter of dW over z runs beside the rest of the backward pass
    oag    the gather of the next layer's W over z runs beside this layer's products
    bands  products and what follows them go in two bands of rows: one is summed beside the work on the other

Around one case one thing is changed at a time: the number of GPUs, the sequences of a
GPU, the bandwidth of the network, and the grid.  In each case the grid is the same
for all overlaps: the one that is the fastest with all of them, of the few that the closed
form ranks first, but where grids are what is compared.

Gain is seconds without any overlap over seconds with, less one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.output.tables import UNKNOWN, percent, table
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.sweep_points import BestGrid, Impossible, OneGrid
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow
from quadrille.experiments.sweep.training_point import predict_training_point
from quadrille.experiments.sweep.training_study import (
    Findings,
    StudyOptions,
    StudyPresentation,
    answer_study_points,
    point_on_best_grid,
    write_findings,
)
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.runtime.host.console import run_as_program

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

ALONE: tuple[OverlapName, ...] = ("oar", "ors", "oag")
TOGETHER, BANDED = "all", "all in 2 bands"
EVERY: frozenset[OverlapName] = frozenset(ALONE)
WAYS: dict[str, tuple[frozenset[OverlapName], int]] = {
    "none": (frozenset(), 1),
    **{name: (frozenset({name}), 1) for name in ALONE},
    TOGETHER: (EVERY, 1),
    BANDED: (EVERY, 2),
}
"""The overlaps of each way, and its bands."""
GAINS = (*ALONE, TOGETHER, BANDED)
HIDDEN_AXES = {"oar": ("x", "y"), "ors": ("z",), "oag": ("z",)}
"""Axes whose communication an overlap hides: without ranks along them there is none."""
NOTHING = 1e-3
"""Gains below are called nothing."""
KINDS = ("GPUs", "sequences", "bandwidth", "grid")
COLOURS = {"oar": "#0072b2", "ors": "#e69f00", "oag": "#009e73", TOGETHER: "#d55e00", BANDED: "#cc79a7"}
Point = tuple[dict[str, str], OneGrid | BestGrid | Impossible]
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The case and what is changed about it.

    Parameters
    ----------
    gpus : the first number is the case's
    each : sequences of a GPU; the first is the case's
    bandwidths : factors of the network's bandwidth, besides x1
    grids : compared on the first number of GPUs; empty for those that `usual_grids` gives
    """

    machine: str = "perlmutter"
    gpt: str = "20b"
    gpus: tuple[int, ...] = (32, 128)
    each: tuple[int, ...] = (1, 4)
    bandwidths: tuple[str, ...] = ("x0.5", "x2")
    grids: tuple[str, ...] = ()


QUICK = Around(gpt="gpt3-1.3b", gpus=(8, 16), each=(1,), bandwidths=("x2",))


def main() -> None:
    """Ask about the default case and keep the answer."""
    overlap_worth(Around(), StudyOptions.into_folder("overlap-worth", RESULTS))


def overlap_worth(around: Around, asking: StudyOptions) -> Findings:
    """Predict every overlap in every case, and print and write the results.

    Raises
    ------
    InputError : a model or a machine that is unknown, a file that cannot be written, no point that can be
    """
    asking.check()
    cases = list(cases_of(around, asking))
    searched = [(point, case) for point, case in cases if not isinstance(case, OneGrid)]
    chosen = dict(
        zip([id(case) for _, case in searched], answer_study_points(searched, predict_point, asking), strict=True)
    )
    points: list[tuple[dict[str, str], OneGrid | Impossible]] = []
    results: list[tuple[dict[str, str], SweepAnswer]] = []
    for point, case in cases:
        if isinstance(case, OneGrid):
            points += _with_each_overlap(point, case)
        elif (best := chosen[id(case)]).seconds is None:
            results.append(({**point, "overlap": TOGETHER}, best))
        else:
            points += _with_each_overlap(point, point_on_best_grid(case, best))
    answers = answer_study_points(points, predict_training_point, asking)
    results += [(point, result) for (point, _), result in zip(points, answers, strict=True)]
    flags = {"machine": around.machine, "gpt": around.gpt, "recompute": "full", "scheme": "4d"}
    return write_findings("overlap-worth", flags, results, StudyPresentation(tables, answer, figure), asking)


def cases_of(around: Around, asking: StudyOptions) -> Iterator[Point]:
    """The base case, and cases that change a single setting; cases that do not fix the grid search the best."""
    gpus, each = around.gpus[0], around.each[0]

    def case(kind: str, *, gpus: int = gpus, each: int = each, bandwidth: str = "x1", grid: str = "") -> Point:
        settings = () if bandwidth == "x1" else (f"topology.bandwidth_bytes_per_second={bandwidth}",)
        point = {"changed": kind, "gpus": str(gpus), "each": str(each), "bandwidth": bandwidth}
        search = asking.search(around.gpt, each * gpus, gpus, around.machine, settings=settings)
        if not grid or isinstance(search, Impossible):
            return point, search
        return point, OneGrid(replace(search.experiment, grid=parse_grid(grid)), search.machine, search.most_seconds)

    for sequences in around.gpus:
        yield case("GPUs", gpus=sequences)
    for sequences in around.each[1:]:
        yield case("sequences", each=sequences)
    for factor in around.bandwidths:
        yield case("bandwidth", bandwidth=factor)
    for grid in around.grids or usual_grids(gpus):
        yield case("grid", grid=grid)


def usual_grids(gpus: int) -> tuple[str, ...]:
    """Grids of so many GPUs that divide them in different ways: weights alone, columns too, and both sides.

    >>> usual_grids(32)
    ('z=32', 'z=8,x=4', 'z=8,y=2,x=2', 'x=32')
    """
    cuts = [(gpus, 1, 1), (gpus // 4, 1, 4), (gpus // 4, 2, 2), (1, 1, gpus)]
    texts = (str(parse_grid(f"z={z},y={y},x={x}")) for z, y, x in cuts if z * y * x == gpus)
    return tuple(dict.fromkeys(texts))


def _with_each_overlap(
    point: dict[str, str], step: OneGrid | Impossible
) -> list[tuple[dict[str, str], OneGrid | Impossible]]:
    """The step on its grid with each of the overlaps."""
    if isinstance(step, Impossible):
        return [({**point, "overlap": way}, step) for way in WAYS]
    experiment = step.experiment
    return [
        (
            {**point, "grid": str(experiment.grid), "overlap": way},
            replace(step, experiment=_overlapped(experiment, overlaps, bands)),
        )
        for way, (overlaps, bands) in WAYS.items()
    ]


def _overlapped(experiment: Experiment, overlaps: frozenset[OverlapName], bands: int) -> Experiment:
    return replace(experiment, execution=replace(experiment.execution, overlaps=overlaps, bands=bands))


@dataclass(frozen=True, slots=True)
class OverlapCase:
    """What was found in one case: seconds by overlap."""

    point: dict[str, str]
    seconds: dict[str, float]

    def gain(self, overlap: str) -> float | None:
        """Relative gain of an overlap over no overlap; None if either step is missing."""
        if overlap not in self.seconds or "none" not in self.seconds:
            return None
        return self.seconds["none"] / self.seconds[overlap] - 1


def cases_found(rows: Sequence[SweepRow]) -> list[OverlapCase]:
    """The rows by case."""
    by_point: dict[tuple[tuple[str, str], ...], OverlapCase] = {}
    for row in rows:
        point = {key: value for key, value in row.point.items() if key != "overlap"}
        case = by_point.setdefault(tuple(point.items()), OverlapCase(point, {}))
        if row.answer.seconds is not None:
            case.seconds[row.point["overlap"]] = row.answer.seconds
    return list(by_point.values())


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """A row for each case, a column for each overlap."""
    columns = ("changed", "GPUs", "sequences", "bandwidth", "grid", "without", *GAINS)
    cases = cases_found(rows)
    sections = [[_cells(case) for case in cases if case.point["changed"] == kind] for kind in KINDS]
    return [table("gain of a step by overlap, predicted", columns, *sections, names=5)]


def _cells(case: OverlapCase) -> tuple[str, ...]:
    point, alone = case.point, case.seconds.get("none")
    return (
        *(point.get(key, UNKNOWN) for key in ("changed", "gpus", "each", "bandwidth", "grid")),
        UNKNOWN if alone is None else format_seconds(alone),
        *(percent(case.gain(overlap)) for overlap in GAINS),
    )


def answer(rows: Sequence[SweepRow]) -> str:
    """What each is worth: its range, where it is worth most, and where nothing."""
    cases = [case for case in cases_found(rows) if case.gain(TOGETHER) is not None]
    if not cases:
        return "No case was simulated with and without overlaps."
    of_each = (sentence for overlap in ALONE for sentence in _of_one(cases, overlap))
    return " ".join((*_whole(cases), *_bands(cases), *of_each))


def _whole(cases: Sequence[OverlapCase]) -> Iterator[str]:
    ordered = sorted(cases, key=lambda case: case.gain(TOGETHER) or 0.0)
    least, most = ordered[0], ordered[-1]
    yield (
        f"All three together make a step {percent(least.gain(TOGETHER))} ({_where(least)}) to "
        f"{percent(most.gain(TOGETHER))} ({_where(most)}) faster."
    )
    sums = [(sum(case.gain(overlap) or 0.0 for overlap in ALONE), case.gain(TOGETHER) or 0.0) for case in cases]
    less = sum(together < alone for alone, together in sums)
    yield f"In {less} of {len(sums)} cases they bring less together than the sum of each alone."


def _bands(cases: Sequence[OverlapCase]) -> Iterator[str]:
    further = [(case.seconds[TOGETHER] / case.seconds[BANDED] - 1, case) for case in cases if BANDED in case.seconds]
    if further:
        worst, least = min(further, key=lambda change: change[0])
        best, most = max(further, key=lambda change: change[0])
        yield f"Two bands change that by {percent(worst)} ({_where(least)}) to {percent(best)} ({_where(most)})."


def _of_one(cases: Sequence[OverlapCase], overlap: str) -> Iterator[str]:
    gains = {place: case.gain(overlap) for place, case in enumerate(cases)}
    changes = {place: gain for place, gain in gains.items() if gain is not None}
    if not changes:
        return
    best = max(changes, key=lambda place: changes[place])
    nothing = [cases[place] for place, gain in changes.items() if abs(gain) < NOTHING]
    slower = [cases[place] for place, gain in changes.items() if gain <= -NOTHING]
    text = f"{overlap.upper()} alone brings at most {percent(changes[best])} ({_where(cases[best])})"
    if nothing:
        lacking = sum(not _has_axis(case, overlap) for case in nothing)
        axes = " and ".join(HIDDEN_AXES[overlap])
        text += f", and nothing in {len(nothing)} of {len(changes)} cases, "
        text += f"{lacking} of which have no ranks along {axes}"
    if slower:
        worst = min(slower, key=lambda case: case.gain(overlap) or 0.0)
        text += f"; it makes {len(slower)} slower, by {percent(-(worst.gain(overlap) or 0.0), signed=False)} at most"
    yield f"{text}."


def _has_axis(case: OverlapCase, overlap: str) -> bool:
    grid = parse_grid(case.point["grid"])
    return any(axis in HIDDEN_AXES[overlap] and grid.length(axis) > 1 for axis in ("z", "y", "x"))


def _where(case: OverlapCase) -> str:
    point = case.point
    bandwidth = "" if point["bandwidth"] == "x1" else f", bandwidth {point['bandwidth']}"
    return f"{point['gpus']} GPUs, {point['each']} sequences each, {point['grid']}{bandwidth}"


def figure(rows: Sequence[SweepRow]) -> "Figure":
    """A bar chart of the gains, with one panel for each changed setting."""
    from matplotlib.figure import Figure

    cases = cases_found(rows)
    kinds = [kind for kind in KINDS if any(case.point["changed"] == kind for case in cases)]
    drawing = Figure(figsize=(3.2 * len(kinds), 4), layout="constrained")
    panels = drawing.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axis, kind in zip(panels, kinds, strict=True):
        some = [case for case in cases if case.point["changed"] == kind]
        for place, overlap in enumerate(GAINS):
            gains = [100 * (case.gain(overlap) or 0.0) for case in some]
            axis.bar(
                [group + 0.16 * (place - 2) for group in range(len(some))],
                gains,
                width=0.16,
                color=COLOURS[overlap],
                label=overlap,
            )
        key = {"GPUs": "gpus", "sequences": "each"}.get(kind, kind)
        axis.set_xticks(range(len(some)), [case.point.get(key, "") for case in some], fontsize=7, rotation=20)
        axis.set_xlabel(kind)
        axis.grid(alpha=0.3, axis="y")
    panels[0].set_ylabel("gain over no overlap [%]")
    panels[0].legend(fontsize=8)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
