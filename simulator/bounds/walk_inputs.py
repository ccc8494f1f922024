"""Inputs of the bounds walk: the schedule and machine, the ranks of each program, and the cached cost of every op."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints, compact, distinct_values, stored_numbers
from quadrille.algorithms.schedule.ops import Communication, CommunicationOp, Compute, Send, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.simulator.bounds.bounds_support import program_axes
from quadrille.simulator.bounds.concurrency import Concurrency
from quadrille.simulator.bounds.cost_model import CostModel
from quadrille.simulator.bounds.group_step_costs import GroupSteps
from quadrille.simulator.bounds.group_work import GroupWork, Key, ScheduleWork
from quadrille.simulator.bounds.loop_period import LoopPeriods
from quadrille.simulator.bounds.op_instances import OpTimeParts
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats

if TYPE_CHECKING:
    from quadrille.simulator.bounds.nccl_times import NcclTimes

CACHED_NUMBERS = 1 << 25
"""Largest count of numbers in the cache of op costs: 256 MiB."""

NUMBERS_PER_RANK = 12
"""Approximate count of numbers that a cached op takes for each rank."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedOp:
    """A communication op with the cost of its messages, ready to be executed from any start times.

    Parameters
    ----------
    steps : the steps of each set of groups that take the same steps
    overhead : seconds that the op costs each member in addition to its steps, for each entry of `steps` [s]
    time_parts : breakdown of the time of every rank; zero for ranks in other groups
    """

    steps: list[GroupSteps]
    overhead: list[Floats]
    time_parts: OpTimeParts


