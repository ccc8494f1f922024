"""What an op does on a rank, step by step, computed once for each kind of coordinates.

Layout arithmetic costs ten times as much as simulating a step. An op depends on
little of its coordinates (`coordinate_dependence.py`): at most two sizes an axis, and
the coordinate along its own axis. So thousands of ranks share a few plans.
If every iteration of a loop is of a kind of its own, only a few thousand plans are kept.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from quadrille.algorithms.analysis.coordinate_dependence import Kind, OpKinds
from quadrille.algorithms.analysis.storage import LocalCopies, local_copies
from quadrille.algorithms.analysis.traffic import Traffic, traffic
from quadrille.algorithms.analysis.volumes import Work, gemm_sizes, kernel_work
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.schedule.ops import AllReduce, CommunicationOp, Compute, Gemm, Kernel, Op, lane, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule

Found = TypeVar("Found")
KEPT = 1 << 12
"""Kinds of coordinates for which an op's plans are kept."""
STEPS_KEPT = 1 << 18
"""Steps that are kept, together about 30 MB; the steps of longer plans are computed when they are needed."""


class PlanStep(NamedTuple):
    """What one member does in one step of a communication op.

    Parameters
    ----------
    send_to, receive_from : coordinates along the op's axis; None if nothing is sent or received
    sent : bytes that the member sends
    added : bytes that the member adds to what it holds
    pattern : `one_way`, `exchange` (to and fro) or `shift` (around)
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
    """Equal steps in a row, in which something is sent or received.

    Parameters
    ----------
    number : number of the first step, from 1
    """

    step: PlanStep
    times: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class CommPlan:
    """A communication op on one rank.

    Parameters
    ----------
    moved : traffic of the op; None if nothing is sent
    copied : bytes copied before and after
    kept : the steps, if they are not too many to keep
    wires : name of the wires that the messages use, see `wires_of`
    """

    moved: Traffic | None
    copied: LocalCopies
    kept: tuple[PlanStep, ...] | None
    wires: str

    def steps(self) -> Iterator[PlanStep]:
        """The steps, one by one."""
        if self.kept is not None:
            return iter(self.kept)
        return plan_steps(self.moved) if self.moved is not None else iter(())


@dataclass(frozen=True, slots=True)
class LocalSizes:
    """The sizes of local work on one rank.

    Parameters
    ----------
    product : rows, inner dimension and columns of a product
    written : bytes of the result
    touched : bytes of memory that are read and written at least
    work : work of a layer's function
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
        self._communication: Memo[CommPlan] = Memo(self._duty)
        self._local: Memo[LocalSizes] = Memo(self._sizes)

    def communication(self, op: CommunicationOp, place: Coordinates) -> CommPlan:
        """The plan of a communication op on the rank at `place`."""
        return self._communication.get(op, self.kind(op, place), place)

    def local(self, op: Compute, place: Coordinates) -> LocalSizes:
        """The sizes of local work on the rank at `place`."""
        return self._local.get(op, self.kind(op, place), place)

    def _duty(self, op: CommunicationOp, place: Coordinates) -> CommPlan:
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
    """The name of the wires of an op's lane that its messages use.

    Sends and receives on a wire meet in order. Each op sends as often as it receives, so ops may as well have wires
    of their own. All-reduces by recursive doubling have: otherwise a ring's neighbours would be of two kinds, those
    that exchange and those that do not, and no two of them would be equivalent.
    """
    if isinstance(op, AllReduce) and moved is not None and moved.lowered.algorithm == "doubling":
        return f"{lane(op)} by doubling"
    return lane(op)


class Memo(Generic[Found]):
    """Results by op and kind of coordinates; all are dropped when they are too many."""

    def __init__(self, find: Callable[..., Found]) -> None:
        self._find = find
        self._kept: dict[int, dict[Kind, Found]] = {}

    def get(self, op: Op, kind: Kind, place: Coordinates) -> Found:
        """The result of `find` for the op at such coordinates."""
        of_op = self._kept.setdefault(id(op), {})
        if kind not in of_op:
            if len(of_op) >= KEPT:
                of_op.clear()
            of_op[kind] = self._find(op, place)
        return of_op[kind]


def plan_steps(moved: Traffic) -> Iterator[PlanStep]:
    """The steps of one member; empty pieces are not sent, except in a barrier."""
    is_barrier = moved.lowered.algorithm == "dissemination"
    for exchange in moved.exchanges():
        sent, received = exchange.sent, exchange.received
        send_to = exchange.send_to if sent or is_barrier else None
        receive_from = exchange.receive_from if received or is_barrier else None
        added = received * moved.item_bytes if exchange.reduce else 0
        yield PlanStep(send_to, receive_from, float(sent * moved.item_bytes), added, _pattern(send_to, receive_from))


def _pattern(send_to: int | None, receive_from: int | None) -> str:
    """The pattern of a step."""
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
