"""`ClaimPrediction`: the prediction of a published claim, with its assumptions and with variants of them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClaimPrediction:
    """The prediction of a claim.

    Parameters
    ----------
    predicted : predicted value; None if the prediction took too long
    setting : grid of the prediction
    what_if : predictions under other assumptions, by the name of the assumption
    low, high : bounds of the exact prediction; None if `predicted` is exact
    assumptions : what is assumed and not printed in the abstract
    """

    predicted: float | None
    setting: str
    what_if: Mapping[str, float]
    low: float | None = None
    high: float | None = None
    assumptions: tuple[str, ...] = ()
