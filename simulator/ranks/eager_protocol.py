"""The eager protocol of emulated networks: messages that leave before their receiver is ready, in chunks.

Theory of operation
-------------------
Between hosts of an emulated network (network namespaces on one machine) the runtime cuts messages into chunks and
passes a chunk on as soon as it has arrived (`pipelined_steps.py`).  A late rank finds chunks that arrived before; a
waiting rank keeps its link busy while others are late.  Here the message of a step is cut into a few equal chunks,
which is enough to show both effects: chunk c of a step may go when chunk c of the step before has arrived and has been
added.

A rank has several chunks in flight and need not wait for one to be delivered before it posts the next;
in a step it waits only for what it receives.  A *send queue*, a stream of the engine beside the rank's
lane, sends the chunks in order as soon as the rank releases them.  Before a receiver is ready, a few
chunks of an op go to it; the others go once it has signalled that it is ready to receive.  An op ends
on a rank when the rank has everything that it receives, and everything that it sent has been
delivered, as with MPI_Issend.

Signals between a rank, its send queue and its senders take no time.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from quadrille.algorithms.analysis.op_plans import CommPlan, PlanStep, StepRun, step_runs
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.ranks.messages import RankMessages, TaggedStage

MAX_CHUNKS = 64
"""Largest number of chunks of a step; more would take longer to simulate.

