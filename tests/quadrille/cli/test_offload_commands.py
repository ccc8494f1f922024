"""Tests of `--offload` and `--device-memory`: a model that trains only with offload, checkpoints, and bad input."""

import json

import pytest

from tests.support.quadrille import called

TINY = ("--gpt", "tiny", "--batch", "4")
ONCE = ("--repeats", "1", "--warmups", "0")


def run(capsys, *words):
    return called(capsys, "run", *TINY, *ONCE, *words)


def test_a_model_trains_with_offload_that_the_device_refuses_without(capsys):
    arena = ("--device-memory", "3700KiB", "--verify", "--json", "-")
    refused = run(capsys, *arena)
    assert refused.status == 2
    assert "a rank needs 3.98 MiB" in refused.line and "--offload optimizer (3.47 MiB)" in refused.line
    trained = run(capsys, *arena, "--offload", "optimizer:4096")
    assert trained.status == 0, trained.err
    record = json.loads(trained.out)
    assert record["verified"]["ok"] and record["options"]["offload"] == "optimizer:4096"
    kinds = record["memory_bytes_by_kind"]
    assert sum(kinds.values()) - kinds["optimizer on host"] == record["peak_bytes_per_rank_max"] <= 3700 << 10


def test_checkpoints_with_and_without_offload_are_the_same_files(capsys, tmp_path):
    first, second, third, fourth = (tmp_path / f"{number}.ckpt" for number in range(4))
    offload = ("--offload", "optimizer:3000")
    run(capsys, "--steps", "2", "--save", first)
    run(capsys, "--steps", "2", "--save", second, *offload)
    assert first.read_bytes() == second.read_bytes()
    run(capsys, "--load", second, "--save", third)
    run(capsys, "--load", first, "--save", fourth, *offload)
    assert third.read_bytes() == fourth.read_bytes() != first.read_bytes()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--offload optimizer:0", "offload 'optimizer:0': a bucket of 1 parameter or more is accepted"),
        ("--offload optimizer:", "offload 'optimizer:': a bucket of 1 parameter or more is accepted"),
        ("--offload optimizer:4k", "offload 'optimizer:4k': a bucket of 1 parameter or more is accepted"),
        ("--offload optimizer:host:0", "offload 'optimizer:host:0': a bucket of 1 parameter or more is accepted"),
        ("--offload optimizer:4:host", "offload 'optimizer:4:host': accepted are"),
        ("--offload weights", "offload 'weights': accepted are optimizer[:BUCKET] and optimizer:host[:BUCKET]"),
        ("--offload optimizer:118529", "the model has 118528 parameters; a bucket of 1 to 118528 is accepted"),
        ("--device-memory 0", "--device-memory '0': a size from 1 byte is accepted"),
        ("--device-memory 1KiB", "a rank needs 3.98 MiB (4176388 bytes); accepted are 4176388 bytes and more, or"),
        ("--device-memory 1GiB --backend cupy", "--device-memory: limits arrays of NumPy; accepted is --backend numpy"),
    ],
)
def test_offload_that_cannot_be_is_one_line_and_exit_status_2(capsys, words, line):
    ended = run(capsys, *words.split())
    assert ended.status == 2 and line in ended.line, ended.err


@pytest.mark.parametrize(
    ("machine", "words", "line"),
    [
        ("longhorn", "", "offload: longhorn has no host link"),
        (
            "selene",
            "--set host_link.memory_bytes=1e6",
            "1 rank of a host keep 1.34 MiB in host memory, and a host of selene",
        ),
        ("selene", "--set host_link.bytes_per_second=-1", "host_link.bytes_per_second"),
    ],
)
def test_a_machine_needs_a_host_link_and_host_memory(capsys, machine, words, line):
    ended = called(capsys, "simulate", *TINY, "--machine", machine, "--offload", "optimizer", *words.split())
    assert ended.status == 2 and line in ended.line, ended.err
