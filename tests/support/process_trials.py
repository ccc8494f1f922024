"""Trials of launches of which a process is stopped or killed at a random moment: how they end, and what they leave.

`python -m tests.support.process_trials [--seed N] [--draws N]` prints a line for each trial, with its faults. The
victim is the launcher, mpirun or a rank; the signal is SIGSTOP, SIGTERM or SIGKILL; the moment is drawn from the time
of an undisturbed run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tests.support.quadrille import ROOT
from tests.support.speed import slowness

STOPPED_SECONDS = 1.0
"""The time after which a launch of a trial notices a stopped process, instead of 10 s [s]."""
BOUND_SECONDS = STOPPED_SECONDS + 12.0
"""The time within which a launch ends after a stop or a kill: it is noticed, and two periods of grace pass [s]."""
START = f"""
import sys
from quadrille.runtime.launching import launch
launch.launch.__kwdefaults__["limits"] = launch.TimeLimits(stopped={STOPPED_SECONDS})
from quadrille.cli.main import program
sys.exit(program())
"""
WORDS = "launch -n 2 run --matmul 256,256,256 --grid x=2 --repeats 20 --c c.npy --json r.json"
SHORT = "launch -n 1 run --matmul 8,8,8 --repeats 1 --warmups 0"
VICTIMS = ("launcher", "mpirun", "rank 0", "rank 1")
SIGNALS = (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL)
MARK = "QUADRILLE_TRIAL"
OLD = b"old\n"


@dataclass(frozen=True)
class Draw:
    """A trial that was drawn.

    Parameters
    ----------
    victim : the process that gets the signal
    number : the signal
    share : moment from the victim's start to the end of an undisturbed run, as a share
    """

    victim: str
    number: signal.Signals
    share: float

    def __str__(self):
        return f"{self.number.name} to {self.victim} at {self.share:.2f}"


class Launch:
    """A launch in a folder of its own, and all its processes."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="trial-"))
        self.work, self.temporary = self.folder / "work", self.folder / "tmp"
        for folder in (self.work, self.temporary):
            folder.mkdir()
        for name in ("c.npy", "r.json"):
            (self.work / name).write_bytes(OLD)
        self.mark = str(self.folder)
        self.begin = time.monotonic()
        self.process = self.start(WORDS)

    def start(self, words):
        """A process of the program with these words."""
        variables = os.environ | {"PYTHONPATH": str(ROOT), MARK: self.mark, "TMPDIR": str(self.temporary)}
        return subprocess.Popen(
            [sys.executable, "-P", "-c", START, *words.split()],
            cwd=self.work, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def processes(self):
        """The processes of the launch that have not ended, by name."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                variables = process.environ()
                if variables.get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield self.name_of(process, variables), process.pid

    def name_of(self, process, variables):
        """The name of a process: `launcher`, `mpirun`, `rank N`, or that of its program."""
        if process.pid == self.process.pid:
            return "launcher"
        words = process.cmdline()
        if words and Path(words[0]).name in ("mpirun", "prterun", "mpiexec", "mpiexec.hydra") and "-n" in words:
            return "mpirun"
        rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("PMI_RANK"))
        return " ".join(words[:3]) if rank is None else f"rank {rank}"

    def victim(self, name):
        """The process with a name, as soon as it runs; None if the launch ended before."""
        while self.process.poll() is None:
            if (pid := dict(self.processes()).get(name)) is not None:
                return pid
            time.sleep(0.01)
        return None

    def left(self):
        """What the launch left: processes, folders in shared memory and temporary files, and hidden files."""
        yield from (f"process {name}" for name, _ in self.processes())
        yield from (str(path) for path in Path("/dev/shm").glob(f"quadrille-{self.process.pid}-*"))
        yield from (str(path) for path in self.temporary.iterdir())
        yield from (path.name for path in self.work.iterdir() if path.name not in ("c.npy", "r.json"))

    def torn(self):
        """The result files that are neither old nor whole."""
        for name in ("c.npy", "r.json"):
            path = self.work / name
            try:
                whole = path.read_bytes() == OLD or bool(
                    json.loads(path.read_bytes()) if name == "r.json" else np.load(path).shape == (256, 256)
                )
            except (OSError, ValueError, EOFError):
                whole = False
            if not whole:
                yield f"{name} is torn or gone"

    def close(self):
        """End what is left."""
        for _, pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def trial(draw, seconds):
    """The faults of a launch that is disturbed as drawn, and in words how it ended.

    Parameters
    ----------
    seconds : time of an undisturbed run [s]
    """
    launch = Launch()
    try:
        return _disturbed(launch, draw, seconds)
    finally:
        launch.close()


def _disturbed(launch, draw, seconds):
    pid = launch.victim(draw.victim)
    time.sleep(draw.share * max(0.0, launch.begin + seconds - time.monotonic()))
    with suppress(ProcessLookupError, TypeError):
        os.kill(pid, draw.number)
    struck = time.monotonic()
    if (draw.victim, draw.number) == ("launcher", signal.SIGSTOP):
        time.sleep(1.0)  # nobody watches the launcher; a shell's `fg` has it go on
        launch.process.send_signal(signal.SIGCONT)
    try:
        _, err = launch.process.communicate(timeout=BOUND_SECONDS * slowness())
    except subprocess.TimeoutExpired:
        return [f"it runs {BOUND_SECONDS:g} s later: {list(launch.processes())}"], "hangs"
    took = time.monotonic() - struck
    faults = [*_faults_of_end(draw, launch.process.returncode, err.splitlines())]
    until = time.monotonic() + BOUND_SECONDS
    while any(launch.processes()) and time.monotonic() < until:
        time.sleep(0.02)
    if draw.victim == "launcher" and draw.number == signal.SIGKILL:
        with launch.start(SHORT) as following:
            following.communicate(timeout=60 * slowness())
            faults += [] if following.returncode == 0 else [f"the next launch ended with {following.returncode}"]
    faults += [f"left: {name}" for name in launch.left()] + [*launch.torn()]
    return faults, f"status {launch.process.returncode} after {took:.1f} s: {err.strip()!r}"


def _faults_of_end(draw, status, lines):
    """The faults of an exit status and of the lines on stderr."""
    killed = (draw.victim, draw.number) == ("launcher", signal.SIGKILL)
    interrupted = (draw.victim, draw.number) == ("launcher", signal.SIGTERM)
    expected = {0, -9} if killed else {0, -15, 130} if interrupted else {0, 1}
    if status not in expected:
        yield f"exit status {status}, not one of {sorted(expected)}"
    if not killed and status not in (0, -15) and (len(lines) != 1 or not lines[0].startswith("quadrille: ")):
        yield f"not one line: {lines}"


def draws(seed, number):
    """Trials at random: every victim and every signal as often as the others."""
    drawn = random.Random(seed)
    pairs = [(victim, kind) for victim in VICTIMS for kind in SIGNALS]
    rounds = -(-number // len(pairs))
    chosen = [pair for _ in range(rounds) for pair in drawn.sample(pairs, len(pairs))][:number]
    return [Draw(victim, kind, drawn.uniform(0, 0.7)) for victim, kind in chosen]


def main(arguments):
    """Try launches that are disturbed; 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    quiet = Launch()
    quiet.process.communicate()
    seconds = time.monotonic() - quiet.begin
    quiet.close()
    failed = False
    for draw in draws(options.seed, options.draws):
        faults, ending = trial(draw, seconds)
        print(f"{draw}: {ending}" + "".join(f"\n  FAULT {fault}" for fault in faults), flush=True)
        failed |= bool(faults)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
