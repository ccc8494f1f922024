"""Record of one run, predicted or measured: the workload, the times and bytes of every op, and the provenance.

The classes mirror the file, field by field; units stand in the names.
`seconds` is the median makespan over the repeats.  Per op, `seconds`,
`waiting_seconds` and `exposed_seconds` are means over ranks of medians over
repeats, as `quadrille.algorithms.timelines` defines them.  `links` are those of a
prediction that are used most, the most used first; `critical_path` adds up to
`seconds`.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quadrille.algorithms import field_units
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.measured_rows import Faults, Variant
from quadrille.algorithms.formats.renamed_keys import Renames
from quadrille.algorithms.formats.workload import Count, Size, Workload
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import AXES, NEWER_AXES, Axis
from quadrille.algorithms.schedule.kernel_signatures import FusedAttention
from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.tabular import Tabular
from quadrille.algorithms.timelines.spans import OutsideOps
from quadrille.algorithms.units import LONGEST_SECONDS, format_seconds

__all__ = ["Provenance", "Record", "load_record", "provenance", "save_record"]

SCHEMA = "quadrille/record/2"
OLDER = {
    "quadrille/record/1": Renames(
        {"simulation.why_not": "simulation.not_folded_reason", "reference.at_once": "reference.concurrent_ranks"},
        {
            "options.recompute": {
                "none": {"attention": "unfused", "recompute": "none"},
                "selective": {"attention": "fused", "recompute": "none"},
                "full": {"attention": "fused", "recompute": "full"},
            }
        },
    )
}
"""Older schemas, with the keys that were renamed and the values that changed their meaning since."""

Seconds = Annotated[field_units.Seconds, Meta(ge=0, le=LONGEST_SECONDS)]
PositiveSeconds = Annotated[field_units.Seconds, Meta(gt=0, le=LONGEST_SECONDS)]
Bytes = Annotated[field_units.WholeBytes, Meta(ge=0)]
FlopRate = Annotated[field_units.FlopsPerSecond, Meta(ge=0)]
Percent = Annotated[field_units.Percent, Meta(ge=0)]
Share = Annotated[field_units.Share, Meta(ge=0, le=1)]
RelativeError = Annotated[float, Meta(ge=0, le=1e12)]
Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Kind = Literal["predicted", "measured"]
Cause = Literal["compute", "transfer", "latency", "waiting", "other"]
PathPart = Literal["compute", "latency", "bandwidth", "contention", "waiting", "other"]
"""Parts of an op's time: `bandwidth` is the time of its transfers alone, `contention` the time that sharing adds."""
Shards = Literal["exact", "even"]
Granularity = Literal["exact", "collective", "passes"]
AskedGranularity = Literal["auto", Granularity]
"""The accepted granularities; `auto` takes the exact simulation if it is quick, then collectives, then passes."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The choices that change how a workload is computed; those from `scheme` on are for training steps only.

    Parameters
    ----------
    overlap : overlaps of communication with computation
    bands : bands of rows that a product and the sum of its result are cut into
    jitter : noise of op instances in a prediction, as `--jitter` takes it; absent without noise
    gathered : whether the backward pass keeps what the forward pass gathered, or gathers it again
    collectives : collective algorithms, as `--collectives` takes them
    threads : BLAS threads of a rank
    panel : width of a SUMMA panel, in rows or columns
    scheme : parallel scheme of a training step
    sequence_parallel : whether rows are scattered between products (Megatron-LM's sequence parallelism)
    zero : ZeRO stage: 1 shards the optimizer, 2 also gradients, 3 also weights, over the data axis
    micro_batch : sequences or rows of a microbatch on each coordinate of data and z; the last may be smaller
    interleave : chunks of layers of a pipeline stage
    pipeline_schedule : rule of the order of passes on a pipeline stage
    pipeline_limit : largest number of microbatches in flight on a message-driven stage; 0 for the number of stages
    stages : layers of each pipeline stage
    attention : fused attention, by the name of its kernel if a name was given, or unfused attention, which writes its
        weights to memory
    recompute : activation recomputation
    gradient_bytes : bytes of an accumulated gradient element, in a 16-bit dtype
    dropout : share of attention weights and hidden states that dropout sets to zero; absent without dropout
    offload : optimizer state in host memory, as `--offload` takes it; absent if the state is on the device
    expert_load : rows that experts are expected to have, as `--expert-load` takes them; absent for even loads
    sparsity : share of the weights of linear layers that are pruned; absent without pruning
    prune : weights that pruning keeps
    sparse_states : whether gradients and optimizer states of pruned weights are compressed
    context_parallel : form of context parallelism; absent for a ring
    products : precision of the products of linear layers; absent for that of the dtype
    fp8_param_gather : whether weights are stored and gathered in small numbers alone
    steps : training steps of one run
    clip : largest norm of all gradients together; 0 for none
    keep_first : layers of a stage that keep their gathered weights
    gemm_layouts : layout of products: as written, or the fastest of a machine's rows
    software : software whose memory is counted; absent for the buffers of the schedule
    approximate : keys of a `config.json` that the schedule does not follow, each with what it does instead
    """

    overlap: tuple[Literal["oar", "ors", "oag", "ogr", "opg"], ...] = ()
    bands: Size | UnsetType = UNSET
    jitter: str | UnsetType = UNSET
    gathered: Literal["keep", "again"] = "again"
    collectives: str = "own:ring"
    threads: Size = 1
    panel: Size | None = None
    scheme: str | UnsetType = UNSET
    sequence_parallel: bool | UnsetType = UNSET
    zero: Count | UnsetType = UNSET
    micro_batch: Size | UnsetType | None = UNSET
    interleave: Size | UnsetType = UNSET
    pipeline_schedule: PipelineSchedule | UnsetType = UNSET
    pipeline_limit: Count | UnsetType = UNSET
    stages: tuple[Size, ...] | UnsetType = UNSET
    attention: Variant | FusedAttention | UnsetType = UNSET
    recompute: Literal["none", "selective", "full", "full-keep-exchange"] | UnsetType = UNSET
    gradient_bytes: Size | UnsetType = UNSET
    dropout: Annotated[float, Meta(ge=0, lt=1)] | UnsetType = UNSET
    offload: str | UnsetType = UNSET
    expert_load: str | UnsetType = UNSET
    sparsity: Annotated[float, Meta(ge=0, lt=1)] | UnsetType = UNSET
    prune: Literal["magnitude", "random"] | UnsetType = UNSET
    sparse_states: bool | UnsetType = UNSET
    context_parallel: Literal["ring", "all-gather", "ulysses"] | UnsetType = UNSET
    products: Products | UnsetType = UNSET
    fp8_param_gather: bool | UnsetType = UNSET
    steps: Size | UnsetType = UNSET
    clip: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    keep_first: Count | UnsetType = UNSET
    gemm_layouts: str | UnsetType = UNSET
    software: str | UnsetType = UNSET
    approximate: tuple[str, ...] | UnsetType = UNSET


