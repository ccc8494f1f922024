"""The protocol of all message carriers.

    carrier        ranks                                   module
    in-process     all ranks in one Python process         in_process
    MPI            one process per rank, NumPy or staged   mpi
    NCCL           one process and one GPU per rank        nccl

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
    """A communication in progress."""

    def done(self) -> bool:
        """Whether the communication has completed. The call also makes it advance."""


class Communicator(Protocol):
    """One group of ranks on one lane. Members are numbered by their coordinate along the axis."""

    member: int
    size: int
    chunk_bytes: int
    """Chunk size of our own steps; 0 sends each step whole [B]."""
    max_outstanding: tuple[int, int]
    """Most receives and sends of one op in progress at once, where messages are chunked."""
    begins_in_order: bool
    """Whether every rank must begin the ops of all such communicators in program order."""

    @property
    def lane(self) -> Lane | None:
        """The array lane that is in order with messages of device arrays; None for host arrays."""

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        """A send. It completes when the buffer may be reused, or, if synchronous, when the receiver has matched it."""

    def receive(self, buffer: Array, sender: int) -> Request: ...

    def signal_ready(self, peer: int) -> Request:
        """Tell a member that this rank is ready to receive: an empty message, separate from all data."""

    def await_ready(self, peer: int) -> Request:
        """A request that completes when the member's next ready signal has arrived."""

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        """In place: at the start, the buffer holds the member's own shard. Regular MPI calls need equal shards."""

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        """The member's shard of the sum goes into `piece`. The contents of `whole` are overwritten."""

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request: ...

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request: ...

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        """In place at the root. The buffers of the other members are overwritten."""

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request: ...

    def barrier(self, *, blocking: bool) -> Request: ...


Staging = Callable[[Communicator], Communicator]
"""Wraps a communicator for host buffers into a communicator for device arrays (`runtime/carriers/staging.py`)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The requests that a rank waits for, and the names of the open ops for error messages.

    Parameters
    ----------
    every : whether to wait for all requests, not for any
    idle : whether the rank waits between runs, where a late wake-up costs nothing
    carried : messages completed so far, over all ops
    """

    requests: Sequence[Request]
    ops: tuple[str, ...]
    every: bool = False
    idle: bool = False
    carried: int = 0


Result = TypeVar("Result")
RankCoroutine = Generator[Wait, None, Result]
"""The work of a rank: a coroutine that yields the requests it waits for and is resumed when they may be complete."""


class Carrier(Protocol):
    """All ranks of a run: the ranks in this process and the ranks elsewhere."""

    size: int
    ranks: tuple[int, ...]
    """The ranks in this process."""

    def communicator(self, grid: Grid, rank: int, axis: Axis, lane: int) -> Communicator:
        """The communicator of `rank` along `axis`. Every rank asks for the same communicators in the same order."""

    def run(self, coroutine: Callable[[int], RankCoroutine[Result]]) -> dict[int, Result]:
        """Run the coroutines of all ranks in this process to their ends. All ranks start together."""

    def gather(self, values: dict[int, Any]) -> dict[int, Any] | None:
        """The values of all ranks, at the process of rank 0; None elsewhere."""

    def begin_together(self) -> None:
        """Return on all ranks at nearly the same time. The ranks have passed a barrier before."""

    def now(self) -> float:
        """The time on a clock shared by all ranks, as well as the carrier can align their clocks [s]."""


class Done:
    """A completed request."""

    def done(self) -> bool:
        return True


DONE = Done()


class SingleMember:
    """The communicator of a group of one: it never sends."""

    member, size, chunk_bytes, max_outstanding = 0, 1, 0, (0, 0)
    begins_in_order, lane = False, None

    def barrier(self, *, blocking: bool) -> Request:
        return DONE

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} in a group of one")
