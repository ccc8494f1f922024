"""How much of a record is printed: the verdict, a table, every op."""

import pytest

from tests.support.quadrille import called

LARGE = ("simulate", "--gpt", "layers=3,hidden=60,heads=6,sequence=7,vocabulary=53", "--batch", "6", "--grid", "x=3")


@pytest.fixture
def predicted(capsys):
    return lambda *words: called(capsys, *LARGE, "--machine", "perlmutter", *words)


def test_a_quiet_prediction_is_its_verdict(predicted):
    title, total, bound = predicted("--quiet").out.splitlines()
    assert title.startswith("predicted: ")
    assert total.startswith("total: ")
    assert bound.startswith("bound by ")


def test_a_long_table_says_how_to_see_all_of_it(predicted):
    table, whole = predicted().out, predicted("--verbose").out
    assert "--verbose shows all" in table
    assert "--verbose shows all" not in whole
    assert whole.count("\n") > table.count("\n")


def test_the_least_and_the_most_exclude_each_other(predicted):
    assert "--quiet and --verbose: one of them" in predicted("--quiet", "--verbose").line


PIPELINE = ("simulate", "--gpt", "gpt3-125m", "--batch", "4", "--grid", "pipeline=2", "--dtype", "bfloat16")


def test_the_title_names_a_model_and_another_line_the_traits_of_a_model_without_a_name(capsys):
    named = called(capsys, *PIPELINE, "--machine", "h100-node", "--quiet").out.splitlines()
    assert named[0].startswith("predicted: 4d, training, gpt3-125m, 4 sequences of 2048 bfloat16, grid pipeline=2")
    changed = (*PIPELINE[:2], "gpt3-125m,gated=yes", *PIPELINE[3:])
    title, model, *_ = called(capsys, *changed, "--machine", "h100-node", "--quiet").out.splitlines()
    assert "gpt of 12 layers" in title and "gated" not in title
    assert model == "model: gated MLP"


def test_a_pipeline_of_one_microbatch_is_remarked_and_its_waiting_is_named(capsys):
    ended = called(capsys, *PIPELINE, "--machine", "h100-node", "--quiet")
    assert "one of the 2 stages works at a time; --micro-batch" in ended.err
    assert "waiting and messages between pipeline stages" in ended.out
    assert "works at a time" not in called(capsys, *PIPELINE, "--machine", "h100-node", "--micro-batch", "1").err


def test_the_title_names_the_collectives_of_the_gpu(capsys):
    words = "simulate", "--matmul", "64,64,64", "--grid", "z=2", "--dtype", "float32", "--quiet", "--machine"
    assert called(capsys, *words, "mi300x-node").out.splitlines()[0].endswith(", rccl")
    assert called(capsys, *words, "h100-node").out.splitlines()[0].endswith(", nccl")
