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
from collections.abc import Sequence
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
from quadrille.topologies.network import Ints

ALL_PAIRS = "all pairs"
Hop = tuple[int, int]
"""Sending and receiving rank."""


class AxisHopCosts:
    """The latency and bandwidth of the slowest hop of a step between the ranks of a machine; results are cached."""

    def __init__(
        self,
        machine: Machine,
        ranks: int,
        placement: RankPlacement,
        resource_demands: ResourceDemands,
        engine: FlowEngine,
    ) -> None:
        self._ranks = ranks
        self._homes = placement
        self._wiring = resource_demands
        self._engine = engine
        self._routes = routes_of(machine, placement.net)
        parts = (machine.host, machine.network)
        self._linear = not any(part.transfer for part in parts if part is not None)
        self._links: dict[tuple[object, ...], AlphaBetaLink] = {}

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
            self._links[key] = self._slowest(hops, size, "exchange" if exchange else "shift")
        return self._links[key]

    def all_pairs_link(self, grid: Grid, axis: Axis, size: int) -> AlphaBetaLink:
        """The hop cost if every member of all groups of the axis sends `size` bytes to every other, all at once."""
        length, stride = grid.length(axis), grid.stride(axis)
        size = 1 if self._linear else max(1, size)
        key = (ALL_PAIRS, length, stride, size)
        if key not in self._links:
            ranks = range(self._ranks)
            first = [rank - rank // stride % length * stride for rank in ranks]
            hops = [(rank, first[rank] + member * stride) for rank in ranks for member in range(length)]
            self._links[key] = self._slowest([(a, b) for a, b in hops if a != b], size, "exchange")
        return self._links[key]

    def _slowest(self, hops: Sequence[Hop], size: int, pattern: str) -> AlphaBetaLink:
        """The slowest of these hops if all of them send `size` bytes at once."""
        if self._linear and not self._homes.shared:
            return self._slowest_route(np.array(hops).reshape(-1, 2), size)
        transfers = [
            self._wiring.transfer(source, destination, size, pattern)
            for source, destination in hops
            if source != destination
        ]
        loads: dict[int, float] = defaultdict(float)
        for cost in transfers:
            for resource, demand in cost.demands.items():
                loads[resource] += demand * cost.work

        def transfer_seconds(cost: TransferDemand) -> float:
            busiest = max(
                (loads[resource] / self._engine.resource_capacity(resource) for resource in cost.demands), default=0.0
            )
            return max(busiest, cost.work / cost.cap)

        if not transfers:
            return AlphaBetaLink(latency=0.0, bandwidth=inf)
        latency, seconds = max(((cost.latency, transfer_seconds(cost)) for cost in transfers), key=sum)
        return AlphaBetaLink(latency, size / seconds if seconds else inf)

    def _slowest_route(self, hops: Ints, size: int) -> AlphaBetaLink:
        """`_slowest` for hops that only use links of the network, with all routes computed together."""
        endpoint_pairs = self._homes.of_rank[hops[hops[:, 0] != hops[:, 1]]]
        if not len(endpoint_pairs):
            return AlphaBetaLink(latency=0.0, bandwidth=inf)
        paths, capacities = self._routes.between(*endpoint_pairs.T), self._homes.net.bandwidths
        loads = np.bincount(paths.links, weights=size * paths.shares, minlength=len(capacities))
        transfer_seconds = np.maximum.reduceat(loads[paths.links] / capacities[paths.links], paths.offsets[:-1])
        slowest = int(np.argmax(paths.latency + transfer_seconds))
        return AlphaBetaLink(float(paths.latency[slowest]), size / float(transfer_seconds[slowest]))

    def shift_link(self, op: Shift, grid: Grid, coordinates: Coordinates, size: int) -> AlphaBetaLink:
        """The cost of the slowest hop of a shift; infinite bandwidth if no rank sends to another rank."""
        if isinstance(op.distance, int):
            return self.axis_link(grid, op.axis, op.distance, size)
        length, stride = grid.length(op.axis), grid.stride(op.axis)
        hops = []
        for rank in range(self._ranks):
            distance = evaluate(op.distance, replace(coordinates, along=grid.coordinates(rank)))
            hops.append((rank, _along(rank, distance, length, stride)))
        return self._slowest(hops, size, "shift")


def _along(rank: int, distance: int, length: int, stride: int) -> int:
    """The rank `distance` positions further along a cyclic group of `length` ranks with stride `stride`.

    >>> [_along(rank, 1, 2, 3) for rank in range(6)]
    [3, 4, 5, 0, 1, 2]
    """
    coordinate = rank // stride % length
    return rank + ((coordinate + distance) % length - coordinate) * stride
