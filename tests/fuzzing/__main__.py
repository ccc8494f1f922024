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

from tests.fuzzing.forked import answers_of, run_program, slowness
from tests.fuzzing.inputs import WORDS, Input, Inputs, make_valid_files

SHOWN = 600
"""Most characters of a file and of a stream that are shown."""
BATCH = 100
"""Inputs that one process runs one after another."""


def import_commands():
    """Run each command that needs no MPI once here, and import what `run` imports: children need not import it."""
    from quadrille.cli.main import main as quadrille

    for words in WORDS:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
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
    """Write the valid files into a folder."""

    def program():
        os.chdir(folder)
        return run_program()

    def run(*words):
        (answer,) = answers_of(lambda _: Input("words", words, {}), [0], program)
        if answer.ending.status != 0:
            raise SystemExit(f"quadrille {' '.join(words)}: {answer.ending.err}")

    make_valid_files(folder, run)


def search(worker, workers, seed, kinds, seconds, count, folder, answers):
    """Run every `workers`-th batch of inputs, and put the answer of each input and how to repeat it into a queue."""
    inputs, deadline = Inputs(seed, folder, kinds), time.monotonic() + seconds
    try:
        for first in range(worker * BATCH, count, workers * BATCH):
            for answer in answers_of(inputs, range(first, min(count, first + BATCH))):
                answers.put((answer, how_to_repeat(inputs, answer) if answer.faults else ""))
                if time.monotonic() > deadline:
                    return
    finally:
        answers.put(None)


def how_to_repeat(inputs, answer):
    """The flags that repeat an answer: of the input alone, or behind the inputs of its process if they take part."""
    (alone,) = answers_of(inputs, [answer.number])
    return f"--only {answer.number}" + ("" if alone.faults else f" --after {answer.first}")


def show(given, answer):
    """Print an input and its ending."""
    ending = answer.ending
    print("quadrille", *map(repr, given.words))
    for name, content in given.files.items():
        print(f"--- {name} ({len(content)} bytes)\n{content[:SHOWN]!r}")
    print(f"--- status {ending.status}, {ending.seconds:.2f} s, {ending.resident >> 20} MiB, left {ending.left}")
    print(f"--- stdout\n{ending.out[:SHOWN]}\n--- stderr\n{ending.err[-SHOWN:]}")
    print(f"--- faults: {'; '.join(answer.faults) or 'none'}")


def main(words=None):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of the search")
    parser.add_argument("--count", type=int, default=10**9, help="most inputs")
    parser.add_argument("--seed", default=str(int.from_bytes(os.urandom(4), "little")))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kinds", nargs="*", default=(), help="kinds of inputs; by default all")
    parser.add_argument("--only", type=int, help="number of one input to run again and to show")
    parser.add_argument("--after", type=int, help="number of the input from which on the process of --only ran inputs")
    asked = parser.parse_args(words)
    kinds = "".join(f" {word}" for word in (["--kinds", *asked.kinds] if asked.kinds else ()))
    print(f"python -m tests.fuzzing --seed {asked.seed}{kinds}", flush=True)
    slowness()
    import_commands()
    with tempfile.TemporaryDirectory(prefix="fuzz-valid-") as folder:
        valid_files(folder)
        return report(asked, folder) if asked.only is None else repeat(asked, folder)


def repeat(asked, folder):
    """Run one input again and show it; the exit status is 1 after a fault."""
    inputs, first = Inputs(asked.seed, folder, asked.kinds), asked.only if asked.after is None else asked.after
    *_, answer = answers_of(inputs, range(first, asked.only + 1))
    show(inputs(asked.only), answer)
    return int(bool(answer.faults))


def report(asked, folder):
    """Search, print each fault, then counts; the exit status is 1 after a fault."""
    context = get_context("fork")
    answers, begin = context.Queue(), time.monotonic()
    arguments = (asked.workers, asked.seed, asked.kinds, asked.seconds, asked.count, folder, answers)
    processes = [context.Process(target=search, args=(worker, *arguments)) for worker in range(asked.workers)]
    for process in processes:
        process.start()
    kinds, statuses, faulty, ended = Counter(), Counter(), 0, 0
    while ended < asked.workers:
        entry = answers.get()
        if entry is None:
            ended += 1
            continue
        answer, flags = entry
        kinds[answer.kind] += 1
        statuses[answer.ending.status] += 1
        if answer.faults:
            faulty += 1
            lines = " | ".join(answer.ending.err.strip().splitlines())
            print(f"{flags} {answer.kind}: {'; '.join(answer.faults)} :: {lines[-SHOWN:]}", flush=True)
    for process in processes:
        process.join()
    by_kind = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    by_status = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    seconds = time.monotonic() - begin
    print(f"{sum(kinds.values())} inputs in {seconds:.0f} s ({by_kind}); status {by_status}; {faulty} faulty")
    return int(faulty > 0)


if __name__ == "__main__":
    sys.exit(main())
