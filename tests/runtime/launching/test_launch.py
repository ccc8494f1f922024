"""Ranks started by a real mpirun: their lines, their exit status, and that none is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quadrille.algorithms.errors import InputError, QuadrilleError, RunError
from quadrille.algorithms.formats.atomic_files import start_ticks
from quadrille.runtime.host import world
from quadrille.runtime.host.console import INTERRUPTED
from quadrille.runtime.launching import environment as surroundings
from quadrille.runtime.launching import launch_folder
from quadrille.runtime.launching.environment import rank_variables
from quadrille.runtime.launching.exit_status import explained, reason_in
from quadrille.runtime.launching.launch import MOST_RANKS_A_CORE, launch
from quadrille.runtime.launching.launch_folder import processes_of_launch
from quadrille.runtime.launching.launcher_output import Failure, LauncherOutput
from quadrille.runtime.launching.mpirun import Mpi, find_launcher, loaded_mpi
from tests.support.quadrille import ROOT

WAIT = """
import sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
print("started", rank, flush=True)
MPI.COMM_WORLD.Barrier()
if rank != 1:
    time.sleep(60)
"""
KILL_LAUNCHER = """
import os, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getppid(), 9)
time.sleep(60)
"""
mpi = pytest.mark.mpi
NOBODY = 65534


def start(ranks, source, *command):
    return launch(ranks, list(command), program=("-c", source))


def left_behind():
    """Processes of this host that belong to a launch of this test process."""
    return [pid for pid in marked_environments() if pid != os.getpid()]


def marked_environments():
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if b"QUADRILLE_TEST=" + str(os.getpid()).encode() + b"\0" in entry.read_bytes():
                yield int(entry.parent.name)
        except OSError:
            continue


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    monkeypatch.setenv("QUADRILLE_TEST", str(os.getpid()))


@mpi
def test_all_ranks_run_with_shared_threads_and_lines_of_rank_0_keep_their_order(capfd):
    source = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
threads = world.gather(os.environ["OPENBLAS_NUM_THREADS"])
if world.rank == 0:
    print(world.size, *threads, *sys.argv[1:])
    for number in range(200):
        print("line", number)
    print("remark", file=sys.stderr)
"""
    assert start(3, source, "run", "--threads", "2") == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == ["3 2 2 2 run --threads 2"] + [f"line {number}" for number in range(200)]
    assert err.splitlines() == ["remark"]


@mpi
@pytest.mark.parametrize(("status", "ours"), [(1, 1), (2, 2), (7, 1)])
def test_the_status_of_one_rank_ends_the_ranks_that_wait_for_it(capfd, status, ours):
    assert start(2, WAIT + f"\nsys.exit({status})") == ours
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["started 0", "started 1"]
    assert err == f"quadrille: rank 1 ended with exit status {status}; all ranks were ended\n"
    assert not left_behind()


LAUNCH_COMMAND = [sys.executable, "-P", "-m", "quadrille", "launch", "-n", "2", "run", "--matmul", "64,64,64"]
LAUNCH_COMMAND += ["--grid", "z=2", "--repeats", "1"]


@mpi
@pytest.mark.parametrize(("stdout", "reason"), [("/dev/full", "No space left on device"), (None, "it is closed")])
def test_output_of_the_ranks_that_cannot_be_written_is_an_error_and_the_record_is_kept(tmp_path, stdout, reason):
    record = tmp_path / "measured.json"
    target = f"> {stdout}" if stdout else ">&-"
    words = ["sh", "-c", f'"$@" {target}', "sh", *LAUNCH_COMMAND, "--json", str(record)]
    ran = subprocess.run(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, f"quadrille: stdout cannot be written: {reason}\n")
    assert record.exists()


ENDLESS = "from mpi4py import MPI\nwhile True: print('y' * 1000, flush=True)"


