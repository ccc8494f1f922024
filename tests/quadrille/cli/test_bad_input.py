"""Mistakes of a new user: each is one line of ours and exit status 2, and nothing is written."""

import json

import numpy as np
import pytest

from tests.support.quadrille import HOST, called, quadrille

SIZES = ["--matmul", "61,47,53"]
RECORD = {
    "schema": "quadrille/record/1",
    "kind": "measured",
    "workload": {"matmul": {"m": 61, "k": 47, "n": 53}},
    "dtype": "float32",
    "passes": "forward",
    "algorithm": "4d",
    "grid": {"data": 1, "z": 1, "y": 1, "x": 1},
    "order": ["x", "y", "z", "data"],
    "ranks": 1,
    "options": {},
    "backend": "numpy",
    "seconds": 1.0,
    "seconds_low": 0.9,
    "seconds_high": 1.1,
    "flops_per_rank_max": 2 * 61 * 47 * 53,
    "bytes_sent_per_rank_max": 0,
    "bytes_sent_total": 0,
    "peak_bytes_per_rank_max": 1,
}


@pytest.fixture
def machine(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(HOST)
    return path


def refused(ended, *said):
    """One line that says so, and status 2."""
    assert ended.status == 2, (ended.out, ended.err)
    for text in said:
        assert text in ended.line
    assert ended.out == ""


@pytest.mark.parametrize("command", ["run", "simulate", "schedule", "operands"])
@pytest.mark.parametrize("sizes", ["0,5,5", "-1,2,3", "1.5,2,3", "3,4", "3,4,5,6", "a,b,c", "3,,4", "²,3,4", "1e3,2,2"])
def test_sizes_that_are_no_three_whole_numbers_are_refused(capsys, command, sizes):
    ended = called(capsys, command, "--matmul", sizes)
    refused(ended, f"matmul {sizes!r}: accepted is M,K,N, three whole numbers from 1, such as 4096,4096,4096")


@pytest.mark.parametrize("command", ["run", "simulate", "schedule", "operands"])
def test_missing_sizes_are_asked_for(capsys, command):
    refused(called(capsys, command), "matmul is missing: --matmul M,K,N is needed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["sweep", *SIZES, "--vary", "threads=1,2", "--store", ""],
            "--store '': a value is empty; give FILE.sqlite, or",
        ),
        (["sweep", *SIZES, "--vary", "threads=1,2", "--csv="], "--csv '': a value is empty; give"),
        (["simulate", *SIZES, "--report", ""], "--report '': a value is empty; give FILE.html, or leave it out"),
        (["study", "best-layout", "--json", ""], "--json '': a value is empty; give FILE|-, or leave it out"),
        (["report", "record.json", "--out", ""], "--out '': a value is empty; give FILE"),
        (["machines", ""], "NAME '': a value is empty; give NAME, or leave it out"),
        (["calibrate", "--out", ""], "--out '': a value is empty; give FILE"),
    ],
    ids=str,
)
def test_an_empty_value_is_not_taken_for_a_missing_flag(capsys, words, said):
    refused(called(capsys, *words), said)


