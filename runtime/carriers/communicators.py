"""The protocol that every carrier of messages follows.

    carrier                 who its ranks are                       module
    in-process              all ranks in one Python process         in_process
    MPI                     one process each, NumPy or staged       mpi
    NCCL                    one GPU each                            nccl

The executor starts sends, receives and library collectives and yields the
requests it waits for; the carrier decides how to wait.  Buffers are flat,
contiguous arrays, lent to the carrier until the request is done.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Calls, Combination
from quadrille.runtime.arrays.array_library import Array, Lane

Edges = tuple[int, ...]
"""Where the pieces of a buffer begin, and where the last one ends [elements]."""


class Request(Protocol):
    """A communication under way."""

    def done(self) -> bool:
        """Whether it has ended; asking also makes it advance."""


class Communicator(Protocol):
    """One group of ranks on one lane; members are numbered by their coordinate."""

    member: int
    size: int
    chunk_bytes: int
    """Of the messages into which our own steps are cut; 0 for whole steps."""
    max_outstanding: tuple[int, int]
    """How many receives and sends of an op are under way at once, where they are cut."""
    begins_in_order: bool
    """Whether every rank must begin the ops of all such groups in the order of its program."""

    @property
    def lane(self) -> Lane | None:
        """With whose work messages of device arrays are in order: local copies and sums go there; None on the host."""

    def send(self, buffer: Array, to: int, *, taken: bool = False) -> Request:
        """It has ended when the buffer may be used again, or when the message has been taken, if that is asked for."""

    def receive(self, buffer: Array, sender: int) -> Request: ...

    def signal_ready(self, peer: int) -> Request:
        """Tells a member that this one is there: no bytes, and apart from all that is sent."""

    def await_ready(self, peer: int) -> Request:
        """Ends when the member's next greeting has come."""

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        """In place: member i's piece is in the whole at the start; MPI's regular calls are for equal pieces alone."""

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        """The member's piece of the sum goes into `piece`; the whole is used up."""

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request: ...

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request: ...

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        """In place at the root; the others' buffers are used up."""

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request: ...

    def barrier(self, *, blocking: bool) -> Request: ...


Staging = Callable[[Communicator], Communicator]
"""Makes, of a group for buffers of the host, one for arrays of a device (`runtime/carriers/staging.py`)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rank waits for: one of the requests, or every one; and the ops under way, to name them.

    Parameters
    ----------
    idle : between runs, where nothing is lost by seeing late that it has come
    carried : messages that have come or gone so far, of all ops
    """

    requests: Sequence[Request]
    ops: tuple[str, ...]
    every: bool = False
    idle: bool = False
    carried: int = 0


Result = TypeVar("Result")
RankCoroutine = Generator[Wait, None, Result]
"""A rank's work: it yields what it waits for, and is resumed when that may have come."""


class Carrier(Protocol):
    """All ranks of a run, those here and those elsewhere."""

    size: int
    ranks: tuple[int, ...]
    """The ranks that live in this process."""

    def communicator(self, grid: Grid, rank: int, axis: Axis, lane: int) -> Communicator:
        """The group of `rank` along `axis`; every rank asks for the same ones in the same order."""

    def run(self, course: Callable[[int], RankCoroutine[Result]]) -> dict[int, Result]:
        """Run the course of every rank that lives here to its end, all starting together."""

    def gather(self, values: dict[int, Any]) -> dict[int, Any] | None:
        """Every rank's value at the process of rank 0, None elsewhere."""

    def begin_together(self) -> None:
        """Go on with all ranks, which have met, as nearly at once as the carrier can have them."""

    def now(self) -> float:
        """Seconds on a clock that all ranks share as well as the carrier can align them."""


class Done:
    """A request that has ended."""

    def done(self) -> bool:
        return True


DONE = Done()


class SingleMember:
    """A group of one: nothing to say to anybody."""

    member, size, chunk_bytes, max_outstanding = 0, 1, 0, (0, 0)
    begins_in_order, lane = False, None

    def barrier(self, *, blocking: bool) -> Request:
        return DONE

    def __getattr__(self, verb: str) -> Any:
        raise AssertionError(f"{verb} in a group of one")
