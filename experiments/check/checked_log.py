"""The answer of `quadrille check`: measured times beside expected ones, and verdicts by size."""

from typing import Literal

import msgspec

from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.experiments.check.explanations import Explanation

Verdict = Literal["as expected", "slower", "faster"]


class CheckedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A measured time beside the expected time.

    Parameters
    ----------
    bytes : size of the whole buffer [B]
    measured_seconds : median of the measured times of this size [s]
    within : factor within which the measured time is as expected
    """

    kind: CollectiveKind
    bytes: int
    measured_seconds: float
    expected_seconds: float
    within: float
    verdict: Verdict

    @property
    def ratio(self) -> float:
        """Measured / expected."""
        return self.measured_seconds / self.expected_seconds


class CheckedSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a range of sizes.

    Parameters
    ----------
    ratio : median of measured / expected
    others : number of sizes that are not as expected
    """

    sizes: Literal["from 1 MiB", "below 1 MiB"]
    verdict: Verdict
    ratio: float
    count: int
    others: int


class CheckedLog(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that `--json` writes.

    Parameters
    ----------
    by_size : sizes from 1 MiB on, and smaller sizes, as far as there are any
    explanations : what would explain the gap, the likeliest first; empty if all sizes are as expected in the median
    """

    log: str
    program: str
    machine: str
    ranks: int
    nodes: int
    devices: tuple[str, ...]
    by_size: tuple[CheckedSizes, ...]
    rows: tuple[CheckedRow, ...]
    explanations: tuple[Explanation, ...]
    provenance: Provenance