@pytest.mark.parametrize("command", ["run", "simulate"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grid", "w=2"], "grid: unknown axis 'w'; the axes are pipeline, data, context, z, y, x"),
        (
            ["--grid", "TP=2,data=2"],
            "unknown axis 'TP'; the axes are pipeline, data, context, z, y, x, expert, expert_tensor; TP is x here",
        ),
        (["--grid", "x=2,x=3"], "grid 'x=2,x=3' repeats axis x"),
        (["--grid", "x=0"], "'x=0' is not x=N with a whole number N from 1"),
        (["--grid", "x=1.5"], "'x=1.5' is not x=N"),
        (["--grid", "x"], "'x' is not x=N"),
        (["--grid", "4"], "grid: unknown axis '4'"),
        (["--grid", ""], "grid: unknown axis ''"),
        (["--order", "x,x"], "order 'x,x' repeats x"),
        (["--order", "x,w"], "order: unknown axis 'w'"),
        (["--algorithm", "strassen"], "algorithm 'strassen': accepted are 1d-column, 1d-row, cannon"),
        (["--algorithm", "cannon", "--grid", "z=2,x=3"], "grid z=2, x=3 is not square: cannon takes z=q,x=q"),
        (["--algorithm", "cannon", "--grid", "z=2"], "grid z=2, x=1 is not square"),
        (["--algorithm", "1d-row", "--grid", "x=2"], "grid x=2: 1d-row takes the axes y only"),
        (["--dtype", "float128"], "dtype 'float128': accepted are float64, float32, float16, bfloat16"),
        (["--passes", "backward"], "passes 'backward': accepted are forward, training"),
        (["--gathered", "twice"], "gathered 'twice': accepted are keep, again"),
        (["--panel", "0"], "--panel '0': a whole number from 1 is accepted"),
        (["--transposed", "c"], "transposed 'c': accepted are none, a, b"),
        (["--transposed", "a"], "transposed a: 4d takes none only; summa and 3d take a and b"),
        (["--transposed", "b", "--algorithm", "cannon"], "transposed b: cannon takes none only; summa and 3d take"),
        (["--overlap", "all"], "overlap 'all': accepted are none, or a list of oar, ors, oag, ogr, opg"),
        (["--collectives", "own:star"], "collectives 'own:star': accepted are own, library, auto, own:ring"),
        (["--threads", "0"], "--threads '0': a whole number from 1 is accepted"),
        (["--threads", "many"], "--threads 'many': a whole number from 1 is accepted"),
    ],
)
def test_what_both_commands_refuse_they_refuse_equally(capsys, command, words, said):
    refused(called(capsys, command, *SIZES, *words), said)


@pytest.mark.parametrize("command", ["run", "simulate"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "torch"], "backend 'torch': accepted are numpy, cupy"),
        (["--carrier", "pigeon"], "carrier 'pigeon': accepted are auto, mpi, nccl"),
        (["--progress", "hope"], "progress 'hope': accepted are auto, none, thread"),
        (["--chunk", "some"], "--chunk 'some': accepted are auto, none and sizes such as 60KiB"),
        (["--chunk", "0"], "--chunk '0': accepted are auto, none and sizes such as 60KiB"),
        (["--repeats", "0"], "--repeats '0': a whole number from 1 is accepted"),
        (["--bands", "0"], "--bands '0': a whole number from 1 is accepted"),
        (["--repeats", "2.5"], "--repeats '2.5': a whole number from 1 is accepted"),
        (["--warmups", "-1"], "--warmups '-1': a whole number from 0 is accepted"),
        (["--seed", "-1"], "--seed '-1': a whole number from 0 is accepted"),
        (["--operands", "primes"], "operands 'primes': accepted are uniform, integers"),
        (["--verify-method", "hope"], "verify-method 'hope': accepted are auto, serial, freivalds"),
        (["--dc", "dc.npy"], "--dc dc.npy: a forward pass has no dC; give --passes training"),
        (["--db", "db.npy"], "--db db.npy: a forward pass has no dB; give --passes training"),
        (["--a", "a.npy", "--c", "./a.npy"], "--a and --c both name ./a.npy: give each its own file"),
        (["--carrier", "nccl"], "carrier 'nccl': it carries arrays of --backend cupy only; accepted is mpi"),
    ],
)
def test_how_a_run_cannot_be_is_refused_before_mpi_starts_and_by_a_prediction_too(capsys, command, words, said):
    refused(called(capsys, command, *SIZES, *words), said)


# Machines


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("", "--machine '': a value is empty; give NAME|FILE"),
        ("tianhe", "machine 'tianhe' is unknown; there are perlmutter, frontier, alps"),
        ("nowhere.toml", "machine file nowhere.toml does not exist"),
        ("./nowhere", "machine file ./nowhere does not exist"),
    ],
)
def test_a_machine_that_is_not_there_is_named(capsys, machine, said):
    refused(called(capsys, "simulate", *SIZES, "--machine", machine), said)


