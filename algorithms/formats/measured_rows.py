"""The tables of measured values in a machine file: results of microbenchmarks, faults, and achieved shares of peaks.

Units stand in the names.  A `spread` is relative: half the distance from the 5th to the 95th percentile, over the
median.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quadrille.algorithms.schedule.kernel_signatures import Function, PassOperation
from quadrille.algorithms.schedule.ops import ROOTED, VECTOR_CALL_KINDS, Calls, CollectiveKind
from quadrille.algorithms.units import LARGEST_RATE, LEAST_RATE, LONGEST_SECONDS

Count = Annotated[int, Meta(gt=0)]
Rate = Annotated[float, Meta(ge=LEAST_RATE, le=LARGEST_RATE)]
Seconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
Overhead = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
Spread = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=LEAST_RATE, le=1)]
Dtype = Literal["float64", "float32", "tf32", "float16", "bfloat16"]
StreamOperation = Literal["copy", "add", "zero"]


class GemmRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured matrix product of m x k by k x n on one rank.

    Parameters
    ----------
    m, k, n : sizes of the product
    dtype : element type
    layout : N or T for each operand: stored as is, or transposed
    busy_ranks : ranks of a host that multiplied at the same time
    flops_per_second : achieved rate, 2 m k n over the median time
    threads : BLAS threads of a rank
    spread : relative spread of the repeats
    """

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
    """A measured memory-bound operation.

    Parameters
    ----------
    operation : copy, add or zero
    bytes : size of the result
    busy_ranks : ranks of a host that worked at the same time
    bytes_per_second : bytes of the result over the median time
    spread : relative spread of the repeats
    """

    operation: StreamOperation
    bytes: Count
    busy_ranks: Count = 1
    bytes_per_second: Rate
    spread: Spread = 0.0


class KernelRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured layer function, such as GELU or softmax.

    Parameters
    ----------
    function : name of the function
    dtype : element type
    bytes : bytes that the function reads and writes
    busy_ranks : ranks of a host that worked at the same time
    seconds : median time
    spread : relative spread of the repeats
    """

    function: Function
    dtype: Dtype
    bytes: Count
    busy_ranks: Count = 1
    seconds: Seconds
    spread: Spread = 0.0


class PassRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured pass over arrays on a host: one NumPy call, such as an exponential or a batch of small products.

    Parameters
    ----------
    operation : kind of pass
    dtype : element type
    matrices : matrices of a batch of products; 1 for other passes
    rows, columns : size of the array; of a product, the tokens of a sequence and the columns of a head
    busy_ranks : ranks of a host that worked at the same time
    seconds : median time
    spread : relative spread of the repeats
    """

    operation: PassOperation
    dtype: Dtype
    matrices: Count = 1
    rows: Count
    columns: Count
    busy_ranks: Count = 1
    seconds: Seconds
    spread: Spread = 0.0


class TransferRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured point-to-point step.

    Parameters
    ----------
    pattern : who sends to whom: each to its neighbour, pairs both ways, or pairs one way
    ranks : ranks that take part at the same time
    bytes : size of a message
    seconds : median time of the step
    spread : relative spread of the repeats
    """

    pattern: Literal["shift", "exchange", "one_way"]
    ranks: Annotated[int, Meta(ge=2)]
    bytes: Count
    seconds: Seconds
    spread: Spread = 0.0


class LibraryRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured collective of the MPI library, in all groups at the same time.

    Parameters
    ----------
    kind : kind of collective
    ranks : members of a group
    stride : distance in ranks between two neighbours of a group
    world_size : ranks of all groups together
    bytes : size of the whole buffer
    calls : `regular` (`MPI_Allgather`) or `vector` (`MPI_Allgatherv`), for a kind that has both; a row without it was
        measured by the vector calls
    seconds : time from the arrival of the last member to the end of the receivers
    back_to_back_seconds : the same time of a collective that follows another, whose members are out of step
    member_shares : time of each member as a share of the last member's time, where members always end apart
    spread : relative spread of the repeats

    Raises
    ------
    ValueError : calls of a kind that MPI has one for; shares of a kind with a root, of another number of members than
        `ranks`, or of members of which none is the last
    """

    kind: CollectiveKind
    ranks: Annotated[int, Meta(ge=2)]
    stride: Count
    world_size: Annotated[int, Meta(ge=2)]
    bytes: Count
    calls: Calls | UnsetType = UNSET
    seconds: Seconds
    back_to_back_seconds: Seconds | UnsetType = UNSET
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
        """MPI calls that were measured; None for a kind with one call only."""
        if self.kind not in VECTOR_CALL_KINDS:
            return None
        return "vector" if self.calls is UNSET else self.calls

    @property
    def following(self) -> float | None:
        """Seconds of a collective that follows another, or None if they were not measured."""
        return None if self.back_to_back_seconds is UNSET else self.back_to_back_seconds

    @property
    def shares(self) -> tuple[float, ...]:
        """Time of each member as a share of the last member's, by its coordinate."""
        return (1.0,) * self.ranks if self.member_shares is UNSET else self.member_shares


class MessagesRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The time of an all-gather that overlaps two matrix products, with one choice of message options.

    A run takes the fastest row that was measured with as many ranks, hosts and threads.  Between hosts with one rank
    each, `seconds` adds a gather of all ranks and several gathers of pairs.

    Parameters
    ----------
    chunk_bytes : chunk size of messages; 0 for whole steps
    progress : what advanced messages during products: nothing, or a progress thread
    ranks, hosts, threads : ranks, hosts and BLAS threads of a rank; 0 in files that do not say
    seconds : time of the gather and the products
    """

    chunk_bytes: Annotated[int, Meta(ge=0)]
    progress: Literal["none", "thread"]
    ranks: Annotated[int, Meta(ge=0)] = 0
    hosts: Annotated[int, Meta(ge=0)] = 0
    threads: Annotated[int, Meta(ge=0)] = 0
    seconds: Seconds


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The failed links, the slow links and the slow devices of a network.

    Parameters
    ----------
    fail : links that carry nothing: `leaf:3>spine:1`, `leaf:3-spine:1` for both directions, or a
        pattern such as `leaf:*>spine:1`
    degrade : share of its bandwidth that a link keeps, by link or pattern
    slow : share of its speed that a GPU or host keeps, by node
    """

    fail: tuple[str, ...] = ()
    degrade: dict[str, Rate] = {}
    slow: dict[str, Rate] = {}


Variant = Literal["fused", "unfused"]
"""Whether a layer's functions run as one fused kernel, or as one kernel for each elementary operation."""
LARGEST_RAMP = 1e9


class Achieved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The share of a device's peaks that products and passes over memory reach.

    A product is made of tiles; the device works on as many tiles at once as it has multiprocessors.

    Parameters
    ----------
    product_share : share of the peak that the largest products reach
    ramp : inner dimension that a tile costs beyond its own, in elements
    tile_rows, tile_columns : size of a tile of the result, in elements
    multiprocessors : tiles that are computed at the same time
    memory_share : share of the memory bandwidth that passes over memory reach
    attention : `fused` (scores stay on chip) or `unfused` (scores go through memory)
    pointwise : `fused` or `unfused` biases, moments of norms and column sums
    """

    product_share: Share
    ramp: Annotated[float, Meta(ge=0, le=LARGEST_RAMP)]
    tile_rows: Count
    tile_columns: Count
    multiprocessors: Count
    memory_share: Share
    attention: Variant = "fused"
    pointwise: Variant = "fused"
