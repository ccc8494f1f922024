import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import UNSET

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.matmuls.catalogue import find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.mlp import Mlp, mlp_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.cli.parsing.flags import MatmulFlags, RunFlags
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.cli.parsing.runs import parse_run
from quadrille.experiments.measure.matmul_job import choose_verify_method
from quadrille.experiments.measure.measured_record import mean_over_ranks
from quadrille.experiments.measure.run import KernelsBesideRuns
from quadrille.experiments.predict.prepared_experiment import prepare
from quadrille.experiments.workloads.fitting_grids import check_ranks, fitting_grids
from quadrille.runtime.arrays.cupy_library import CupyLibrary
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.execution import rank_environment as site
from quadrille.runtime.execution.rank_environment import MemoryDemand, RankEnvironment, check_demands, check_memory
from quadrille.runtime.host.world import ComputeHost
from tests.support import fake_device
from tests.support.fake_device import FAKE
from tests.support.launched import launched
from tests.support.quadrille import HOST, ROOT, called, quadrille

SIZES = "61,47,53"
KILLED_WRITING = """
import os, sys
from mpi4py import MPI
from quadrille.runtime.files.matrix_files import MatrixWriter
from quadrille.cli.main import main
write = MatrixWriter.write_block
def write_and_die(self, block, stored):
    write(self, block, stored)
    if MPI.COMM_WORLD.rank == int(sys.argv[1]):
        os.kill(os.getpid(), 9)
MatrixWriter.write_block = write_and_die
sys.exit(main(sys.argv[2:]))
"""
mpi = pytest.mark.mpi


@pytest.fixture(scope="module")
def operands(tmp_path_factory):
    """Whole-number operands in files, written by `quadrille operands`."""
    folder = tmp_path_factory.mktemp("operands")
    names = [word for flag in ("a", "b", "dc") for word in (f"--{flag}", folder / f"{flag}.npy")]
    words = ["operands", "--matmul", SIZES, "--dtype", "float64", "--operands", "integers", "--seed", "5", *names]
    ended = quadrille(*words)
    assert (ended.status, ended.err) == (0, "")
    return folder


@pytest.fixture(scope="module")
def alone(operands):
    """A forward pass on one rank, from files to files."""
    files = ["--a", operands / "a.npy", "--b", operands / "b.npy", "--c", operands / "alone.npy"]
    outputs = ["--json", operands / "alone.json", "--trace", operands / "trace.json", "--timeline", operands / "t.json"]
    words = ["run", "--matmul", SIZES, "--dtype", "float64", "--algorithm", "summa", "--panel", "20", "--repeats", "3"]
    return quadrille(*words, "--threads", "1", "--verify", *files, *outputs)


@pytest.fixture(scope="module")
def together(operands):
    """A training step on four ranks, from files to files."""
    names = [word for flag in ("a", "b", "dc") for word in (f"--{flag}", operands / f"{flag}.npy")]
    names += [word for flag in ("c", "da", "db") for word in (f"--{flag}", operands / f"together-{flag}.npy")]
    words = ["run", "--matmul", SIZES, "--dtype", "float64", "--passes", "training", "--grid", "z=2,y=2", "--verify"]
    words += ["--warmups", "0", "--repeats", "2", "--json", operands / "together.json", *names]
    return quadrille("launch", "-n", "4", *words)


def test_generated_operands_are_the_same_in_files_of_any_run(operands, capsys, tmp_path):
    words = ["operands", "--matmul", SIZES, "--dtype", "float64", "--operands", "integers", "--a", tmp_path / "a.npy"]
    assert called(capsys, *words, "--seed", "5").status == 0
    again = np.load(tmp_path / "a.npy")
    np.testing.assert_array_equal(again, np.load(operands / "a.npy"))
    assert again.shape == (61, 47) and again.dtype == np.float64
    assert called(capsys, *words, "--seed", "6").status == 0
    assert (np.load(tmp_path / "a.npy") != again).any()


