"""Rows of a machine file: what each microbenchmark measured.

Units stand in the names.  A `spread` is relative: half the distance from the 5th to the 95th percentile, over the
median.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quadrille.algorithms.schedule.kernels import Function
from quadrille.algorithms.schedule.ops import ROOTED, VECTOR_CALL_KINDS, Calls, CollectiveKind

Count = Annotated[int, Meta(gt=0)]
Rate = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]
Overhead = Annotated[float, Meta(ge=0)]
Spread = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Dtype = Literal["float64", "float32", "tf32", "float16", "bfloat16"]


class GemmRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured local GEMM of m x k by k x n, on `busy_ranks` ranks of a host at once."""

    m: Count
    k: Count
    n: Count
    dtype: Dtype
    layout: Literal["NN", "NT", "TN"]
    busy_ranks: Count = 1
    flops_per_second: Rate
    threads: Count = 1
    spread: Spread = 0.0


class MemoryRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured memory-bound work on `bytes` of results, on `busy_ranks` ranks of a host at once."""

    operation: Literal["copy", "add", "zero"]
    bytes: Count
    busy_ranks: Count = 1
    bytes_per_second: Rate
    spread: Spread = 0.0


class KernelRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured function of a layer that reads and writes `bytes`, on `busy_ranks` ranks of a host at once."""

    function: Function
    dtype: Dtype
    bytes: Count
    busy_ranks: Count = 1
    seconds: Seconds
    spread: Spread = 0.0


class TransferRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One measured point-to-point step of a pattern in which `ranks` take part at once."""

    pattern: Literal["shift", "exchange", "one_way"]
    ranks: Annotated[int, Meta(ge=2)]
    bytes: Count
    seconds: Seconds
    spread: Spread = 0.0


class LibraryRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured collective of the MPI library, in all groups of so many ranks at once.

    Parameters
    ----------
    ranks, apart : members of a group, and the distance in ranks from one to the next
    of : ranks in all groups together
    bytes : of the whole buffer
    calls : MPI's by which it was measured, of a kind that has two; not said in files made before there was a choice,
        which are of the vector calls
    seconds : from when the last member has come to it, to the end of those that receive
    following_seconds : the same of one that follows another, whose members have fallen out of step; the mean of their
        ends
    member_shares : where members end apart in every run, what each took of the last one's seconds, by its coordinate:
        where summands go to one member and sums from there to the others, that one ends before these

    Raises
    ------
    ValueError : calls of a kind that MPI has one for; shares of a kind with a root, of another number of members than
        `ranks`, or of members of which none is the last
    """

    kind: CollectiveKind
    ranks: Annotated[int, Meta(ge=2)]
    apart: Count
    of: Annotated[int, Meta(ge=2)]
    bytes: Count
    calls: Calls | UnsetType = UNSET
    seconds: Seconds
    following_seconds: Seconds | UnsetType = UNSET
    member_shares: tuple[Share, ...] | UnsetType = UNSET
    spread: Spread = 0.0

    def __post_init__(self) -> None:
        if self.calls is not UNSET and self.kind not in VECTOR_CALL_KINDS:
            raise ValueError(f"calls = {self.calls!r}: MPI has one call for {self.kind}, two for {VECTOR_CALL_KINDS}")
        shares = self.member_shares
        if shares is not UNSET and self.kind in ROOTED:
            raise ValueError(f"member_shares: of a {self.kind} every member is the root in turn")
        if shares is not UNSET and (len(shares) != self.ranks or max(shares) < 1):
            raise ValueError(
                f"member_shares = {list(shares)}: expected one for each of {self.ranks} ranks, the largest 1"
            )

    @property
    def called(self) -> Calls | None:
        """MPI's calls by which it was measured; None of a kind that has one alone."""
        if self.kind not in VECTOR_CALL_KINDS:
            return None
        return "vector" if self.calls is UNSET else self.calls

    @property
    def following(self) -> float | None:
        """Seconds of one that follows another, where they were measured."""
        return None if self.following_seconds is UNSET else self.following_seconds

    @property
    def shares(self) -> tuple[float, ...]:
        """What each member takes of the last one's seconds, by its coordinate."""
        return (1.0,) * self.ranks if self.member_shares is UNSET else self.member_shares


class MessagesRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long a gather and two products took at once, by one delivery; a run goes by the best.

    Between hosts of one rank each, of an even number, it is the sum of two: with a gather of all, and several of pairs.

    Parameters
    ----------
    chunk_bytes : into which messages were cut; 0 for whole steps
    progress : what advanced them beside local work
    ranks, hosts, threads : ranks in all, hosts that they were on, and BLAS threads of each: runs that are otherwise go
        by other rules; 0 in files made before rows said so
    """

    chunk_bytes: Annotated[int, Meta(ge=0)]
    progress: Literal["none", "thread"]
    ranks: Annotated[int, Meta(ge=0)] = 0
    hosts: Annotated[int, Meta(ge=0)] = 0
    threads: Annotated[int, Meta(ge=0)] = 0
    seconds: Seconds
