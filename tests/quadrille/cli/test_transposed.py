"""Operands that are stored transposed, through the commands: files, records, sweeps, scaling and explain."""

import json

import numpy as np
import pytest

from quadrille.algorithms.analysis.communication_lower_bound import lower_bound_words
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.formats.workload import MatmulSizes as Sizes
from quadrille.cli.parsing.experiment import experiment_of
from quadrille.cli.parsing.flags import OF_TRAINING, MatmulFlags, TrainingFlags, relevant_flags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.cli.parsing.sweep import sweep
from quadrille.cli.parsing.sweep_points import SweepFlags
from quadrille.cli.study_commands import SCALING
from quadrille.experiments.explain.explanation import simulate_command
from quadrille.experiments.workloads.training_lines import workload_text
from quadrille.studies.scaling.problem import parse_problem
from quadrille.studies.scaling.study import scaling
from tests.support.products import products, shapes
from tests.support.quadrille import HOST, called, quadrille
from tests.support.toy_machines import star

SIZES = "61,47,53"
TURNED = ["a", "b"]
FILES = {"A": "--a", "B": "--b", "dC": "--dc"}
RESULTS = {"C": "--c", "dA": "--da", "dB": "--db"}


def flags(transposed, **given):
    return MatmulFlags(matmul=SIZES, algorithm="3d", transposed=transposed, **given)


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(HOST)
    return path


@pytest.mark.parametrize("algorithm", ["3d", "summa"])
@pytest.mark.parametrize("transposed", TURNED)
def test_files_are_read_and_written_as_they_are_stored(capsys, tmp_path, transposed, algorithm):
    said = ["--matmul", SIZES, "--dtype", "float64", "--transposed", transposed]
    files = [word for name, flag in FILES.items() for word in (flag, tmp_path / f"{name}.npy")]
    assert called(capsys, "operands", *said, "--operands", "integers", *files).status == 0
    problem = parse_matmul(flags(transposed, dtype="float64", passes="training")).problem
    read = {name: np.load(tmp_path / f"{name}.npy") for name in FILES}
    assert {name: one.shape for name, one in read.items()} == shapes(problem)

    written = [word for name, flag in RESULTS.items() for word in (flag, tmp_path / f"{name}.npy")]
    words = ["run", *said, "--algorithm", algorithm, "--passes", "training", *files, *written, "--verify"]
    ended = called(capsys, *words, "--verify-method", "freivalds", "--repeats", "1")
    assert (ended.status, ended.err) == (0, "") and f"k=47 n=53 transposed={transposed} float64" in ended.out
    for name, expected in products(problem, read).items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected)


def test_an_operand_stored_the_other_way_is_refused(capsys, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((61, 47), "f4"))
    words = ("--matmul", SIZES, "--algorithm", "3d", "--transposed", "a", "--a", tmp_path / "a.npy")
    ended = called(capsys, "run", *words)
    assert ended.status == 2 and "a .npy file of a 47 x 61 matrix of float32 is accepted" in ended.line


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_the_record_says_what_is_transposed_and_nothing_where_nothing_is(capsys, tmp_path, toy, command):
    path = tmp_path / "record.json"
    for transposed in ("none", *TURNED):
        words = ["--matmul", SIZES, "--algorithm", "3d", "--transposed", transposed, "--machine", toy, "--json", path]
        assert called(capsys, command, *words).status == 0
        written = json.loads(path.read_text())["workload"]["matmul"]
        sizes = {"m": 61, "k": 47, "n": 53}
        assert written == sizes | ({} if transposed == "none" else {"transposed": transposed})
        assert load_record(path).workload.matmul == Sizes(61, 47, 53, None if transposed == "none" else transposed)


