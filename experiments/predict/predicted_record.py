"""`predicted_record` makes the record of a prediction: the volumes of its schedule, and the predicted times."""

from collections.abc import Sequence
from typing import Any

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.formats.record import OpRecord, Provenance, Record, Reference, Simulation
from quadrille.experiments.predict.prepared import Prepared
from quadrille.experiments.records.path_segments import path_segments
from quadrille.experiments.records.record_entries import machine_entry, op_entry, volume_fields, workload_fields
from quadrille.experiments.workloads.fullest_device import FullestDevice
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.simulator.prediction import Prediction
from quadrille.topologies.machines.machine import Machine

NCCL_ALONE = (
    "collectives take what NCCL's model says of all groups of an op at once, from when the last member has come; ops "
    "of different axes do not slow each other at bound_low_seconds, and those that may be under way together go one "
    "after the other at bound_high_seconds: an estimate, not proven; bytes sent are those of rings"
)
STEADY_RATES = (
    "every transfer of a collective keeps one rate, that of all its groups at once; the exact simulation, in which "
    "rates change whenever a transfer begins or ends, lies between bound_low_seconds (every transfer alone) and "
    "bound_high_seconds (every transfer beside all that may be under way with it): proven, not estimated"
)


def predicted_record(
    prepared: Prepared,
    prediction: Prediction,
    *,
    provenance: Provenance,
    backend: str = "numpy",
    even_within: float | None = None,
) -> Record:
    """The record of a prediction; its low and high seconds are the 90 % interval, around the bounds if it is not exact.

    Parameters
    ----------
    backend : backend of the runs with which the prediction is compared; a prediction has no arrays
    even_within : largest relative error of the makespan because all shards have the mean size; None for exact shards
    """
    experiment, machine, schedule = prepared.experiment, prepared.machine, prepared.schedule
    makespan = prediction.timeline.makespan
    least, most = (makespan, makespan) if prediction.bound is None else (prediction.bound.low, prediction.bound.high)
    amounts = volumes(schedule, experiment.execution.choices)
    low, high = prediction.uncertainty.around(least, most)
    ops = tuple(op_entry(times, experiment, amounts, prediction) for times in prediction.op_times().values())
    return Record(
        kind="predicted",
        **workload_fields(experiment, prepared.threads),
        **volume_fields(experiment, amounts),
        backend=backend,
        machine=machine_entry(machine, experiment.execution.placement),
        seconds=makespan,
        seconds_low=low,
        seconds_high=high,
        ops=ops,
        links=prediction.links,
        critical_path=path_segments(prediction.timeline, prediction.parts_of),
        simulation=_simulation(prediction, even_within),
        reference=_calibrated(machine, experiment.grid.size, prepared.device),
        provenance=provenance,
        **_training_figures(prepared, makespan, ops),
    )


def _training_figures(prepared: Prepared, seconds: float, ops: Sequence[OpRecord]) -> dict[str, Any]:
    """Fields of the record that only training has."""
    if isinstance(prepared.experiment, MatmulExperiment):
        return {}
    from quadrille.experiments.workloads.training_figures import RunTimes, training_fields

    times = RunTimes(seconds, ops, prepared.machine, device=prepared.device)
    return training_fields(prepared.experiment, prepared.schedule, times)


def _simulation(prediction: Prediction, even_within: float | None) -> Simulation:
    extent, bound = prediction.extent, prediction.bound
    return Simulation(
        folded=extent.folded,
        not_folded_reason=extent.not_folded_reason,
        rank_classes=extent.rank_classes,
        flow_classes=extent.flow_classes,
        link_classes=extent.link_classes,
        events=extent.events,
        iterations_skipped=extent.iterations_skipped,
        shards="exact" if even_within is None else "even",
        shards_bound=even_within or 0.0,
        granularity="exact" if bound is None else "collective",
        bound_low_seconds=None if bound is None else bound.low,
        bound_high_seconds=None if bound is None else bound.high,
        bound_proven=bound is not None and bound.proven,
        approximation="" if bound is None else STEADY_RATES if bound.proven else NCCL_ALONE,
    )


def _calibrated(machine: Machine, ranks: int, device: FullestDevice) -> Reference | None:
    """The times of the reference kernels during the machine's calibration; None if they cannot be compared with a run.

    They cannot be compared if the ranks of a device outnumber its cores, because time-shared
    kernels show no drift, or if the calibration did not time as many ranks at once as the run
    has.  If hosts share cores, one rank for each core times the kernels, whatever the number
    of ranks.
    """
    kernels = machine.reference if ranks > 1 else machine.reference_alone or machine.reference
    sharing = machine.emulated.shared_cores
    timing = min(device.ranks, device.cores) if sharing else device.ranks
    calibrated = max((row.busy_ranks for row in machine.device.gemm), default=timing)
    if kernels is None or timing > device.cores or (ranks > 1 and timing != calibrated):
        return None
    seconds = (kernels.gemm_seconds,), (kernels.copy_seconds,), (kernels.add_seconds,)
    return Reference(*seconds, concurrent_ranks=timing if sharing else 0)
