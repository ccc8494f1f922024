"""`Roofline`: the rate of each product and function of a prediction or a record over its arithmetic intensity.

The roof is the lower of the peak of products and the intensity times the bandwidth of the device's memory.  The rate of
an op is its flop over its time, which includes the start of a kernel and what slows it beside messages.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.analysis.folded_walk import folded_walks
from quadrille.algorithms.analysis.op_plans import LocalSizes, OpPlans
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.schedule.ops import Gemm, Kernel
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.experiments.workloads.product_peak import product_peak

MOST_WALKED = 64
"""Number of ranks up to which the ops of each rank are counted for a record."""
LEAST_SHARE = 1e-3
"""Share of the time of all ops below which an op is left out."""


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


@dataclass(frozen=True, slots=True)
class Roofline:
    """The ops of a rank below the two roofs of its device.

    >>> roofline = Roofline((RooflineOp("multiply", "product", 100.0, 10.0, 2.0),), peak=80.0, memory_bandwidth=20.0)
    >>> roofline.ridge, roofline.roof(2.0), roofline.share_of_roof(roofline.ops[0])
    (4.0, 40.0, 0.625)

    Parameters
    ----------
    ops : ops, the longest first
    peak : peak rate of products [flop/s]
    memory_bandwidth : bandwidth of the device's memory [B/s]
    """

    ops: tuple[RooflineOp, ...]
    peak: float
    memory_bandwidth: float

    @property
    def ridge(self) -> float:
        """The arithmetic intensity at which both roofs meet [flop/B]."""
        return self.peak / self.memory_bandwidth

    @property
    def intensities(self) -> tuple[float, float]:
        """The least and the largest intensity of a chart with all ops and the ridge [flop/B]."""
        intensities = [self.ridge / 10, self.ridge * 10, *(op.intensity for op in self.ops)]
        return min(intensities) / 1.5, max(intensities) * 1.5

    def roof(self, intensity: float) -> float:
        """The largest rate at an arithmetic intensity [flop/s]."""
        return min(self.peak, self.memory_bandwidth * intensity)

    def share_of_roof(self, op: RooflineOp) -> float:
        """The rate of an op, as a share of the roof above it."""
        return op.rate / self.roof(op.intensity)


def roofline(prepared: PreparedExperiment, ops: Sequence[RooflineOp]) -> Roofline:
    """The roofline of these ops of an experiment.

    Raises
    ------
    InputError : no op that computes, a machine without a peak for the dtype
    """
    peak = product_peak(prepared.experiment, prepared.machine, prepared.threads)
    if not ops or not peak:
        missing = "no op of this schedule computes" if not ops else f"{prepared.machine.name} gives no peak"
        raise InputError(f"--plot-of roofline: {missing}")
    return Roofline(tuple(ops), peak, prepared.machine.device.memory_bytes_per_second)


def roofline_of_record(prepared: PreparedExperiment, record: Record) -> Roofline | None:
    """The roofline of the ops of a record; None if its ops or the machine's peak are unknown."""
    try:
        return roofline(prepared, recorded_ops(prepared, record))
    except InputError:
        return None


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
