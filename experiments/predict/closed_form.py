"""The alpha-beta model: closed-form time of a schedule on a machine, by which grids are ranked before simulation.

The time is the sum over the ops of one rank: local work with the simulator's times
(`quadrille.simulator.ranks.local_work`), and collectives by the alpha-beta formulas of
`quadrille.algorithms.analysis.alpha_beta`, with the cost of a step along each axis
(`hop_costs.py`).

Differences from the simulator:

- None for a 4D or 3D schedule with equal blocks on a network in which all hops along an
  axis are equal.
- Different hops, as in a ring that is partly inside a node: in the closed form every
  step is as slow as the slowest hop.  In the simulator ranks drift apart: fast hops get
  ahead and leave shared links free, or a group that ends early starts its next op and
  slows down its neighbours.  The difference is within 15 % on the named machines.
- Uneven blocks: the closed form follows rank 0, which has the largest blocks, and uses
  the largest shard in every step.  The difference is below 1 %, unless blocks are tiny.
- SUMMA, 2.5D, and the gradients of Cannon send panels along pipelined chains.  The
  closed form fills the chain of a broadcast once and that of a reduction once for each
  root, and overlaps no two panels; in the simulator chains along both axes wait for each
  other.  The difference is within a third; it is largest for few panels and long chains.
- Overlap: the closed form hides no communication.  A schedule with overlaps is usually
  faster in the simulator, and its best grid need not be ranked first.
- Both use one ring along each axis, through one NIC.  NCCL cuts a ring into channels, one
  for each NIC, so that a single ring (P = 1) uses all NICs of the node: AxoNN's authors
  measured 80 GB/s on Perlmutter, where this module has 25 GB/s.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import simpy

from quadrille.algorithms.analysis import alpha_beta
from quadrille.algorithms.analysis.alpha_beta import AlphaBetaLink
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.analysis.storage import local_copies
from quadrille.algorithms.analysis.traffic import Traffic, ranges, traffic
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Communication,
    CommunicationOp,
    Compute,
    HostCopy,
    Op,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
    is_host_op,
    lane,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import DType
from quadrille.experiments.predict.hop_costs import AxisHopCosts
from quadrille.simulator.bounds.nccl_times import NcclTimes
from quadrille.simulator.collectives.nccl.patterns import busiest_bytes
from quadrille.simulator.collectives.programs import PairBytes
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.compute_model import ComputeModel
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.host_links import ranks_that_share
from quadrille.simulator.ranks.local_work import estimate_op
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Ints


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The closed-form time of a schedule [s]: local work, and communication with its reductions and copies."""

    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds


