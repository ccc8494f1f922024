"""Tuner files: the choices are the fastest of all predictions, and their ranges cover every size once."""

import json
from itertools import pairwise

import pytest

from quadrille.algorithms.collectives.nccl.tuning_constants import ALGORITHMS
from quadrille.experiments.export.tuner_file import LARGEST, fastest
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine
from tests.support.quadrille import called

WORDS = ("export", "tuner", "--machine", "h100-superpod", "--gpus", "16", "--collective", "all-reduce")


@pytest.mark.parametrize("size", [1 << 14, 1 << 22])
def test_the_choice_is_the_fastest_of_the_predictions_of_the_command(capsys, size):
    machine = find_machine("h100-superpod", gpus=16)
    choice = fastest("all_reduce", size, 16, machine, network_of(machine))
    seconds = {}
    for algorithm in ("ring", "tree", "nvls_tree"):
        for protocol in ALGORITHMS[algorithm]:
            words = ["collective", "all-reduce", "--bytes", size, "--gpus", "16", "--machine", "h100-superpod"]
            ended = called(capsys, *words, "--collectives", f"nccl:{algorithm}:{protocol}", "--json", "-")
            seconds[algorithm, protocol] = json.loads(ended.out)["seconds"]
    assert seconds[choice.algorithm, choice.protocol] == choice.seconds == min(seconds.values())


def test_the_ranges_of_a_kind_cover_every_size_once(capsys):
    ended = called(capsys, *WORDS)
    rows = [line.split(",") for line in ended.out.splitlines() if not line.startswith("#")]
    assert {(row[0], *row[6:]) for row in rows} == {("allreduce", "2", "16")}
    assert int(rows[0][1]) == 0
    assert int(rows[-1][2]) == LARGEST
    assert [int(after[1]) - int(before[2]) for before, after in pairwise(rows)] == [1] * (len(rows) - 1)
    assert all(before[3:6] != after[3:6] for before, after in pairwise(rows))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((*WORDS[:-1], "barrier"), "NCCL's tuner takes broadcast"),
        ((*WORDS[:5], "1"), "two GPUs or more"),
        ((*WORDS, "--out", "/no/folder/x"), "does not exist"),
    ],
)
def test_bad_input_is_one_line(capsys, words, fault):
    ended = called(capsys, *words)
    assert ended.status == 2
    assert fault in ended.line
