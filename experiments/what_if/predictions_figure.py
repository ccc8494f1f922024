"""The figure of compared predictions: a bar of the time by cause for each, the baseline on top."""

from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.experiments.explain.explanation_figure import Stack, stacks_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quadrille.experiments.what_if.compare_predictions import Predictions

QUESTION = "How do the predictions differ, and why?"


def predictions_figure(compared: "Predictions") -> "Figure":
    """The figure of compared predictions."""
    stacks = [
        Stack(Path(prediction.file).stem, {str(cause): amount for cause, amount in prediction.seconds_by_cause.items()})
        for prediction in compared.predictions
    ]
    machines = ", ".join(dict.fromkeys(prediction.machine for prediction in compared.predictions))
    return stacks_figure(stacks, [], question=QUESTION, setting=f"time of the mean rank, predicted, on {machines}")
