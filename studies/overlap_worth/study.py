"""`quadrille study overlap-worth`: the predicted gain of each overlap of the 4D algorithm, case by case.

    oar    the all-reduce of dI over x (in every second layer over y) overlaps with the matmul of dW
    ors    the reduce-scatter of dW over z overlaps with the rest of the backward pass
    oag    the all-gather of the next layer's W over z overlaps with the matmuls of the current layer
    bands  each matmul is cut into two bands of rows; the sum of one band overlaps with the matmul of the other

Starting from a base case, one setting is changed at a time: the number of GPUs, the sequences per GPU, the bandwidth of
the network, or the grid.  All overlaps of a case run on the same grid.  Unless grids are compared, it is the fastest
grid with all overlaps, of the few that a closed form ranks first.

The gain is the time of a step without overlap / the time with it - 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, styled
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.experiments.output.gain_bars import draw_gain_bars
from quadrille.experiments.output.tables import UNKNOWN, duration, percent, table
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

SINGLE: tuple[OverlapName, ...] = ("oar", "ors", "oag")
ALL, BANDED = "all", "all in 2 bands"
ALL_OVERLAPS: frozenset[OverlapName] = frozenset(SINGLE)
VARIANTS: dict[str, tuple[frozenset[OverlapName], int]] = {
    "none": (frozenset(), 1),
    **{name: (frozenset({name}), 1) for name in SINGLE},
    ALL: (ALL_OVERLAPS, 1),
    BANDED: (ALL_OVERLAPS, 2),
}
"""The variants of a step by name: overlaps, and number of bands."""
GAINS = (*SINGLE, ALL, BANDED)
HIDDEN_AXES = {"oar": ("x", "y"), "ors": ("z",), "oag": ("z",)}
"""Axes whose communication an overlap hides; without ranks along them there is nothing to hide."""
NEGLIGIBLE_GAIN = 1e-3
"""Gain below which an overlap brings nothing."""
LABELS = {
    "GPUs": "GPUs",
    "sequences": "sequences a GPU",
    "bandwidth": "bandwidth of the network",
    "grid": "grid",
}
"""Label of each changed setting in the figure."""
KINDS = tuple(LABELS)
QUESTION = "What is overlap of communication with products worth?"
"""Title of the figure."""
NAMES = {
    "oar": "all-reduces (oar)",
    "ors": "reduce-scatters (ors)",
    "oag": "all-gathers (oag)",
    ALL: "all three",
    BANDED: "all three in 2 bands",
}
"""Name of each overlap in the figure."""
COLOURS = dict(zip(NAMES.values(), PALETTE, strict=False))
Point = tuple[dict[str, str], OneGrid | BestGrid | Impossible]
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapQuestion:
    """The base case and its changes.

    Parameters
    ----------
    machine : name of the machine
    gpt : name of the model
    gpus : numbers of GPUs; the first is that of the base case
    each : numbers of sequences per GPU; the first is that of the base case
    bandwidths : factors of the network's bandwidth, in addition to x1
    grids : grids that are compared on the first number of GPUs; empty: those of `default_grids`
    """

    machine: str = "perlmutter"
    gpt: str = "20b"
    gpus: tuple[int, ...] = (32, 128)
    each: tuple[int, ...] = (1, 4)
    bandwidths: tuple[str, ...] = ("x0.5", "x2")
    grids: tuple[str, ...] = ()


QUICK = OverlapQuestion(gpt="gpt3-1.3b", gpus=(8, 16), each=(1,), bandwidths=("x2",))


def main() -> None:
    """Run the study on the default cases, and write the answer to `results/`."""
    overlap_worth(OverlapQuestion(), StudyOptions.into_folder("overlap-worth", RESULTS))


def overlap_worth(question: OverlapQuestion, asking: StudyOptions) -> Findings:
    """Predict every overlap in every case, and print and write the results.

    Parameters
    ----------
    question : base case and its changes
    asking : options of the search, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; a file that cannot be written; no possible point
    """
    asking.check()
    cases = list(cases_of(question, asking))
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
            results.append(({**point, "overlap": ALL}, best))
        else:
            points += _with_each_overlap(point, point_on_best_grid(case, best))
    answers = answer_study_points(points, predict_training_point, asking)
    results += [(point, result) for (point, _), result in zip(points, answers, strict=True)]
    flags = {"machine": question.machine, "gpt": question.gpt, "recompute": "full", "scheme": "4d"}
    presentation = StudyPresentation(tables, answer, partial(figure, flags=flags))
    return write_findings("overlap-worth", flags, results, presentation, asking)


def cases_of(question: OverlapQuestion, asking: StudyOptions) -> Iterator[Point]:
    """The cases: the base case, and cases that change one setting; cases without a grid search the fastest grid."""
    gpus, each = question.gpus[0], question.each[0]

    def case(kind: str, *, gpus: int = gpus, each: int = each, bandwidth: str = "x1", grid: str = "") -> Point:
        """The base case with one changed setting; `kind` is the name of the setting."""
        settings = () if bandwidth == "x1" else (f"topology.bandwidth_bytes_per_second={bandwidth}",)
        point = {"changed": kind, "gpus": str(gpus), "each": str(each), "bandwidth": bandwidth}
        search = asking.search(question.gpt, each * gpus, gpus, question.machine, settings=settings)
        if not grid or isinstance(search, Impossible):
            return point, search
        return point, OneGrid(replace(search.experiment, grid=parse_grid(grid)), search.machine, search.most_seconds)

    for count in question.gpus:
        yield case("GPUs", gpus=count)
    for sequences in question.each[1:]:
        yield case("sequences", each=sequences)
    for factor in question.bandwidths:
        yield case("bandwidth", bandwidth=factor)
    for grid in question.grids or default_grids(gpus):
        yield case("grid", grid=grid)


def default_grids(gpus: int) -> tuple[str, ...]:
    """The grids of a number of GPUs that are compared: only z, z and x, all three axes, and only x.

    >>> default_grids(32)
    ('z=32', 'z=8,x=4', 'z=8,y=2,x=2', 'x=32')
    """
    cuts = [(gpus, 1, 1), (gpus // 4, 1, 4), (gpus // 4, 2, 2), (1, 1, gpus)]
    texts = (str(parse_grid(f"z={z},y={y},x={x}")) for z, y, x in cuts if z * y * x == gpus)
    return tuple(dict.fromkeys(texts))


def _with_each_overlap(
    point: dict[str, str], step: OneGrid | Impossible
) -> list[tuple[dict[str, str], OneGrid | Impossible]]:
    """The points of a step on its grid, one for each variant of the overlaps."""
    if isinstance(step, Impossible):
        return [({**point, "overlap": way}, step) for way in VARIANTS]
    experiment = step.experiment
    return [
        (
            {**point, "grid": str(experiment.grid), "overlap": way},
            replace(step, experiment=_with_overlaps(experiment, overlaps, bands)),
        )
        for way, (overlaps, bands) in VARIANTS.items()
    ]


def _with_overlaps(experiment: Experiment, overlaps: frozenset[OverlapName], bands: int) -> Experiment:
    """The experiment with other overlaps and another number of bands."""
    return replace(experiment, execution=replace(experiment.execution, overlaps=overlaps, bands=bands))


@dataclass(frozen=True, slots=True)
class OverlapCase:
    """The predictions of one case.

    Parameters
    ----------
    point : settings of the case
    seconds : predicted time of a step by variant [s]
    """

    point: dict[str, str]
    seconds: dict[str, float]

    def gain(self, overlap: str) -> float | None:
        """The relative gain of an overlap over no overlap; None if either step is missing."""
        if overlap not in self.seconds or "none" not in self.seconds:
            return None
        return self.seconds["none"] / self.seconds[overlap] - 1


def cases_in(rows: Sequence[SweepRow]) -> list[OverlapCase]:
    """The cases of the rows, in the order of the rows."""
    by_point: dict[tuple[tuple[str, str], ...], OverlapCase] = {}
    for row in rows:
        point = {key: value for key, value in row.point.items() if key != "overlap"}
        case = by_point.setdefault(tuple(point.items()), OverlapCase(point, {}))
        if row.answer.seconds is not None:
            case.seconds[row.point["overlap"]] = row.answer.seconds
    return list(by_point.values())


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the gains: a row for each case, a column for each overlap."""
    columns = ("changed", "GPUs", "sequences", "bandwidth", "grid", "without", *GAINS)
    cases = cases_in(rows)
    sections = [[_cells(case) for case in cases if case.point["changed"] == kind] for kind in KINDS]
    return [table("gain of a step by overlap, predicted", columns, *sections, names=5)]


