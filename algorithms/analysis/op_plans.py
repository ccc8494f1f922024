"""What an op comes to on a rank, found once for each kind of place.

Layout arithmetic costs ten times as much as simulating a step.  What an op
needs to know of a place is little (`coordinate_dependence.py`): at most two sizes an axis, and
the coordinate along its own axis.  So ranks by the thousand share a few duties.
Where every turn of a loop is a kind of its own, no more than some thousand are kept.
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
"""Kinds of places of which an op's duties are kept."""
STEPS_KEPT = 1 << 18
"""Steps that are kept, together about 30 MB; those of longer programs are found when they are walked."""


class PlanStep(NamedTuple):
    """What one member does in one step of a communication op.

    Parameters
    ----------
    send_to, receive_from : coordinates along the op's axis; None where nothing goes over the wire
    sent, added : bytes that it sends, and that it adds to what it holds
    pattern : whether messages go one way, around, or to and fro
    """

    send_to: int | None
    receive_from: int | None
    sent: float
    added: int
    pattern: str

    @property
    def is_of_chain(self) -> bool:
        """Whether a member only receives, or only sends: as down a chain."""
        return self.pattern == "one_way"


class StepRun(NamedTuple):
    """Equal steps in a row, in which something goes over a wire.

    Parameters
    ----------
    number : of the first of them, from 1
    """

    step: PlanStep
    times: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class CommPlan:
    """A communication op on one rank.

    Parameters
    ----------
    moved : None where nothing goes over a wire
    copied : bytes copied before and after
    kept : its steps, where they are not too many to keep
    wires : what the wires that its messages go on are called, see `wires_of`
    """

    moved: Traffic | None
    copied: LocalCopies
    kept: tuple[PlanStep, ...] | None
    wires: str

    def steps(self) -> Iterator[PlanStep]:
        """Step by step."""
        if self.kept is not None:
            return iter(self.kept)
        return plan_steps(self.moved) if self.moved is not None else iter(())


@dataclass(frozen=True, slots=True)
class LocalSizes:
    """Local work on one rank.

    Parameters
    ----------
    product : rows, inner dimension and columns, of a product
    written : bytes of the result
    touched : bytes of memory that are read and written at least
    work : of a layer's function
    """

    product: tuple[int, int, int] | None
    written: int
    touched: int
    work: Work | None = None


class OpPlans:
    """The duties of a schedule's ops.

    >>> from quadrille.algorithms.matmuls.catalogue import matmul_schedule
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> schedule = matmul_schedule(Matmul(8, 8, 8), "1d-row", Grid(y=2))
    >>> *_, op = schedule.program(schedule.coordinates(0))
    >>> comm_plan = OpPlans(schedule, Choices()).communication(op, schedule.coordinates(0))
    >>> [step.sent for step in comm_plan.steps()]
    [128.0, 128.0]
    """

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self._schedule = schedule
        self._choices = choices
        self.kind = schedule.cached(OpKinds).of
        self._steps = 0
        self._same: dict[PlanStep, PlanStep] = {}
        self._communication: Kept[CommPlan] = Kept(self._duty)
        self._local: Kept[LocalSizes] = Kept(self._sizes)

    def communication(self, op: CommunicationOp, place: Coordinates) -> CommPlan:
        """A communication op on the rank at `place`."""
        return self._communication.found(op, self.kind(op, place), place)

    def local(self, op: Compute, place: Coordinates) -> LocalSizes:
        """Local work on the rank at `place`."""
        return self._local.found(op, self.kind(op, place), place)

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
    """The wires of an op's lane that its messages go on.

    On a wire sends and receives meet in order.  Each op sends as often as it receives, so ops may as well have wires
    of their own.  Sums by doubling have: else a ring's neighbours were two kinds, those that exchange and those
    that do not, and no two of them alike.
    """
    if isinstance(op, AllReduce) and moved is not None and moved.lowered.algorithm == "doubling":
        return f"{lane(op)} by doubling"
    return lane(op)


class Kept(Generic[Found]):
    """What was found, by op and kind of place; all is forgotten when it is too much."""

    def __init__(self, find: Callable[..., Found]) -> None:
        self._find = find
        self._kept: dict[int, dict[Kind, Found]] = {}

    def found(self, op: Op, kind: Kind, place: Coordinates) -> Found:
        """What `find` says of the op at such a place."""
        of_op = self._kept.setdefault(id(op), {})
        if kind not in of_op:
            if len(of_op) >= KEPT:
                of_op.clear()
            of_op[kind] = self._find(op, place)
        return of_op[kind]


def plan_steps(moved: Traffic) -> Iterator[PlanStep]:
    """The steps of one member; where a piece is empty nothing goes over the wire, except in a barrier."""
    is_barrier = moved.lowered.algorithm == "dissemination"
    for exchange in moved.exchanges():
        sent, received = exchange.sent, exchange.received
        send_to = exchange.send_to if sent or is_barrier else None
        receive_from = exchange.receive_from if received or is_barrier else None
        added = received * moved.item_bytes if exchange.reduce else 0
        yield PlanStep(send_to, receive_from, float(sent * moved.item_bytes), added, _pattern(send_to, receive_from))


def _pattern(send_to: int | None, receive_from: int | None) -> str:
    if send_to is None or receive_from is None:
        return "one_way"
    return "exchange" if send_to == receive_from else "shift"


def rows(comm_plan: CommPlan) -> Iterator[StepRun]:
    """The steps in which something goes over a wire, equal ones in a row together."""
    number = 1
    for step, equal in groupby(comm_plan.steps()):
        count = sum(1 for _ in equal)
        if step.send_to is not None or step.receive_from is not None:
            yield StepRun(step, count, number)
        number += count