def test_one_rank_alone_multiplies_files(operands, alone):
    assert alone.status == 0, alone.err
    expected = np.load(operands / "a.npy") @ np.load(operands / "b.npy")
    np.testing.assert_array_equal(np.load(operands / "alone.npy"), expected)


def test_a_measured_record_says_what_ran_and_how_long_it_took(operands, alone):
    record = load_record(operands / "alone.json")
    assert (record.kind, record.algorithm, record.ranks, record.repeats, record.warmups) == (
        "measured",
        "summa",
        1,
        3,
        1,
    )
    assert record.options.threads == 1 and record.options.panel == 20
    assert record.seconds == sorted(record.seconds_of_repeats)[1]
    assert record.seconds_low <= record.seconds <= record.seconds_high
    assert len(record.reference.gemm_seconds) == len(record.reference.copy_seconds) == 3
    assert record.verified.ok and record.verified.method == "serial"
    assert record.verified.max_error <= record.verified.bound
    assert record.provenance.command.startswith("quadrille run --matmul 61,47,53")
    assert {op.name: op.count for op in record.ops} == {
        "zero C": 1,
        "send A panel": 3,
        "send B panel": 3,
        "multiply C": 3,
    }
    assert all(len(op.seconds_of_repeats) == 3 for op in record.ops)


def test_the_timeline_kept_is_that_of_the_median_repeat(operands, alone):
    record, timeline = load_record(operands / "alone.json"), load_timeline(operands / "t.json")
    assert timeline.makespan == pytest.approx(record.seconds)
    assert (timeline.kind, timeline.ranks) == ("measured", 1)
    names = {event["name"] for event in json.loads((operands / "trace.json").read_text())["traceEvents"]}
    assert {"multiply C", "process_name"} <= names


def test_the_table_of_a_run_shows_ops_total_and_verification(alone):
    for text in ("measured: summa, forward, m=61 k=47 n=53 float64", "\nmultiply C ", "\ntotal: ", "\nverified: "):
        assert text in alone.out


@mpi
def test_ranks_write_all_three_products_bit_for_bit(operands, together):
    assert together.status == 0, together.err
    a, b, dc = (np.load(operands / f"{name}.npy") for name in ("a", "b", "dc"))
    for name, expected in {"c": a @ b, "da": dc @ b.T, "db": a.T @ dc}.items():
        np.testing.assert_array_equal(np.load(operands / f"together-{name}.npy"), expected)


@mpi
def test_counted_bytes_are_those_of_the_schedule(operands, together):
    record = load_record(operands / "together.json")
    schedule = matmul_schedule(Matmul(61, 47, 53, "float64", "training"), "4d", Grid(z=2, y=2))
    expected = volumes(schedule, Choices())
    assert record.bytes_sent_per_rank_max == expected.sent_per_rank_max
    assert record.bytes_sent_total == expected.sent_total == sum(op.bytes_sent_total for op in record.ops)
    assert record.bytes_lower_bound_per_rank is None


@mpi
def test_only_rank_0_prints_and_nothing_hidden_is_left(operands, together):
    assert together.out.count("measured: 4d") == 1
    assert together.err == ""
    assert not [path for path in operands.iterdir() if path.name.startswith(".")]


@mpi
def test_a_run_names_the_machine_of_its_prediction_and_the_two_are_compared(capsys, tmp_path):
    (tmp_path / "toy.toml").write_text(HOST)
    machine = ["--machine", tmp_path / "toy.toml", "--set", "device.peak_flops_per_second=x2"]
    words = ["--matmul", SIZES, "--grid", "y=2", "--repeats", "2", "--threads", "1", *machine, "--json"]
    ended = quadrille("launch", "-n", "2", "run", *words, tmp_path / "measured.json")
    assert (ended.status, ended.err) == (0, "")
    assert called(capsys, "simulate", *words, tmp_path / "predicted.json").status == 0
    measured, predicted = load_record(tmp_path / "measured.json"), load_record(tmp_path / "predicted.json")
    assert measured.machine == predicted.machine and measured.machine.name == "toy"
    assert called(capsys, "compare", tmp_path / "predicted.json", tmp_path / "measured.json").status == 0