def _cells(case: OverlapCase) -> tuple[str, ...]:
    """The cells of a case's row."""
    point, alone = case.point, case.seconds.get("none")
    return (
        *(point.get(key, UNKNOWN) for key in ("changed", "gpus", "each", "bandwidth", "grid")),
        duration(alone),
        *(percent(case.gain(overlap)) for overlap in GAINS),
    )


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: the range of each overlap's gain, and the cases without a gain."""
    cases = [case for case in cases_in(rows) if case.gain(ALL) is not None]
    if not cases:
        return ["No case was simulated with and without overlaps."]
    of_each = (sentence for overlap in SINGLE for sentence in _one_overlap_sentences(cases, overlap))
    return [*_all_together_sentences(cases), *_band_sentences(cases), *of_each]


def _all_together_sentences(cases: Sequence[OverlapCase]) -> Iterator[str]:
    """The sentences about all overlaps together."""
    ordered = sorted(cases, key=lambda case: case.gain(ALL) or 0.0)
    least, most = ordered[0], ordered[-1]
    yield (
        f"All three together make a step {percent(least.gain(ALL))} ({_where(least)}) to "
        f"{percent(most.gain(ALL))} ({_where(most)}) faster."
    )
    sums = [(sum(case.gain(overlap) or 0.0 for overlap in SINGLE), case.gain(ALL) or 0.0) for case in cases]
    less = sum(together < alone for alone, together in sums)
    yield f"In {less} of {len(sums)} cases they bring less together than the sum of each alone."


