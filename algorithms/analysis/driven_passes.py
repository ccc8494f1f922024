"""The passes of a pipeline stage whose order messages decide, for both interpreters.

`MessageDrivenStage` walks the passes of one rank.  It posts at most one receive of each kind (forward and backward),
asks the rule which pass is next, hands its ops to the interpreter in program order, and asks again once the pass has
ended.  The interpreter says when an op has ended: the simulator in virtual time, the runtime in real time.

Ranks that communicate within a pass must run the same one.  The first of them asks the rule and tells the others, by
collectives that begin each pass (`Stages.interleaved`).
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, Protocol

from quadrille.algorithms.analysis.dependencies import Token, Undecided
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import AllReduce, Communication, Op, Receive
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.pass_rules import StageState, in_order_of_arrival, next_pass
from quadrille.algorithms.schedule.program import DrivenPasses, Pass, PassKind, Repeat, is_concurrent, walk

KINDS: tuple[PassKind, ...] = ("B", "F")
"""Kinds of passes that messages order."""


class Agreement(Protocol):
    """What the ranks that run the same pass tell each other."""

    def decides(self, axes: Collection[Axis]) -> bool:
        """Whether this rank decides for the ranks along these axes."""

    def announce(self, tensor: str, kind: PassKind | None) -> None:
        """Puts the decision, or None where another rank decides, into the tensor that the next collectives exchange."""

    def decision(self, tensor: str) -> PassKind:
        """The decision in the tensor, after the collectives."""


@dataclass(slots=True)
class _NextPass(Generic[Token]):
    """The next pass of a kind: its ops, and the token of its receive once it was posted."""

    agreement: list[tuple[Op, Coordinates]]
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
    agreement : what the rank exchanges with ranks that must run the same pass
    """

    def __init__(
        self,
        passes: DrivenPasses,
        coordinates: Coordinates,
        enter: Callable[[Op, Coordinates], Token],
        end: Callable[[Token], float | None],
        agreement: Agreement,
    ) -> None:
        self._agreement = agreement
        self._rule, self._tensor, self._enter, self._end = passes.rule, passes.decision, enter, end
        self._remaining: dict[PassKind, deque[tuple[Pass, Coordinates]]] = {kind: deque() for kind in KINDS}
        for entry, at in _passes_of(passes, coordinates):
            self._remaining[entry.kind].append((entry, at))
        self._next: dict[PassKind, _NextPass[Token]] = {}
        self._state = StageState(passes=len(self._remaining["F"]), warmup=0, limit=passes.limit)

    def walk(self) -> Iterator[Token | Undecided[Token]]:
        """Tokens of all ops in the order in which the rank runs them; an `Undecided` where the order is not known."""
        while self._state.backward < self._state.passes:
            yield from self._post_receives()
            kind = yield from self._decision()
            taken = self._next.pop(kind)
            if kind == "F":
                self._state = self._state.after(kind)
            yield from self._post_receives()
            last = yield from self._enter_all(taken.ops)
            if kind == "B":  # only now may a receive wait for the ops that release its buffer
                self._state = self._state.after(kind)
                yield from self._post_receives()
            yield from self._wait_for(last)

    def _decision(self) -> Generator[Token | Undecided[Token], None, PassKind]:
        """Tokens of the ops by which the rank learns which pass is next; returns its kind."""
        agreement = next(iter(self._next.values())).agreement
        axes = {op.axis for op, _ in agreement if isinstance(op, Communication)}
        kind = None
        if self._agreement.decides(axes):
            while (kind := next_pass(self._rule, self._with_arrivals())) is None:
                yield Undecided([each.posted for each in self._next.values() if each.posted is not None])
            if not agreement:
                return kind
        self._agreement.announce(self._tensor, kind)
        last = yield from self._enter_all(agreement)
        yield from self._wait_for(last)
        return self._agreement.decision(self._tensor)

    def _enter_all(self, ops: Sequence[tuple[Op, Coordinates]]) -> Generator[Token, None, Token | None]:
        """Tokens of the ops; returns the last one for which the ops after it wait."""
        last = None
        for op, at in ops:
            token = self._enter(op, at)
            last = last if is_concurrent(op) else token
            yield token
        return last

    def _wait_for(self, token: Token | None) -> Iterator[Undecided[Token]]:
        while token is not None and self._end(token) is None:
            yield Undecided([token])

    def _post_receives(self) -> Iterator[Token]:
        """Tokens of receives that are posted now: of each kind that has none, if the limit allows its next pass."""
        for kind in KINDS:
            if kind not in self._next and self._remaining[kind]:
                self._next[kind] = _next_pass_of(*self._remaining[kind].popleft(), self._tensor)
            following = self._next.get(kind)
            if following is None or following.receive is None or following.posted is not None:
                continue
            if kind == "B" or self._state.allows(kind):
                following.posted = self._enter(*following.receive)
                yield following.posted

    def _with_arrivals(self) -> StageState:
        """The state, with the kinds of passes whose messages have arrived."""
        arrivals: dict[PassKind, float] = {}
        for kind, following in self._next.items():
            if following.receive is None:
                arrivals[kind] = -inf
            elif following.posted is not None and (end := self._end(following.posted)) is not None:
                arrivals[kind] = end
        return replace(self._state, arrived=in_order_of_arrival(arrivals))


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


def _next_pass_of(entry: Pass, coordinates: Coordinates, decision: str) -> _NextPass[Token]:
    following: _NextPass[Token] = _NextPass([], [], None)
    for op, at in walk((entry,), coordinates):
        if isinstance(op, Receive) and op.posted:
            assert following.receive is None, "a pass waits for one message"
            following.receive = op, at
        elif isinstance(op, AllReduce) and op.buffer == decision:
            if at.grid.length(op.axis) > 1:
                following.agreement.append((op, at))
        else:
            following.ops.append((op, at))
    return following
