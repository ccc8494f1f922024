"""The figure of a calibration: measured products and their fit, the residuals, and the bandwidth of memory by size."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    legend_below,
    line_marks,
    new_figure,
    scale_axis,
    styled,
)
from quadrille.algorithms.formats.measured_rows import GemmRow, MemoryRow
from quadrille.algorithms.schedule.tensors import DType
from quadrille.experiments.output.pictures import write_figure
from quadrille.simulator.machine.compute_model import LEAST_ROWS, fit_gemm
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUESTION = "How fast does this machine compute, and how close is the fit?"
Conditions = tuple[str, int, int]
"""Element type, threads of a rank, and ranks at work."""


def draw_calibration(machine: Machine, path: str) -> None:
    """Writes the figure of a calibrated machine."""
    write_figure(calibration_figure(machine), path)


@styled
def calibration_figure(machine: Machine) -> "Figure":
    """The figure of the measured rows of a machine; a colour for each element type, number of threads and of ranks."""
    figure = new_figure(13, 4.8, question=QUESTION, setting=f"{machine.name}: measured products and memory of a rank")
    rates, residuals, memory = figure.subplots(1, 3)
    for number, (conditions, rows) in enumerate(rows_by_conditions(machine.device.gemm).items()):
        _draw_products(rates, residuals, rows, conditions, number)
    sizes = [2.0 * row.m * row.k * row.n for row in machine.device.gemm]
    for axes in (rates, residuals):
        scale_axis(axes.xaxis, sizes, "FLOP")
        axes.set_xlabel("size of the product, 2 m k n")
    scale_axis(rates.yaxis, [row.flops_per_second for row in machine.device.gemm], "FLOP/s")
    residuals.axhline(0, color=MUTED_COLOUR, linewidth=1)
    scale_axis(residuals.yaxis, [], "%", logarithmic=False)
    rates.set_ylabel("rate of a rank, measured")
    residuals.set_ylabel("time of the fit / measured - 1 [%]")
    _draw_memory(memory, machine.device.memory)
    legend_below(figure)
    return figure


def rows_by_conditions(rows: Sequence[GemmRow]) -> Mapping[Conditions, list[GemmRow]]:
    """The rows of each element type, number of threads and number of ranks at work, by size."""
    groups: dict[Conditions, list[GemmRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.m * row.k * row.n):
        groups[row.dtype, row.threads, row.busy_ranks].append(row)
    return dict(sorted(groups.items()))


def fitted_seconds(rows: Sequence[GemmRow]) -> dict[int, float]:
    """The fitted time of each row [s], by its place; none for layouts with fewer than `LEAST_ROWS` rows."""
    seconds: dict[int, float] = {}
    for layout in dict.fromkeys(row.layout for row in rows):
        places = [place for place, row in enumerate(rows) if row.layout == layout]
        if len(places) >= LEAST_ROWS:
            fit = fit_gemm([rows[place] for place in places], cast(DType, rows[places[0]].dtype))
            seconds |= {place: fit.estimate(rows[place].m, rows[place].k, rows[place].n).seconds for place in places}
    return seconds


def _draw_products(
    rates: "Axes", residuals: "Axes", rows: Sequence[GemmRow], conditions: Conditions, number: int
) -> None:
    dtype, threads, busy = conditions
    several = f"{busy} {'rank' if busy == 1 else 'ranks'} of {threads} {'thread' if threads == 1 else 'threads'}"
    marks = line_marks(number, joined=False) | {"markersize": 3.5}
    flops = [2.0 * row.m * row.k * row.n for row in rows]
    rates.plot(flops, [row.flops_per_second for row in rows], label=f"{dtype}, {several}", **marks)
    fitted = fitted_seconds(rows)
    apart = [100 * (seconds * rows[place].flops_per_second / flops[place] - 1) for place, seconds in fitted.items()]
    residuals.plot([flops[place] for place in fitted], apart, **marks)


def _draw_memory(axes: "Axes", rows: Sequence[MemoryRow]) -> None:
    """Draws the bandwidth of each memory-bound operation by size."""
    groups: dict[tuple[str, int], list[MemoryRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.bytes):
        groups[row.operation, row.busy_ranks].append(row)
    for number, ((operation, busy), of_group) in enumerate(groups.items()):
        marks = line_marks(number) | {"markersize": 4, "linestyle": "--", "markerfacecolor": "white"}
        label = f"{operation}, {busy} {'rank' if busy == 1 else 'ranks'}"
        axes.plot([row.bytes for row in of_group], [row.bytes_per_second for row in of_group], label=label, **marks)
    scale_axis(axes.xaxis, [row.bytes for row in rows], "B")
    scale_axis(axes.yaxis, [row.bytes_per_second for row in rows], "B/s")
    axes.set(xlabel="size of the result", ylabel="bytes of the result / time of a rank")
