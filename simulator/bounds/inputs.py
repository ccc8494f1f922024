"""The inputs of a walk: groups of ranks that follow one program, and the cost of every op, computed once and cached."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints, compact, distinct_values, stored_numbers
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
"""Numbers that the cache of op costs may hold: 256 MiB."""

NUMBERS_A_RANK = 12


@dataclass(frozen=True, slots=True, eq=False)
class PreparedOp:
    """A communication op with all that its execution needs.

    Parameters
    ----------
    steps : the steps of each set of groups that take the same steps
    overhead : seconds that the op costs each member beside its steps, for each entry of `steps` [s]
    time_parts : breakdown of the time of every rank; zero for ranks in other groups
    """

    steps: list[GroupSteps]
    overhead: list[Floats]
    time_parts: TimeParts


class OpCosts:
    """The costs of a schedule's ops on groups of ranks, cached by what the op does."""

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        schedule_work: ScheduleWork,
        prices: MachinePrices,
        concurrency: Concurrency,
    ) -> None:
        self._schedule, self._machine, self._schedule_work, self._prices = schedule, machine, schedule_work, prices
        self._overlaps = concurrency.overlaps
        self._computing = {op.name for op in all_ops(schedule) if not isinstance(op, Communication)}
        self._room = NUMBERS_KEPT
        self._ready: dict[Key, PreparedOp] = {}
        self._by_identity: dict[Key, PreparedOp] = {}
        self._local_work: dict[Key, tuple[Floats, bool]] = {}
        self._alone: dict[Key, tuple[Floats, bool]] = {}

    def forget_rates(self) -> None:
        """Drops cached costs that depend on typical rates, which have changed."""
        self._ready.clear()
        self._by_identity.clear()
        self._room = NUMBERS_KEPT - sum(stored_numbers(seconds) for seconds, _ in self._local_work.values())

    def ready(self, op: CommunicationOp, moment: Coordinates, first: Ints) -> PreparedOp:
        """A communication op between ranks, prepared.

        Parameters
        ----------
        first : the first rank of each group
        """
        whole = len(first) * self._schedule.grid.length(op.axis) == self._schedule.grid.size
        key = self._schedule_work.key(op, moment), b"" if whole else first.tobytes()
        if key not in self._ready:
            return self._prepared(key, op, self._schedule_work.of_groups(op, moment, first))
        return self._ready[key]

    def alone(self, op: CommunicationOp, moment: Coordinates, ranks: Ints) -> tuple[Floats, bool]:
        """Seconds of the copies of ranks that are alone in their group, and whether any is extrapolated."""
        key = self._schedule_work.key(op, moment), ranks.tobytes()
        if key not in self._alone:
            self._alone[key] = self._prices.memory("copy", self._schedule_work.copied_bytes(op, moment, ranks), ranks)
        return self._alone[key]

    def message(self, number: int, op: Send, moment: Coordinates, ranks: Ints) -> PreparedOp:
        """The messages that all ranks of a program send in one instance of a send, prepared.

        Parameters
        ----------
        number : number of the program
        ranks : ranks that follow the program
        """
        key = number, self._schedule_work.key(op, moment)
        if key not in self._ready:
            return self._prepared(key, op, [self._schedule_work.of_messages(op, moment, ranks)])
        return self._ready[key]

    def _prepared(self, key: Key, op: CommunicationOp, groups: Sequence[GroupWork]) -> PreparedOp:
        """The op on these groups; ops that send the same on one lane share one result."""
        identity = (lane(op), self.slowdown(op), *(work.identity for work in groups))
        if identity not in self._by_identity:
            prepared = self._made(op, groups)
            if self._room <= 0:
                return prepared
            self._by_identity[identity] = prepared
            self._room -= sum(steps.numbers + NUMBERS_A_RANK * steps.work.ranks.size for steps in prepared.steps)
        self._ready[key] = self._by_identity[identity]
        return self._ready[key]

    def _made(self, op: CommunicationOp, groups: Sequence[GroupWork]) -> PreparedOp:
        """The op on these groups, computed."""
        slowdown = self.slowdown(op)
        prepared = [GroupSteps(work, lane(op), self._prices, slowdown=slowdown) for work in groups]
        overhead, time_parts = [], TimeParts.of(self._schedule.grid.size)
        for steps in prepared:
            alone = steps.work.alone
            seconds = np.full(len(steps.ranks), self.overhead(alone=False))
            if alone is not None:
                seconds[alone] = self.overhead(alone=True)
            overhead.append(seconds)
            time_parts.put(steps.ranks, steps.totals.time_parts)
            time_parts.overhead[steps.ranks] = seconds
        return PreparedOp(prepared, [compact(seconds) for seconds in overhead], time_parts.thin())

    def local_work(self, number: int, op: Compute, moment: Coordinates, ranks: Ints) -> tuple[Floats, bool]:
        """Seconds of a local op on each rank with its cores to itself, and whether any is extrapolated.

        Parameters
        ----------
        number : number of the program
        ranks : ranks that follow the program
        """
        key = number, self._schedule_work.key(op, moment)
        if key in self._local_work:
            return self._local_work[key]
        sizes, which = self._schedule_work.local_sizes(op, moment, ranks)
        models = self._prices.models(ranks)
        kinds, place = distinct_values(which * (int(models.max()) + 1) + models)
        pairs = [divmod(kind, int(models.max()) + 1) for kind in kinds.tolist()]
        estimates = [self._prices.computing(op, sizes[kind], model) for kind, model in pairs]
        seconds = np.array([estimate.seconds for estimate in estimates])[place]
        result = compact(seconds), any(estimate.extrapolated for estimate in estimates)
        if self._room > 0:
            self._local_work[key] = result
            self._room -= stored_numbers(result[0])
        return result

    def slowdown(self, op: CommunicationOp) -> float:
        """The most by which messages of an op are slowed because a GPU may compute at the same time, as a factor."""
        overlapping = self._overlaps.get(op.name, {})
        return self._machine.device.communication_slowdown if overlapping.keys() & self._computing else 1.0

    def overhead(self, *, alone: bool) -> float:
        """Seconds that a communication op costs beside its steps; measured steps within a host include them."""
        host, device = self._machine.host, self._machine.device
        if host is not None:
            return host.single_rank_op_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds


