"""The interfaces of message transports: `Carrier`, `Communicator` and `Request`.

A carrier is the message transport of a run, together with the ranks that it connects. There are three:

    carrier        ranks                                               module
    in-process     all ranks in one Python process                     in_process
    MPI            one process per rank; NumPy or staged GPU arrays    mpi
    NCCL           one process and one GPU per rank                    nccl

A communicator connects a group of ranks, as in MPI: the ranks along one axis of the grid. Each lane has communicators
of its own. A lane is a queue of communication ops of a rank, like a CUDA stream.

The executor of a rank is a coroutine. It starts sends, receives and library collectives, and yields the requests that
it waits for; the carrier decides how to wait. Buffers are flat, contiguous arrays. A buffer belongs to the carrier
until its request has completed.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Calls, Combination
from quadrille.runtime.arrays.array_library import Array, Lane

Edges = tuple[int, ...]
"""The boundaries of the shards in a buffer: the first element of each shard, then the end of the last shard [elements].
"""


class Request(Protocol):
    """A communication in progress, as `MPI_Request`."""

    def done(self) -> bool:
        """Whether the communication has completed. The call also makes it advance."""


class Communicator(Protocol):
    """A group of ranks on one lane. The members of the group are numbered by their coordinate along the axis.

    All peers, senders, receivers and roots below are member numbers.
    """

    member: int
    """The number of this rank in the group, from 0 (as `MPI_Comm_rank`)."""
    size: int
    """The number of ranks in the group."""
    chunk_bytes: int
    """The chunk size of our own algorithms; 0 sends the message of each step whole [B]."""
    max_outstanding: tuple[int, int]
    """The maximum number of receives and of sends of one op in progress at once, where messages are chunked."""
    begins_in_order: bool
    """Whether every rank must begin the ops of all its communicators of this kind in program order."""

    @property
    def lane(self) -> Lane | None:
        """The device stream of the communicator's messages, copies and sums; None for host arrays."""

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        """A send. It completes when the buffer may be reused, or, if synchronous, when the receiver has matched it."""

    def receive(self, buffer: Array, sender: int) -> Request:
        """A receive of exactly the buffer's bytes."""

    def signal_ready(self, peer: int) -> Request:
        """Tell a member that this rank is ready to receive: an empty message, separate from all data."""

    def await_ready(self, peer: int) -> Request:
        """A request that completes when the member's next ready signal has arrived."""

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        """An all-gather in place: at the start, `whole` holds this member's shard at its position.

        Parameters
        ----------
        edges : boundaries of the shards in `whole` [elements]
        blocking : whether the call may return only after completion
        calls : MPI call: "regular" (`MPI_Allgather`, for equal shards) or "vector" (`MPI_Allgatherv`)
        """

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        """A reduce-scatter: this member's shard of the sum goes into `piece`, and `whole` is overwritten.

        `piece` is an array of its own, or the part of `whole` that `sum_in_place` returns.
        """

    def sum_in_place(self, whole: Array, edges: Edges) -> Array:
        """The part of `whole` in which a reduce-scatter in place leaves this member's shard of the sum."""

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        """An all-reduce in place."""

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        """A broadcast of the root's buffer into the buffers of all other members."""

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        """A sum in place at the root. The buffers of the other members are overwritten."""

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        """An all-to-all: the i-th shard of `sent` goes to member i; `received` gets its i-th shard from member i."""

    def barrier(self, *, blocking: bool) -> Request:
        """A barrier of the group."""


Staging = Callable[[Communicator], Communicator]
"""Wraps a communicator for host buffers into a communicator for device arrays (`runtime/carriers/staging.py`)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The requests that a rank waits for.

    Parameters
    ----------
    requests : requests in progress
    ops : names of the open ops, for error messages
    every : whether the rank waits until all requests have completed; otherwise until one has
    idle : whether the rank waits between runs, where a late wake-up costs nothing
    completed : number of messages that have completed, over all ops
    """

    requests: Sequence[Request]
    ops: tuple[str, ...]
    every: bool = False
    idle: bool = False
    completed: int = 0


Result = TypeVar("Result")
RankCoroutine = Generator[Wait, None, Result]
"""The work of a rank: a coroutine that yields the requests it waits for and is resumed when they may be complete."""


class Carrier(Protocol):
    """A message transport and the ranks that it connects, in this process and in others."""

    size: int
    """The number of all ranks."""
    ranks: tuple[int, ...]
    """The ranks in this process."""

    def communicator(self, grid: Grid, rank: int, axis: Axis, lane: int) -> Communicator:
        """The communicator of `rank` along `axis` for the lane with this number; a collective call.

        Every rank asks for the same communicators in the same order.
        """

    def run(self, coroutine: Callable[[int], RankCoroutine[Result]]) -> dict[int, Result]:
        """Run the coroutine of every rank in this process to its end; returns their results by rank."""

    def gather(self, values: dict[int, Any]) -> dict[int, Any] | None:
        """The values of all ranks, at the process of rank 0; None elsewhere."""

    def begin_together(self) -> None:
        """Return at nearly the same time on all ranks, which have passed a barrier before."""

    def now(self) -> float:
        """The time on a clock shared by all ranks, as well as the carrier can align their clocks [s]."""


def shard_of_member(whole: Array, edges: Edges, member: int) -> Array:
    """A member's shard of a flat array, as a view.

    Parameters
    ----------
    edges : boundaries of the shards in `whole` [elements]
    """
    return whole[edges[member] : edges[member + 1]]


class CompletedRequest:
    """A request that has completed."""

    def done(self) -> bool:
        return True


DONE = CompletedRequest()


class SingleMember:
    """The communicator of a group of one rank: it never sends."""

    member, size, chunk_bytes, max_outstanding = 0, 1, 0, (0, 0)
    begins_in_order, lane = False, None

    def barrier(self, *, blocking: bool) -> Request:
        return DONE

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} in a group of one")
