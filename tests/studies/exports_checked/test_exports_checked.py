"""Exported files have the same times in SimGrid, where it is installed."""

import subprocess

import pytest

from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph
from quadrille.studies.exports_checked import simgrid_replay as replay
from quadrille.studies.exports_checked.study import DRAGONFLY, STAR, checked_case, collective_graph, schedules
from quadrille.studies.simulator_speed.simgrid_runner import SimgridMissing


@pytest.fixture(scope="module")
def follower(tmp_path_factory):
    try:
        return replay.compile_follower(tmp_path_factory.mktemp("simgrid"))
    except SimgridMissing as missing:
        pytest.skip(f"SimGrid is {missing}")


def test_every_schedule_has_the_times_of_simgrid(follower, tmp_path):
    for name, graph, networks in schedules():
        if len(graph.ranks) <= 8:
            case = checked_case(follower, name, graph, networks[1], tmp_path)
            assert case.simgrid_s == pytest.approx(case.replay_s, rel=1e-3), name
            assert case.largest_with_weights < 1e-9, name


def test_the_rest_of_the_difference_is_how_messages_share_a_link(follower, tmp_path):
    case = checked_case(follower, "", collective_graph("all_to_all", 8, 1 << 26), DRAGONFLY, tmp_path)
    assert case.largest_difference > 0.01
    assert case.largest_with_weights < 1e-9


def test_calculations_of_a_stream_run_one_by_one_there_too(follower, tmp_path):
    graph = MessageGraph(
        (
            [GraphTask("calculate", 1.0), GraphTask("calculate", 0.5, stream=1), GraphTask("calculate", 2.0, (1,))],
            [GraphTask("calculate", 0.25)],
        )
    )
    case = checked_case(follower, "", graph, STAR, tmp_path)
    assert case.simgrid_s == case.replay_s == pytest.approx(3.0)


def test_it_says_when_simgrid_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(replay.shutil, "which", lambda _: None)
    with pytest.raises(SimgridMissing, match="is missing"):
        replay.compile_follower(tmp_path)
    monkeypatch.setattr(replay.shutil, "which", lambda _: "g++")
    missing = subprocess.CompletedProcess([], 1, "", "simgrid/s4u.hpp: No such file or directory")
    monkeypatch.setattr(replay.subprocess, "run", lambda *_, **__: missing)
    with pytest.raises(SimgridMissing, match="libsimgrid-dev"):
        replay.compile_follower(tmp_path)
