"""Programs: the ops of a rank in order, with what repeats written once.

Nothing here grows with the number of iterations: `walk` goes through them one
at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeGuard

from quadrille.algorithms.schedule.expressions import IntExpression, evaluate
from quadrille.algorithms.schedule.ops import Communication, Op
from quadrille.algorithms.schedule.parts import Coordinates, Panel


@dataclass(frozen=True, slots=True)
class Repeat:
    """`body`, once for each value of `loop` from `first`, `count` times.

    A count given as a Panel is the number of panels in which the rank takes part.
    `backwards` goes through the same values from the last to the first.
    """

    loop: str
    count: IntExpression | Panel
    body: "Program"
    first: IntExpression = 0
    backwards: bool = False

    def indices(self, place: Coordinates) -> range:
        if isinstance(self.count, Panel):
            start, stop = self.count.iterations(place)
            length = stop - start
        else:
            length = max(0, evaluate(self.count, place))
        first = evaluate(self.first, place)
        forwards = range(first, first + length)
        return forwards[::-1] if self.backwards else forwards


Program = tuple[Op | Repeat, ...]


def walk(program: Program, place: Coordinates) -> Iterator[tuple[Op, Coordinates]]:
    """Ops of one rank in program order, each with its moment, one at a time."""
    for entry in program:
        if isinstance(entry, Repeat):
            for index in entry.indices(place):
                yield from walk(entry.body, place.during(entry.loop, index))
        else:
            yield entry, place


def ops(program: Program) -> Iterator[Op]:
    """Every op that is written in the program, once."""
    for entry in program:
        if isinstance(entry, Repeat):
            yield from ops(entry.body)
        else:
            yield entry


def in_sequence(program: Program) -> Program:
    """The program with each op ordered after the one before it, around loops too.

    This is how a schedule without overlap is written: a rank does one thing at
    a time.  An overlap is a pass that takes such edges out again.  Nothing is
    ordered after an op that is concurrent from the start (a pipeline's sends).
    """
    return _chain(program, ())[0]


def _chain(program: Program, before: tuple[str, ...]) -> tuple[Program, tuple[str, ...]]:
    chained: list[Op | Repeat] = []
    for entry in program:
        if isinstance(entry, Repeat):
            last = tuple(op.name for op in ops(entry.body) if not is_concurrent(op))[-1:]
            body, _ = _chain(entry.body, tuple(dict.fromkeys(before + last)))
            chained.append(replace(entry, body=body))
            before = tuple(dict.fromkeys(before + last))
        else:
            chained.append(replace(entry, after=tuple(dict.fromkeys(entry.after + before))))
            before = before if is_concurrent(entry) else (entry.name,)
    return tuple(chained), before


def is_concurrent(op: Op) -> TypeGuard[Communication]:
    """Whether what follows an op need not wait for it."""
    return isinstance(op, Communication) and op.concurrent
