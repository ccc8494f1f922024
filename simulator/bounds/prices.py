"""Between which two rates each transfer and each piece of local work runs, whatever else is under way.

Rates are max-min with equal weights: an activity that takes d_f of each unit of
a resource is held either by a cap of its own or by a *bottleneck*, a resource l
that is full and on which nobody runs at a higher rate.  There

    C_l = sum of d_j r_j <= r_f sum of d_j

over all j that use l at that moment, so

    r_f >= min over its resources of C_l / D_l,   D_l >= sum of d_j at any time.

D_l is counted from what ranks can do at once.  On one lane a rank sends one
message at a time and receives one.  So of the channels of a lane that leave it,
only the one that takes most of l counts; of lanes that are never busy together
(`concurrency.py`) only those that take most.  The same holds of the receivers, and
the smaller of the two counts.  The greatest rate is that of a transfer alone,
min C_l / d_f.

Between the two lies the *typical* rate: max-min of all transfers of one step of
all groups at once.  It is what a ring keeps to where all its members move on
together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints, distinct
from quadrille.algorithms.analysis.op_plans import LocalSizes
from quadrille.algorithms.schedule.ops import Compute
from quadrille.algorithms.schedule.tensors import DType
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL, RatedChannels
from quadrille.simulator.bounds.concurrency import Concurrency
from quadrille.simulator.machine.compute_model import ComputeModel, Estimate
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.machine.seconds_by_size import TransferSeconds, TransferTable
from quadrille.simulator.ranks.local_work import estimated
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats


@dataclass(frozen=True, slots=True, eq=False)
class LocalRates:
    """Rates of local work of each rank, by the cores of its place; alone it runs at 1.

    Parameters
    ----------
    least : never below
    computing, moving : typical ones, with all ranks of the place computing, or all in a collective
    alone : whether nobody else lives there and an op takes the whole of it
    """

    least: Floats
    computing: Floats
    moving: Floats
    alone: NDArray[np.bool_]


def local_rates(placement: RankPlacement, threads: int | None, busy: Concurrency) -> LocalRates:
    """Local work of a rank shares cores, and the bandwidth of the host's memory, with that of its neighbours.

    On memory no activity asks for more than there is, so each gets at least
    its part by number.
    """
    ranks = len(placement.of_rank)
    places = placement.of_rank
    cores = np.array([placement.cores(place) for place in range(1)]) if not ranks else _cores(placement)
    neighbours = np.bincount(places)[places].astype(np.float64)
    own = np.minimum(threads or np.maximum(1, cores // neighbours), cores).astype(np.float64)
    asked = np.zeros(ranks)
    for one in busy.sets:
        np.maximum(asked, len(one - {"compute"}) + own * ("compute" in one), out=asked)
    least = np.minimum(1.0, cores / np.bincount(places, asked)[places])
    host = placement.machine.host
    if host is not None and host.memory_bytes_per_second is not None:
        least = np.minimum(least, 1 / (neighbours * max(map(len, busy.sets))))
    return LocalRates(
        least,
        np.minimum(1.0, cores / (neighbours * own)),
        np.minimum(1.0, cores / neighbours),
        (neighbours == 1) & (own == cores) & (host is None),
    )


def _cores(placement: RankPlacement) -> Floats:
    if placement.net.places[0] == "gpu":
        return np.ones(len(placement.of_rank))
    kinds = {place: float(placement.cores(place)) for place in np.unique(placement.of_rank).tolist()}
    return np.array([kinds[place] for place in placement.of_rank.tolist()])


PATTERNS = ("one_way", "exchange", "shift")


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """Of many transfers.

    Parameters
    ----------
    latency : paid before bytes move [s]
    moving : then, in the rows LOW, TYPICAL and HIGH [3, transfers] [s]
    alone : with nothing else under way [s]
    """

    latency: Floats
    moving: Floats
    alone: Floats
    extrapolated: bool


class MachinePrices:
    """Prices on a machine.

    Parameters
    ----------
    threads : BLAS threads of each rank, by default its share of the host's cores
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
        """An op of the compute lane, by a model, with the cores to itself."""
        seconds, extrapolated, _ = estimated(self._models[model], op, sizes, self._machine.device.overhead_seconds)
        return Estimate(seconds, extrapolated)

    def models(self, ranks: Ints) -> Ints:
        """Which model each of these ranks computes by."""
        return self._model_of[ranks]

    def memory(self, operation: str, size: Floats, ranks: Ints) -> tuple[Floats, bool]:
        """Seconds of copies or additions of so many bytes, and whether one is extrapolated."""
        if not size.any():
            return np.zeros(len(size)), False
        sizes, of_size = distinct(size)
        models, of_model = distinct(self._model_of[ranks])
        pairs, which = distinct(of_size * len(models) + of_model)
        kinds = [divmod(pair, len(models)) for pair in pairs.tolist()]
        found = [self._one_memory(operation, float(sizes[at]), int(models[model])) for at, model in kinds]
        seconds = np.array([one.seconds for one in found])[which]
        measured = self._models[0].measured(operation)
        return seconds, measured and any(one.extrapolated for one in found)

    def _one_memory(self, operation: str, size: float, model: int) -> Estimate:
        key = operation, size, model
        if key not in self._memory:
            whole = int(size) if size == int(size) else size
            self._memory[key] = self._models[model].memory(operation, whole)
        return self._memory[key]

    # Transfers

    def transfer(self, channel: Ints, size: Floats, pattern: Ints, typical: Floats) -> Price:
        """Transfers of so many bytes on these channels.

        Parameters
        ----------
        pattern : of each, its place in `PATTERNS`
        typical : rates [B/s]
        """
        channels, count = self.channels, len(channel)
        price = Price(np.zeros(count), np.zeros((3, count)), np.zeros(count), False)
        extrapolated = False
        within = channels.within[channel]
        if within.any():
            extrapolated |= self._within(price, channel, size, pattern, np.flatnonzero(within))
        if not within.all():
            extrapolated |= self._across(price, channel, size, pattern, typical, np.flatnonzero(~within))
        return Price(price.latency, price.moving, price.alone, extrapolated)

    def _within(self, price: Price, channel: Ints, size: Floats, pattern: Ints, these: Ints) -> bool:
        """Between ranks of one place; work in seconds, which neighbours slow.  Whether one is extrapolated."""
        senders = self.channels.sender[channel[these]]
        extrapolated = False
        for kind, which in _kinds(self._neighbours[senders] * len(PATTERNS) + pattern[these]):
            chosen, ranks = these[which], senders[which]
            seconds = self._table.within(PATTERNS[kind % len(PATTERNS)], int(ranks[0]))
            price.latency[chosen] = seconds.latency
            price.alone[chosen] = _moving(seconds, size[chosen])
            typical, least = (self.local.moving[ranks], self.local.least[ranks]) if seconds.takes_a_core else (1.0, 1.0)
            price.moving[LOW, chosen] = price.alone[chosen]
            price.moving[TYPICAL, chosen] = price.alone[chosen] / typical
            price.moving[HIGH, chosen] = price.alone[chosen] / least
            extrapolated |= not seconds.covers(float(size[chosen].max()))
        return extrapolated

    def _across(self, price: Price, channel: Ints, size: Floats, pattern: Ints, typical: Floats, these: Ints) -> bool:
        """Between places, bound by the links.  Whether one is extrapolated."""
        extrapolated = False
        for kind, which in _kinds(pattern[these]):
            chosen = these[which]
            seconds, channels = self._table.across(PATTERNS[kind]), channel[chosen]
            price.latency[chosen] = self.channels.paths.latency[channels] if seconds.by_route else seconds.latency
            rates = np.stack([self.channels.most[channels], typical[chosen], self.channels.least[channels]])
            price.moving[:, chosen] = np.maximum(_moving(seconds, size[chosen]), size[chosen] / rates)
            price.alone[chosen] = price.moving[LOW, chosen]
            extrapolated |= not seconds.covers(float(size[chosen].max()))
        return extrapolated


