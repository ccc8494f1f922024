"""A fixed set of random inputs, and inputs that once were faults; `make fuzz-files` draws new ones."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from quadrille.algorithms.formats.atomic_files import has_ended, start_ticks
from tests.fuzzing import forked
from tests.fuzzing.forked import Ending, answers_of, faults_of
from tests.fuzzing.inputs import XML, Input
from tests.support.quadrille import ROOT

MACHINE = """schema = {schema}
name = "two hosts"
[topology]
family = {family}
hosts = 2
bandwidth_bytes_per_second = {bandwidth}
latency_seconds = 1e-5
[device]
peak_flops_per_second = {{ float32 = 1e11 }}
memory_bytes_per_second = 2e10
memory_bytes = 32e9
overhead_seconds = 1e-6
"""
VALID = {"schema": '"quadrille/machine/2"', "family": '"star"', "bandwidth": "1e9"}
SIMULATE = ["simulate", "--matmul", "64,64,64", "--grid", "z=2", "--machine"]
GPT2 = '{"model_type":"gpt2","n_layer":%d,"n_embd":64,"n_head":4,"n_positions":32,"vocab_size":256}'


def fuzz(*words):
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzzing", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_no_fault_is_found_in_a_fixed_set_of_inputs():
    ran = fuzz("--seed", "suite", "--count", "120", "--workers", "1", "--seconds", "600")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("120 inputs in ")


def test_no_fault_is_found_in_fresh_inputs():
    """Inputs that no run had before, for some seconds; the first line of the output names their seed."""
    ran = fuzz("--seconds", "4", "--workers", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def hold_memory():
    return len(bytearray(b"x" * (200 << 20))) * 0


def compute_for_seconds():
    while True:
        pass


def raise_signal(number):
    faulthandler.disable()  # pytest's would print into its own stderr
    os.kill(os.getpid(), number)
    time.sleep(60)


def write_and_fail(name):
    Path(name).write_text("x")
    print("quadrille: no", file=sys.stderr)
    return 2


def write_hidden(name):
    Path(name).write_text("x")
    return 0


def raise_in_a_finalizer():
    class Raises:
        def __del__(self):
            raise ValueError("lost")

    Raises()
    return 0


def set_variable():
    os.environ["QUADRILLE_DEBUG"] = "1"
    return 0


PLANTED = {
    "KeyError": (lambda: {}["x"], "raw exception or warning"),
    "debug": (lambda: print("quadrille: KeyError: 'x' (--debug shows where)", file=sys.stderr) or 1, "raw exception"),
    "warning": (lambda: warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1) or 0, "raw exception"),
    "finalizer": (raise_in_a_finalizer, "raw exception"),
    "status": (lambda: 3, "exit status 3"),
    "exit": (lambda: sys.exit(7), "exit status 7"),
    "_exit": (lambda: os._exit(4), "exit status 4"),
    "crash": (lambda: raise_signal(signal.SIGSEGV), "exit status -11"),
    "computes": (compute_for_seconds, "s of processor time (limit 1)"),
    "memory": (hold_memory, "MiB"),
    "hidden": (lambda: write_hidden(".x.1.partial"), "leaves .x.1.partial"),
    "beside": (lambda: write_and_fail("../out.json"), "leaves ../out.json"),
    "left": (lambda: write_and_fail("out.json"), "leaves out.json"),
    "NaN": (lambda: 0, "accepts a NaN or an infinity"),
    "lines": (lambda: print("a\nb", file=sys.stderr) or 2, "refusal is not one line"),
    "long": (lambda: print("a" * 2000, file=sys.stderr) or 1, "line of an error is too long"),
}
"""Programs with a fault of each kind, and words about the fault."""
GOOD = {
    "refuses": lambda: print("quadrille: no", file=sys.stderr) or 2,
    "writes": lambda: write_hidden("out.json"),
    "variable": set_variable,
    "debugs": lambda: 1 if "QUADRILLE_DEBUG" in os.environ else 0,
}


def test_a_planted_fault_of_each_kind_is_caught_between_good_inputs(monkeypatch):
    monkeypatch.setattr(forked, "FILE_CPU_SECONDS", 1)
    monkeypatch.setattr(forked, "slowness", lambda: 1.0)
    monkeypatch.setattr(forked, "MOST_BYTES", 100 << 20)
    names = [name for planted in PLANTED for name in (*GOOD, planted)] + list(GOOD)
    inputs = [Input("machine", (name,), {"m.toml": b"x"}, tainted=name == "NaN") for name in names]

    def program():
        (name,) = sys.argv[1:]
        return PLANTED[name][0]() if name in PLANTED else GOOD[name]()

    answers = list(answers_of(inputs.__getitem__, range(len(names)), program))
    assert [answer.number for answer in answers] == list(range(len(names)))
    for name, answer in zip(names, answers, strict=True):
        if name in GOOD:
            assert answer.faults == (), name
        else:
            assert len(answer.faults) == 1 and PLANTED[name][1] in answer.faults[0], (name, answer)
    assert {answer.first for answer in answers} == {0, *(n + 1 for n, name in enumerate(names) if name in PLANTED)}


def test_an_input_that_waits_for_ever_is_a_fault(monkeypatch):
    monkeypatch.setattr(forked, "WALL_SECONDS", 1.0)
    waits = Input("machine", ("machines",), {})
    (answer,) = answers_of(lambda _: waits, [0], lambda: time.sleep(600))
    assert answer.faults == ("killed, as is done after 1 s",)


def test_an_input_that_leaves_a_process_is_the_last_of_its_process(tmp_path):
    note = tmp_path / "pid"

    def program():
        if sys.argv[1:] == ["leave"]:
            pid = subprocess.Popen(["sleep", "600"]).pid
            note.write_text(f"{pid} {start_ticks(pid)}")
        return 0

    inputs = [Input("words", (word,), {}) for word in ("good", "leave", "good")]
    assert [answer.first for answer in answers_of(inputs.__getitem__, range(3), program)] == [0, 0, 2]
    assert has_ended(*map(int, note.read_text().split()))


@pytest.mark.parametrize(
    ("words", "name", "content", "said"),
    [
        ([*SIMULATE, "m.toml"], "m.toml", MACHINE.format(**VALID | {"schema": "[1]"}), "schema"),
        ([*SIMULATE, "m.toml"], "m.toml", MACHINE.format(**VALID | {"family": '["star"]'}), "accepted is a name"),
        ([*SIMULATE, "m.toml"], "m.toml", MACHINE.format(**VALID | {"bandwidth": "1e-320"}), "1e-09 to 1e+36 B/s"),
        (
            [*SIMULATE, "perlmutter", "--placement", "./p.txt"],
            "p.txt",
            "gpu:" + "9" * 5000 + "\ngpu:0\n",
            "computes on",
        ),
        (["topology", "show", "p.xml"], "p.xml", XML[0].replace('core="2"', 'core="1,2"'), "a whole number of cores"),
        (["schedule", "--gpt", "./c.json", "--batch", "4"], "c.json", GPT2 % 2**31, "up to 10000"),
        (["schedule", "--gpt", "./c.json", "--batch", "4"], "c.json", GPT2 % (2**64 - 1), "up to 10000"),
        (["schedule", "--matmul", "64,64,64", "--grid", "x=99999999999"], "", "", "at most 4194304"),
        (["topology", "show", "star:hosts=16000000,bandwidth=1e9,latency=1e-6"], "", "", "at most 1048576"),
        (["simulate", "--matmul", "9" * 5000, "--machine", "perlmutter"], "", "", "12 digits"),
    ],
)
def test_an_input_that_once_was_a_fault_is_refused_in_one_short_line(tmp_path, words, name, content, said):
    if name:
        (tmp_path / name).write_text(content)
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "quadrille", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    (line,) = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (2, "") and said in line and len(line) < 600, line


def test_faults_are_told_from_good_endings(monkeypatch):
    monkeypatch.setattr(forked, "slowness", lambda: 1.0)
    given = Input("machine", ("machines", "m.toml"), {"m.toml": b"x = nan"}, tainted=True)
    refused = Ending(2, "", "quadrille: m.toml: no\n", 0.1, 0, ())
    assert faults_of(given, refused) == []
    assert faults_of(given, Ending(0, "two hosts", "", 0.1, 0, ())) == ["accepts a NaN or an infinity"]
    assert faults_of(given, Ending(1, "", "quadrille: KeyError: 'x' (--debug shows where)\n", 0.1, 0, ())) == [
        "raw exception or warning"
    ]
    assert faults_of(given, Ending(2, "", "a\nb\n", 0.1, 0, ("m.toml.partial",))) == [
        "leaves m.toml.partial",
        "refusal is not one line",
    ]
    assert faults_of(given, Ending(-9, "", "", 6.0, 3 << 30, ())) == [
        "takes 6 s of processor time (limit 5)",
        "takes 3072 MiB",
    ]
