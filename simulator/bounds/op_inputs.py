"""What the ops of a schedule come to, found once and kept for their next turns and walks as far as there is room."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.analysis.labels import Ints
from quadrille.algorithms.schedule.ops import Communication, CommunicationOp, Compute, Send, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.simulator.bounds.concurrency import Together
from quadrille.simulator.bounds.distinct import distinct, kept, thin
from quadrille.simulator.bounds.inputs import Prepared
from quadrille.simulator.bounds.prices import Costs
from quadrille.simulator.bounds.time_breakdown import Story
from quadrille.simulator.bounds.work import Key, Looks, Part
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats

NUMBERS_KEPT = 1 << 25
"""Of what ops come to, for their next turns: 256 MiB."""
NUMBERS_A_RANK = 12


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A communication op, ready to be passed on.

    Parameters
    ----------
    parts : groups that do the same steps
    overhead : what it costs each member beside its steps, by part [s]
    story : of all ranks; nothing of those in other groups
    """

    parts: list[Prepared]
    overhead: list[Floats]
    story: Story


class Preparations:
    """What ops come to on groups of ranks."""

    def __init__(self, schedule: Schedule, machine: Machine, looks: Looks, costs: Costs, busy: Together) -> None:
        self._schedule, self._machine, self._looks, self._costs = schedule, machine, looks, costs
        self._beside = busy.beside
        self._computing = {op.name for op in all_ops(schedule) if not isinstance(op, Communication)}
        self._room = NUMBERS_KEPT
        self._ready: dict[Key, Ready] = {}
        self._alike: dict[Key, Ready] = {}
        self._work: dict[Key, tuple[Floats, bool]] = {}
        self._alone: dict[Key, tuple[Floats, bool]] = {}

    def forget_rates(self) -> None:
        """Rates have changed: what depends on them is to be found again."""
        self._ready.clear()
        self._alike.clear()
        self._room = NUMBERS_KEPT - sum(kept(seconds) for seconds, _ in self._work.values())

    def ready(self, op: CommunicationOp, moment: Coordinates, first: Ints) -> Ready:
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

    def message(self, number: int, op: Send, moment: Coordinates, ranks: Ints) -> Ready:
        """What the ranks of a program send alone.

        Parameters
        ----------
        number, ranks : those that follow one program
        """
        key = number, self._looks.key(op, moment)
        if key not in self._ready:
            return self._found(key, op, [self._looks.sent(op, moment, ranks)])
        return self._ready[key]

    def _found(self, key: Key, op: CommunicationOp, groups: Sequence[Part]) -> Ready:
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

    def _made(self, op: CommunicationOp, groups: Sequence[Part]) -> Ready:
        slowdown = self.slowdown(op)
        parts = [Prepared(part, lane(op), self._costs, slowdown=slowdown) for part in groups]
        overhead, story = [], Story.of(self._schedule.grid.size)
        for one in parts:
            alone = one.part.alone
            beside_steps = np.full(len(one.ranks), self.overhead(alone=False))
            if alone is not None:
                beside_steps[alone] = self.overhead(alone=True)
            overhead.append(beside_steps)
            story.put(one.ranks, one.told.story)
            story.overhead[one.ranks] = beside_steps
        return Ready(parts, [thin(one) for one in overhead], story.thin())

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
