"""Message graphs: their times follow from a formula, and those of a schedule are the simulator's."""

from collections import Counter

import networkx as nx
import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.formats.goal import goal_text, parse_goal
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.graph_simulation import simulate_graph
from quadrille.simulator.ranks.schedule_graph import message_graph
from quadrille.simulator.simulate import simulate
from tests.support.toy_machines import BANDWIDTH, LATENCY, collective, leaf_spine, star

SIZE = 1e6


def calculate(seconds, *needs, stream=0):
    return GraphTask("calculate", seconds, needs, stream=stream)


def send(peer, *needs, size=SIZE):
    return GraphTask("send", size, needs, peer=peer)


def receive(peer, *needs, size=SIZE):
    return GraphTask("receive", size, needs, peer=peer)


def makespan(*ranks, machine=None):
    return simulate_graph(MessageGraph(ranks), machine or star(max(2, len(ranks)))).makespan


def test_a_message_waits_for_both_ends_then_takes_its_latency_and_bytes():
    ends = simulate_graph(MessageGraph(([calculate(2.0), send(1, 0)], [receive(0), calculate(1.0, 0)])), star(2))
    assert ends.finish[0] == pytest.approx(2.0 + 2 * LATENCY + SIZE / BANDWIDTH)
    assert ends.makespan == pytest.approx(3.0 + 2 * LATENCY + SIZE / BANDWIDTH)
    assert ends.calculating == (2.0, 1.0)


def test_two_messages_to_one_rank_share_its_link():
    assert makespan([receive(1), receive(2)], [send(0)], [send(0)]) == pytest.approx(2 * LATENCY + 2 * SIZE / BANDWIDTH)


def test_equal_messages_at_once_on_one_channel_each_take_half_of_the_link():
    ends = makespan([send(1), send(1)], [receive(0), receive(0)])
    assert ends == pytest.approx(2 * LATENCY + 2 * SIZE / BANDWIDTH)


def test_calculations_of_a_stream_run_one_by_one_and_streams_side_by_side():
    assert makespan([calculate(1.0), calculate(1.0)], []) == pytest.approx(2.0)
    assert makespan([calculate(1.0), calculate(1.5, stream=1)], []) == pytest.approx(1.5)


def test_a_task_may_wait_for_a_start():
    follower = GraphTask("calculate", 1.0, (), (0,), stream=1)
    assert makespan([calculate(3.0), follower], []) == pytest.approx(3.0)


def test_a_message_that_nobody_receives_is_a_deadlock_with_its_ends():
    with pytest.raises(Deadlock, match="2 tasks cannot end: rank 0 waits to send to rank 1 with tag 0"):
        makespan([send(1), calculate(1.0, 0)], [])


def graph_and_prediction(schedule, machine, choices="own:ring"):
    choices, grid = parse_choices(choices), schedule.grid
    graph = message_graph(schedule, machine, choices, place_ranks(machine, grid.size, "packed", grid))
    return graph, simulate(schedule, machine, choices=choices).timeline.makespan


@pytest.mark.parametrize(
    "kind",
    ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "send_receive", "barrier"],
)
@pytest.mark.parametrize("choices", ["own:ring", "own:doubling", "own:double_binary_tree"])
def test_the_graph_of_a_collective_takes_its_predicted_time(kind, choices):
    machine = leaf_spine(2, 4, memory=1e11, overhead=3e-6)
    graph, predicted = graph_and_prediction(collective(kind, 8, 1 << 20), machine, choices)
    assert simulate_graph(graph, machine).makespan == pytest.approx(predicted, rel=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "grid"),
    [("4d", Grid(z=2, x=2, y=2)), ("cannon", Grid(x=2, z=2)), ("summa", Grid(x=2, z=2))],
)
def test_the_graph_of_a_multiplication_takes_its_predicted_time(algorithm, grid):
    machine = star(8, overhead=5e-6)
    schedule = matmul_schedule(Matmul(128, 128, 128), algorithm, grid)
    graph, predicted = graph_and_prediction(schedule, machine)
    assert simulate_graph(graph, machine).makespan == pytest.approx(predicted, rel=1e-9)


@pytest.mark.parametrize(
    "schedule",
    [
        overlap(matmul_schedule(Matmul(30, 22, 14, passes="training"), "4d", Grid(z=2, x=3)), ("oar", "ors")),
        matmul_schedule(Matmul(10, 9, 7), "summa", Grid(x=2, z=2)),
        collective("broadcast", 5, 1 << 10),
    ],
)
def test_a_rank_waits_for_nothing_twice_and_receives_what_is_sent(schedule):
    graph, _ = graph_and_prediction(schedule, star(6, overhead=5e-6), "own:ring")
    ends = {"send": Counter(), "receive": Counter()}
    for rank, tasks in enumerate(graph.ranks):
        waits = nx.DiGraph((need, number) for number, task in enumerate(tasks) for need in task.needs)
        assert set(waits.edges) == set(nx.transitive_reduction(waits).edges)
        for task in tasks:
            if task.peer >= 0:
                sender, receiver = (rank, task.peer) if task.kind == "send" else (task.peer, rank)
                ends[task.kind][sender, receiver, task.tag, task.amount] += 1
    assert ends["send"] == ends["receive"]


def test_overlapped_ops_stay_overlapped():
    machine = star(4, overhead=5e-6)
    schedule = overlap(matmul_schedule(Matmul(256, 256, 256, passes="training"), "4d", Grid(z=2, x=2)), ("oar", "ors"))
    graph, predicted = graph_and_prediction(schedule, machine)
    assert simulate_graph(graph, machine).makespan == pytest.approx(predicted, rel=1e-9)


def test_goal_carries_a_prediction_in_whole_nanoseconds():
    machine = star(8, peak=2.0**30 * 1e-9 * 1e9, overhead=5e-6)
    schedule = matmul_schedule(Matmul(128, 128, 128), "4d", Grid(z=2, x=2, y=2))
    graph, predicted = graph_and_prediction(schedule, machine)
    shortest = 1e-9
    rounded = MessageGraph(
        tuple(
            [
                task._replace(amount=round(task.amount / shortest) * shortest) if task.kind == "calculate" else task
                for task in tasks
            ]
            for tasks in graph.ranks
        )
    )
    again = simulate_graph(parse_goal(goal_text(graph.ranks), "goal"), machine).makespan
    assert again == pytest.approx(simulate_graph(rounded, machine).makespan, rel=1e-9)
    assert (
        abs(again - predicted) <= sum(task.kind == "calculate" for task in graph.ranks[0]) * 0.5e-9 + 1e-9 * predicted
    )
