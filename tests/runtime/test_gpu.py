"""The real thing: CuPy on a CUDA device (make test-gpu)."""

import json
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.cli.parsing.flags import TrainingFlags
from quadrille.cli.parsing.training import parse_training
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.carriers.gpu_awareness import GpuAwareness, gpu_awareness
from quadrille.runtime.carriers.mpi_communicator import MpiCommunicator
from quadrille.runtime.carriers.staging import StagedCommunicator, choose_staging
from quadrille.runtime.execution.rank_environment import find_array_library
from quadrille.runtime.host.devices import check_unshared, free_bytes
from quadrille.runtime.launching.launch import launch
from quadrille.runtime.measuring.device_benchmarks import DeviceBench, Tf32Library
from quadrille.runtime.operands.operands import round_to
from quadrille.studies.gpu.report import LEAST_EXECUTOR_SHARE
from tests.support.device_trainings import CASES, MEGATRON
from tests.support.quadrille import called
from tests.support.staged_device import StagedInProcess
from tests.support.training_jobs import ended, losses, verdict

pytestmark = pytest.mark.gpu

DTYPES = [dtype for dtype in ITEM_BYTES if dtype not in ("int32", "uint8")]
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@pytest.fixture(scope="module")
def library():
    return find_array_library("cupy", "float32")


def random_values(shape, dtype, seed=0):
    values = np.random.default_rng(seed).uniform(-1, 1, shape)
    values = values if dtype == "float64" else values.astype(np.float32)
    round_to(dtype, values)
    return values


def on_device(library, values, dtype):
    array = library.empty(values.size, dtype)
    library.put(array, values.reshape(-1))
    return array.reshape(values.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_put_and_fetch_give_the_values_back_in_many_chunks(library, dtype):
    values = random_values((1237, 4391), dtype)
    np.testing.assert_array_equal(library.fetch(on_device(library, values, dtype)), values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (127, 331, 61), (1, 500, 3), (64, 1, 64), (5, 0, 7)])
def test_products_are_numpy_s_within_the_rounding_of_the_dtype(library, dtype, layout, m, k, n):
    a, b = random_values((m, k), dtype), random_values((k, n), dtype, seed=1)
    left = on_device(library, a.T.copy(), dtype).T if layout == "TN" else on_device(library, a, dtype)
    right = on_device(library, b.T.copy(), dtype).T if layout == "NT" else on_device(library, b, dtype)
    out = on_device(library, np.ones((m, n), a.dtype), dtype)
    library.matmul(left, right, out)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    allowed = (k + 2) * max(2.0**-24 if dtype != "float64" else 0, 2.0**-53) * (np.abs(wide_a) @ np.abs(wide_b))
    exact = wide_a @ wide_b
    assert np.all(np.abs(library.fetch(out) - exact) <= allowed + EPS[dtype] * np.abs(exact))


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_sums_copies_and_zeros_are_right(library, dtype):
    a, b = random_values((40, 50), dtype), random_values((40, 50), dtype, seed=1)
    one, other = on_device(library, a, dtype), on_device(library, b, dtype)
    library.add(one, other, one)
    total = a + b
    round_to(dtype, total)
    np.testing.assert_array_equal(library.fetch(one), total)
    library.copy(one[3:7, 5:9], other[10:14, 20:24])
    library.zero(other.reshape(-1)[:50])
    total[3:7, 5:9] = b[10:14, 20:24]
    np.testing.assert_array_equal(library.fetch(one[2:9, 4:11]), total[2:9, 4:11])
    assert not library.fetch(other)[0].any()


def test_sums_of_a_thousand_ones_stay_exact_in_float32_accumulation(library):
    for dtype in ("float16", "bfloat16"):
        ones, out = on_device(library, np.ones((1, 4096), np.float32), dtype), library.empty(1, dtype).reshape(1, 1)
        library.matmul(ones, ones.T, out)
        assert library.fetch(out)[0, 0] == 4096


def test_float32_products_are_not_made_in_tf32(library):
    fine = np.full((1, 64), 1 + 2.0**-12, np.float32)  # all partial sums are exact in float32, whatever their order
    out = library.empty(1, "float32").reshape(1, 1)
    wide = on_device(library, fine, "float32")
    library.matmul(wide, on_device(library, np.ones((64, 1), np.float32), "float32"), out)
    assert library.fetch(out)[0, 0] == np.float32(64 * (1 + 2.0**-12))


