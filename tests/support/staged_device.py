"""Messages from fake device arrays through pinned buffers, with all ranks in this process, and a matmul with them."""

import numpy as np

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap, parse_overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.runtime.arrays.pinned_memory import PINNED_CHUNK_BYTES
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.carriers.staging import StagedCommunicator
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.operands.operands import round_to
from quadrille.runtime.operands.rectangles import split_block
from tests.support.fake_arrays import Array


class Patient:
    """A request that lets the lane's stream go as far as it can: who then is not done waits for a rank."""

    def __init__(self, request, lane):
        self._request, self._lane = request, lane

    def done(self):
        for _ in range(3):
            if self._request.done():
                return True
            self._lane.synchronise()
        return self._request.done()


class PatientCommunicator(StagedCommunicator):
    def _stage(self, *arguments, **options):
        return Patient(super()._stage(*arguments, **options), self.lane)


class HostOnly:
    """A group that takes only host buffers, like MPI's."""

    def __init__(self, inner):
        self._inner, self.member, self.size = inner, inner.member, inner.size
        self.begins_in_order = False

    def __getattr__(self, verb):
        def lent(*arguments, **options):
            assert not any(isinstance(argument, Array) for argument in arguments), verb
            return getattr(self._inner, verb)(*arguments, **options)

        return lent


class StagedInProcess(InProcess):
    """A carrier of ranks in this process, with every message through pinned buffers."""

    def __init__(self, size, library, chunk_bytes=PINNED_CHUNK_BYTES):
        super().__init__(size)
        self._library, self._chunk = library, chunk_bytes

    def communicator(self, grid, rank, axis, lane):
        inner = super().communicator(grid, rank, axis, lane)
        return PatientCommunicator(HostOnly(inner), self._library, self._chunk)


def matrices_of(problem):
    random = np.random.default_rng(0)
    shapes = {"A": (problem.m, problem.k), "B": (problem.k, problem.n), "dC": (problem.m, problem.n)}
    return {name: random.integers(-4, 5, shapes[name]).astype(np.float32) for name in problem.inputs}


def products(problem, matrices):
    found = {"C": matrices["A"] @ matrices["B"]}
    if problem.training:
        found |= {"dA": matrices["dC"] @ matrices["B"].T, "dB": matrices["A"].T @ matrices["dC"]}
    return found


def run(library, carrier, dtype, algorithm, grid, collectives="own:ring", overlaps="none", whole=True):
    """Executes on fake device arrays, and compares the blocks of the ranks of this process with NumPy's products."""
    problem = Matmul(7, 11, 5, dtype, "training", panel=3)
    schedule = overlap(matmul_schedule(problem, algorithm, grid), parse_overlap(overlaps))
    matrices = matrices_of(problem)
    execution = execute(schedule, matrices, carrier, choices=parse_choices(collectives), library=library)
    compared = 0
    for name, product in products(problem, matrices).items():
        round_to(dtype, product)
        for rank, outputs in execution.outputs.items():
            block = schedule.tensors[name].block(schedule.coordinates(rank))
            for part, values in split_block(block, library.fetch(outputs[name])):
                window = product[part.row_start : part.row_stop, part.column_start : part.column_stop]
                np.testing.assert_array_equal(values, window)
                compared += window.size
    assert compared > 0 or not any(block for blocks in execution.outputs.values() for block in blocks)
    assert not whole or compared >= sum(product.size for product in products(problem, matrices).values())


CASES = [
    ("4d", Grid(data=2, z=2, y=2, x=2)),
    ("4d", Grid(z=3, x=2)),
    ("3d", Grid(z=2, y=3, x=2)),
    ("summa", Grid(z=2, x=3)),
    ("cannon", Grid(z=2, x=2)),
    ("2.5d", Grid(z=2, y=2, x=2)),
    ("1d-row", Grid(y=3)),
]
