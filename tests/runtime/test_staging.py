"""Device arrays through an MPI that knows only the host, and the executor on them."""

import numpy as np
import pytest
from mpi4py import MPI

from algorithms.collectives.choices import parse_choices
from algorithms.errors import InputError
from algorithms.grid import Grid
from algorithms.matmuls.catalogue import matmul_schedule
from algorithms.matmuls.matmul import Matmul
from algorithms.reordering.overlap import overlap, parse_overlap
from runtime.cupy_library import CupyLibrary
from runtime.execute import execute
from runtime.gpu_awareness import Awareness
from runtime.in_process import InProcess
from runtime.mpi_communicator import MpiCommunicator
from runtime.operands import round_to
from runtime.pinned import PinnedPool
from runtime.rectangles import split_block
from runtime.staging import DeviceStaging, DirectStaging, check_sums, find_staging
from studies.launching.launch import launch
from tests import fake_device
from tests.fake_device import FAKE


@pytest.fixture
def cupy(monkeypatch):
    return fake_device.install(monkeypatch)


@pytest.fixture
def library(cupy):
    return CupyLibrary(FAKE)


def on_device(library, values):
    array = library.empty(len(values), "float32")
    library.put(array, np.asarray(values, np.float32))
    return array


class Landing:
    """A request on host buffers and what is to be done when it has ended."""

    def __init__(self, request, *finishes):
        self._request, self._finishes = request, list(finishes)

    def done(self):
        if not self._request.done():
            return False
        while self._finishes:
            self._finishes.pop()()
        return True


class StagedCommunicator:
    """A group whose members may lend host buffers only, like MPI's."""

    chunk_bytes = 0

    def __init__(self, inner, staging):
        self._inner, self._staging, self.member, self.size = inner, staging, inner.member, inner.size

    def _carry(self, verb, way, buffer, *arguments, **options):
        host, finish = getattr(self._staging, way)(buffer)
        assert isinstance(host, np.ndarray)
        return Landing(getattr(self._inner, verb)(host, *arguments, **options), finish)

    def send(self, buffer, to):
        return self._carry("send", "outgoing", buffer, to)

    def receive(self, buffer, sender):
        return self._carry("receive", "incoming", buffer, sender)

    def all_gather(self, whole, edges, *, blocking):
        return self._carry("all_gather", "both_ways", whole, edges, blocking=blocking)

    def all_reduce(self, buffer, combination="sum", *, blocking):
        return self._carry("all_reduce", "both_ways", buffer, combination, blocking=blocking)

    def broadcast(self, buffer, root, *, blocking):
        return self._carry("broadcast", "both_ways", buffer, root, blocking=blocking)

    def reduce(self, buffer, root, *, blocking):
        return self._carry("reduce", "both_ways", buffer, root, blocking=blocking)

    def reduce_scatter(self, whole, edges, piece, *, blocking):
        source, sent = self._staging.outgoing(whole)
        into, received = self._staging.incoming(piece)
        return Landing(self._inner.reduce_scatter(source, edges, into, blocking=blocking), sent, received)

    def all_to_all(self, sent, sent_edges, received, received_edges, *, blocking):
        source, left = self._staging.outgoing(sent)
        into, came = self._staging.incoming(received)
        request = self._inner.all_to_all(source, sent_edges, into, received_edges, blocking=blocking)
        return Landing(request, left, came)

    def barrier(self, *, blocking):
        return self._inner.barrier(blocking=blocking)


class StagedInProcess(InProcess):
    """All ranks here, each message through pinned buffers."""

    def __init__(self, size, staging):
        super().__init__(size)
        self._staging = staging

    def communicator(self, grid, rank, axis, lane):
        return StagedCommunicator(super().communicator(grid, rank, axis, lane), self._staging)


def test_the_copy_to_the_host_has_ended_before_mpi_gets_the_buffer(cupy, library):
    array = on_device(library, [1, 2, 3])
    beside = library.beside()
    cupy.history.clear()
    beside.add(array, array, array)
    host, finish = DeviceStaging(library).outgoing(array)
    assert type(host) is np.ndarray and host.tolist() == [2, 4, 6]
    assert cupy.history == ["add", "to host", "synchronise"]
    finish()
    assert cupy.history == ["add", "to host", "synchronise"], "nothing is copied back"


def test_what_mpi_received_is_on_the_device_when_the_flight_has_landed(cupy, library):
    array = on_device(library, [0, 0, 0])
    cupy.history.clear()
    host, finish = DeviceStaging(library).incoming(array)
    assert cupy.history == [], "what is written over is not copied"
    host[...] = [5, 6, 7]
    finish()
    assert cupy.history == ["to device", "synchronise"]
    assert library.fetch(array).tolist() == [5, 6, 7]


def test_both_ways_copies_there_and_back(library):
    array = on_device(library, [1, 2])
    host, finish = DeviceStaging(library).both_ways(array)
    host += 1
    finish()
    assert library.fetch(array).tolist() == [2, 3]


def test_a_buffer_is_reused_after_its_flight_has_landed_and_not_before(library):
    pool = PinnedPool(bytearray)
    staging, array = DeviceStaging(library, pool), on_device(library, range(2000))
    one, landed = staging.outgoing(array)
    other, _ = staging.incoming(array)
    assert not np.shares_memory(one, other)
    landed()
    for way in ("outgoing", "incoming", "both_ways"):
        again, finish = getattr(staging, way)(array[:1800])
        assert np.shares_memory(again, one)
        finish()
    assert pool.allocated_bytes == 2 * 8192