class ClosedFormModel:
    """The alpha-beta model of schedules of one dtype on `ranks` ranks of a machine; it caches the costs of hops.

    Parameters
    ----------
    choices : algorithm and library of each kind of collective
    threads : number of BLAS threads of each rank; by default its share of the host's cores
    rings : bandwidth of rings by stride and number of members [B/s]; by default computed from the links
    stages, blocks : number of pipeline stages, and of blocks of each; all blocks have as many ranks in a row
    """

    def __init__(
        self,
        machine: Machine,
        dtype: DType,
        ranks: int,
        choices: Choices,
        threads: int | None = None,
        rings: Mapping[tuple[int, int], float] | None = None,
        stages: int = 1,
        blocks: int = 1,
    ) -> None:
        self._machine = machine
        self._choices = choices
        self._rings, self._at_once = rings or {}, False
        self._placement = placement = place_ranks(machine, ranks)
        self._nccl = NcclTimes(machine, placement, choices)
        self._pairs: dict[tuple[object, ...], PairBytes] = {}
        self._uneven_by_place: dict[tuple[object, ...], tuple[float, ...]] = {}
        engine = FlowEngine(simpy.Environment())
        wiring = ResourceDemands(machine, ranks, engine, placement=placement)
        self.hops = AxisHopCosts(machine, ranks, placement, wiring, engine, stages, blocks)
        cores = wiring.cores_of(wiring.endpoint(0))
        neighbours = wiring.neighbours(0)
        wanted = threads or wiring.threads(0)
        self._compute = ComputeModel(machine, dtype, wanted, min(neighbours, cores))
        self._crowd = max(1.0, neighbours * min(wanted, cores) / cores)
        self._memory_crowd = max(1.0, neighbours / cores)

    def at_once(self, rings: Mapping[tuple[int, int], float]) -> "ClosedFormModel":
        """The model with these rings, in which messages of a collective that are posted at once share the links.

        Without it they take turns.
        """
        model = copy(self)
        model._rings, model._at_once = rings, True
        return model

    def at_place(self, place: int) -> "ClosedFormModel":
        """The model of the ranks of a block of a stage; without it each step is as slow as in the slowest block."""
        model = copy(self)
        model.hops = self.hops.at_place(place)
        return model

    def equal_places(self) -> list[int]:
        """The first block with the same costs as each block, in all communication that was asked for."""
        return self.hops.equal_places(self._uneven_by_place.values())

    def closed_form(self, schedule: Schedule) -> ClosedForm:
        """The closed-form time of the program of rank 0, which has the largest blocks."""
        compute = communication = 0.0
        for op, _, seconds in self.priced(schedule):
            if isinstance(op, Communication):
                communication += seconds
            else:
                compute += seconds
        return ClosedForm(compute, communication)

    def priced(self, schedule: Schedule) -> Iterator[tuple[Op, Coordinates, float]]:
        """Every instance of an op of rank 0 in program order, with its coordinates and its time [s]."""
        start, op_plans = schedule.coordinates(0), OpPlans(schedule, self._choices)
        overhead = self._machine.device.overhead_seconds
        roots: dict[str, int] = {}
        for op, coordinates in walk(schedule.program(start), start):
            if isinstance(op, Communication):
                yield op, coordinates, self._communication(op, schedule, coordinates, roots)
            else:
                seconds, _, _ = estimate_op(self._compute, op, op_plans.local(op, coordinates), overhead)
                yield op, coordinates, self._sharing(op) * seconds + self._copy_latency(op)

    def _copy_latency(self, op: Compute) -> float:
        """The time from issue to start of a host copy [s]."""
        link = self._machine.host_link
        return link.latency_seconds if isinstance(op, HostCopy) and link is not None else 0.0

    def _sharing(self, op: Compute) -> float:
        """The ranks that share the cores, the host link or the host memory of an op, as a factor of its time."""
        link = self._machine.host_link
        if not is_host_op(op) or link is None:
            return self._crowd
        return ranks_that_share(link, lane(op), self._placement)

    def ring_link(self, grid: Grid, axis: Axis, size: int = 1) -> AlphaBetaLink:
        """The latency and bandwidth of a step of `size` bytes in all rings along an axis at once."""
        link = self.hops.axis_link(grid, axis, 1, size)
        return replace(link, bandwidth=self._rings.get((grid.stride(axis), grid.length(axis)), link.bandwidth))

    def groups(self, grid: Grid, axis: Axis) -> Ints:
        """The endpoints of the groups of an axis, of all blocks or of the block [groups, members]."""
        return self._placement.of_rank[self.hops.groups(grid, axis)]

    def _memory(self, operation: str, size: int) -> float:
        return self._memory_crowd * self._compute.memory(operation, size).seconds

    def _communication(
        self, op: CommunicationOp, schedule: Schedule, coordinates: Coordinates, roots: dict[str, int]
    ) -> float:
        """The time of one instance of an op [s].

        Parameters
        ----------
        roots : root of the previous instance of each op, by the op's name; updated
        """
        if isinstance(op, Shift):
            return self._shift(op, schedule, coordinates)
        op_traffic = traffic(op, schedule, coordinates, self._choices)
        root_traffic = op_traffic if op_traffic is None else replace(op_traffic, member=op_traffic.root)
        copied = local_copies(
            op, schedule, coordinates, root_traffic if isinstance(op, Broadcast | Reduce) else op_traffic
        )
        seconds = self._memory("copy", copied.before) + self._memory("copy", copied.after)
        if op_traffic is None:
            return seconds
        is_filled = op.name in roots and (isinstance(op, Broadcast) or roots[op.name] == op_traffic.root)
        roots[op.name] = op_traffic.root
        seconds += self._machine.device.overhead_seconds
        if self._at_once and op_traffic.lowered.at_once and (size := _largest_shard(op_traffic)):
            if isinstance(op, AllToAll) and _is_uneven(op, schedule):
                return seconds + self._uneven_seconds(op, schedule, coordinates, op_traffic)
            return seconds + self.hops.all_pairs_link(schedule.grid, op.axis, size).seconds(size)
        return seconds + self._steps(op, op_traffic, schedule.grid, is_filled=is_filled)

    def _uneven_seconds(self, op: AllToAll, schedule: Schedule, coordinates: Coordinates, op_traffic: Traffic) -> float:
        """The time of an all-to-all with unequal pieces, by NCCL's model [s]."""
        key = (op.axis, op_traffic.item_bytes, op_traffic.edges, op_traffic.receive_edges)
        if key not in self._pairs:
            self._pairs[key] = tuple(self._sent(op, schedule, coordinates))
        pairs = self._pairs[key]

        def longest(hops: AxisHopCosts) -> float:
            groups = hops.groups(schedule.grid, op.axis)
            return float(self._nccl.seconds(op, coordinates, groups, busiest_bytes(pairs), pairs).max())

        if key not in self._uneven_by_place and (places := self.hops.by_place()):
            self._uneven_by_place[key] = tuple(float(f"{longest(hops):.9e}") for hops in places)
        return longest(self.hops)

    def _sent(self, op: AllToAll, schedule: Schedule, coordinates: Coordinates) -> Iterator[tuple[float, ...]]:
        """Yields what each member of a group sends to each [B]."""
        for member in range(schedule.grid.length(op.axis)):
            op_traffic = traffic(op, schedule, coordinates.at(op.axis, member), self._choices)
            assert op_traffic is not None
            edges = [op_traffic.item_bytes * edge for edge in op_traffic.edges]
            yield tuple(float(stop - start) for start, stop in pairwise(edges))

    def _steps(self, op: CommunicationOp, op_traffic: Traffic, grid: Grid, *, is_filled: bool) -> float:
        """The time of the steps of a communication op [s]: by its formula, or step by step if it has no formula.

        Parameters
        ----------
        is_filled : whether the chain of a pipelined op is still filled from the previous instance
        """
        members, algorithm = grid.length(op.axis), op_traffic.lowered.algorithm
        shard_bytes = _largest_shard(op_traffic)
        if algorithm not in ("ring", "pipelined"):
            return self._by_steps(op, op_traffic, grid)
        link = self.ring_link(grid, op.axis, shard_bytes)
        chunks = op_traffic.lowered.pieces
        match op:
            case AllGather():
                return alpha_beta.ring_all_gather(members, shard_bytes, link)
            case ReduceScatter():
                return alpha_beta.ring_reduce_scatter(members, shard_bytes, self._reducing(link, shard_bytes))
            case AllReduce():
                summed = alpha_beta.ring_reduce_scatter(members, shard_bytes, self._reducing(link, shard_bytes))
                return summed + alpha_beta.ring_all_gather(members, shard_bytes, link)
            case Broadcast():
                length = 2 if is_filled else members
                return alpha_beta.pipelined_broadcast(length, chunks * shard_bytes, link, chunks=chunks)
            case Reduce():
                length = 2 if is_filled else members
                return alpha_beta.pipelined_reduce(
                    length, chunks * shard_bytes, self._reducing(link, shard_bytes), chunks=chunks
                )
            case AllToAll() | Barrier() | Send() | Receive() | Shift():
                return self._by_steps(op, op_traffic, grid)

    def _by_steps(self, op: CommunicationOp, op_traffic: Traffic, grid: Grid) -> float:
        """The sum over the steps of the time of the slowest member [s]: α + n / β of its hop and its size."""
        total = 0.0
        for index in range(op_traffic.lowered.steps):
            steps = [op_traffic.lowered.step(member, index) for member in range(grid.length(op.axis))]
            peers = tuple(member if step.send_to is None else step.send_to for member, step in enumerate(steps))
            sent = (ranges(step.send, op_traffic.edges) for step in steps)
            size = op_traffic.item_bytes * max(sum(stop - start for start, stop in run) for run in sent)
            link = self.hops.step_link(grid, op.axis, peers, size)
            reduces = any(step.reduce for step in steps)
            total += (self._reducing(link, size) if reduces else link).seconds(size)
        return total

    def _reducing(self, link: AlphaBetaLink, size: int) -> AlphaBetaLink:
        """The cost of a step that includes the addition of the received bytes."""
        if not size:
            return link
        return AlphaBetaLink(link.latency, 1 / (1 / link.bandwidth + self._memory("add", size) / size))

    def _shift(self, op: Shift, schedule: Schedule, coordinates: Coordinates) -> float:
        """Time of the slowest rank's shift [s]; the distance may depend on the rank."""
        size = schedule.tensors[op.source].block(coordinates).elements * schedule.item_bytes(op.source)
        link = self.hops.shift_link(op, schedule.grid, coordinates, max(1, size))
        if link.bandwidth == inf:
            return self._memory("copy", size)
        return self._machine.device.overhead_seconds + link.seconds(size)


def _is_uneven(op: AllToAll, schedule: Schedule) -> bool:
    """Whether an all-to-all carries rows to or from experts with unequal loads."""
    return any(schedule.tensors[name].rows.loads for name in (op.source, op.into))


def _largest_shard(op_traffic: Traffic) -> int:
    """The size of the largest shard that a rank sends or receives [B]."""
    return op_traffic.item_bytes * max((stop - start for start, stop in _shard_ranges(op_traffic)), default=0)


def _shard_ranges(op_traffic: Traffic) -> Iterator[tuple[int, int]]:
    for edges in (op_traffic.edges, op_traffic.receive_edges):
        yield from pairwise(edges)
