"""`LocalWork`: seconds, threads and memory bandwidth of compute ops, copies and additions on each rank."""

from dataclasses import dataclass
from typing import NamedTuple

from quadrille.algorithms.analysis.coordinate_dependence import Kind
from quadrille.algorithms.analysis.op_plans import LocalSizes, OpPlans
from quadrille.algorithms.schedule.ops import Compute, Gemm, Kernel, Pointwise, is_host_op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.tensors import DType
from quadrille.simulator.machine.compute_model import ComputeModel, Estimate, touched
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.topologies.machines.machine import Machine


class NoiseFactors(NamedTuple):
    """Factors on the seconds of local work and of transfers of an op instance."""

    local: float = 1.0
    transfer: float = 1.0


NO_NOISE = NoiseFactors()
MAX_CACHED = 1 << 16
"""Largest number of cached costs."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """The cost of local work of a rank on an otherwise idle host.

    Parameters
    ----------
    extrapolated : whether the work is larger than what was measured
    threads : cores that the work uses
    bytes_per_second : memory that the work reads and writes [B/s]
    """

    seconds: float
    extrapolated: bool
    threads: float
    bytes_per_second: float

    def times(self, factor: float) -> "HostWork":
        """The same work in `factor` times the seconds.

        >>> HostWork(2.0, False, 1.0, 8e9).times(1.25)
        HostWork(seconds=2.5, extrapolated=False, threads=1.0, bytes_per_second=6400000000.0)
        """
        if factor == 1.0:
            return self
        return HostWork(self.seconds * factor, self.extrapolated, self.threads, self.bytes_per_second / factor)


class LocalWork:
    """Costs of the local work of all ranks.

    Parameters
    ----------
    threads : BLAS threads of each rank, by default its share of the host's cores
    """

    def __init__(
        self,
        machine: Machine,
        dtype: DType,
        op_plans: OpPlans,
        demands: ResourceDemands,
        threads: int | None,
    ) -> None:
        self._machine, self._dtype, self._threads = machine, dtype, threads
        self._op_plans, self._demands = op_plans, demands
        self._models: dict[tuple[int, int, float], ComputeModel] = {}
        self._rank_models: dict[int, ComputeModel] = {}
        self._ops: dict[tuple[int, int, Kind], tuple[float, bool, float]] = {}

    def model(self, rank: int) -> ComputeModel:
        """Compute model of a rank, shared by ranks with as many neighbours and threads and the same speed."""
        if rank not in self._rank_models:
            demands = self._demands
            busy = min(demands.sharing(rank), demands.cores_of(demands.endpoint(rank)))
            key = (self._threads or demands.threads(rank), busy, demands.speed(rank))
            if key not in self._models:
                threads, busy, speed = key
                self._models[key] = ComputeModel(self._machine, self._dtype, threads, busy, speed)
            self._rank_models[rank] = self._models[key]
        return self._rank_models[rank]

    def of_op(self, rank: int, op: Compute, coordinates: Coordinates) -> HostWork:
        """Work of an op of the compute lane."""
        model = self.model(rank)
        key = (id(model), id(op), self._op_plans.kind(op, coordinates))
        cost = self._ops.get(key)
        if cost is None:
            if len(self._ops) >= MAX_CACHED:
                self._ops.clear()
            sizes = self._op_plans.local(op, coordinates)
            cost = self._ops[key] = estimate_op(model, op, sizes, self._machine.device.pointwise_overhead)
        seconds, extrapolated, rate = cost
        cores = self._demands.cores_of(self._demands.endpoint(rank))
        threads = min(self._threads or self._demands.threads(rank), cores)
        return HostWork(seconds, extrapolated, float(threads), rate)

    def of_bytes(self, rank: int, operation: str, size: int) -> HostWork:
        """Work of a copy or an addition within a communication op, on one core."""
        model = self.model(rank)
        cost = model.memory(operation, size)
        extrapolated = cost.extrapolated and model.measured(operation)
        rate = touched(operation, size) / cost.seconds
        return HostWork(cost.seconds, extrapolated, 1.0, rate)


def estimate_op(
    model: ComputeModel, op: Compute, sizes: LocalSizes, overhead_seconds: float
) -> tuple[float, bool, float]:
    """Seconds of an op of the compute lane, whether they are extrapolated, and memory traffic [B/s].

    Parameters
    ----------
    overhead_seconds : time to start a fill, copy or sum [s]
    """
    if is_host_op(op) and model.host_link is not None:
        from quadrille.simulator.ranks.host_links import host_seconds

        return host_seconds(op, sizes, model.host_link), False, 0.0
    if isinstance(op, Gemm):
        assert sizes.product is not None
        estimates = [
            model.expert_products(sizes.expert_rows, sizes.product, op.layout, sizes.expert, op.precision)
            if op.counts
            else model.gemm(*sizes.product, op.layout, op.precision)
        ]
        if op.accumulate:
            estimates.append(model.memory("add", sizes.written))
    elif isinstance(op, Kernel):
        assert sizes.work is not None
        estimates = [model.kernel(sizes.work, op.function)]
    else:
        function = op.function if isinstance(op, Pointwise) else "copy"
        beyond_call = max(0.0, overhead_seconds - model.call_seconds(function))
        estimates = [model.memory(function, sizes.written), Estimate(beyond_call, False)]
    seconds = sum(estimate.seconds for estimate in estimates)
    rate = sizes.touched / seconds if seconds else 0.0
    return seconds, any(estimate.extrapolated for estimate in estimates), rate
