"""Message graph: the calculations, sends and receives of all ranks, each with the tasks that it waits for.

Trace formats such as GOAL hold such graphs.  A graph names no machine: calculations have seconds, and messages have
bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind

TaskKind = Literal["calculate", "send", "receive", "collective"]
MOST_TASKS = 4_000_000
"""Largest number of tasks of a graph, which take about 1 GB."""


class GraphTask(NamedTuple):
    """One task of a rank.

    Parameters
    ----------
    amount : seconds of a calculation, bytes of a message, or bytes of the whole buffer of a collective
    needs : tasks of the rank that must end before, by their index
    starts : tasks of the rank that must start before, by their index
    peer : rank at the other end of a message
    tag : the k-th send with a tag from a rank to another matches the k-th receive with the tag
    stream : calculations of a stream run one after the other; 0 is the rank's computing
    collective, group : kind and ranks of a collective
    name : name for readers
    flops, touched : arithmetic operations of a calculation, and bytes that it reads and writes, if they are known
    """

    kind: TaskKind
    amount: float
    needs: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    peer: int = -1
    tag: int = 0
    stream: int = 0
    collective: CollectiveKind | None = None
    group: tuple[int, ...] = ()
    name: str = ""
    flops: float = 0.0
    touched: float = 0.0


@dataclass(frozen=True, slots=True)
class MessageGraph:
    """The tasks of all ranks.

    >>> graph = MessageGraph(((GraphTask("send", 8.0, peer=1),), (GraphTask("receive", 8.0, peer=0),)))
    >>> graph.count("send"), graph.bytes
    (1, 8.0)
    """

    ranks: tuple[Sequence[GraphTask], ...]

    def count(self, kind: TaskKind) -> int:
        """Number of tasks of a kind."""
        return sum(task.kind == kind for tasks in self.ranks for task in tasks)

    @property
    def bytes(self) -> float:
        """Bytes of all messages [B]."""
        return sum(task.amount for tasks in self.ranks for task in tasks if task.kind == "send")


def check_count(count: int, source: str) -> None:
    """Checks that a graph has not too many tasks.

    Raises
    ------
    InputError : too many tasks; the message names `source`
    """
    if count > MOST_TASKS:
        raise InputError(f"{source}: has more than {MOST_TASKS:,} tasks; fewer ranks, layers or steps are accepted")


def check_needs(tasks: Sequence[GraphTask], source: str) -> None:
    """Checks that no task of a rank waits for itself.

    Raises
    ------
    InputError : a cycle; the message names `source` and a task in the cycle
    """
    followers: list[list[int]] = [[] for _ in tasks]
    missing = [len(task.needs) + len(task.starts) for task in tasks]
    for number, task in enumerate(tasks):
        for need in (*task.needs, *task.starts):
            followers[need].append(number)
    free = [number for number, count in enumerate(missing) if not count]
    for number in free:
        for follower in followers[number]:
            missing[follower] -= 1
            if not missing[follower]:
                free.append(follower)
    if len(free) < len(tasks):
        first = next(number for number, count in enumerate(missing) if count)
        raise InputError(f"{source}: task {first + 1} waits for itself, through {len(tasks) - len(free)} tasks at most")


def without_repeats(numbers: Iterable[int]) -> tuple[int, ...]:
    """The numbers in order, each once.

    >>> without_repeats([3, 1, 3])
    (1, 3)
    """
    return tuple(sorted(set(numbers)))
