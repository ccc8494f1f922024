"""Shared memory: a launch without room for it says so, and a process without a launcher makes none."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.runtime.launching import launch_folder
from tests.support.quadrille import ROOT

QUADRILLE = [sys.executable, "-P", "-m", "quadrille"]
PLAIN_PROCESS = """
import os
from quadrille.runtime.host.world import world
assert world().size == 1
print("sm_segment" in open("/proc/self/maps").read(), os.environ.get("OMPI_MCA_btl"))
"""


def in_small_shared_memory(size, words):
    """The end of a command whose /dev/shm has this size, and the names that it leaves there."""
    small = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && {{ "$@"; status=$?; ls -A /dev/shm; exit $status; }}'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", small, "sh", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def mounts():
    """Skips the test where this user may not mount a file system."""
    if in_small_shared_memory("1m", ["true"]).returncode != 0:
        pytest.skip("needs a mount namespace, which root may make")


@pytest.mark.mpi
@pytest.mark.usefixtures("mounts")
def test_a_launch_without_room_in_shared_memory_says_so_and_runs():
    run = ["run", "--matmul", "64,64,64", "--grid", "z=2", "--repeats", "1", "--warmups", "0"]
    ended = in_small_shared_memory("8m", [*QUADRILLE, "launch", "-n", "2", *run, "--quiet"])
    (line,) = ended.stderr.splitlines()
    assert line.startswith("quadrille: shared memory /dev/shm has 8388608 bytes free, the ranks may need 34734080: ")
    assert ended.returncode == 0 and "\ntotal: " in ended.stdout, ended.stdout
    assert "quadrille-" not in ended.stdout and "sm_segment" not in ended.stdout


def test_a_launch_without_room_anywhere_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(launch_folder.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(InputError, match=rf"shared memory {tmp_path} has 4096 bytes free, the ranks may need 5000; "):
        launch_folder.parent_folder(5000, tmp_path)
    assert launch_folder.parent_folder(4096, tmp_path) == str(tmp_path)


def test_a_process_without_a_launcher_makes_no_shared_memory_that_could_stay():
    """And its ranks, if it starts some, get the usual connections."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    plain = [sys.executable, "-P", "-c", PLAIN_PROCESS]
    ended = subprocess.run(plain, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout.split() == ["False", "None"], ended.stderr


STARTS_MPI = """
import sys
from quadrille.runtime.execution import rank_environment

def start():
    print("mpi4py.MPI" in sys.modules)
    sys.exit(0)

rank_environment.start_world = start
from quadrille.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("words", [["calibrate", "--out", "-"], ["run", "--matmul", "8,8,8"]])
def test_a_command_imports_mpi_by_the_function_that_starts_it_without_shared_memory(words):
    program = [sys.executable, "-P", "-c", STARTS_MPI, *words]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr
