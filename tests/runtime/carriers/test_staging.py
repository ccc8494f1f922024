"""Device arrays through an MPI that knows only the host, and the executor on them."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.runtime.arrays.cupy_library import CupyLibrary
from quadrille.runtime.arrays.pinned_memory import PinnedPool
from quadrille.runtime.carriers.communicators import DONE
from quadrille.runtime.carriers.gpu_awareness import GpuAwareness
from quadrille.runtime.carriers.mpi_communicator import MpiCommunicator
from quadrille.runtime.carriers.pipelined_steps import PipelinedTransfer, PipelineStep, split_into_chunks
from quadrille.runtime.carriers.staging import DirectCommunicator, StagedCommunicator, check_sums, choose_staging
from quadrille.runtime.launching.launch import launch
from tests.support import fake_device
from tests.support.fake_device import FAKE
from tests.support.staged_device import (
    CASES,
    StagedInProcess,
    run,
)


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


class Slow:
    """A group that notes what it is given; a request ends when it is told so."""

    member, size, begins_in_order = 0, 2, False

    def __init__(self):
        self.sent, self.received, self.over = [], [], set()

    def send(self, host, to, *, synchronous=False):
        self.sent.append(host.tolist())
        return self._request(("sent", len(self.sent)))

    def receive(self, host, sender):
        self.received.append(host)
        return self._request(("received", len(self.received)))

    def _request(self, key):
        return SimpleNamespace(done=lambda: key in self.over)


def look(request, often=10):
    """Ask again and again, as a rank that waits does."""
    return any(request.done() for _ in range(often))


def test_mpi_gets_a_buffer_when_the_device_has_left_it_and_nobody_waits_for_that(cupy, library):
    mpi = Slow()
    group, array = StagedCommunicator(mpi, library), on_device(library, [1, 2, 3])
    cupy.history.clear()
    group.lane.add(array, array, array)
    request = group.send(array, 1)
    assert mpi.sent == [] and "synchronise" not in cupy.history
    assert not request.done() and mpi.sent == [], "one thing of two is done"
    assert not look(request) and mpi.sent == [[2, 4, 6]]
    assert cupy.history == ["add", "to host"]
    mpi.over.add(("sent", 1))
    assert request.done() and cupy.history == ["add", "to host"], "nothing is copied back"


def test_what_mpi_received_is_on_the_device_when_the_request_is_done(cupy, library):
    mpi = Slow()
    group, array = StagedCommunicator(mpi, library), on_device(library, [0, 0, 0])
    cupy.history.clear()
    request = group.receive(array, 1)
    (host,) = mpi.received
    assert not look(request) and cupy.history == [], "what is written over is not copied"
    host[...] = [5, 6, 7]
    mpi.over.add(("received", 1))
    assert not request.done(), "the copy to the device is on its way"
    assert look(request) and cupy.history == ["to device"]
    assert library.fetch(array).tolist() == [5, 6, 7]


def test_messages_begin_in_their_order_whoever_is_asked_about(library):
    mpi = Slow()
    group = StagedCommunicator(mpi, library)
    group.send(on_device(library, [1]), 1)
    assert not look(group.send(on_device(library, [2]), 1)) and mpi.sent == [[1], [2]]


def test_the_next_chunk_is_copied_while_one_is_on_the_wire_and_sums_wait_for_what_came(cupy, library):
    mpi = Slow()
    group = StagedCommunicator(mpi, library, chunk_bytes=8)
    held, room = on_device(library, [1, 2, 3, 4]), on_device(library, [0, 0, 0, 0])
    step = PipelineStep(((room, 1),), ((held, 1),), ((held, room, held),))
    stream = PipelinedTransfer(split_into_chunks([step], group.chunk_bytes), group, group.lane.add)
    cupy.history.clear()
    assert not look(stream) and mpi.sent == [[1, 2], [3, 4]] and len(mpi.received) == 2
    assert cupy.history == ["to host", "to host"], "both are copied, though neither has gone"
    mpi.received[0][...] = [10, 20]
    mpi.over |= {("sent", 1), ("received", 1)}
    assert not look(stream)
    group.lane.synchronise()
    assert library.fetch(held).tolist() == [11, 22, 3, 4], "the first chunk is added while the second is on the wire"
    mpi.received[1][...] = [30, 40]
    mpi.over |= {("sent", 2), ("received", 2)}
    assert look(stream)
    group.lane.synchronise()
    assert library.fetch(held).tolist() == [11, 22, 33, 44]


def test_groups_do_not_wait_for_each_other_s_copies_nor_for_products(library):
    mpi, other = Slow(), Slow()
    one, two = StagedCommunicator(mpi, library), StagedCommunicator(other, library)
    array = on_device(library, [1])
    library.zero(library.empty(1, "float32"))
    one.send(array, 1)
    look(two.send(array, 1))
    assert other.sent == [[1]] and mpi.sent == [] and not library.mark().done()


def test_a_buffer_is_reused_after_its_message_has_ended_and_not_before(library):
    library.pinned = PinnedPool(bytearray)
    mpi = Slow()
    group, array = StagedCommunicator(mpi, library), on_device(library, range(2000))
    first = group.receive(array, 1)
    group.receive(array, 1)
    one, other = mpi.received
    assert not np.shares_memory(one, other)
    mpi.over.add(("received", 1))
    assert look(first)
    for number in (3, 4, 5):
        again = group.receive(array[:1800], 1)
        assert np.shares_memory(mpi.received[-1], one)
        mpi.over.add(("received", number))
        assert look(again)
    assert library.pinned.allocated_bytes == 2 * 8192


def test_empty_messages_and_bfloat16_pass(library):
    mpi = Slow()
    group = StagedCommunicator(mpi, library)
    assert not look(group.send(library.empty(0, "float64"), 1)) and mpi.sent == [[]]
    array = library.empty(3, "bfloat16")
    library.put(array, np.array([1, -2, 0.5], np.float32))
    assert not look(group.send(array, 1)) and mpi.sent[1][0] == 0x3F80


def test_the_device_array_itself_is_no_buffer_for_mpi(library):
    with pytest.raises((TypeError, BufferError, ValueError)):
        MPI.COMM_SELF.Isend([on_device(library, [1]), MPI.BYTE], 0)


def test_mpi_carries_device_arrays_through_staging(library):
    group = StagedCommunicator(MpiCommunicator(MPI.COMM_SELF, max_message_bytes=1024), library)
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


@pytest.mark.parametrize("verb", ["send", "receive"])
def test_a_cuda_aware_mpi_gets_the_array_itself_when_the_device_is_through_with_it(library, verb):
    given, array = [], on_device(library, [1, 2])
    note = SimpleNamespace(
        member=0, size=2, begins_in_order=False, **{verb: lambda buffer, _, **how: given.append(buffer) or DONE}
    )
    group = DirectCommunicator(note, library)
    group.lane.zero(array)
    request = getattr(group, verb)(array, 1)
    assert given == [], "the device still writes it"
    assert look(request) and given[0] is array
    with pytest.raises(AssertionError, match="all_reduce of device arrays goes through the host"):
        group.all_reduce(array, blocking=False)


def test_only_messages_of_our_own_go_directly_and_only_on_evidence(library):
    yes, no, group = GpuAwareness(True, "it does"), GpuAwareness(False, "it does not"), Slow()
    assert type(choose_staging(library, yes, "own")(group)) is DirectCommunicator
    assert type(choose_staging(library, yes, "library")(group)) is StagedCommunicator
    assert type(choose_staging(library, no, "own")(group)) is StagedCommunicator


def test_mpi_is_not_asked_for_sums_that_it_does_not_have():
    for dtype in ("float16", "bfloat16"):
        check_sums(dtype, "own")
        with pytest.raises(InputError, match=dtype):
            check_sums(dtype, "library")
    check_sums("float32", "library")


@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "own:halving_doubling", "library"])
@pytest.mark.parametrize(("algorithm", "grid"), CASES)
def test_the_executor_on_staged_device_arrays_gives_numpy_s_products(cupy, library, algorithm, grid, collectives):
    run(library, StagedInProcess(grid.size, library), "float32", algorithm, grid, collectives)
    pinned = library.pinned.allocated_bytes
    run(library, StagedInProcess(grid.size, library), "float32", algorithm, grid, collectives)
    assert library.pinned.allocated_bytes == pinned, "a second run allocates no pinned memory"


@pytest.mark.parametrize("chunk_bytes", [0, 4, 20, 4096])
@pytest.mark.parametrize(("algorithm", "grid"), CASES)
def test_chunks_of_any_size_give_the_same_products(library, algorithm, grid, chunk_bytes):
    run(library, StagedInProcess(grid.size, library, chunk_bytes), "float32", algorithm, grid)


@pytest.mark.parametrize("chunk_bytes", [0, 24])
@pytest.mark.parametrize("overlaps", ["oar", "oar,ors,oag"])
def test_overlap_on_device_arrays_changes_no_number(library, overlaps, chunk_bytes):
    grid = Grid(z=2, y=2, x=2)
    run(library, StagedInProcess(8, library, chunk_bytes), "float64", "4d", grid, overlaps=overlaps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_products_of_small_integers_are_right(library, dtype):
    grid = Grid(z=2, y=1, x=2)
    run(library, StagedInProcess(4, library, 6), dtype, "4d", grid)


RANKS = """
import sys
from tests.support import fake_device
cupy = fake_device.Cupy()
sys.modules |= {"cupy": cupy, "cupy.cuda": cupy.cuda}
import numpy as np
from quadrille.algorithms.schedule.grid import Grid
from quadrille.runtime.execution.rank_environment import find_array_library
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.carriers.staging import StagedCommunicator
from tests.support.staged_device import run

library = find_array_library("cupy", "float32")
carrier = MpiCarrier(staging=lambda group: StagedCommunicator(group, library, chunk_bytes=16))
for algorithm, grid in (("4d", Grid(z=3)), ("3d", Grid(y=3)), ("summa", Grid(x=3)), ("4d", Grid(x=3))):
    for collectives in ("own:ring", "library"):
        run(library, carrier, "float32", algorithm, grid, collectives, whole=False)
run(library, carrier, "bfloat16", "4d", Grid(z=3), whole=False)
"""


@pytest.mark.mpi
def test_real_ranks_exchange_device_arrays_through_staging():
    assert launch(3, [], program=("-c", RANKS)) == 0
