"""The choices of Megatron-LM as a text, and the step that they make of a GPT."""

import json
from dataclasses import replace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.megatron_memory import MegatronMemory
from quadrille.algorithms.training.megatron_software import (
    MegatronSoftware,
    parse_software,
    software_of,
    stage_memories,
)
from quadrille.cli.main import main
from tests.support.megatron_steps import SMALL

GPT = Gpt(12, 512, 8, 1024, 50304, 32, dtype="bfloat16", micro_batch=4, dropout=0.1, attention="unfused", zero=1)
LATENT = Architecture(
    key_rank=64, head_columns=48, rotary_columns=16, value_columns=32, positions="rotary", biases=False
)
SIZES = "layers=4,hidden=64,heads=4,sequence=64,vocabulary=128"
LAYOUT = "--batch 8 --micro-batch 1 --grid pipeline=2,data=2 --scheme megatron --dtype bfloat16 --machine a100-node"
WORDS = ["--gpt", SIZES, *LAYOUT.split()]


def test_a_step_becomes_a_gpt_and_choices_and_the_same_step_again():
    step = replace(SMALL, attention="unfused", distributed_optimizer=True, loss="native", mask_from_loader=False)
    software = software_of(step)
    assert parse_software(str(software)) == software
    again = software.step(GPT, Grid(data=8), sequence_parallel=False)
    assert again == step


@pytest.mark.parametrize(
    "text", ["megatron", "megatron:deterministic=yes,loss=te,group=5", "megatron:attention_dropout=0.0"]
)
def test_texts_are_read_and_written(text):
    assert str(parse_software(text)) == text


@pytest.mark.parametrize(
    ("gpt", "reason"),
    [
        (replace(GPT, experts=Experts(8, 2, 64)), "experts"),
        (replace(GPT, architecture=LATENT), "latent attention"),
        (replace(GPT, products="fp8"), "small numbers"),
    ],
)
def test_models_whose_memory_is_not_counted_are_refused(gpt, reason):
    with pytest.raises(InputError, match=f"not known with .*{reason}"):
        MegatronSoftware().step(gpt, Grid(data=8), sequence_parallel=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("deepspeed", "megatron, or"),
        ("megatron:fast=yes", "accepted are attention"),
        ("megatron:loss=slow", "unfused, native, te"),
        ("megatron:deterministic=1", "yes or no"),
        ("megatron:group=-3", "number from 0"),
        ("megatron:group=" + "9" * 400, "number from 0"),
        ("megatron:", "^$"),
    ],
)
def test_other_texts_are_refused(text, words):
    if words == "^$":
        assert parse_software(text) == MegatronSoftware()
        return
    with pytest.raises(InputError, match=words):
        parse_software(text)


@pytest.mark.parametrize(
    ("gpt", "grid", "words"),
    [
        (GPT, Grid(z=2), "data, context, pipeline and x"),
        (replace(GPT, zero=2), Grid(data=2), "ZeRO 2"),
        (GPT, Grid(x=3), "heads 8"),
    ],
)
def test_steps_that_megatron_has_not_are_refused(gpt, grid, words):
    with pytest.raises(InputError, match=words):
        MegatronSoftware().step(gpt, grid, sequence_parallel=False)


def test_a_record_has_the_memory_of_the_software_by_stage_and_repeats(tmp_path, capsys):
    path = tmp_path / "record.json"
    assert main(["simulate", *WORDS, "--software", "megatron:loss=te", "--json", str(path)]) == 0
    assert "memory of a rank by stage" in capsys.readouterr().out
    record = json.loads(path.read_text())
    gpt = Gpt(4, 64, 4, 64, 128, 8, dtype="bfloat16", micro_batch=1)
    step = MegatronSoftware(loss="te").step(gpt, Grid(pipeline=2, data=2), sequence_parallel=False)
    expected = [int(memory.peak) for memory in stage_memories(step, "A100")]
    assert record["memory_bytes_by_stage"] == expected
    assert abs(sum(record["memory_bytes_by_kind"].values()) - max(expected)) < 10
    assert record["options"]["software"] == "megatron:loss=te"
    assert MegatronMemory(step, 0, "A100").peak == expected[0]
    again = tmp_path / "again.json"
    assert main(["simulate", "--from", str(path), "--json", str(again), "--quiet"]) == 0
    assert json.loads(again.read_text())["memory_bytes_by_stage"] == expected


def test_a_stack_of_layers_has_no_software(capsys):
    assert main(["simulate", "--mlp", "8,8", "--batch", "8", "--software", "megatron", "--machine", "a100-node"]) == 2
    assert "is for --gpt" in capsys.readouterr().err
