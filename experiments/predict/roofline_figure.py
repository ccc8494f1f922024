"""The roofline of a prediction or a record: the rate of each product and function over its arithmetic intensity.

The roof is the lower of the peak of products and the intensity times the bandwidth of the device's memory.  The rate of
an op is its flop over its time, which includes the start of a kernel and what slows it beside messages.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quadrille.algorithms.analysis.folded_walk import folded_walks
from quadrille.algorithms.analysis.op_plans import LocalSizes, OpPlans
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    PALETTE,
    amount_text,
    legend_below,
    new_figure,
    scale_axis,
    styled,
)
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.schedule.ops import Gemm, Kernel
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.experiments.workloads.product_peak import product_peak

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUESTION = "Is each op limited by arithmetic or by memory?"
KINDS = {"product": ("o", PALETTE[0]), "attention": ("s", PALETTE[3]), "function": ("^", PALETTE[2])}
"""Mark and colour of each kind of op."""
MOST_NAMED = 6
"""Ops that the figure names, those that take longest."""
LARGEST, SMALLEST = 220.0, 12.0
"""Areas of the marks of the op that takes longest, and of those that take least [points^2]."""
MOST_WALKED = 64
"""Number of ranks up to which the ops of each rank are counted for a record."""
LEAST_SHARE = 1e-3
"""Share of the time of all ops below which an op is left out."""


NEAR = 0.15
"""Relative distance of two ops below which only the first has its number."""


@dataclass(frozen=True, slots=True)
class RooflineOp:
    """An op on one rank, over all its instances.

    Parameters
    ----------
    kind : product, attention or function
    flops, touched : floating-point operations, and bytes of operands and results, each counted once
    seconds : predicted or measured time [s]
    """

    name: str
    kind: str
    flops: float
    touched: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity [flop/B]."""
        return self.flops / self.touched

    @property
    def rate(self) -> float:
        """Rate of floating-point operations [flop/s]."""
        return self.flops / self.seconds


def draw_roofline(prepared: PreparedExperiment, ops: Sequence[RooflineOp], setting: str, path: str) -> None:
    """Writes the roofline of these ops of an experiment.

    Raises
    ------
    InputError : no op that computes, a machine without a peak for the dtype
    """
    peak = product_peak(prepared.experiment, prepared.machine, prepared.threads)
    if not ops or not peak:
        missing = "no op of this schedule computes" if not ops else f"{prepared.machine.name} gives no peak"
        raise InputError(f"--plot-of roofline: {missing}")
    write_figure(roofline_figure(ops, peak, prepared.machine.device.memory_bytes_per_second, setting), path)


def roofline_ops(prepared: PreparedExperiment, timeline: Timeline) -> list[RooflineOp]:
    """The ops that compute, each on the first rank of the timeline that runs it, the longest first.

    Ops that take less than `LEAST_SHARE` of the time are left out, and so are copies, which have no flop.
    """
    schedule, choices = prepared.simulated_schedule, prepared.experiment.execution.choices
    plans, walks = OpPlans(schedule, choices), folded_walks(schedule, choices)
    by_name: dict[str, RooflineOp] = {}
    for rank, spans in timeline.weighted_spans().items():
        seconds: dict[str, float] = defaultdict(float)
        for span, count in spans:
            seconds[span.op] += count * span.seconds
        of_rank: dict[str, RooflineOp] = {}
        for instance in walks.of(schedule.coordinates(rank)):
            name = instance.op.name
            if isinstance(instance.op, Gemm | Kernel) and name not in by_name and seconds[name] > 0:
                first = of_rank.get(name, RooflineOp(name, "", 0.0, 0.0, seconds[name]))
                of_rank[name] = _with_instance(first, plans.local(instance.op, instance.coordinates), instance.count)
        by_name |= of_rank
    return _longest(by_name.values())


def recorded_ops(prepared: PreparedExperiment, record: Record) -> list[RooflineOp]:
    """The ops of a record that compute, the longest first; flop, bytes and time are means over ranks, as in the record.

    Above `MOST_WALKED` ranks, the first rank of each pipeline stage stands for its stage.

    Parameters
    ----------
    prepared : experiment of the record on its machine
    record : predicted or measured record
    """
    schedule, choices = prepared.schedule, prepared.experiment.execution.choices
    plans, walks = OpPlans(schedule, choices), folded_walks(schedule, choices)
    grid = schedule.grid
    of_stages = [stage * grid.stride("pipeline") for stage in range(grid.length("pipeline"))]
    ranks = range(grid.size) if grid.size <= MOST_WALKED else of_stages
    sums = {op.name: RooflineOp(op.name, "", 0.0, 0.0, len(ranks) * op.seconds) for op in record.ops if op.seconds > 0}
    for rank in ranks:
        for instance in walks.of(schedule.coordinates(rank)):
            if isinstance(instance.op, Gemm | Kernel) and (summed := sums.get(instance.op.name)):
                sizes = plans.local(instance.op, instance.coordinates)
                sums[instance.op.name] = _with_instance(summed, sizes, instance.count)
    return _longest(sums.values())


