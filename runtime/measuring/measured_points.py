"""The results of the microbenchmarks, one class of points for each benchmark: median seconds with their spread."""

from dataclasses import dataclass

from quadrille.algorithms.schedule.ops import Calls, CollectiveKind, GemmLayout
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.measuring.chained_transfers import Pattern
from quadrille.runtime.measuring.library_collectives import GroupShape


@dataclass(frozen=True, slots=True)
class GemmPoint:
    """A GEMM m x k by k x n and its measured time.

    Parameters
    ----------
    threads : BLAS threads of each rank
    busy_ranks : number of ranks that multiply at once
    seconds, spread : median time [s] and its relative spread; 0 before the measurement
    calm : whether no other process disturbed the measurement
    """

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
class TransferPoint:
    """The measured time of one transfer step in which each of `ranks` ranks sends `bytes`.

    Parameters
    ----------
    sender_ack_delay_seconds : delay between the end of a receive and the end of its one-way send of more than a chunk
        [s]; None for other patterns
    """

    pattern: Pattern
    ranks: int
    bytes: int
    seconds: float
    spread: float
    sender_ack_delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """The measured time of an MPI library collective on a buffer of `bytes`, in all groups of a shape at once.

    Parameters
    ----------
    back_to_back_seconds : time of a collective that follows another [s]; None for collectives with roots
    member_shares : each member's time as a fraction of the last member's; empty if they end together
    calls : MPI calls that were used; None for a kind with only one
    """

    kind: CollectiveKind
    shape: GroupShape
    bytes: int
    seconds: float
    spread: float
    back_to_back_seconds: float | None = None
    member_shares: tuple[float, ...] = ()
    calls: Calls | None = None


@dataclass(frozen=True, slots=True)
class FlowPoint:
    """The measured rate from one host to another while other pairs of hosts send (`all_pairs_rates.py`)."""

    round: int
    sender: int
    receiver: int
    bytes_per_second: float
