"""`python -m tests.fuzzing`: fresh inputs for some time on some processes, and every fault found."""

import argparse
import contextlib
import gc
import io
import os
import sys
import tempfile
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

from tests.fuzzing.forked import faults_of, run_input, run_words
from tests.fuzzing.inputs import WORDS, Inputs, make_valid_files

SHOWN = 600
"""Most characters of a file and of a stream that are shown."""


def import_commands():
    """Run each command that needs no MPI once here, and import what `run` imports: children need not import it."""
    from quadrille.cli.main import main as quadrille

    for words in WORDS:
        with contextlib.redirect_stdout(io.StringIO()):
            quadrille(words)
    import quadrille.runtime.execution.execute
    import quadrille.runtime.files.checkpoint_reader
    import quadrille.runtime.files.matrix_files
    import quadrille.runtime.operands.input_sources
    import quadrille.runtime.training.training_data
    import quadrille.runtime.verifying.verify

    assert "mpi4py.MPI" not in sys.modules, "a process may start MPI only once, and a child starts it"
    gc.freeze()  # or each child would copy all memory when it searches for cycles


def valid_files(folder):
    """A folder with valid files."""

    def run(*words):
        outputs = Path(tempfile.mkdtemp(prefix="fuzz-out-"))
        status, _, _ = run_words(words, folder, outputs, 60)
        if status != 0:
            raise SystemExit(f"quadrille {' '.join(words)}: {(outputs / 'err').read_text()}")

    make_valid_files(folder, run)


def search(worker, workers, seed, seconds, count, folder, answers):
    """Run every `workers`-th input, and answer with kind, number, faults and status of each."""
    inputs, deadline, number = Inputs(seed, folder), time.monotonic() + seconds, worker
    try:
        while time.monotonic() < deadline and number < count:
            given = inputs(number)
            ending = run_input(given)
            answers.put((given.kind, number, faults_of(given, ending), ending.status, ending.err[-300:]))
            number += workers
    finally:
        answers.put(None)


def show(given, ending, faults):
    """Print an input and its ending."""
    print("quadrille", *map(repr, given.words))
    for name, content in given.files.items():
        print(f"--- {name} ({len(content)} bytes)\n{content[:SHOWN]!r}")
    print(f"--- status {ending.status}, {ending.seconds:.2f} s, {ending.resident >> 20} MiB, left {ending.left}")
    print(
        f"--- stdout\n{ending.out[:SHOWN]}\n--- stderr\n{ending.err[-SHOWN:]}\n--- faults: {'; '.join(faults) or 'none'}"
    )


def main(words=None):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of the search")
    parser.add_argument("--count", type=int, default=10**9, help="most inputs")
    parser.add_argument("--seed", default=str(int.from_bytes(os.urandom(4), "little")))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, help="number of one input to run again and to show")
    asked = parser.parse_args(words)
    print(f"python -m tests.fuzzing --seed {asked.seed}", flush=True)
    import_commands()
    folder = tempfile.mkdtemp(prefix="fuzz-valid-")
    valid_files(folder)
    if asked.only is not None:
        given = Inputs(asked.seed, folder)(asked.only)
        ending = run_input(given)
        show(given, ending, faults := faults_of(given, ending))
        return int(bool(faults))
    return report(asked, folder)


def report(asked, folder):
    """Search, print each fault, then counts; the exit status is 1 after a fault."""
    context = get_context("fork")
    answers, begin = context.Queue(), time.monotonic()
    arguments = (asked.workers, asked.seed, asked.seconds, asked.count, folder, answers)
    processes = [context.Process(target=search, args=(worker, *arguments)) for worker in range(asked.workers)]
    for process in processes:
        process.start()
    kinds, statuses, faulty, ended = Counter(), Counter(), 0, 0
    while ended < asked.workers:
        answer = answers.get()
        if answer is None:
            ended += 1
            continue
        kind, number, faults, status, err = answer
        kinds[kind] += 1
        statuses[status] += 1
        if faults:
            faulty += 1
            last = (err.strip().splitlines() or [""])[-1]
            print(f"--only {number} {kind}: {'; '.join(faults)} :: {last[:300]}", flush=True)
    for process in processes:
        process.join()
    by_kind = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    by_status = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    print(
        f"{sum(kinds.values())} inputs in {time.monotonic() - begin:.0f} s ({by_kind}); status {by_status}; {faulty} faulty"
    )
    return int(faulty > 0)


if __name__ == "__main__":
    sys.exit(main())
