"""The MPI carrier: a message transport with one process per rank.

It creates one MPI communicator for each group of ranks and each lane. A lane is a queue of communication ops, like a
CUDA stream.
"""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.runtime.carriers.communicators import RankCoroutine, Result, SingleMember, Staging, Wait
from quadrille.runtime.carriers.message_options import (
    MAX_POLL_SLEEP_SECONDS,
    WHOLE_MESSAGES,
    MessageOptions,
    PollingBackoff,
)
from quadrille.runtime.carriers.mpi_communicator import MAX_MESSAGE_BYTES, MpiCommunicator, MpiRequests
from quadrille.runtime.carriers.pipelined_steps import PipelinedTransfer
from quadrille.runtime.host.clocks import clock_offset
from quadrille.runtime.host.core_affinity import pinned_to_core

START_MARGIN_SECONDS = 10e-3
"""The time from the last rank's arrival to the common start: enough for every rank to learn it and to sleep [s]."""


class MpiCarrier:
    """The MPI carrier: a message transport between the ranks of an MPI communicator, one rank in this process.

    Parameters
    ----------
    communicator : communicator of all ranks; `MPI.COMM_WORLD` by default
    staging : wraps each communicator for device arrays; host arrays need none
    max_message_bytes : most bytes of one MPI message; longer messages are sent in parts [B]
    message_options : chunk size and polling of messages of host arrays
    """

    def __init__(
        self,
        communicator: MPI.Intracomm | None = None,
        *,
        staging: Staging | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        message_options: MessageOptions = WHOLE_MESSAGES,
    ) -> None:
        self._world = communicator or MPI.COMM_WORLD
        self._staging = staging
        self._max_message_bytes = max_message_bytes
        self._message_options = message_options
        self._groups: dict[tuple[Grid, Axis, int], Any] = {}
        self._group_communicators: list[MPI.Intracomm] = []
        self.size: int = self._world.Get_size()
        self.rank: int = self._world.Get_rank()
        self.ranks: tuple[int, ...] = (self.rank,)
        self._offset = clock_offset(self._world)
        self._ranks_share_cores = any(self._world.allgather(message_options.poll_sleep_seconds > 0))

    def communicator(self, grid: Grid, rank: int, axis: Axis, lane: int) -> Any:
        key = (grid, axis, lane)
        if key not in self._groups:
            self._groups[key] = self._new_communicator(grid, rank, axis)
        return self._groups[key]

    def _new_communicator(self, grid: Grid, rank: int, axis: Axis) -> Any:
        if grid.length(axis) == 1:
            return SingleMember()
        members = grid.group(rank, axis)
        group = cast(MPI.Intracomm, self._world.Split(color=members[0], key=members.index(rank)))
        self._group_communicators.append(group)
        communicator = MpiCommunicator(group, self._max_message_bytes, self._message_options.chunk_bytes)
        return communicator if self._staging is None else self._staging(communicator)

    def run(self, coroutine: Callable[[int], RankCoroutine[Result]]) -> dict[int, Result]:
        with pinned_to_core(self.rank, self.size) if self._ranks_share_cores else nullcontext():
            return {self.rank: self._run_to_end(coroutine(self.rank))}

    def _run_to_end(self, coroutine: RankCoroutine[Result]) -> Result:
        """Resume the coroutine until it ends, and wait for the requests that it yields; returns its result."""
        backoff = PollingBackoff(self._message_options.poll_sleep_seconds)
        while True:
            try:
                wait = next(coroutine)
            except StopIteration as end:
                return cast(Result, end.value)
            if self._message_options.poll_sleep_seconds:
                backoff.sleep(wait.ops, wait.completed, idle=wait.idle)
            else:
                _await(wait)

    def gather(self, values: dict[int, Any]) -> dict[int, Any] | None:
        gathered = self._world.gather(values, root=0)
        if gathered is None:
            return None
        return {rank: value for part in gathered for rank, value in part.items()}

    def begin_together(self) -> None:
        """Sleep until a common start time, if ranks share cores, so that all ranks wake at that time.

        Otherwise ranks would leave the barrier milliseconds apart, each when it gets a core.
        """
        if self._ranks_share_cores:
            begin = self._latest_arrival() + START_MARGIN_SECONDS
            time.sleep(max(0.0, begin - self.now()))

    def _latest_arrival(self) -> float:
        """The time at which the last rank called this method [s]. Ranks sleep between polls, as late ranks need the
        cores.
        """
        latest = np.array([self.now()])
        request = self._world.Iallreduce(MPI.IN_PLACE, latest, MPI.MAX)
        backoff = PollingBackoff(MAX_POLL_SLEEP_SECONDS)
        while not request.Test():
            backoff.sleep()
        return float(latest[0])

    def now(self) -> float:
        return time.perf_counter() + self._offset

    def close(self) -> None:
        """Free the communicators of all groups."""
        for group in self._group_communicators:
            group.Free()
        self._group_communicators.clear()
        self._groups.clear()


def _await(wait: Wait) -> None:
    """Block until a request of the wait, or every request, may have completed."""
    transfers = [request for request in wait.requests if isinstance(request, PipelinedTransfer)]
    next_requests = [next_request for transfer in transfers for next_request in transfer.next_requests]
    others = [request for request in wait.requests if not isinstance(request, PipelinedTransfer)]
    mpi_requests = [request for request in (*next_requests, *others) if isinstance(request, MpiRequests)]
    pending = [part for request in mpi_requests for part in request.requests]
    if len(mpi_requests) < len(next_requests) + len(others) or not pending:
        os.sched_yield()  # a request without MPI calls never yields the core by itself
        return
    if wait.every and not transfers:
        MPI.Request.Waitall(pending)
    else:
        MPI.Request.Waitany(pending)