@mpi
def test_a_run_in_chunks_with_a_progress_thread_is_verified_sends_the_same_and_says_how(tmp_path):
    words = ["--matmul", SIZES, "--passes", "training", "--grid", "z=2", "--overlap", "ors,oag", "--repeats", "1"]
    ways = {"plain": [], "cut": ["--chunk", "1KiB", "--progress", "thread", "--verify"]}
    for name, way in ways.items():
        ended = quadrille("launch", "-n", "2", "run", *words, *way, "--json", tmp_path / name)
        assert (ended.status, ended.err) == (0, "")
    plain, cut = (load_record(tmp_path / name) for name in ways)
    assert plain.messages is UNSET or plain.messages.progress == "none"
    assert (cut.messages.chunk_bytes, cut.messages.progress) == (1024, "thread")
    assert cut.verified.ok and cut.bytes_sent_total == plain.bytes_sent_total


def test_a_machine_too_small_for_the_ranks_is_refused_by_a_run_too():
    machine = chosen_machine(MachineFlags(machine="perlmutter", settings=["topology.gpus=2"]))
    with pytest.raises(InputError, match="4 ranks: perlmutter has 2 GPUs"):
        prepare(parse_matmul(MatmulFlags(matmul=SIZES, grid="x=4")), machine)


@mpi
def test_a_wrong_number_of_ranks_names_the_grids_that_would_fit():
    ended = quadrille("launch", "-n", "2", "run", "--matmul", SIZES, "--algorithm", "3d", "--grid", "x=3")
    assert ended.status == 2
    assert "ranks=2, but the grid x=3 has 3: start 3 ranks (quadrille launch -n 3 …)" in ended.line
    assert "or give a --grid of 2 for 3d: x=2; y=2; z=2" in ended.line


