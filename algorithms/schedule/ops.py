"""The vocabulary of schedules: what is done to which tensors; never how long, never on which library.

One frozen class per kind of op, joined in `Op`, so that the type checker proves
that every interpreter handles every kind.  Ops name the tensors they read and
write; the order that data flow does not give is in `after`, the names of ops
whose latest instances must have ended.
"""

from dataclasses import dataclass
from typing import Literal

from quadrille.algorithms.schedule.expressions import IntExpression
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.kernels import Function

GemmLayout = Literal["NN", "NT", "TN"]
PointwiseFunction = Literal["zero", "copy", "add"]
Combination = Literal["sum", "max"]
OverlapName = Literal["oar", "ors", "oag"]
CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "barrier"]
Calls = Literal["regular", "vector"]
"""MPI's, for a kind that has two: of equal pieces alone (MPI_Allgather), or of pieces of any sizes (MPI_Allgatherv)."""
VECTOR_CALL_KINDS: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter")
ROOTED: tuple[CollectiveKind, ...] = ("broadcast", "reduce")
Kind = Literal["gemm", "pointwise", "kernel", "host_copy", "send", "receive", "shift"] | CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """c = op(a) op(b), or c += op(a) op(b); `layout` says which operand is transposed (NN, NT, TN)."""

    name: str
    a: str
    b: str
    c: str
    layout: GemmLayout = "NN"
    accumulate: bool = False
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise:
    """into = function(sources), element by element: work bound by memory, not by arithmetic.

    `iteration_offset` says that `into` is the copy of that many iterations later.
    """

    name: str
    function: PointwiseFunction
    into: str
    sources: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    iteration_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Local work of a layer, other than a product: one of the functions that `kernels.py` lists.

    `into` is written from `sources`; `updates` are read and written in place.
    `scalars` are numbers by name; `counter` is the loop whose index the function is told.
    """

    name: str
    function: Function
    into: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    scalars: tuple[tuple[str, float], ...] = ()
    counter: str | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """into = source, from the device to the host or back: one of the two tensors is `on_host`."""

    name: str
    source: str
    into: str
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """An op of the group along `axis`, on one of the axis's lanes.

    `overlap` marks the op that an overlap of that name may release; `concurrent`
    says that the pass did, so that other ops run while it is under way.
    """

    name: str
    axis: Axis
    lane: int = 0
    after: tuple[str, ...] = ()
    overlap: OverlapName | None = None
    concurrent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(Communication):
    """Every member gets the whole of what the members hold in parts."""

    source: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceScatter(Communication):
    """The members' sources are summed and every member gets its part.  Uses up `source`."""

    source: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Communication):
    """The members' buffers are replaced by their sum, or by the largest of each element.

    `more` buffers go in the same messages, behind the first: a bucket of gradients.
    """

    buffer: str
    combination: Combination = "sum"
    more: tuple[str, ...] = ()

    @property
    def buffers(self) -> tuple[str, ...]:
        return (self.buffer, *self.more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast(Communication):
    """Every member gets, in `into`, that region of the root's `source`."""

    root: IntExpression
    source: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Communication):
    """The members' sources are summed into that region of the root's `into`.  Uses up `source`."""

    root: IntExpression
    source: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllToAll(Communication):
    """From a matrix cut over `axis` in one dimension to the same cut over it in the other."""

    source: str
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Communication):
    """No member goes on before all have arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Communication):
    """`source` goes to the member at coordinate `to`, which has a matching Receive."""

    to: IntExpression
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive(Communication):
    """`into` comes from the member at coordinate `sender`, which has a matching Send."""

    sender: IntExpression
    into: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift(Communication):
    """`source` goes `distance` coordinates on around the ring, `into` comes from as far behind.

    `iteration_offset` says that `into` is the copy of that many iterations later.
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
    """The kind of an op, as records and reports name it."""
    return collective_kind(op) if isinstance(op, Collective) else OTHER_KINDS[type(op)]


def collective_kind(op: Collective) -> CollectiveKind:
    """The kind of a collective."""
    return COLLECTIVE_KINDS[type(op)]


def reads(op: Op) -> tuple[str, ...]:
    """Tensors whose values the op uses."""
    match op:
        case Gemm():
            return (op.a, op.b, op.c) if op.accumulate else (op.a, op.b)
        case Pointwise():
            return op.sources
        case Kernel():
            return op.sources + op.updates
        case AllReduce():
            return op.buffers
        case Barrier() | Receive():
            return ()
        case _:
            return (op.source,)


def writes(op: Op) -> tuple[str, ...]:
    """Tensors whose values the op changes, those it uses up included."""
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
    """The lane that carries the op: `compute`, or an axis (`z`, `z:1` for its second lane)."""
    if not isinstance(op, Communication):
        return "compute"
    return f"{op.axis}:{op.lane}" if op.lane else op.axis
