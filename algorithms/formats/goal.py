"""GOAL: the text format of message graphs of LogGOPSim and ATLAHS.

    num_ranks 2

    rank 0 {
    l1: calc 1500 cpu 0
    l2: send 4096b to 1 tag 0 cpu 1
    l2 requires l1
    }

Calculations have whole nanoseconds, and messages whole bytes.  `requires` waits for an end, `irequires` for a start.
Comments begin with `//`, or stand between `/*` and `*/`.  Receives from any rank or with any tag (-1) are refused.

Source: Hoefler, Siebert, Lumsdaine, "Group Operation Assembly Language", ICPP 2009; the grammar of `txt2bin`,
https://github.com/spcl/LogGOPSim.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import read_text
from quadrille.algorithms.formats.message_graph import (
    MOST_TASKS,
    GraphTask,
    MessageGraph,
    TaskKind,
    check_count,
    check_needs,
)
from quadrille.algorithms.units import LONGEST_SECONDS

NANOSECOND = 1e-9
MOST_RANKS = 1 << 20
MOST_BYTES = 1 << 30
MOST_DIGITS = 18
MOST_STREAMS = 256
"""Number of streams of a rank: `cpu` is a number of 8 bits."""
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
NUMBER = r"(\d{1," + str(MOST_DIGITS) + r"})"
LABEL = r"([a-zA-Z]\w*)"
CALCULATION = re.compile(rf"(?:{LABEL}\s*:\s*)?calc\s+{NUMBER}(?:\s+cpu\s+{NUMBER})?")
MESSAGE = re.compile(
    rf"(?:{LABEL}\s*:\s*)?(send|recv)\s+{NUMBER}\s*b\s+(to|from)\s+{NUMBER}"
    rf"(?:\s+tag\s+{NUMBER})?(?:\s+cpu\s+{NUMBER})?(?:\s+nic\s+{NUMBER})?"
)
DEPENDENCY = re.compile(rf"{LABEL}\s+(i?requires)\s+{LABEL}")
RANK = re.compile(rf"rank\s+{NUMBER}\s*\{{")
RANK_COUNT = re.compile(rf"num_ranks\s+{NUMBER}")
ACCEPTED = "num_ranks N, rank N {, }, calc N, send Nb to R, recv Nb from R, or LABEL requires LABEL"


def goal_text(ranks: Sequence[Sequence[GraphTask]]) -> str:
    """The tasks of all ranks as a GOAL file; seconds are rounded to nanoseconds.

    >>> print(goal_text(((GraphTask("calculate", 2e-9), GraphTask("send", 8.0, (0,), peer=1)), ())))
    num_ranks 2
    <BLANKLINE>
    rank 0 {
    l1: calc 2 cpu 0
    l2: send 8b to 1 tag 0 cpu 0
    l2 requires l1
    }
    <BLANKLINE>
    rank 1 {
    }
    <BLANKLINE>
    """
    return head_text(len(ranks)) + "".join(rank_text(rank, tasks) for rank, tasks in enumerate(ranks))


def head_text(ranks: int) -> str:
    """The first line of a GOAL file, with the number of ranks."""
    return f"num_ranks {ranks}\n"


def rank_text(rank: int, tasks: Sequence[GraphTask]) -> str:
    """The block of a rank in a GOAL file."""
    lines = ["", f"rank {rank} {{"]
    for number, task in enumerate(tasks, 1):
        lines.append(f"l{number}: {_task_text(task)}")
        lines += [f"l{number} requires l{need + 1}" for need in task.needs]
        lines += [f"l{number} irequires l{need + 1}" for need in task.starts]
    return "\n".join([*lines, "}", ""])


def _task_text(task: GraphTask) -> str:
    if task.stream >= MOST_STREAMS:
        raise InputError(f"stream {task.stream}: GOAL numbers the streams of a rank from 0 to {MOST_STREAMS - 1}")
    assert task.kind != "collective", "GOAL has sends and receives alone"
    if task.kind == "calculate":
        return f"calc {round(task.amount / NANOSECOND)} cpu {task.stream}"
    word, preposition = ("send", "to") if task.kind == "send" else ("recv", "from")
    return f"{word} {round(task.amount)}b {preposition} {task.peer} tag {task.tag} cpu {task.stream}"


def rounding_seconds(ranks: Iterable[Sequence[GraphTask]]) -> float:
    """The largest sum of rounding errors of a rank's calculations, in a GOAL file [s]."""
    return max(
        sum(
            abs(task.amount - NANOSECOND * round(task.amount / NANOSECOND))
            for task in tasks
            if task.kind == "calculate"
        )
        for tasks in ranks
    )


def is_goal(text: str) -> bool:
    """Whether a text begins as a GOAL file does.

    >>> is_goal("/* two ranks */ num_ranks 2"), is_goal("rank,time")
    (True, False)
    """
    return RANK_COUNT.match(COMMENT.sub(" ", text[:4096]).lstrip()) is not None


def read_goal(path: str) -> MessageGraph:
    """The message graph in a GOAL file.

    Raises
    ------
    InputError : a file that cannot be read, or an invalid line; the message has its number
    """
    try:
        text = read_text(path, MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_goal(text, path)


def parse_goal(text: str, source: str) -> MessageGraph:
    r"""The message graph in a GOAL text; `source` names the text in errors.

    >>> text = "num_ranks 2\nrank 0 {\nsend 8b to 1\n}\nrank 1 {\nrecv 8b from 0\n}"
    >>> parse_goal(text, "two.goal").ranks[0][0].peer
    1

    Raises
    ------
    InputError : an invalid line; the message has its number
    """
    return _Parser(source).graph(COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text))


