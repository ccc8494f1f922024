"""The subject of a figure, from `--plot-of`."""

from typing import Any, cast, get_args

from quadrille.algorithms.errors import InputError
from quadrille.cli.parsing.numbers import one_of
from quadrille.experiments.output.destinations import PlotOf, check_plot_named


def parse_plot_of(values: dict[str, Any]) -> PlotOf:
    """The subject of the figure of a prediction.

    Parameters
    ----------
    values : values of the flags of `simulate`

    Raises
    ------
    InputError : an unknown subject, one without --plot, or one of all ranks with --ranks
    """
    subject = cast(PlotOf, one_of(values["plot_of"], "plot-of", get_args(PlotOf)))
    if subject != "timeline":
        check_plot_named(f"--plot-of {subject}", values["plot"])
    if subject != "timeline" and values["ranks"]:
        raise InputError(f"--plot-of {subject}: is of all ranks; leave out --ranks")
    return subject


def refuse_for_run(values: dict[str, Any]) -> None:
    """Refuse a subject other than the timeline, which a run does not have.

    Raises
    ------
    InputError : always
    """
    subject = parse_plot_of(values)
    raise InputError(f"--plot-of {subject}: of a run the timeline is drawn; quadrille simulate draws {subject}")
