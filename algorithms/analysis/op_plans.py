"""Plans of ops: the steps of a communication op, or the sizes of local work, on a rank.

Plans are computed once for each kind of coordinates, because layout arithmetic costs
ten times as much as the simulation of a step.  An op depends only on part of its
coordinates (`coordinate_dependence.py`): at most two block sizes for each axis, and
the coordinate along its own axis.  Thousands of ranks therefore share a few plans.
If each iteration of a loop has a kind of its own, the cache is cleared when it is full.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from quadrille.algorithms.analysis.coordinate_dependence import Kind, OpKinds
from quadrille.algorithms.analysis.storage import LocalCopies, local_copies
from quadrille.algorithms.analysis.traffic import Traffic, traffic
from quadrille.algorithms.analysis.volumes import Work, gemm_sizes, kernel_work
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import AllReduce, CommunicationOp, Compute, Gemm, Kernel, Op, lane, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule

Result = TypeVar("Result")
KEPT = 1 << 12
"""Largest number of kinds of coordinates for which an op's plans are cached."""
STEPS_KEPT = 1 << 18
"""Largest number of cached steps, about 30 MB; the steps of further plans are computed when they are needed."""


class PlanStep(NamedTuple):
    """What one member does in one step of a communication op.

    Parameters
    ----------
    send_to, receive_from : coordinates along the op's axis; None if nothing is sent or received
    sent : bytes that the member sends
    added : received bytes that the member adds to its own
    pattern : `one_way` (only sends or only receives), `exchange` (with one peer) or `shift` (with two peers)
    """

    send_to: int | None
    receive_from: int | None
    sent: float
    added: int
    pattern: str

    @property
    def is_of_chain(self) -> bool:
        """Whether the member only receives or only sends, as in a chain."""
        return self.pattern == "one_way"


class StepRun(NamedTuple):
    """Consecutive equal steps in which the member sends or receives.

    Parameters
    ----------
    step : the step
    times : number of equal steps
    number : number of the first step, from 1
    """

    step: PlanStep
    times: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class CommPlan:
    """The plan of a communication op on one rank.

    Parameters
    ----------
    moved : traffic of the op; None if nothing is sent
    copied : bytes that are copied before and after the messages
    kept : the steps; None if they are not cached
    wires : name of the channels that the messages use, see `wires_of`
    """

    moved: Traffic | None
    copied: LocalCopies
    kept: tuple[PlanStep, ...] | None
    wires: str

    def steps(self) -> Iterator[PlanStep]:
        """The steps of the member, in order."""
        if self.kept is not None:
            return iter(self.kept)
        return plan_steps(self.moved) if self.moved is not None else iter(())


@dataclass(frozen=True, slots=True)
class LocalSizes:
    """The sizes of local work on one rank.

    Parameters
    ----------
    product : rows, inner dimension and columns of a matrix product; None for other work
    written : bytes of the result
    touched : smallest number of bytes of memory that are read and written
    work : work of a layer function; None for other work
    """

    product: tuple[int, int, int] | None
    written: int
    touched: int
    work: Work | None = None


