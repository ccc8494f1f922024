"""Messages that are buffered: what a rank goes through in an op, and what its postman does meanwhile.

Chunks go as soon as they may, whether or not their receivers are there; of an op a few to
each, the others when it has come.  A rank has ended an op when
it has what it receives, and what it sent has been taken.

The rank tells its senders that it is there, its postman which chunks may go, and hears of it
when all have been taken; such words take no time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quadrille.algorithms.analysis.op_plans import CommPlan, PlanStep, step_runs
from quadrille.simulator.engine.builder import ProgramStage
from quadrille.simulator.ranks.eager_chunks import CHUNKS_AHEAD, Counts, chunk_counts, moves
from quadrille.simulator.ranks.messages import RankMessages


class TaggedStage(NamedTuple):
    """A stage, and in which step of the op a rank is there, with its number; None of local work."""

    stage: ProgramStage
    step: PlanStep | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class EagerOp:
    """What makes stages of an op whose messages are buffered.

    Parameters
    ----------
    lane : of the op
    group : ranks of its group
    delay, add : give flows of so many seconds, and of the addition of so many bytes
    chunk_bytes : into which messages are cut
    waits : whether an op ends when all that was sent has been taken; else as soon as it is posted
    turn : what a rank that computes goes through before it hears of what it waits for; None for nothing
    """

    messages: RankMessages
    rank: int
    lane: str
    group: Sequence[int]
    comm_plan: CommPlan
    delay: Callable[[float], int]
    add: Callable[[int], int]
    chunk_bytes: int
    waits: bool = True
    turn: int | None = None

    def own(self) -> Iterator[TaggedStage]:
        """What the rank goes through."""
        counts, wires, told = self._counts(), self.comm_plan.wires, self.messages.told(self.rank, self.lane)
        for sender in self._peers(receiving=True):
            yield TaggedStage(ProgramStage(send=self.messages.greeting(wires, sender, self.rank)))
        for move in moves(step_runs(self.comm_plan), counts):
            step, go = move.receives, told if move.lets_go else None
            if step is None or step.receive_from is None:
                yield TaggedStage(ProgramStage(send=go))
                continue
            sender = self.group[step.receive_from]
            added = self.add(max(1, step.added // counts.received)) if step.added else None
            wire = self.messages.wire(wires, sender, self.rank, buffered=True)
            yield TaggedStage(ProgramStage(send=go, receive=wire, local=added), step, move.number)
            if move.is_last or step.is_of_chain:  # who passes it on hears of every chunk
                yield from self._heard(self._latency(sender, self.rank, step, move.number))
        if self.waits:
            yield from self._until_taken()

    def _until_taken(self) -> Iterator[TaggedStage]:
        """The rank waits until the last of what it sent has been taken."""
        last = [
            (row.step, row.number + row.times - 1) for row in step_runs(self.comm_plan) if row.step.send_to is not None
        ][-1:]
        for step, number in last:
            assert step.send_to is not None
            awaited = step._replace(send_to=None, receive_from=step.send_to)
            yield TaggedStage(ProgramStage(receive=self.messages.taken(self.rank, self.lane)[0]), awaited, number)
            receiver = self.group[step.send_to]
            if step.is_of_chain:  # by its receiver's answer
                yield from self._heard(self.messages.taken_seconds(self.rank, receiver))
            else:
                yield from self._heard(self._latency(self.rank, receiver, step, number))

    def _heard(self, seconds: float) -> Iterator[TaggedStage]:
        """Who had to wait hears of it so much later, and later still while it computes."""
        if self.turn is not None:
            yield TaggedStage(ProgramStage(local=self.turn, only_if_waited=True, only_if_overlapped=True))
        yield TaggedStage(ProgramStage(local=self.delay(seconds), only_if_waited=True))

    def _latency(self, sender: int, receiver: int, step: PlanStep, number: int) -> float:
        return self.messages.latency(self.comm_plan.wires, sender, receiver, step, is_first=number == 1)

    def posted(self) -> Iterator[ProgramStage]:
        """What the postman does."""
        counts, there, gone, heard = self._counts(), set[int](), defaultdict[int, float](float), 0.0
        most_ahead = CHUNKS_AHEAD * self.chunk_bytes
        peers = self._peers(receiving=False)
        for step, receiver in self._sent(counts):
            size, before = step.sent / counts.sent, gone[receiver]
            if before and before + size > most_ahead and receiver not in there:
                there.add(receiver)
                yield self._when_greeted(receiver)
            gone[receiver] += size
            yield ProgramStage(receive=self.messages.told(self.rank, self.lane)[0])
            sent = self.messages.sent(self.comm_plan.wires, self.rank, receiver, step, counts.sent, buffered=True)
            yield ProgramStage(send=sent)
            heard = self._latency(self.rank, receiver, step, 1) if step.is_of_chain else 0.0
        if heard and self.waits:  # its receiver answers when it has heard of all
            yield ProgramStage(local=self.messages.hearing(self.rank, self.lane, heard))
        for receiver in peers:
            if receiver not in there:
                yield self._when_greeted(receiver)
        if peers and self.waits:
            yield ProgramStage(send=self.messages.taken(self.rank, self.lane))

    def extrapolated(self) -> bool:
        """Whether a message of the rank is larger than what was measured; who receives it need not look at it."""
        return any(
            self.messages.extrapolated(self.comm_plan.wires, self.rank, self.group[row.step.send_to], row.step)
            for row in step_runs(self.comm_plan)
            if row.step.send_to is not None
        )

    def _counts(self) -> Counts:
        return chunk_counts(self.comm_plan, self.chunk_bytes)

    def _sent(self, counts: Counts) -> Iterator[tuple[PlanStep, int]]:
        """The chunks that go, each with whom it goes to."""
        for step, times, _ in step_runs(self.comm_plan):
            if step.send_to is not None:
                yield from [(step, self.group[step.send_to])] * (times * counts.sent)

    def _when_greeted(self, receiver: int) -> ProgramStage:
        return ProgramStage(receive=self.messages.greeting(self.comm_plan.wires, self.rank, receiver)[0])

    def _peers(self, *, receiving: bool) -> list[int]:
        """From whom the rank receives, or whom it sends to, each once."""
        found = (row.step.receive_from if receiving else row.step.send_to for row in step_runs(self.comm_plan))
        return list(dict.fromkeys(self.group[peer] for peer in found if peer is not None))
