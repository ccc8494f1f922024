"""What is known is listed, and files have their schemas."""

import json

import pytest

from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.topologies.build import families
from tests.support.quadrille import called


def test_every_model_and_every_family_is_listed(capsys):
    listed = called(capsys, "models").out
    assert all(f"  {name} " in listed for name in SHAPES)
    assert called(capsys, "topologies").out.count("\n") == len(families())


def test_one_name_shows_all_of_it(capsys):
    assert "8,030,261,248" in called(capsys, "models", "llama3-8b").out
    gemma = called(capsys, "models", "gemma-2-27b").out
    assert [gemma.count(word) for word in ("True", "False", "key heads", "key value heads")] == [0, 0, 0, 1]
    torus = called(capsys, "topologies", "torus").out
    assert "hosts_per_router" in torus
    assert "Arguments:" in torus
    assert not {"Raises", ">>>", "----"} & set(torus.split())


def test_a_wrong_name_is_reported_with_the_accepted_names(capsys):
    assert "star" in called(capsys, "topologies", "stra").line
    assert "record, machine, experiment" in called(capsys, "schema", "recrod").line
    assert "bash, zsh, fish" in called(capsys, "completion", "cmd").line


@pytest.mark.parametrize("name", ["record", "machine", "experiment"])
def test_a_schema_is_json_schema_with_the_name_of_the_format(capsys, name):
    schema = json.loads(called(capsys, "schema", name).out)
    assert schema["title"].startswith(f"quadrille/{name}/")
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_the_schema_of_experiments_has_a_key_for_every_flag_of_simulate(capsys):
    keys = json.loads(called(capsys, "schema", "experiment").out)["properties"]
    assert {"matmul", "grid", "machine", "set", "micro-batch", "no-fold"} <= set(keys)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_asks_quadrille(capsys, shell):
    assert "_QUADRILLE_COMPLETE" in called(capsys, "completion", shell).out


def test_a_word_that_is_no_command_is_answered_with_the_nearest(capsys):
    assert "did you mean simulate?" in called(capsys, "simulat").line
    assert "weak-scaling" in called(capsys, "study", "weak-scalin").line
    assert "--grid" in called(capsys, "simulate", "--gird", "z=2").line