def test_empty_messages_and_bfloat16_pass(library):
    staging = DeviceStaging(library)
    assert staging.outgoing(library.empty(0, "float64"))[0].shape == (0,)
    array = library.empty(3, "bfloat16")
    library.put(array, np.array([1, -2, 0.5], np.float32))
    host, _ = staging.outgoing(array)
    assert host.dtype == np.uint16 and host[0] == 0x3F80


def test_the_device_array_itself_is_no_buffer_for_mpi(library):
    with pytest.raises((TypeError, BufferError, ValueError)):
        MPI.COMM_SELF.Isend([on_device(library, [1]), MPI.BYTE], 0)


def test_mpi_carries_device_arrays_through_staging(library):
    group = MpiCommunicator(MPI.COMM_SELF, DeviceStaging(library), most_bytes=1024)
    sent, received = on_device(library, range(1000)), on_device(library, np.zeros(1000))
    requests = [group.receive(received, 0), group.send(sent, 0)]
    while not all(request.done() for request in requests):
        pass
    assert library.fetch(received).tolist() == list(range(1000))
    for verb, arguments in {"all_reduce": (), "broadcast": (0,), "reduce": (0,), "all_gather": ((0, 1000),)}.items():
        for blocking in (True, False):
            request = getattr(group, verb)(received, *arguments, blocking=blocking)
            while not request.done():
                pass
            assert library.fetch(received).tolist() == list(range(1000))


def test_a_cuda_aware_mpi_gets_the_array_itself_when_the_device_has_written_it(cupy, library):
    array = on_device(library, [1, 2])
    for way in ("outgoing", "incoming", "both_ways"):
        library.beside().zero(array)
        cupy.history.clear()
        buffer, finish = getattr(DirectStaging(library), way)(array)
        assert buffer is array and finish is None and cupy.history == ["fill", "synchronise"]


def test_only_messages_of_our_own_go_directly_and_only_on_evidence(library):
    yes, no = Awareness(True, "it does"), Awareness(False, "it does not")
    assert type(find_staging(library, yes, "own")) is DirectStaging
    assert type(find_staging(library, yes, "library")) is DeviceStaging
    assert type(find_staging(library, no, "own")) is DeviceStaging


def test_mpi_is_not_asked_for_sums_that_it_does_not_have():
    for dtype in ("float16", "bfloat16"):
        check_sums(dtype, "own")
        with pytest.raises(InputError, match=dtype):
            check_sums(dtype, "library")
    check_sums("float32", "library")


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
    """Execute on fake device arrays and compare the blocks of the ranks that live here with NumPy's products."""
    problem = Matmul(7, 11, 5, dtype, "training", panel=3)
    schedule = overlap(matmul_schedule(problem, algorithm, grid), parse_overlap(overlaps))
    matrices = matrices_of(problem)
    execution = execute(schedule, matrices, carrier, choices=parse_choices(collectives), library=library)
    compared = 0
    for name, product in products(problem, matrices).items():
        round_to(dtype, product)
        for rank, outputs in execution.outputs.items():
            block = schedule.tensors[name].block(schedule.place(rank))
            for part, values in split_block(block, library.fetch(outputs[name])):
                window = product[part.row_start : part.row_stop, part.column_start : part.column_stop]
                np.testing.assert_array_equal(values, window)
                compared += window.size
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


@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "own:halving_doubling", "library"])
@pytest.mark.parametrize(("algorithm", "grid"), CASES)
def test_the_executor_on_staged_device_arrays_gives_numpy_s_products(cupy, library, algorithm, grid, collectives):
    staging = DeviceStaging(library)
    run(library, StagedInProcess(grid.size, staging), "float32", algorithm, grid, collectives)
    pinned = library.pinned.allocated_bytes
    run(library, StagedInProcess(grid.size, staging), "float32", algorithm, grid, collectives)
    assert library.pinned.allocated_bytes == pinned, "a second run allocates no pinned memory"


@pytest.mark.parametrize("overlaps", ["oar", "oar,ors,oag"])
def test_overlap_on_device_arrays_changes_no_number(library, overlaps):
    grid = Grid(z=2, y=2, x=2)
    run(library, StagedInProcess(8, DeviceStaging(library)), "float64", "4d", grid, overlaps=overlaps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_products_of_small_integers_are_right(library, dtype):
    grid = Grid(z=2, y=1, x=2)
    run(library, StagedInProcess(4, DeviceStaging(library)), dtype, "4d", grid)


RANKS = """
import sys
from tests import fake_device
cupy = fake_device.Cupy()
sys.modules |= {"cupy": cupy, "cupy.cuda": cupy.cuda}
import numpy as np
from algorithms.grid import Grid
from runtime.arrays import find_library
from runtime.mpi import MpiCarrier
from runtime.staging import DeviceStaging
from tests.runtime.test_staging import run

library = find_library("cupy", "float32")
carrier = MpiCarrier(staging=DeviceStaging(library))
for algorithm, grid in (("4d", Grid(z=3)), ("3d", Grid(y=3)), ("summa", Grid(x=3)), ("4d", Grid(x=3))):
    for collectives in ("own:ring", "library"):
        run(library, carrier, "float32", algorithm, grid, collectives, whole=False)
run(library, carrier, "bfloat16", "4d", Grid(z=3), whole=False)
"""


@pytest.mark.mpi
def test_real_ranks_exchange_device_arrays_through_staging():
    assert launch(3, [], program=("-c", RANKS)) == 0