def test_a_missing_machine_is_asked_for(capsys):
    said = "machine is missing: --machine takes a .toml file or one of perlmutter, frontier"
    refused(called(capsys, "simulate", *SIZES), said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (HOST[:120], "is truncated or not TOML"),
        (HOST.partition("add_seconds")[0], "reference.add_seconds is missing"),
        ("", "names no schema"),
        ('{"schema": "quadrille/record/1"}', "has the schema 'quadrille/record/1': quadrille/machine/2 is accepted"),
        (HOST.replace("machine/1", "machine/3"), "newer than this Quadrille reads: up to quadrille/machine/2"),
        (HOST.replace("machine/1", "cookbook"), "has the schema 'quadrille/cookbook'"),
        (HOST.replace("memory_bytes = 8e9", "memory_bytes = nan"), "device.memory_bytes = nan: a finite number"),
        (HOST.replace("memory_bytes = 8e9", 'memory_bytes = "much"'), "device.memory_bytes = 'much'"),
        (HOST.replace("memory_bytes = 8e9", "memory_gb = 8"), "device.memory_gb is unknown; accepted:"),
        (HOST.replace('"host"', '"moebius"'), "topology family 'moebius' is unknown; there are host, star"),
        (HOST.replace("cores = 2\n[device]", "cores = 0\n[device]"), "topology.cores"),
    ],
)
def test_a_machine_file_that_is_none_is_refused_by_its_first_fault(capsys, machine, content, said):
    machine.write_text(content)
    refused(called(capsys, "simulate", *SIZES, "--machine", machine), said)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("device.memory_bytes", "--set device.memory_bytes"),
        ("device.speed=x2", "device has no 'speed'; accepted: peak_flops_per_second"),
        ("device.memory_bytes=x0", "the factor 0 is not a finite number above 0"),
        ("device.memory_bytes=lots", "'lots' is not a finite number"),
    ],
)
def test_a_what_if_that_does_not_fit_is_refused(capsys, setting, said):
    refused(called(capsys, "simulate", *SIZES, "--machine", "perlmutter", "--set", setting), said)


def test_more_ranks_than_gpus_are_refused(capsys):
    words = ["--grid", "x=4", "--machine", "perlmutter", "--set", "topology.gpus=2"]
    refused(called(capsys, "simulate", *SIZES, *words), "4 ranks: perlmutter has 2 GPUs")


# Records


def changed(**changes):
    return json.dumps(RECORD | changes)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (changed()[:200], "is truncated or not JSON"),
        (changed(schema="quadrille/record/9"), "newer than this Quadrille reads"),
        (changed(schema="other/1"), "has the schema 'other/1'"),
        ("[1, 2]", "names no schema of Quadrille: a measured record, a training log, or a profiler"),
        (changed(seconds=-1), "seconds = -1"),
        (changed(ranks=3), "ranks = 3: the grid"),
    ],
)
def test_a_record_that_is_none_is_refused(capsys, tmp_path, content, said):
    (tmp_path / "predicted.json").write_text(changed(kind="predicted"))
    (tmp_path / "measured.json").write_text(content)
    refused(called(capsys, "compare", tmp_path / "predicted.json", tmp_path / "measured.json"), said)


def test_records_of_different_problems_are_not_compared(capsys, tmp_path):
    (tmp_path / "predicted.json").write_text(changed(kind="predicted", dtype="float64"))
    (tmp_path / "measured.json").write_text(changed())
    refused(called(capsys, "compare", tmp_path / "predicted.json", tmp_path / "measured.json"), "dtype")


# Files of a run


