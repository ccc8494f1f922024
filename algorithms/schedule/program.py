"""Programs: the ops of a rank in order, with loops.

A program does not grow with the number of iterations; `walk` visits the iterations one at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeGuard

from quadrille.algorithms.schedule.expressions import IntExpression, evaluate
from quadrille.algorithms.schedule.ops import Communication, Op, Receive, Send, is_host_op
from quadrille.algorithms.schedule.parts import Coordinates, Panel

PassKind = Literal["F", "B", "W"]
"""Kind of a pass of a pipeline stage: forward, backward, or the gradients of weights where B leaves them out."""
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "message-driven"]
"""Rules of the order of passes (`pass_rules.py`)."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop: `body` for `count` consecutive values of the index `loop`, from `first`.

    A Panel as count means the number of panels that the rank takes part in.  `backwards` reverses the order of the
    indices.
    """

    loop: str
    count: IntExpression | Panel
    body: "Program"
    first: IntExpression = 0
    backwards: bool = False

    def indices(self, coordinates: Coordinates) -> range:
        """Indices of the loop, in order."""
        if isinstance(self.count, Panel):
            start, stop = self.count.iterations(coordinates)
            length = stop - start
        else:
            length = max(0, evaluate(self.count, coordinates))
        first = evaluate(self.first, coordinates)
        forwards = range(first, first + length)
        return forwards[::-1] if self.backwards else forwards


@dataclass(frozen=True, slots=True)
class Pass(Repeat):
    """One pass of a pipeline stage: `body` for one microbatch, or one chunk of layers."""

    kind: PassKind = "F"


@dataclass(frozen=True, slots=True)
class DrivenPasses(Repeat):
    """All passes of a pipeline stage in a step, whose order messages decide while the program runs.

    `body` holds the passes in an order that is possible, for everything that does not depend on the order.  Both
    interpreters ask the rule instead (`driven_passes.py`).

    Parameters
    ----------
    rule, limit : see `pass_rules.py`
    decision : tensor in which ranks that communicate within a pass agree on the next pass
    """

    rule: PipelineSchedule = "message-driven"
    limit: int = 1
    decision: str = ""


@dataclass(frozen=True, slots=True)
class Choice(Repeat):
    """A body that runs once or not at all, as its place in the loops around it decides."""


Program = tuple[Op | Repeat, ...]


def walk(program: Program, coordinates: Coordinates) -> Iterator[tuple[Op, Coordinates]]:
    """Yields the ops of one rank in program order, every loop iteration included.

    Each op comes with the coordinates of the rank and its loop indices.  Passes that messages drive come in the order
    in which they are written.
    """
    for entry in program:
        if isinstance(entry, Repeat):
            for index in entry.indices(coordinates):
                yield from walk(entry.body, coordinates.during(entry.loop, index))
        else:
            yield entry, coordinates


def walk_around_passes(program: Program, coordinates: Coordinates) -> Iterator[tuple[Op | DrivenPasses, Coordinates]]:
    """Yields the ops of one rank as `walk` does, but the passes of a step as a whole if messages drive them."""
    for entry in program:
        if isinstance(entry, Repeat) and not isinstance(entry, DrivenPasses):
            for index in entry.indices(coordinates):
                yield from walk_around_passes(entry.body, coordinates.during(entry.loop, index))
        else:
            yield entry, coordinates


def ops(program: Program) -> Iterator[Op]:
    """Yields every op written in the program, once."""
    for entry in program:
        if isinstance(entry, Repeat):
            yield from ops(entry.body)
        else:
            yield entry


def is_driven(program: Program) -> bool:
    """Whether messages decide the order of passes in the program."""
    return any(isinstance(entry, DrivenPasses) for entry in repeats(program))


def repeats(program: Program) -> Iterator[Repeat]:
    """Yields the loops of a program, each before the loops inside it."""
    for entry in program:
        if isinstance(entry, Repeat):
            yield entry
            yield from repeats(entry.body)


def in_sequence(program: Program) -> Program:
    """Returns the program with each op ordered after the op before it, across loop iterations too.

    This is a schedule without overlap.  An overlap pass removes such edges.  Nothing is ordered after an op that is
    concurrent from the start, such as a pipeline send or a host copy.
    """
    return _chain(program, ())[0]


def _chain(program: Program, before: tuple[str, ...]) -> tuple[Program, tuple[str, ...]]:
    chained: list[Op | Repeat] = []
    for entry in program:
        if isinstance(entry, Repeat):
            last = _last_names(entry.body)
            body, _ = _chain(entry.body, tuple(dict.fromkeys(before + last)))
            chained.append(replace(entry, body=body))
            before = tuple(dict.fromkeys(before + last))
        elif is_host_op(entry) or (isinstance(entry, Receive) and entry.posted):
            chained.append(entry)
        else:
            after = tuple(dict.fromkeys(entry.after + before))
            chained.append(entry if after == entry.after else replace(entry, after=after))
            before = before if is_concurrent(entry) else (entry.name,)
    return tuple(chained), before


def _last_names(body: Program) -> tuple[str, ...]:
    """Names of the ops that may be the last of a body: the last op, and the ops before it that choices may leave."""
    names = list[str]()
    for entry in reversed(body):
        ordered = isinstance(entry, Repeat) or not _is_unordered(entry)
        names += _last_names(entry.body) if isinstance(entry, Repeat) else [entry.name] if ordered else []
        if names and not isinstance(entry, Choice):
            break
    return tuple(dict.fromkeys(names))


def _is_unordered(op: Op) -> bool:
    """Whether no later op is ordered after an op unless it uses the op's tensors."""
    return is_host_op(op) or is_concurrent(op)


def is_concurrent(op: Op) -> TypeGuard[Communication]:
    """Whether later ops need not wait for an op."""
    return isinstance(op, Communication) and op.concurrent


def ranks_to_peer(op: Op, coordinates: Coordinates) -> int:
    """Distance in ranks from the rank at these coordinates to the other end of a send or receive; 0 for other ops.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> grid = Grid(pipeline=4, data=2)
    >>> op = Send(name="send X", axis="pipeline", to=3, source="X")
    >>> ranks_to_peer(op, Coordinates(grid, {}, grid.coordinates(5)))
    2
    """
    if not isinstance(op, Send | Receive):
        return 0
    peer = evaluate(op.to if isinstance(op, Send) else op.sender, coordinates)
    return (peer - coordinates.along[op.axis]) * coordinates.grid.stride(op.axis)