def test_tf32_rounds_what_float32_keeps_where_the_gpu_has_it(library):
    if library.device.compute_capability < (8, 0):
        pytest.skip("TF32 takes compute capability 8.0 or higher")
    fine = np.full((512, 512), 1 + 2.0**-12, np.float32)
    out = library.empty(512 * 512, "float32").reshape(512, 512)
    tf32 = Tf32Library(library.device, of=library)
    tf32.matmul(on_device(library, fine, "float32"), on_device(library, np.ones_like(fine), "float32"), out)
    tf32.synchronise()
    np.testing.assert_array_equal(library.fetch(out), np.full((512, 512), 512, np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_whole_run_of_one_rank_reaches_95_percent_of_a_bare_product(library, dtype):
    bench = DeviceBench(library)
    bench.warm_up()
    assert bench.executor_ratio(8192, dtype).share >= LEAST_EXECUTOR_SHARE


def test_a_marker_comes_after_the_work_and_the_second_stream_does_not_wait(library):
    big = on_device(library, random_values((2048, 2048), "float32"), "float32")
    out, small = library.empty(2048 * 2048, "float32").reshape(2048, 2048), library.empty(4, "float32")
    lane = library.lane()
    for one in (library, lane):  # kernels are loaded when they are first used, which may wait for the device
        one.zero(small)
        one.synchronise()
    library.matmul(big, big, out)
    library.synchronise()
    for _ in range(50):
        library.matmul(big, big, out)
    marker = library.mark()
    lane.zero(small)
    lane.synchronise()
    was_done = marker.done()
    marker.wait()
    assert marker.done() and not was_done


@pytest.mark.parametrize("dtype", DTYPES)
def test_staged_buffers_carry_the_values_and_are_reused(library, dtype):
    group, values = StagedCommunicator(MpiCommunicator(MPI.COMM_SELF), library), random_values(100_003, dtype)
    sent, received = on_device(library, values, dtype), on_device(library, values * 0, dtype)
    for _ in range(3):
        requests = [group.receive(received, 0), group.send(sent, 0)]
        while not all(request.done() for request in requests):
            pass
        pinned = library.pinned.allocated_bytes
    np.testing.assert_array_equal(library.fetch(received), values)
    assert library.pinned.allocated_bytes == pinned


def test_the_device_is_described_and_unshared_by_one_rank(library):
    device = library.device
    assert device.uuid and device.pci_address and 0 < free_bytes(device) <= device.memory_bytes
    check_unshared([device])


def test_awareness_has_an_answer_and_a_reason(library):
    from mpi4py import MPI

    answer = gpu_awareness(MPI.COMM_WORLD, library.device)
    assert isinstance(answer, GpuAwareness) and answer.reason
    assert type(choose_staging(library, answer, "library")(MpiCommunicator(MPI.COMM_SELF))) is StagedCommunicator


RANKS = """
import numpy as np
from mpi4py import MPI
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.runtime.execution.rank_environment import find_array_library
from quadrille.runtime.host.devices import number_on_host
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.operands.rectangles import split_block
from quadrille.runtime.carriers.staging import StagedCommunicator

library = find_array_library("cupy", "float32", rank_on_host=number_on_host(MPI.COMM_WORLD))
carrier = MpiCarrier(staging=lambda group: StagedCommunicator(group, library))
problem = Matmul(70, 110, 50, "float32", "training")
random = np.random.default_rng(0)
A, B, dC = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((70, 110), (110, 50), (70, 50)))
expected = {"C": A @ B, "dA": dC @ B.T, "dB": A.T @ dC}
for collectives in ("own:ring", "library"):
    schedule = matmul_schedule(problem, "4d", Grid(z=2, y=1, x=2))
    done = execute(schedule, {"A": A, "B": B, "dC": dC}, carrier, choices=parse_choices(collectives), library=library)
    for rank, outputs in done.outputs.items():
        for name, product in expected.items():
            block = schedule.tensors[name].block(schedule.coordinates(rank))
            for part, values in split_block(block, library.fetch(outputs[name])):
                window = product[part.row_start : part.row_stop, part.column_start : part.column_stop]
                np.testing.assert_array_equal(values, window)
"""


@pytest.mark.mpi
def test_four_ranks_share_one_gpu_through_staging(library):
    assert launch(4, [], program=("-c", RANKS)) == 0


NCCL = RANKS.replace(
    "MpiCarrier(staging=lambda group: StagedCommunicator(group, library))", "NcclCarrier(library)"
).replace(
    "from quadrille.runtime.carriers.staging import StagedCommunicator",
    "from quadrille.runtime.carriers.nccl import NcclCarrier",
)


WITH_OUR_LINE = f"""
from quadrille.runtime.host.world import fail_all
try:
    exec({NCCL!r})
except BaseException as error:
    fail_all(error)
"""


@pytest.mark.mpi
def test_nccl_carries_where_every_rank_has_a_gpu_and_refuses_where_not(library, capfd):
    from quadrille.runtime.carriers.nccl import load_nccl

    try:
        load_nccl()
    except InputError as error:
        pytest.skip(str(error))
    status = launch(4, [], program=("-c", WITH_OUR_LINE))
    if library.cupy.cuda.runtime.getDeviceCount() >= Grid(z=2, x=2).size:
        assert status == 0
    else:
        assert status == 2 and "share" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", DTYPES)
def test_nccl_of_one_rank_gives_back_what_it_was_given(library, dtype):
    from quadrille.runtime.carriers.nccl import load_nccl
    from quadrille.runtime.carriers.nccl_communicator import NcclCommunicator

    try:
        nccl = load_nccl()
    except InputError as error:
        pytest.skip(str(error))
    group = NcclCommunicator(nccl, nccl.NcclCommunicator(1, nccl.get_unique_id(), 0), library, 0, 1)
    values = random_values(1003, dtype)
    array, piece = on_device(library, values, dtype), on_device(library, values * 0, dtype)
    edges = {"all_gather": ((0, 1003),), "reduce_scatter": ((0, 1003), piece), "broadcast": (0,), "reduce": (0,)}
    for verb in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        request = getattr(group, verb)(array, *edges.get(verb, ()), blocking=False)
        while not request.done():
            pass
        np.testing.assert_array_equal(library.fetch(array), values)
    np.testing.assert_array_equal(library.fetch(piece), values)


# Training steps


@pytest.mark.parametrize("case", [*CASES.values(), {"dtype": "float32"} | MEGATRON], ids=[*CASES, "megatron"])
def test_training_of_every_kind_agrees_with_the_serial_run(library, case):
    staged = partial(StagedInProcess, library=library)
    found = verdict(ended(library=library, carrier=staged, steps="2", **case))
    assert found.ok, found


def test_a_checkpoint_of_the_device_goes_on_on_the_host_and_the_other_way(library, tmp_path):
    staged = partial(StagedInProcess, library=library)
    flags = {"gpt": "layers=2,hidden=12,heads=3,sequence=5,vocabulary=127", "batch": "4", "dtype": "float64"}
    on_device, on_host = {"library": library, "carrier": staged}, {}
    alone = losses(ended(steps="3", grid="x=1", **flags))
    for saving, loading in ((on_device, on_host), (on_host, on_device)):
        ended(save=tmp_path / "gpt.ckpt", steps="2", grid="z=2,x=3", **flags, **saving)
        after = ended(load=tmp_path / "gpt.ckpt", steps="1", grid="data=2,y=2", **flags, **loading)
        assert losses(after) == pytest.approx(alone[2:], rel=1e-9) and verdict(after).ok


LOSSES_WITHIN = {"float64": 1e-8, "float32": 2e-5, "float16": 0.03, "bfloat16": 0.2}
ONCE = ("--steps", "2", "--repeats", "1", "--warmups", "0", "--verify", "--json", "-")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "problem", [("--gpt", "tiny", "--batch", "8"), ("--mlp", "256,512,256", "--batch", "512")], ids=["gpt", "mlp"]
)
def test_one_rank_trains_in_every_dtype_and_its_losses_are_those_of_the_host(library, capsys, problem, dtype):
    ran = called(capsys, "run", *problem, "--backend", "cupy", "--dtype", dtype, *ONCE)
    assert ran.status == 0, ran.err
    record = json.loads(ran.out)
    assert record["verified"]["ok"] and record["backend"] == "cupy"
    on_host = json.loads(called(capsys, "run", *problem, "--dtype", "float64", *ONCE).out)
    assert record["losses"] == pytest.approx(on_host["losses"], rel=LOSSES_WITHIN[dtype])


TINY = {"gpt": "tiny", "batch": "8", "steps": "2"}
ON_ONE_GPU = [
    TINY | {"grid": "z=2,x=2", "overlap": "oar,ors,oag"},
    TINY | {"grid": "data=2,x=2", "scheme": "megatron", "sequence_parallel": True, "dtype": "bfloat16"},
    TINY | {"grid": "z=2,x=2", "scheme": "optimus", "dtype": "float64"},
    TINY | {"grid": "pipeline=2,z=2", "micro_batch": "2", "dtype": "bfloat16"},
    TINY | {"grid": "data=2,y=2", "zero": "3", "recompute": "full"},
    {"mlp": "256,512,256", "batch": "512", "steps": "2", "grid": "z=2,y=2"},
]


@pytest.mark.mpi
def test_four_ranks_train_on_one_gpu_on_many_grids_and_go_on_from_a_checkpoint(library, capsys, tmp_path):
    saved = str(tmp_path / "gpt.ckpt")
    run_flags = partial(RunOptions, backend="cupy", carrier="mpi", verify=True, repeats=1, warmups=0)
    cases = [
        RunCase(
            parse_training(TrainingFlags(**chosen)),
            str(tmp_path / f"{number}.json"),
            run_flags(save="" if number else saved),
        )
        for number, chosen in enumerate(ON_ONE_GPU)
    ]
    on = TrainingFlags(**TINY | {"grid": "data=2,y=2", "zero": "1", "steps": "1"})
    cases.append(RunCase(parse_training(on), str(tmp_path / "on.json"), run_flags(load=saved)))
    measure(4, cases)
    records = [load_record(case.record) for case in cases]
    for record in records:
        assert record.verified is not None and record.verified.ok, record
    words = ("--gpt", "tiny", "--batch", "8", "--steps", "3", "--repeats", "1", "--warmups", "0", "--json", "-")
    alone = json.loads(called(capsys, "run", *words).out)["losses"]
    assert [*records[0].losses, *records[-1].losses] == pytest.approx(alone, rel=1e-4)
