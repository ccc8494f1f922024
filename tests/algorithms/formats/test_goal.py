"""GOAL files: what is written is read again, and every fault is one line with its place."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.goal import goal_text, parse_goal, rounding_seconds
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph

PAIR = "num_ranks 2\nrank 0 {\na: send 8b to 1 tag 3\n}\nrank 1 {\nb: recv 8b from 0 tag 3\n}\n"


def test_a_graph_in_whole_nanoseconds_is_read_as_it_was_written():
    graph = MessageGraph(
        (
            [GraphTask("calculate", 3e-9, stream=2), GraphTask("send", 4096.0, (0,), peer=1, tag=5, stream=1)],
            [GraphTask("receive", 4096.0, peer=0, tag=5), GraphTask("calculate", 7e-6, (0,), (0,))],
        )
    )
    assert parse_goal(goal_text(graph.ranks), "text") == graph
    assert rounding_seconds(graph.ranks) == pytest.approx(0.0, abs=1e-20)


def test_rounding_is_the_sum_over_the_calculations_of_a_rank():
    graph = MessageGraph(([GraphTask("calculate", 1.4e-9), GraphTask("calculate", 2.7e-9)], []))
    assert rounding_seconds(graph.ranks) == pytest.approx(0.4e-9 + 0.3e-9)


def test_comments_labels_and_orders_of_ranks_are_free():
    text = "/* two\nranks */ num_ranks 2\nrank 1 {\n  recv 8b from 0 // the only one\n}\n"
    text += "rank 0 {\nx_1 : calc 5\nsend 8b to 1 nic 1\n}"
    graph = parse_goal(text, "text")
    assert [task.kind for task in graph.ranks[0]] == ["calculate", "send"]
    assert graph.ranks[1][0] == GraphTask("receive", 8.0, peer=0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "num_ranks N is needed"),
        ("rank 0 {\n}", "line 1: rank 0"),
        ("num_ranks 999999999999\n", "line 1: num_ranks 999999999999: 1 to"),
        ("num_ranks 0\n", "line 1: num_ranks 0"),
        (PAIR[:43], "truncated"),
        (PAIR.replace("to 1", "to 2"), "line 3: send to 2"),
        (PAIR.replace("to 1", "to 0"), "line 3: send to 0"),
        (PAIR.replace("from 0", "from -1"), "line 6: 'b: recv 8b from -1 tag 3': a message from any rank"),
        (PAIR.replace("send 8b to", "send 8b from"), "line 3: send … from"),
        (PAIR.replace("tag 3\n}\nrank 1", "tag 3\na requires c\n}\nrank 1"), "line 4: label 'c' is unknown"),
        (PAIR.replace("tag 3\n}\nrank 1", "tag 3\na requires a\n}\nrank 1"), "rank 0: task 1 waits for itself"),
        (PAIR + "rank 1 {\n}", "line 8: rank 1"),
        (PAIR.replace("a: send", "a: put"), "line 3"),
        (PAIR.replace("8b to", "9999999999999999999b to"), "line 3"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_with_its_place(text, fault):
    with pytest.raises(InputError) as error:
        parse_goal(text, "x.goal")
    assert str(error.value).startswith("x.goal")
    assert fault in str(error.value)
    assert "\n" not in str(error.value)
