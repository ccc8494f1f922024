"""What the ranks' own work takes: seconds, threads and memory bandwidth."""

from dataclasses import dataclass

from quadrille.algorithms.analysis.coordinate_dependence import Kind
from quadrille.algorithms.analysis.op_plans import LocalSizes, OpPlans
from quadrille.algorithms.schedule.ops import Compute, Gemm, Kernel, Pointwise
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.tensors import DType
from quadrille.simulator.machine.compute_model import ComputeModel, Estimate, touched
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.topologies.machines.machine import Machine

KEPT = 1 << 16
"""Kinds of work whose seconds are kept."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """Local work: `seconds` of so many threads that touch so much memory, where nothing else is under way."""

    seconds: float
    extrapolated: bool
    threads: float
    bytes_per_second: float


class LocalWork:
    """The local work of the ranks of a run.

    Parameters
    ----------
    threads : BLAS threads of each rank, by default its share of the host's cores
    """

    def __init__(
        self,
        machine: Machine,
        dtype: DType,
        op_plans: OpPlans,
        wiring: ResourceDemands,
        threads: int | None,
    ) -> None:
        self._machine, self._dtype, self._threads = machine, dtype, threads
        self._duties, self._wiring = op_plans, wiring
        self._models: dict[tuple[int, int, float], ComputeModel] = {}
        self._of_rank: dict[int, ComputeModel] = {}
        self._ops: dict[tuple[int, int, Kind], tuple[float, bool, float]] = {}

    def model(self, rank: int) -> ComputeModel:
        """The compute model of a rank: ranks with as many neighbours and threads, and of one speed, share one."""
        if rank not in self._of_rank:
            wiring = self._wiring
            busy = min(wiring.sharing(rank), wiring.cores_of(wiring.home(rank)))
            key = (self._threads or wiring.threads(rank), busy, wiring.speed(rank))
            if key not in self._models:
                threads, busy, speed = key
                self._models[key] = ComputeModel(self._machine, self._dtype, threads, busy, speed)
            self._of_rank[rank] = self._models[key]
        return self._of_rank[rank]

    def of_op(self, rank: int, op: Compute, place: Coordinates) -> HostWork:
        """An op of the compute lane."""
        model = self.model(rank)
        key = (id(model), id(op), self._duties.kind(op, place))
        found = self._ops.get(key)
        if found is None:
            if len(self._ops) >= KEPT:
                self._ops.clear()
            sizes = self._duties.local(op, place)
            found = self._ops[key] = estimated(model, op, sizes, self._machine.device.overhead_seconds)
        seconds, extrapolated, rate = found
        cores = self._wiring.cores_of(self._wiring.home(rank))
        threads = min(self._threads or self._wiring.threads(rank), cores)
        return HostWork(seconds, extrapolated, float(threads), rate)

    def of_bytes(self, rank: int, operation: str, size: int) -> HostWork:
        """A copy or an addition within a communication op, on one core."""
        model = self.model(rank)
        found = model.memory(operation, size)
        extrapolated = found.extrapolated and model.measured(operation)
        rate = touched(operation, size) / found.seconds
        return HostWork(found.seconds, extrapolated, 1.0, rate)


def estimated(
    model: ComputeModel, op: Compute, sizes: LocalSizes, overhead_seconds: float
) -> tuple[float, bool, float]:
    """Seconds of an op of the compute lane, whether they are extrapolated, and the bytes of memory touched a second.

    Parameters
    ----------
    overhead_seconds : of work that is no product
    """
    if isinstance(op, Gemm):
        assert sizes.product is not None
        estimates = [model.gemm(*sizes.product, op.layout)]
        if op.accumulate:
            estimates.append(model.memory("add", sizes.written))
    elif isinstance(op, Kernel):
        assert sizes.work is not None
        estimates = [model.kernel(sizes.work, op.function)]
    else:
        function = op.function if isinstance(op, Pointwise) else "copy"
        estimates = [model.memory(function, sizes.written), Estimate(overhead_seconds, False)]
    seconds = sum(estimate.seconds for estimate in estimates)
    rate = sizes.touched / seconds if seconds else 0.0
    return seconds, any(estimate.extrapolated for estimate in estimates), rate
