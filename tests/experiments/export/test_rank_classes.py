"""`export --classes` and `export ranks`: files of classes become the files that an export of all ranks writes."""

import json

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.rank_class_tasks import rank_class_tasks
from quadrille.simulator.ranks.schedule_graph import message_graph
from tests.support.quadrille import called
from tests.support.toy_machines import collective, star

PIPELINE = (
    "--gpt", "layers=2,hidden=64,heads=4,vocabulary=96,sequence=32", "--batch", "4", "--micro-batch", "1", "--scheme",
    "megatron", "--grid", "pipeline=2,data=2,x=2", "--machine", "perlmutter", "--collectives", "own:ring",
)  # fmt: skip
UNEVEN = ("--matmul", "30,22,14", "--grid", "z=2,x=3", "--machine", "perlmutter", "--collectives", "own:ring")


@pytest.mark.parametrize(
    ("job", "words"), [(PIPELINE, ["chakra"]), (UNEVEN, ["goal"]), (UNEVEN, ["chakra", "--messages"])]
)
def test_the_ranks_of_classes_are_those_of_a_whole_export(capsys, tmp_path, job, words):
    for folder, more in (("whole", []), ("classes", ["--classes"])):
        (tmp_path / folder).mkdir()
        ended = called(capsys, "export", *words, *job, *more, "--out", tmp_path / folder / "step")
        assert ended.status == 0, ended.err
    table = tmp_path / "classes/step.classes.json"
    classes = len(json.loads(table.read_text())["classes"])
    assert classes < 6
    (tmp_path / "again").mkdir()
    assert called(capsys, "export", "ranks", table, "--out", tmp_path / "again/step").status == 0
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    again = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    groups = tmp_path / "classes/step.groups.json"
    assert whole == again | ({groups.name: groups.read_bytes()} if groups.exists() else {})


@pytest.mark.parametrize("choices", ["own:ring", "own:doubling", "own:double_binary_tree"])
@pytest.mark.parametrize(
    "schedule",
    [
        matmul_schedule(Matmul(64, 64, 64, passes="training"), "4d", Grid(z=2, x=2, y=2)),
        matmul_schedule(Matmul(10, 9, 7), "summa", Grid(x=2, z=2)),
        matmul_schedule(Matmul(64, 64, 64), "cannon", Grid(x=3, z=3)),
        collective("all_to_all", 8, 1 << 20),
    ],
)
def test_the_tasks_of_every_rank_are_those_of_its_class_with_its_own_peers(schedule, choices):
    machine, grid = star(9, overhead=5e-6), schedule.grid
    inputs = schedule, machine, parse_choices(choices), place_ranks(machine, grid.size, "packed", grid)
    graph, classes = message_graph(*inputs), rank_class_tasks(*inputs)
    assert sorted(rank for entry in classes for rank in entry.members) == list(range(grid.size))
    for entry in classes:
        for rank, peers in entry.members.items():
            own = [task._replace(peer=peers.ranks[task.peer]) if task.peer >= 0 else task for task in entry.tasks]
            assert own == graph.ranks[rank]


@pytest.mark.parametrize(
    ("job", "words"), [(PIPELINE, ["chakra"]), (UNEVEN, ["goal"]), (UNEVEN, ["chakra", "--messages"])]
)
def test_replay_of_a_table_is_the_replay_of_all_ranks(capsys, tmp_path, job, words):
    """`PREFIX.classes.json` alone gives the times of every rank that the files of all ranks give."""
    for name, more in (("whole", []), ("classes", ["--classes"])):
        out = tmp_path / (f"{name}.goal" if words == ["goal"] and not more else name)
        assert called(capsys, "export", *words, *job, *more, "--out", out).status == 0
    whole = sorted(tmp_path.glob("whole*"))
    answers = [
        json.loads(called(capsys, "replay", *files, "--machine", "perlmutter", "--json", "-").out)
        for files in (whole, [tmp_path / "classes.classes.json"])
    ]
    assert answers[0]["makespan_s"] > 0
    for key in ("finish_s", "calculating_s", "messages", "bytes", "links"):
        assert answers[0][key] == answers[1][key]
    assert len(list(tmp_path.iterdir())) < len(whole) + 10


def test_replay_of_a_table_names_the_groups_that_are_missing(capsys, tmp_path):
    called(capsys, "export", "chakra", *PIPELINE, "--classes", "--out", tmp_path / "step")
    (tmp_path / "step.groups.json").unlink()
    line = called(capsys, "replay", tmp_path / "step.classes.json", "--machine", "perlmutter").line
    assert "step.groups.json: cannot be read" in line and "the table names groups" in line


def test_some_ranks_alone_are_written(capsys, tmp_path):
    called(capsys, "export", "goal", *UNEVEN, "--classes", "--out", tmp_path / "step")
    ended = called(capsys, "export", "ranks", tmp_path / "step.classes.json", "--ranks", "1,4-5")
    assert [line for line in ended.out.splitlines() if line.startswith("rank")] == ["rank 1 {", "rank 4 {", "rank 5 {"]


@pytest.mark.parametrize(
    ("change", "words", "fault"),
    [
        ({"ranks": [{"of": 7, "peers": [], "groups": []}]}, [], "is of class 7"),
        ({"ranks": [{"of": 0, "peers": [], "groups": []}] * 6}, [], "other numbers of peers"),
        ({"classes": [{"file": "../x", "rank": 0, "peers": [], "groups": []}], "ranks": []}, [], "without a folder"),
        ({}, ["--ranks", "9"], "no rank or range"),
        ({}, ["--out", "step.0.goal"], "--out"),
        ({"schema": "quadrille/record/1"}, [], "schema"),
        ({"format": "gml"}, [], "format"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, change, words, fault):
    monkeypatch.chdir(tmp_path)
    called(capsys, "export", "goal", *UNEVEN, "--classes", "--out", "step")
    table = tmp_path / "step.classes.json"
    table.write_text(json.dumps(json.loads(table.read_text()) | change))
    for ended in (
        called(capsys, "export", "ranks", table, *words),
        *([] if words or "schema" in change else [called(capsys, "replay", table, "--machine", "perlmutter")]),
    ):
        assert ended.status == 2
        assert fault in ended.line


def test_a_missing_file_of_a_class_is_one_line(capsys, tmp_path):
    called(capsys, "export", "chakra", *UNEVEN, "--classes", "--out", tmp_path / "step")
    (tmp_path / "step.0.et").unlink()
    ended = called(capsys, "export", "ranks", tmp_path / "step.classes.json", "--out", tmp_path / "again")
    assert (ended.status, "cannot be read" in ended.line) == (2, True)
