"""Messages of more than 2^31 elements between two real ranks; started by runtime/test_large_messages.py.

An element has one byte, so two ranks need 2 GiB each.
"""

import time

import numpy as np
from mpi4py import MPI

from quadrille.runtime.carriers.mpi_communicator import MpiCommunicator

ELEMENTS = 2**31 + 11
EDGES = (0, 2**30, 2**31, ELEMENTS)
"""Where a count of 31 or 32 bits would wrap, and messages are cut."""


def wait(request, *, asleep=False):
    """Poll until the request has completed; asleep between polls where the other rank alone copies the message."""
    while not request.done():
        time.sleep(1e-3 if asleep else 0)


def elements_at_edges(array):
    """Every 1021st element, and those about the edges: what does not come is a piece, which begins or ends there."""
    about = [array[max(0, edge - 16) : edge + 16] for edge in EDGES]
    return np.concatenate([array[::1021], *about])


def main():
    world = MPI.COMM_WORLD
    group, rank = MpiCommunicator(world), world.Get_rank()
    buffer = np.zeros(ELEMENTS, np.uint8)
    marks = {-1: 7, 2**31 - 1: 5, 2**31: 2, 2**30: 3}
    if rank == 0:
        for position, value in marks.items():
            buffer[position] = value
        wait(group.send(buffer, 1), asleep=True)
    else:
        wait(group.receive(buffer, 0), asleep=True)
        assert all(buffer[position] == value for position, value in marks.items())

    buffer[:] = rank + 1
    wait(group.all_reduce(buffer, blocking=True))
    assert (elements_at_edges(buffer) == 3).all()

    half = ELEMENTS // 2 + 1
    edges = (0, half, ELEMENTS)
    buffer[:half], buffer[half:] = (1, 0) if rank == 0 else (0, 2)
    wait(group.all_gather(buffer, edges, blocking=True))
    assert (elements_at_edges(buffer[:half]) == 1).all() and (elements_at_edges(buffer[half:]) == 2).all()

    piece = np.zeros(edges[rank + 1] - edges[rank], np.uint8)
    wait(group.reduce_scatter(buffer, edges, piece, blocking=True))
    assert (elements_at_edges(piece) == 2 * (rank + 1)).all()


if __name__ == "__main__":
    main()
