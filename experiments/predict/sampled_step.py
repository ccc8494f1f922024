"""The time of a training step extrapolated from a sample: few layers and microbatches, by closed form or simulation.

The sample runs on the ranks of one pipeline stage.  Its ops are divided into parts (`step_parts.py`), and the parts
are combined in the order of the pipeline's slots (`pipeline_slots.py`).

Gathers over data that overlap passes (`opg`) run in one microbatch of a step.  While several ops communicate, a
simulation charges the exposed time to the first.  A sample has two microbatches, so what gathers over data take from
the communication of a microbatch would be extrapolated to all.  Therefore exposed times of ops of every microbatch
come from a sample without this overlap.  Ops that run once in a step have the rest of the time.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce

from quadrille.algorithms.passes.overlap import PRODUCT_OVERLAPS
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import HOST_LANES, Communication, Op, is_host_op, lane
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.vocabulary import TABLE
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.layer_extrapolation import extrapolated, periodic_layer_counts
from quadrille.experiments.predict.step_parts import (
    Loops,
    StepParts,
    last_sample,
    loops_by_op,
    sample_experiment,
    stage_message_seconds,
    step_parts,
)
from quadrille.experiments.predict.training_step import (
    SimulatedOps,
    TrainingStep,
    is_beside_compute,
    with_layers,
    without_rounding_error,
)
from quadrille.experiments.workloads.training import TrainingExperiment

COMPUTE, ALONE, OVERLAPPED = "compute", "communication", "overlapped communication"
SCHEDULES_KEPT = 4
"""Number of schedules of samples that are kept, for other stages and other bandwidths."""


@dataclass(frozen=True, slots=True)
class SampleCosts:
    """The closed-form times of a sample, which all orders of passes and all numbers of stages share.

    Parameters
    ----------
    local : parts of the step's local work
    communication, overlapped : parts of its communication, without and with overlap
    host : parts of the copies and work for the host: of each lane the total, of the lanes the longest
    table_gradient_bytes : size of a rank's gradient of the embedding table [B]
    """

    local: StepParts
    communication: StepParts
    overlapped: StepParts
    host: StepParts
    table_gradient_bytes: int

    @property
    def seconds(self) -> StepParts:
        """The parts of the step if local work hides as much of the overlapped communication as takes no longer."""
        return self.local.longer(self.overlapped) + self.communication + self.host

    @property
    def transfer(self) -> StepParts:
        """The parts of all communication and of the work for the host."""
        return self.communication + self.overlapped + self.host

    @property
    def hidden(self) -> StepParts:
        """The parts of the hidden communication."""
        return self.local.shorter(self.overlapped)


def sample_costs(sampled: TrainingExperiment, closed_form_model: ClosedFormModel) -> SampleCosts:
    """The closed-form times of a sample (`sample_experiment`)."""
    schedule = _sample_schedule(sampled)
    loops = schedule.cached(loops_by_op)
    costs: dict[str, list[tuple[Loops, float]]] = defaultdict(list)
    for op, _, seconds in closed_form_model.priced(schedule):
        costs[_cost_kind(op)].append((loops[op.name], seconds))
    local, communication, overlapped = (step_parts(costs[kind], sampled) for kind in (COMPUTE, ALONE, OVERLAPPED))
    host = reduce(StepParts.longer, (step_parts(costs[lane_name], sampled) for lane_name in HOST_LANES))
    return SampleCosts(local, communication, overlapped, host, _table_gradient_bytes(schedule))


@lru_cache(SCHEDULES_KEPT)
def _sample_schedule(sampled: TrainingExperiment) -> Schedule:
    return sampled.applied_schedule()


def _cost_kind(op: Op) -> str:
    """The kind of a cost: local work, communication without or with overlap, or the lane of work for the host."""
    if isinstance(op, Communication):
        return OVERLAPPED if op.concurrent else ALONE
    return lane(op) if is_host_op(op) else COMPUTE


def closed_form_step(
    experiment: TrainingExperiment,
    costs_of: Callable[[TrainingExperiment], SampleCosts],
    closed_form_model: ClosedFormModel,
    by_stage: Sequence[SampleCosts] = (),
) -> TrainingStep:
    """The training step from the closed form of its sample; overlapped communication takes no time beside local work.

    Parameters
    ----------
    experiment : step with its grid, scheme and microbatch
    costs_of : function that returns the `sample_costs` of a sample
    closed_form_model : alpha-beta model of the machine
    by_stage : costs of the sample on each stage; empty if they are equal
    """
    costs, smaller = costs_of(sample_experiment(experiment)), last_sample(experiment)
    last = None if smaller is None else costs_of(smaller)
    stages, (hop, last_hop) = experiment.stages, _stage_message_seconds(experiment, closed_form_model)
    seconds = costs.seconds.step(
        stages, hop, last.seconds if last else None, last_hop, [each.seconds for each in by_stage]
    ) + _table_gradient_seconds(experiment, costs.table_gradient_bytes, closed_form_model)
    compute = costs.local.reporting(stages, last.local if last else None)
    hidden = costs.hidden.reporting(stages, last.hidden if last else None)
    transfer = costs.transfer.reporting(stages, last.transfer if last else None) + stage_message_seconds(
        stages, hop, last_hop
    )
    return TrainingStep(
        seconds=seconds,
        compute=compute,
        transfer=transfer,
        hidden=hidden,
        waiting=without_rounding_error(seconds - compute - transfer + hidden, seconds),
        exposed_seconds_by_axis={},
    )


def closed_form_bound(experiment: TrainingExperiment, costs_of: Callable[[TrainingExperiment], SampleCosts]) -> float:
    """A lower bound of the time of `closed_form_step` [s], which walks through no pipeline; arguments as there."""
    costs = costs_of(sample_experiment(experiment))
    return costs.seconds.least(experiment.stages, smaller_last=experiment.microbatches.smaller_last)


def _stage_message_seconds(experiment: TrainingExperiment, closed_form_model: ClosedFormModel) -> tuple[float, float]:
    """The time of a message with a microbatch's activations from a stage to the next: usual, and of the last [s]."""
    if experiment.grid.pipeline == 1:
        return 0.0, 0.0
    parts = experiment.microbatches
    usual, last = (_hop_seconds(experiment, closed_form_model, sequences) for sequences in (parts.rows, parts.last))
    return usual, last