class _Rank:
    """The tasks of one rank while its lines are read."""

    def __init__(self) -> None:
        self.tasks: list[GraphTask] = []
        self.labels: dict[str, int] = {}
        self.needs: dict[int, list[int]] = {}
        self.starts: dict[int, list[int]] = {}

    def complete(self) -> list[GraphTask]:
        """The tasks with their dependencies."""
        return [
            task._replace(needs=tuple(self.needs.get(number, ())), starts=tuple(self.starts.get(number, ())))
            for number, task in enumerate(self.tasks)
        ]


class _Parser:
    """Reads the lines of a GOAL text."""

    def __init__(self, source: str) -> None:
        self._source, self._count, self._size = source, 0, 0
        self._ranks: dict[int, list[GraphTask]] = {}
        self._rank: _Rank | None = None
        self._number = -1

    def graph(self, text: str) -> MessageGraph:
        """The graph of a text without comments."""
        last = 0
        for last, line in self._lines(text):
            try:
                self._line(line)
            except ValueError as fault:
                raise InputError(f"{self._source}, line {last}: {fault}") from None
        if not self._size:
            raise InputError(f"{self._source}: is no GOAL file; num_ranks N is needed")
        if self._rank is not None:
            raise InputError(f"{self._source}: ends within rank {self._number}; is the file truncated?")
        for rank, tasks in self._ranks.items():
            check_needs(tasks, f"{self._source}, rank {rank}")
        return MessageGraph(tuple(self._ranks.get(rank, []) for rank in range(self._size)))

    @staticmethod
    def _lines(text: str) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(text.splitlines(), 1):
            if stripped := line.strip():
                yield number, stripped

    def _line(self, line: str) -> None:
        if self._rank is None:
            self._outside(line)
        elif line == "}":
            self._ranks[self._number], self._rank = self._rank.complete(), None
        elif match := CALCULATION.fullmatch(line):
            self._add(match[1], self._calculation(match))
        elif match := MESSAGE.fullmatch(line):
            self._add(match[1], self._message(match))
        elif match := DEPENDENCY.fullmatch(line):
            self._depend(self._rank, *match.groups())
        elif "-1" in line.split():
            raise ValueError(f"{line!r:.80}: a message from any rank, or with any tag, is not supported")
        else:
            raise ValueError(f"{line!r:.80}: accepted are {ACCEPTED}")

    def _outside(self, line: str) -> None:
        if match := RANK_COUNT.fullmatch(line):
            if not 1 <= int(match[1]) <= MOST_RANKS:
                raise ValueError(f"num_ranks {match[1]}: 1 to {MOST_RANKS:,} is accepted")
            self._size = int(match[1])
        elif match := RANK.fullmatch(line):
            self._number, self._rank = int(match[1]), _Rank()
            if self._number >= self._size or self._number in self._ranks:
                raise ValueError(f"rank {self._number}: accepted are 0 to {self._size - 1}, each once")
        else:
            raise ValueError(f"{line!r:.80}: accepted are {ACCEPTED}")

    def _add(self, label: str | None, task: GraphTask) -> None:
        assert self._rank is not None
        self._count += 1
        if self._count > MOST_TASKS:
            check_count(self._count, self._source)
        if label is not None:
            if label in self._rank.labels:
                raise ValueError(f"label {label!r:.60} stands twice")
            self._rank.labels[label] = len(self._rank.tasks)
        self._rank.tasks.append(task)

    def _calculation(self, match: re.Match[str]) -> GraphTask:
        seconds = int(match[2]) / 1e9
        if seconds > LONGEST_SECONDS:
            raise ValueError(f"calc {match[2]}: up to {LONGEST_SECONDS / NANOSECOND:g} ns is accepted")
        return GraphTask("calculate", seconds, stream=_stream(match[3]))

    def _message(self, match: re.Match[str]) -> GraphTask:
        _, word, size, preposition, peer, tag, cpu, _ = match.groups()
        if (word, preposition) not in (("send", "to"), ("recv", "from")):
            raise ValueError(f"{word} … {preposition}: accepted are send … to and recv … from")
        if not 0 <= int(peer) < self._size or int(peer) == self._number:
            raise ValueError(f"{word} {preposition} {peer}: another rank from 0 to {self._size - 1} is accepted")
        kind: TaskKind = "send" if word == "send" else "receive"
        return GraphTask(kind, float(size), peer=int(peer), tag=int(tag or 0), stream=_stream(cpu))

    @staticmethod
    def _depend(rank: _Rank, label: str, word: str, on: str) -> None:
        for name in (label, on):
            if name not in rank.labels:
                raise ValueError(f"label {name!r:.60} is unknown; labels stand before the lines that use them")
        table = rank.needs if word == "requires" else rank.starts
        table.setdefault(rank.labels[label], []).append(rank.labels[on])


def _stream(cpu: str | None) -> int:
    if cpu is not None and int(cpu) >= MOST_STREAMS:
        raise ValueError(f"cpu {cpu}: 0 to {MOST_STREAMS - 1} is accepted")
    return int(cpu or 0)
