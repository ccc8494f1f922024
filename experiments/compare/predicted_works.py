"""The predicted time of an iteration by kind of work, as a trace shows it: `PredictedWorks`.

A trace shows kernels, not ops.  Ops become kinds of work by their kind and name:

    gemm                          products
    kernel "attention …"          attention
    other kernels, pointwise      other kernels
    copies between host and GPU   copies
    collectives and messages      communication, by kind and number of members

A collective's kernel waits for late members, so predicted waiting is communication.  Work before the first step is left
out.  All times are of the mean rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from quadrille.algorithms.formats.record import OpRecord, Record
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.experiments.compare.attribution import charged_waiting
from quadrille.experiments.network.bus_bandwidth import bus_factor
from quadrille.experiments.traces.device_trace import Work

MESSAGES = ("send", "receive", "shift")
COLLECTIVES: tuple[CollectiveKind, ...] = (
    "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "send_receive", "barrier",
)  # fmt: skip
Group = tuple[CollectiveKind, int]
"""Kind of a collective, and the number of its members."""


@dataclass(slots=True)
class CollectiveShare:
    """The calls of one kind and number of members in an iteration, the bytes of their whole buffers, and times [s]."""

    calls: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    exposed_seconds: float = 0.0


@dataclass(slots=True)
class PredictedWorks:
    """The predicted times of an iteration [s].

    Parameters
    ----------
    seconds : time of an iteration
    by_work : sum of the ops by kind of work
    exposed_communication : communication and waiting in which the rank computes nothing
    """

    seconds: float
    by_work: dict[Work, float] = field(default_factory=dict)
    exposed_communication: float = 0.0
    exposed_copies: float = 0.0
    collectives: dict[Group, CollectiveShare] = field(default_factory=dict)


def predicted_works(record: Record) -> PredictedWorks:
    """The times of an iteration of a predicted record."""
    steps = record.options.steps if isinstance(record.options.steps, int) else 1
    per_iteration = record.seconds_per_iteration
    seconds = per_iteration if isinstance(per_iteration, float) and per_iteration else record.seconds / steps
    works = PredictedWorks(seconds)
    for op in record.ops:
        work = work_of(op)
        whole = (op.seconds + op.waiting_seconds) / steps
        works.by_work[work] = works.by_work.get(work, 0.0) + whole
        exposed = (op.exposed_seconds + charged_waiting(op)) / steps
        if work == "communication":
            works.exposed_communication += exposed
            _add_collective(works, op, record.grid, steps, whole, exposed)
        elif work == "copies":
            works.exposed_copies += exposed
    _leave_out_work_before_the_first_step(works, record.seconds / steps - seconds)
    return works


def _leave_out_work_before_the_first_step(works: PredictedWorks, seconds: float) -> None:
    """Takes from other kernels what a run does once: it zeroes the optimizer's state and casts the weights."""
    others = works.by_work.get("other kernels", 0.0)
    works.by_work["other kernels"] = max(0.0, others - max(0.0, seconds))


def work_of(op: OpRecord) -> Work:
    """The kind of work of an op.

    >>> work_of(OpRecord(name="attention gradient", kind="kernel", seconds=1.0)), work_of(
    ...     OpRecord(name="add attention", kind="pointwise", seconds=1.0)
    ... )
    ('attention', 'other kernels')
    """
    if op.kind == "gemm":
        return "products"
    if op.kind == "host_copy":
        return "copies"
    if op.kind in COLLECTIVES or op.kind in MESSAGES:
        return "communication"
    return "attention" if op.kind == "kernel" and op.name.startswith("attention") else "other kernels"


def _add_collective(
    works: PredictedWorks, op: OpRecord, grid: Mapping[Axis, int], steps: int, whole: float, exposed: float
) -> None:
    """Adds an op of communication to those of its kind and number of members; ops that do nothing are left out."""
    members = 2 if op.kind in MESSAGES else prod(length for axis, length in grid.items() if axis == op.axis)
    if not whole and not op.bytes_sent_per_rank_max:
        return
    kind = "send_receive" if op.kind in MESSAGES else next(kind for kind in COLLECTIVES if kind == op.kind)
    share = works.collectives.setdefault((kind, members), CollectiveShare())
    factor = bus_factor(kind, members)
    share.calls += op.count / steps
    share.bytes += op.bytes_sent_per_rank_max / factor / steps if factor else 0.0
    share.seconds += whole
    share.exposed_seconds += exposed