def _kinds(kinds: Ints) -> Iterator[tuple[int, Ints]]:
    """Each kind that there is, and where."""
    found, which = distinct(kinds)
    for number, kind in enumerate(found.tolist()):
        yield kind, np.flatnonzero(which == number)


def _moving(seconds: TransferSeconds, size: Floats) -> Floats:
    """Seconds of many behind their latency."""
    if seconds.measured is None:
        return size / seconds.bandwidth
    sizes, which = distinct(size)
    return np.array([seconds.moving(one) for one in sizes.tolist()])[which]


def _models(
    machine: Machine, placement: RankPlacement, dtype: DType, threads: int | None
) -> tuple[list[ComputeModel], NDArray[np.int64]]:
    """A model for each kind of rank (threads, busy neighbours, speed), and that of each rank."""
    columns = placement.columns()
    cores, neighbours = columns["cores"], columns["ranks that share its place"]
    own = np.full(len(cores), float(threads)) if threads else np.maximum(1, cores // neighbours)
    kinds, which = np.unique(
        np.stack([own, np.minimum(neighbours, cores), columns["speed"]]), axis=1, return_inverse=True
    )
    models = [ComputeModel(machine, dtype, int(one), int(busy), speed) for one, busy, speed in kinds.T.tolist()]
    return models, which.ravel()
