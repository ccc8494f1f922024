"""The steps of one rank in one communication op, carried by the engine.

A member starts step s + 1 when its own send and receive of step s have ended;
a transfer starts when its sender and its receiver have both reached it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from algorithms.copies import Copies
from algorithms.traffic import Exchange, Traffic
from simulator.compute import ComputeModel, touched
from simulator.engine import FlowEngine
from simulator.wiring import Cost, Wiring

Channel = tuple[str, int, int]
"""A lane, the sending rank and the receiving rank: messages on it keep their order."""


@dataclass(slots=True)
class Board:
    """Sends and receives that wait for their other end."""

    sends: dict[Channel, deque["Member"]] = field(default_factory=dict)
    receives: dict[Channel, deque["Member"]] = field(default_factory=dict)

    def post(self, channel: Channel, member: "Member", *, is_send: bool) -> "Member | None":
        """The other end, if it is there; else the member waits for it."""
        mine, theirs = (self.sends, self.receives) if is_send else (self.receives, self.sends)
        waiting = theirs.get(channel)
        if waiting:
            return waiting.popleft()
        mine.setdefault(channel, deque()).append(member)
        return None


@dataclass(slots=True)
class Spent:
    """Seconds of one member's op that are not transfer: latencies of its steps, and local work."""

    latency: float = 0.0
    compute: float = 0.0
    extrapolated: bool = False


class Member:
    """One rank in one instance of a communication op."""

    def __init__(
        self,
        rank: int,
        lane: str,
        group: tuple[int, ...],
        moved: Traffic | None,
        copied: Copies,
        *,
        engine: FlowEngine,
        wiring: Wiring,
        compute: ComputeModel,
        board: Board,
        ended: Callable[["Member"], None],
    ) -> None:
        self.rank = rank
        self.spent = Spent()
        self._lane = lane
        self._group = group
        self._moved = moved
        self._copied = copied
        self._engine = engine
        self._wiring = wiring
        self._compute = compute
        self._board = board
        self._ended = ended
        self._exchanges: Iterator[Exchange] = _messages(moved) if moved is not None else iter(())
        self._under_way = 0
        self._exchange: Exchange | None = None

    def begin(self) -> None:
        """Local copies, then the first step."""
        self._work("copy", self._copied.before, self._next)

    def _next(self) -> None:
        for exchange in self._exchanges:
            sends, receives = exchange.send_to is not None, exchange.receive_from is not None
            self._exchange, self._under_way = exchange, sends + receives
            if exchange.send_to is not None:
                self._post((self._lane, self.rank, self._group[exchange.send_to]), is_send=True)
            if exchange.receive_from is not None:
                self._post((self._lane, self._group[exchange.receive_from], self.rank), is_send=False)
            if sends or receives:
                return
        self._work("copy", self._copied.after, lambda: self._ended(self))

    def _post(self, channel: Channel, *, is_send: bool) -> None:
        other = self._board.post(channel, self, is_send=is_send)
        if other is None:
            return
        sender, receiver = (self, other) if is_send else (other, self)
        assert sender._exchange is not None and sender._moved is not None
        size = sender._exchange.sent * sender._moved.item_bytes
        cost = self._wiring.transfer(sender.rank, receiver.rank, size, _pattern(sender._exchange))
        for end in (sender, receiver):
            end._note(cost)

        def arrived() -> None:
            sender._arrived()
            receiver._arrived()

        self._wiring.start(cost, arrived)

    def _note(self, cost: Cost) -> None:
        """A step's two transfers run at once: its latency counts once."""
        assert self._exchange is not None
        both = self._exchange.send_to is not None and self._exchange.receive_from is not None
        self.spent.latency += cost.latency / (2 if both else 1)
        self.spent.extrapolated |= cost.extrapolated

    def _arrived(self) -> None:
        self._under_way -= 1
        if self._under_way:
            return
        exchange, moved = self._exchange, self._moved
        assert exchange is not None and moved is not None
        reduced = exchange.received * moved.item_bytes if exchange.reduce else 0
        self._work("add", reduced, self._next)

    def _work(self, operation: str, size: int, then: Callable[[], None]) -> None:
        """Local work bound by memory, on the cores where the rank lives."""
        if not size:
            then()
            return
        estimate = self._compute.memory(operation, size)
        self.spent.compute += estimate.seconds
        self.spent.extrapolated |= estimate.extrapolated and self._compute.measured(operation)
        demands = self._wiring.local(self.rank, 1.0, touched(operation, size) / estimate.seconds)
        self._engine.start(estimate.seconds, demands, cap=1.0, then=then)


def _messages(moved: Traffic) -> Iterator[Exchange]:
    """The exchanges of one member; where a piece is empty nothing goes over the wire, except in a barrier."""
    for exchange in moved.exchanges():
        if moved.lowered.algorithm == "dissemination":
            yield exchange
        else:
            send_to = exchange.send_to if exchange.send else None
            receive_from = exchange.receive_from if exchange.receive else None
            yield replace(exchange, send_to=send_to, receive_from=receive_from)


def _pattern(exchange: Exchange) -> str:
    if exchange.send_to is None or exchange.receive_from is None:
        return "one_way"
    return "exchange" if exchange.send_to == exchange.receive_from else "shift"
