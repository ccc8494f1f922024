"""`quadrille study which-scheme`: the predicted fastest tensor-parallel scheme by number of GPUs.

The schemes are Megatron-LM (1-D), Optimus (2-D), Tesseract (2.5-D), Bian et al. (3-D) and 4D.

    strong    the batch stays the same
    weak      the batch grows with the number of GPUs; the model stays the same

Each scheme runs with all its overlaps, full recomputation and a data-parallel axis, on the fastest grid of the few that
a closed form ranks first (`quadrille.experiments.sweep.best_grid`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from quadrille.algorithms.figure_style import legend_below, new_figure, number_axis, styled
from quadrille.experiments.output.tables import table
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.sweep_result import NOT_REACHED, SweepRow
from quadrille.experiments.sweep.training_study import (
    ALL_OVERLAPS,
    STEP_COLUMNS,
    Findings,
    Point,
    StudyOptions,
    StudyPresentation,
    answer_study_points,
    ratio_text,
    step_cells,
    write_findings,
)
from quadrille.runtime.host.console import run_as_program

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

Scaling = Literal["strong", "weak"]
SCALINGS: tuple[Scaling, ...] = ("strong", "weak")
SCHEMES = ("megatron", "optimus", "tesseract", "bian", "4d")
DIMENSIONS = {"megatron": "1-D", "optimus": "2-D", "tesseract": "2.5-D", "bian": "3-D", "4d": "4D"}
QUESTION = "Which scheme of parallel training is the fastest, by number of GPUs?"
"""Title of the figure."""
COLOURS = {
    "megatron": "#0072b2",
    "optimus": "#e69f00",
    "tesseract": "#cc79a7",
    "bian": "#009e73",
    "4d": "#d55e00",
}
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledProblem:
    """The training job.

    Parameters
    ----------
    machine : name of the machine
    gpt : name of the model
    gpus : numbers of GPUs
    batch : number of sequences of the global batch in strong scaling
    each : number of sequences per GPU of the global batch in weak scaling
    schemes : names of the schemes
    """

    machine: str = "perlmutter"
    gpt: str = "5b"
    gpus: tuple[int, ...] = (8, 64, 512, 4096)
    batch: int = 512
    each: int = 2
    schemes: tuple[str, ...] = SCHEMES

    def batch_on(self, scaling: Scaling, gpus: int) -> int:
        """The number of sequences of the global batch on a number of GPUs."""
        return self.batch if scaling == "strong" else self.each * gpus


QUICK = ScaledProblem(gpt="layers=1,hidden=2048,heads=16,sequence=2048,vocabulary=4096", gpus=(8,), batch=16, each=2)


def main() -> None:
    """Run the study on the default machine, and write the answer to `results/`."""
    which_scheme(ScaledProblem(), StudyOptions.into_folder("which-scheme", RESULTS, jobs=2, most_seconds=120))


def which_scheme(scaled: ScaledProblem, asking: StudyOptions) -> Findings:
    """Predict every scheme on every number of GPUs, and print and write the results.

    Parameters
    ----------
    scaled : training job
    asking : options of the search, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; a file that cannot be written; no possible point
    """
    asking.check()
    points = list(points_of(scaled, asking))
    answers = answer_study_points(points, predict_point, asking)
    flags = {
        "machine": scaled.machine,
        "gpt": scaled.gpt,
        "batch": str(scaled.batch),
        "each": str(scaled.each),
        "overlap": ALL_OVERLAPS,
        "recompute": "full",
    }
    results = [(point, answer) for (point, _), answer in zip(points, answers, strict=True)]
    return write_findings("which-scheme", flags, results, StudyPresentation(tables, answer, figure), asking)


def points_of(scaled: ScaledProblem, asking: StudyOptions) -> Iterator[Point]:
    """The points of all schemes, scalings and numbers of GPUs, the smallest number of GPUs first."""
    for gpus in scaled.gpus:
        for scaling in SCALINGS:
            for scheme in scaled.schemes:
                batch = scaled.batch_on(scaling, gpus)
                search = asking.search(scaled.gpt, batch, gpus, scaled.machine, scheme=scheme)
                yield {"scaling": scaling, "gpus": str(gpus), "batch": str(batch), "scheme": scheme}, search


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The tables of the schemes, one for each scaling."""
    columns = ("GPUs", "batch", "scheme", *STEP_COLUMNS)
    groups = []
    for scaling in SCALINGS:
        sections = [
            [
                (row.point["gpus"], row.point["batch"], scheme_label(row.point["scheme"]), *step_cells(row.answer))
                for row in rows
                if row.point["scaling"] == scaling and row.point["gpus"] == gpus
            ]
            for gpus in dict.fromkeys(row.point["gpus"] for row in rows)
        ]
        groups.append(table(f"{scaling} scaling, predicted", columns, *sections, names=4))
    return groups


