"""Clock synchronization: the offset of each rank's clock from that of rank 0, by Cristian's algorithm.

Ranks of one host read the same monotonic clock (CLOCK_MONOTONIC, by `time.perf_counter`), so their offset is zero. The
first rank of every other host exchanges short messages with rank 0. The shortest of many round trips is used, and rank
0 is assumed to have read its clock in the middle of the round trip:

    offset = t0 - (t1 + t2) / 2,   uncertain by half the round trip (t2 - t1)

Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.
"""

import time
from typing import TYPE_CHECKING

from quadrille.runtime.host.world import in_laboratory

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

ROUND_TRIPS = 50
TAG = 77


def clock_offset(communicator: "Intracomm") -> float:
    """The seconds to add to this rank's monotonic clock to get the clock of rank 0; a collective call.

    In an emulated network all hosts are this machine, so the offset is 0.
    """
    rank = communicator.Get_rank()
    names = communicator.allgather(host_name())
    if len(set(names)) == 1 or in_laboratory():
        return 0.0
    leaders = {name: names.index(name) for name in names}
    offsets: dict[str, float] = {names[0]: 0.0}
    for name, leader in leaders.items():
        if leader == 0:
            continue
        offset = None
        if rank == 0:
            _serve_clock(communicator, leader)
        elif rank == leader:
            offset = _measure_offset(communicator)
        offsets[name] = communicator.bcast(offset, root=leader)
    own_offset: float = offsets[names[rank]]
    return own_offset


def host_name() -> str:
    """The host name that MPI reports."""
    from mpi4py import MPI

    return MPI.Get_processor_name()


def _serve_clock(communicator: "Intracomm", leader: int) -> None:
    for _ in range(ROUND_TRIPS):
        communicator.recv(source=leader, tag=TAG)
        communicator.send(time.perf_counter(), dest=leader, tag=TAG)


def _measure_offset(communicator: "Intracomm") -> float:
    round_trips: list[tuple[float, float]] = []
    for _ in range(ROUND_TRIPS):
        send_time = time.perf_counter()
        communicator.send(None, dest=0, tag=TAG)
        remote_time = communicator.recv(source=0, tag=TAG)
        receive_time = time.perf_counter()
        round_trips.append((receive_time - send_time, remote_time - (send_time + receive_time) / 2))
    return min(round_trips)[1]
