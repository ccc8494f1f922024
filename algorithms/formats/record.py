"""The record of one run, predicted or measured: what ran, how long it took, op by op, and what was sent.

The classes mirror the file, field by field; units stand in the names.
`seconds` is the median makespan over the repeats.  Per op, `seconds`,
`waiting_seconds` and `exposed_seconds` are means over ranks of medians over
repeats, as `quadrille.algorithms.timelines` defines them.  `links` are those of a
prediction that are used most, the most used first; `critical_path` adds up to
`seconds`.
"""

from math import prod
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quadrille.algorithms.formats import files
from quadrille.algorithms.formats.faults import Faults
from quadrille.algorithms.formats.workload import Count, Size, Workload
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import AXES, Axis

__all__ = ["Provenance", "Record", "load_record", "provenance", "save_record"]

SCHEMA = "quadrille/record/1"

Seconds = Annotated[float, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Rate = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Kind = Literal["predicted", "measured"]
Cause = Literal["compute", "transfer", "latency", "waiting", "other"]
PathPart = Literal["compute", "latency", "bandwidth", "contention", "waiting", "other"]
"""Of the time of one op: `bandwidth` is what its transfers take alone, `contention` what sharing adds to all work."""
Shards = Literal["exact", "even"]
Granularity = Literal["exact", "collective"]
AskedGranularity = Literal["auto", Granularity]
"""What may be asked for: one of the two, or whichever is quick."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Choices that change how the same thing is computed; those from `scheme` on are of training steps only."""

    overlap: tuple[Literal["oar", "ors", "oag"], ...] = ()
    bands: Size | UnsetType = UNSET
    gathered: Literal["keep", "again"] = "again"
    collectives: str = "own:ring"
    threads: Size = 1
    panel: Size | None = None
    scheme: str | UnsetType = UNSET
    sequence_parallel: bool | UnsetType = UNSET
    zero: Count | UnsetType = UNSET
    micro_batch: Size | UnsetType | None = UNSET
    interleave: Size | UnsetType = UNSET
    recompute: Literal["none", "selective", "full"] | UnsetType = UNSET
    gradient_bytes: Size | UnsetType = UNSET
    steps: Size | UnsetType = UNSET
    clip: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    keep_first: Count | UnsetType = UNSET
    gemm_layouts: str | UnsetType = UNSET


class MachineName(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which machine: its name and the hash of its content, where there is a machine file.

    The hash is of the machine with its routing and faults, which are named
    beside it; `placement` is the rule by which ranks were given their places.
    """

    name: str
    sha256: str | None = None
    routing: str = "shortest"
    faults: Faults | None = None
    placement: str = "packed"


class OpRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One op of the schedule, over all its instances in a run.

    `seconds_of_repeats` are the means over ranks of each repeat, where measured:
    they show the spread.  `contention_seconds` is the part of the transfer that
    the messages would not take alone.
    """

    name: str
    kind: str
    axis: str | None = None
    algorithm: str | None = None
    count: Count = 1
    bytes_sent_per_rank_max: Count = 0
    bytes_sent_total: Count = 0
    seconds: Seconds
    waiting_seconds: Seconds = 0.0
    exposed_seconds: Seconds = 0.0
    extrapolated: bool = False
    seconds_by_part: dict[Cause, float] = {}
    seconds_of_repeats: tuple[Seconds, ...] = ()
    contention_seconds: Seconds = 0.0


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Seconds of the small reference kernels beside each repeat: they show the drift of the machine.

    Parameters
    ----------
    at_once : ranks that time them together, where hosts share cores: one for each core; 0: all ranks of a host
    """

    gemm_seconds: tuple[PositiveSeconds, ...] = ()
    copy_seconds: tuple[PositiveSeconds, ...] = ()
    add_seconds: tuple[PositiveSeconds, ...] = ()
    at_once: Count = 0


class Verified(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the result was checked; `max_error` is null where it is not a number."""

    method: Literal["serial", "freivalds"]
    max_error: float | None
    bound: Seconds
    ok: bool
    vectors: Size | None = None
    smallest_error_seen: float | None = None
    reason: str | None = None


class Messages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the messages of our own steps went in a run.

    Parameters
    ----------
    chunk_bytes : into which they were cut; 0 where steps went whole
    progress : what advanced communication beside local work
    overlap_obtained : how fast communication went beside local work, of how fast it went while nothing was computed,
        1 at most; there where some went beside local work
    overlap_obtained_by_op : the same of each op that may run beside local work
    """

    chunk_bytes: Count = 0
    progress: Literal["none", "thread"] = "none"
    overlap_obtained: Share | UnsetType = UNSET
    overlap_obtained_by_op: dict[str, Share] | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was chosen because it is predicted to take least, and what is next.

    By what a collective goes is judged alone and in all its turns; the order of ranks by the whole run.
    """

    chosen: str
    seconds: Seconds
    second: str
    second_seconds: Seconds


class LinkLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a link (or another shared resource, such as the cores of a host) had to carry.

    `bytes` are units of the resource; `busy_s` the seconds in which something
    used it; `utilisation` is bytes / (capacity · makespan).  Of links that are
    known to carry the same, one may stand for all.
    """

    link: str
    bytes: Annotated[float, Meta(ge=0)]
    busy_s: Seconds
    utilisation: Annotated[float, Meta(ge=0)]


class PathSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stretch of the critical path: `count` instances of an op, one after the other, on a rank."""

    op: str
    rank: Count | None = None
    count: Size = 1
    seconds: Seconds
    seconds_by_part: dict[PathPart, float] = {}


class Simulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a prediction was computed: nothing of it changes the answer, but `shards` and `granularity`.

    At the granularity of collectives every transfer keeps one rate, and the
    exact simulation would say something from `bound_low_seconds` (every transfer
    alone on its route) to `bound_high_seconds` (beside all that may ever be
    under way with it).

    Parameters
    ----------
    folded : whether ranks that behave alike were simulated as one
    why_not : what keeps ranks apart, in words, where they were not folded
    rank_classes, flow_classes, link_classes : how many kinds there were; without folding, of ranks alone
    events : changes of state that were simulated
    iterations_skipped : turns of loops that were known from those before
    shards : `even` where all shards were given the mean size
    shards_bound : how far off that puts the makespan at most, relative
    granularity : `collective` where it is not the exact simulation
    bound_low_seconds, bound_high_seconds : between which two its makespan lies then
    bound_proven : whether it must, or is only expected to
    approximation : what was simplified and what the bound says, in words
    """

    folded: bool
    why_not: str = ""
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


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run of a workload, predicted by the simulator or measured by the runtime.

    Of training steps only:

    Parameters
    ----------
    losses : of every step, where it was run; null where it is not a number
    seconds_per_iteration : of one step, without what happens once before the first
    model_flops_per_second_per_gpu, hardware_flops_per_second_per_gpu : of the products of a step, without and with
        those that are made again, each attention a whole square (`training/flops.py`); null where nothing took time
    percent_of_peak : the hardware's, as the papers have it, of what the machine's device can do in the dtype
    exposed_seconds_by_axis : of the mean rank, of all steps: communication while its compute lane is idle
    memory_bytes_by_kind : of the rank that keeps most
    fits : whether the device has room for it; null where no machine is known

    Of runs in chunks, with a progress thread or with ops beside local work only: `messages`.
    With `--collectives auto` on a known machine only: `collectives`, what was chosen for each op and why; with
    `--order auto`: `order_choice`, which order of ranks and why.
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
    bytes_sent_per_rank_max: Count
    bytes_sent_total: Count
    bytes_lower_bound_per_rank: Annotated[float, Meta(ge=0)] | None = None
    peak_bytes_per_rank_max: Count
    ops: tuple[OpRecord, ...] = ()
    links: tuple[LinkLoad, ...] = ()
    critical_path: tuple[PathSegment, ...] = ()
    simulation: Simulation | None = None
    reference: Reference | None = None
    verified: Verified | None = None
    provenance: Provenance | None = None
    losses: tuple[float | None, ...] | UnsetType = UNSET
    seconds_per_iteration: Seconds | UnsetType = UNSET
    model_flops_per_second_per_gpu: Rate | UnsetType | None = UNSET
    hardware_flops_per_second_per_gpu: Rate | UnsetType | None = UNSET
    percent_of_peak: Rate | UnsetType | None = UNSET
    exposed_seconds_by_axis: dict[str, Seconds] | UnsetType = UNSET
    memory_bytes_by_kind: dict[str, Count] | UnsetType = UNSET
    fits: bool | UnsetType | None = UNSET
    messages: Messages | UnsetType = UNSET
    collectives: dict[str, Choice] | UnsetType = UNSET
    order_choice: Choice | UnsetType = UNSET

    def __post_init__(self) -> None:
        if prod(self.grid.values()) != self.ranks:
            lengths = ",".join(f"{axis}={length}" for axis, length in self.grid.items())
            raise ValueError(f"ranks = {self.ranks}: the grid {lengths} has {prod(self.grid.values())}")
        needed = [axis for axis in AXES if axis != "pipeline" or axis in self.grid]
        if sorted(self.order) != sorted(needed):
            raise ValueError(f"order = {','.join(self.order)}: each of {','.join(needed)} is needed once")
        if self.seconds_of_repeats and len(self.seconds_of_repeats) != self.repeats:
            raise ValueError(f"repeats = {self.repeats}: seconds_of_repeats has {len(self.seconds_of_repeats)}")


def load_record(path: str | Path) -> Record:
    """The record in the file at `path`; InputError names the first fault of a file that holds none."""
    return files.read(path, Record, SCHEMA)


def save_record(record: Record, path: str | Path) -> None:
    """Writes `record` as JSON, complete or not at all; `-` is stdout."""
    files.write_json(path, record, SCHEMA)
