"""The result of a scaling study, and its output as table, CSV, figure and JSON."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    PALETTE,
    legend_below,
    line_marks,
    new_figure,
    number_axis,
    scale_axis,
    styled,
)
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.record import MachineName
from quadrille.algorithms.formats.workload import MatmulSizes
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.tabular import comma_separated
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.output.tables import duration, percent, print_tables, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

SCHEMA = "quadrille/scaling/1"
CSV_COLUMNS = (
    "gpus",
    "algorithm",
    "grid",
    "m",
    "k",
    "n",
    "closed_form_place",
    "closed_form_seconds",
    "closed_form_compute_seconds",
    "seconds",
    "flops_per_second_per_gpu",
    "efficiency",
    "exposed_seconds",
    "fraction_of_peak",
    "peak_bytes_per_rank_max",
    "bytes_sent_per_rank_max",
    "extrapolated",
)
CLOSED_FORM_COLOUR = PALETTE[1]

Count = Annotated[int, Meta(gt=0)]
Amount = Annotated[float, Meta(ge=0)]


class GridRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One simulated run: a grid on a number of GPUs.

    Parameters
    ----------
    gpus : number of GPUs
    algorithm : name of the sharded matmul algorithm
    grid : length of each axis of the grid
    m, k, n : sizes of the matmul
    closed_form_place : place of the grid in the order of the closed form; 1 is the fastest
    closed_form_seconds, closed_form_compute_seconds : time by the closed form, and its computation [s]
    seconds : simulated time [s]
    flops_per_second_per_gpu : simulated rate of one GPU [flop/s]
    efficiency : the rate of one GPU, divided by that of the fastest run on the fewest GPUs
    exposed_seconds : communication time that no computation hides, mean over ranks [s]
    fraction_of_peak : rate of one GPU, divided by its peak; null if the machine gives no peak for the dtype
    peak_bytes_per_rank_max : largest memory of a rank [bytes]
    bytes_sent_per_rank_max : largest number of bytes that a rank sends
    extrapolated : whether the prediction leaves the range of the machine's measurements
    """

    gpus: Count
    algorithm: str
    grid: dict[Axis, Count]
    m: Count
    k: Count
    n: Count
    closed_form_place: Count
    closed_form_seconds: Amount
    closed_form_compute_seconds: Amount
    seconds: Amount
    flops_per_second_per_gpu: Amount
    efficiency: Amount
    exposed_seconds: Amount
    fraction_of_peak: Amount | None = None
    peak_bytes_per_rank_max: Annotated[int, Meta(ge=0)]
    bytes_sent_per_rank_max: Annotated[int, Meta(ge=0)]
    extrapolated: bool


class RankedGridRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One grid on a number of GPUs as the closed form predicts it.

    Parameters
    ----------
    gpus : number of GPUs
    algorithm : name of the sharded matmul algorithm
    grid : length of each axis of the grid
    closed_form_seconds : time by the closed form [s]
    peak_bytes_per_rank_max : largest memory of a rank [bytes]
    fits : whether the ranks of a device fit in its memory, and in the memory limit
    """

    gpus: Count
    algorithm: str
    grid: dict[Axis, Count]
    closed_form_seconds: Amount
    peak_bytes_per_rank_max: Annotated[int, Meta(ge=0)]
    fits: bool


class ScalingResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of a scaling study, as `--json` writes it.

    Parameters
    ----------
    kind : `weak` or `strong`
    machine : name of the machine
    matmul : sizes of each GPU (weak) or of all GPUs together (strong)
    dtype, passes, gathered, panel : options of the matmul, as in `Matmul`
    algorithms : names of the algorithms whose grids are ranked
    order : order of the grid's axes
    overlap : overlaps of communication with computation
    collectives : implementation of each collective
    threads : threads of each rank; null: its share of the host's cores
    memory_per_gpu : memory limit of all grids [B], or `equal`; null: the memory of the device
    memory_limits : memory limit of a rank on each number of GPUs [B]; empty without `memory_per_gpu`
    runs : simulated runs, by number of GPUs and then by time
    ranked : all grids, by number of GPUs and then by the time of the closed form
    remarks : remarks about the machine's limits, and about numbers of GPUs without a run
    provenance : command, date and versions
    """

    kind: Literal["weak", "strong"]
    machine: MachineName
    matmul: MatmulSizes
    dtype: str
    passes: str
    algorithms: tuple[str, ...]
    order: tuple[Axis, ...]
    overlap: tuple[OverlapName, ...]
    gathered: Gathered
    collectives: str
    panel: Count
    threads: Count | None = None
    memory_per_gpu: Amount | Literal["equal"] | None = None
    memory_limits: dict[str, Amount] = {}
    runs: tuple[GridRun, ...]
    ranked: tuple[RankedGridRow, ...]
    remarks: tuple[str, ...] = ()
    provenance: Provenance | None = None

    @property
    def best(self) -> tuple[GridRun, ...]:
        """The fastest run on each number of GPUs."""
        return tuple(next(runs) for _, runs in groupby(self.runs, key=lambda run: run.gpus))

    @property
    def best_by_algorithm(self) -> dict[str, tuple[GridRun, ...]]:
        """The fastest run of each algorithm on each number of GPUs; an algorithm without a run is left out."""
        best: dict[str, dict[int, GridRun]] = {name: {} for name in self.algorithms}
        for run in self.runs:
            best[run.algorithm].setdefault(run.gpus, run)
        return {name: tuple(by_gpus.values()) for name, by_gpus in best.items() if by_gpus}


