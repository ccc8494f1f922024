"""Whether `--verify` of training passes what is right, for every scheme and choice, and finds what is wrong."""

import numpy as np
import pytest

from quadrille.runtime.training.training_data import TrainingSource
from tests.support.training_jobs import SMALL, ended, losses, outputs, verdict

CHOSEN = [
    {"grid": "data=2,z=3,y=2"},
    {"grid": "z=2,x=3", "overlap": "oar,ors,oag", "clip": "0.1"},
    {"grid": "z=2,x=3", "recompute": "full", "gathered": "keep"},
    {"grid": "z=3", "attention": "unfused"},
    {"grid": "z=3", "attention": "unfused", "recompute": "full"},
    {"grid": "data=2,x=3", "scheme": "megatron"},
    {"grid": "x=3", "scheme": "megatron", "sequence_parallel": True},
    {"grid": "x=3", "scheme": "megatron", "sequence_parallel": True, "attention": "unfused", "recompute": "selective"},
    {"grid": "z=2,x=3", "scheme": "optimus"},
    {"grid": "y=2,x=3", "scheme": "tesseract"},
    {"grid": "y=2,x=3", "scheme": "bian"},
    {"grid": "pipeline=2,z=3", "micro_batch": "1"},
    {"grid": "pipeline=3,x=2", "micro_batch": "2", "clip": "0.1"},
    {"grid": "data=2,x=2", "zero": "1"},
    {"grid": "data=3,x=2", "zero": "2", "micro_batch": "1"},
    {"grid": "data=2,z=3", "zero": "3"},
]
MLPS = [{"grid": "data=2,z=2,y=3,x=2"}, {"grid": "z=3,y=2", "clip": "0.01"}, {"grid": "x=3", "scheme": "megatron"}]


@pytest.mark.parametrize(
    ("chosen", "dtype"), [(one, "float32") for one in CHOSEN] + [(one, "float64") for one in CHOSEN[::4]], ids=str
)
def test_gpts_are_right_under_every_scheme(chosen, dtype):
    run = ended(gpt=SMALL, batch="6", steps="2", dtype=dtype, **chosen)
    found = verdict(run)
    assert found.ok, found
    assert found.bound < {"float64": 1e-11, "float32": 1e-2}[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("chosen", MLPS, ids=str)
def test_stacks_of_layers_are_right(chosen, dtype):
    found = verdict(ended(mlp="7,11,5,13", batch="17", steps="3", dtype=dtype, **chosen))
    assert found.ok, found
    assert found.bound < {"float64": 1e-12, "float32": 1e-3}[dtype]


@pytest.fixture(scope="module", params=["float64", "float32"])
def run(request):
    return ended(gpt=SMALL, batch="6", steps="2", grid="z=3,y=2", dtype=request.param)


def changed(name, by):
    """Something done to the first element of a tensor on rank 3."""

    def change(rank, blocks):
        if rank == 3:
            values = blocks[name][-1].reshape(-1)
            values[0] = by(values[0])

    return change


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("dQKV W", "dQKV W layer 2"),
        ("dnorm1 γ", "dnorm1 γ layer 2"),
        ("up b", "up b layer 2"),
        ("dtable", "dtable"),
        ("loss", "the loss of step 1"),
    ],
)
def test_one_wrong_element_is_named_with_its_rank(run, name, what):
    largest = max(float(np.abs(block).max()) for block in outputs(run)[3][name])
    found = verdict(run, changed(name, lambda value: value + 0.02 * largest))
    assert not found.ok
    assert f"rank 3: {what} is off by" in found.reason, found.reason


def test_what_is_no_number_is_wrong(run):
    found = verdict(run, changed("dtable", lambda _: np.nan))
    assert not found.ok
    assert "rank 3: dtable" in found.reason


def test_a_bias_gradient_that_misses_a_sum_is_found():
    """The bug of others: each rank along z keeps its own share of the sum."""
    run = ended(gpt=SMALL, batch="6", grid="z=2")

    def halved(rank, blocks):
        for block in blocks["dup b"]:
            np.multiply(block, 0.5, out=block)

    assert "dup b" in verdict(run, halved).reason


def test_a_step_too_few_is_found():
    one, two = (ended(gpt=SMALL, batch="6", steps=steps, grid="z=2") for steps in ("1", "2"))

    def stale(rank, blocks):
        blocks["table"] = [outputs(one)[rank]["table"].copy()]

    assert "table" in verdict(two, stale).reason


# Data


def test_losses_do_not_depend_on_the_grid_and_fall():
    runs = [ended(gpt=SMALL, batch="6", steps="5", grid=grid, dtype="float64") for grid in ("x=1", "z=3,x=2")]
    np.testing.assert_allclose(losses(runs[0]), losses(runs[1]), rtol=1e-12)
    assert losses(runs[0])[-1] < losses(runs[0])[0] - 0.1
    mlp = losses(ended(mlp="7,23,5", batch="17", steps="20", learning_rate="0.02"))
    assert mlp[-1] < 0.7 * mlp[0]


def test_microbatches_read_the_same_batch():
    one, several = (
        ended(gpt=SMALL, batch="6", grid="z=3", dtype="float64", **more) for more in ({}, {"micro_batch": "1"})
    )
    np.testing.assert_allclose(losses(one), losses(several), rtol=1e-13)


def test_seeds_and_steps_have_batches_of_their_own():
    run = ended(gpt=SMALL, batch="6")
    first = TrainingSource(run.schedule, seed=0, sequence=7)
    batches = [first.tokens(0, 6), first.tokens(1, 6), TrainingSource(run.schedule, seed=1, sequence=7).tokens(0, 6)]
    tokens = [tuple(batch[0].ravel()) for batch in batches]
    assert len(set(tokens)) == 3
    for inputs, targets in batches:
        assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert len({tuple(row) for row in batches[0][0]}) == 6


def test_parameters_begin_as_they_should():
    run = ended(gpt="layers=1,hidden=64,heads=2,sequence=4,vocabulary=256", batch="1")
    table, gamma, bias = (run.data.whole(name) for name in ("table", "norm1 γ layer 0", "QKV b layer 0"))
    assert (gamma == 1).all() and (bias == 0).all()
    assert table.std() == pytest.approx(0.02, rel=0.02) and abs(table.mean()) < 0.001
    assert np.abs(table).max() <= 0.02 * 3**0.5