def _with_instance(op: RooflineOp, sizes: LocalSizes, count: int) -> RooflineOp:
    """The op with the flop and the bytes of further instances of these sizes."""
    kind, flops, touched = _amounts(sizes)
    return replace(op, kind=kind, flops=op.flops + count * flops, touched=op.touched + count * touched)


def _longest(ops: Iterable[RooflineOp]) -> list[RooflineOp]:
    """The ops that compute and take `LEAST_SHARE` of the time of all that do, the longest first."""
    computing = [op for op in ops if op.flops and op.touched]
    total = sum(op.seconds for op in computing)
    return sorted((op for op in computing if op.seconds >= LEAST_SHARE * total), key=lambda op: -op.seconds)


def _amounts(sizes: LocalSizes) -> tuple[str, float, float]:
    """Kind, flop and touched bytes of one instance of an op."""
    if sizes.work is None:
        m, k, n = sizes.product or (0, 0, 0)
        return "product", 2.0 * m * k * n, float(sizes.touched)
    work = sizes.work
    return "attention" if work.product_flops else "function", work.flops + work.product_flops, float(work.touched)


@styled
def roofline_figure(ops: Sequence[RooflineOp], peak: float, memory_bandwidth: float, setting: str = "") -> "Figure":
    """The roofline of a device with the ops below it; a larger mark takes more time.

    Parameters
    ----------
    ops : ops, the longest first
    peak : peak rate of products [flop/s]
    memory_bandwidth : bandwidth of the device's memory [B/s]
    setting : workload and machine, the last line of the title
    """
    figure = new_figure(8, 5.6, question=QUESTION, setting=setting)
    axes = figure.subplots()
    ridge = peak / memory_bandwidth
    intensities = [ridge / 10, ridge * 10, *(op.intensity for op in ops)]
    low, high = min(intensities) / 1.5, max(intensities) * 1.5
    roof = [low, ridge, high]
    axes.plot(roof, [min(peak, memory_bandwidth * x) for x in roof], color="black", linewidth=1.5, label="roof")
    axes.plot([ridge, ridge], [min(op.rate for op in ops) / 3, peak], color=MUTED_COLOUR, linestyle=":", linewidth=1)
    for kind, (mark, colour) in KINDS.items():
        of_kind = [op for op in ops if op.kind == kind]
        areas = [max(SMALLEST, LARGEST * op.seconds / ops[0].seconds) for op in of_kind]
        if of_kind:
            points = [op.intensity for op in of_kind], [op.rate for op in of_kind]
            axes.scatter(*points, s=areas, marker=mark, color=colour, alpha=0.8, zorder=3, label=kind)
    rates = [peak, memory_bandwidth * low, *(op.rate for op in ops)]
    scale_axis(axes.xaxis, [low, high], logarithmic=True)
    scale_axis(axes.yaxis, [min(rates), max(rates) * 1.6], "flop/s", logarithmic=True)
    axes.text(high, peak, f"peak {amount_text(peak, 'flop/s')} ", ha="right", va="bottom", fontsize=8)
    axes.text(low, max(rates), f" memory {amount_text(memory_bandwidth, 'B/s')}", ha="left", va="bottom", fontsize=8)
    _name_ops(axes, ops)
    axes.set(xlabel="arithmetic intensity [flop/B], operands and results counted once", ylabel="rate of a rank")
    legend_below(figure, title="a larger mark takes more of the time")
    return figure


def _name_ops(axes: "Axes", ops: Sequence[RooflineOp]) -> None:
    """Numbers the longest ops, and lists their names, shares of the time and rates below the roof."""
    total = sum(op.seconds for op in ops)
    lines = []
    for number, op in enumerate(ops[:MOST_NAMED], 1):
        if not any(_is_near(op, longer) for longer in ops[: number - 1]):
            axes.annotate(str(number), (op.intensity, op.rate), ha="center", va="center", fontsize=6, zorder=4)
        lines.append(f"{number}  {op.name}: {100 * op.seconds / total:.3g} %, {amount_text(op.rate, 'flop/s')}")
    axes.text(
        0.99,
        0.02,
        "\n".join(["longest ops, share of the computing, rate", *lines]),
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        multialignment="left",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "#cccccc", "alpha": 0.85},
        zorder=5,
    )


def _is_near(op: RooflineOp, longer: RooflineOp) -> bool:
    """Whether the numbers of two ops would lie on each other."""
    return max(abs(op.intensity / longer.intensity - 1), abs(op.rate / longer.rate - 1)) < NEAR