class MachineName(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The machine of a record.

    Parameters
    ----------
    name : name of the machine
    sha256 : hash of the content of the machine file, its routing and faults included
    routing : the routing rule
    faults : failed links, slow links and slow devices
    placement : the rule that placed ranks
    """

    name: str
    sha256: str | None = None
    routing: str = "shortest"
    faults: Faults | None = None
    placement: str = "packed"


HOST_MEMORY_KIND = "optimizer on host"
"""Kind of memory that is not on the device."""


def device_bytes(bytes_by_kind: Mapping[str, int]) -> int:
    """Memory of a rank on its device, from its memory by kind [B].

    >>> device_bytes({"parameters": 2, "gradients": 4, HOST_MEMORY_KIND: 12})
    6
    """
    return sum(size for kind, size in bytes_by_kind.items() if kind != HOST_MEMORY_KIND)


class OpRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One op of the schedule, over all its instances in a run.

    `seconds`, `waiting_seconds` and `exposed_seconds` are means over ranks of medians over repeats.

    Parameters
    ----------
    name : name of the op
    kind : kind of op, such as gemm or all_gather
    axis : grid axis of a communication op
    algorithm : algorithm of a collective
    count : times that a rank runs the op
    bytes_sent_per_rank_max, bytes_sent_total : payload sent, by the rank that sends most and by all ranks
    seconds : time from the arrival of the last member to the end
    waiting_seconds : time that a rank waits for the other members
    exposed_seconds : time in which the rank computes nothing
    extrapolated : whether the prediction goes beyond what was calibrated
    seconds_by_part : time by cause
    seconds_of_repeats : mean over ranks of each repeat (measured records)
    contention_seconds : part of the transfer that is due to shared links
    """

    name: str
    kind: str
    axis: str | None = None
    algorithm: str | None = None
    count: Count = 1
    bytes_sent_per_rank_max: Bytes = 0
    bytes_sent_total: Bytes = 0
    seconds: Seconds
    waiting_seconds: Seconds = 0.0
    exposed_seconds: Seconds = 0.0
    extrapolated: bool = False
    seconds_by_part: dict[Cause, field_units.Seconds] = {}
    seconds_of_repeats: tuple[Seconds, ...] = ()
    contention_seconds: Seconds = 0.0


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Times of the reference kernels beside each repeat; they show the drift of the machine.

    Parameters
    ----------
    gemm_seconds, copy_seconds, add_seconds : time of a small matrix product, copy and addition, for each repeat
    concurrent_ranks : ranks that timed the kernels together, where hosts share cores; 0 for all ranks of a host
    """

    gemm_seconds: tuple[PositiveSeconds, ...] = ()
    copy_seconds: tuple[PositiveSeconds, ...] = ()
    add_seconds: tuple[PositiveSeconds, ...] = ()
    concurrent_ranks: Count = 0


class Verified(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The check of a result.

    Parameters
    ----------
    method : `serial` (the block computed again in float64) or `freivalds` (products with random vectors)
    max_error : largest relative error; null where it is not a number
    bound : largest relative error that is accepted
    ok : whether the result is correct
    vectors : random vectors of a Freivalds check
    smallest_error_seen : smallest change of one element that a Freivalds check is certain to notice
    reason : what is wrong, in words
    """

    method: Literal["serial", "freivalds"]
    max_error: float | None
    bound: RelativeError
    ok: bool
    vectors: Size | None = None
    smallest_error_seen: float | None = None
    reason: str | None = None


class Messages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options by which the messages of Quadrille's own collectives were sent, and the overlap they reached.

    Parameters
    ----------
    chunk_bytes : chunk size of messages; 0 for whole steps
    progress : what advanced messages beside local work: nothing, or a progress thread
    overlap_obtained : rate of messages beside local work over their rate while nothing is computed, at most 1
    overlap_obtained_by_op : the same ratio for each op that may run beside local work
    """

    chunk_bytes: Bytes = 0
    progress: Literal["none", "thread"] = "none"
    overlap_obtained: Share | UnsetType = UNSET
    overlap_obtained_by_op: dict[str, Share] | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An automatic choice: the alternative with the shortest predicted time, and the second best.

    A collective is judged alone, with all its instances; an order of ranks is judged by the whole run.

    Parameters
    ----------
    chosen : the chosen alternative
    seconds : predicted time of the chosen alternative
    second : the second best alternative
    second_seconds : predicted time of the second best alternative
    """

    chosen: str
    seconds: Seconds
    second: str
    second_seconds: Seconds


class LinkLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The load of a link or of another shared resource, such as the cores of a host.

    One link may stand for several that carry the same.

    Parameters
    ----------
    link : name of the link or resource
    bytes : bytes carried (or units of the resource used)
    busy_s : time in which anything used the link [s]
    utilisation : bytes / (capacity x makespan)
    """

    link: str
    bytes: Annotated[field_units.Bytes, Meta(ge=0)]
    busy_s: Seconds
    utilisation: Annotated[field_units.Share, Meta(ge=0)]


class PathSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A segment of the critical path: consecutive instances of one op on one rank.

    Parameters
    ----------
    op : name of the op
    rank : the rank
    count : instances of the op
    seconds : length of the segment
    seconds_by_part : length by cause
    """

    op: str
    rank: Count | None = None
    count: Size = 1
    seconds: Seconds
    seconds_by_part: dict[PathPart, field_units.Seconds] = {}


class Simulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The method of a prediction; only `shards` and `granularity` may change the predicted time.

    At collective granularity every transfer keeps one rate, and the exact makespan lies between two bounds.  At the
    granularity of passes, passes of a pipeline take the time of a single pass.

    Parameters
    ----------
    folded : whether equivalent ranks were simulated once
    not_folded_reason : the reason why ranks were not folded
    rank_classes, flow_classes, link_classes : equivalence classes of ranks, flows and links
    events : state changes that were simulated
    iterations_skipped : loop iterations that repeat earlier ones and were skipped
    shards : `even` where every shard has the mean size
    shards_bound : largest relative change of the makespan that even shards can cause
    granularity : `exact`, `collective` for a bounded prediction, or `passes` for a walk through passes of a pipeline
    bound_low_seconds, bound_high_seconds : lower and upper bound of the exact makespan
    bound_proven : whether the bounds are proven, or only expected to hold
    approximation : what was simplified and what the bounds say, in words
    """

    folded: bool
    not_folded_reason: str = ""
    rank_classes: Count
    flow_classes: Count = 0
    link_classes: Count = 0
    events: Count = 0
    iterations_skipped: Count = 0
    shards: Shards = "exact"
    shards_bound: Annotated[float, Meta(ge=0)] = 0.0
    granularity: Granularity = "exact"
    bound_low_seconds: Seconds | None = None
    bound_high_seconds: Seconds | None = None
    bound_proven: bool = False
    approximation: str = ""


class Record(Tabular, msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run of a workload, predicted by the simulator or measured by the runtime.

    Parameters
    ----------
    kind : `predicted` or `measured`
    workload : the work that was done
    dtype : element type
    passes : `forward` (C) or `training` (C and both gradients)
    algorithm : algorithm of a matmul, or scheme of a training step
    grid : length of each axis of the grid of ranks
    order : axes from the fastest to the slowest in the order of ranks
    ranks : number of ranks
    options : choices that change how the workload is computed
    backend : array library: numpy or cupy
    machine : the machine; null where no machine was named
    seconds : median makespan over the repeats
    seconds_low, seconds_high : 5th and 95th percentile of the repeats (measured), or the prediction interval
    repeats, warmups : measured runs, and runs before them
    seconds_of_repeats : makespan of each repeat
    flops_per_rank_max : arithmetic of the rank that computes most [flop]
    bytes_sent_per_rank_max, bytes_sent_total : payload sent, by the rank that sends most and by all ranks
    bytes_lower_bound_per_rank : bytes that any algorithm must send; null where no bound is known
    peak_bytes_per_rank_max : memory of the rank that keeps most
    ops : time and traffic of each op
    links : the busiest links of a prediction
    critical_path : the ops that add up to the predicted makespan
    simulation : how the prediction was computed
    reference : reference kernels beside each repeat
    verified : the check of the result
    provenance : command, date, host and versions that wrote the record
    losses : loss of each training step; null where it is not a number
    seconds_per_iteration : time of one training step, without one-time work before the first
    model_flops_per_second_per_gpu, hardware_flops_per_second_per_gpu : rate of a training step, without and with
        recomputation; null where nothing took time
    percent_of_peak : hardware FLOP/s utilisation (HFU) of a training step [%]
    exposed_seconds_by_axis : communication of the mean rank that no computation hides, by grid axis, over all steps
    memory_bytes_by_kind : memory of the fullest rank, by kind
    memory_bytes_by_stage : memory of a rank of each pipeline stage; absent without `software`
    fits : whether the device has room; null where no machine is known
    messages : how messages were sent, in runs with chunks, a progress thread or overlap
    collectives : choice for each op, with `--collectives auto`
    order_choice : choice of the order of ranks, with `--order auto`
    pass_orders : forward (F) and backward (B) passes of each pipeline stage in the order in which they ran, where
        messages decide the order
    outside_ops_seconds : measured time of the mean rank outside ops: before its first op, between ops, and after its
        last op until the last rank ends; of the repeat with the median makespan, or the mean of the two in the middle
        [s]
    ops_seconds_by_part : measured time of the mean rank in ops that lengthens the makespan, by cause, of the same
        repeats; the times add up to `seconds` with those outside ops [s]
    """

    kind: Kind
    workload: Workload
    dtype: Dtype
    passes: Literal["forward", "training"]
    algorithm: str
    grid: dict[Axis, Size]
    order: tuple[Axis, ...]
    ranks: Size
    options: Options
    backend: str
    machine: MachineName | None = None
    seconds: Seconds
    seconds_low: Seconds
    seconds_high: Seconds
    repeats: Size = 1
    warmups: Count = 0
    seconds_of_repeats: tuple[Seconds, ...] = ()
    flops_per_rank_max: Count
    bytes_sent_per_rank_max: Bytes
    bytes_sent_total: Bytes
    bytes_lower_bound_per_rank: Annotated[field_units.Bytes, Meta(ge=0)] | None = None
    peak_bytes_per_rank_max: Bytes
    ops: tuple[OpRecord, ...] = ()
    links: tuple[LinkLoad, ...] = ()
    critical_path: tuple[PathSegment, ...] = ()
    simulation: Simulation | None = None
    reference: Reference | None = None
    verified: Verified | None = None
    provenance: Provenance | None = None
    losses: tuple[float | None, ...] | UnsetType = UNSET
    seconds_per_iteration: Seconds | UnsetType = UNSET
    model_flops_per_second_per_gpu: FlopRate | UnsetType | None = UNSET
    hardware_flops_per_second_per_gpu: FlopRate | UnsetType | None = UNSET
    percent_of_peak: Percent | UnsetType | None = UNSET
    exposed_seconds_by_axis: dict[str, Seconds] | UnsetType = UNSET
    memory_bytes_by_kind: dict[str, Bytes] | UnsetType = UNSET
    memory_bytes_by_stage: tuple[Bytes, ...] | UnsetType = UNSET
    fits: bool | UnsetType | None = UNSET
    messages: Messages | UnsetType = UNSET
    collectives: dict[str, Choice] | UnsetType = UNSET
    order_choice: Choice | UnsetType = UNSET
    pass_orders: tuple[str, ...] | UnsetType = UNSET
    outside_ops_seconds: dict[OutsideOps, Seconds] | UnsetType = UNSET
    ops_seconds_by_part: dict[Cause, Seconds] | UnsetType = UNSET

    def __post_init__(self) -> None:
        ranks = prod(length for axis, length in self.grid.items() if axis in AXES)
        if ranks != self.ranks:
            lengths = ",".join(f"{axis}={length}" for axis, length in self.grid.items())
            raise ValueError(f"ranks = {self.ranks}: the grid {lengths} has {ranks}")
        needed = [axis for axis in AXES if axis not in NEWER_AXES or axis in self.grid]
        if sorted(self.order) != sorted(needed):
            raise ValueError(f"order = {','.join(self.order)}: each of {','.join(needed)} is needed once")
        if self.seconds_of_repeats and len(self.seconds_of_repeats) != self.repeats:
            raise ValueError(f"repeats = {self.repeats}: seconds_of_repeats has {len(self.seconds_of_repeats)}")

    def rows(self) -> list[dict[str, object]]:
        """A row for each op."""
        columns = ("name", "kind", "axis", "algorithm", "count", "seconds", "waiting_seconds", "exposed_seconds")
        return [
            {column: getattr(op, column) for column in columns}
            | {"bytes_sent_per_rank_max": op.bytes_sent_per_rank_max}
            for op in self.ops
        ]

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column of the rows, as the fields of ops declare it."""
        return field_units.units_of(OpRecord)

    def _repr_html_(self) -> str:
        """HTML of the heading and the longest ops, which IPython calls for."""
        from quadrille.algorithms.timelines.run_summary import ops_html

        return ops_html(self.ops, self.heading)

    @property
    def heading(self) -> str:
        """The kind, the algorithm, the time, and its interval, in one line."""
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return f"{self.kind}: {self.algorithm} on {ranks}, {format_seconds(self.seconds)} ({self.interval_text})"

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 90 % interval, or the 5th and the 95th percentile over the repeats [s]."""
        return self.seconds_low, self.seconds_high

    @property
    def interval_text(self) -> str:
        """The interval as text, as the command line prints it."""
        simulation, interval = self.simulation, self.interval
        if self.kind == "measured":
            return percentiles_as_text(*interval, self.repeats)
        proven = None
        if simulation is not None and simulation.granularity == "collective":
            has_bounds = interval == (simulation.bound_low_seconds, simulation.bound_high_seconds)
            proven = simulation.bound_proven if has_bounds else None
        return interval_as_text(*interval, proven)


def interval_known(low: float, high: float) -> bool:
    """Whether the ends of an interval exclude anything: an interval from 0 excludes no shorter time.

    >>> interval_known(0.9, 1.2), interval_known(0.0, 1.2)
    (True, False)

    Parameters
    ----------
    low, high : ends of the interval [s]; they are equal where no uncertainty is known
    """
    return 0 < low < high


def interval_as_text(low: float, high: float, proven: bool | None = None) -> str:
    """The interval of a predicted time as text; a prediction from data sheets alone has none.

    >>> interval_as_text(1.0, 1.0), interval_as_text(1.0, 2.0)
    ('from data sheets: no interval is known', '90 % interval: 1.00 s to 2.00 s')

    Parameters
    ----------
    low, high : ends of the interval [s]
    proven : whether the bounds are proven, if the interval is the bounds of a simulation that is not exact; else None
    """
    meaning = "90 % interval"
    if proven is not None:
        meaning = "collective granularity, " + ("exact is" if proven else "as axes meet")
    elif low == high:
        return "from data sheets: no interval is known"
    elif not interval_known(low, high):
        return "90 % interval: unknown"
    return f"{meaning}: {format_seconds(low)} to {format_seconds(high)}"


def percentiles_as_text(low: float, high: float, repeats: int) -> str:
    """The 5th and the 95th percentile [s] of measured repeats as text.

    >>> percentiles_as_text(1.0, 2.0, 7), percentiles_as_text(1.0, 1.0, 1)
    ('5th to 95th percentile of 7 repeats: 1.00 s to 2.00 s', 'one repeat: no percentiles')
    """
    if repeats == 1:
        return "one repeat: no percentiles"
    return f"5th to 95th percentile of {repeats} repeats: {format_seconds(low)} to {format_seconds(high)}"


def load_record(path: str | Path) -> Record:
    """The record in the file at `path`; InputError names the first fault of a file that holds none."""
    return schema_files.read(path, Record, SCHEMA, OLDER)


def save_record(record: Record, path: str | Path) -> None:
    """Writes `record` as JSON, complete or not at all; `-` is stdout."""
    schema_files.write_json(path, record, SCHEMA)
