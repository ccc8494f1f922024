"""Adds the answers of new cases to answers.json: python -m tests.golden.write [--only NAME …] [--replace NAME …].

An answer that is there stays as it is, whatever the command answers now; --replace NAME says that it is to change.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.golden.cases import ANSWERS, answer_of, experiments, load_answers, packed
from tests.golden.runs import run_answer, runs


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--only", action="append", default=[], metavar="NAME", help="of the new cases only this one")
    flags.add_argument(
        "--replace", action="append", default=[], metavar="NAME", help="a case whose answer is to change"
    )
    flags = flags.parse_args()
    answers, cases = load_answers(), experiments() | runs()
    if unknown := [name for name in flags.only + flags.replace if name not in cases]:
        sys.exit(f"no such case: {', '.join(unknown)}")
    if there := [name for name in flags.only if name in answers]:
        sys.exit(f"answers of {', '.join(there)} are there: --replace NAME makes them anew")
    failed = 0
    for name in cases:
        if name in answers and name not in flags.replace:
            continue
        if flags.only + flags.replace and name not in flags.only + flags.replace:
            continue
        failed += not write(name, cases[name], answers)
    ANSWERS.write_text(lines(answers))
    sys.exit(1 if failed else 0)


def write(name, case, answers):
    """Whether the case has an answer, which is put among the others."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            answers[name] = answer_of(case, Path(folder)) if isinstance(case, list) else run_answer(case, Path(folder))
        except AssertionError as error:
            print(f"{name}: no answer: {error}", file=sys.stderr)
            return False
    size = len(json.dumps(answers[name]))
    print(f"{time.perf_counter() - begin:6.2f} s {size:8} bytes  {name}")
    return True


def lines(answers):
    """JSON with a case a line, so that a change of one case is a change of one line."""
    stored = {name: {path: packed(value) for path, value in answer.items()} for name, answer in sorted(answers.items())}
    rows = (
        f"{json.dumps(name)}: {json.dumps(answer, ensure_ascii=False, separators=(',', ':'))}"
        for name, answer in stored.items()
    )
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    main()
