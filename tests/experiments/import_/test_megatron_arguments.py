"""Arguments of Megatron-LM in four kinds of text."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.experiments.import_.megatron_arguments import read_arguments
from quadrille.experiments.import_.megatron_job import megatron_job

WORDS = {"num-layers": "2", "hidden-size": "64", "bf16": True, "data-path": "a b"}
SCRIPT = """#!/bin/bash
# a comment with --num-layers 99
export HIDDEN=64
LAYERS=2
DISTRIBUTED="--nproc_per_node 4 --nnodes 2"
MODEL_ARGS=(
    --num-layers $LAYERS   # not --num-layers 7
    --hidden-size ${HIDDEN}
    --bf16
)
torchrun $DISTRIBUTED path/pretrain_gpt.py "${MODEL_ARGS[@]}" \\
    --data-path a b --seq-length=${SEQ:-128}
"""


def test_json_yaml_and_a_list_of_words_say_the_same():
    by_name = json.dumps(
        {"--num-layers": 2, "--hidden-size": 64, "--bf16": True, "--data-path": "a b", "--fp16": False}
    )
    lines = "--num-layers: 2 # few", "--hidden-size: 64", "--bf16: true", "--data-path: 'a b'"
    yaml = "ENV_VARS:\n  X: 1\nMODEL_ARGS:\n" + "".join(f"  {line}\n" for line in lines)
    words = json.dumps(["--num-layers", "2", "--hidden-size", "64", "--bf16", "--data-path", "a", "b"])
    nested = json.dumps({"args": by_name})
    for text in (by_name, yaml, words, nested):
        assert dict(read_arguments(text).values) == WORDS


def test_a_zero_of_json_is_a_value():
    """The values of a switch that is off are `false` and `null` alone."""
    text = '{"--num-layers": 2, "--hidden-dropout": 0, "--attention-dropout": 0.0, "--bf16": false, "--fp8": null}'
    assert read_arguments(text).values == {"num-layers": "2", "hidden-dropout": "0", "attention-dropout": "0.0"}


def test_a_script_gives_values_of_variables_and_the_number_of_gpus():
    read = read_arguments(SCRIPT)
    assert {name: read.values[name] for name in WORDS} == WORDS
    assert read.values["seq-length"] == "128"
    assert (read.gpus, read.script) == (8, "path/pretrain_gpt.py")


def test_a_log_gives_all_defaults_and_the_world_size():
    log = (
        "using world size: 16\n"
        "------------------------ arguments ------------------------\n"
        "  num_layers ...................................... 2\n"
        "  add_bias_linear ................................. False\n"
        "  attention_backend ............................... AttnBackend.flash\n"
        "  bf16 ............................................ True\n"
        "  fp8 ............................................. None\n"
        "  world_size ...................................... 16\n"
    )
    read = read_arguments(log)
    assert read.gpus == 16
    assert read.values["disable-bias-linear"] is True
    assert "fp8" not in read.values
    assert read.values["bf16"] is True


def test_variables_that_name_each_other_end():
    read = read_arguments("A=$B\nB=$A$A$A$A$A$A$A$A\nA=$B$B\nx --num-layers $A$B")
    assert len(str(read.values["num-layers"])) < 10**7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no arguments"),
        ("hello", "no arguments"),
        ("{", "JSON"),
        ('{"a": 1}', "no arguments"),
        ('{"--a": {"b": 1}}', "an object"),
        ("'--num-layers", "no shell script"),
        ("a\0b", "zero byte"),
        ("[" * 10**5, "no arguments|JSON"),
        ('["' * 10**5, "JSON|deep"),
    ],
)
def test_texts_without_arguments_are_refused_in_one_line(text, words):
    with pytest.raises(InputError, match=words) as raised:
        read_arguments(text)
    assert "\n" not in str(raised.value)[:200]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_mutated_scripts_are_read_or_refused(data):
    text = list(SCRIPT)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.text(max_size=3))
        if not text:
            break
    with contextlib.suppress(InputError):
        megatron_job(read_arguments("".join(text)))
