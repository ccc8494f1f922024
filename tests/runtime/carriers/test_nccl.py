"""The NCCL carrier on an NCCL whose ranks all live in this process."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.runtime.arrays.cupy_library import CupyLibrary
from quadrille.runtime.carriers.nccl import NcclCarrier, load_nccl
from quadrille.runtime.carriers.nccl_communicator import NcclCommunicator
from quadrille.runtime.host.devices import check_unshared
from tests.support import fake_device
from tests.support.fake_device import FAKE, Cupy
from tests.support.nccl_in_process import NcclInProcess
from tests.support.staged_device import CASES, run


@pytest.fixture
def cupy(monkeypatch):
    return fake_device.install(monkeypatch)


@pytest.fixture
def library(cupy):
    return CupyLibrary(FAKE)


def group(library, size):
    nccl = library.cupy.cuda.nccl
    return [NcclCommunicator(nccl, nccl.NcclCommunicator(size, 1, i), library, i, size) for i in range(size)]


def on_device(library, values, dtype="float32"):
    array = library.empty(len(values), dtype)
    library.put(array, np.asarray(values, np.float32))
    return array


def finish(requests):
    for _ in range(1000):
        asked = [request.done() for request in requests]  # each of them, since asking starts a batch
        if all(asked):
            return
    raise AssertionError("they wait for each other")


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_ring_step_is_one_group_call_of_both_directions(cupy, library, size):
    ranks = group(library, size)
    sent = [on_device(library, [i, 10 * i]) for i in range(size)]
    received = [on_device(library, [-1, -1]) for _ in range(size)]
    requests = []
    for i, rank in enumerate(ranks):
        requests += [rank.receive(received[i], (i - 1) % size), rank.send(sent[i], (i + 1) % size)]
    assert cupy.cuda.nccl.groups == [], "nothing starts before somebody asks"
    finish(requests)
    assert cupy.cuda.nccl.groups == [["receive", "send"]] * size
    assert [library.fetch(array).tolist() for array in received] == [
        [(i - 1) % size, 10 * ((i - 1) % size)] for i in range(size)
    ]


def test_an_empty_message_still_waits_for_the_other_side(library):
    one, other = group(library, 2)
    nothing = library.empty(0, "float64")
    receive = other.receive(nothing, 0)
    assert not any(receive.done() for _ in range(20))
    finish([one.send(nothing, 1), receive])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("edges", [(0, 2, 4, 6), (0, 3, 5, 7), (0, 1, 2, 2)])
def test_gathers_and_sums_of_equal_and_unequal_shards_are_right(library, edges, dtype):
    ranks, total = group(library, 3), edges[-1]
    wholes = [on_device(library, [100 * i + e for e in range(total)], dtype) for i in range(3)]
    before = np.array([library.fetch(whole) for whole in wholes])
    finish([rank.all_gather(whole, edges, blocking=False) for rank, whole in zip(ranks, wholes, strict=True)])
    expected = np.concatenate([before[i, start:stop] for i, (start, stop) in enumerate(pairwise(edges))])
    for whole in wholes:
        np.testing.assert_array_equal(library.fetch(whole), expected)

    pieces = [library.empty(stop - start, dtype) for start, stop in pairwise(edges)]
    summands = [on_device(library, range(total), dtype) for _ in ranks]
    calls = zip(ranks, summands, pieces, strict=True)
    finish([rank.reduce_scatter(summand, edges, piece, blocking=True) for rank, summand, piece in calls])
    sums = np.concatenate([library.fetch(piece) for piece in pieces])
    np.testing.assert_array_equal(sums, 3 * np.arange(total))


def test_the_other_collectives_are_right(library):
    ranks = group(library, 3)

    def everyone(verb, *arguments):
        arrays = [on_device(library, [i, 2 * i + 1]) for i in range(3)]
        finish(
            [getattr(rank, verb)(array, *arguments, blocking=False) for rank, array in zip(ranks, arrays, strict=True)]
        )
        return [library.fetch(array).tolist() for array in arrays]

    assert everyone("all_reduce") == [[3, 9]] * 3
    assert everyone("broadcast", 1) == [[1, 3]] * 3
    assert everyone("reduce", 2)[2] == [3, 9]
    finish([rank.barrier(blocking=True) for rank in ranks])


def test_a_barrier_is_not_over_before_all_have_come(library):
    ranks = group(library, 3)
    early = [rank.barrier(blocking=False) for rank in ranks[:2]]
    assert not any(request.done() for request in early for _ in range(20))
    finish([*early, ranks[2].barrier(blocking=False)])


def test_all_to_all_moves_every_piece_to_its_place(library):
    ranks = group(library, 3)
    counts = [[1, 2, 0], [3, 1, 2], [0, 1, 1]]
    sent = [on_device(library, [100 * i + e for e in range(sum(counts[i]))]) for i in range(3)]
    into = [library.empty(sum(counts[i][j] for i in range(3)), "float32") for j in range(3)]

    def edges(pieces):
        return tuple(np.cumsum([0, *pieces]).tolist())

    finish([
        ranks[i].all_to_all(sent[i], edges(counts[i]), into[i], edges([counts[j][i] for j in range(3)]), blocking=False)
        for i in range(3)
    ])  # fmt: skip
    for j in range(3):
        came = [library.fetch(sent[i])[edges(counts[i])[j] : edges(counts[i])[j + 1]] for i in range(3)]
        np.testing.assert_array_equal(library.fetch(into[j]), np.concatenate(came))


@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "own:halving_doubling", "library"])
@pytest.mark.parametrize(("algorithm", "grid"), CASES)
def test_the_executor_over_nccl_gives_numpy_s_products(library, algorithm, grid, collectives):
    run(library, NcclInProcess(grid.size, library), "float32", algorithm, grid, collectives)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_library_sums_over_nccl_know_the_16_bit_dtypes(library, dtype):
    run(library, NcclInProcess(4, library), dtype, "4d", Grid(y=2, x=2), "library")


def gpus(count, **changes):
    return [
        replace(FAKE, number=i, uuid=f"{i + 1:02}" * 16, pci_address=f"0000:0{i}:00.0", **changes) for i in range(count)
    ]


def test_two_ranks_on_one_gpu_are_refused_by_name():
    one, other = gpus(2)
    check_unshared([one, other])
    with pytest.raises(InputError) as caught:
        check_unshared([one, other, replace(one, number=3)])
    assert "ranks 0, 2 share Fake GPU" in str(caught.value) and "staging" in str(caught.value)


def test_a_gpu_is_known_by_its_uuid_or_by_its_place():
    one, other = gpus(2)
    assert one.is_same(replace(one, host="container", pci_address="0000:77:00.0")), "one UUID, two containers"
    assert one.is_same(replace(one, uuid="")), "one place, a UUID that begins with a zero byte"
    assert not replace(one, uuid="").is_same(replace(other, uuid="")), "two places, two such UUIDs"
    assert not one.is_same(replace(one, host="node2", uuid="77" * 16)), "the same slot of two hosts"


class Alike:
    """MPI's world as one rank sees it, where every rank says the same."""

    size = 2
    rank = 0

    def __init__(self, values):
        self._values = values

    def allgather(self, value):
        return self._values