@mpi
def test_a_reader_that_has_gone_ends_the_ranks():
    source = f"from quadrille.runtime.launching.launch import launch; launch(2, [], program=('-c', {ENDLESS!r}))"
    running = subprocess.Popen(
        [sys.executable, "-P", "-c", source], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "y" * 1000 + "\n"
    running.stdout.close()
    assert running.wait(60) == 1
    with running.stderr:
        assert running.stderr.read().endswith("BrokenPipeError: [Errno 32] Broken pipe\n")
    assert not left_behind()


@mpi
def test_ranks_start_without_a_home_folder_in_the_environment():
    variables = {name: value for name, value in os.environ.items() if name != "HOME"}
    ran = subprocess.run(LAUNCH_COMMAND, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("measured: ")


@mpi
def test_a_rank_that_is_killed_is_named_with_its_signal_and_nothing_is_left(capfd):
    assert start(2, WAIT + "\nimport os; os.kill(os.getpid(), 9)") == 1
    assert capfd.readouterr().err == "quadrille: rank 1 was killed by signal 9 (SIGKILL); all ranks were ended\n"
    assert not left_behind()
    assert not list(Path(launch_folder.memory_folder()).glob(f"{launch_folder.folder_prefix()}*"))


@mpi
def test_files_that_killed_ranks_were_writing_are_removed_at_the_end_of_the_launch(capfd, tmp_path):
    half, whole = tmp_path / ".c.npy.half.partial", tmp_path / "c.npy"
    source = """
import os, sys
from pathlib import Path
from mpi4py import MPI
from quadrille.runtime.host.world import LAUNCH
from quadrille.runtime.launching.launch_folder import note_partial_files
if MPI.COMM_WORLD.rank == 0:
    note_partial_files(os.environ[LAUNCH], [Path(sys.argv[1])])
    Path(sys.argv[1]).write_bytes(b"half")
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), 9)
MPI.COMM_WORLD.Barrier()
"""
    whole.write_bytes(b"before")
    assert start(2, source, str(half)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.npy"] and whole.read_bytes() == b"before"
    assert "rank 1 was killed by signal 9" in capfd.readouterr().err


def test_an_abandoned_launch_leaves_no_partial_file_either(tmp_path):
    memory, half = tmp_path / "memory", tmp_path / ".c.npy.half.partial"
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = memory / f"quadrille-{ended.pid}-1-x"
    memory.mkdir()
    folder.mkdir(mode=0o700)
    half.write_bytes(b"half")
    launch_folder.note_partial_files(str(folder), [half])
    launch_folder.remove_abandoned(memory)
    assert not half.exists() and not folder.exists()


def test_folders_of_abandoned_launches_are_found_where_there_is_no_shared_memory(monkeypatch, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = tmp_path / f"quadrille-{ended.pid}-1-x"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(launch_folder.tempfile, "gettempdir", lambda: str(tmp_path))
    launch_folder.remove_abandoned(tmp_path / "nowhere")
    assert not folder.exists()


def test_a_launch_is_abandoned_where_its_number_is_another_process_s_and_not_while_it_lives(tmp_path):
    own = os.getpid()
    living = tmp_path / f"{launch_folder.folder_prefix()}x"
    reused = tmp_path / f"quadrille-{own}-{start_ticks(own) - 1}-x"
    for folder in (living, reused):
        folder.mkdir(mode=0o700)
    launch_folder.remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [living]


@pytest.mark.parametrize("planted", ["link", "folder of another user", "folder that others can write", "foreign file"])
def test_a_planted_folder_of_a_launch_is_left_alone_with_all_that_its_list_names(tmp_path, planted):
    memory, victim = tmp_path / "memory", tmp_path / ".victim.npy.x.partial"
    memory.mkdir()
    victim.write_bytes(b"precious")
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder, elsewhere = memory / f"quadrille-{ended.pid}-1-x", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / launch_folder.PARTIAL_FILES).write_text(str(victim if planted != "foreign file" else victim.parent))
    if planted == "link":
        folder.symlink_to(elsewhere)
    else:
        elsewhere.rename(folder)
    if planted == "folder that others can write":
        folder.chmod(0o777)
    if planted == "folder of another user":
        if os.geteuid():
            pytest.skip("only root can give a folder to another user")
        os.chown(folder, NOBODY, NOBODY)
    launch_folder.remove_abandoned(memory)
    assert victim.read_bytes() == b"precious"
    assert planted == "foreign file" or (os.path.lexists(folder) and (folder / launch_folder.PARTIAL_FILES).exists())


def test_outside_a_launch_nothing_is_noted(tmp_path):
    launch_folder.note_partial_files(None, [tmp_path / "half"])
    launch_folder.note_partial_files(str(tmp_path / "elsewhere"), [tmp_path / "half"])
    assert not list(tmp_path.iterdir())


@mpi
def test_a_launcher_that_is_killed_takes_its_ranks_with_it(capfd):
    assert start(2, KILL_LAUNCHER) == 1
    assert "was killed by signal 9 (SIGKILL); all ranks were ended" in capfd.readouterr().err
    assert not left_behind()


@mpi
def test_a_rank_that_raises_is_named_and_the_others_are_ended(capfd):
    assert start(2, WAIT + "\nraise ValueError('boom')") == 1
    err = capfd.readouterr().err
    assert "ValueError: boom" in err
    assert err.endswith("quadrille: rank 1 ended with exit status 1; all ranks were ended\n")


@mpi
@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        ("RunError('no result')", 1, "quadrille: rank 1 of 2: no result\n"),
        ("InputError('m=0')", 2, "quadrille: rank 1 of 2: m=0\n"),
    ],
)
def test_fail_all_on_one_rank_prints_one_line_and_ends_all_with_the_status_of_the_error(capfd, raised, status, line):
    source = (
        WAIT
        + "\nfrom quadrille.algorithms.errors import *; from quadrille.runtime.host.world import fail_all"
        + f"; fail_all({raised})"
    )
    assert start(2, source) == status
    assert capfd.readouterr().err == line


@mpi
def test_an_input_error_of_all_ranks_is_printed_once_and_by_rank_0(capfd):
    source = (
        "from quadrille.algorithms.errors import *; from quadrille.runtime.host.world import fail_all; "
        "fail_all(InputError('m=0'))"
    )
    assert start(3, source) == 2
    assert capfd.readouterr().err == "quadrille: m=0\n"


@mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_a_launch_that_is_ended(number, tmp_path):
    source = (
        "import sys; from quadrille.runtime.launching.launch import launch; "
        "sys.exit(launch(2, [], program=('-c', sys.argv[1])))"
    )
    waiting = WAIT.replace("rank != 1", "True")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", source, waiting],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert {process.stdout.readline(), process.stdout.readline()} == {"started 0\n", "started 1\n"}
    process.send_signal(number)
    _, err = process.communicate(timeout=15)
    deadline = time.monotonic() + 10
    while left_behind() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left_behind()
    launch_folder.remove_abandoned()
    assert not list(Path("/dev/shm").glob(f"quadrille-{process.pid}-*"))
    if number != signal.SIGKILL:
        assert process.returncode == INTERRUPTED
        assert err == ""
        assert not list(tmp_path.iterdir())


@mpi
def test_hosts_group_all_ranks_and_count_cores(capfd):
    source = """
from quadrille.runtime.host.world import hosts, world
found = hosts(world())
if world().rank == 0:
    print([(host.ranks, host.cores) for host in found])
"""
    assert start(2, source) == 0
    assert capfd.readouterr().out == f"[((0, 1), {surroundings.usable_cores()})]\n"


@mpi
def test_options_that_the_launcher_refuses_are_an_input_error_of_one_line():
    with pytest.raises(InputError, match="--nonsense") as refused:
        launch(2, [], ["--nonsense"], program=("-c", "pass"))
    assert "\n" not in str(refused.value)


def test_fewer_than_one_rank_is_an_input_error():
    with pytest.raises(InputError, match="-n 0"):
        launch(0, ["run"])


@pytest.mark.parametrize("options", [[], ["--host", "10.0.0.1:9999,10.0.0.2:9999"]])
def test_more_ranks_than_this_host_can_bear_are_refused_in_a_laboratory_too(options):
    most = MOST_RANKS_A_CORE * surroundings.usable_cores()
    with pytest.raises(InputError, match=f"-n {most + 1}: this host takes at most {most} ranks"):
        launch(most + 1, ["run"], options, environment={world.LABORATORY: "lab"} if options else {})


def test_without_mpirun_the_error_names_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(InputError, match=r"no mpirun .* for Open MPI 5.0.11.*openmpi"):
        find_launcher(Mpi("Open MPI", "5.0.11"), {"PATH": str(tmp_path)})


def test_an_mpirun_of_another_mpi_is_refused_and_one_of_the_same_is_found_behind_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    foreign = fake_launcher(tmp_path / "mpich", "mpirun", "HYDRA build details:\\n    Version: 4.2.1")
    with pytest.raises(InputError, match=r"mpi4py loads Open MPI 5.0.11, but .*MPICH 4.2.1"):
        find_launcher(Mpi("Open MPI", "5.0.11"), {"PATH": str(foreign.parent)})
    own = fake_launcher(tmp_path / "openmpi", "mpiexec", "mpiexec (Open MPI) 5.0.6")
    path = os.pathsep.join([str(foreign.parent), str(own.parent)])
    assert find_launcher(Mpi("Open MPI", "5.0.11"), {"PATH": path}).program == own
    assert find_launcher(Mpi("Intel MPI", "2021.12"), {"PATH": path}).program == foreign


def fake_launcher(folder, name, version):
    folder.mkdir()
    program = folder / name
    program.write_text(f"#!/bin/sh\nprintf '{version}\\n'\n")
    program.chmod(0o755)
    return program


def test_without_an_mpi_library_the_error_says_what_to_install(monkeypatch, tmp_path):
    python = fake_launcher(tmp_path / "bin", "python", "")
    python.write_text("#!/bin/sh\necho 'RuntimeError: cannot load MPI library' >&2; exit 1\n")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(InputError, match=r"cannot load MPI library.*openmpi"):
        loaded_mpi({})


def test_threads_share_the_cores_unless_the_command_says_or_hosts_are_several(monkeypatch):
    monkeypatch.setattr(surroundings, "usable_cores", lambda: 12)
    assert rank_variables(5, ["run"], [], {})["OMP_NUM_THREADS"] == "2"
    assert rank_variables(13, ["run"], [], {})["OMP_NUM_THREADS"] == "1"
    assert rank_variables(5, ["run", "--threads=3"], [], {})["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in rank_variables(5, ["run"], ["--host", "a,b"], {})


@pytest.mark.parametrize(("program", "threads"), [((), "3"), (None, "1")])
def test_threads_are_those_of_a_command_of_ours_not_of_any_program(monkeypatch, program, threads):
    seen = []
    monkeypatch.setattr(surroundings, "usable_cores", lambda: 2)
    monkeypatch.setattr(
        "quadrille.runtime.launching.launch.supervise",
        lambda _, variables, *__: seen.append(variables) or (0, LauncherOutput()),
    )
    assert launch(2, ["mine", "--threads", "3"], program=program) == 0
    assert seen[0]["OMP_NUM_THREADS"] == threads


def test_a_failing_rank_is_named_unless_a_line_of_ours_names_it():
    failure = Failure(rank=1, status=3)
    for line, known in (
        ("rank 1 ready", False),
        ("quadrille: rank 12 of 16: no", False),
        ("quadrille: rank 1 of 16: no", True),
    ):
        output = LauncherOutput()
        assert output.feed(f"{line}\n") == [f"{line}\n"]
        assert explained(failure, output) == known, line


def test_a_process_carries_the_mark_of_its_launch(tmp_path):
    process = subprocess.Popen(["sleep", "30"], env={"QUADRILLE_LAUNCH": str(tmp_path)})
    try:
        deadline = time.monotonic() + 5
        while not processes_of_launch(str(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.01)  # the kernel shows its environment a moment after the program has begun
        assert processes_of_launch(str(tmp_path)) == [process.pid]
        assert processes_of_launch(str(tmp_path) + "1") == []
    finally:
        process.kill()
        process.wait()


def test_a_frame_that_is_not_the_launchers_is_passed_on_whole():
    output = LauncherOutput()
    lines = ["-" * 60 + "\n", "a table of ours\n", "-" * 60 + "\n", "\n"]
    assert [line for fed in lines for line in output.feed(fed)] == lines
    assert output.remarks == []


def test_the_first_failure_reported_is_the_one_that_counts():
    output = LauncherOutput()
    assert output.feed("srun: error: nid1: task 2: Segmentation fault\n") == []
    assert output.feed("srun: error: nid1: task 0: Killed\n") == []
    assert output.failure == Failure(rank=2, signal=11)


class FakeWorld:
    def __init__(self, size, rank=0):
        self.size, self.rank = size, rank


def test_a_world_of_one_where_the_launcher_started_more_is_refused(monkeypatch):
    monkeypatch.setattr(world, "loaded_library", lambda: "Open MPI 5.0.11")
    with pytest.raises(InputError, match="two MPIs are mixed"):
        world.check_world(FakeWorld(1), {"PMI_SIZE": "4"})
    world.check_world(FakeWorld(1), {"OMPI_COMM_WORLD_SIZE": "1"})


def test_a_batch_script_that_runs_one_rank_in_a_larger_allocation_is_no_mixture():
    world.check_world(FakeWorld(1), {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"})


@pytest.mark.parametrize(("error", "status"), [(InputError("m=0"), 2), (RunError("no"), 1), (OSError("disk"), 1)])
def test_a_single_rank_fails_by_leaving_with_the_status_of_the_error(capsys, error, status):
    with pytest.raises(SystemExit) as left:
        world.fail_all(error, communicator=FakeWorld(1))
    assert left.value.code == status
    text = str(error) if isinstance(error, QuadrilleError) else f"OSError: {error}"
    assert capsys.readouterr().err == f"quadrille: {text}\n"


def test_a_remark_that_the_launcher_prints_first_on_stdout_is_kept_and_what_ranks_print_is_not():
    rule, output = "-" * 60, LauncherOutput()
    assert output.keep_remark(f"{rule}\nA daemon failed to report back.\n\n  Remote host: far\n{rule}\n")
    assert reason_in(255, output) == "no process of the launcher began on host far"
    for text in ("predicted: 4d\n", f"{rule}\na table of a rank\n{rule}\n", f"{rule}\nno daemon, no end"):
        assert not output.keep_remark(text)
