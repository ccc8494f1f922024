"""Closed-form seconds of a schedule on a machine: what all grids are ranked by before a few are simulated.

The ops of one rank, one after the other: products and other local work at the
simulator's own prices (`simulator.local_work`), collectives by the alpha-beta formulas of
`algorithms.costs.alpha_beta`.  What one step along an axis costs is read off the machine's
links.  All groups of the axis take the step at once, and

    t = α + max over the links of the route of (bytes that cross the link / its bandwidth)

of the slowest of their hops.  The bandwidth β of an axis is thus that of the
link between two GPUs where its groups stay inside a node.  Where they leave it,
P neighbouring rings share the node's injection bandwidth: with the NICs of a
node joined in one link, β = B_inter / min(G_node, P), the rule of AxoNN's
authors, which here follows and is not put in.

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

Source of the rule for nodes: Singh et al., "A 4D hybrid algorithm to scale
parallel training to thousands of GPUs", arXiv 2305.13525, section on the
communication model.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import numpy as np
import simpy

from algorithms.collectives.choices import Choices
from algorithms.copies import copies
from algorithms.costs import alpha_beta
from algorithms.costs.alpha_beta import Link
from algorithms.formats.machine import Machine
from algorithms.grid import Axis, Grid
from algorithms.numbers import number
from algorithms.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Communication,
    CommunicationOp,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
)
from algorithms.parts import Place
from algorithms.schedule import Schedule, walk
from algorithms.tensors import DType
from algorithms.traffic import Traffic, ranges, traffic
from simulator.compute import ComputeModel
from simulator.duties import Duties
from simulator.engine import FlowEngine
from simulator.homes import homes_of
from simulator.local_work import estimated
from simulator.machine_network import routes_of
from simulator.wiring import Cost, Wiring
from topologies.network import Ints

Hop = tuple[int, int]
"""A sending and a receiving rank."""


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
    """

    def __init__(
        self, machine: Machine, dtype: DType, ranks: int, choices: Choices, threads: int | None = None
    ) -> None:
        self._machine = machine
        self._ranks = ranks
        self._choices = choices
        self._engine = FlowEngine(simpy.Environment())
        self._homes = homes_of(machine, ranks)
        self._routes = routes_of(machine, self._homes.net)
        self._wiring = Wiring(machine, ranks, self._engine, homes=self._homes)
        cores = self._wiring.cores_of(self._wiring.home(0))
        neighbours = self._wiring.neighbours(0)
        wanted = threads or self._wiring.threads(0)
        self._compute = ComputeModel(machine, dtype, wanted, min(neighbours, cores))
        self._crowd = max(1.0, neighbours * min(wanted, cores) / cores)
        self._memory_crowd = max(1.0, neighbours / cores)
        parts = (machine.host, machine.network)
        self._linear = not any(part.transfer for part in parts if part is not None)
        self._links: dict[tuple[tuple[int, ...], int, int], Link] = {}

    def closed_form(self, schedule: Schedule) -> ClosedForm:
        """Seconds of rank 0, whose blocks are the largest, through its program."""
        compute = communication = 0.0
        start, duties = schedule.place(0), Duties(schedule, self._choices)
        overhead = self._machine.device.overhead_seconds
        roots: dict[str, int] = {}
        for op, place in walk(schedule.program(start), start):
            if isinstance(op, Communication):
                communication += self._communication(op, schedule, place, roots)
            else:
                seconds, _, _ = estimated(self._compute, op, duties.local(op, place), overhead)
                compute += self._crowd * seconds
        return ClosedForm(compute, communication)

    def axis_link(self, grid: Grid, axis: Axis, distance: int = 1, size: int = 1) -> Link:
        """One step of `size` bytes from every rank to the one `distance` on along the axis, all at once.

        Raises
        ------
        InputError : more ranks than the machine has GPUs
        """
        length = grid.length(axis)
        return self._step_link(grid, axis, tuple((one + distance) % length for one in range(length)), size)

    def _step_link(self, grid: Grid, axis: Axis, peers: tuple[int, ...], size: int) -> Link:
        """One step of `size` bytes in every group of the axis, in which member i sends to member `peers[i]`."""
        length, stride = grid.length(axis), grid.stride(axis)
        size = 1 if self._linear else max(1, size)
        key = (peers, stride, size)
        if key not in self._links:
            coordinates = [rank // stride % length for rank in range(self._ranks)]
            hops = [(rank, rank + (peers[one] - one) * stride) for rank, one in enumerate(coordinates)]
            exchange = all(peers[peer] == one for one, peer in enumerate(peers))
            self._links[key] = self._slowest(hops, size, "exchange" if exchange else "shift")
        return self._links[key]

    def _slowest(self, hops: Sequence[Hop], size: int, pattern: str) -> Link:
        """The slowest of these hops while all of them send `size` bytes at once."""
        if self._linear and not self._homes.shared:
            return self._slowest_route(np.array(hops).reshape(-1, 2), size)
        transfers = [self._wiring.transfer(one, other, size, pattern) for one, other in hops if one != other]
        loads: dict[int, float] = defaultdict(float)
        for cost in transfers:
            for resource, demand in cost.demands.items():
                loads[resource] += demand * cost.work

        def moving(cost: Cost) -> float:
            busiest = max((loads[one] / self._engine.resource_capacity(one) for one in cost.demands), default=0.0)
            return max(busiest, cost.work / cost.cap)

        if not transfers:
            return Link(latency=0.0, bandwidth=inf)
        latency, seconds = max(((cost.latency, moving(cost)) for cost in transfers), key=sum)
        return Link(latency, size / seconds if seconds else inf)

    def _slowest_route(self, hops: Ints, size: int) -> Link:
        """The same where every hop goes over links and nothing else: all routes at once."""
        places = self._homes.of_rank[hops[hops[:, 0] != hops[:, 1]]]
        if not len(places):
            return Link(latency=0.0, bandwidth=inf)
        paths, capacities = self._routes.between(*places.T), self._homes.net.bandwidths
        loads = np.bincount(paths.links, weights=size * paths.shares, minlength=len(capacities))
        moving = np.maximum.reduceat(loads[paths.links] / capacities[paths.links], paths.offsets[:-1])
        slowest = int(np.argmax(paths.latency + moving))
        return Link(float(paths.latency[slowest]), size / float(moving[slowest]))

    def _memory(self, operation: str, size: int) -> float:
        return self._memory_crowd * self._compute.memory(operation, size).seconds

    def _communication(self, op: CommunicationOp, schedule: Schedule, place: Place, roots: dict[str, int]) -> float:
        """Seconds of one instance of an op; `roots` are those of the instances before, by name."""
        if isinstance(op, Shift):
            return self._shift(op, schedule, place)
        moved = traffic(op, schedule, place, self._choices)
        at_root = moved if moved is None else replace(moved, member=moved.root)
        copied = copies(op, schedule, place, at_root if isinstance(op, Broadcast | Reduce) else moved)
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
        link = self.axis_link(grid, op.axis, 1, piece)
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
            link = self._step_link(grid, op.axis, peers, size)
            reduces = any(step.reduce for step in steps)
            total += (self._reducing(link, size) if reduces else link).seconds(size)
        return total

    def _reducing(self, link: Link, size: int) -> Link:
        """The link with the addition of what has arrived as a part of every step."""
        if not size:
            return link
        return Link(link.latency, 1 / (1 / link.bandwidth + self._memory("add", size) / size))

    def _shift(self, op: Shift, schedule: Schedule, place: Place) -> float:
        """Seconds of the slowest rank's shift, whose distance may depend on the rank."""
        size = schedule.tensors[op.source].block(place).elements * schedule.item_bytes(op.source)
        link = self._shift_link(op, schedule.grid, place, max(1, size))
        if link.bandwidth == inf:
            return self._memory("copy", size)
        return self._machine.device.overhead_seconds + link.seconds(size)

    def _shift_link(self, op: Shift, grid: Grid, place: Place, size: int) -> Link:
        """The slowest hop of a shift; of infinite bandwidth where no rank sends to another."""
        if isinstance(op.distance, int):
            return self.axis_link(grid, op.axis, op.distance, size)
        length, stride = grid.length(op.axis), grid.stride(op.axis)
        hops = []
        for rank in range(self._ranks):
            distance = number(op.distance, replace(place, coordinates=grid.coordinates(rank)))
            hops.append((rank, _along(rank, distance, length, stride)))
        return self._slowest(hops, size, "shift")


def _along(rank: int, distance: int, length: int, stride: int) -> int:
    """The rank `distance` on around the group of `length` ranks, `stride` apart.

    >>> [_along(rank, 1, 2, 3) for rank in range(6)]
    [3, 4, 5, 0, 1, 2]
    """
    coordinate = rank // stride % length
    return rank + ((coordinate + distance) % length - coordinate) * stride


def _pieces(moved: Traffic) -> Iterator[tuple[int, int]]:
    for edges in (moved.edges, moved.receive_edges):
        yield from pairwise(edges)
