"""`Comparison`: a predicted and a measured record of one problem, in total, by kind of op and by op."""

import msgspec

from quadrille.algorithms.formats.record import interval_known
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.tabular import Tabular
from quadrille.algorithms.units import format_percent, format_seconds
from quadrille.experiments.compare.attribution import Attribution
from quadrille.experiments.compare.drift import Drift
from quadrille.experiments.compare.problem import Problem

SCHEMA = "quadrille/comparison/1"


class PredictedAndMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predicted and the measured value of a quantity."""

    predicted: float
    measured: float


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A predicted and a measured time and their relative errors; null if unknown.

    Parameters
    ----------
    predicted, measured : times [s]
    relative_error : predicted / measured - 1
    predicted_drift_removed, relative_error_drift_removed : the same with the machine's drift removed
    spread : spread of the measured repeats (`quadrille.algorithms.formats.percentiles`)
    """

    predicted: float
    measured: float
    relative_error: float | None = None
    predicted_drift_removed: float | None = None
    relative_error_drift_removed: float | None = None
    spread: float | None = None


class OpComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An op in the predicted and in the measured record."""

    name: str
    kind: str
    axis: str | None
    algorithm: str | None
    count: int
    seconds: Times
    waiting_seconds: PredictedAndMeasured
    exposed_seconds: PredictedAndMeasured
    extrapolated: bool


class KindComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All ops of one kind in the predicted and in the measured record, with the sums of their times."""

    kind: str
    ops: int
    seconds: Times
    waiting_seconds: PredictedAndMeasured
    exposed_seconds: PredictedAndMeasured


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The noise of the measurement over its repeats, and whether the error lies within the noise.

    Parameters
    ----------
    median_seconds, low_seconds, high_seconds : median, 5th and 95th percentile of the repeats [s]
    within_noise : whether the predicted time lies between the 5th and the 95th percentile; null with a single repeat
    predicted_low_seconds, predicted_high_seconds : prediction interval [s]
    interval_holds_measurement : whether the measured median lies in the prediction interval; false if it is unknown
    """

    repeats: int
    median_seconds: float
    low_seconds: float
    high_seconds: float
    spread: float | None
    within_noise: bool | None
    within_noise_drift_removed: bool | None
    predicted_low_seconds: float
    predicted_high_seconds: float
    interval_holds_measurement: bool

    @property
    def interval_known(self) -> bool:
        """Whether the prediction has an interval (`quadrille.algorithms.formats.record.interval_known`)."""
        return interval_known(self.predicted_low_seconds, self.predicted_high_seconds)


class FileNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of the compared records."""

    predicted: str
    measured: str


class PassOrders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Order of passes on a stage of a message-driven pipeline.

    Parameters
    ----------
    stage : number of the stage
    predicted, measured : forward (F) and backward (B) passes in the order in which they ran
    parts_at : number of the first pass that differs, from 1; 0 if no pass does
    """

    stage: int
    predicted: str
    measured: str
    parts_at: int = 0


class Comparison(Tabular, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A predicted and a measured record of one problem, side by side."""

    problem: Problem
    files: FileNames | None = None
    seconds: Times
    kinds: tuple[KindComparison, ...]
    ops: tuple[OpComparison, ...]
    attribution_seconds: Attribution = msgspec.field(name="attribution")
    noise: Noise
    drift: Drift
    bytes_sent_total: PredictedAndMeasured
    pass_orders: tuple[PassOrders, ...] = ()
    remarks: tuple[str, ...] = ()
    provenance: Provenance | None = None

    def rows(self) -> list[dict[str, object]]:
        """A row for each op: the seconds of both sides, and predicted less measured, divided by measured."""
        return [
            {
                "name": op.name,
                "kind": op.kind,
                "axis": op.axis,
                "predicted_seconds": op.seconds.predicted,
                "measured_seconds": op.seconds.measured,
                "relative_error": op.seconds.relative_error,
            }
            for op in self.ops
        ]

    @property
    def heading(self) -> str:
        """The predicted and the measured makespan, as text."""
        both = self.seconds
        text = f"predicted {format_seconds(both.predicted)}, measured {format_seconds(both.measured)}"
        error = both.relative_error
        return text if error is None else f"{text}, error {format_percent(error, signed=True)}"