def write_outputs(scaling: ScalingResult, json: str, csv: str, plot: str) -> None:
    """Write the named files and, unless a file is stdout, print the table.

    Parameters
    ----------
    scaling : result of the study
    json, csv : files of the result, `-` for stdout; empty: not written
    plot : file of the figure; empty: not written
    """
    if plot:
        write_figure(scaling_figure(scaling), plot)
    if csv:
        schema_files.write_text(csv, csv_text(scaling))
    if json:
        schema_files.write_json(json, scaling, SCHEMA)
    if schema_files.STDOUT not in (json, csv):
        print_tables(scaling_table(scaling))


def scaling_table(scaling: ScalingResult) -> "Group":
    """The table of the runs by number of GPUs, the fastest first; of several algorithms, the best grid of each."""
    several = len(scaling.algorithms) > 1
    columns = ["gpus", *(["algorithm"] if several else []), "grid", "closed form", "simulated", "efficiency"]
    columns += ["exposed", "of peak", "memory per GPU"]
    shown = scaling.runs
    if several:
        best = {(run.gpus, run.algorithm): run for run in reversed(scaling.runs)}
        shown = tuple(run for run in scaling.runs if best[run.gpus, run.algorithm] is run)
    sections = [[_cells(run, several) for run in runs] for _, runs in groupby(shown, key=lambda run: run.gpus)]
    return table(_title(scaling), columns, *sections, names=3 if several else 2)


def _title(scaling: ScalingResult) -> str:
    """The title of the table and of the figure."""
    m, k, n = scaling.matmul.m, scaling.matmul.k, scaling.matmul.n
    rows = f"{m} for each GPU" if scaling.kind == "weak" else f"{m}"
    stored = f", transposed={scaling.matmul.transposed}" if scaling.matmul.transposed else ""
    sizes = f"m={rows}, k={k}, n={n}{stored}, {scaling.dtype}, {scaling.passes}"
    limit = scaling.memory_per_gpu
    words = "" if limit is None else ", equal memory" if limit == "equal" else f", {format_bytes(limit)} per GPU"
    names = ", ".join(scaling.algorithms)
    return f"{scaling.kind} scaling of {names} on {scaling.machine.name}, predicted: {sizes}{words}"


def _cells(run: GridRun, several: bool) -> Sequence[str]:
    """The cells of a run in the table; with `several` algorithms, its algorithm too."""
    return (
        str(run.gpus),
        *((run.algorithm,) if several else ()),
        _grid(run),
        duration(run.closed_form_seconds),
        duration(run.seconds),
        percent(run.efficiency, signed=False),
        duration(run.exposed_seconds),
        percent(run.fraction_of_peak, signed=False),
        format_bytes(run.peak_bytes_per_rank_max),
    )


def csv_text(scaling: ScalingResult) -> str:
    """The CSV text of the runs: a header, and a line for each run with times in seconds."""
    return comma_separated(CSV_COLUMNS, map(_values, scaling.runs))


def _values(run: GridRun) -> Iterator[object]:
    """The values of a run in the CSV columns."""
    for column in CSV_COLUMNS:
        yield _grid(run) if column == "grid" else getattr(run, column)


def _grid(run: GridRun) -> str:
    """The grid of a run as text."""
    return str(Grid(**run.grid, order=DEFAULT_ORDER))


@styled
def scaling_figure(scaling: ScalingResult) -> "Figure":
    """The figure of the fastest runs: time and efficiency by number of GPUs, a curve for each algorithm."""
    question = f"How well does the multiplication scale with its GPUs, {scaling.kind} scaling?"
    figure = new_figure(9, 4.4, question=question, setting=_title(scaling))
    left, right = figure.subplots(1, 2)
    curves = scaling.best_by_algorithm
    best = scaling.best
    gpus = [run.gpus for run in best]
    ideal = [_ideal_seconds(scaling, best[0], run) for run in best]
    left.plot(gpus, ideal, color=MUTED_COLOUR, linestyle=":", label="ideal")
    drawn = list(ideal)
    for number, (name, runs) in enumerate(curves.items()):
        own_gpus, closed = [run.gpus for run in runs], [run.closed_form_seconds for run in runs]
        seconds = [run.seconds for run in runs]
        if len(curves) == 1:
            left.plot(own_gpus, closed, color=CLOSED_FORM_COLOUR, marker="x", linestyle="--", label="closed form")
            drawn += closed
        label = f"{name}, simulated" if len(curves) > 1 else "simulated"
        left.plot(own_gpus, seconds, label=label, **line_marks(number))
        right.plot(own_gpus, [100 * run.efficiency for run in runs], **line_marks(number))
        drawn += seconds
    scale_axis(left.yaxis, drawn, "s")
    left.set_ylabel("time")
    right.axhline(100, color=MUTED_COLOUR, linestyle=":")
    right.set_ylim(0, 105 * max(1.0, *(run.efficiency for run in best)))
    right.set_ylabel("efficiency [%]")
    for axes in (left, right):
        number_axis(axes.xaxis, gpus)
        axes.set_xlabel("GPUs")
    legend_below(figure)
    return figure


def _ideal_seconds(scaling: ScalingResult, first: GridRun, run: GridRun) -> float:
    """The time of a run if its efficiency were that of the first run [s]."""
    return first.seconds if scaling.kind == "weak" else first.seconds * first.gpus / run.gpus
