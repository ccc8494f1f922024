"""The error plot of the study: predicted / published time of a step by published time, a colour for each model."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import scale_axis
from quadrille.studies.error_figure import ErrorDot, error_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "How far off are predicted steps from those that Megatron Bridge publishes?"
SETTING = "training steps on H100, B200, B300, GB200 and GB300, by model; Qwen3 has experts; nothing is fitted to a row"


def figure(rows: Sequence[Mapping[str, str]]) -> "Figure":
    """The error plot.

    Parameters
    ----------
    rows : rows of the results by column; those without a prediction are left out
    """
    dots = [
        ErrorDot(row["model"], float(row["published s"]), float(row["predicted s"]) / float(row["published s"]))
        for row in sorted(rows, key=lambda row: (row["kind"], row["model"]))
        if row["predicted s"]
    ]
    left_out = len(rows) - len(dots)
    return error_figure(
        dots,
        question=QUESTION,
        setting=f"{SETTING}; {left_out} rows have no prediction",
        label="published time of a step",
        scale=lambda axis, seconds: scale_axis(axis, seconds, "s", logarithmic=True),
    )


def kept_rows(text: str) -> list[dict[str, str]]:
    """The rows of the CSV of results, by column."""
    return list(csv.DictReader(StringIO(text)))