class OpCosts:
    """The costs of a schedule's ops on groups of ranks, cached by what the op does."""

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        schedule_work: ScheduleWork,
        cost_model: CostModel,
        concurrency: Concurrency,
    ) -> None:
        self._schedule, self._machine, self._schedule_work, self._cost_model = (
            schedule,
            machine,
            schedule_work,
            cost_model,
        )
        self._overlaps = concurrency.overlaps
        self._computing = {op.name for op in all_ops(schedule) if not isinstance(op, Communication)}
        self._cache_room = CACHED_NUMBERS
        self._ready: dict[Key, PreparedOp] = {}
        self._by_identity: dict[Key, PreparedOp] = {}
        self._local_work: dict[Key, tuple[Floats, bool]] = {}
        self._alone: dict[Key, tuple[Floats, bool]] = {}
        self._speeds: dict[int, int] = {}
        self._speed_names: dict[tuple[bytes, ...], int] = {}

    def forget_rates(self) -> None:
        """Drops the cached costs that depend on typical rates, after a change of these rates."""
        self._ready.clear()
        self._by_identity.clear()
        self._cache_room = CACHED_NUMBERS - sum(stored_numbers(seconds) for seconds, _ in self._local_work.values())

    def ready(self, op: CommunicationOp, coordinates: Coordinates, first: Ints) -> PreparedOp:
        """The prepared communication op of these groups at some loop indices.

        Parameters
        ----------
        first : the first rank of each group
        """
        whole = len(first) * self._schedule.grid.length(op.axis) == self._schedule.grid.size
        key = self._schedule_work.key(op, coordinates), b"" if whole else first.tobytes()
        if key not in self._ready:
            return self._prepared(key, op, self._schedule_work.of_groups(op, coordinates, first))
        return self._ready[key]

    def alone(self, op: CommunicationOp, coordinates: Coordinates, ranks: Ints) -> tuple[Floats, bool]:
        """Seconds that ranks without peers in their group take to copy [ranks], and whether any is extrapolated."""
        key = self._schedule_work.key(op, coordinates), ranks.tobytes()
        if key not in self._alone:
            self._alone[key] = self._cost_model.memory(
                "copy", self._schedule_work.copied_bytes(op, coordinates, ranks), ranks
            )
        return self._alone[key]

    def message(self, number: int, op: Send, coordinates: Coordinates, ranks: Ints) -> PreparedOp:
        """The prepared messages that all ranks of a program send in one instance of a send.

        Parameters
        ----------
        number : number of the program
        ranks : ranks that follow the program
        """
        key = number, self._schedule_work.key(op, coordinates)
        if key not in self._ready:
            return self._prepared(key, op, [self._schedule_work.of_messages(op, coordinates, ranks)])
        return self._ready[key]

    def _prepared(self, key: Key, op: CommunicationOp, groups: Sequence[GroupWork]) -> PreparedOp:
        """The prepared op of these groups; ops with equal messages on one lane share one result."""
        identity = (lane(op), self.slowdown(op), *(work.identity for work in groups))
        if identity not in self._by_identity:
            prepared = self._prepare(op, groups)
            if self._cache_room <= 0:
                return prepared
            self._by_identity[identity] = prepared
            self._cache_room -= sum(
                steps.numbers + NUMBERS_PER_RANK * steps.work.ranks.size for steps in prepared.steps
            )
        self._ready[key] = self._by_identity[identity]
        return self._ready[key]

    def _prepare(self, op: CommunicationOp, groups: Sequence[GroupWork]) -> PreparedOp:
        """Computes the prepared op of these groups."""
        slowdown = self.slowdown(op)
        prepared = [GroupSteps(work, lane(op), self._cost_model, slowdown=slowdown) for work in groups]
        overhead, time_parts = [], OpTimeParts.of(self._schedule.grid.size)
        for steps in prepared:
            alone = steps.work.alone
            seconds = np.full(len(steps.ranks), self.overhead(alone=False))
            if alone is not None:
                seconds[alone] = self.overhead(alone=True)
            overhead.append(seconds)
            time_parts.set_ranks(steps.ranks, steps.totals.time_parts)
            time_parts.overhead[steps.ranks] = seconds
        return PreparedOp(prepared, [compact(seconds) for seconds in overhead], time_parts.thin())

    def local_key(self, number: int, op: Compute, coordinates: Coordinates, ranks: Ints) -> Key:
        """A key that is equal for local ops that do the same on ranks that are equally fast.

        Parameters
        ----------
        number : number of the program
        """
        if number not in self._speeds:
            local, names = self._cost_model.local, self._speed_names
            columns = (self._cost_model.models(ranks), *(column[ranks] for column in local.columns()))
            self._speeds[number] = names.setdefault(tuple(column.tobytes() for column in columns), len(names))
        work = self._schedule_work
        return self._speeds[number], work.key(op, coordinates), work.position(op, ranks)

    def local_work(self, number: int, op: Compute, coordinates: Coordinates, ranks: Ints) -> tuple[Floats, bool]:
        """Seconds of a local op on each rank with its cores to itself, and whether any is extrapolated.

        Parameters
        ----------
        number : number of the program
        ranks : ranks that follow the program
        """
        key = self.local_key(number, op, coordinates, ranks)
        if key in self._local_work:
            return self._local_work[key]
        sizes, which = self._schedule_work.local_sizes(op, coordinates, ranks)
        models = self._cost_model.models(ranks)
        kinds, kind_of_rank = distinct_values(which * (int(models.max()) + 1) + models)
        pairs = [divmod(kind, int(models.max()) + 1) for kind in kinds.tolist()]
        estimates = [self._cost_model.computing(op, sizes[kind], model) for kind, model in pairs]
        seconds = np.array([estimate.seconds for estimate in estimates])[kind_of_rank]
        result = compact(seconds), any(estimate.extrapolated for estimate in estimates)
        if self._cache_room > 0:
            self._local_work[key] = result
            self._cache_room -= stored_numbers(result[0])
        return result

    def slowdown(self, op: CommunicationOp) -> float:
        """Largest factor by which the messages of an op are slowed because a GPU may compute at the same time."""
        overlapping = self._overlaps.get(op.name, {})
        return self._machine.device.communication_slowdown if overlapping.keys() & self._computing else 1.0

    def overhead(self, *, alone: bool) -> float:
        """Seconds that a communication op costs in addition to its steps; measured steps within a host include them."""
        host, device = self._machine.host, self._machine.device
        if host is not None:
            return host.single_rank_op_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds


@dataclass(frozen=True, slots=True, eq=False)
class WalkInputs:
    """The schedule, the machine, and the tables that are computed before the walk."""

    schedule: Schedule
    machine: Machine
    schedule_work: ScheduleWork
    cost_model: CostModel
    concurrency: Concurrency
    loops: LoopPeriods
    op_costs: OpCosts
    nccl: "NcclTimes | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class RankGroup:
    """The ranks that follow one program, in rising order.

    Parameters
    ----------
    number : number of the program
    coordinates : coordinates of the first of the ranks
    at : index of the ranks in arrays of all ranks
    """

    number: int
    ranks: Ints
    coordinates: Coordinates
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
    for at, group_coordinates in enumerate(product(*(range(grid.length(axis)) for axis in axes))):
        ranks = all_ranks
        for axis, coordinate in zip(axes, group_coordinates, strict=True):
            ranks = ranks[ranks // grid.stride(axis) % grid.length(axis) == coordinate]
        coordinates = schedule.coordinates(int(ranks[0]))
        groups.append(RankGroup(at, ranks, coordinates, ranks if axes else slice(None)))
    return groups
