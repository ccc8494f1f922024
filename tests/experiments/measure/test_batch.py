import json

import click
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record
from quadrille.cli.main import app
from quadrille.cli.parsing.flags import MatmulFlags, RunFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.cli.parsing.runs import parse_run
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.workloads.run_options import RunOptions
from tests.support.quadrille import called

SIZES = "61,47,53"


def parsed(words):
    """The values that the command line of `run` makes of these words."""
    command = app.get_command(click.Context(app), "run")
    given = command.make_context("run", list(words)).params
    flags = MatmulFlags(**{name: given[name] for name in MatmulFlags.__dataclass_fields__})
    files = {"inputs": ("A", "B", "dC"), "outputs": ("C", "dA", "dB")}
    run_flags = RunFlags(
        **{name: given[name] for name in RunFlags.__dataclass_fields__ if name not in files},
        **{name: {one: given[one.lower()] for one in chosen if given[one.lower()]} for name, chosen in files.items()},
    )
    return parse_matmul(flags), parse_run(run_flags)


def matmul(**words):
    return parse_matmul(MatmulFlags(**{"matmul": SIZES} | words))


@given(
    flags=st.builds(
        MatmulFlags,
        matmul=st.just(SIZES),
        algorithm=st.sampled_from(["4d", "summa"]),
        grid=st.sampled_from(["x=1", "z=2,x=3"]),
        order=st.sampled_from(["x,y,z,data", "z,x"]),
        dtype=st.sampled_from(["float32", "float64"]),
        passes=st.sampled_from(["forward", "training"]),
        gathered=st.sampled_from(["again", "keep"]),
        panel=st.sampled_from(["256", "7"]),
        transposed=st.sampled_from(["none", "a"]),
        overlap=st.sampled_from(["none", "oar,ors"]),
        collectives=st.sampled_from(["own", "library", "own:doubling"]),
        threads=st.sampled_from(["", "1"]),
    ),
    run_flags=st.builds(
        RunFlags,
        backend=st.sampled_from(["numpy", "cupy"]),
        carrier=st.sampled_from(["auto", "mpi"]),
        seed=st.sampled_from(["0", "5"]),
        operands=st.sampled_from(["uniform", "integers"]),
        inputs=st.sampled_from([{}, {"A": "a b.npy"}, {"A": "a.npy", "dC": "-.npy"}]),
        outputs=st.sampled_from([{}, {"C": "c.npy", "dB": "db.npy"}]),
        warmups=st.sampled_from(["1", "0"]),
        repeats=st.sampled_from(["5", "3"]),
        verify=st.booleans(),
        verify_method=st.sampled_from(["auto", "freivalds"]),
    ),
)
def test_the_words_of_a_case_mean_its_values(flags, run_flags):
    try:
        experiment, options = parse_matmul(flags), parse_run(run_flags)
    except InputError:
        assume(False)
    assert parsed(RunCase(experiment, "record.json", options).words()) == (experiment, options)


def test_a_case_of_defaults_has_no_words_but_its_sizes():
    assert RunCase(matmul(), "record.json").words() == ["--matmul", SIZES]


@pytest.mark.mpi
def test_one_launch_leaves_a_record_for_each_case_with_the_command_that_repeats_it(tmp_path, capfd):
    cases = [
        RunCase(matmul(grid="z=2"), str(tmp_path / "one.json"), RunOptions(repeats=2)),
        RunCase(
            matmul(matmul="7,5,3", algorithm="1d-row", grid="y=2"),
            str(tmp_path / "two.json"),
            RunOptions(verify=True),
        ),
    ]
    measure(2, cases)
    assert capfd.readouterr().out == ""
    for case in cases:
        record = load_record(case.record)
        assert (record.kind, record.ranks, record.algorithm) == ("measured", 2, case.experiment.algorithm)
        assert record.provenance.command.startswith("quadrille run --matmul ")
        for word in case.words():
            assert word in record.provenance.command
    assert [load_record(case.record).repeats for case in cases] == [2, 5]
    assert load_record(cases[1].record).verified.ok


@pytest.mark.mpi
def test_a_case_that_cannot_be_ends_the_batch_and_the_cases_before_it_keep_their_records(tmp_path, capfd):
    cases = [RunCase(matmul(matmul="7,5,3", grid=grid), str(tmp_path / f"{grid}.json")) for grid in ("x=2", "x=3")]
    with pytest.raises(InputError, match="2 runs on 2 ranks ended with status 2; the line above says why"):
        measure(2, cases)
    assert "ranks=2, but the grid x=3 has 3" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x=2.json"]


def test_words_that_are_shown_are_words_that_are_understood(capsys, tmp_path):
    words = RunCase(matmul(algorithm="3d", grid="z=2"), "", RunOptions(verify=True, repeats=2)).words()
    ended = called(capsys, "simulate", *words, "--machine", "perlmutter", "--json", "-")
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["algorithm"] == "3d"
