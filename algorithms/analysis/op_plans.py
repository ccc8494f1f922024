"""Op plans: the messages of a communication op, or the operand sizes of a local op, on one rank.

The simulator asks for the plan of every op on every rank.  The plan of a communication op lists the point-to-point
steps of its algorithm (peer and bytes of each send and receive) and the bytes of local copies.  The plan of a local
op holds the sizes of its matrices.

Plans are cached by kind of coordinates (`coordinate_dependence.py`): two ranks are of one kind for an op if all their
blocks have equal sizes and their coordinates along the op's axis are equal.  Thousands of ranks therefore share a few
plans.  A cache that is full, because each iteration of a loop is a kind of its own, is cleared.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from quadrille.algorithms.analysis.coordinate_dependence import Kind, OpKinds
from quadrille.algorithms.analysis.storage import LocalCopies, local_copies
from quadrille.algorithms.analysis.traffic import Traffic, traffic
from quadrille.algorithms.analysis.volumes import Work, expert_rows, gemm_sizes, kernel_work
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import (
    AllReduce,
    CommunicationOp,
    Compute,
    Gemm,
    Kernel,
    Op,
    message_lane,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule

Result = TypeVar("Result")
INNER = "expert inner"
"""Dimension of the hidden layer of an expert."""
MOST_KINDS = 1 << 12
MOST_STEPS = 1 << 18  # about 30 MB


class PlanStep(NamedTuple):
    """One step of a communication op on one member of its group: at most one send and one receive.

    Parameters
    ----------
    send_to, receive_from : peers, as coordinates along the op's axis; None if nothing is sent or received
    sent : bytes that the member sends [B]
    added : received bytes that the member adds to its own [B]
    pattern : `one_way` (only sends or only receives), `exchange` (with one peer) or `shift` (with two peers)
    """

    send_to: int | None
    receive_from: int | None
    sent: float
    added: int
    pattern: str

    @property
    def is_one_way(self) -> bool:
        """Whether the member only receives or only sends in this step."""
        return self.pattern == "one_way"


class StepRun(NamedTuple):
    """Consecutive equal steps of one member, in which it sends or receives.

    Parameters
    ----------
    step : the step
    times : number of equal steps
    number : position of the first of these steps in the op, from 1
    """

    step: PlanStep
    times: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class CommPlan:
    """The plan of a communication op on one rank.

    Parameters
    ----------
    traffic : bytes that the rank sends and receives; None if nothing is sent
    copied : bytes that are copied before and after the messages
    cached_steps : the steps; None if they are too many to be cached
    channel_name : name of the channels that the messages use, see `channel_name`
    """

    traffic: Traffic | None
    copied: LocalCopies
    cached_steps: tuple[PlanStep, ...] | None
    channel_name: str

    def steps(self) -> Iterator[PlanStep]:
        """The steps of the member, in order."""
        if self.cached_steps is not None:
            return iter(self.cached_steps)
        return plan_steps(self.traffic) if self.traffic is not None else iter(())


@dataclass(frozen=True, slots=True)
class LocalSizes:
    """The operand sizes of a local op on one rank.

    Parameters
    ----------
    product : rows, inner dimension and columns of a matrix product; None for other ops
    written : bytes of the result [B]
    touched : bytes of all operands, each counted once [B]
    work : flop and bytes of a layer function; None for other ops
    expert_rows : rows of each of the rank's experts, if the product is one for each expert
    expert : columns of a row and of the hidden layer of an expert, on the rank
    """

    product: tuple[int, int, int] | None
    written: int
    touched: int
    work: Work | None = None
    expert_rows: tuple[int, ...] = ()
    expert: tuple[int, int] = (0, 0)


class OpPlans:
    """The plans of a schedule's ops, computed once for each kind of coordinates.

    >>> from quadrille.algorithms.matmuls.catalogue import matmul_schedule
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> schedule = matmul_schedule(Matmul(8, 8, 8), "1d-row", Grid(y=2))
    >>> *_, op = schedule.program(schedule.coordinates(0))
    >>> plan = OpPlans(schedule, Choices()).communication(op, schedule.coordinates(0))
    >>> [step.sent for step in plan.steps()]
    [128.0, 128.0]

    Parameters
    ----------
    schedule : the schedule
    choices : implementation and algorithms of its collectives
    most_kinds : largest number of kinds of coordinates for which an op's plans are cached
    most_steps : largest number of cached steps; the steps of further plans are computed when they are needed
    """

    def __init__(
        self, schedule: Schedule, choices: Choices, *, most_kinds: int = MOST_KINDS, most_steps: int = MOST_STEPS
    ) -> None:
        self._schedule = schedule
        self._choices = choices
        self._most_steps = most_steps
        self.kind = schedule.cached(OpKinds).of
        self._cached_steps = 0
        self._equal_steps: dict[PlanStep, PlanStep] = {}
        self._communication: Memo[CommPlan] = Memo(self._plan, most_kinds)
        self._local: Memo[LocalSizes] = Memo(self._sizes, most_kinds)

    def communication(self, op: CommunicationOp, coordinates: Coordinates) -> CommPlan:
        """The plan of a communication op on the rank at these coordinates."""
        return self._communication.get(op, self.kind(op, coordinates), coordinates)

    def local(self, op: Compute, coordinates: Coordinates) -> LocalSizes:
        """The operand sizes of a local op on the rank at these coordinates."""
        return self._local.get(op, self.kind(op, coordinates), coordinates)

    def _plan(self, op: CommunicationOp, coordinates: Coordinates) -> CommPlan:
        op_traffic = traffic(op, self._schedule, coordinates, self._choices)
        copied = local_copies(op, self._schedule, coordinates, op_traffic)
        count = 0 if op_traffic is None else op_traffic.lowered.steps
        if self._cached_steps + count > self._most_steps:
            return CommPlan(op_traffic, copied, None, channel_name(op, op_traffic))
        self._cached_steps += count
        steps = () if op_traffic is None else plan_steps(op_traffic)
        shared_steps = tuple(self._equal_steps.setdefault(step, step) for step in steps)
        return CommPlan(op_traffic, copied, shared_steps, channel_name(op, op_traffic))

    def _sizes(self, op: Compute, coordinates: Coordinates) -> LocalSizes:
        tensors, item_bytes = self._schedule.tensors, self._schedule.item_bytes
        names = {*reads(op), *writes(op)}
        blocks = {name: tensors[name].block(coordinates).elements * item_bytes(name) for name in names}
        total = sum(blocks.values())
        match op:
            case Gemm():
                rows = expert_rows(op, self._schedule, coordinates)
                sizes = gemm_sizes(op, self._schedule, coordinates)
                return LocalSizes(sizes, blocks[op.c], total, expert_rows=rows, expert=self._expert(op, sizes))
            case Kernel():
                work = kernel_work(op, self._schedule, coordinates)
                return LocalSizes(None, sum(blocks[name] for name in writes(op)), total, work)
            case _:
                return LocalSizes(None, blocks[op.into], total)

    def _expert(self, op: Gemm, product: tuple[int, int, int]) -> tuple[int, int]:
        """Columns of a row and of the hidden layer of an expert on a rank; zeros for another product."""
        if not op.counts:
            return (0, 0)
        m, k, n = product
        rows, columns = {"NN": (k, n), "NT": (n, k), "TN": (m, n)}[op.layout]
        part = self._schedule.tensors[op.weights].columns
        return (rows, columns // part.unit) if part.dimension == INNER else (columns, rows)


def channel_name(op: CommunicationOp, op_traffic: Traffic | None) -> str:
    """The name of the channels between ranks that the messages of an op use: the op's lane, or a name of its own.

    A channel is a pair of ranks and a name.  The k-th send on a channel matches its k-th receive, as with an MPI tag.
    All-reduces by recursive doubling have channels of their own: on the channels of the lane, some neighbours in a
    ring would exchange more messages than others, and few ranks would be equivalent.  An op sends as often as it
    receives, so this changes no result.
    """
    if isinstance(op, AllReduce) and op_traffic is not None and op_traffic.lowered.algorithm == "doubling":
        return f"{message_lane(op)} by doubling"
    return message_lane(op)


class Memo(Generic[Result]):
    """A cache of results by op and kind of coordinates.

    Parameters
    ----------
    compute : function of an op and coordinates, with equal results for all coordinates of a kind
    most_kinds : number of results of an op at which they are dropped
    """

    def __init__(self, compute: Callable[..., Result], most_kinds: int) -> None:
        self._compute = compute
        self._most_kinds = most_kinds
        self._results: dict[int, dict[Kind, Result]] = {}

    def get(self, op: Op, kind: Kind, coordinates: Coordinates) -> Result:
        """The result for the op at these coordinates, which are of this kind."""
        by_kind = self._results.setdefault(id(op), {})
        if kind not in by_kind:
            if len(by_kind) >= self._most_kinds:
                by_kind.clear()
            by_kind[kind] = self._compute(op, coordinates)
        return by_kind[kind]


def plan_steps(op_traffic: Traffic) -> Iterator[PlanStep]:
    """Yields the steps of one member; empty messages are not sent, except in a barrier."""
    is_barrier = op_traffic.lowered.algorithm == "dissemination"
    for exchange in op_traffic.exchanges():
        sent, received = exchange.sent, exchange.received
        send_to = exchange.send_to if sent or is_barrier else None
        receive_from = exchange.receive_from if received or is_barrier else None
        sent_bytes = float(sent * op_traffic.item_bytes)
        added = received * op_traffic.item_bytes if exchange.reduce else 0
        yield PlanStep(send_to, receive_from, sent_bytes, added, _pattern(send_to, receive_from))


def _pattern(send_to: int | None, receive_from: int | None) -> str:
    """The pattern of a step: `one_way`, `exchange` or `shift`."""
    if send_to is None or receive_from is None:
        return "one_way"
    return "exchange" if send_to == receive_from else "shift"


def step_runs(comm_plan: CommPlan) -> Iterator[StepRun]:
    """Yields the steps in which the member sends or receives, run-length encoded."""
    number = 1
    for step, equal in groupby(comm_plan.steps()):
        count = sum(1 for _ in equal)
        if step.send_to is not None or step.receive_from is not None:
            yield StepRun(step, count, number)
        number += count