def scheme_label(scheme: str) -> str:
    """The dimensions and the name of a scheme as text.

    >>> scheme_label("bian")
    '3-D (bian)'
    """
    return f"{DIMENSIONS[scheme]} ({scheme})"


def answer(rows: Sequence[SweepRow]) -> str:
    """The sentences that answer the study: the fastest scheme by number of GPUs, and the times of the others.

    Numbers of GPUs on which some schemes were not predicted are left out.
    """
    return " ".join(sentence for scaling in SCALINGS for sentence in _sentences(rows, scaling))


def _sentences(rows: Sequence[SweepRow], scaling: Scaling) -> Iterator[str]:
    """The sentences about one scaling."""
    own = [row for row in rows if row.point["scaling"] == scaling]
    cut_short = {row.point["gpus"] for row in own if row.answer == NOT_REACHED}
    by_gpus: dict[str, list[SweepRow]] = {}
    for row in own:
        if row.answer.seconds is not None and row.point["gpus"] not in cut_short:
            by_gpus.setdefault(row.point["gpus"], []).append(row)
    winners = {gpus: min(schemes, key=_seconds).point["scheme"] for gpus, schemes in by_gpus.items()}
    if not winners:
        return
    gpus_by_winner = {
        scheme: [gpus for gpus, winner in winners.items() if winner == scheme]
        for scheme in dict.fromkeys(winners.values())
    }
    where = "; ".join(
        f"{scheme_label(scheme)} on {', '.join(_count(count) for count in on)} GPUs"
        for scheme, on in gpus_by_winner.items()
    )
    yield f"{scaling.capitalize()} scaling is fastest with {where}."
    for gpus in dict.fromkeys((next(iter(winners)), list(winners)[-1])):
        ordered = sorted(by_gpus[gpus], key=_seconds)
        if len(ordered) > 1:
            behind = ", ".join(
                f"{scheme_label(row.point['scheme'])} takes {ratio_text(_seconds(row) / _seconds(ordered[0]))} as long"
                for row in ordered[1:]
            )
            best = scheme_label(ordered[0].point["scheme"])
            yield f"On {_count(gpus)} GPUs {best} takes {_seconds(ordered[0]):.3g} s; {behind}."
    last = by_gpus[list(winners)[-1]]
    hidden = ", ".join(f"{row.point['scheme']} {100 * _exposed(row):.0f} %" for row in sorted(last, key=_exposed))
    least = min(_compute(row) for row in last)
    longer = ", ".join(
        f"{row.point['scheme']} {ratio_text(_compute(row) / least)}" for row in sorted(last, key=_compute)
    )
    yield f"There communication that nothing hides is of the step: {hidden}; computing takes of the least: {longer}."


def _seconds(row: SweepRow) -> float:
    """The time of a step [s]."""
    assert row.answer.seconds is not None
    return row.answer.seconds


def _exposed(row: SweepRow) -> float:
    """The share of exposed communication in the step."""
    return (row.answer.exposed_seconds or 0.0) / _seconds(row)


def _compute(row: SweepRow) -> float:
    """The computing time of a step [s]."""
    assert row.answer.compute_seconds is not None
    return row.answer.compute_seconds


def _count(gpus: str) -> str:
    """A number of GPUs with thousands separators."""
    return f"{int(gpus):,}"


@styled
def figure(rows: Sequence[SweepRow]) -> "Figure":
    """The figure of each scheme's share of peak by number of GPUs, with one panel for each scaling."""
    drawing = new_figure(9, 4.4, question=QUESTION, setting="predicted")
    for axis, scaling in zip(drawing.subplots(1, 2, sharey=True), SCALINGS, strict=True):
        for scheme in dict.fromkeys(row.point["scheme"] for row in rows):
            line = [
                (int(row.point["gpus"]), row.answer.trained.percent_of_peak)
                for row in rows
                if row.point["scheme"] == scheme and row.point["scaling"] == scaling and row.answer.trained is not None
            ]
            axis.plot(
                *zip(*line, strict=True) if line else ((), ()),
                marker="o",
                color=COLOURS[scheme],
                label=scheme_label(scheme),
            )
        gpus = sorted({int(row.point["gpus"]) for row in rows})
        number_axis(axis.xaxis, gpus)
        axis.set(xlabel="GPUs", title=f"{scaling} scaling", ylim=(0, None))
    drawing.axes[0].set_ylabel("hardware flop/s, % of peak")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
