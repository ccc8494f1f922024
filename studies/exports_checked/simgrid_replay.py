"""The time of an exported schedule on an exported platform in SimGrid, through a C++ program (`simgrid_follower.cpp`).

SimGrid is not a dependency; on Debian `apt install libsimgrid-dev g++` installs it.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from quadrille.algorithms.errors import RunError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.message_graph import MessageGraph
from quadrille.studies.simulator_speed.simgrid_runner import OPTIONS, SimgridMissing

FOLLOWER = Path(__file__).parent / "simgrid_follower.cpp"
KINDS = {"calculate": "c", "send": "s", "receive": "r"}
TIME_LIMIT_SECONDS = 600.0


def compile_follower(folder: Path) -> Path:
    """Compile the follower into `folder`, and return its path.

    Raises
    ------
    SimgridMissing : no g++ or no SimGrid with which the follower compiles
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise SimgridMissing("not installed: g++ is missing (apt install g++ libsimgrid-dev)")
    program = folder / "follower"
    command = [compiler, "-O1", "-std=c++17", "-o", str(program), str(FOLLOWER), "-lsimgrid"]
    compilation = subprocess.run(command, capture_output=True, text=True, check=False)
    if compilation.returncode:
        raise SimgridMissing("not installed, or the follower does not compile with it (apt install libsimgrid-dev)")
    return program


def simgrid_finish(
    program: Path, graph: MessageGraph, hosts: Sequence[str], platform: Path, folder: Path
) -> list[float]:
    """End of each rank in SimGrid [s].

    Parameters
    ----------
    program : compiled follower
    hosts : host of each rank, by its name in the platform
    platform : SimGrid XML file
    folder : folder for the description of the graph

    Raises
    ------
    RunError : the follower failed
    """
    path = folder / "graph.txt"
    schema_files.write_text(path, "\n".join(_lines(graph, hosts)) + "\n")
    command = [str(program), str(path), str(platform), *OPTIONS]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS, check=False)
    if completed.returncode:
        raise RunError(f"SimGrid failed: {(completed.stderr.strip() or str(completed.returncode)).splitlines()[-1]}")
    finish: list[float] = json.loads(completed.stdout)["finish_s"]
    return finish


def _lines(graph: MessageGraph, hosts: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the follower's input."""
    yield f"{len(graph.ranks)} {sum(map(len, graph.ranks))}"
    yield from hosts[: len(graph.ranks)]
    for rank, tasks in enumerate(graph.ranks):
        for task in tasks:
            needs = " ".join(map(str, (len(task.needs), *task.needs)))
            yield f"{rank} {KINDS[task.kind]} {task.amount!r} {task.peer} {task.tag} {task.stream} {needs}"
