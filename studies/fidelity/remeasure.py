"""Runs that were measured while the machine was not as it was calibrated are measured again.

A machine with neighbours may be half as fast for twenty seconds and then as it was.  Calibration looks again at points
that something disturbed; a run is looked at again where its reference kernels show that the machine was another, and
of all looks the one counts in which it was nearest to its calibration.  Nothing but these kernels decides: not how
long the run took, nor how it was predicted.
"""

from collections.abc import Callable, Sequence
from math import log
from pathlib import Path

from quadrille.algorithms.formats.record import Record, load_record
from quadrille.experiments.compare.drift import drift

LOOKS = 3
"""At a run, at most."""
ANOTHER = log(1.1)
"""The product of the reference kernels is a tenth slower or faster than beside calibration."""


def distance(predicted: Record, measured: Record) -> float:
    """How far the machine was from its calibration: of the logarithm of its drift the size; 0 where it is not known."""
    factor = drift(predicted.reference, measured.reference, ()).gemm
    return 0.0 if factor is None else abs(log(factor))


def look_again(
    numbers: Sequence[int],
    predictions: Sequence[Record],
    measured: Sequence[Path],
    measure: Callable[[Sequence[tuple[int, Path]]], None],
) -> int:
    """Measure runs again until the machine is as fast as calibrated, at most LOOKS times; return their number.

    Parameters
    ----------
    numbers : numbers of the runs to check: runs measured now, without runs that an earlier study left
    predictions, measured : prediction and measured record of every run, in the order of their numbers
    measure : function that measures runs, given by number and file
    """

    def disturbed(among: Sequence[int]) -> list[int]:
        return [number for number in among if distance(predictions[number], load_record(measured[number])) > ANOTHER]

    again = needed = disturbed(numbers)
    for _ in range(LOOKS - 1):
        if not again:
            break
        looks = [(number, measured[number].with_suffix(".again.json")) for number in again]
        measure(looks)
        for number, path in looks:
            _keep_nearer(predictions[number], measured[number], path)
        again = disturbed(again)
    return len(needed)


def _keep_nearer(predicted: Record, measured: Path, again: Path) -> None:
    if distance(predicted, load_record(again)) < distance(predicted, load_record(measured)):
        again.replace(measured)
    else:
        again.unlink()