class OpPlans:
    """The plans of a schedule's ops.

    >>> from quadrille.algorithms.matmuls.catalogue import matmul_schedule
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> schedule = matmul_schedule(Matmul(8, 8, 8), "1d-row", Grid(y=2))
    >>> *_, op = schedule.program(schedule.coordinates(0))
    >>> plan = OpPlans(schedule, Choices()).communication(op, schedule.coordinates(0))
    >>> [step.sent for step in plan.steps()]
    [128.0, 128.0]
    """

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self._schedule = schedule
        self._choices = choices
        self.kind = schedule.cached(OpKinds).of
        self._steps = 0
        self._same: dict[PlanStep, PlanStep] = {}
        self._communication: Memo[CommPlan] = Memo(self._plan)
        self._local: Memo[LocalSizes] = Memo(self._sizes)

    def communication(self, op: CommunicationOp, place: Coordinates) -> CommPlan:
        """The plan of a communication op on the rank at `place`."""
        return self._communication.get(op, self.kind(op, place), place)

    def local(self, op: Compute, place: Coordinates) -> LocalSizes:
        """The sizes of local work on the rank at `place`."""
        return self._local.get(op, self.kind(op, place), place)

    def _plan(self, op: CommunicationOp, place: Coordinates) -> CommPlan:
        moved = traffic(op, self._schedule, place, self._choices)
        copied = local_copies(op, self._schedule, place, moved)
        count = 0 if moved is None else moved.lowered.steps
        if self._steps + count > STEPS_KEPT:
            return CommPlan(moved, copied, None, wires_of(op, moved))
        self._steps += count
        steps = () if moved is None else tuple(self._same.setdefault(step, step) for step in plan_steps(moved))
        return CommPlan(moved, copied, steps, wires_of(op, moved))

    def _sizes(self, op: Compute, place: Coordinates) -> LocalSizes:
        tensors, item_bytes = self._schedule.tensors, self._schedule.item_bytes
        blocks = {name: tensors[name].block(place).elements * item_bytes(name) for name in {*reads(op), *writes(op)}}
        total = sum(blocks.values())
        match op:
            case Gemm():
                return LocalSizes(gemm_sizes(op, self._schedule, place), blocks[op.c], total)
            case Kernel():
                work = kernel_work(op, self._schedule, place)
                return LocalSizes(None, sum(blocks[name] for name in writes(op)), total, work)
            case _:
                return LocalSizes(None, blocks[op.into], total)


def wires_of(op: CommunicationOp, moved: Traffic | None) -> str:
    """The name of the channels that the messages of an op use: its lane, or channels of its own.

    Sends and receives on a channel are matched in order.  An op sends as often as it receives, so an op may have
    channels of its own without a change of the result.  All-reduces by recursive doubling have their own channels:
    otherwise only some neighbours in a ring would also exchange data, and few ranks would be equivalent.
    """
    if isinstance(op, AllReduce) and moved is not None and moved.lowered.algorithm == "doubling":
        return f"{lane(op)} by doubling"
    return lane(op)


class Memo(Generic[Result]):
    """A cache of results by op and kind of coordinates; an op's results are dropped when there are more than `KEPT`."""

    def __init__(self, find: Callable[..., Result]) -> None:
        self._find = find
        self._kept: dict[int, dict[Kind, Result]] = {}

    def get(self, op: Op, kind: Kind, place: Coordinates) -> Result:
        """The result of `find` for the op at coordinates of this kind."""
        of_op = self._kept.setdefault(id(op), {})
        if kind not in of_op:
            if len(of_op) >= KEPT:
                of_op.clear()
            of_op[kind] = self._find(op, place)
        return of_op[kind]


def plan_steps(moved: Traffic) -> Iterator[PlanStep]:
    """The steps of one member; empty messages are not sent, except in a barrier."""
    is_barrier = moved.lowered.algorithm == "dissemination"
    for exchange in moved.exchanges():
        sent, received = exchange.sent, exchange.received
        send_to = exchange.send_to if sent or is_barrier else None
        receive_from = exchange.receive_from if received or is_barrier else None
        added = received * moved.item_bytes if exchange.reduce else 0
        yield PlanStep(send_to, receive_from, float(sent * moved.item_bytes), added, _pattern(send_to, receive_from))


def _pattern(send_to: int | None, receive_from: int | None) -> str:
    """The pattern of a step: `one_way`, `exchange` or `shift`."""
    if send_to is None or receive_from is None:
        return "one_way"
    return "exchange" if send_to == receive_from else "shift"


def step_runs(comm_plan: CommPlan) -> Iterator[StepRun]:
    """The steps in which something is sent or received, run-length encoded."""
    number = 1
    for step, equal in groupby(comm_plan.steps()):
        count = sum(1 for _ in equal)
        if step.send_to is not None or step.receive_from is not None:
            yield StepRun(step, count, number)
        number += count