@mpi
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_it_writes_leaves_the_old_result_and_nothing_else(tmp_path, victim):
    np.save(tmp_path / "c.npy", np.arange(3.0))
    before = (tmp_path / "c.npy").read_bytes()
    words = ["run", "--matmul", SIZES, "--grid", "z=2", "--repeats", "1", "--c", str(tmp_path / "c.npy")]
    ended = launched(2, "-c", KILLED_WRITING, str(victim), *words)
    assert ended.status == 1
    assert (
        ended.err
        == f"quadrille: rank {victim} was killed by signal 9 (SIGKILL) in writing results; all ranks were ended\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["c.npy"]
    assert (tmp_path / "c.npy").read_bytes() == before


def test_an_interrupted_run_of_one_rank_ends_as_a_launch_does():
    program = [sys.executable, "-P", "-m", "quadrille", "run", "--matmul", "512,512,512"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [*program, "--repeats", "100000"]
    process = subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()  # where it did not end by itself
        process.wait()
    assert (process.returncode, out, err) == (130, "", "quadrille: interrupted\n")


@mpi
def test_nan_in_the_data_fails_with_status_1_and_writes_no_matrix(tmp_path):
    a = np.ones((61, 47), np.float32)
    a[50, 3] = np.nan
    np.save(tmp_path / "a.npy", a)
    files = ["--a", tmp_path / "a.npy", "--c", tmp_path / "c.npy", "--json", tmp_path / "record.json"]
    ended = quadrille("launch", "-n", "2", "run", "--matmul", SIZES, "--grid", "z=2", "--verify", *files)
    assert ended.status == 1
    assert "A holds nan at row 50, column 3" in ended.line and "no matrix was written" in ended.line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "record.json"]
    verified = load_record(tmp_path / "record.json").verified
    assert not verified.ok and verified.max_error is None and "nan" in verified.reason


@pytest.mark.parametrize(("algorithm", "ranks"), [("cannon", 6), ("cannon", 9), ("1d-row", 5), ("4d", 12), ("2.5d", 8)])
def test_every_grid_that_is_said_to_fit_is_accepted(algorithm, ranks):
    grids = fitting_grids(find_algorithm(algorithm), ranks)
    for grid in grids:
        experiment = parse_matmul(MatmulFlags(matmul=SIZES, algorithm=algorithm, grid=str(grid)))
        check_ranks(experiment, ranks)
    assert bool(grids) == ((algorithm, ranks) != ("cannon", 6))


def test_ranks_of_one_host_share_its_memory():
    rooms = [MemoryDemand("host a", 6, 10), MemoryDemand("host b", 6, 10), MemoryDemand("host a", 5, 11)]
    with pytest.raises(InputError, match=r"2 ranks on host a need 11 B \(11 bytes\) and 10 B \(10 bytes\)"):
        check_demands(rooms)
    check_demands([MemoryDemand("host a", 6, 12), MemoryDemand("host a", 5, 11)])
    check_demands([MemoryDemand("host a", 5, 11), MemoryDemand("host a", 5, 12)])


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(site, "bytes_available", lambda: 10**9)
    schedule = matmul_schedule(Matmul(10**6, 10**6, 10**6), "3d", Grid())
    communicator = SimpleNamespace(rank=0, allgather=lambda value: [value])
    here = RankEnvironment(communicator, ComputeHost("here", (0,), 2), NumpyLibrary(), 1)
    kept = storage(schedule, schedule.coordinates(0), Choices()).bytes
    assert kept >= 3 * 4 * 10**12
    with pytest.raises(InputError, match=r"memory: the 1 ranks on host here need .* and 954 MiB .* are available"):
        check_memory(schedule, Choices(), here)


def test_ranks_on_all_hosts_of_a_laboratory_share_the_memory_of_one_machine(monkeypatch):
    monkeypatch.setattr(site, "bytes_available", lambda: 10**6)
    schedule = matmul_schedule(Matmul(300, 300, 300), "3d", Grid())
    others = SimpleNamespace(rank=0, allgather=lambda rooms: [rooms, rooms])

    def at(host):
        return RankEnvironment(others, host, NumpyLibrary(), 1)

    with pytest.raises(InputError, match="memory: the 2 ranks on this machine need"):
        check_memory(schedule, Choices(), at(ComputeHost("lab-host0", (0,), 2, sharing=2)))


def test_ranks_on_a_gpu_need_memory_of_the_host_to_check_what_they_computed(monkeypatch):
    fake_device.install(monkeypatch)
    monkeypatch.setattr(site, "bytes_available", lambda: 10**6)
    schedule, rooms = matmul_schedule(Matmul(4, 4, 4), "3d", Grid()), []
    communicator = SimpleNamespace(rank=0, allgather=lambda value: rooms.append(value) or [value])
    here = RankEnvironment(communicator, ComputeHost("here", (0,), 2), CupyLibrary(FAKE), 1)
    check_memory(schedule, Choices(), here)
    assert [(room.where, room.needed) for room in rooms[0]] == [
        (f"GPU {FAKE}", storage(schedule, schedule.coordinates(0), Choices()).bytes),
        ("host here", 0),
    ]
    with pytest.raises(InputError, match=r"the 1 ranks on host here need .* \(1000001 bytes\)"):
        check_memory(schedule, Choices(), here, verify_bytes=10**6 + 1)


def test_what_is_loaded_counts_the_parameters_of_a_training_step_too():
    schedule, rooms = mlp_schedule(Mlp((64, 256, 64), 8), Grid(), Scheme4D()), []
    communicator = SimpleNamespace(rank=0, allgather=lambda value: rooms.append(value) or [value])
    check_memory(schedule, Choices(), RankEnvironment(communicator, ComputeHost("here", (0,), 2), NumpyLibrary(), 1))
    kept = storage(schedule, schedule.coordinates(0), Choices()).bytes
    assert rooms[0][0].needed == kept + 64 * 256 * 4


def test_verification_is_serial_while_each_rank_s_share_is_small():
    def method(size, grid, checked="auto"):
        experiment = parse_matmul(MatmulFlags(matmul=f"{size},{size},{size}", algorithm="4d", grid=grid))
        return choose_verify_method(checked, experiment, experiment.schedule())

    assert method(4096, "x=1") == "serial"
    assert method(8192, "x=1") == "freivalds"
    assert method(8192, "x=8") == "serial"
    assert method(8192, "y=8") == "freivalds"  # each of the eight checks the same C
    assert method(8192, "x=1", "serial") == "serial"


@pytest.mark.parametrize(
    ("algorithm", "grid", "passes", "expected"),
    [
        ("4d", "x=8", "forward", "serial"),
        ("4d", "x=8", "training", "freivalds"),  # each of the eight has the whole of dA
        ("4d", "z=8", "training", "serial"),
        ("2.5d", "z=3,x=3,y=2", "forward", "serial"),
        ("2.5d", "z=2,x=2,y=2", "forward", "freivalds"),  # one layer of four ranks holds C
    ],
)
def test_verification_is_serial_where_the_largest_share_of_any_product_is_small(algorithm, grid, passes, expected):
    flags = MatmulFlags(matmul="8192,8192,8192", algorithm=algorithm, grid=grid, passes=passes)
    experiment = parse_matmul(flags)
    assert choose_verify_method("auto", experiment, experiment.schedule()) == expected


def test_a_plan_takes_files_of_gradients_in_training_only():
    forward = parse_matmul(MatmulFlags(matmul=SIZES))
    training = parse_matmul(MatmulFlags(matmul=SIZES, passes="training"))
    for flags in (RunFlags(inputs={"dC": "dc.npy"}), RunFlags(outputs={"dA": "da.npy"})):
        with pytest.raises(InputError, match=r"a forward pass has no d[AC]; give --passes training"):
            forward.check_run(parse_run(flags))
        training.check_run(parse_run(flags))


def test_run_options_list_the_files_of_all_its_matrices():
    flags = RunFlags(inputs={"A": "a.npy", "B": "", "dC": "dc.npy"}, outputs={"C": "", "dA": "da.npy"})
    options = parse_run(flags)
    assert options.files == {"--a": "a.npy", "--dc": "dc.npy", "--da": "da.npy"}


def test_a_run_overwrites_no_file_that_it_reads(tmp_path):
    places = tmp_path / "places.txt"
    places.write_text("host:0")
    ended = quadrille("run", "--matmul", "8,8,8", "--placement", places, "--json", places)
    assert ended.status == 2 and f"--json and --placement both name {places}" in ended.line
    assert places.read_text() == "host:0"


def test_reference_kernels_are_means_over_ranks_for_each_repeat():
    ranks = [[(1.0, 2.0, 3.0), (5.0, 5.0, 5.0)], [(3.0, 2.0, 1.0), (7.0, 5.0, 3.0)]]
    assert mean_over_ranks(ranks) == [(2.0, 2.0, 2.0), (6.0, 5.0, 4.0)]


def test_of_ranks_that_share_cores_the_first_ones_time_the_reference_kernels():
    class Kernels:
        def measure(self):
            return 1.0, 2.0, 3.0

    timed = []
    for rank in range(4):
        beside = KernelsBesideRuns(Kernels(), concurrent_ranks=2)
        beside.measure(rank)
        timed.append(len(beside.seconds))
    assert timed == [1, 1, 0, 0]


def test_a_rank_imports_neither_the_simulator_nor_topologies():
    program = (
        "import sys, quadrille.experiments.measure.run; names = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(names & {'simulator', 'topologies', 'simpy', 'networkx', 'scipy', 'numba', 'rich', 'cupy'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_loss_that_is_not_finite_fails_the_run_and_writes_no_checkpoint(tmp_path):
    saved = tmp_path / "tiny.ckpt"
    words = ("--gpt", "tiny", "--batch", "2", "--steps", "3", "--repeats", "1", "--warmups", "0", "--save", str(saved))
    ended = quadrille("run", *words, "--learning-rate", "1e30")
    assert ended.status == 1
    assert "loss of step 1 is not a finite number; no checkpoint was written" in ended.line
    assert not saved.exists()
