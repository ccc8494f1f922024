"""What the ops of a schedule come to, found once and kept for their next turns and walks as far as there is room."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from quadrille.algorithms.analysis.labels import Ints, distinct, kept, thin
from quadrille.algorithms.schedule.ops import Communication, CommunicationOp, Compute, Send, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.simulator.bounds.concurrency import Concurrency
from quadrille.simulator.bounds.group_steps import GroupSteps
from quadrille.simulator.bounds.instances import TimeParts
from quadrille.simulator.bounds.loop_period import LoopPeriods
from quadrille.simulator.bounds.nccl import NcclTimes
from quadrille.simulator.bounds.prices import MachinePrices
from quadrille.simulator.bounds.supported import program_axes
from quadrille.simulator.bounds.work import GroupWork, Key, ScheduleWork
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats

NUMBERS_KEPT = 1 << 25
"""Of what ops come to, for their next turns: 256 MiB."""

NUMBERS_A_RANK = 12


@dataclass(frozen=True, slots=True, eq=False)
class PreparedOp:
    """A communication op, ready to be passed on.

    Parameters
    ----------
    parts : groups that do the same steps
    overhead : what it costs each member beside its steps, by part [s]
    story : of all ranks; nothing of those in other groups
    """

    parts: list[GroupSteps]
    overhead: list[Floats]
    story: TimeParts


class OpCosts:
    """What ops come to on groups of ranks."""

    def __init__(
        self, schedule: Schedule, machine: Machine, looks: ScheduleWork, costs: MachinePrices, busy: Concurrency
    ) -> None:
        self._schedule, self._machine, self._looks, self._costs = schedule, machine, looks, costs
        self._beside = busy.beside
        self._computing = {op.name for op in all_ops(schedule) if not isinstance(op, Communication)}
        self._room = NUMBERS_KEPT
        self._ready: dict[Key, PreparedOp] = {}
        self._alike: dict[Key, PreparedOp] = {}
        self._work: dict[Key, tuple[Floats, bool]] = {}
        self._alone: dict[Key, tuple[Floats, bool]] = {}

    def forget_rates(self) -> None:
        """Rates have changed: what depends on them is to be found again."""
        self._ready.clear()
        self._alike.clear()
        self._room = NUMBERS_KEPT - sum(kept(seconds) for seconds, _ in self._work.values())

    def ready(self, op: CommunicationOp, moment: Coordinates, first: Ints) -> PreparedOp:
        """An op between ranks.

        Parameters
        ----------
        first : first rank of each group
        """
        whole = len(first) * self._schedule.grid.length(op.axis) == self._schedule.grid.size
        key = self._looks.key(op, moment), b"" if whole else first.tobytes()
        if key not in self._ready:
            return self._found(key, op, self._looks.parts(op, moment, first))
        return self._ready[key]

    def alone(self, op: CommunicationOp, moment: Coordinates, ranks: Ints) -> tuple[Floats, bool]:
        """Seconds of the copies of ranks that are the only member of their group, and whether one is extrapolated."""
        key = self._looks.key(op, moment), ranks.tobytes()
        if key not in self._alone:
            self._alone[key] = self._costs.memory("copy", self._looks.alone(op, moment, ranks), ranks)
        return self._alone[key]

    def message(self, number: int, op: Send, moment: Coordinates, ranks: Ints) -> PreparedOp:
        """What the ranks of a program send alone.

        Parameters
        ----------
        number, ranks : those that follow one program
        """
        key = number, self._looks.key(op, moment)
        if key not in self._ready:
            return self._found(key, op, [self._looks.sent(op, moment, ranks)])
        return self._ready[key]

    def _found(self, key: Key, op: CommunicationOp, groups: Sequence[GroupWork]) -> PreparedOp:
        """The op on these groups; ops that send the same on one lane share what they come to."""
        same = (lane(op), self.slowdown(op), *(part.mark for part in groups))
        if same not in self._alike:
            found = self._made(op, groups)
            if self._room <= 0:
                return found
            self._alike[same] = found
            self._room -= sum(one.numbers + NUMBERS_A_RANK * one.part.ranks.size for one in found.parts)
        self._ready[key] = self._alike[same]
        return self._ready[key]

    def _made(self, op: CommunicationOp, groups: Sequence[GroupWork]) -> PreparedOp:
        slowdown = self.slowdown(op)
        parts = [GroupSteps(part, lane(op), self._costs, slowdown=slowdown) for part in groups]
        overhead, story = [], TimeParts.of(self._schedule.grid.size)
        for one in parts:
            alone = one.part.alone
            beside_steps = np.full(len(one.ranks), self.overhead(alone=False))
            if alone is not None:
                beside_steps[alone] = self.overhead(alone=True)
            overhead.append(beside_steps)
            story.put(one.ranks, one.told.story)
            story.overhead[one.ranks] = beside_steps
        return PreparedOp(parts, [thin(one) for one in overhead], story.thin())

    def work(self, number: int, op: Compute, moment: Coordinates, ranks: Ints) -> tuple[Floats, bool]:
        """Seconds of local work of each rank with its cores to itself, and whether one is extrapolated.

        Parameters
        ----------
        number, ranks : those that follow one program
        """
        key = number, self._looks.key(op, moment)
        if key in self._work:
            return self._work[key]
        found, which = self._looks.sizes(op, moment, ranks)
        models = self._costs.models(ranks)
        kinds, place = distinct(which * (int(models.max()) + 1) + models)
        pairs = [divmod(kind, int(models.max()) + 1) for kind in kinds.tolist()]
        priced = [self._costs.computing(op, found[kind], model) for kind, model in pairs]
        seconds = np.array([one.seconds for one in priced])[place]
        result = thin(seconds), any(one.extrapolated for one in priced)
        if self._room > 0:
            self._work[key] = result
            self._room -= kept(result[0])
        return result

    def slowdown(self, op: CommunicationOp) -> float:
        """How many times as long messages of an op take at most, since a GPU may compute beside them."""
        beside = self._beside.get(op.name, {})
        return self._machine.device.communication_slowdown if beside.keys() & self._computing else 1.0

    def overhead(self, *, alone: bool) -> float:
        """Seconds beside the steps of a communication op; measured steps between ranks of a host include theirs."""
        host, device = self._machine.host, self._machine.device
        if host is not None:
            return host.alone_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds


@dataclass(frozen=True, slots=True, eq=False)
class WalkInputs:
    """What is walked, on what."""

    schedule: Schedule
    machine: Machine
    looks: ScheduleWork
    costs: MachinePrices
    busy: Concurrency
    loops: LoopPeriods
    prepared: OpCosts
    nccl: NcclTimes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RankGroup:
    """The ranks of one program, rising, and the place of one of them; `at` where they are among all."""

    number: int
    ranks: Ints
    place: Coordinates
    at: Ints | slice

    @property
    def everyone(self) -> bool:
        return isinstance(self.at, slice)


def programs(schedule: Schedule) -> list[RankGroup]:
    """Ranks that follow one program for the same number of turns, together."""
    grid = schedule.grid
    everyone, chosen = np.arange(grid.size), sorted(program_axes(schedule))
    found = []
    for at, coordinates in enumerate(product(*(range(grid.length(axis)) for axis in chosen))):
        ranks = everyone
        for axis, coordinate in zip(chosen, coordinates, strict=True):
            ranks = ranks[ranks // grid.stride(axis) % grid.length(axis) == coordinate]
        place = schedule.coordinates(int(ranks[0]))
        found.append(RankGroup(at, ranks, place, ranks if chosen else slice(None)))
    return found
