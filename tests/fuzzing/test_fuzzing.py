"""A fixed set of random inputs, and inputs that once were faults; `make fuzz-files` draws new ones."""

import subprocess
import sys

import pytest

from tests.fuzzing.forked import Ending, faults_of
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
    ran = fuzz("--seed", "suite", "--count", "250", "--workers", "1", "--seconds", "600")
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("250 inputs in ")


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


def test_faults_are_told_from_good_endings():
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