def test_a_record_of_another_form_is_refused_and_so_is_a_comparison(capsys, tmp_path, toy):
    words = ["--matmul", SIZES, "--algorithm", "3d", "--machine", toy]
    assert called(capsys, "simulate", *words, "--json", tmp_path / "p.json").status == 0
    assert called(capsys, "run", *words, "--transposed", "b", "--json", tmp_path / "m.json").status == 0
    ended = called(capsys, "compare", tmp_path / "p.json", tmp_path / "m.json")
    assert ended.status == 2 and "transposed=b measured" in ended.line
    changed = json.loads((tmp_path / "p.json").read_text())
    changed["workload"]["matmul"]["transposed"] = "c"
    (tmp_path / "p.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match="transposed"):
        load_record(tmp_path / "p.json")


@pytest.mark.parametrize("transposed", TURNED)
def test_the_bound_on_communication_is_that_of_the_sizes(transposed):
    experiment = parse_matmul(flags(transposed, grid="z=2,y=2,x=2"))
    assert experiment.lower_bound_bytes == 4 * lower_bound_words(61, 47, 53, 8)
    assert experiment.flops == 2 * 61 * 47 * 53


def test_the_command_that_explains_a_record_names_it(capsys, tmp_path, toy):
    path = tmp_path / "record.json"
    words = ["run", "--matmul", SIZES, "--algorithm", "summa", "--transposed", "a", "--json", path]
    assert called(capsys, *words).status == 0
    assert "simulate --matmul 61,47,53 --transposed a --algorithm summa " in simulate_command(load_record(path))
    assert workload_text(load_record(path).workload) == "m=61 k=47 n=53 transposed=a"
    assert "--transposed a" in called(capsys, "explain", path).out


def test_training_steps_have_no_such_flag_and_multiplications_do():
    assert "transposed" not in OF_TRAINING and "transposed" not in relevant_flags(TrainingFlags(mlp="4,4"))
    with pytest.raises(InputError, match="--transposed a: is for --matmul"):
        experiment_of(TrainingFlags(mlp="4,4", batch="2", transposed="a"))


def test_forms_and_algorithms_are_swept_and_those_that_cannot_be_say_so(toy):
    on = MachineFlags(machine=str(toy))
    found = sweep(
        SweepFlags(experiment=TrainingFlags(matmul=SIZES, grid="z=2", algorithm="3d"), on=on), ["transposed=none,a,b"]
    )
    assert [row.answer.reason for row in found.points] == [None] * 3
    assert found.points[1].answer.bytes_sent_per_rank_max > 0
    mixed = sweep(SweepFlags(experiment=TrainingFlags(matmul=SIZES, transposed="a"), on=on), ["algorithm=4d,3d,summa"])
    refusal = "transposed a: 4d takes none only; summa and 3d take a and b"
    assert [row.answer.reason for row in mixed.points] == [refusal, None, None]
    with pytest.raises(InputError, match="--vary transposed=c: transposed 'c': accepted are none, a, b"):
        sweep(SweepFlags(experiment=TrainingFlags(matmul=SIZES), on=on), ["transposed=c"])


@pytest.mark.parametrize("transposed", TURNED)
def test_the_best_grid_is_looked_for(transposed):
    on = MachineFlags(machine="perlmutter")
    one = SweepFlags(
        experiment=TrainingFlags(matmul="640,64,64", algorithm="3d", transposed=transposed), on=on, best_grid=True
    )
    (row,) = sweep(one, ["gpus=4"]).points
    assert row.answer.grids == 6 and row.answer.seconds


def test_a_form_is_scaled_and_one_that_an_algorithm_lacks_is_refused(capsys):
    assert "transposed" in {one.name for one in SCALING}
    found = scaling(
        parse_problem("strong", matmul=(64, 48, 96), gpus=[1, 2], algorithm="3d", dtype="float64", transposed="b"),
        lambda _: star(2),
    )
    assert found.matmul == Sizes(64, 48, 96, "b") and len(found.best) == 2
    assert "m=64, k=48, n=96, transposed=b, float64" in capsys.readouterr().out
    with pytest.raises(InputError, match="transposed b: 4d takes none only"):
        parse_problem("strong", algorithm="3d,4d", transposed="b")


@pytest.mark.mpi
def test_eight_ranks_train_with_a_transposed_operand_and_send_what_was_predicted(tmp_path, toy):
    words = ["--matmul", "96,80,72", "--algorithm", "3d", "--grid", "z=2,y=2,x=2", "--transposed", "a"]
    words += ["--passes", "training", "--overlap", "oar,ors,oag", "--threads", "1", "--json"]
    ran = quadrille("launch", "-n", "8", "run", *words, tmp_path / "m.json", "--verify", "--repeats", "1")
    assert (ran.status, ran.err) == (0, "")
    assert quadrille("simulate", *words, tmp_path / "p.json", "--machine", toy).status == 0
    measured, predicted = load_record(tmp_path / "m.json"), load_record(tmp_path / "p.json")
    assert measured.verified.ok and measured.workload == predicted.workload
    assert measured.bytes_sent_total == predicted.bytes_sent_total > 0
    assert {op.name: op.bytes_sent_total for op in measured.ops} == {
        op.name: op.bytes_sent_total for op in predicted.ops
    }
