"""`Sweep`: the result of a sweep, with an answer for every point or the reason why there is none."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from quadrille.algorithms import field_units
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, Grid
from quadrille.algorithms.tabular import Tabular, fact_line
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.sweep.varied_key import COLLECTIVE_KEY

SCHEMA = "quadrille/sweep/1"
RESULT_COLUMNS = (
    "ranks",
    "grid_lengths",
    "order_found",
    "seconds",
    "speedup",
    "compute_seconds",
    "exposed_seconds",
    "waiting_seconds",
    "communication_share",
    "flops_per_second_per_gpu",
    "bytes_sent_per_rank_max",
    "peak_bytes_per_rank_max",
    "fits",
    "extrapolated",
    "reason",
)
"""Columns of the rows after the columns of the varied keys."""
COLLECTIVE_COLUMNS = (
    "group",
    "algorithm",
    "algorithm_bandwidth",
    "bus_bandwidth",
    "latency_seconds",
    "bandwidth_seconds",
    "contention_seconds",
    "bottleneck",
    "bottleneck_utilisation",
    "rank_classes",
    "flow_classes",
    "events",
)
COLLECTIVE_RESULT_COLUMNS = ("ranks", "seconds", "speedup", *COLLECTIVE_COLUMNS, "reason")
"""Columns of the rows of collectives."""
SHOWN = (
    "ranks",
    "grid_lengths",
    "order_found",
    "seconds",
    "speedup",
    "communication_share",
    "peak_bytes_per_rank_max",
    "fits",
    "reason",
)
SHOWN_OF_COLLECTIVES = ("ranks", "algorithm", "seconds", "speedup", "bus_bandwidth", "bottleneck", "reason")
"""Columns that a notebook may show after those of the varied keys."""

Count = Annotated[int, Meta(gt=0)]
CountFromZero = Annotated[int, Meta(ge=0)]
FROM_ZERO = Meta(ge=0)
Seconds = Annotated[field_units.Seconds, FROM_ZERO]
Bytes = Annotated[field_units.WholeBytes, FROM_ZERO]
Bandwidth = Annotated[field_units.BytesPerSecond, FROM_ZERO]
FlopRate = Annotated[field_units.FlopsPerSecond, FROM_ZERO]
Share = Annotated[field_units.Share, FROM_ZERO]
Percent = Annotated[field_units.Percent, FROM_ZERO]
Ratio = Annotated[field_units.Ratio, FROM_ZERO]


class CollectiveResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, repr_omit_defaults=True):
    """The part of an answer that only collectives have.

    Parameters
    ----------
    group : number of ranks in a group
    algorithm_bandwidth, bus_bandwidth : bandwidths [B/s]
    seconds_by_part : time by cause [s] (`quadrille.simulator.collectives.run`)
    bottleneck, bottleneck_utilisation : link with the highest utilisation, and its utilisation
    rank_classes, flow_classes, events : numbers of classes and of events of the simulation
    """

    group: Count
    algorithm: str
    algorithm_bandwidth: Bandwidth | None = None
    bus_bandwidth: Bandwidth | None = None
    seconds_by_part: dict[PathPart, Seconds] = {}
    bottleneck: str = ""
    bottleneck_utilisation: Share | None = None
    rank_classes: CountFromZero = 0
    flow_classes: CountFromZero = 0
    events: CountFromZero = 0

    def column(self, name: str) -> object:
        """The value in a column of the CSV."""
        if name.endswith("_seconds"):
            return {f"{part}_seconds": seconds for part, seconds in self.seconds_by_part.items()}.get(name)
        return getattr(self, name)


class TrainingResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, repr_omit_defaults=True):
    """The part of an answer that only training steps have.

    Parameters
    ----------
    micro_batch : sequences of a microbatch on each coordinate of data and z; null if there is one microbatch
    order : order of the axes in the numbering of ranks, innermost first
    closed_form_seconds : closed-form time by which the grid was chosen [s]
    exposed_seconds_by_axis : exposed communication of the mean rank, by axis [s]
    layers_simulated : number of simulated layers, from which the time of all layers is extrapolated
    bounded : whether the simulation has collective granularity, which is not exact
    recompute : activations that the backward pass computes again, as in `--recompute`; empty for other workloads
    schedule : order of passes, with the chunks of a stage if it has several: "interleaved 4"; empty without a pipeline
    """

    scheme: str
    micro_batch: Count | None = None
    order: tuple[Axis, ...]
    closed_form_seconds: Seconds | None = None
    model_flops_per_second_per_gpu: FlopRate
    hardware_flops_per_second_per_gpu: FlopRate
    percent_of_peak: Percent | None = None
    exposed_seconds_by_axis: dict[Axis, Seconds] = {}
    layers_simulated: Count
    bounded: bool = False
    recompute: str = ""
    schedule: str = ""

    @property
    def model_percent_of_peak(self) -> float | None:
        """The MFU in percent: `percent_of_peak`, the HFU, without recomputation; None if no peak is known."""
        if self.percent_of_peak is None or not self.hardware_flops_per_second_per_gpu:
            return None
        return self.percent_of_peak * self.model_flops_per_second_per_gpu / self.hardware_flops_per_second_per_gpu


class SweepAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, repr_omit_defaults=True):
    """The answer at a point, or the reason why there is none; times by cause are means over ranks.

    Parameters
    ----------
    order_found : rank order that `--order auto` chose, innermost axis first; null without it
    seconds : makespan; for training the time of one iteration, as `seconds_per_iteration` of a record
    compute_seconds : time of local work [s]
    exposed_seconds : communication while the rank computes nothing [s]
    waiting_seconds : time of waiting for the last member of a group, while nothing else runs [s]
    communication_share : (exposed seconds + waiting seconds) / seconds
    fits : whether the memory of a device, or of a host with all its ranks, is enough
    grids, simulated : number of grids that were compared by their closed form, and number that were simulated
    reason : reason why the point is not possible, or was not reached
    collective : result of a collective
    trained : result of a training step
    """

    ranks: Count | None = None
    grid_lengths: dict[Axis, Count] | None = None
    order_found: str | None = None
    seconds: Seconds | None = None
    compute_seconds: Seconds | None = None
    exposed_seconds: Seconds | None = None
    waiting_seconds: Seconds | None = None
    communication_share: Share | None = None
    flops_per_second_per_gpu: FlopRate | None = None
    bytes_sent_per_rank_max: Bytes | None = None
    peak_bytes_per_rank_max: Bytes | None = None
    fits: bool | None = None
    extrapolated: bool | None = None
    grids: Count | None = None
    simulated: Count | None = None
    reason: str | None = None
    collective: CollectiveResult | None = None
    trained: TrainingResult | None = None
    remarks: tuple[str, ...] = ()

    @property
    def grid(self) -> str:
        """The grid as text; empty if there is none.

        >>> SweepAnswer(grid_lengths={"data": 2, "x": 4}).grid
        'data=2,x=4'
        """
        return "" if self.grid_lengths is None else str(Grid(**self.grid_lengths, order=DEFAULT_ORDER))


NOT_REACHED = SweepAnswer(reason="not reached: the sweep was interrupted")
"""The answer at a point that a sweep did not reach before it ended."""


def list_text(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> list_text(["time"]), list_text(["time", "memory", "GPUs"])
    ('time', 'time, memory and GPUs')
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def point_text(point: Mapping[str, str]) -> str:
    """The values of the varied keys of a point as text.

    >>> point_text({"gpus": "4", "dtype": "float32"})
    'gpus=4, dtype=float32'
    """
    return ", ".join(f"{key}={value}" for key, value in point.items())


class SweepRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, repr_omit_defaults=True):
    """A point of a sweep: the value of every varied key, the answer, and the speed-up over the baseline."""

    point: dict[str, str]
    answer: SweepAnswer
    speedup: Ratio | None = None

    def __repr__(self) -> str:
        seconds = self.answer.seconds
        return fact_line(
            self, f"{point_text(self.point)}: {self.answer.reason if seconds is None else format_seconds(seconds)}"
        )

    def value(self, column: str) -> object:
        """The value in a column of the rows; None if the point has none."""
        if column in self.point:
            return self.point[column]
        if column == "grid_lengths":
            return self.answer.grid
        if column in COLLECTIVE_COLUMNS:
            return self.answer.collective.column(column) if self.answer.collective else None
        return self.speedup if column == "speedup" else getattr(self.answer, column)


class SearchResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The answer of `--search`.

    Parameters
    ----------
    objectives : what is to be small: time, memory, gpus
    combinations : number of points of the full product
    best : indices of the rows of the best points; several with several objectives, and none before the search has ended
    """

    objectives: tuple[str, ...]
    combinations: int
    best: tuple[int, ...] = ()


