"""A named machine is predicted with more GPUs than it has, which is said; a machine file has the GPUs that it has."""

import pytest

from tests.support.quadrille import called

GPT = "--gpt layers=2,hidden=64,heads=4,sequence=64,vocabulary=128 --batch 16"
VERBS = {
    "simulate": "simulate --matmul 64,64,64 --grid z=16 --machine {}",
    "sweep": "sweep --matmul 64,64,64 --grid z=* --vary gpus=4,16 --machine {}",
    "best grid": "sweep --matmul 64,64,64 --best-grid --vary gpus=4,16 --machine {}",
    "rank": f"rank {GPT} --gpus 16 --machine {{}}",
    "collective": "collective all-reduce --bytes 1MB --gpus 16 --machine {}",
}


@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
def test_a_larger_machine_of_a_kind_is_predicted_and_said_in_a_line(capsys, words):
    ended = called(capsys, *words.format("h100-node").split())
    assert ended.status == 0
    said = [line for line in ended.err.splitlines() if "h100-node has 8 GPUs" in line]
    assert len(said) == 1
    assert "predicted as a larger machine of the same kind with 16" in said[0]


@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
def test_a_machine_with_enough_gpus_is_no_larger_machine(capsys, words):
    ended = called(capsys, *words.format("h100-superpod").split())
    assert ended.status == 0
    assert "larger machine" not in ended.err


@pytest.mark.parametrize("name", ["simulate", "rank", "collective"])
def test_a_machine_file_has_the_gpus_that_it_has(capsys, tmp_path, name):
    machine = tmp_path / "node.toml"
    assert called(capsys, "machines", "h100-node", "--toml", str(machine)).status == 0
    ended = called(capsys, *VERBS[name].format(machine).split())
    assert (ended.status, ended.out) == (2, "")
    assert "16" in ended.err and "8" in ended.err
    assert len(ended.err.splitlines()) == 1