def _band_sentences(cases: Sequence[OverlapCase]) -> Iterator[str]:
    """The sentence about bands."""
    further = [(case.seconds[ALL] / case.seconds[BANDED] - 1, case) for case in cases if BANDED in case.seconds]
    if further:
        worst, least = min(further, key=lambda change: change[0])
        best, most = max(further, key=lambda change: change[0])
        yield f"Two bands change that by {percent(worst)} ({_where(least)}) to {percent(best)} ({_where(most)})."


def _one_overlap_sentences(cases: Sequence[OverlapCase], overlap: str) -> Iterator[str]:
    """The sentence about one overlap alone."""
    gains = {index: case.gain(overlap) for index, case in enumerate(cases)}
    changes = {index: gain for index, gain in gains.items() if gain is not None}
    if not changes:
        return
    best = max(changes, key=lambda index: changes[index])
    nothing = [cases[index] for index, gain in changes.items() if abs(gain) < NEGLIGIBLE_GAIN]
    slower = [cases[index] for index, gain in changes.items() if gain <= -NEGLIGIBLE_GAIN]
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
    """Whether a case's grid has ranks along the axes whose communication the overlap hides."""
    grid = parse_grid(case.point["grid"])
    return any(axis in HIDDEN_AXES[overlap] and grid.length(axis) > 1 for axis in ("z", "y", "x"))


def _where(case: OverlapCase) -> str:
    """The settings of a case as text."""
    point = case.point
    bandwidth = "" if point["bandwidth"] == "x1" else f", bandwidth {point['bandwidth']}"
    return f"{point['gpus']} GPUs, {point['each']} sequences each, {point['grid']}{bandwidth}"


@styled
def figure(rows: Sequence[SweepRow], flags: Mapping[str, str]) -> "Figure":
    """The bar chart of the gains, with one panel for each changed setting.

    Parameters
    ----------
    rows : predicted rows
    flags : flags that all points share, for the title
    """
    cases = cases_in(rows)
    kinds = [kind for kind in KINDS if any(case.point["changed"] == kind for case in cases)]
    base = cases[0].point
    case = f"{base['gpus']} GPUs of {flags['machine']}, sequences a GPU: {base['each']}"
    setting = f"a training step of {flags['gpt']}, predicted; each panel changes one setting of the base case: {case}"
    members_of = {kind: [case for case in cases if case.point["changed"] == kind] for kind in kinds}
    widths = [max(1, len(members)) for members in members_of.values()]
    drawing = new_figure(2 + 1.4 * sum(widths), 4.8, question=QUESTION, setting=setting)
    panels = drawing.subplots(1, len(kinds), sharey=True, squeeze=False, width_ratios=widths)[0]
    for axis, kind in zip(panels, kinds, strict=True):
        members = members_of[kind]
        gains = {NAMES[overlap]: [case.gain(overlap) for case in members] for overlap in GAINS}
        key = {"GPUs": "gpus", "sequences": "each"}.get(kind, kind)
        draw_gain_bars(
            axis, [case.point.get(key, "") for case in members], gains, COLOURS, missing=f"this {kind}\nis impossible"
        )
        axis.set_xlabel(LABELS[kind])
    panels[0].set_ylabel("gain over no overlap [%]")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