A chain fills chunk by chunk, and a chunk larger than a token bucket waits at every link for the rest of its bytes.
"""
CHUNKS_BEFORE_READY = 8
"""Chunks of an op that go to a receiver before it is ready, as in the runtime (`pipelined_steps.py`)."""
PIECES_BEFORE_READY = 2
"""Smallest number of pieces that go ahead of a message that is not passed on."""
MAX_PIECES = 256
"""Largest number of pieces of a message that is not passed on."""
NO_STEP = PlanStep(None, None, 0.0, 0, "one_way")


class ChunkAction(NamedTuple):
    """One action of a rank: it releases a chunk to its send queue, or waits for a chunk, or both.

    Parameters
    ----------
    releases : whether the rank releases one more of its chunks
    receives : step of which the rank then waits for a chunk, None if it waits for none
    number : number of that step, from 1
    is_last : whether the chunk is the last one of its step
    """

    releases: bool
    receives: PlanStep | None = None
    number: int = 0
    is_last: bool = False


class ChunkCounts(NamedTuple):
    """Number of chunks of every message that a rank sends, and that it receives, in an op."""

    sent: int
    received: int


def chunk_counts(comm_plan: CommPlan, chunk_bytes: int) -> ChunkCounts:
    """Numbers of chunks of the messages of an op.

    Members that pass on what they receive use one number; otherwise the number follows from the size of a message,
    which both ends know.  No chunk is larger than the runtime's, up to `MAX_CHUNKS`.  Messages of an all-to-all, which
    differ from pair to pair, go whole.

    Parameters
    ----------
    chunk_bytes : size into which the runtime cuts messages [B]
    """
    moved = comm_plan.traffic
    if moved is None or moved.lowered.algorithm in ("pairwise", "direct"):
        if moved is None or moved.lowered.pieces > 1:
            return ChunkCounts(1, 1)
        sizes = (edges[-1] * moved.item_bytes for edges in (moved.edges, moved.receive_edges))
        pieces = (ceil(PIECES_BEFORE_READY * size / (CHUNKS_BEFORE_READY * chunk_bytes)) for size in sizes)
        return ChunkCounts(*(max(1, min(MAX_PIECES, count)) for count in pieces))
    piece = moved.edges[-1] * moved.item_bytes / moved.lowered.pieces
    return ChunkCounts(*[max(1, min(MAX_CHUNKS, ceil(piece / chunk_bytes)))] * 2)


def chunk_actions(steps: Iterable[StepRun], counts: ChunkCounts, *, at_once: bool = False) -> Iterator[ChunkAction]:
    """The actions of a rank, in order, in steps that are cut into chunks.

    >>> ring = PlanStep(1, 3, 8.0, 0, "shift")
    >>> [(action.releases, action.number) for action in chunk_actions([StepRun(ring, 2, 1)], ChunkCounts(2, 2))]
    [(True, 0), (True, 1), (True, 1), (True, 2), (False, 2)]

    Parameters
    ----------
    steps : steps in which the rank sends or receives
    counts : numbers of chunks of each message
    at_once : whether no step waits for another, so that the rank releases all chunks first
    """
    if at_once:
        yield from _actions_at_once(list(steps), counts)
        return
    single = [(row.step, row.number + repetition) for row in steps for repetition in range(row.times)]
    ready_chunks = counts.sent if single and single[0][0].send_to is not None else 0
    for (step, number), (following, _) in pairwise([*single, (NO_STEP, 0)]):
        for chunk in range(counts.received):
            if step.receive_from is not None:
                yield from (ChunkAction(releases=True) for _ in range(ready_chunks - 1))
                yield ChunkAction(ready_chunks > 0, step, number, chunk == counts.received - 1)
                ready_chunks = 0
            ready_chunks += int(following.send_to is not None)
    yield from (ChunkAction(releases=True) for _ in range(ready_chunks))


def _actions_at_once(steps: Sequence[StepRun], counts: ChunkCounts) -> Iterator[ChunkAction]:
    """The actions of a rank that releases all its chunks, and then waits for all that it receives."""
    for row in steps:
        if row.step.send_to is not None:
            yield from (ChunkAction(releases=True) for _ in range(counts.sent))
    for row in steps:
        if row.step.receive_from is not None:
            for chunk in range(counts.received):
                yield ChunkAction(False, row.step, row.number, chunk == counts.received - 1)


@dataclass(frozen=True, slots=True)
class EagerOp:
    """Makes the stages of an op whose messages are eager, for a rank and for its send queue.

    Parameters
    ----------
    lane : lane of the op
    group : ranks of its group
    delay, add : functions from seconds to the flow of a delay, and from bytes to the flow of an addition
    chunk_bytes : size into which messages are cut [B]
    waits_for_delivery : whether the op ends when everything sent has been delivered; else it ends when it is posted
    core_wait : flow that delays a rank that computes before it notices a message, None if nothing does
    noise : factor on the work of the messages that the rank sends
    """

    messages: RankMessages
    rank: int
    lane: str
    group: Sequence[int]
    comm_plan: CommPlan
    delay: Callable[[float], int]
    add: Callable[[int], int]
    chunk_bytes: int
    waits_for_delivery: bool = True
    core_wait: int | None = None
    noise: float = 1.0

    def rank_stages(self) -> Iterator[TaggedStage]:
        """Stages that the rank runs."""
        counts, message_lane, released = (
            self._counts(),
            self.comm_plan.channel_name,
            self.messages.chunk_released(self.rank, self.lane),
        )
        for sender in self._peers(receiving=True):
            yield TaggedStage(ProgramStage(send=self.messages.ready_to_receive(message_lane, sender, self.rank)))
        moved = self.comm_plan.traffic
        at_once = moved is not None and moved.lowered.at_once
        for action in chunk_actions(step_runs(self.comm_plan), counts, at_once=at_once):
            step, signal = action.receives, released if action.releases else None
            if step is None or step.receive_from is None:
                yield TaggedStage(ProgramStage(send=signal))
                continue
            sender = self.group[step.receive_from]
            added = self.add(max(1, step.added // counts.received)) if step.added else None
            channel = self.messages.engine_channel(message_lane, sender, self.rank, eager=True)
            yield TaggedStage(ProgramStage(send=signal, receive=channel, local=added), step, action.number)
            if action.is_last or step.is_one_way:  # a member that passes chunks on notices each
                yield from self._wakeup(self._latency(sender, self.rank, step, action.number))
        if self.waits_for_delivery:
            yield from self._until_delivered()

    def _until_delivered(self) -> Iterator[TaggedStage]:
        """The rank waits until everything that it sent has been delivered."""
        sends = [
            (row.step, row.number + row.times - 1) for row in step_runs(self.comm_plan) if row.step.send_to is not None
        ]
        for step, number in sends[-1:]:
            assert step.send_to is not None
            awaited = step._replace(send_to=None, receive_from=step.send_to)
            yield TaggedStage(
                ProgramStage(receive=self.messages.all_delivered(self.rank, self.lane)[0]), awaited, number
            )
            receiver = self.group[step.send_to]
            if step.is_one_way:  # the receiver's answer
                yield from self._wakeup(self.messages.ack_delay(self.rank, receiver))
            else:
                yield from self._wakeup(self._latency(self.rank, receiver, step, number))

    def _wakeup(self, seconds: float) -> Iterator[TaggedStage]:
        """Stages by which a rank that waited notices a message `seconds` later, and still later while it computes."""
        if self.core_wait is not None:
            yield TaggedStage(ProgramStage(local=self.core_wait, only_if_waited=True, only_if_overlapped=True))
        yield TaggedStage(ProgramStage(local=self.delay(seconds), only_if_waited=True))

    def _latency(self, sender: int, receiver: int, step: PlanStep, number: int) -> float:
        return self.messages.latency(self.comm_plan.channel_name, sender, receiver, step, is_first=number == 1)

    def send_stages(self) -> Iterator[ProgramStage]:
        """Stages that the send queue runs."""
        counts, ready, sent_bytes, ack_delay = self._counts(), set[int](), defaultdict[int, float](float), 0.0
        most_before_ready = CHUNKS_BEFORE_READY * self.chunk_bytes
        peers = self._peers(receiving=False)
        for step, receiver in self._sent(counts):
            size, before = step.sent / counts.sent, sent_bytes[receiver]
            if before and before + size > most_before_ready and receiver not in ready:
                ready.add(receiver)
                yield self._await_ready(receiver)
            sent_bytes[receiver] += size
            yield ProgramStage(receive=self.messages.chunk_released(self.rank, self.lane)[0])
            sent = self.messages.message(
                self.comm_plan.channel_name, self.rank, receiver, step, counts.sent, eager=True, noise=self.noise
            )
            yield ProgramStage(send=sent)
            ack_delay = self._latency(self.rank, receiver, step, 1) if step.is_one_way else 0.0
        if ack_delay and self.waits_for_delivery:  # its receiver answers once it knows of all chunks
            yield ProgramStage(local=self.messages.ack_wait(self.rank, self.lane, ack_delay))
        for receiver in peers:
            if receiver not in ready:
                yield self._await_ready(receiver)
        if peers and self.waits_for_delivery:
            yield ProgramStage(send=self.messages.all_delivered(self.rank, self.lane))

    def extrapolated(self) -> bool:
        """Whether a message of the rank is larger than what was measured; its receiver need not check it."""
        return any(
            self.messages.extrapolated(self.comm_plan.channel_name, self.rank, self.group[row.step.send_to], row.step)
            for row in step_runs(self.comm_plan)
            if row.step.send_to is not None
        )

    def _counts(self) -> ChunkCounts:
        return chunk_counts(self.comm_plan, self.chunk_bytes)

    def _sent(self, counts: ChunkCounts) -> Iterator[tuple[PlanStep, int]]:
        """The chunks that the rank sends, each with its receiver."""
        for step, times, _ in step_runs(self.comm_plan):
            if step.send_to is not None:
                yield from [(step, self.group[step.send_to])] * (times * counts.sent)

    def _await_ready(self, receiver: int) -> ProgramStage:
        return ProgramStage(receive=self.messages.ready_to_receive(self.comm_plan.channel_name, self.rank, receiver)[0])

    def _peers(self, *, receiving: bool) -> list[int]:
        """Ranks that the rank receives from, or sends to, each once."""
        peers = (row.step.receive_from if receiving else row.step.send_to for row in step_runs(self.comm_plan))
        return list(dict.fromkeys(self.group[peer] for peer in peers if peer is not None))


@dataclass(slots=True)
class SendQueue:
    """The queued programs of eager sends of one lane of a rank.

    Parameters
    ----------
    stream : stream of the engine that runs them
    waiting : programs, the next one first
    """

    stream: int
    waiting: deque[int] = field(default_factory=deque)
    busy: bool = False


class SendQueues:
    """The send queues of all lanes of all ranks."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._queues: dict[tuple[int, str], SendQueue] = {}

    def post(self, rank: int, lane: str, program: int) -> None:
        """Queue a program of messages behind earlier ones."""
        if (rank, lane) not in self._queues:
            self._queues[rank, lane] = SendQueue(self._engine.add_stream())
        queue = self._queues[rank, lane]
        queue.waiting.append(program)
        if not queue.busy:
            self._begin_next(queue)

    def _begin_next(self, queue: SendQueue) -> None:
        queue.busy = bool(queue.waiting)
        if queue.busy:
            self._engine.begin(queue.stream, queue.waiting.popleft(), lambda: self._begin_next(queue))
