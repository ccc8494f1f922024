"""Messages of more than 2^31 elements between two real ranks; started by test_large_messages.py.

One byte an element, so that two ranks need 2 GiB each.
"""

import numpy as np
from mpi4py import MPI

from runtime.mpi import MpiCommunicator, Staging

ELEMENTS = 2**31 + 11


def wait(*requests):
    for request in requests:
        while not request.done():
            pass


def main():
    world = MPI.COMM_WORLD
    group, rank = MpiCommunicator(world, Staging()), world.Get_rank()
    buffer = np.zeros(ELEMENTS, np.uint8)
    marks = {-1: 7, 2**31 - 1: 5, 2**31: 2, 2**30: 3}
    if rank == 0:
        for position, value in marks.items():
            buffer[position] = value
        wait(group.send(buffer, 1))
    else:
        wait(group.receive(buffer, 0))
        assert all(buffer[position] == value for position, value in marks.items())

    buffer[:] = rank + 1
    wait(group.all_reduce(buffer, blocking=True))
    assert buffer.min() == buffer.max() == 3

    half = ELEMENTS // 2 + 1
    edges = (0, half, ELEMENTS)
    buffer[:] = 0
    buffer[edges[rank] : edges[rank + 1]] = rank + 1
    wait(group.all_gather(buffer, edges, blocking=True))
    assert (buffer[0], buffer[half - 1], buffer[half], buffer[-1]) == (1, 1, 2, 2)

    buffer[:] = rank + 1
    piece = np.zeros(edges[rank + 1] - edges[rank], np.uint8)
    wait(group.reduce_scatter(buffer, edges, piece, blocking=True))
    assert piece.min() == piece.max() == 3


if __name__ == "__main__":
    main()
