"""What microbenchmarks find: plain rows of seconds, medians with their spreads."""

from dataclasses import dataclass

from quadrille.algorithms.schedule.kernels import Function
from quadrille.algorithms.schedule.ops import Calls, CollectiveKind, GemmLayout
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.measuring.chained_library_calls import GroupShape
from quadrille.runtime.measuring.chained_transfers import Pattern


@dataclass(frozen=True, slots=True)
class GemmPoint:
    """A product m x k by k x n, and its median seconds (0: not yet measured)."""

    m: int
    k: int
    n: int
    dtype: DType
    layout: GemmLayout
    threads: int
    busy_ranks: int
    seconds: float = 0.0
    spread: float = 0.0
    calm: bool = True


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """Memory-bound work that writes `bytes`."""

    operation: str
    bytes: int
    busy_ranks: int
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """A layer's function that reads and writes `bytes`."""

    function: Function
    dtype: DType
    bytes: int
    busy_ranks: int
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class TransferPoint:
    """One step of a pattern of `ranks` ranks, each sending `bytes`.

    Parameters
    ----------
    taken_seconds : how much later than its receiver who sends one way hears that all was taken, of more than a
        chunk; None of others
    """

    pattern: Pattern
    ranks: int
    bytes: int
    seconds: float
    spread: float
    taken_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """A collective of the MPI library on a buffer of `bytes`, in all groups of a shape at once.

    Parameters
    ----------
    following_seconds : of one that follows another; None of those in rounds, which do anyway
    member_shares : what each member takes of the last one's seconds; none where they end together
    calls : MPI's by which it went; None of a kind that has one alone
    """

    kind: CollectiveKind
    shape: GroupShape
    bytes: int
    seconds: float
    spread: float
    following_seconds: float | None = None
    member_shares: tuple[float, ...] = ()
    calls: Calls | None = None


@dataclass(frozen=True, slots=True)
class FlowPoint:
    """What a host got of another in a round in which several hosts sent to one each, all at once."""

    round: int
    sender: int
    receiver: int
    bytes_per_second: float
