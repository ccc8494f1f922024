"""What transfers and local work take, of many ranks at once: the same prices as `wiring.py` and `local_work/`."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.formats.machine import Machine
from algorithms.ops import Compute
from algorithms.tensors import DType
from simulator.duties import LocalSizes
from simulator.folding.labels import Ints
from simulator.homes import Homes
from simulator.interpolation import SecondsBySize
from simulator.local_work.compute_model import ComputeModel, Estimate
from simulator.local_work.costs import estimated
from simulator.steady.distinct import distinct
from simulator.steady.rate_bounds import HIGH, LOW, TYPICAL, Channels, Local
from simulator.wiring import SAME_PLACE_TOUCHES, curve_of
from topologies.network import Floats

PATTERNS = ("one_way", "exchange", "shift")
Curve = tuple[SecondsBySize, int] | None


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


class Costs:
    """Prices on a machine.

    Parameters
    ----------
    threads : BLAS threads of each rank, by default its share of the host's cores
    """

    def __init__(
        self, machine: Machine, homes: Homes, dtype: DType, threads: int | None, channels: Channels, local: Local
    ) -> None:
        self._machine, self._homes = machine, homes
        self.channels, self.local = channels, local
        self._curves: dict[tuple[str, str, int], Curve] = {}
        self._models, self._model_of = _models(machine, homes, dtype, threads)
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
        """Between ranks of one place; work in seconds, which neighbours slow."""
        senders = self.channels.sender[channel[these]]
        for curve, which in self._by_curve("host", pattern[these], senders):
            chosen, ranks = these[which], senders[which]
            slowed = True
            if curve is None:
                bandwidth = self._machine.device.memory_bytes_per_second / SAME_PLACE_TOUCHES
                price.latency[chosen], price.alone[chosen] = (
                    self._machine.device.overhead_seconds,
                    size[chosen] / bandwidth,
                )
            else:
                price.latency[chosen] = curve[0].least
                price.alone[chosen] = np.maximum(0.0, _seconds(curve[0], size[chosen]) - curve[0].least)
                slowed = curve[1] <= self._homes.cores(self._homes.place(int(ranks[0])))
            price.moving[LOW, chosen] = price.alone[chosen]
            price.moving[TYPICAL, chosen] = price.alone[chosen] / (self.local.moving[ranks] if slowed else 1.0)
            price.moving[HIGH, chosen] = price.alone[chosen] / (self.local.least[ranks] if slowed else 1.0)
        return self._beyond("host", pattern[these], senders, size[these])

    def _across(self, price: Price, channel: Ints, size: Floats, pattern: Ints, typical: Floats, these: Ints) -> bool:
        senders = self.channels.sender[channel[these]]
        for curve, which in self._by_curve("network", pattern[these], senders):
            chosen = these[which]
            rates = np.stack(
                [self.channels.most[channel[chosen]], typical[chosen], self.channels.least[channel[chosen]]]
            )
            if curve is None:
                price.latency[chosen] = self.channels.paths.latency[channel[chosen]]
                price.moving[:, chosen] = size[chosen] / rates
            else:
                price.latency[chosen] = curve[0].least
                beyond = np.maximum(0.0, _seconds(curve[0], size[chosen]) - curve[0].least)
                price.moving[:, chosen] = np.maximum(beyond, size[chosen] / rates)
            price.alone[chosen] = price.moving[LOW, chosen]
        return self._beyond("network", pattern[these], senders, size[these])

    def _beyond(self, where: str, pattern: Ints, senders: Ints, size: Floats) -> bool:
        """Whether a transfer is larger than what was measured."""
        largest = ((curve, size[which].max()) for curve, which in self._by_curve(where, pattern, senders))
        return any(curve is not None and not curve[0].covers(float(most)) for curve, most in largest)

    def _by_curve(self, where: str, pattern: Ints, senders: Ints) -> Iterator[tuple[Curve, Ints]]:
        """The measured curves that transfers follow, and which of them do."""
        part = self._machine.host if where == "host" else self._machine.network
        if part is None or not part.transfer:
            yield None, np.arange(len(senders))
            return
        crowd = self._homes_crowd[senders] if where == "host" else np.zeros(len(senders), dtype=np.int64)
        for key in np.unique(crowd * len(PATTERNS) + pattern).tolist():
            which = np.flatnonzero(crowd * len(PATTERNS) + pattern == key)
            yield self._curve(where, PATTERNS[key % len(PATTERNS)], int(senders[which[0]])), which

    @property
    def _homes_crowd(self) -> Ints:
        return np.bincount(self._homes.of_rank)[self._homes.of_rank]

    def _curve(self, where: str, pattern: str, rank: int) -> Curve:
        within, homes = where == "host", self._homes
        most = homes.cores(homes.place(rank)) if within else homes.net.place_count
        taking_part = homes.neighbours(rank) if within else homes.used_places
        key = (where, pattern, taking_part)
        if key not in self._curves:
            part = self._machine.host if within else self._machine.network
            self._curves[key] = curve_of(part.transfer if part is not None else (), pattern, taking_part, most)
        return self._curves[key]


def _seconds(curve: SecondsBySize, size: Floats) -> Floats:
    sizes, which = distinct(size)
    return np.array([curve.seconds(one) for one in sizes.tolist()])[which]


def _models(
    machine: Machine, homes: Homes, dtype: DType, threads: int | None
) -> tuple[list[ComputeModel], NDArray[np.int64]]:
    """A model for each kind of rank (threads, busy neighbours, speed), and that of each rank."""
    columns = homes.columns()
    cores, neighbours = columns["cores"], columns["ranks that share its place"]
    own = np.full(len(cores), float(threads)) if threads else np.maximum(1, cores // neighbours)
    kinds, which = np.unique(
        np.stack([own, np.minimum(neighbours, cores), columns["speed"]]), axis=1, return_inverse=True
    )
    models = [ComputeModel(machine, dtype, int(one), int(busy), speed) for one, busy, speed in kinds.T.tolist()]
    return models, which.ravel()
