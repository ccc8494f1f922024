"""`CostModel`: seconds of transfers and local work for arrays of ranks, with lower and upper bounds.

The exact simulator computes one transfer at a time (`machine/seconds_by_size.py`,
`ranks/local_work.py`); the costs here are the same numbers for arrays of ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.equality_labels import Ints, distinct_values
from quadrille.algorithms.analysis.op_plans import LocalSizes
from quadrille.algorithms.schedule.ops import Compute
from quadrille.algorithms.schedule.tensors import DType
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL, RatedChannels
from quadrille.simulator.bounds.concurrency import Concurrency
from quadrille.simulator.machine.compute_model import ComputeModel, Estimate
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.machine.seconds_by_size import TransferSeconds, TransferTable
from quadrille.simulator.ranks.local_work import estimate_op
from quadrille.topologies.machines.machine import HostLink, Machine
from quadrille.topologies.network import Floats


@dataclass(frozen=True, slots=True, eq=False)
class LocalRates:
    """Rates of local work of each rank; a rank alone on its cores has rate 1.

    Parameters
    ----------
    least : lowest rate
    computing, moving : typical rates while all ranks of the endpoint compute, or all are in a collective
    alone : whether the rank has its endpoint to itself and every op uses all of it
    """

    least: Floats
    computing: Floats
    moving: Floats
    alone: NDArray[np.bool_]

    def columns(self) -> tuple[NDArray[Any], ...]:
        """All rates, and whether each rank is alone."""
        return self.least, self.computing, self.moving, self.alone


def local_rates(placement: RankPlacement, threads: int | None, concurrency: Concurrency) -> LocalRates:
    """Rates of local work, which shares the cores and the memory bandwidth of an endpoint with the other ranks there.

    No activity demands more memory bandwidth than there is, so each of n
    activities gets at least a part of 1/n.
    """
    ranks = len(placement.of_rank)
    endpoints = placement.of_rank
    cores = np.array([placement.cores(endpoint) for endpoint in range(1)]) if not ranks else _cores(placement)
    neighbours = np.bincount(endpoints)[endpoints].astype(np.float64)
    threads_of_rank = np.minimum(threads or np.maximum(1, cores // neighbours), cores).astype(np.float64)
    demanded = np.zeros(ranks)
    for lanes in concurrency.sets:
        np.maximum(demanded, len(lanes - {"compute"}) + threads_of_rank * ("compute" in lanes), out=demanded)
    least = np.minimum(1.0, cores / np.bincount(endpoints, demanded)[endpoints])
    host = placement.machine.host
    if host is not None and host.memory_bytes_per_second is not None:
        least = np.minimum(least, 1 / (neighbours * max(map(len, concurrency.sets))))
    return LocalRates(
        least,
        np.minimum(1.0, cores / (neighbours * threads_of_rank)),
        np.minimum(1.0, cores / neighbours),
        (neighbours == 1) & (threads_of_rank == cores) & (host is None),
    )


def _cores(placement: RankPlacement) -> Floats:
    """Cores of the endpoint of each rank; a GPU counts as one."""
    if placement.net.endpoints[0] == "gpu":
        return np.ones(len(placement.of_rank))
    kinds = {endpoint: float(placement.cores(endpoint)) for endpoint in np.unique(placement.of_rank).tolist()}
    return np.array([kinds[endpoint] for endpoint in placement.of_rank.tolist()])


PATTERNS = ("one_way", "exchange", "shift")
"""The sender of a message receives nothing in the same step, receives from its receiver, or from another member."""


@dataclass(frozen=True, slots=True, eq=False)
class TransferCosts:
    """The seconds of many transfers.

    Parameters
    ----------
    latency : time before bytes move [s]
    moving : time in which bytes move, in the rows LOW, TYPICAL and HIGH [3, transfers] [s]
    alone : time in which bytes move if nothing else is in progress [s]
    """

    latency: Floats
    moving: Floats
    alone: Floats
    extrapolated: bool


class CostModel:
    """The costs of transfers and local work on a machine.

    Parameters
    ----------
    threads : BLAS threads of each rank; by default the rank's share of its host's cores
    """

    def __init__(
        self,
        machine: Machine,
        placement: RankPlacement,
        dtype: DType,
        threads: int | None,
        channels: RatedChannels,
        local: LocalRates,
    ) -> None:
        self._machine, self._placement = machine, placement
        self.channels, self.local = channels, local
        self._table = TransferTable(machine, placement)
        self._neighbours = placement.columns()["ranks that share its place"].astype(np.int64)
        self._models, self._model_of = _models(machine, placement, dtype, threads)
        self._memory: dict[tuple[str, float, int], Estimate] = {}

    # Local work

    def computing(self, op: Compute, sizes: LocalSizes, model: int) -> Estimate:
        """Seconds of an op of the compute lane by one compute model, with the cores to itself."""
        seconds, extrapolated, _ = estimate_op(self._models[model], op, sizes, self._machine.device.pointwise_overhead)
        return Estimate(seconds, extrapolated)

    def ranks_on_host(self, link: HostLink, lane_name: str) -> int:
        """Ranks that share a host link, or the memory of a host for lane `host`, at most."""
        from quadrille.simulator.ranks.host_links import ranks_that_share

        return ranks_that_share(link, lane_name, self._placement)

    def models(self, ranks: Ints) -> Ints:
        """The index of the compute model of each of these ranks."""
        return self._model_of[ranks]

    def memory(self, operation: str, size: Floats, ranks: Ints) -> tuple[Floats, bool]:
        """Seconds of copies or additions of `size` bytes on each rank, and whether any is extrapolated."""
        if not size.any():
            return np.zeros(len(size)), False
        sizes, of_size = distinct_values(size)
        models, of_model = distinct_values(self._model_of[ranks])
        pairs, which = distinct_values(of_size * len(models) + of_model)
        kinds = [divmod(pair, len(models)) for pair in pairs.tolist()]
        estimates = [self._one_memory(operation, float(sizes[at]), int(models[model])) for at, model in kinds]
        seconds = np.array([estimate.seconds for estimate in estimates])[which]
        measured = self._models[0].measured(operation)
        return seconds, measured and any(estimate.extrapolated for estimate in estimates)

    def _one_memory(self, operation: str, size: float, model: int) -> Estimate:
        """Seconds of one copy or addition, cached."""
        key = operation, size, model
        if key not in self._memory:
            rounded = int(size) if size == int(size) else size
            self._memory[key] = self._models[model].memory(operation, rounded)
        return self._memory[key]

    # Transfers

    def transfer(self, channel: Ints, size: Floats, pattern: Ints, typical: Floats) -> TransferCosts:
        """The seconds of transfers of `size` bytes on these channels.

        Parameters
        ----------
        channel, size : channel and bytes of each transfer
        pattern : pattern of each transfer, an index into `PATTERNS`
        typical : typical rates [B/s]
        """
        channels, count = self.channels, len(channel)
        costs = TransferCosts(np.zeros(count), np.zeros((3, count)), np.zeros(count), False)
        extrapolated = False
        within = channels.within[channel]
        if within.any():
            extrapolated |= self._within(costs, channel, size, pattern, np.flatnonzero(within))
        if not within.all():
            extrapolated |= self._across(costs, channel, size, pattern, typical, np.flatnonzero(~within))
        return TransferCosts(costs.latency, costs.moving, costs.alone, extrapolated)

    def _within(self, costs: TransferCosts, channel: Ints, size: Floats, pattern: Ints, transfers: Ints) -> bool:
        """Fills in transfers between ranks of one endpoint, which share cores; returns whether any is extrapolated."""
        senders = self.channels.sender[channel[transfers]]
        extrapolated = False
        for kind, members in _kinds(self._neighbours[senders] * len(PATTERNS) + pattern[transfers]):
            chosen, ranks = transfers[members], senders[members]
            seconds = self._table.within(PATTERNS[kind % len(PATTERNS)], int(ranks[0]))
            costs.latency[chosen] = seconds.latency
            costs.alone[chosen] = _moving(seconds, size[chosen])
            typical, least = (self.local.moving[ranks], self.local.least[ranks]) if seconds.takes_a_core else (1.0, 1.0)
            costs.moving[LOW, chosen] = costs.alone[chosen]
            costs.moving[TYPICAL, chosen] = costs.alone[chosen] / typical
            costs.moving[HIGH, chosen] = costs.alone[chosen] / least
            extrapolated |= not seconds.covers(float(size[chosen].max()))
        return extrapolated

    def _across(
        self, costs: TransferCosts, channel: Ints, size: Floats, pattern: Ints, typical: Floats, transfers: Ints
    ) -> bool:
        """Fills in transfers between endpoints, which share links; returns whether any is extrapolated."""
        extrapolated = False
        for kind, members in _kinds(pattern[transfers]):
            chosen = transfers[members]
            seconds, channels = self._table.across(PATTERNS[kind]), channel[chosen]
            costs.latency[chosen] = self.channels.paths.latency[channels] if seconds.by_route else seconds.latency
            rates = np.stack([self.channels.most[channels], typical[chosen], self.channels.least[channels]])
            costs.moving[:, chosen] = np.maximum(_moving(seconds, size[chosen]), size[chosen] / rates)
            costs.alone[chosen] = costs.moving[LOW, chosen]
            extrapolated |= not seconds.covers(float(size[chosen].max()))
        return extrapolated


def _kinds(kinds: Ints) -> Iterator[tuple[int, Ints]]:
    """Each value that occurs, and the indices at which it occurs."""
    values, of_element = distinct_values(kinds)
    for number, kind in enumerate(values.tolist()):
        yield kind, np.flatnonzero(of_element == number)


def _moving(seconds: TransferSeconds, size: Floats) -> Floats:
    """Seconds of many transfers after their latency."""
    if seconds.measured is None:
        return size / seconds.bandwidth
    sizes, which = distinct_values(size)
    return np.array([seconds.moving(size_of_kind) for size_of_kind in sizes.tolist()])[which]


def _models(
    machine: Machine, placement: RankPlacement, dtype: DType, threads: int | None
) -> tuple[list[ComputeModel], NDArray[np.int64]]:
    """A compute model for each kind of rank (threads, busy neighbours, speed), and the kind of each rank."""
    columns = placement.columns()
    cores, neighbours = columns["cores"], columns["ranks that share its place"]
    own = np.full(len(cores), float(threads)) if threads else np.maximum(1, cores // neighbours)
    kinds, which = np.unique(
        np.stack([own, np.minimum(neighbours, cores), columns["speed"]]), axis=1, return_inverse=True
    )
    models = [
        ComputeModel(machine, dtype, int(own_threads), int(busy), speed)
        for own_threads, busy, speed in kinds.T.tolist()
    ]
    return models, which.ravel()


def message_patterns(sender: Ints, receiver: Ints, members: int) -> Ints:
    """The pattern of each message of a step, an index into `PATTERNS`.

    >>> message_patterns(np.array([0, 1, 2]), np.array([1, 0, 3]), 4).tolist()
    [1, 1, 0]
    """
    source = np.full(members, -1)
    source[receiver] = sender
    back = source[sender]
    return np.where(back < 0, 0, np.where(back == receiver, 1, 2))
