"""A message names the real reason, and the first thing that is wrong; what one command takes another takes too."""

import json

import pytest

from tests.support.quadrille import called

ON = ("--gpt", "tiny", "--batch", "8", "--machine", "perlmutter")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--bytes 1G", "G alone is GB to some programs and GiB to others, such as nccl-tests: write 1GB or 1GiB"),
        ("--bytes 16k", "write 16kB or 16KiB"),
    ],
)
def test_a_size_that_could_be_misread_is_refused(capsys, words, said):
    done = called(capsys, "collective", "all-reduce", *words.split(), "--gpus", "4", "--machine", "perlmutter")
    assert done.status == 2 and said in done.line


@pytest.mark.parametrize(("size", "said"), [("291", "73 elements are simulated, 292 bytes"), ("292", "")])
def test_a_size_that_is_rounded_is_said(capsys, size, said):
    words = (
        "collective",
        "all-reduce",
        "--bytes",
        size,
        "--dtype",
        "float32",
        "--gpus",
        "4",
        "--machine",
        "perlmutter",
    )
    done = called(capsys, *words)
    assert done.status == 0 and (said in done.err if said else "elements are simulated" not in done.err)


@pytest.mark.parametrize("word", ["50GB", "50GB/s", "400Gbit/s", "400Gb/s", "50e9"])
def test_a_bandwidth_has_any_unit_of_a_rate(capsys, word):
    words = ("collective", "all-reduce", "--bytes", "1GiB", "--gpus", "4", "--json", "-")
    done = called(capsys, *words, "--machine", f"star:hosts=8,bandwidth={word},latency=0")
    assert json.loads(done.out)["seconds"] == pytest.approx(1.5 * 2**30 / 50e9)


def test_a_bandwidth_without_a_byte_is_refused_with_the_units(capsys):
    words = ("collective", "all-reduce", "--bytes", "1GiB", "--gpus", "4")
    done = called(capsys, *words, "--machine", "star:hosts=8,bandwidth=50G,latency=0")
    assert done.status == 2 and "write 50GB/s or 50GiB/s" in done.line


def test_a_model_is_refused_before_a_grid_is_asked_for(capsys):
    done = called(capsys, "simulate", "--gpt", "lama2-7b", "--batch", "8", "--gpus", "8", "--machine", "perlmutter")
    assert done.status == 2 and "did you mean llama2-7b" in done.line
    done = called(capsys, "simulate", *ON, "--gpus", "8")
    assert done.status == 2 and "no --grid says how the ranks are laid out" in done.line


def test_a_sweep_takes_the_grids_that_simulate_takes(capsys):
    words = ("--gpus", "8", "--vary", "grid=data=8;data=4,x=2;data=*,x=4;x=4;x=16")
    rows = json.loads(called(capsys, "sweep", *ON, *words, "--json", "-").out)["rows"]
    for row in rows[:4]:
        simulated = called(capsys, "simulate", *ON, "--gpus", "8", "--grid", row["point"]["grid"], "--json", "-")
        seconds = json.loads(simulated.out)["seconds_per_iteration"]
        assert row["answer"]["seconds"] == pytest.approx(seconds, rel=1e-9)
    refused = called(capsys, "simulate", *ON, "--gpus", "8", "--grid", "x=16").line
    assert rows[4]["answer"]["reason"] in refused


def test_one_repeat_has_no_percentiles(capsys):
    out = called(capsys, "run", "--matmul", "8,8,8", "--repeats", "1", "--warmups", "0").out
    assert "one repeat: no percentiles" in out and "percentile of" not in out
    out = called(capsys, "run", "--matmul", "8,8,8", "--repeats", "2", "--warmups", "0").out
    assert "5th to 95th percentile of 2 repeats" in out
