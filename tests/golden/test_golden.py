"""No prediction, count, loss, exit status or kind of message changes: every commit gives the golden answers.

`python -m tests.golden.write` adds the answers of new cases; `renamed.py` says what was renamed on purpose.
"""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.golden.cases import GOLDEN, answer_of, differences, ended, experiments, load_answers, read, words_of
from tests.golden.runs import run_answer, run_answers, runs
from tests.support.quadrille import ROOT, quadrille

ANSWERS = load_answers()
EXPERIMENTS = experiments()
RUNS = runs()
REFUSED = {
    line: (int(status), said) for status, lines in read("bad_inputs.toml").items() for line, said in lines.items()
}


def short(words):
    return words if len(words) < 80 else words[:77] + "…"


def same_as_golden(name, found, relative=1e-9):
    wrong = list(differences(ANSWERS[name], found, relative))
    assert not wrong, "\n".join([name, *wrong[:20]])


def test_every_case_has_an_answer_and_every_answer_a_case():
    assert EXPERIMENTS.keys() | RUNS.keys() == ANSWERS.keys()
    assert not EXPERIMENTS.keys() & RUNS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_prediction_is_the_golden_one(name, tmp_path):
    same_as_golden(name, answer_of(EXPERIMENTS[name], tmp_path))


@pytest.mark.parametrize("name", random.Random(1).sample(sorted(EXPERIMENTS), 5))
def test_a_process_of_its_own_predicts_the_same(name, tmp_path):
    same_as_golden(name, answer_of(EXPERIMENTS[name], tmp_path, call=lambda words: quadrille(*words)))


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run.ranks == 1])
def test_a_run_of_one_rank_is_verified_and_counts_as_before(name, tmp_path):
    same_as_golden(name, run_answer(RUNS[name], tmp_path), RUNS[name].relative)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", sorted({run.ranks for run in RUNS.values()} - {1}))
def test_runs_on_mpi_ranks_are_verified_and_count_as_before(ranks, tmp_path):
    """One launch runs all lines, so that the ranks start and import once."""
    named = {name: run for name, run in RUNS.items() if run.ranks == ranks}
    for name, answer in run_answers(named, tmp_path).items():
        same_as_golden(name, answer, named[name].relative)


@pytest.mark.parametrize("line", REFUSED, ids=short)
def test_a_bad_input_is_one_line_that_names_it_and_what_is_accepted(line, tmp_path):
    status, said = REFUSED[line]
    done = ended(words_of(line, tmp_path))
    assert done.status == status, done.err
    assert not done.out or status == 1
    missing = [text for text in said if text.replace("{golden}", str(GOLDEN)) not in done.line]
    assert not missing, f"{missing} not in {done.line}"
    assert not list(tmp_path.iterdir()), "something was written"


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("--grid y=2 --c {tmp}/none/c.npy", 2, "--c"),
        (
            "--matmul 2,2,2 --grid y=2 --a {golden}/hostile/nan.npy --verify --json {tmp}/a.json",
            1,
            "A holds nan at row 1",
        ),
        ("--grid y=3", 2, "y=3"),
    ],
)
def test_a_launch_ends_as_its_ranks_do_and_says_so_in_one_line(words, status, said, tmp_path):
    done = quadrille("launch", "-n", "2", *words_of(f"run --matmul 61,47,53 {words}", tmp_path))
    assert done.status == status, done.err
    assert said in done.line


def test_an_interruption_is_one_line_and_status_130():
    words = ["simulate", "--matmul", "65536,65536,65536", "--grid", "z=128,x=64", "--machine", "perlmutter"]
    words += ["--placement", "scattered", "--passes", "training", "--no-fold", "--granularity", "exact"]
    program = [sys.executable, "-P", "-m", "quadrille", *words]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, env=variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not out and err.splitlines()[-1] == "quadrille: interrupted"
