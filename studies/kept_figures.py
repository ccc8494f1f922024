"""`quadrille study draw FILE`: the figure of a study, drawn again from its kept answer without a prediction."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.input_files import read_text
from quadrille.experiments.explain.explain import schema_of
from quadrille.experiments.output.destinations import Destinations, check_plot_named
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.sweep.training_study import SCHEMA as FINDINGS
from quadrille.experiments.sweep.training_study import Findings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCEPTED = (
    "the JSON of a study of training steps, of published-training or of published-collectives, "
    "or rows.csv of megatron-bridge, is accepted"
)


def draw_again(file: str, plot: str) -> None:
    """Writes the figure of a kept answer.

    Parameters
    ----------
    file : path of the answer
    plot : path of the figure

    Raises
    ------
    InputError : no path of the figure, a file that is no answer of a study, or an answer without a figure
    """
    check_plot_named("study draw", plot)
    Destinations(plot=plot).check({"FILE": file})
    write_figure(kept_figure(file), plot)


def kept_figure(file: str) -> "Figure":
    """The figure of the answer in a file.

    Raises
    ------
    InputError : a file that is no answer of a study, or an answer without a figure
    """
    if Path(file).suffix == ".csv":
        return _bridge_figure(file)
    schema = schema_of(file) or FINDINGS
    if schema not in FIGURES:
        raise InputError(f"{file} has the schema {schema!r:.60}: {ACCEPTED}")
    return FIGURES[schema](file)


def _bridge_figure(file: str) -> "Figure":
    from quadrille.studies.megatron_bridge.figure import figure, kept_rows

    try:
        rows = kept_rows(read_text(file))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    lacking = [name for name in ("model", "kind", "published s", "predicted s") if not rows or name not in rows[0]]
    if lacking:
        raise InputError(f"{file} has no column {lacking[0]!r}: {ACCEPTED}")
    return figure(rows)


def _findings_figure(file: str) -> "Figure":
    """The figure of the findings of a study of training steps; the study's module draws it."""
    findings = schema_files.read(file, Findings, FINDINGS)
    figures = study_figures()
    if findings.study not in figures:
        raise InputError(f"{file} is of the study {findings.study!r:.40}: {', '.join(figures)} have figures")
    return figures[findings.study](findings)


def study_figures() -> "dict[str, Callable[[Findings], Figure]]":
    """The function that draws the findings of each study of training steps, by the name of the study."""
    from quadrille.studies.bandwidth_or_memory import study as bandwidth_or_memory
    from quadrille.studies.best_layout import study as best_layout
    from quadrille.studies.better_network import study as better_network
    from quadrille.studies.fault_cost import study as fault_cost
    from quadrille.studies.message_driven_worth import study as message_driven_worth
    from quadrille.studies.overlap_worth import study as overlap_worth
    from quadrille.studies.oversubscription import study as oversubscription
    from quadrille.studies.scaling_end import study as scaling_end
    from quadrille.studies.which_grid import study as which_grid
    from quadrille.studies.which_scheme import study as which_scheme

    return {
        "bandwidth-or-memory": lambda findings: bandwidth_or_memory.figure(findings.rows),
        "best-layout": lambda findings: best_layout.figure(findings.rows),
        "better-network": lambda findings: better_network.figure(findings.rows, findings.flags),
        "fault-cost": lambda findings: fault_cost.figure(findings.rows),
        "message-driven-worth": lambda findings: message_driven_worth.figure(findings.rows, findings.flags),
        "overlap-worth": lambda findings: overlap_worth.figure(findings.rows, findings.flags),
        "oversubscription": lambda findings: oversubscription.figure(findings.rows),
        "scaling-end": lambda findings: scaling_end.figure(findings.rows),
        "which-grid": lambda findings: which_grid.figure(findings.rows, findings.flags),
        "which-scheme": lambda findings: which_scheme.figure(findings.rows),
    }


def _training_figure(file: str) -> "Figure":
    from quadrille.studies.published_training.figure import answer_figure
    from quadrille.studies.published_training.report import TrainingAnswer
    from quadrille.studies.published_training.study import SCHEMA

    answer = schema_files.read(file, TrainingAnswer, SCHEMA)
    if not answer.rows and not answer.weak_scaling:
        raise InputError(f"{file} has claims alone, which have no figure; rows and the weak scaling have one")
    return answer_figure(answer)


def _collectives_figure(file: str) -> "Figure":
    from quadrille.studies.published_collectives.figure import rows_figure
    from quadrille.studies.published_collectives.report import CollectivesAnswer
    from quadrille.studies.published_collectives.study import SCHEMA

    return rows_figure(schema_files.read(file, CollectivesAnswer, SCHEMA).rows)


FIGURES: dict[str, Callable[[str], "Figure"]] = {
    FINDINGS: _findings_figure,
    "quadrille/published-training/1": _training_figure,
    "quadrille/published-collectives/1": _collectives_figure,
}
"""The function that draws the figure of a file, by schema."""
