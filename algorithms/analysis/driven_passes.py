"""The passes of a pipeline stage whose order messages decide, for both interpreters.

`MessageDrivenStage` walks the passes of one rank.  It posts at most one receive of each kind (forward and backward),
asks the rule which pass is next, hands its ops to the interpreter in program order, and asks again once the pass has
ended.  The interpreter says when an op has ended: the simulator in virtual time, the runtime in real time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from quadrille.algorithms.schedule.ops import Op, Receive
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.pass_rules import PassKind, StageState, next_pass
from quadrille.algorithms.schedule.program import DrivenPasses, Pass, Repeat, is_concurrent, walk

Token = TypeVar("Token")
KINDS: tuple[PassKind, ...] = ("B", "F")
"""Kinds of passes; of two messages that arrive at the same time, that of the first kind counts as the earlier."""


@dataclass(frozen=True, slots=True)
class Undecided(Generic[Token]):
    """The next op is known once any of these ops has ended; the interpreter then continues the walk."""

    tokens: Sequence[Token]


@dataclass(slots=True)
class _NextPass(Generic[Token]):
    """The next pass of a kind: its ops without the receive, and the token of the receive once it was posted."""

    ops: list[tuple[Op, Coordinates]]
    receive: tuple[Op, Coordinates] | None
    posted: Token | None = None


class MessageDrivenStage(Generic[Token]):
    """The passes of one rank in a step.

    Parameters
    ----------
    passes : the passes, in an order that is possible
    coordinates : coordinates of the rank and indices of the loops around
    enter : registers an op as the next of the rank's program and returns its token
    end : the time at which the op of a token ended; None if it has not ended
    """

    def __init__(
        self,
        passes: DrivenPasses,
        coordinates: Coordinates,
        enter: Callable[[Op, Coordinates], Token],
        end: Callable[[Token], float | None],
    ) -> None:
        self._rule, self._enter, self._end = passes.rule, enter, end
        self._remaining: dict[PassKind, deque[tuple[Pass, Coordinates]]] = {kind: deque() for kind in KINDS}
        for entry, at in _passes_of(passes, coordinates):
            self._remaining[entry.kind].append((entry, at))
        self._next: dict[PassKind, _NextPass[Token]] = {}
        self._state = StageState(passes=len(self._remaining["F"]), warmup=0, limit=passes.limit)

    def walk(self) -> Iterator[Token | Undecided[Token]]:
        """Tokens of all ops in the order in which the rank runs them; an `Undecided` where the order is not known."""
        while self._state.backward < self._state.passes:
            yield from self._post_receives()
            kind = next_pass(self._rule, self._with_arrivals())
            if kind is None:
                yield Undecided([each.posted for each in self._next.values() if each.posted is not None])
                continue
            taken = self._next.pop(kind)
            if kind == "F":
                self._state = self._state.after(kind)
            yield from self._post_receives()
            waited = None
            for op, at in taken.ops:
                token = self._enter(op, at)
                waited = waited if is_concurrent(op) else token
                yield token
            if kind == "B":  # only now may a receive wait for the ops that release its buffer
                self._state = self._state.after(kind)
                yield from self._post_receives()
            while waited is not None and self._end(waited) is None:
                yield Undecided([waited])

    def _post_receives(self) -> Iterator[Token]:
        """Tokens of receives that are posted now: of each kind that has none, if the limit allows its next pass."""
        for kind in KINDS:
            if kind not in self._next and self._remaining[kind]:
                self._next[kind] = _next_pass_of(*self._remaining[kind].popleft())
            following = self._next.get(kind)
            if following is None or following.receive is None or following.posted is not None:
                continue
            if kind == "B" or self._state.allows(kind):
                following.posted = self._enter(*following.receive)
                yield following.posted

    def _with_arrivals(self) -> StageState:
        """The state, with the kinds of passes whose messages have arrived."""
        times: list[tuple[float, int]] = []
        for number, kind in enumerate(KINDS):
            following = self._next.get(kind)
            if following is None:
                continue
            if following.receive is None:
                times.append((float("-inf"), number))
            elif following.posted is not None and (end := self._end(following.posted)) is not None:
                times.append((end, number))
        state = self._state
        return StageState(
            state.passes,
            state.warmup,
            state.limit,
            state.forward,
            state.backward,
            tuple(KINDS[number] for _, number in sorted(times)),
        )


def _passes_of(entry: Repeat, coordinates: Coordinates) -> Iterator[tuple[Pass, Coordinates]]:
    """The passes in a loop, in program order."""
    for index in entry.indices(coordinates):
        at = coordinates.during(entry.loop, index)
        for inner in entry.body:
            assert isinstance(inner, Repeat), "a loop over passes has no other ops"
            if isinstance(inner, Pass):
                yield inner, at
            else:
                yield from _passes_of(inner, at)


def _next_pass_of(entry: Pass, coordinates: Coordinates) -> _NextPass[object]:
    receive, remaining = None, []
    for op, at in walk((entry,), coordinates):
        if isinstance(op, Receive) and op.posted:
            assert receive is None, "a pass waits for one message"
            receive = op, at
        else:
            remaining.append((op, at))
    return _NextPass(remaining, receive)
