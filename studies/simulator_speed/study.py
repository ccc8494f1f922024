"""`quadrille study simulator-speed` (`make bench-simulator`): wall time and memory of the network simulator.

The workloads are defined in `README.md`; SimGrid runs the same workloads if it is installed.  Each measurement is a
`quadrille` process of its own, so that its peak memory can be measured.  The wall time is from parsed arguments to the
result, with the topology and without imports and compilation; for training steps it is that of the whole process.
Each shortcut of the simulator is switched off in turn, for the sizes that then end within `TIME_LIMIT_SECONDS`.
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
from quadrille.studies.simulator_speed.report import TIME_LIMIT_SECONDS, SpeedAnswer, TimedCase, growth, print_speed
from quadrille.studies.simulator_speed.speed_cases import FLOOR_SECONDS, SpeedCase, cases

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA = "quadrille/simulator-speed/1"
REPEATS = 3


def main() -> None:
    """Run the study, and write the answer to `results/` under today's date."""
    RESULTS.mkdir(exist_ok=True)
    simulator_speed(json_file=str(RESULTS / f"{date.today()}.json"), command=["quadrille", "study", "simulator-speed"])


def simulator_speed(
    *, json_file: str = "", quick: bool = False, simgrid: bool = True, command: Sequence[str] = ()
) -> None:
    """Measure every case, and print a table of all cases.

    Parameters
    ----------
    json_file : file of the answer, `-` for stdout; empty: not written
    quick : whether to run a single repeat, sizes up to 16,384 and no switches
    simgrid : whether to run SimGrid too, if it is installed
    command : command line, for the provenance
    """
    if json_file:
        schema_files.check_writable(json_file)
    repeats = 1 if quick else REPEATS
    with tempfile.TemporaryDirectory() as folder:
        lines = list(_time_cases(cases(Path(folder), quick=quick), repeats))
        status, simgrid_lines = _simgrid(quick=quick) if simgrid else ("left out", [])
    speed = SpeedAnswer(
        lines=(*lines, *simgrid_lines),
        growth=tuple(growth(lines)),
        simgrid=status,
        provenance=provenance(list(command)),
    )
    write_or_show(speed, json_file, SCHEMA, lambda: print_speed(speed))


def _time_cases(speed_cases: Iterator[SpeedCase], repeats: int) -> Iterator[TimedCase]:
    """The results of the cases; after a case that exceeds the limit, the larger cases of its group are left out."""
    for (workload, switches), group in groupby(speed_cases, key=lambda case: (case.workload, case.switches)):
        for case in group:
            remark(f"{workload} {switches} {case.size}".replace("  ", " "))
            line = time_case(case, repeats)
            yield line
            if line.wall is None:
                break


def time_case(case: SpeedCase, repeats: int) -> TimedCase:
    """Run a case once to compile everything, and then `repeats` times; long cases run once."""
    answers: list[dict[str, object]] = []
    for attempt in range(repeats + 1):
        answer = run_whole_process(case.arguments) if case.whole else run_quadrille(case.arguments)
        if answer is None:
            break
        wall = float(str(answer["wall_seconds"]))
        if attempt or wall > TIME_LIMIT_SECONDS / 10:
            answers.append(answer)
        if wall > TIME_LIMIT_SECONDS / 10:
            break
    last = answers[-1] if answers else {}
    simulated = last.get("seconds", last.get("makespan_s"))
    return TimedCase(
        workload=case.workload,
        size=case.size,
        switches=case.switches,
        command="quadrille " + " ".join(Path(word).name if word.endswith(".csv") else word for word in case.arguments),
        wall_seconds=tuple(float(str(answer["wall_seconds"])) for answer in answers),
        peak_memory_bytes=max((int(str(answer["peak_memory_bytes"])) for answer in answers), default=None),
        simulated_seconds=None if simulated is None else float(str(simulated)),
        by_hand_seconds=case.by_hand,
        events=None if "events" not in last else int(str(last["events"])),
        classes=None if "classes" not in last else int(str(last["classes"])),
        floor_wall_seconds=case.floor or FLOOR_SECONDS.get((case.workload, case.size, case.switches)),
    )


def run_whole_process(arguments: Sequence[str]) -> dict[str, object] | None:
    """Run `quadrille simulate`, and return its result with the wall time and the peak memory of the whole process.

    Parameters
    ----------
    arguments : arguments of `quadrille`, without `--json`

    Returns
    -------
    `wall_seconds`, `peak_memory_bytes`, and of the record `seconds`, `events` and `classes`.

    Raises
    ------
    RuntimeError : the command failed
    """
    with tempfile.TemporaryFile() as answer:
        start = time.perf_counter()
        process = subprocess.Popen(
            _command(arguments), stdout=answer, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"quadrille {' '.join(arguments)}: exit status {process.returncode}")
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


def _command(arguments: Sequence[str]) -> list[str]:
    """The command line of `quadrille` with JSON on stdout."""
    return [sys.executable, "-P", "-m", "quadrille", *arguments, "--json", "-"]


def run_quadrille(arguments: Sequence[str]) -> dict[str, object] | None:
    """The JSON answer of `quadrille`, run as a process; None if it exceeds `TIME_LIMIT_SECONDS`.

    Parameters
    ----------
    arguments : arguments of `quadrille`, without `--json`

    Raises
    ------
    RuntimeError : the command failed; the message has its last line
    """
    process = subprocess.Popen(
        _command(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        answer, remarks = process.communicate(timeout=TIME_LIMIT_SECONDS + 30)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise RuntimeError(f"quadrille {' '.join(arguments)}: {remarks.strip().splitlines()[-1:]}")
    record: dict[str, object] = json.loads(answer)
    return record if float(str(record["wall_seconds"])) <= TIME_LIMIT_SECONDS else None


def _simgrid(*, quick: bool) -> tuple[str, list[TimedCase]]:
    """The status of SimGrid as text, and its results; none if it is not installed."""
    from quadrille.studies.simulator_speed.simgrid_runner import SimgridMissing, simgrid_rows

    try:
        return "installed", simgrid_rows(quick=quick)
    except SimgridMissing as error:
        return str(error), []


if __name__ == "__main__":
    run_as_program(main)
