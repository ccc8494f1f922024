"""Ops of a schedule: matrix products, layer functions, copies, collectives and messages, as frozen data.

An op says which tensors it reads and writes, never its duration or the library that executes it.

Each kind of op is one frozen class; `Op` is their union, so the type checker proves that every interpreter handles
every kind. Ops name the tensors that they read and write.  `after` adds ordering that data flow does not imply: the
names of ops whose latest instances must have ended.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeGuard

from quadrille.algorithms.schedule.expressions import IntExpression
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.kernel_signatures import Function

if TYPE_CHECKING:
    from quadrille.algorithms.schedule.routed_rows import RoutedRows

GemmLayout = Literal["NN", "NT", "TN"]
SmallPrecision = Literal["fp8", "fp8-delayed", "fp8-block", "mxfp8", "nvfp4"]
"""Precision of a product whose operands have 8 or 4 bits, with the kind of its scales (`small_numbers.py`)."""
Products = Literal["dtype"] | SmallPrecision
"""Precision of the products of linear layers: that of the activations, or a small one."""
PointwiseFunction = Literal["zero", "copy", "add"]
Combination = Literal["sum", "max"]
OverlapName = Literal["oar", "ors", "oag", "ogr", "opg"]
CollectiveKind = Literal[
    "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "send_receive", "barrier"
]
Calls = Literal["regular", "vector"]
"""MPI call of a collective that has two: `regular` for equal shards (MPI_Allgather), `vector` for any sizes
(MPI_Allgatherv).
"""
VECTOR_CALL_KINDS: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter")
TO_HOST, TO_DEVICE, HOST = "to-host", "to-device", "host"
"""Lanes of host copies, and of work on the cores of the host."""
HOST_LANES = (TO_DEVICE, TO_HOST, HOST)
ROOTED: tuple[CollectiveKind, ...] = ("broadcast", "reduce")
Kind = Literal["gemm", "pointwise", "kernel", "host_copy", "host_kernel", "send", "receive", "shift"] | CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """c = op(a) op(b), or c += op(a) op(b); `layout` says which operand is transposed (NN, NT, TN).

    With `counts`, it is a product for each expert: rows of the activations are sorted by expert, and the matrices of
    the weights or of their gradient stand one below the other.  The tensor `counts` says how many rows each expert has.
    `precision` is that of operands of 8 or 4 bits; None for operands in the schedule's dtype.
    """

    name: str
    a: str
    b: str
    c: str
    layout: GemmLayout = "NN"
    accumulate: bool = False
    after: tuple[str, ...] = ()
    counts: str = ""
    precision: SmallPrecision | None = None

    @property
    def activations(self) -> str:
        """The operand whose rows are sorted by expert."""
        return self.a

    @property
    def weights(self) -> str:
        """The matrices of the experts, or their gradients."""
        return self.c if self.layout == "TN" else self.b


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise:
    """into = function(sources), elementwise; bound by memory bandwidth.

    `iteration_offset` selects the copy of `into` that belongs to that many iterations later.  `on_host` says that the
    cores of the host do it, on tensors in host memory.
    """

    name: str
    function: PointwiseFunction
    into: str
    sources: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    iteration_offset: int = 0
    on_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A local function of a layer other than a product; `kernel_signatures.py` lists the functions.

    `into` is written from `sources`; `updates` are read and written in place.  `scalars` are numbers by name. `counter`
    is the loop whose index is passed to the function.  `on_host` says that the cores of the host run it, on tensors in
    host memory.
    """

    name: str
    function: Function
    into: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    scalars: tuple[tuple[str, float], ...] = ()
    counter: str | None = None
    after: tuple[str, ...] = ()
    on_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """into = source, from device to host or back; exactly one of the two tensors is `on_host`.

    Only data flow orders a host copy: it runs on a lane of its direction, while the device computes.
    """

    name: str
    source: str
    into: str
    to_host: bool = False
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Base of the communication ops of the group along `axis`, on one lane of the axis.

    `overlap` names the overlap that may release the op.  `concurrent` says that it was released: later ops do not wait
    for it.
    """

    name: str
    axis: Axis
    lane: int = 0
    after: tuple[str, ...] = ()
    overlap: OverlapName | None = None
    concurrent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(Communication):
    """Every member gets the concatenation of all members' parts.

    With `counts`, the parts are rows that routers sent, which the whole has sorted by expert.
    """

    source: str
    into: str
    counts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceScatter(Communication):
    """Every member gets its part of the sum of all members' sources.  Overwrites `source`.

    With `counts`, the parts are rows that routers sent, which the source has sorted by expert.
    """

    source: str
    into: str
    counts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Communication):
    """Every member gets the elementwise sum, or maximum, of all members' buffers.

    `more` buffers travel in the same messages, after the first: a gradient bucket.
    """

    buffer: str
    combination: Combination = "sum"
    more: tuple[str, ...] = ()

    @property
    def buffers(self) -> tuple[str, ...]:
        """All buffers of the op."""
        return (self.buffer, *self.more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast(Communication):
    """Every member gets, in `into`, the corresponding region of the root's `source`."""

    root: IntExpression
    source: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Communication):
    """The root gets, in the corresponding region of `into`, the sum of all members' sources.  Overwrites `source`."""

    root: IntExpression
    source: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllToAll(Communication):
    """Redistributes a matrix that `axis` cuts in one dimension to the same matrix cut in the other.

    With `counts`, each row goes to the rank of its expert, or `back`.  The tensor `counts` says how many rows each
    member has for each expert; before a run the numbers are expected ones.  `routed` says how a router spreads them.
    """

    source: str
    into: str
    counts: str = ""
    back: bool = False
    routed: "RoutedRows | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Communication):
    """No member continues before all members have arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Communication):
    """Sends `source` to the member at coordinate `to`, which has a matching Receive."""

    to: IntExpression
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive(Communication):
    """Receives `into` from the member at coordinate `sender`, which has a matching Send.

    `posted` says that the receive waits in a queue of its own, beside the sends of its lane: it begins before its rank
    needs the message.
    """

    sender: IntExpression
    into: str
    posted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift(Communication):
    """Ring shift: sends `source` to the member `distance` coordinates ahead, receives `into` from the member as far
    behind.

    `iteration_offset` selects the copy of `into` that belongs to that many iterations later.
    """

    distance: IntExpression
    source: str
    into: str
    iteration_offset: int = 0


Compute = Gemm | Pointwise | Kernel | HostCopy
Collective = AllGather | ReduceScatter | AllReduce | Broadcast | Reduce | AllToAll | Barrier
PointToPoint = Send | Receive | Shift
CommunicationOp = Collective | PointToPoint
Op = Compute | CommunicationOp

COLLECTIVE_KINDS: dict[type[Collective], CollectiveKind] = {
    AllGather: "all_gather",
    ReduceScatter: "reduce_scatter",
    AllReduce: "all_reduce",
    Broadcast: "broadcast",
    Reduce: "reduce",
    AllToAll: "all_to_all",
    Barrier: "barrier",
}
OTHER_KINDS: dict[type[Compute | PointToPoint], Kind] = {
    Gemm: "gemm",
    Pointwise: "pointwise",
    Kernel: "kernel",
    HostCopy: "host_copy",
    Send: "send",
    Receive: "receive",
    Shift: "shift",
}


def kind(op: Op) -> Kind:
    """Returns the kind of an op, as records and reports name it."""
    if isinstance(op, Collective):
        return collective_kind(op)
    return "host_kernel" if is_host_op(op) and not isinstance(op, HostCopy) else OTHER_KINDS[type(op)]


def collective_kind(op: Collective) -> CollectiveKind:
    """Returns the kind of a collective."""
    return COLLECTIVE_KINDS[type(op)]


def reads(op: Op) -> tuple[str, ...]:
    """Returns the tensors that the op reads."""
    match op:
        case Gemm():
            operands = (op.a, op.b, op.c) if op.accumulate else (op.a, op.b)
            return (*operands, op.counts) if op.counts else operands
        case Pointwise():
            return op.sources
        case Kernel():
            return op.sources + op.updates
        case AllReduce():
            return op.buffers
        case AllToAll() | AllGather() | ReduceScatter() if op.counts:
            return (op.source, op.counts)
        case Barrier() | Receive():
            return ()
        case _:
            return (op.source,)


def writes(op: Op) -> tuple[str, ...]:
    """Returns the tensors that the op modifies, overwritten sources included."""
    match op:
        case Gemm():
            return (op.c,)
        case Kernel():
            return op.into + op.updates
        case AllReduce():
            return op.buffers
        case ReduceScatter() | Reduce():
            return (op.into, op.source)
        case Barrier() | Send():
            return ()
        case _:
            return (op.into,)


def lane(op: Op) -> str:
    """Returns the lane of the op: `compute`, that of a direction of host copies or of the host's cores, an axis (`z`,
    `z:1` for its second lane), or that of posted receives.
    """
    if isinstance(op, HostCopy):
        return TO_HOST if op.to_host else TO_DEVICE
    if is_host_op(op):
        return HOST
    if not isinstance(op, Communication):
        return "compute"
    return f"{message_lane(op)} posted" if isinstance(op, Receive) and op.posted else message_lane(op)


def is_host_op(op: Op) -> TypeGuard[Compute]:
    """Whether an op is a host copy, or work on the cores of the host; only data flow orders it."""
    return isinstance(op, HostCopy) or (isinstance(op, Kernel | Pointwise) and op.on_host)


def message_lane(op: Communication) -> str:
    """Returns the name under which messages of the op meet: its axis, and its lane from the second on."""
    return f"{op.axis}:{op.lane}" if op.lane else op.axis
