"""Totals of the bounds walk: sums of every op over all ranks, the instances of some ranks, and exposed communication.

Communication is *exposed* while its rank computes nothing. Each exposed second
is charged to one op, the first in the program. The spans of all ranks are never
stored at the same time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import kind, lane
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.timelines.spans import COMPUTE, RepeatedIterations
from quadrille.simulator.bounds.op_instances import Instance
from quadrille.simulator.loops.restore import quietest_time
from quadrille.topologies.network import Floats

MAX_COMPUTE_OPS = 256
"""Number of latest compute ops that are stored, because later communication ops may overlap them."""


@dataclass(slots=True, eq=False)
class ExposedOp:
    """A communication op that later compute ops may still overlap.

    Parameters
    ----------
    number : position of the instance among all instances
    exposed : seconds not overlapped so far on each rank [s]
    stands_for : number of instances that it stands for, itself included
    """

    number: int
    name: str
    begin: Floats
    end: Floats
    exposed: Floats
    stands_for: int = 1

    @property
    def seconds(self) -> float:
        """Exposed seconds, summed over the ranks."""
        return float(np.maximum(0.0, self.exposed).sum())


@dataclass(slots=True, eq=False)
class ExposedTime:
    """Communication and computation in progress on the ranks of one program, and what is exposed.

    Parameters
    ----------
    open_ops : communication ops that may still be overlapped
    compute_ops : number, begin and end of the latest compute ops
    last_end : latest end of communication so far [ranks] [s]
    last_number : number of the instance that ends then
    """

    open_ops: list[ExposedOp] = field(default_factory=list)
    compute_ops: list[tuple[int, Floats, Floats]] = field(default_factory=list)
    last_end: Floats | None = None
    last_number: int = 0

    def overlap_repeats(self, times: int, seconds: Floats, last: int, first: int) -> None:
        """Subtracts repeated iterations like the last one from the exposed time of ops before instance `first`.

        Parameters
        ----------
        times : number of repeated iterations
        seconds : time of an iteration [ranks] [s]
        last : number of instances before the last iteration
        """
        for exposed_op in self.open_ops:
            if exposed_op.number > first:
                continue
            for number, start, end in self.compute_ops:
                repeats = min(times, int(float((exposed_op.end - start).max()) / float(seconds.min())))
                for shift in (seconds * iteration for iteration in range(1, repeats + 1) if number > last):
                    exposed_op.exposed -= _overlap_seconds(exposed_op.begin, exposed_op.end, start + shift, end + shift)

    def shift(self, seconds: Floats, first: int) -> None:
        """Shifts all ops after instance `first` by these seconds [ranks] [s]."""
        for exposed_op in self.open_ops:
            if exposed_op.number > first:
                exposed_op.begin, exposed_op.end = exposed_op.begin + seconds, exposed_op.end + seconds
        self.compute_ops = [
            (number, start + seconds, end + seconds) if number > first else (number, start, end)
            for number, start, end in self.compute_ops
        ]
        if self.last_end is not None and self.last_number > first:
            self.last_end = self.last_end + seconds

    def add_compute(self, number: int, instance: Instance) -> list[ExposedOp]:
        """Subtracts a compute op from exposed communication; returns the ops that no later op can overlap."""
        for exposed_op in self.open_ops:
            exposed_op.exposed -= _overlap_seconds(exposed_op.begin, exposed_op.end, instance.start, instance.end)
        self.compute_ops = [
            *self.compute_ops[1 - MAX_COMPUTE_OPS :],
            (number, instance.start.copy(), instance.end.copy()),
        ]
        return [exposed_op for exposed_op in self.open_ops if (exposed_op.end <= instance.end).all()]

    def add_communication(self, number: int, instance: Instance) -> None:
        """Adds a communication op; the part that earlier communication ops cover is charged to those."""
        begin = np.maximum(instance.arrival, instance.start)
        if self.last_end is not None:
            begin = np.minimum(instance.end, np.maximum(begin, self.last_end))
        self.last_end = instance.end if self.last_end is None else np.maximum(self.last_end, instance.end)
        self.last_number = number
        if (begin == instance.end).all():
            return
        exposed_op = ExposedOp(number, instance.op.name, begin, instance.end, instance.end - begin)
        earliest = float(begin.min())
        for _, start, end in reversed(self.compute_ops):
            if float(end.max()) <= earliest:  # and so are those before it on the lane
                break
            exposed_op.exposed -= _overlap_seconds(exposed_op.begin, exposed_op.end, start, end)
        self.open_ops.append(exposed_op)

    def remove(self, done: Sequence[ExposedOp]) -> None:
        """Removes ops that are settled."""
        self.open_ops = [
            exposed_op for exposed_op in self.open_ops if all(exposed_op is not settled for settled in done)
        ]


def _overlap_seconds(begin: Floats, end: Floats, start: Floats, stop: Floats) -> Floats:
    """Length of the intersection of two intervals of time [s]."""
    seconds: Floats = np.maximum(0.0, np.minimum(end, stop) - np.maximum(begin, start))
    return seconds


SECONDS = ("seconds", "waiting", "latency", "compute", "contention")

SAME = 1e-12
"""Relative difference up to which seconds of iterations count as equal."""


@dataclass(slots=True)
class _Sums:
    """Sums of one op over all ranks and instances [s].

    Parameters
    ----------
    first : earliest start [s]
    counts : instances by program
    """

    kind: str
    lane: str
    axis: Axis | None
    first: float
    counts: Counter[int]
    seconds: float = 0.0
    waiting: float = 0.0
    exposed: float = 0.0
    latency: float = 0.0
    compute: float = 0.0
    contention: float = 0.0

    def copy(self) -> "_Sums":
        """A copy that later changes leave as it is."""
        return replace(self, counts=self.counts.copy())

    def add(self, before: "_Sums | None", times: int) -> None:
        """Adds the increase since `before` another `times` times."""
        for program, count in self.counts.items():
            self.counts[program] = count + times * (count - (0 if before is None else before.counts[program]))
        for name in SECONDS:
            sum_now = getattr(self, name)
            setattr(self, name, sum_now + times * (sum_now - (0.0 if before is None else getattr(before, name))))


@dataclass(frozen=True, slots=True, eq=False)
class TotalsSnapshot:
    """A snapshot of the totals: sums of every op, number of instances, and number of instances that are kept."""

    ops: dict[str, _Sums]
    number: int
    instances: int


class OpTotals:
    """Sums of every op over all ranks, and the instances from which spans are made.

    Parameters
    ----------
    ranks : number of ranks
    recorded_ranks : ranks whose instances are recorded; None for all
    """

    def __init__(self, ranks: int, recorded_ranks: Ints | None = None) -> None:
        self._ranks = ranks
        self._recorded_ranks = recorded_ranks
        self._ops: dict[str, _Sums] = {}
        self._exposed: dict[int, ExposedTime] = {}
        self._number = 0
        self._settled: list[ExposedOp] = []  # since the last mark
        self.instances: list[Instance] = []
        self.repeats: list[RepeatedIterations] = []
        self.extrapolated: set[str] = set()

    def note(self, instance: Instance, program: int) -> None:
        """Adds an instance on the ranks of a program, in program order."""
        self._number += 1
        sums = self._ops.setdefault(
            instance.op.name,
            _Sums(kind(instance.op), lane(instance.op), instance.axis, float(instance.start.min()), Counter()),
        )
        sums.first = min(sums.first, float(instance.start.min()))
        sums.counts[program] += 1
        if instance.arrival is instance.start:  # no rank waits for another
            sums.seconds += float((instance.end - instance.start).sum())
        else:
            sums.seconds += float(np.maximum(0.0, instance.end - np.maximum(instance.arrival, instance.start)).sum())
            sums.waiting += float(np.maximum(0.0, np.minimum(instance.arrival, instance.end) - instance.start).sum())
        latency, compute, contention = instance.time_parts.sums
        sums.latency += latency
        sums.compute += compute
        sums.contention += contention
        self._charge(instance, self._exposed.setdefault(program, ExposedTime()))
        self.instances.append(
            instance.detached() if self._recorded_ranks is None else instance.of(self._recorded_ranks)
        )

    def snapshot(self) -> TotalsSnapshot:
        """A snapshot, against which an iteration is measured."""
        self._settled = []
        return TotalsSnapshot(
            {name: sums.copy() for name, sums in self._ops.items()}, self._number, len(self.instances)
        )

    def skip_iterations(
        self,
        times: int,
        seconds: Floats,
        snapshot: TotalsSnapshot,
        per_iteration: Mapping[str, int],
        first: tuple[int, int],
    ) -> None:
        """Adds `times` iterations like the iteration since the snapshot.

        Parameters
        ----------
        times : number of iterations
        seconds : time of an iteration on each rank [ranks] [s]
        per_iteration : instances of each op in an iteration
        first : number of instances before the loop, and how many of them are kept
        """
        for name in per_iteration:
            self._ops[name].add(snapshot.ops.get(name), times)
        for exposed_op in self._settled:
            if exposed_op.number > snapshot.number:
                self._ops[exposed_op.name].exposed += times * exposed_op.seconds
        for exposed_time in self._exposed.values():
            exposed_time.overlap_repeats(times, seconds, snapshot.number, first[0])
            for exposed_op in exposed_time.open_ops:
                exposed_op.stands_for += times * (exposed_op.number > snapshot.number)
            exposed_time.shift(times * seconds, first[0])
        last_iteration = [instance for instance in self.instances[snapshot.instances :] if len(instance.ranks)]
        if not last_iteration:
            return
        if float(np.ptp(seconds)) <= SAME * float(seconds.max()):
            self._encode_repeats(times, float(seconds[0]), last_iteration, per_iteration, first[1])
        else:
            seconds_of_ranks = [(instance, _values_of(seconds, instance.ranks)) for instance in last_iteration]
            self.instances += [
                instance.repeated(iteration, rank_seconds, per_iteration[instance.op.name])
                for iteration in range(1, times + 1)
                for instance, rank_seconds in seconds_of_ranks
            ]

    def _encode_repeats(
        self, times: int, seconds: float, last: Sequence[Instance], per_iteration: Mapping[str, int], first: int
    ) -> None:
        """Stores iterations that take the same time on all ranks run-length encoded.

        The iteration since the snapshot moves to the end of the loop and stands for the iterations before it.

        Parameters
        ----------
        last : instances of the last iteration
        first : number of kept instances before the loop
        """
        starts = np.concatenate([instance.start for instance in self.instances[first:]])
        end = min(float(instance.start.min()) for instance in last)
        begin = quietest_time(starts, end - seconds, end)
        self.instances[first:] = [
            moved
            for instance in self.instances[first:]
            for moved in instance.split(begin, times * seconds, times * per_iteration.get(instance.op.name, 0))
        ]
        self.repeats.append(RepeatedIterations(begin + times * seconds, seconds, times, dict(per_iteration)))

    def _charge(self, instance: Instance, exposed_time: ExposedTime) -> None:
        """Charges exposed communication to ops."""
        if lane(instance.op) == COMPUTE:
            self._settle(exposed_time, exposed_time.add_compute(self._number, instance))
        else:
            exposed_time.add_communication(self._number, instance)

    def _settle(self, exposed_time: ExposedTime, done: Sequence[ExposedOp]) -> None:
        """Adds the exposed time of ops that nothing can overlap any more."""
        for exposed_op in done:
            self._ops[exposed_op.name].exposed += exposed_op.stands_for * exposed_op.seconds
        self._settled += done
        exposed_time.remove(done)

    def times(self) -> dict[str, OpTimes]:
        """The times of every op by name, in the order of first start."""
        for exposed_time in self._exposed.values():
            self._settle(exposed_time, exposed_time.open_ops)
        ranks = self._ranks
        return {
            name: OpTimes(
                name,
                sums.kind,
                sums.lane,
                sums.axis,
                count=max(sums.counts.values()),
                seconds=sums.seconds / ranks,
                waiting_seconds=sums.waiting / ranks,
                exposed_seconds=sums.exposed / ranks,
            )
            for name, sums in sorted(self._ops.items(), key=lambda item: item[1].first)
        }

    def seconds_by_cause(self) -> dict[str, dict[str, float]]:
        """Latency, compute and contention of each op, summed over all ranks."""
        return {
            name: {"latency": sums.latency, "compute": sums.compute, "contention": sums.contention}
            for name, sums in self._ops.items()
        }


class NoTotals(OpTotals):
    """Totals that record nothing, for a walk of which only the ends are needed."""

    def note(self, instance: Instance, program: int) -> None:
        """Records nothing."""

    def skip_iterations(
        self,
        times: int,
        seconds: Floats,
        snapshot: TotalsSnapshot,
        per_iteration: Mapping[str, int],
        first: tuple[int, int],
    ) -> None:
        """Records nothing."""


def _values_of(seconds: Floats, ranks: Ints) -> Floats:
    """The values of some of the ranks, which may be all."""
    return seconds if len(ranks) == len(seconds) else seconds[ranks]
