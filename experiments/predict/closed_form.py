"""Closed-form seconds of a schedule on a machine: what all grids are ranked by before a few are simulated.

The ops of one rank, one after the other: products and other local work at the
simulator's own prices (`quadrille.simulator.ranks.local_work`), collectives by the alpha-beta formulas of
`quadrille.algorithms.analysis.alpha_beta`, with what one step along an axis costs (`hops.py`).

Where the closed form and the simulator agree, and where they do not:

- A 4D or 3D schedule whose blocks are all equal, on a network whose hops along
  an axis are alike, takes the same time in both.
- Hops that differ (a ring that is partly inside a node): the closed form lets
  every step be as slow as the slowest hop.  In the simulator the ranks drift
  apart: fast hops get ahead and leave shared links free, or a group that ends
  early starts its next op while its neighbours still send, and slows them down.
  Within 15 % either way on the named machines.
- Uneven blocks: the closed form follows rank 0, whose blocks are the largest,
  and takes the largest piece in every step; in the simulator the largest pieces
  need not meet in one step.  A fraction of a percent, unless blocks are tiny.
- SUMMA, 2.5D, and the gradients of Cannon: panel after panel goes down a
  pipelined chain.  The closed form fills the chain of a broadcast once, that of
  a reduction once for each root, and lets nothing of one panel run beside the
  next; in the simulator chains along both axes interlock, and wait for each
  other.  Within a third either way, worse where panels are few and chains long.
- Overlap: the closed form hides nothing, so that a schedule with overlaps is
  mostly simulated faster, and the best grid for it need not be ranked first.
- Both send one ring along each axis, through one NIC.  NCCL cuts a ring in
  channels, one for each NIC, so that a lone ring (P = 1) gets all of the node's
  NICs: on Perlmutter AxoNN's authors measured 80 GB/s where 25 GB/s are given here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import simpy

from quadrille.algorithms.analysis import alpha_beta
from quadrille.algorithms.analysis.alpha_beta import AlphaBetaLink
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.analysis.storage import local_copies
from quadrille.algorithms.analysis.traffic import Traffic, ranges, traffic
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Communication,
    CommunicationOp,
    Op,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import DType
from quadrille.experiments.predict.hops import AxisHopCosts
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.compute_model import ComputeModel
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.local_work import estimated
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """Seconds of a schedule: local work on the compute lane, and communication with its reductions and copies."""

    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds


class Yardstick:
    """Closed forms of schedules of one dtype on `ranks` ranks of a machine; it remembers what hops cost.

    Parameters
    ----------
    threads : BLAS threads of each rank, by default its share of the host's cores
    rings : bandwidth of rings [B/s], by the distance of neighbours and their number, where it is not read off the links
    """

    def __init__(
        self,
        machine: Machine,
        dtype: DType,
        ranks: int,
        choices: Choices,
        threads: int | None = None,
        rings: Mapping[tuple[int, int], float] | None = None,
    ) -> None:
        self._machine = machine
        self._choices = choices
        self._rings = rings or {}
        engine, placement = FlowEngine(simpy.Environment()), place_ranks(machine, ranks)
        wiring = ResourceDemands(machine, ranks, engine, placement=placement)
        self.hops = AxisHopCosts(machine, ranks, placement, wiring, engine)
        cores = wiring.cores_of(wiring.place(0))
        neighbours = wiring.neighbours(0)
        wanted = threads or wiring.threads(0)
        self._compute = ComputeModel(machine, dtype, wanted, min(neighbours, cores))
        self._crowd = max(1.0, neighbours * min(wanted, cores) / cores)
        self._memory_crowd = max(1.0, neighbours / cores)

    def closed_form(self, schedule: Schedule) -> ClosedForm:
        """Seconds of rank 0, whose blocks are the largest, through its program."""
        compute = communication = 0.0
        for op, _, seconds in self.priced(schedule):
            if isinstance(op, Communication):
                communication += seconds
            else:
                compute += seconds
        return ClosedForm(compute, communication)

    def priced(self, schedule: Schedule) -> Iterator[tuple[Op, Coordinates, float]]:
        """Every op of rank 0 in the order of its program, its moment, and its seconds."""
        start, op_plans = schedule.coordinates(0), OpPlans(schedule, self._choices)
        overhead = self._machine.device.overhead_seconds
        roots: dict[str, int] = {}
        for op, place in walk(schedule.program(start), start):
            if isinstance(op, Communication):
                yield op, place, self._communication(op, schedule, place, roots)
            else:
                seconds, _, _ = estimated(self._compute, op, op_plans.local(op, place), overhead)
                yield op, place, self._crowd * seconds

    def ring_link(self, grid: Grid, axis: Axis, size: int = 1) -> AlphaBetaLink:
        """A step of `size` bytes of all rings along an axis."""
        link = self.hops.axis_link(grid, axis, 1, size)
        return replace(link, bandwidth=self._rings.get((grid.stride(axis), grid.length(axis)), link.bandwidth))

    def _memory(self, operation: str, size: int) -> float:
        return self._memory_crowd * self._compute.memory(operation, size).seconds

    def _communication(
        self, op: CommunicationOp, schedule: Schedule, place: Coordinates, roots: dict[str, int]
    ) -> float:
        """Seconds of one instance of an op; `roots` are those of the instances before, by name."""
        if isinstance(op, Shift):
            return self._shift(op, schedule, place)
        moved = traffic(op, schedule, place, self._choices)
        at_root = moved if moved is None else replace(moved, member=moved.root)
        copied = local_copies(op, schedule, place, at_root if isinstance(op, Broadcast | Reduce) else moved)
        seconds = self._memory("copy", copied.before) + self._memory("copy", copied.after)
        if moved is None:
            return seconds
        full = op.name in roots and (isinstance(op, Broadcast) or roots[op.name] == moved.root)
        roots[op.name] = moved.root
        return seconds + self._machine.device.overhead_seconds + self._steps(op, moved, schedule.grid, full=full)

    def _steps(self, op: CommunicationOp, moved: Traffic, grid: Grid, *, full: bool) -> float:
        """Seconds of the steps of a communication op: by its formula, or where it has none step by step.

        `full` says that the chain of a pipelined op is still full from the instance before.
        """
        members, algorithm = grid.length(op.axis), moved.lowered.algorithm
        piece = moved.item_bytes * max((stop - start for start, stop in _pieces(moved)), default=0)
        if algorithm not in ("ring", "pipelined"):
            return self._by_steps(op, moved, grid)
        link = self.ring_link(grid, op.axis, piece)
        chunks = moved.lowered.pieces
        match op:
            case AllGather():
                return alpha_beta.ring_all_gather(members, piece, link)
            case ReduceScatter():
                return alpha_beta.ring_reduce_scatter(members, piece, self._reducing(link, piece))
            case AllReduce():
                summed = alpha_beta.ring_reduce_scatter(members, piece, self._reducing(link, piece))
                return summed + alpha_beta.ring_all_gather(members, piece, link)
            case Broadcast():
                length = 2 if full else members
                return alpha_beta.pipelined_broadcast(length, chunks * piece, link, chunks=chunks)
            case Reduce():
                length = 2 if full else members
                return alpha_beta.pipelined_reduce(length, chunks * piece, self._reducing(link, piece), chunks=chunks)
            case AllToAll() | Barrier() | Send() | Receive() | Shift():
                return self._by_steps(op, moved, grid)

    def _by_steps(self, op: CommunicationOp, moved: Traffic, grid: Grid) -> float:
        """The sum over the steps of what the slowest member takes: α + n / β of its hop and its size."""
        total = 0.0
        for index in range(moved.lowered.steps):
            steps = [moved.lowered.step(member, index) for member in range(grid.length(op.axis))]
            peers = tuple(own if step.send_to is None else step.send_to for own, step in enumerate(steps))
            sent = (ranges(step.send, moved.edges) for step in steps)
            size = moved.item_bytes * max(sum(stop - start for start, stop in run) for run in sent)
            link = self.hops.step_link(grid, op.axis, peers, size)
            reduces = any(step.reduce for step in steps)
            total += (self._reducing(link, size) if reduces else link).seconds(size)
        return total

    def _reducing(self, link: AlphaBetaLink, size: int) -> AlphaBetaLink:
        """The link with the addition of what has arrived as a part of every step."""
        if not size:
            return link
        return AlphaBetaLink(link.latency, 1 / (1 / link.bandwidth + self._memory("add", size) / size))

    def _shift(self, op: Shift, schedule: Schedule, place: Coordinates) -> float:
        """Seconds of the slowest rank's shift, whose distance may depend on the rank."""
        size = schedule.tensors[op.source].block(place).elements * schedule.item_bytes(op.source)
        link = self.hops.shift_link(op, schedule.grid, place, max(1, size))
        if link.bandwidth == inf:
            return self._memory("copy", size)
        return self._machine.device.overhead_seconds + link.seconds(size)


def _pieces(moved: Traffic) -> Iterator[tuple[int, int]]:
    for edges in (moved.edges, moved.receive_edges):
        yield from pairwise(edges)
