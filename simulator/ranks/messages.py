"""What ranks send to each other in the engine: wires, and messages on them."""

from collections.abc import Hashable

from quadrille.algorithms.analysis.op_plans import PlanStep
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.simulator.ranks.resources import Channel
from quadrille.topologies.machines.machine import Machine, Network

Sent = tuple[int, int]
"""A wire, and a flow of the engine that goes over it."""


class RankMessages:
    """The messages of all ranks, each made when it is first needed.

    On a machine whose senders do not wait for their receivers, messages are `buffered`: they go ahead of who
    receives them, and who has to wait for one pays its latency.
    """

    def __init__(self, machine: Machine, wiring: ResourceDemands, engine: FlowEngine) -> None:
        self._wiring, self._engine = wiring, engine
        network = machine.network or Network()
        self.buffered, self.chunk_bytes = network.buffered_sends, network.chunk_bytes
        self._taken_seconds = network.taken_seconds
        self._wires: dict[tuple[Channel, bool], int] = {}
        self._sent: dict[tuple[int, float, str, int], int] = {}
        self._meetings: dict[Channel, Sent] = {}
        self._to_itself: dict[tuple[int, str, float], Sent] = {}
        self._words: dict[tuple[str, Hashable], Sent] = {}
        self._hearing: dict[tuple[int, str, float], int] = {}

    def sent(
        self, lane: str, sender: int, receiver: int, step: PlanStep, chunks: int = 1, *, buffered: bool = False
    ) -> Sent:
        """What a rank sends to another in a step, in so many equal chunks: one of them.

        A buffered one down a chain is as fast as a message of its size: it was held up where the chain begins, and
        finds buckets that have filled meanwhile.  In a ring all links were measured at once, by whole steps.

        Parameters
        ----------
        buffered : whether it goes before anybody receives it
        """
        wire, channel = self._wire(lane, sender, receiver, buffered=buffered)
        key = wire, step.sent, step.pattern, chunks
        if key not in self._sent:
            cost = self._wiring.transfer_on(channel, step.sent, step.pattern)
            sized = step.sent / chunks if buffered and step.is_of_chain else step.sent
            self._sent[key] = self._engine.flow(
                cost.work / chunks,
                cost.demands,
                weight=cost.weight,
                cap=self._wiring.transfer_on(channel, sized, step.pattern).cap,
                latency=0.0 if buffered else cost.latency,
                alone=cost.alone / chunks,
                extrapolated=cost.extrapolated,
            )
        return wire, self._sent[key]

    def wire(self, lane: str, sender: int, receiver: int, *, buffered: bool = False) -> int:
        """What carries the messages of a lane from a rank to another."""
        return self._wire(lane, sender, receiver, buffered=buffered)[0]

    def latency(self, lane: str, sender: int, receiver: int, step: PlanStep, *, is_first: bool) -> float:
        """Seconds before what is buffered is there, beyond those that it is on links.

        The first step of an op finds members as their products have left them, the next ones find them waiting; so
        does every step of a chain, and was measured so.
        """
        channel = self._wiring.channel(lane, sender, receiver)
        latency = self._wiring.transfer_on(channel, step.sent, step.pattern).latency
        return latency if is_first or step.is_of_chain else min(latency, self._wiring.following_seconds)

    def extrapolated(self, lane: str, sender: int, receiver: int, step: PlanStep) -> bool:
        """Whether what a rank sends to another in a step is larger than what was measured."""
        return self._wiring.transfer_on(
            self._wiring.channel(lane, sender, receiver), step.sent, step.pattern
        ).extrapolated

    def taken_seconds(self, sender: int, receiver: int) -> float:
        """How much later than its receiver who only sent hears that all was taken; between hosts that was measured.

        In a ring every member sends and receives at once, and its seconds are those of both.
        """
        return self._taken_seconds if self._wiring.home(sender) != self._wiring.home(receiver) else 0.0

    def told(self, rank: int, lane: str) -> Sent:
        """On what a rank tells the postman of a lane that one more chunk may go, and what it says."""
        return self._said("told", (rank, lane))

    def taken(self, rank: int, lane: str) -> Sent:
        """On what the postman of a lane tells its rank that all it was given has been taken, and what it says."""
        return self._said("taken", (rank, lane))

    def hearing(self, rank: int, lane: str, seconds: float) -> int:
        """What the postman of a lane waits for while the receiver of its last message hears of that."""
        key = rank, lane, seconds
        if key not in self._hearing:
            self._hearing[key] = self._engine.flow(0.0, {}, cap=1.0, latency=seconds)
        return self._hearing[key]

    def greeting(self, lane: str, sender: int, receiver: int) -> Sent:
        """On what a receiver tells a sender that it has come to receive, and what it says."""
        return self._said("greeting", self._wiring.channel(lane, sender, receiver))

    def _said(self, what: str, key: Hashable) -> Sent:
        """A wire of words that take no time, and that nobody has to wait for before he goes on."""
        if (what, key) not in self._words:
            self._words[what, key] = self._engine.wire(eager=True), self._engine.flow(0.0, {}, cap=1.0)
        return self._words[what, key]

    def meeting(self, lane: str, sender: int, receiver: int) -> Sent:
        """What only says that both are there: it takes no time, and both wait for it."""
        channel = self._wiring.channel(lane, sender, receiver)
        if channel not in self._meetings:
            self._meetings[channel] = self._engine.wire(), self._engine.flow(0.0, {}, cap=1.0)
        return self._meetings[channel]

    def to_itself(self, rank: int, lane: str, seconds: float, *, extrapolated: bool) -> Sent:
        """What a rank hears of itself after so many seconds, which count as transfer."""
        key = rank, lane, seconds
        if key not in self._to_itself:
            flow = self._engine.flow(seconds, {}, cap=1.0, alone=seconds, extrapolated=extrapolated)
            self._to_itself[key] = self._engine.wire(), flow
        return self._to_itself[key]

    def _wire(self, lane: str, sender: int, receiver: int, *, buffered: bool) -> tuple[int, Channel]:
        channel = self._wiring.channel(lane, sender, receiver)
        if (channel, buffered) not in self._wires:
            self._wires[channel, buffered] = self._engine.wire(eager=buffered)
        return self._wires[channel, buffered], channel
