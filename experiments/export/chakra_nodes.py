"""The nodes of Chakra traces: the tasks of a rank, with the attributes that ASTRA-sim reads."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from quadrille.algorithms.formats.chakra import (
    COLLECTIVE,
    COLLECTIVES,
    COMPUTE,
    RECEIVE,
    SECONDS,
    SEND,
    ChakraNode,
    Value,
)
from quadrille.algorithms.formats.message_graph import GraphTask
from quadrille.algorithms.schedule.ops import CollectiveKind

WHOLE: tuple[CollectiveKind, ...] = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
"""Kinds of collectives that ASTRA-sim runs; the other kinds are written as sends and receives."""
FIRST_GROUP = 1
"""ASTRA-sim numbers groups from 1."""
Names = Mapping[tuple[int, ...], str]


def group_names(groups: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], str]:
    """A number for each group of collectives, as text."""
    return {group: str(number) for number, group in enumerate(dict.fromkeys(groups), FIRST_GROUP)}


def groups_text(names: Names) -> str:
    """The JSON file of groups, as ASTRA-sim's `--comm-group-configuration` reads it.

    >>> print(groups_text({(0, 2): "1"}), end="")
    {"1": [0, 2]}
    """
    return json.dumps({name: list(group) for group, name in names.items()}) + "\n"


def chakra_nodes(tasks: Sequence[GraphTask], rank: int, names: Names) -> Iterator[ChakraNode]:
    """Yields the nodes of a rank; a calculation without arithmetic has no tensor, so that a roofline skips it."""
    for number, task in enumerate(tasks):
        kind, attributes = _kind_and_attributes(task, rank, names)
        micros = max(1, round(task.amount * 1e6)) if task.kind == "calculate" and task.amount else 0
        yield ChakraNode(number, task.name, kind, task.needs, micros, {"is_cpu_op": False, **attributes})


def _kind_and_attributes(task: GraphTask, rank: int, names: Names) -> tuple[int, dict[str, Value]]:
    size = round(task.amount)
    match task.kind:
        case "calculate":
            amounts = {"num_ops": round(task.flops), "tensor_size": round(task.touched)}
            return COMPUTE, {**amounts, SECONDS: task.amount}
        case "send":
            return SEND, {"comm_src": rank, "comm_dst": task.peer, "comm_tag": task.tag, "comm_size": size}
        case "receive":
            return RECEIVE, {"comm_src": task.peer, "comm_dst": rank, "comm_tag": task.tag, "comm_size": size}
        case "collective":
            assert task.collective is not None
            share = size // len(task.group) if task.collective == "all_gather" else size
            kind = COLLECTIVES[task.collective]
            return COLLECTIVE, {"comm_type": kind, "comm_size": share, "pg_name": names[task.group]}
