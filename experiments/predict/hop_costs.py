"""The latency and bandwidth of a hop (one step along an axis of the grid), computed from the machine's links.

All groups of the axis take the step at once, and the step takes as long as the slowest
of their hops:

    t = α + max over the links of the route of (bytes that cross the link / its bandwidth)

The bandwidth β of an axis is that of the link between two GPUs if its groups are inside
a node.  Otherwise P neighbouring rings share the node's injection bandwidth.  With the
NICs of a node joined in one link, β = B_inter / min(G_node, P): this rule of AxoNN's
authors follows from the formula.

Source of the rule for nodes: Singh et al., "A 4D hybrid algorithm to scale
parallel training to thousands of GPUs", arXiv 2305.13525, section on the
communication model.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from math import inf

import numpy as np

from quadrille.algorithms.analysis.alpha_beta import AlphaBetaLink
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Shift
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.ranks.resource_demands import ResourceDemands, TransferDemand
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats, Ints

ALL_PAIRS = "all pairs"
DATA_AXES = ("data", "replica")
"""Axes whose groups communicate outside the passes of a pipeline, or in all passes of a stage alike."""
Hop = tuple[int, int]
"""Sending and receiving rank."""
NO_HOP = AlphaBetaLink(latency=0.0, bandwidth=inf)


class AxisHopCosts:
    """The latency and bandwidth of the slowest hop of a step between the ranks of a machine; results are cached.

    Parameters
    ----------
    stages : number of pipeline stages, each of which has as many ranks in a row
    blocks : number of blocks of each stage, each with as many ranks in a row; only groups over data cross blocks
    """

    def __init__(
        self,
        machine: Machine,
        ranks: int,
        placement: RankPlacement,
        resource_demands: ResourceDemands,
        engine: FlowEngine,
        stages: int = 1,
        blocks: int = 1,
    ) -> None:
        self._ranks = ranks
        self._stages, self._blocks, self._places = stages, blocks, stages * blocks
        self._place = None if self._places > 1 else 0
        self._homes = placement
        self._wiring = resource_demands
        self._engine = engine
        self._routes = routes_of(machine, placement.net)
        parts = (machine.host, machine.network)
        self._linear = not any(part.transfer for part in parts if part is not None)
        self._links: dict[tuple[object, ...], tuple[AlphaBetaLink, ...]] = {}

    def at_place(self, place: int) -> "AxisHopCosts":
        """The hop costs of a block of a stage, while all ranks send; without it those of the slowest block.

        Parameters
        ----------
        place : number of the block among those of all stages
        """
        hops = copy(self)
        hops._place = place
        return hops

    def equal_places(self, further: Iterable[Sequence[float]] = ()) -> list[int]:
        """The first block with the same costs as each block, in all steps that were asked for.

        Parameters
        ----------
        further : costs of further communication, each by block
        """
        firsts: dict[tuple[object, ...], int] = {}
        compared: list[Sequence[object]] = [*self._links.values(), *further]
        costs = zip(*compared, strict=True) if compared else ((),) * self._places
        return [firsts.setdefault(of_place, place) for place, of_place in enumerate(costs)]

    def by_place(self) -> list["AxisHopCosts"]:
        """The hop costs of each block; empty if these are the costs of one block."""
        return [] if self._place is not None else [self.at_place(place) for place in range(self._places)]

    def _of_place(self, links: Sequence[AlphaBetaLink], size: int) -> AlphaBetaLink:
        """The cost of the block, or of the slowest block."""
        return _slower(links, size) if self._place is None else links[self._place]

    def _all_blocks(self, axis: Axis, links: tuple[AlphaBetaLink, ...], size: int) -> tuple[AlphaBetaLink, ...]:
        """The costs by block of steps along an axis; groups over data have members in all blocks of a stage."""
        if self._blocks == 1 or axis not in DATA_AXES:
            return links
        firsts = range(0, self._places, self._blocks)
        return tuple(
            slowest
            for slowest in (_slower(links[first : first + self._blocks], size) for first in firsts)
            for _ in range(self._blocks)
        )

    def axis_link(self, grid: Grid, axis: Axis, distance: int = 1, size: int = 1) -> AlphaBetaLink:
        """The hop cost of a step in which every rank sends `size` bytes to the rank `distance` further along the axis.

        Raises
        ------
        InputError : more ranks than the machine has GPUs
        """
        length = grid.length(axis)
        return self.step_link(grid, axis, tuple((coordinate + distance) % length for coordinate in range(length)), size)

    def step_link(self, grid: Grid, axis: Axis, peers: tuple[int, ...], size: int) -> AlphaBetaLink:
        """The hop cost of a step of `size` bytes in all groups of the axis; member i sends to member `peers[i]`."""
        length, stride = grid.length(axis), grid.stride(axis)
        size = 1 if self._linear else max(1, size)
        key = (peers, stride, size)
        if key not in self._links:
            coordinates = [rank // stride % length for rank in range(self._ranks)]
            hops = [
                (rank, rank + (peers[coordinate] - coordinate) * stride) for rank, coordinate in enumerate(coordinates)
            ]
            exchange = all(peers[peer] == coordinate for coordinate, peer in enumerate(peers))
            links = self._slowest(hops, size, "exchange" if exchange else "shift")
            self._links[key] = self._all_blocks(axis, links, size)
        return self._of_place(self._links[key], size)

    def all_pairs_link(self, grid: Grid, axis: Axis, size: int) -> AlphaBetaLink:
        """The hop cost if every member of all groups of the axis sends `size` bytes to every other, all at once."""
        length, stride = grid.length(axis), grid.stride(axis)
        size = 1 if self._linear else max(1, size)
        key = (ALL_PAIRS, length, stride, size)
        if key not in self._links:
            ranks = np.arange(self._ranks)
            first = ranks - ranks // stride % length * stride
            targets = first[:, None] + np.arange(length) * stride
            hops = np.stack([np.repeat(ranks, length), targets.ravel()], axis=1)
            self._links[key] = self._all_blocks(axis, self._slowest(hops, size, "exchange"), size)
        return self._of_place(self._links[key], size)

    def groups(self, grid: Grid, axis: Axis) -> Ints:
        """The ranks of the groups of an axis, of all blocks, or of those in the block [groups, members]."""
        length, stride = grid.length(axis), grid.stride(axis)
        ranks = np.arange(self._ranks)
        is_first = ranks // stride % length == 0
        if self._place is not None:
            blocks = self._blocks if axis in DATA_AXES else 1
            is_first &= ranks // (self._ranks * blocks // self._places) == self._place // blocks
        return np.asarray(ranks[is_first][:, None] + np.arange(length) * stride)

    def _slowest(self, hops: Sequence[Hop] | Ints, size: int, pattern: str) -> tuple[AlphaBetaLink, ...]:
        """The slowest of these hops if all of them send `size` bytes at once, by block."""
        pairs = np.array(hops, dtype=np.int64).reshape(-1, 2)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        if not len(pairs):
            return (NO_HOP,) * self._places
        if self._linear and not self._homes.shared:
            latency, seconds = self._route_times(pairs, size)
        else:
            latency, seconds = self._transfer_times(pairs, size, pattern)
        order = np.argsort(pairs[:, 0], kind="stable")
        ends = np.searchsorted(pairs[order, 0], np.arange(1, self._places) * (self._ranks // self._places))
        links = []
        for of_place in np.split(order, ends):
            if not len(of_place):
                links.append(NO_HOP)
                continue
            slowest = of_place[np.argmax(latency[of_place] + seconds[of_place])]
            bandwidth = size / float(seconds[slowest]) if seconds[slowest] else inf
            links.append(AlphaBetaLink(float(latency[slowest]), bandwidth))
        return tuple(links)

    def _transfer_times(self, pairs: Ints, size: int, pattern: str) -> tuple[Floats, Floats]:
        """Latency and time of transfers that start at once, by what they demand of hosts and links [s]."""
        transfers = [self._wiring.transfer(source, target, size, pattern) for source, target in pairs.tolist()]
        loads: dict[int, float] = defaultdict(float)
        for cost in transfers:
            for resource, demand in cost.demands.items():
                loads[resource] += demand * cost.work

        def transfer_seconds(cost: TransferDemand) -> float:
            busiest = max(
                (loads[resource] / self._engine.resource_capacity(resource) for resource in cost.demands), default=0.0
            )
            return max(busiest, cost.work / cost.cap)

        return np.array([cost.latency for cost in transfers]), np.array(list(map(transfer_seconds, transfers)))

    def _route_times(self, pairs: Ints, size: int) -> tuple[Floats, Floats]:
        """`_transfer_times` of transfers that only use links of the network, with all routes computed together."""
        paths, capacities = self._routes.between(*self._homes.of_rank[pairs].T), self._homes.net.bandwidths
        loads = np.bincount(paths.links, weights=size * paths.shares, minlength=len(capacities))
        return paths.latency, np.maximum.reduceat(loads[paths.links] / capacities[paths.links], paths.offsets[:-1])

    def shift_link(self, op: Shift, grid: Grid, coordinates: Coordinates, size: int) -> AlphaBetaLink:
        """The cost of the slowest hop of a shift; infinite bandwidth if no rank sends to another rank."""
        if isinstance(op.distance, int):
            return self.axis_link(grid, op.axis, op.distance, size)
        length, stride = grid.length(op.axis), grid.stride(op.axis)
        hops = []
        for rank in range(self._ranks):
            distance = evaluate(op.distance, replace(coordinates, along=grid.coordinates(rank)))
            hops.append((rank, _along(rank, distance, length, stride)))
        return self._of_place(self._all_blocks(op.axis, self._slowest(hops, size, "shift"), size), size)


def _slower(links: Sequence[AlphaBetaLink], size: int) -> AlphaBetaLink:
    """The link over which so many bytes take longest."""
    return max(links, key=lambda link: link.seconds(size))


def _along(rank: int, distance: int, length: int, stride: int) -> int:
    """The rank `distance` positions further along a cyclic group of `length` ranks with stride `stride`.

    >>> [_along(rank, 1, 2, 3) for rank in range(6)]
    [3, 4, 5, 0, 1, 2]
    """
    coordinate = rank // stride % length
    return rank + ((coordinate + distance) % length - coordinate) * stride
