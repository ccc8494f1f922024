"""The carrier over MPI: one process per rank, and one MPI communicator for every group on every lane."""

import os
import time
from collections.abc import Callable, Sequence
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
    """The ranks of an MPI communicator, one of them in this process.

    Parameters
    ----------
    staging : wraps each communicator for device arrays; host arrays need none
    message_options : how messages of host arrays are sent
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
        self._most_bytes = max_message_bytes
        self._delivery = message_options
        self._groups: dict[tuple[Grid, Axis, int], Any] = {}
        self._split: list[MPI.Intracomm] = []
        self.size: int = self._world.Get_size()
        self.rank: int = self._world.Get_rank()
        self.ranks: tuple[int, ...] = (self.rank,)
        self._offset = clock_offset(self._world)
        self._take_turns = any(self._world.allgather(message_options.poll_sleep_seconds > 0))

    def communicator(self, grid: Grid, rank: int, axis: Axis, lane: int) -> Any:
        key = (grid, axis, lane)
        if key not in self._groups:
            self._groups[key] = self._make(grid, rank, axis)
        return self._groups[key]

    def _make(self, grid: Grid, rank: int, axis: Axis) -> Any:
        if grid.length(axis) == 1:
            return SingleMember()
        members = grid.group(rank, axis)
        group = cast(MPI.Intracomm, self._world.Split(color=members[0], key=members.index(rank)))
        self._split.append(group)
        communicator = MpiCommunicator(group, self._most_bytes, self._delivery.chunk_bytes)
        return communicator if self._staging is None else self._staging(communicator)

    def run(self, coroutine: Callable[[int], RankCoroutine[Result]]) -> dict[int, Result]:
        with pinned_to_core(self.rank, self.size) if self._take_turns else nullcontext():
            return {self.rank: self._followed(coroutine(self.rank))}

    def _followed(self, coroutine: RankCoroutine[Result]) -> Result:
        backoff = PollingBackoff(self._delivery.poll_sleep_seconds)
        while True:
            try:
                wait = next(coroutine)
            except StopIteration as end:
                return cast(Result, end.value)
            if self._delivery.poll_sleep_seconds:
                backoff.take(wait.ops, wait.carried, idle=wait.idle)
            else:
                _await(wait)

    def gather(self, values: dict[int, Any]) -> dict[int, Any] | None:
        gathered = self._world.gather(values, root=0)
        if gathered is None:
            return None
        return {rank: value for part in gathered for rank, value in part.items()}

    def begin_together(self) -> None:
        """Where ranks share cores, sleep until a common start time, so that all ranks wake at that time.

        Otherwise ranks would leave the barrier milliseconds apart, each when it gets a core.
        """
        if self._take_turns:
            begin = self._latest_arrival() + START_MARGIN_SECONDS
            time.sleep(max(0.0, begin - self.now()))

    def _latest_arrival(self) -> float:
        """The time at which the last rank arrived here; the wait sleeps between polls, as late ranks need the core."""
        latest = np.array([self.now()])
        request = self._world.Iallreduce(MPI.IN_PLACE, latest, MPI.MAX)
        backoff = PollingBackoff(MAX_POLL_SLEEP_SECONDS)
        while not request.Test():
            backoff.take()
        return float(latest[0])

    def now(self) -> float:
        return time.perf_counter() + self._offset

    def close(self) -> None:
        """Free the communicators of all groups."""
        for group in self._split:
            group.Free()
        self._split.clear()
        self._groups.clear()


def _await(wait: Wait) -> None:
    streams = [request for request in wait.requests if isinstance(request, PipelinedTransfer)]
    heads = [head for stream in streams for head in stream.heads]
    others = [request for request in wait.requests if not isinstance(request, PipelinedTransfer)]
    flights: Sequence[MpiRequests] = [request for request in (*heads, *others) if isinstance(request, MpiRequests)]
    pending = [request for flight in flights for request in flight.requests]
    if len(flights) < len(heads) + len(others) or not pending:
        os.sched_yield()  # a request without MPI calls never yields the core by itself
        return
    if wait.every and not streams:
        MPI.Request.Waitall(pending)
    else:
        MPI.Request.Waitany(pending)