def test_the_carrier_compares_gpus_before_it_loads_nccl(cupy, library):
    cupy.cuda.nccl.available = False
    with pytest.raises(InputError, match="ranks 0, 1 share"):
        NcclCarrier(library, Alike([FAKE, FAKE]))
    with pytest.raises(InputError, match="NCCL is not installed"):
        NcclCarrier(library, Alike(gpus(2)))


def test_a_world_of_one_rank_runs_without_asking_nccl(library):
    carrier = NcclCarrier(library)
    run(library, carrier, "float32", "4d", Grid())
    assert library.cupy.cuda.nccl.ids == 0
    carrier.close()


def test_a_group_that_does_not_start_is_one_line(library, monkeypatch):
    def fails(*_):
        raise RuntimeError("NCCL_ERROR_INVALID_USAGE")

    carrier = NcclCarrier(library)
    monkeypatch.setattr(library.cupy.cuda.nccl, "NcclCommunicator", fails)
    with pytest.raises(RunError, match="NCCL_ERROR_INVALID_USAGE"):
        carrier._new_communicator(Grid(x=2), 0, "x")


@pytest.mark.parametrize("error", [RuntimeError("NCCL_ERROR_SYSTEM_ERROR"), KeyError(6)])
def test_what_nccl_met_on_the_way_ends_the_wait(library, monkeypatch, error):
    one, _ = group(library, 2)

    def has_failed():
        raise error

    request = one.receive(library.empty(3, "float32"), 1)
    assert not request.done()
    monkeypatch.setattr(one._communicator, "check_async_error", has_failed)
    with pytest.raises(RunError, match=r"NCCL among 2 ranks on Fake GPU .* has failed: (NCCL_ERROR_SYSTEM_ERROR|6)"):
        request.done()


def test_nccl_s_own_warning_is_not_shown(monkeypatch):
    cupy = fake_device.install(monkeypatch, Cupy())
    assert load_nccl() is cupy.cuda.nccl