@dataclass(frozen=True, slots=True, eq=False)
class WalkInputs:
    """The schedule, the machine, and all that is computed before the walk."""

    schedule: Schedule
    machine: Machine
    schedule_work: ScheduleWork
    prices: MachinePrices
    concurrency: Concurrency
    loops: LoopPeriods
    op_costs: OpCosts
    nccl: NcclTimes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RankGroup:
    """The ranks that follow one program, in rising order.

    Parameters
    ----------
    number : number of the program
    place : coordinates of the first of the ranks
    at : where the ranks are in arrays of all ranks
    """

    number: int
    ranks: Ints
    place: Coordinates
    at: Ints | slice

    @property
    def is_all(self) -> bool:
        """Whether all ranks follow this program."""
        return isinstance(self.at, slice)


def rank_groups(schedule: Schedule) -> list[RankGroup]:
    """The ranks of a schedule, grouped by the program and the loop counts that they follow."""
    grid = schedule.grid
    all_ranks, axes = np.arange(grid.size), sorted(program_axes(schedule))
    groups = []
    for at, coordinates in enumerate(product(*(range(grid.length(axis)) for axis in axes))):
        ranks = all_ranks
        for axis, coordinate in zip(axes, coordinates, strict=True):
            ranks = ranks[ranks // grid.stride(axis) % grid.length(axis) == coordinate]
        place = schedule.coordinates(int(ranks[0]))
        groups.append(RankGroup(at, ranks, place, ranks if axes else slice(None)))
    return groups
