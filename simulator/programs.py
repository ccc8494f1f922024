"""What an op does on a rank, as a program of the engine: messages on wires, and local work."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from algorithms.counting.coordinates import Kind
from algorithms.formats.machine import Machine
from algorithms.ops import CommunicationOp, Compute, lane
from algorithms.parts import Place
from algorithms.timelines.spans import COMPUTE
from simulator.duties import Duties, Duty, MemberStep
from simulator.engine import FlowEngine
from simulator.folding.alike_ranks import Population
from simulator.folding.resources import Channel
from simulator.local_work import LocalWork, Work
from simulator.stepping.registered import Stage
from simulator.stepping.table import NONE
from simulator.wiring import Wiring


class Row(NamedTuple):
    """Equal steps in a row, in which something goes over a wire.

    Parameters
    ----------
    number : of the first of them, from 1
    """

    step: MemberStep
    times: int
    number: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank that waits in a communication op.

    Parameters
    ----------
    step : in which one, from 1
    awaited : ranks that have not come to it
    """

    rank: int
    op: CommunicationOp
    step: int
    awaited: list[int]


class Programs:
    """The programs of the simulated ranks, each made when it is first needed.

    A step of a collective that sends nothing and receives nothing is left out.
    """

    def __init__(
        self,
        machine: Machine,
        ranks: Population,
        wiring: Wiring,
        duties: Duties,
        local: LocalWork,
        engine: FlowEngine,
    ) -> None:
        self._machine, self._ranks, self._wiring = machine, ranks, wiring
        self._duties, self._local, self._engine = duties, local, engine
        self._of_duty: dict[tuple[int, int], tuple[int, Duty]] = {}
        self._handed_over: dict[tuple[int, int], tuple[tuple[int | None, int] | None, Duty]] = {}
        self._of_compute: dict[tuple[int, int, Kind], int] = {}
        self._known: dict[tuple[Stage, ...], int] = {}
        self._wires: dict[Channel, int] = {}
        self._messages: dict[tuple[int, float, str], int] = {}
        self._works: dict[tuple[int, str, Work], int] = {}
        self._delays: dict[tuple[int, str], int] = {}
        self._paces: dict[int, int] = {}

    def compute(self, rank: int, op: Compute, place: Place) -> int:
        """The program of an op of the compute lane."""
        key = rank, id(op), self._duties.kind(op, place)
        if key not in self._of_compute:
            work = self._local.of_op(rank, op, place)
            self._of_compute[key] = self._program([Stage(local=self._work(rank, COMPUTE, work))])
        return self._of_compute[key]

    def communication(self, rank: int, op: CommunicationOp, place: Place) -> int:
        """The program of a communication op."""
        duty = self._duties.communication(op, place)
        found = self._of_duty.get((rank, id(duty)))
        if found is None:
            program = self._program(self._stages(rank, op, duty))
            found = self._of_duty[rank, id(duty)] = program, duty
        return found[0]

    def handed_over(self, rank: int, op: CommunicationOp, place: Place) -> tuple[int | None, int] | None:
        """The rank's own part (None: nothing) of an op that only sends, and the messages; None of any other op.

        None, too, where a sender waits for its receiver.
        """
        network = self._machine.network
        if network is None or not network.buffered_sends:
            return None
        duty = self._duties.communication(op, place)
        key = rank, id(duty)
        if key not in self._handed_over:
            self._handed_over[key] = self._split(self._stages(rank, op, duty)), duty
        return self._handed_over[key][0]

    def _split(self, stages: list[Stage]) -> tuple[int | None, int] | None:
        """What comes before the first message, and the messages, where all that follows is sent."""
        first = next((number for number, one in enumerate(stages) if one.send is not None), len(stages))
        own, sent = stages[:first], stages[first:]
        if not sent or any(one.receive is not None for one in own):
            return None
        if any(one.send is None or one.receive is not None or one.local is not None for one in sent):
            return None
        return self._program(own) if own else None, self._program(sent)

    def sends(self, program: int) -> bool:
        """Whether anything is sent in a program."""
        return any(send != NONE for _, send, *_ in self._engine.stages_of(program))

    def waiting(self, rank: int, op: CommunicationOp, place: Place, member: int) -> Waiting | None:
        """What a member of the engine waits for within an op; None where that is its own work."""
        stages, done, to_send, to_receive = self._engine.standing(member)
        if not (to_send or to_receive):
            return None
        duty = self._duties.communication(op, place)
        row = list(rows(duty))[stages - self._before(duty)]
        group = self._ranks.group(rank, op.axis)
        ends = {row.step.send_to: to_send, row.step.receive_from: to_receive}
        awaited = [group[peer] for peer, waits in ends.items() if peer is not None and waits]
        return Waiting(rank, op, row.number + done, awaited)

    def pace(self, rank: int) -> int | None:
        """How fast a rank computes, slower while it communicates; None where that makes no difference."""
        slowdown = self._machine.device.overlap_slowdown
        if slowdown == 1.0:
            return None
        if rank not in self._paces:
            self._paces[rank] = self._engine.add_pace(slowdown, f"pace of rank {rank}")
        return self._paces[rank]

    # What they are made of

    def _program(self, stages: list[Stage]) -> int:
        key = tuple(stages)
        if key not in self._known:
            self._known[key] = self._engine.program(stages)
        return self._known[key]

    def _stages(self, rank: int, op: CommunicationOp, duty: Duty) -> list[Stage]:
        name, group = lane(op), self._ranks.group(rank, op.axis)
        found = []
        if self._overhead(duty):
            found.append(Stage(local=self._delay(rank, name, self._overhead(duty))))
        if duty.copied.before:
            found.append(Stage(local=self._bytes(rank, name, "copy", duty.copied.before)))
        for step, times, _ in rows(duty):
            send = receive = added = None
            if step.send_to is not None:
                wire, channel = self._wire(duty.wires, rank, group[step.send_to])
                send = wire, self._message(wire, channel, step.sent, step.pattern)
            if step.receive_from is not None:
                receive, _ = self._wire(duty.wires, group[step.receive_from], rank)
            if step.added:
                added = self._bytes(rank, name, "add", step.added)
            found.append(Stage(times, send, receive, added))
        if duty.copied.after:
            found.append(Stage(local=self._bytes(rank, name, "copy", duty.copied.after)))
        return found

    def _before(self, duty: Duty) -> int:
        """Stages before the first step."""
        return int(self._overhead(duty) > 0) + int(duty.copied.before > 0)

    def _overhead(self, duty: Duty) -> float:
        """Seconds beside the steps of a communication op; measured steps between ranks of a host include theirs."""
        host, device = self._machine.host, self._machine.device
        alone = duty.moved is None
        if host is not None:
            return host.alone_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds

    def _wire(self, name: str, sender: int, receiver: int) -> tuple[int, Channel]:
        """What carries the messages from a rank to another."""
        channel = self._wiring.channel(name, sender, receiver)
        if channel not in self._wires:
            self._wires[channel] = self._engine.wire()
        return self._wires[channel], channel

    def _message(self, wire: int, channel: Channel, size: float, pattern: str) -> int:
        """So many bytes on a wire, as one step of a pattern."""
        key = wire, size, pattern
        if key not in self._messages:
            cost = self._wiring.transfer_on(channel, size, pattern)
            self._messages[key] = self._engine.flow(
                cost.work,
                cost.demands,
                weight=cost.weight,
                cap=cost.cap,
                latency=cost.latency,
                alone=cost.alone,
                beyond=cost.extrapolated,
            )
        return self._messages[key]

    def _bytes(self, rank: int, name: str, operation: str, size: int) -> int:
        """Local work bound by memory, within an op."""
        return self._work(rank, name, self._local.of_bytes(rank, operation, size))

    def _work(self, rank: int, name: str, work: Work) -> int:
        key = rank, name, work
        if key not in self._works:
            demands = self._wiring.local(rank, work.threads, work.bytes_per_second)
            pace = self.pace(rank) if name == COMPUTE else None
            if pace is not None:
                demands = demands | {pace: 1.0}
            seconds, beyond = work.seconds, work.extrapolated
            self._works[key] = self._engine.flow(seconds, demands, cap=1.0, alone=seconds, beyond=beyond)
        return self._works[key]

    def _delay(self, rank: int, name: str, seconds: float) -> int:
        key = rank, name
        if key not in self._delays:
            self._delays[key] = self._engine.flow(0.0, {}, cap=1.0, latency=seconds)
        return self._delays[key]


def rows(duty: Duty) -> Iterator[Row]:
    """The steps in which something goes over a wire, equal ones in a row together."""
    number = 1
    for step, equal in groupby(duty.steps()):
        count = sum(1 for _ in equal)
        if step.send_to is not None or step.receive_from is not None:
            yield Row(step, count, number)
        number += count