def matrix(folder, values):
    np.save(folder / "a.npy", values)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda folder: None, "--a {a}: there is no such file"),
        (lambda folder: matrix(folder, np.ones((47, 61), "f4")), "--a {a} holds an array of shape 47 x 61"),
        (lambda folder: matrix(folder, np.ones((61, 47), "f8")), "--a {a} holds float64 elements"),
        (lambda folder: (folder / "a.npy").write_text("61 47\n"), "--a {a} is not a .npy file"),
    ],
)
def test_operands_that_do_not_fit_are_refused_and_nothing_is_written(capsys, tmp_path, prepare, said):
    path = tmp_path / "a.npy"
    prepare(tmp_path)
    before = sorted(tmp_path.iterdir())
    outputs = ("--c", tmp_path / "c.npy", "--json", tmp_path / "record.json")
    ended = called(capsys, "run", *SIZES, "--a", path, *outputs)
    refused(ended, said.format(a=path), "a .npy file of a 61 x 47 matrix of float32 is accepted")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json", "{folder}/none/record.json"], "--json {folder}/none/record.json cannot be written"),
        (["--trace", "{folder}"], "--trace {folder} cannot be written: it is a folder"),
        (["--json", "{folder}/one", "--timeline", "{folder}/one"], "--json and --timeline both name {folder}/one"),
        (["--json", "{folder}/c.npy", "--c", "{folder}/c.npy"], "--json and --c both name {folder}/c.npy"),
        (["--c", "{folder}/none/c.npy"], "--c {folder}/none/c.npy cannot be written"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_run(capsys, tmp_path, words, said):
    ended = called(capsys, "run", *SIZES, *(word.format(folder=tmp_path) for word in words))
    refused(ended, said.format(folder=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_prediction_refuses_integers_whose_sums_would_not_be_exact(capsys, machine):
    words = ["--matmul", "1,2000000,1", "--operands", "integers", "--machine", machine]
    refused(called(capsys, "simulate", *words), "k=2000000 is too long for integer operands in float32")


def test_an_output_of_a_prediction_that_cannot_be_written_is_refused(capsys, tmp_path, machine):
    ended = called(capsys, "simulate", *SIZES, "--machine", machine, "--json", tmp_path / "none" / "record.json")
    refused(ended, "--json", "cannot be written: the folder")
    assert list(tmp_path.iterdir()) == [machine]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grid", "x=3"], "ranks=1, but the grid x=3 has 3: start 3 ranks (quadrille launch -n 3 …)"),
        (["--dtype", "float16"], "dtype 'float16': numpy multiplies float64 and float32"),
        (["--machine", "tianhe"], "machine 'tianhe' is unknown; there are perlmutter, frontier"),
        (["--machine", "perlmutter", "--set", "device.speed=x2"], "device has no 'speed'"),
        (["--set", "device.memory_bytes=x2"], "machine is missing"),
        (
            ["--matmul", "1,2000000,1", "--operands", "integers"],
            "k=2000000 is too long for integer operands in float32",
        ),
        (["--matmul", "9000000,9000000,9000000"], "memory: the 1 ranks on host"),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_one_rank_alone(capsys, words, said):
    refused(called(capsys, "run", *SIZES, *words), said)


def test_a_world_of_one_where_there_should_be_more_is_explained():
    ended = quadrille("run", *SIZES, environment={"PMI_SIZE": "4", "PMI_RANK": "0"})
    refused(ended, "the launcher started 4 or more ranks, but MPI shows each of them a world of 1: two MPIs are mixed")
    silent = quadrille("run", *SIZES, environment={"PMI_SIZE": "4", "PMI_RANK": "2"})
    assert (silent.status, silent.err) == (2, "")


@pytest.mark.mpi
def test_a_mistake_on_many_ranks_is_still_one_line(tmp_path):
    ended = quadrille("launch", "-n", "3", "run", *SIZES, "--grid", "y=3", "--c", tmp_path / "none" / "c.npy")
    refused(ended, "--c", "there is no folder")


def test_operands_are_written_all_or_none(capsys, tmp_path):
    words = ["operands", *SIZES, "--a", tmp_path / "a.npy", "--b", tmp_path / "none" / "b.npy"]
    refused(called(capsys, *words), "--b", "there is no folder")
    assert not list(tmp_path.iterdir())
