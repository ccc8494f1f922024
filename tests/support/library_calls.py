"""MPI's regular and vector calls of a group of ranks: both give what they should; see runtime/test_library_calls.py.

A reduce-scatter is executed into an array of its own and in place, where the sum is a part of the summed array.

Every rank writes down which functions of MPI it called, so that the calls are known to be the ones that were chosen.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.carriers.mpi_communicator import MAX_MESSAGE_BYTES, MpiCommunicator
from quadrille.runtime.execution.execute import execute

FEW_BYTES = 64
"""A limit of a message below the size of every matrix here, so that collectives are cut into slices."""
FUNCTIONS = ("Allgather", "Allgatherv", "Reduce_scatter_block", "Reduce_scatter")
PIECE = 5
"""Rows of a rank, where all have as many."""
EXPECTED = {
    ("library", True): {"Allgather", "Reduce_scatter_block"},
    ("library", False): {"Allgatherv", "Reduce_scatter"},
    ("library:vector", True): {"Allgatherv", "Reduce_scatter"},
    ("library:vector", False): {"Allgatherv", "Reduce_scatter"},
}
"""By the word and whether all pieces are equal."""


class Counting:
    """An MPI communicator that counts its library collectives by name."""

    def __init__(self, communicator, called):
        self._communicator, self._called = communicator, called

    def __getattr__(self, name):
        function = getattr(self._communicator, name)
        if name.removeprefix("I").capitalize() not in FUNCTIONS:
            return function

        def counted(*given):
            self._called[name] += 1
            return function(*given)

        return counted


class CountingCarrier(MpiCarrier):
    """A carrier whose groups count the MPI functions that they call."""

    def __init__(self, *given):
        super().__init__(*given)
        self.called = Counter()

    def communicator(self, grid, rank, axis, lane):
        group = super().communicator(grid, rank, axis, lane)
        if isinstance(group, MpiCommunicator):
            group._communicator = Counting(group._communicator, self.called)
        return group


def schedule(ranks, rows, *, beside):
    """A schedule that gathers A, and scatters the sum of all gathered matrices."""
    tensors = declare(
        Tensor("A", Part("m", ("z",)), Part("n")),
        Tensor("whole", Part("m"), Part("n")),
        Tensor("sum", Part("m", ("z",)), Part("n")),
    )
    program = (
        AllGather(name="gather", axis="z", source="A", into="whole", concurrent=beside),
        ReduceScatter(name="scatter", axis="z", source="whole", into="sum", after=("gather",), concurrent=beside),
    )
    sizes, roles = {"m": rows, "n": 3}, (Role(program),)
    return Schedule("both", sizes, Grid(z=ranks), "float64", tensors, ("A",), ("sum",), roles)


def in_place(one):
    """The schedule with flat shards, whose scatter leaves its shard in the whole matrix."""
    tensors = dict(one.tensors)
    for name, owner in (("A", None), ("sum", "whole")):
        tensors[name] = Tensor(name, Part("m"), Part("n"), sharded_over="z", shard_of=owner)
    return replace(one, tensors=tensors)


def check_in_place(group, word, *, rows, beside, limit=MAX_MESSAGE_BYTES):
    """Checks the sum that a reduce-scatter leaves in its source."""
    whole = np.arange(rows * 3.0).reshape(rows, 3)
    one = in_place(schedule(group.size, rows, beside=beside))
    carrier = MpiCarrier(group, max_message_bytes=limit)
    execution = execute(one, {"A": whole}, carrier, choices=parse_choices(word))
    carrier.close()
    start, stop = one.tensors["sum"].block(one.coordinates(group.rank)).flat_range
    expected = group.size * whole.reshape(-1)[start:stop]
    assert np.array_equal(execution.outputs[group.rank]["sum"], expected), (word, rows, beside, limit)


def check(group, word, *, equal, beside):
    """Checks both collectives by one choice on one group, blocking or not."""
    rows = PIECE * group.size + (0 if equal else 1)
    whole, carrier = np.arange(rows * 3.0).reshape(rows, 3), CountingCarrier(group)
    one = schedule(group.size, rows, beside=beside)
    found = execute(one, {"A": whole}, carrier, choices=parse_choices(word)).outputs[group.rank]["sum"]
    block = one.tensors["sum"].block(one.coordinates(group.rank))
    expected = group.size * whole[slice(*block.rows)]
    carrier.close()
    assert np.array_equal(found, expected), (word, equal, beside)
    names = {f"I{name.lower()}" if beside else name for name in EXPECTED[word, equal]}
    assert set(carrier.called) == names, (word, equal, beside, carrier.called)


def main():
    world = MPI.COMM_WORLD
    for size in (2, 4):
        group = world.Split(world.rank // size, world.rank)
        for word, equal in EXPECTED:
            for beside in (False, True):
                check(group, word, equal=equal, beside=beside)
        for word in ("library", "library:vector", "own"):
            for rows in (PIECE * group.size, PIECE * group.size + 1, 1):
                for beside in (False, True):
                    check_in_place(group, word, rows=rows, beside=beside)
                    check_in_place(group, word, rows=rows, beside=beside, limit=FEW_BYTES)
        group.Free()


if __name__ == "__main__":
    main()
