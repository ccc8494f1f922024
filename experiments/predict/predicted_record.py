"""`predicted_record`: the record of a prediction, with the volumes of the schedule and the predicted times."""

from collections.abc import Sequence
from typing import Any

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.formats.record import OpRecord, Provenance, Record, Reference, Simulation
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.experiments.records.path_segments import path_segments
from quadrille.experiments.records.record_entries import machine_entry, op_entry, volume_fields, workload_fields
from quadrille.experiments.workloads.fullest_device import FullestDevice
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.simulator.prediction import Prediction
from quadrille.topologies.machines.machine import Machine

NCCL_APPROXIMATION = (
    "collectives take the time of NCCL's model for all groups of an op at once, from the arrival of the last member; "
    "at bound_low_seconds ops of different axes do not slow each other, and at bound_high_seconds ops that may overlap "
    "run one after the other: an estimate, not proven; bytes sent are those of rings"
)
CONSTANT_RATES_APPROXIMATION = (
    "every transfer of a collective keeps one rate, that of all its groups at once; the exact simulation, in which "
    "rates change whenever a transfer begins or ends, lies between bound_low_seconds (every transfer alone) and "
    "bound_high_seconds (every transfer beside all transfers that may overlap it): proven, not estimated"
)
PASSES_APPROXIMATION = (
    "each stage runs one pass of each kind in a simulation; all passes of a stage take the time of that pass, messages "
    "between stages the time of one message, and the rule of the pipeline decides their order in virtual time; passes "
    "of different stages do not slow each other"
)


def predicted_record(
    prepared: PreparedExperiment,
    prediction: Prediction,
    *,
    provenance: Provenance,
    backend: str = "numpy",
    even_within: float | None = None,
) -> Record:
    """The record of a prediction; its low and high seconds are the 90 % interval, around the bounds if it is not exact.

    Parameters
    ----------
    prepared : experiment with its schedule and rank placement
    prediction : simulated times
    provenance : command, commit and versions
    backend : backend of the runs with which the prediction is compared; a prediction has no arrays
    even_within : largest relative error of the makespan because all shards have the mean size; None for exact shards
    """
    experiment, machine, schedule = prepared.experiment, prepared.machine, prepared.schedule
    makespan = prediction.timeline.makespan
    schedule_volumes = volumes(schedule, experiment.execution.choices)
    low, high = prediction.interval
    ops = tuple(op_entry(times, experiment, schedule_volumes, prediction) for times in prediction.op_times().values())
    return Record(
        kind="predicted",
        **workload_fields(experiment, prepared.threads),
        **volume_fields(experiment, schedule_volumes),
        backend=backend,
        machine=machine_entry(machine, experiment.execution.placement),
        seconds=makespan,
        seconds_low=low,
        seconds_high=high,
        ops=ops,
        links=prediction.links,
        critical_path=path_segments(prediction.timeline, prediction.parts_of),
        simulation=_simulation(prediction, even_within),
        reference=_reference_of_calibration(machine, experiment.grid.size, prepared.device),
        provenance=provenance,
        **_training_fields(prepared, makespan, ops, prediction),
    )


def _training_fields(
    prepared: PreparedExperiment, seconds: float, ops: Sequence[OpRecord], prediction: Prediction
) -> dict[str, Any]:
    """The fields that only records of training have; empty for a matmul."""
    if isinstance(prepared.experiment, MatmulExperiment):
        return {}
    from quadrille.experiments.workloads.training_figures import RunTimes, training_fields

    times = RunTimes(
        seconds,
        ops,
        prepared.machine,
        prepared.threads,
        device=prepared.device,
        timeline=prediction.timeline,
        pass_orders=prediction.pass_orders,
    )
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
        granularity=prediction.granularity,
        bound_low_seconds=None if bound is None else bound.low,
        bound_high_seconds=None if bound is None else bound.high,
        bound_proven=bound is not None and bound.proven,
        approximation=_approximation(prediction),
    )


def _approximation(prediction: Prediction) -> str:
    """What was simplified, in words; empty for an exact simulation."""
    if prediction.granularity == "passes":
        return PASSES_APPROXIMATION
    if prediction.bound is None:
        return ""
    return CONSTANT_RATES_APPROXIMATION if prediction.bound.proven else NCCL_APPROXIMATION


def _reference_of_calibration(machine: Machine, ranks: int, device: FullestDevice) -> Reference | None:
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
