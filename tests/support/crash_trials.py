"""Trials of writers that die at each crash point (`crash_points.py`): their files then, and after a new run.

`python -m tests.support.crash_trials [NAME…] [--most N]` tries every point of the named writers (all by default), and
prints a line for each writer and for each fault. This process has imported what the writers import, and forks a child
for each run.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from quadrille.algorithms.formats.atomic_files import HiddenFile, writer_token
from quadrille.cli.main import main as quadrille
from tests.support import crash_points
from tests.support.quadrille import HOST, ROOT

OLD, LIVE = b"old\n", b"of another writer, which lives\n"
MATMUL = "--matmul 24,16,8"
MLP = "--mlp 8,8 --batch 8 --steps 1"
RUN = "run --repeats 1 --warmups 0"


@dataclass(frozen=True)
class Writer:
    """A command that writes files.

    Parameters
    ----------
    words : words of the command
    targets : names of its files, without folders
    """

    words: str
    targets: tuple[str, ...]


WRITERS = {
    "json": Writer(f"simulate {MATMUL} --grid x=2 --machine toy.toml --json r.json", ("r.json",)),
    "timeline": Writer(
        f"simulate {MATMUL} --grid x=2 --machine toy.toml --timeline l.json --trace t.json", ("l.json", "t.json")
    ),
    "sweep": Writer(
        f"sweep {MATMUL} --machine toy.toml --vary grid=x=1;x=2 --csv s.csv --json s.json", ("s.csv", "s.json")
    ),
    "toml": Writer("machines perlmutter --toml m.toml", ("m.toml",)),
    "topology": Writer("topology show star:hosts=4,bandwidth=1e9,latency=1e-6 --json g.json", ("g.json",)),
    "operands": Writer(f"operands {MATMUL} --a a.npy --b b.npy", ("a.npy", "b.npy")),
    "gradients": Writer(
        f"{RUN} {MATMUL} --passes training --c c.npy --da da.npy --db db.npy", ("c.npy", "da.npy", "db.npy")
    ),
    "product": Writer(f"{RUN} {MATMUL} --c c.npy", ("c.npy",)),
    "product of two ranks": Writer(f"{RUN} {MATMUL} --grid x=2 --c c.npy", ("c.npy",)),
    "checkpoint of two ranks": Writer(f"{RUN} {MLP} --grid x=2 --save p.safetensors", ("p.safetensors",)),
    "checkpoint": Writer(f"{RUN} {MLP} --save p.safetensors", ("p.safetensors",)),
}


def is_whole(path):
    """Whether a file is the old one, or a whole new one."""
    content = path.read_bytes()
    return content == OLD or is_new(path.suffix, content)


def is_new(suffix, content):
    """Whether the content is that of a whole new file."""
    if suffix == ".csv":
        lines = list(csv.reader(io.StringIO(content.decode())))
        return len(lines) == 3 and content.endswith(b"\n") and len({len(line) for line in lines}) == 1
    try:
        if suffix == ".toml":
            return bool(tomllib.loads(content.decode())["device"])
        if suffix == ".json":
            return bool(json.loads(content))
        if suffix == ".npy":
            return bool(np.isfinite(np.load(io.BytesIO(content))).all())
    except (ValueError, EOFError):
        return False
    return is_checkpoint(content)


def is_checkpoint(content):
    """Whether the content is a checkpoint whose sums are right."""
    from quadrille.runtime.files.checkpoint_reader import open_checkpoint

    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        try:
            open_checkpoint(file.name)
        except Exception:
            return False
    return True


class Trial:
    """The runs of one writer in one folder.

    Parameters
    ----------
    writer : the writer
    planted : whether the targets are there before, with mode 0600
    """

    killed = -9
    """How a run ends that was killed at a point."""
    runs_after_each_kill = True
    """Whether the next run follows each kill; it follows the last kill in any case."""

    def __init__(self, writer, planted):
        self.writer, self.planted = writer, planted
        self.folder = Path(tempfile.mkdtemp(prefix="crash-"))
        self.log = self.folder / "points"
        self.work = self.folder / "work"
        self.live = HiddenFile(self.work / writer.targets[0], writer_token()).path

    def prepare(self):
        """Put the folder into its first state."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        (self.work / "toy.toml").write_text(HOST)
        self.live.write_bytes(LIVE)
        for name in self.writer.targets if self.planted else ():
            (self.work / name).write_bytes(OLD)
            (self.work / name).chmod(0o600)

    def run(self, kill_at=0):
        """How the writer ended: its exit status, or less than 0 for a signal; and the kinds of its points."""
        self.log.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os.chdir(self.work)
            os.umask(0o022)
            os.environ.update(OMPI_MCA_btl="self")  # MPI starts sooner without a network
            for number in (1, 2):
                os.dup2(os.open(self.folder / f"out{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            status = 99
            try:
                crash_points.install(self.log, kill_at)
                status = quadrille(self.writer.words.split())
            finally:
                os._exit(status)
        _, code = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(code), self.log.read_text().split()

    def faults_after_kill(self):
        """The faults in the state of the folder behind a kill."""
        for name in self.writer.targets:
            path = self.work / name
            if self.planted and not path.exists():
                yield f"{name} is gone"
            elif path.exists() and not is_whole(path):
                yield f"{name} is torn"
        for path in self.work.iterdir() if self.planted else ():
            if path not in (self.live, self.work / "toy.toml") and path.stat().st_mode & 0o777 != 0o600:
                yield f"{path.name} has mode {path.stat().st_mode & 0o777:o}"

    def faults_after_run(self, status):
        """The faults in the state of the folder behind a run that was not killed."""
        if status != 0:
            yield f"the next run ended with {status}: {(self.folder / 'out2').read_text()[-300:]}"
        left = {path.name for path in self.work.iterdir()} - {"toy.toml", *self.writer.targets}
        if left != {self.live.name}:
            yield f"files besides the targets: {sorted(left)}"
        for name in self.writer.targets:
            path = self.work / name
            mode = 0o600 if self.planted else 0o644
            if not path.exists() or not is_new(path.suffix, path.read_bytes()):
                yield f"{name} is not new"
            elif path.stat().st_mode & 0o777 != mode:
                yield f"{name} has mode {path.stat().st_mode & 0o777:o}"

    def warm_up(self):
        """Import what the writer imports; not where it starts MPI, which lives through no fork."""
        self.prepare()
        if self.writer.words.startswith("run "):
            import_module("quadrille.experiments.measure.run")
            import_module("quadrille.experiments.measure.training_job")
            return
        before = Path.cwd()
        os.chdir(self.work)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            quadrille(self.writer.words.split())
        os.chdir(before)

    def faults(self, most=None):
        """The kinds of the points that were tried, and the faults at each of them.

        Parameters
        ----------
        most : number of points that are tried, at equal distances; all by default
        """
        self.warm_up()
        self.prepare()
        status, kinds = self.run()
        faults = [f"without a kill: {fault}" for fault in self.faults_after_run(status)]
        points = list(enumerate(kinds, 1))[:: max(1, len(kinds) // (most or len(kinds)))]
        for number, kind in points:
            self.prepare()
            status, _ = self.run(number)
            at_point = [] if status == self.killed else [f"the run ended with {status}"]
            at_point += [*self.faults_after_kill()]
            if self.runs_after_each_kill or number == points[-1][0]:
                status, _ = self.run()
                at_point += [*self.faults_after_run(status)]
            faults += [f"killed at {number} ({kind}): {fault}" for fault in at_point]
        shutil.rmtree(self.folder)
        return [kind for _, kind in points], faults


class RanksTrial(Trial):
    """The runs of one writer on two ranks, one of which dies.

    The launcher outlives its ranks and removes what they leave, so nothing of a kill remains for the next run.

    Parameters
    ----------
    rank : the rank that dies
    """

    killed = 1
    runs_after_each_kill = False

    def __init__(self, writer, planted, rank):
        super().__init__(writer, planted)
        self.rank = rank

    def warm_up(self):
        """Nothing: the ranks are new processes."""

    def run(self, kill_at=0):
        self.log.unlink(missing_ok=True)
        words = [sys.executable, "-P", "-m", "quadrille", "launch", "-n", "2", *self.writer.words.split()]
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests/support/crash_site")))
        variables = os.environ | {"PYTHONPATH": path, "TEST_CRASH_POINT": f"{self.rank}:{kill_at}:{self.log}"}
        with (self.folder / "out2").open("a") as out:
            ended = subprocess.run(
                words, cwd=self.work, env=variables, stdout=out, stderr=out, umask=0o022, check=False
            )
        return ended.returncode, self.log.read_text().split()

    def faults_after_kill(self):
        yield from super().faults_after_kill()
        left = {path.name for path in self.work.iterdir()} - {"toy.toml", self.live.name, *self.writer.targets}
        if left:  # the launcher outlives its ranks
            yield f"left behind: {sorted(left)}"


def trials(name, ranks):
    """The trials of a writer, each with a description; `ranks` are those that die where the writer runs on two."""
    writer = WRITERS[name]
    if "--grid" in writer.words and writer.words.startswith("run "):
        for rank in ranks:
            yield f"{name}, rank {rank}", RanksTrial(writer, planted=True, rank=rank)
        return
    for planted in (True, False):
        yield f"{name}, {'old' if planted else 'no'} file", Trial(writer, planted)


def main(arguments):
    """Try the named writers; 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WRITERS))
    parser.add_argument("--most", type=int, help="points of each trial, at equal distances; all by default")
    parser.add_argument("--rank", type=int, action="append", help="the rank that dies; each of two by default")
    options = parser.parse_args(arguments)
    failed = False
    for name in options.names or WRITERS:
        begin, number, kinds = time.monotonic(), 0, set()
        for description, trial in trials(name, options.rank or (0, 1)):
            points, faults = trial.faults(options.most)
            number += len(points)
            kinds |= {*points}
            for fault in faults:
                print(f"{description}: {fault}", flush=True)
            failed |= bool(faults)
        print(f"{name}: {number} points, {'+'.join(sorted(kinds))}", flush=True)
        print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