def _hop_seconds(experiment: TrainingExperiment, closed_form_model: ClosedFormModel, sequences: int) -> float:
    """The time of a message with the activations of some sequences from a stage to the next [s]."""
    problem, grid, stream = experiment.problem, experiment.grid, experiment.scheme.stream
    assert isinstance(problem, Gpt)
    elements = sequences * problem.sequence * problem.hidden
    for axis in (*stream.rows, *stream.finer, stream.columns):
        elements = -(-elements // grid.length(axis))
    size = elements * ITEM_BYTES[problem.dtype]
    return closed_form_model.hops.axis_link(grid, "pipeline", 1, size).seconds(size)


def _table_gradient_bytes(sampled: Schedule) -> int:
    """The size of a rank's gradient of the embedding table [B]."""
    gradient = f"d{TABLE}"
    return sampled.tensors[gradient].block(sampled.coordinates(0)).elements * sampled.item_bytes(gradient)


def _table_gradient_seconds(experiment: TrainingExperiment, size: int, closed_form_model: ClosedFormModel) -> float:
    """The time in which the first and the last stage exchange the gradients of a shared embedding table [s].

    Parameters
    ----------
    size : size of a rank's gradient [B]
    """
    assert isinstance(experiment.problem, Gpt)
    if experiment.grid.pipeline == 1 or not experiment.problem.architecture.shared_table:
        return 0.0
    return 2 * closed_form_model.hops.axis_link(
        experiment.grid, "pipeline", experiment.grid.pipeline - 1, size
    ).seconds(size)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample of an experiment and its simulation; times of ops are by name [s].

    Parameters
    ----------
    without_data : simulation without overlap of gathers over data; None if the sample has no such overlap
    """

    experiment: TrainingExperiment
    simulated: SimulatedOps
    without_data: SimulatedOps | None

    def local(self) -> dict[str, float]:
        """Times of the ops that compute."""
        return {op.name: op.seconds for op in self.simulated.every.ops if not is_beside_compute(op)}

    def communication(self) -> dict[str, float]:
        """Times of the ops that run beside computation."""
        return {op.name: op.seconds for op in self.simulated.every.ops if is_beside_compute(op)}

    def exposed(self, axis: Axis | None = None) -> dict[str, float]:
        """Exposed times of the ops that run beside computation: of all, or of those along an axis."""
        beside = [op for op in self.simulated.every.ops if is_beside_compute(op)]
        exposed = self._separated({op.name: op.exposed_seconds for op in beside})
        return {op.name: exposed[op.name] for op in beside if axis in (None, op.axis)}

    def _separated(self, exposed: dict[str, float]) -> dict[str, float]:
        """Exposed times whose ops of every microbatch are those without overlap of data; the total stays."""
        if self.without_data is None:
            return exposed
        loops = self.simulated.schedule.cached(loops_by_op)
        alone = {op.name: op.exposed_seconds for op in self.without_data.every.ops if is_beside_compute(op)}
        recurring = {name: alone.get(name, 0.0) for name in exposed if MICROBATCH in loops[name]}
        once = {name: seconds for name, seconds in exposed.items() if name not in recurring}
        rest = max(0.0, sum(exposed.values()) - sum(recurring.values()))
        factor = rest / sum(once.values()) if any(once.values()) else 0.0
        return recurring | {name: factor * seconds for name, seconds in once.items()}

    def charged(self) -> dict[str, float]:
        """Times of computation and exposed times, with the waiting of the sample spread over them."""
        charged = self.local() | self.exposed()
        waiting_factor = self.simulated.every.seconds / sum(charged.values())
        return {name: waiting_factor * seconds for name, seconds in charged.items()}

    def latency(self) -> dict[str, float]:
        """Latencies of the ops."""
        return dict(self.simulated.latency)

    def contention(self) -> dict[str, float]:
        """Times that communication loses to contention."""
        return {name: self.simulated.contention.get(name, 0.0) for name in self.communication()}

    def parts(self, seconds: Mapping[str, float]) -> StepParts:
        """The parts of a step from times of the sample's ops."""
        loops = self.simulated.schedule.cached(loops_by_op)
        return step_parts(((loops[name], each) for name, each in seconds.items()), self.experiment)


def sampled_step(
    experiment: TrainingExperiment,
    ops_of: Callable[[TrainingExperiment], SimulatedOps],
    closed_form_model: ClosedFormModel,
) -> TrainingStep:
    """The training step from a simulation of its sample.

    Waiting for the last member of a group belongs to no op; it is spread over all parts in proportion.

    Parameters
    ----------
    experiment : step with its grid, scheme and microbatch
    ops_of : function that simulates a sample on the machine
    closed_form_model : alpha-beta model of the machine, for messages between stages
    """
    sampled, smaller = sample_experiment(experiment), last_sample(experiment)
    samples = [_sample(each, ops_of) for each in (sampled, smaller) if each is not None]
    simulated = samples[0].simulated
    stages, (hop, last_hop) = experiment.stages, _stage_message_seconds(experiment, closed_form_model)

    def parts(seconds_of: Callable[[_Sample], Mapping[str, float]]) -> tuple[StepParts, StepParts | None]:
        usual, *last = (each.parts(seconds_of(each)) for each in samples)
        return usual, last[0] if last else None

    def mean_stage_seconds(seconds_of: Callable[[_Sample], Mapping[str, float]]) -> float:
        usual, last = parts(seconds_of)
        return usual.reporting(stages, last)

    usual, last = parts(_Sample.charged)
    seconds = usual.step(stages, hop, last, last_hop) + _table_gradient_seconds(
        experiment, _table_gradient_bytes(simulated.schedule), closed_form_model
    )
    compute, busy = mean_stage_seconds(_Sample.local), mean_stage_seconds(_Sample.communication)
    latency, message_seconds = mean_stage_seconds(_Sample.latency), stage_message_seconds(stages, hop, last_hop)
    hidden = without_rounding_error(busy - mean_stage_seconds(_Sample.exposed), busy)
    exposed_by_axis: dict[Axis, float] = {
        axis: mean_stage_seconds(partial(_Sample.exposed, axis=axis))
        for axis in sampled.grid.axes
        if sampled.grid.length(axis) > 1
    }
    return TrainingStep(
        seconds=seconds,
        compute=compute,
        latency=latency,
        transfer=busy - latency + message_seconds,
        hidden=hidden,
        waiting=without_rounding_error(seconds - compute - busy - message_seconds + hidden, seconds),
        contention=without_rounding_error(mean_stage_seconds(_Sample.contention), seconds),
        exposed_seconds_by_axis=exposed_by_axis | ({"pipeline": message_seconds} if message_seconds else {}),
        layers=sampled.stages.layers,
        bounded=simulated.bounded,
        even=simulated.even,
    )


def _sample(sampled: TrainingExperiment, ops_of: Callable[[TrainingExperiment], SimulatedOps]) -> _Sample:
    """A sample and its simulations."""
    execution = sampled.execution
    of_products = execution.overlaps & frozenset(PRODUCT_OVERLAPS)
    if of_products == execution.overlaps:
        return _Sample(sampled, ops_of(sampled), None)
    without_data = replace(sampled, execution=replace(execution, overlaps=of_products))
    return _Sample(sampled, ops_of(sampled), ops_of(without_data))


def closed_form_seconds(experiment: TrainingExperiment, closed_form_model: ClosedFormModel) -> float:
    """The closed-form time of a step [s], extrapolated from a few of its layers."""
    problem = experiment.problem
    if not isinstance(problem, Gpt):
        return closed_form_model.closed_form(experiment.unchecked_schedule()).seconds
    counts = periodic_layer_counts(problem.layers, problem.architecture.layer_period(problem.sequence))
    if problem.layers <= max(counts):
        return closed_form_model.closed_form(experiment.unchecked_schedule()).seconds
    few, more = (
        closed_form_model.closed_form(with_layers(experiment, count).unchecked_schedule()).seconds for count in counts
    )
    return extrapolated(few, more, counts, problem.layers)
