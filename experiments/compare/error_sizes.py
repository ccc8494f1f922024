"""`ErrorSizes`: the median, the 90th percentile and the largest of relative errors over several cases."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
import numpy as np


class ErrorSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Absolute values of relative errors over `cases` cases: their median, 90th percentile and maximum."""

    cases: int
    median: float
    p90: float
    worst: float


class CaseWithErrors(Protocol):
    """A case with its relative error, raw and with the machine's drift removed; None if the error is unknown."""

    @property
    def relative_error(self) -> float | None: ...
    @property
    def relative_error_drift_removed(self) -> float | None: ...


def error_sizes_raw_and_drift_removed(cases: Sequence[CaseWithErrors]) -> tuple[ErrorSizes, ErrorSizes | None]:
    """The sizes of the errors of all cases, raw, and with the drift removed; None if no drift is known."""
    raw = error_sizes(case.relative_error for case in cases)
    assert raw is not None, "what was measured takes time"
    return raw, error_sizes(case.relative_error_drift_removed for case in cases)


def error_sizes(errors: Iterable[float | None]) -> ErrorSizes | None:
    """The sizes of relative errors; None entries are ignored, and the result is None if there is no error.

    >>> error_sizes([0.25, None, -0.5, 1.0])
    ErrorSizes(cases=3, median=0.5, p90=0.9, worst=1.0)
    """
    sizes = [abs(error) for error in errors if error is not None]
    if not sizes:
        return None
    middle, high = np.percentile(sizes, (50, 90))
    return ErrorSizes(cases=len(sizes), median=float(middle), p90=float(high), worst=max(sizes))
