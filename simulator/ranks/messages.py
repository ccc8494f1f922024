"""Messages between ranks: each is a flow of the flow engine, on a channel that matches its send with its receive."""

from collections.abc import Hashable
from typing import NamedTuple

from quadrille.algorithms.analysis.op_plans import PlanStep
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.simulator.ranks.resources import Channel
from quadrille.topologies.machines.machine import Machine

Message = tuple[int, int]
"""A channel of the engine, and the flow that is a message on the channel."""


class TaggedStage(NamedTuple):
    """A stage of a program, with the step of the op's plan and the number of the step; None for local work."""

    stage: ProgramStage
    step: PlanStep | None = None
    number: int = 0


class RankMessages:
    """The flows and channels of all messages between ranks, each added to the engine at its first use.

    If the machine's messages are eager, they leave before their receives are posted, and a rank that waits for an
    eager message pays the latency of the message.
    """

    def __init__(self, machine: Machine, demands: ResourceDemands, engine: FlowEngine) -> None:
        self._demands, self._engine = demands, engine
        emulated = machine.emulated
        self.eager, self.chunk_bytes = emulated.eager, emulated.chunk_bytes
        self._ack_delay = emulated.sender_ack_delay_seconds
        self._engine_channels: dict[tuple[Channel, bool], int] = {}
        self._flows: dict[tuple[int, float, str, int, float, float], int] = {}
        self._rendezvous: dict[Channel, Message] = {}
        self._self_messages: dict[tuple[int, str, float, float], Message] = {}
        self._signals: dict[tuple[str, Hashable], Message] = {}
        self._ack_waits: dict[tuple[int, str, float], int] = {}

    def message(
        self,
        lane: str,
        sender: int,
        receiver: int,
        step: PlanStep,
        chunks: int = 1,
        *,
        eager: bool = False,
        copying: float = 0.0,
        noise: float = 1.0,
    ) -> Message:
        """The channel and the flow of one chunk of the message that a rank sends to another rank in a step.

        A chunk down a chain moves at the rate of a message of the chunk's size: it was limited where the chain begins,
        and token buckets have filled meanwhile.  Rings were measured with whole steps on all links at once.
        Messages within a host are copied by the processes of their ranks, so messages that are posted at once share the
        process of their sender.

        Parameters
        ----------
        chunks : number of equal chunks of the message
        eager : whether the message is sent before its receive is posted
        copying : seconds of all messages that the sender sends within its host at once; 0 for a single message [s]
        noise : factor on the work of the message, and not on its latency
        """
        engine_channel, channel = self._channel_pair(lane, sender, receiver, eager=eager)
        is_here = copying > 0 and self._demands.endpoint(sender) == self._demands.endpoint(receiver)
        key = engine_channel, step.sent, step.pattern, chunks, copying if is_here else 0.0, noise
        if key not in self._flows:
            demand = self._demands.transfer_on(channel, step.sent, step.pattern)
            cap_bytes = step.sent / chunks if eager and step.is_one_way else step.sent
            work, demands = demand.work, demand.demands
            if is_here:
                work, demands = copying, {j: units * demand.work / copying for j, units in demands.items()}
            self._flows[key] = self._engine.add_flow(
                work / chunks * noise,
                demands,
                weight=demand.weight,
                cap=self._demands.transfer_on(channel, cap_bytes, step.pattern).cap,
                latency=0.0 if eager else demand.latency,
                alone=(copying if is_here else demand.alone) / chunks * noise,
                extrapolated=demand.extrapolated,
            )
        return engine_channel, self._flows[key]

    def copying_seconds(self, lane: str, sender: int, receiver: int, step: PlanStep) -> float:
        """Seconds in which the sender copies the message of a step, if both ranks are on one host; otherwise 0."""
        if self._demands.endpoint(sender) != self._demands.endpoint(receiver):
            return 0.0
        return self._demands.transfer_on(self._demands.channel(lane, sender, receiver), step.sent, step.pattern).work

    def engine_channel(self, lane: str, sender: int, receiver: int, *, eager: bool = False) -> int:
        """The number of the engine's channel for the messages of a lane from a rank to another."""
        return self._channel_pair(lane, sender, receiver, eager=eager)[0]

    def latency(self, lane: str, sender: int, receiver: int, step: PlanStep, *, is_first: bool) -> float:
        """Seconds until an eager message is received, beyond the time on its links.

        The first step of an op finds members as their computing left them; later steps find them waiting, which is
        faster.  Every step of a chain counts as a first step, as it was measured.
        """
        channel = self._demands.channel(lane, sender, receiver)
        latency = self._demands.transfer_on(channel, step.sent, step.pattern).latency
        return latency if is_first or step.is_one_way else min(latency, self._demands.back_to_back_latency)

    def extrapolated(self, lane: str, sender: int, receiver: int, step: PlanStep) -> bool:
        """Whether the message of a step is larger than what was measured."""
        return self._demands.transfer_on(
            self._demands.channel(lane, sender, receiver), step.sent, step.pattern
        ).extrapolated

    def ack_delay(self, sender: int, receiver: int) -> float:
        """Seconds until the sender of a chain learns that its receiver has the whole message; measured between hosts.

        In a ring every member sends and receives at once, and its measured seconds contain both.
        """
        return self._ack_delay if self._demands.endpoint(sender) != self._demands.endpoint(receiver) else 0.0

    def chunk_released(self, rank: int, lane: str) -> Message:
        """The signal by which a rank releases one more chunk to its lane's send queue."""
        return self._signal("released", (rank, lane))

    def all_delivered(self, rank: int, lane: str) -> Message:
        """The signal by which a lane's send queue reports to its rank that all chunks were delivered."""
        return self._signal("delivered", (rank, lane))

    def ack_wait(self, rank: int, lane: str, seconds: float) -> int:
        """The flow that delays a send queue until the receiver of its last message knows that it is complete."""
        key = rank, lane, seconds
        if key not in self._ack_waits:
            self._ack_waits[key] = self._engine.add_flow(0.0, {}, cap=1.0, latency=seconds)
        return self._ack_waits[key]

    def ready_to_receive(self, lane: str, sender: int, receiver: int) -> Message:
        """The signal by which a receiver reports to a sender that it is ready to receive."""
        return self._signal("ready", self._demands.channel(lane, sender, receiver))

    def _signal(self, kind: str, key: Hashable) -> Message:
        """A channel and a flow for signals that take no time and for which their sender does not wait."""
        if (kind, key) not in self._signals:
            self._signals[kind, key] = self._engine.add_channel(eager=True), self._engine.add_flow(0.0, {}, cap=1.0)
        return self._signals[kind, key]

    def rendezvous(self, lane: str, sender: int, receiver: int) -> Message:
        """A message that takes no time, for which both ends wait."""
        channel = self._demands.channel(lane, sender, receiver)
        if channel not in self._rendezvous:
            self._rendezvous[channel] = self._engine.add_channel(), self._engine.add_flow(0.0, {}, cap=1.0)
        return self._rendezvous[channel]

    def self_message(self, rank: int, lane: str, seconds: float, latency: float, *, extrapolated: bool) -> Message:
        """A message of a rank to itself, which takes `seconds`, with its latency [s]; the rest counts as transfer."""
        key = rank, lane, seconds, latency
        if key not in self._self_messages:
            moving = seconds - latency
            flow = self._engine.add_flow(moving, {}, cap=1.0, latency=latency, alone=moving, extrapolated=extrapolated)
            self._self_messages[key] = self._engine.add_channel(), flow
        return self._self_messages[key]

    def _channel_pair(self, lane: str, sender: int, receiver: int, *, eager: bool) -> tuple[int, Channel]:
        channel = self._demands.channel(lane, sender, receiver)
        if (channel, eager) not in self._engine_channels:
            self._engine_channels[channel, eager] = self._engine.add_channel(eager=eager)
        return self._engine_channels[channel, eager], channel
