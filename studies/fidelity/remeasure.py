"""Repeated measurement of runs during which the machine was not as fast as at its calibration.

A shared machine may be half as fast for twenty seconds.  Each run measures reference kernels, as the calibration did. A
run is measured again if its reference kernels are more than a tenth faster or slower than the calibration's; of its
measurements the one counts whose reference kernels are nearest.  The time of the run and its prediction do not matter.
"""

from collections.abc import Callable, Sequence
from math import log
from pathlib import Path

from quadrille.algorithms.formats.record import Record, load_record
from quadrille.experiments.compare.drift import drift

MEASUREMENTS = 3
"""Largest number of measurements of a run."""
DISTURBING_DRIFT = log(1.1)
"""Largest drift of the reference matrix product with which a measurement counts, as |log(factor)|."""


def drift_size(predicted: Record, measured: Record) -> float:
    """The drift of the machine during a measurement, as |log(speed / calibrated speed)|; 0 if it is unknown."""
    factor = drift(predicted.reference, measured.reference, ()).gemm
    return 0.0 if factor is None else abs(log(factor))


def remeasure_disturbed(
    numbers: Sequence[int],
    predictions: Sequence[Record],
    measured: Sequence[Path],
    measure: Callable[[Sequence[tuple[int, Path]]], None],
) -> int:
    """Measure disturbed runs again, until each run has an undisturbed measurement or `MEASUREMENTS` measurements.

    Parameters
    ----------
    numbers : numbers of the runs to check: those measured now, without those of an earlier study
    predictions, measured : prediction and measured record of every run, in the order of their numbers
    measure : function that measures runs, given as pairs of number and file

    Returns
    -------
    The number of runs that were measured again.
    """

    def disturbed(candidates: Sequence[int]) -> list[int]:
        """The runs whose current measurement was disturbed."""
        return [
            number
            for number in candidates
            if drift_size(predictions[number], load_record(measured[number])) > DISTURBING_DRIFT
        ]

    again = needed = disturbed(numbers)
    for _ in range(MEASUREMENTS - 1):
        if not again:
            break
        repeats = [(number, measured[number].with_suffix(".again.json")) for number in again]
        measure(repeats)
        for number, path in repeats:
            _keep_nearer(predictions[number], measured[number], path)
        again = disturbed(again)
    return len(needed)


def _keep_nearer(predicted: Record, measured: Path, again: Path) -> None:
    """Keep the measurement with the smaller drift under the name `measured`, and delete the other."""
    if drift_size(predicted, load_record(again)) < drift_size(predicted, load_record(measured)):
        again.replace(measured)
    else:
        again.unlink()
