"""`--sequence`: the same model by a flag, by a change of its name and by sizes, in every command that trains."""

import json

import pytest

from tests.support.quadrille import called

SIZES = "layers=2,hidden=64,heads=8,sequence=16,vocabulary=256"
ON = ("--batch", "8", "--machine", "perlmutter")


def answer(capsys, *words):
    done = called(capsys, *words, "--json", "-")
    assert done.status == 0, done.err
    return json.loads(done.out)


def test_three_ways_to_say_a_sequence_have_one_answer(capsys):
    seconds = {
        answer(capsys, "simulate", "--gpt", model, "--grid", "data=2,x=4", *ON, *more)["seconds"]
        for model, more in ((SIZES, ()), ("tiny,sequence=16", ()), ("tiny", ("--sequence", "16")))
    }
    assert len(seconds) == 1


def test_a_sweep_varies_the_sequence(capsys):
    rows = answer(capsys, "sweep", "--gpt", "tiny", "--grid", "data=2,x=4", *ON, "--vary", "sequence=16,32")["rows"]
    for row, sequence in zip(rows, ("16", "32"), strict=True):
        words = ("simulate", "--gpt", "tiny", "--sequence", sequence, "--grid", "data=2,x=4", *ON)
        assert row["answer"]["seconds"] == pytest.approx(answer(capsys, *words)["seconds_per_iteration"], rel=1e-9)


def test_rank_takes_it_and_its_command_names_it(capsys):
    done = called(capsys, "rank", "--gpt", "tiny", "--sequence", "16", "--gpus", "8", "--top", "1", *ON)
    assert done.status == 0, done.err
    assert "quadrille simulate --gpt tiny --sequence 16 --batch 8" in done.out


def test_a_stack_of_layers_has_no_sequence(capsys):
    done = called(capsys, "simulate", "--mlp", "8,8", "--sequence", "4", *ON)
    assert done.status == 2 and "--sequence 4: is for --gpt" in done.line


def test_advice_names_the_quantity_at_fault(capsys):
    long = ("rank", "--search", "none", "--gpt", "llama3-8b", "--sequence", "131072", "--gpus", "64", "--batch", "64")
    done = called(capsys, *long, "--machine", "h100-superpod")
    assert done.status == 2
    assert "most of it are activations and buffers of sequences of 131072 tokens" in done.line
    assert "a shorter --sequence" in done.line and "more --gpus" not in done.line
    large = ("rank", "--gpt", "gpt3-175b", "--sequence", "64", "--gpus", "8", "--batch", "8", "--machine", "selene")
    large += ("--search", "none")
    done = called(capsys, *large)
    assert done.status == 2
    assert "most of it are parameters, gradients and optimizer states" in done.line
    assert "more --gpus" in done.line and "--sequence" not in done.line


@pytest.mark.parametrize("scheme", ["4d", "megatron"])
def test_sweep_names_the_quantity_at_fault_as_rank_does(capsys, scheme):
    asked = ("sweep", "--gpus", "8", "--best-grid", "--vary", f"scheme={scheme}", *ON)
    done = called(capsys, *asked, "--gpt", "llama3-8b", "--sequence", "131072")
    assert done.status == 2
    assert "no grid fits: " in done.line
    assert "most of it are activations and buffers of sequences of 131072 tokens" in done.line
    done = called(capsys, *asked, "--gpt", "gpt3-175b", "--sequence", "64")
    assert "most of it are parameters, gradients and optimizer states" in done.line and "more --gpus" in done.line


@pytest.mark.parametrize(
    ("form", "largest", "smaller"),
    [
        (("--form", "exact"), "activations and buffers of sequences of 8192 tokens", "parameters, gradients and"),
        ((), "parameters, gradients and optimizer states", "activations and buffers of sequences of 8192 tokens"),
    ],
    ids=["whole batch", "microbatches"],
)
def test_both_quantities_are_named_where_each_alone_is_too_large(capsys, form, largest, smaller):
    model = ("--gpt", "llama3-70b", "--batch", "8", "--gpus", "8", "--machine", "perlmutter")
    done = called(capsys, "rank", *model, *form)
    assert f"most of it are {largest}" in done.line
    assert f"too large alone are also {smaller}" in done.line
    assert "a shorter --sequence" in done.line and "more --gpus" in done.line


def test_more_gpus_are_named_only_where_they_share_a_sequence(capsys):
    model = ("rank", "--gpt", "llama3-8b", "--sequence", "131072", "--batch", "64", "--machine", "h100-superpod")
    model += ("--search", "none")
    large = called(capsys, *model, "--gpus", "128").line
    assert "grid z=8,y=2,x=8" in large and "more --gpus" not in large
    small = called(capsys, *model, "--gpus", "2").line
    assert "grid x=2)" in small and "activations and buffers" in small and "more --gpus" in small


def test_a_search_over_schemes_names_the_largest_part(capsys):
    asked = ("rank", "--gpt", "llama3-8b", "--sequence", "131072", "--gpus", "8", "--scheme", "4d,megatron")
    done = called(capsys, *asked, *ON)
    assert done.status == 2 and "no grid fits: model llama3-8b on 8 GPUs needs at least " in done.line
    assert "most of it are activations and buffers of sequences of 131072 tokens" in done.line