class Sweep(Tabular, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of a sweep.

    Parameters
    ----------
    flags : flags that all points share, as typed
    varied : values of every varied key
    best_grid : whether each point has the best grid
    inputs : SHA-256 of each file that points read, by the flag that names the file
    points : answers of all points
    baseline : index of the row that speed-ups compare with, the first that has an answer and fits; None for a search
    search : the answer of `--search`; absent without it
    """

    flags: dict[str, str | tuple[str, ...]]
    varied: dict[str, tuple[str, ...]]
    best_grid: bool
    inputs: dict[str, str] = {}
    points: tuple[SweepRow, ...] = msgspec.field(name="rows")
    baseline: Annotated[int, Meta(ge=0)] | None = None
    search: SearchResult | msgspec.UnsetType = msgspec.UNSET
    provenance: Provenance | None = None

    @property
    def of_collectives(self) -> bool:
        """Whether the points are collectives."""
        return COLLECTIVE_KEY in self.flags or COLLECTIVE_KEY in self.varied

    @property
    def columns(self) -> list[str]:
        """The columns of the rows: the varied keys, then the results; times in seconds, sizes in bytes."""
        results = COLLECTIVE_RESULT_COLUMNS if self.of_collectives else RESULT_COLUMNS
        return [*self.varied, *(column for column in results if column not in self.varied)]

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column of results, as the fields of answers declare it; the varied keys are texts."""
        collective = field_units.units_of(CollectiveResult)
        parts = {f"{part}_seconds": collective["seconds_by_part"] for part in get_args(PathPart)}
        return {**field_units.units_of(SweepAnswer), **collective, **parts}

    def rows(self) -> list[dict[str, object]]:
        """A row for each point, with the columns of `--csv`; `reason` says why a point has no seconds."""
        return [{column: row.value(column) for column in self.columns} for row in self.points]

    @property
    def heading(self) -> str:
        """The number of points, of how many if a search asked only some, and the point that speed-ups compare with."""
        count = len(self.points)
        if self.baseline is None:
            return f"{count} of {prod(map(len, self.varied.values()))} points, predicted"
        text = f"{count} point{'s' if count > 1 else ''}, predicted"
        return f"{text}; speed-up over {point_text(self.points[self.baseline].point)}"

    @property
    def shown(self) -> list[str]:
        """The varied keys, the time, and the results that differ between points and that no key says."""
        rows = self.rows()
        contents = {column: [str(row[column]) for row in rows] for column in self.columns}
        keys = [contents[key] for key in self.varied]
        results = SHOWN_OF_COLLECTIVES if self.of_collectives else SHOWN
        differ = [name for name in results if len(set(contents[name])) > 1 and contents[name] not in keys]
        return [*self.varied, *(name for name in results if name in differ or name == "seconds")]


def baseline_place(answers: Sequence[SweepAnswer]) -> int | None:
    """The place of the answer that speed-ups compare with: the first that fits in memory, else the first with a time.

    >>> baseline_place([SweepAnswer(reason="too few GPUs"), SweepAnswer(seconds=8, fits=False), SweepAnswer(seconds=4)])
    2
    """
    timed = [place for place, answer in enumerate(answers) if answer.seconds]
    fitting = [place for place in timed if answers[place].fits is not False]
    return next(iter(fitting or timed), None)


def sweep_rows(
    answers: Sequence[tuple[Mapping[str, str], SweepAnswer]], *, compared: bool = True
) -> tuple[tuple[SweepRow, ...], int | None]:
    """The rows of a sweep with their speed-ups, and the index of the baseline; None if no point has an answer.

    >>> answers = (SweepAnswer(reason="too few GPUs"), SweepAnswer(seconds=8, fits=False), SweepAnswer(seconds=4))
    >>> rows, baseline = sweep_rows([({}, answer) for answer in answers])
    >>> [row.speedup for row in rows], baseline
    ([None, 0.5, 1.0], 2)

    Parameters
    ----------
    answers : values of the varied keys, and the answer, of each point
    compared : whether there is a baseline
    """
    baseline = baseline_place([answer for _, answer in answers]) if compared else None
    base = answers[baseline][1].seconds if baseline is not None else None

    def speedup(answer: SweepAnswer) -> float | None:
        return base / answer.seconds if base and answer.seconds else None

    return tuple(
        SweepRow(point=dict(point), answer=answer, speedup=speedup(answer)) for point, answer in answers
    ), baseline
