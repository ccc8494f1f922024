"""What one step along an axis costs, read off the machine's links.

All groups of the axis take the step at once, and

    t = α + max over the links of the route of (bytes that cross the link / its bandwidth)

of the slowest of their hops.  The bandwidth β of an axis is thus that of the
link between two GPUs where its groups stay inside a node.  Where they leave it,
P neighbouring rings share the node's injection bandwidth: with the NICs of a
node joined in one link, β = B_inter / min(G_node, P), the rule of AxoNN's
authors, which here follows and is not put in.

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

Hop = tuple[int, int]
"""A sending and a receiving rank."""


class AxisHopCosts:
    """The slowest hop of a step between the ranks of a machine; it remembers what was asked before."""

    def __init__(
        self, machine: Machine, ranks: int, placement: RankPlacement, wiring: ResourceDemands, engine: FlowEngine
    ) -> None:
        self._ranks = ranks
        self._homes = placement
        self._wiring = wiring
        self._engine = engine
        self._routes = routes_of(machine, placement.net)
        parts = (machine.host, machine.network)
        self._linear = not any(part.transfer for part in parts if part is not None)
        self._links: dict[tuple[tuple[int, ...], int, int], AlphaBetaLink] = {}

    def axis_link(self, grid: Grid, axis: Axis, distance: int = 1, size: int = 1) -> AlphaBetaLink:
        """One step of `size` bytes from every rank to the one `distance` on along the axis, all at once.

        Raises
        ------
        InputError : more ranks than the machine has GPUs
        """
        length = grid.length(axis)
        return self.step_link(grid, axis, tuple((one + distance) % length for one in range(length)), size)

    def step_link(self, grid: Grid, axis: Axis, peers: tuple[int, ...], size: int) -> AlphaBetaLink:
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

    def _slowest(self, hops: Sequence[Hop], size: int, pattern: str) -> AlphaBetaLink:
        """The slowest of these hops while all of them send `size` bytes at once."""
        if self._linear and not self._homes.shared:
            return self._slowest_route(np.array(hops).reshape(-1, 2), size)
        transfers = [self._wiring.transfer(one, other, size, pattern) for one, other in hops if one != other]
        loads: dict[int, float] = defaultdict(float)
        for cost in transfers:
            for resource, demand in cost.demands.items():
                loads[resource] += demand * cost.work

        def moving(cost: TransferDemand) -> float:
            busiest = max((loads[one] / self._engine.resource_capacity(one) for one in cost.demands), default=0.0)
            return max(busiest, cost.work / cost.cap)

        if not transfers:
            return AlphaBetaLink(latency=0.0, bandwidth=inf)
        latency, seconds = max(((cost.latency, moving(cost)) for cost in transfers), key=sum)
        return AlphaBetaLink(latency, size / seconds if seconds else inf)

    def _slowest_route(self, hops: Ints, size: int) -> AlphaBetaLink:
        """The same where every hop goes over links and nothing else: all routes at once."""
        places = self._homes.of_rank[hops[hops[:, 0] != hops[:, 1]]]
        if not len(places):
            return AlphaBetaLink(latency=0.0, bandwidth=inf)
        paths, capacities = self._routes.between(*places.T), self._homes.net.bandwidths
        loads = np.bincount(paths.links, weights=size * paths.shares, minlength=len(capacities))
        moving = np.maximum.reduceat(loads[paths.links] / capacities[paths.links], paths.offsets[:-1])
        slowest = int(np.argmax(paths.latency + moving))
        return AlphaBetaLink(float(paths.latency[slowest]), size / float(moving[slowest]))

    def shift_link(self, op: Shift, grid: Grid, place: Coordinates, size: int) -> AlphaBetaLink:
        """The slowest hop of a shift; of infinite bandwidth where no rank sends to another."""
        if isinstance(op.distance, int):
            return self.axis_link(grid, op.axis, op.distance, size)
        length, stride = grid.length(op.axis), grid.stride(op.axis)
        hops = []
        for rank in range(self._ranks):
            distance = evaluate(op.distance, replace(place, along=grid.coordinates(rank)))
            hops.append((rank, _along(rank, distance, length, stride)))
        return self._slowest(hops, size, "shift")


def _along(rank: int, distance: int, length: int, stride: int) -> int:
    """The rank `distance` on around the group of `length` ranks, `stride` apart.

    >>> [_along(rank, 1, 2, 3) for rank in range(6)]
    [3, 4, 5, 0, 1, 2]
    """
    coordinate = rank // stride % length
    return rank + ((coordinate + distance) % length - coordinate) * stride
