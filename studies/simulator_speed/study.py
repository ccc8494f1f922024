"""`quadrille study simulator-speed`, which is `make bench-simulator`: how fast is the network simulator, side by side?

The workloads are pinned in the README of this folder.  Every figure comes from
a `quadrille` process of its own, so that its peak memory is its own; its wall
seconds run from parsed arguments to the result, the topology included, imports
and compilation apart; of training steps they are the whole command's.  Each kind
of folding is switched off in turn, for sizes that then still end within `PATIENCE`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.output.destinations import write_or_show
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.studies.simulator_speed.cases import FLOOR_SECONDS, SpeedCase, cases
from quadrille.studies.simulator_speed.report import PATIENCE, Line, Speed, growth, print_speed

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA = "quadrille/simulator-speed/1"
REPEATS = 3


def main() -> None:
    """Measure every case and keep the figures of today."""
    RESULTS.mkdir(exist_ok=True)
    simulator_speed(json_file=str(RESULTS / f"{date.today()}.json"), command=["quadrille", "study", "simulator-speed"])


def simulator_speed(
    *, json_file: str = "", quick: bool = False, simgrid: bool = True, command: Sequence[str] = ()
) -> None:
    """Measure every case, and print a table of all cases.

    Parameters
    ----------
    json_file : file of all figures; `-` is stdout
    quick : whether to run a single repeat, sizes up to 16,384 and no switches
    simgrid : whether to run SimGrid too, if it is installed
    """
    if json_file:
        schema_files.check_writable(json_file)
    repeats = 1 if quick else REPEATS
    with tempfile.TemporaryDirectory() as folder:
        lines = list(_lines(cases(Path(folder), quick=quick), repeats))
        said, beside = _simgrid(quick=quick) if simgrid else ("left out", [])
    speed = Speed(
        lines=(*lines, *beside), growth=tuple(growth(lines)), simgrid=said, provenance=provenance(list(command))
    )
    write_or_show(speed, json_file, SCHEMA, lambda: print_speed(speed))


def _lines(chosen: Iterator[SpeedCase], repeats: int) -> Iterator[Line]:
    for (workload, switches), group in groupby(chosen, key=lambda case: (case.workload, case.switches)):
        for case in group:
            remark(f"{workload} {switches} {case.size}".replace("  ", " "))
            line = _line(case, repeats)
            yield line
            if line.wall is None:
                break


def _line(case: SpeedCase, repeats: int) -> Line:
    """The case, run once to have everything compiled and then `repeats` times; long ones once."""
    answers: list[dict[str, object]] = []
    for attempt in range(repeats + 1):
        answer = ask_timed(case.words) if case.whole else ask(case.words)
        if answer is None:
            break
        wall = float(str(answer["wall_seconds"]))
        if attempt or wall > PATIENCE / 10:
            answers.append(answer)
        if wall > PATIENCE / 10:
            break
    last = answers[-1] if answers else {}
    simulated = last.get("seconds", last.get("makespan_s"))
    return Line(
        workload=case.workload,
        size=case.size,
        switches=case.switches,
        command="quadrille " + " ".join(Path(word).name if word.endswith(".csv") else word for word in case.words),
        wall_seconds=tuple(float(str(answer["wall_seconds"])) for answer in answers),
        peak_memory_bytes=max((int(str(answer["peak_memory_bytes"])) for answer in answers), default=None),
        simulated_seconds=None if simulated is None else float(str(simulated)),
        by_hand_seconds=case.by_hand,
        events=None if "events" not in last else int(str(last["events"])),
        classes=None if "classes" not in last else int(str(last["classes"])),
        floor_wall_seconds=case.floor or FLOOR_SECONDS.get((case.workload, case.size, case.switches)),
    )


def ask_timed(words: Sequence[str]) -> dict[str, object] | None:
    """What of a record of `quadrille simulate` is shown, with the wall seconds and the memory of its whole process.

    Raises
    ------
    RuntimeError : the command failed
    """
    with tempfile.TemporaryFile() as answer:
        began = time.perf_counter()
        process = subprocess.Popen(_command(words), stdout=answer, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"quadrille {' '.join(words)}: exit status {process.returncode}")
        answer.seek(0)
        record = json.load(answer)
    extent = record["simulation"]
    return {
        "wall_seconds": wall,
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "seconds": record["seconds"],
        "events": extent["events"],
        "classes": extent["rank_classes"],
    }


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "quadrille", *words, "--json", "-"]


def ask(words: Sequence[str]) -> dict[str, object] | None:
    """The JSON answer of `quadrille`, run in its own process; None if it takes longer than `PATIENCE`.

    Raises
    ------
    RuntimeError : the command failed; the message has its last line
    """
    process = subprocess.Popen(
        _command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        answer, remarks = process.communicate(timeout=PATIENCE + 30)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise RuntimeError(f"quadrille {' '.join(words)}: {remarks.strip().splitlines()[-1:]}")
    record: dict[str, object] = json.loads(answer)
    return record if float(str(record["wall_seconds"])) <= PATIENCE else None


def _simgrid(*, quick: bool) -> tuple[str, list[Line]]:
    """SimGrid on the same traffic where it is installed, and what to say of it."""
    from quadrille.studies.simulator_speed.simgrid_runner import NotInstalled, simgrid_rows

    try:
        return "installed", simgrid_rows(quick=quick)
    except NotInstalled as error:
        return str(error), []


if __name__ == "__main__":
    run_as_program(main)
