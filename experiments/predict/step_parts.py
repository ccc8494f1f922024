"""The parts of a training step's time: once, per layer, per microbatch, and per layer of a microbatch.

A step repeats a few ops, so a schedule of a few layers and two microbatches, without a
pipeline, determines the times of all layers and microbatches of any pipeline.  The parts
are combined by a walk through the slots of the pipeline
(`quadrille.experiments.predict.pipeline_slots`):

    seconds = end of the last slot + once + once for each layer of the fullest stage

The last stage has the ops before and after all layers (nearly all of their time is that
of logits and loss).  The forward pass takes a third of the time of a layer, or a quarter
if activations are recomputed, like its products.  Above `WALKED_MICROBATCHES` microbatches for each
stage, each further microbatch takes as long as on the slowest stage.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import lcm

from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.pipeline import Stages
from quadrille.algorithms.training.recompute import WHOLE_LAYERS
from quadrille.algorithms.training.transformer import LAYER
from quadrille.experiments.predict.layer_extrapolation import single_layer_count
from quadrille.experiments.predict.pipeline_slots import KINDS, SlotSeconds, stage_ends
from quadrille.experiments.workloads.training import TrainingExperiment

FEW_MICROBATCHES = 2
WALKED_MICROBATCHES = 4
Loops = frozenset[str]
"""The loops around an op: over layers, over microbatches, both or neither."""
NEITHER: Loops = frozenset()
OF_LAYERS, OF_MICROBATCHES = frozenset({LAYER}), frozenset({MICROBATCH})
OF_BOTH = OF_LAYERS | OF_MICROBATCHES


@dataclass(frozen=True, slots=True)
class StepParts:
    """The times of the parts of a step [s].

    Parameters
    ----------
    once : time of ops that run once in a step
    layer, microbatch, both : time of ops that run once per layer, per microbatch, and per layer of a microbatch
    forward : share of the forward pass in `both`
    """

    once: float
    layer: float
    microbatch: float
    both: float
    forward: float = 1 / 3

    def step(
        self,
        stages: Stages,
        hop: float = 0.0,
        last: "StepParts | None" = None,
        last_hop: float = 0.0,
        by_stage: "Sequence[StepParts]" = (),
    ) -> float:
        """The time of a step [s].

        >>> StepParts(1.0, 0.5, 2.0, 3.0).step(Stages(1, layers=4, microbatches=2))
        31.0
        >>> StepParts(1.0, 0.5, 0.0, 3.0).step(Stages(2, layers=4, microbatches=5))
        38.0

        With a stage whose layers take half as long, only the slots before and after the slowest stage's are shorter:

        >>> fast, slow = StepParts(1.0, 0.5, 0.0, 1.5), StepParts(1.0, 0.5, 0.0, 3.0)
        >>> slow.step(Stages(2, layers=4, microbatches=5), by_stage=[fast, slow])
        35.0

        Parameters
        ----------
        stages : stages, layers, chunks and microbatches of the pipeline
        hop : time of a message from a stage to the next [s]
        last, last_hop : parts and message of a smaller last microbatch; None if it is not smaller
        by_stage : parts of each stage; empty if they are equal
        """
        outside_seconds = self.once + self.layer * stages.most_layers
        if stages.count == 1:
            return outside_seconds + self._work(stages, last)
        walked_stages = replace(stages, microbatches=min(stages.microbatches, WALKED_MICROBATCHES * stages.count))
        slots = self._slots(stages, hop, by_stage)
        if last is not None:
            slots = replace(slots, last=last._slots(stages, last_hop))
        more = (stages.microbatches - walked_stages.microbatches) * self._slowest(stages, slots)
        ends = stage_ends(walked_stages, slots)
        if by_stage:
            after = [each.once + each.layer * stages.most_layers for each in by_stage]
            return max(end + seconds for end, seconds in zip(ends, after, strict=True)) + more
        return outside_seconds + max(ends) + more

    def least(self, stages: Stages, *, smaller_last: bool = False) -> float:
        """A lower bound of `step` [s]: the work of the slowest stage, without bubbles and messages.

        >>> StepParts(1.0, 0.5, 0.0, 3.0).least(Stages(2, layers=4, microbatches=5))
        32.0

        Parameters
        ----------
        smaller_last : whether the last microbatch is smaller; it is left out
        """
        microbatches = stages.microbatches - smaller_last
        each = self._slowest(stages, self._slots(stages, 0.0)) if stages.count > 1 else 0.0
        each = each or self.both * stages.layers + self.microbatch
        return self.once + self.layer * stages.most_layers + microbatches * each

    def __add__(self, addend: "StepParts") -> "StepParts":
        return self._each(addend, lambda first, second: first + second)

    def times(self, factor: float) -> "StepParts":
        """The parts, each multiplied by a factor."""
        return self._each(self, lambda seconds, _: factor * seconds)

    def longer(self, parts: "StepParts") -> "StepParts":
        """The longer of both times of each part."""
        return self._each(parts, max)

    def shorter(self, parts: "StepParts") -> "StepParts":
        """The shorter of both times of each part."""
        return self._each(parts, min)

    def _each(self, parts: "StepParts", change: Callable[[float, float], float]) -> "StepParts":
        names = ("once", "layer", "microbatch", "both")
        return replace(self, **{name: change(getattr(self, name), getattr(parts, name)) for name in names})

    def _slots(self, stages: Stages, hop: float, by_stage: "Sequence[StepParts]" = ()) -> SlotSeconds:
        """The times of the slots of a pipeline."""
        parts = [by_stage[stages.place(part)[0]] if by_stage else self for part in range(len(stages.part_sizes))]
        layers = [each.both * size for each, size in zip(parts, stages.part_sizes, strict=True)]
        forward = [self.forward * seconds for seconds in layers]
        backward = [seconds - ahead for seconds, ahead in zip(layers, forward, strict=True)]
        forward[-1] += self.forward * self.microbatch
        backward[-1] += (1 - self.forward) * self.microbatch
        if not stages.splits:
            return SlotSeconds(forward, backward, hop)
        weights = [self.forward * seconds for seconds in layers]  # as many products as the forward pass
        inputs = [seconds - apart for seconds, apart in zip(backward, weights, strict=True)]
        return SlotSeconds(forward, inputs, hop, weights)

    def _slowest(self, stages: Stages, slots: SlotSeconds) -> float:
        """The time of a microbatch on the slowest stage [s]."""
        kinds = [slots.of(kind) for kind in KINDS if slots.of(kind)]
        each = [sum(seconds[part] for seconds in kinds) + 2 * slots.travel for part in range(len(slots.forward))]
        return max(stages.sum_of_stage(each, stage) for stage in range(stages.count))

    def reporting(self, stages: Stages, last: "StepParts | None" = None) -> float:
        """The time of a step in which the mean stage works [s]; arguments as `step`."""
        return (self.once + self.layer * stages.layers + self._work(stages, last)) / stages.count

    def _work(self, stages: Stages, last: "StepParts | None") -> float:
        """The time of all microbatches on one rank with all layers [s]."""
        each = self.both * stages.layers + self.microbatch
        if last is None:
            return stages.microbatches * each
        return (stages.microbatches - 1) * each + last.both * stages.layers + last.microbatch


def stage_message_seconds(stages: Stages, hop: float, last_hop: float) -> float:
    """The time of the messages that the mean stage sends in a step, forward and backward [s].

    >>> stage_message_seconds(Stages(2, layers=4, microbatches=3), hop=1.0, last_hop=0.5)
    2.5

    Parameters
    ----------
    hop, last_hop : time of a message, and of a message of the last microbatch [s]
    """
    messages = stages.count * stages.chunks - (2 if stages.v_placed else 1)
    return 2 * messages / stages.count * ((stages.microbatches - 1) * hop + last_hop)


def last_sample(experiment: TrainingExperiment) -> TrainingExperiment | None:
    """A sample whose microbatches are as large as the last microbatch; None if the last is not smaller."""
    if not experiment.microbatches.smaller_last:
        return None
    shards = experiment.grid.data * experiment.grid.z
    size = -(-experiment.microbatches.last // shards)
    assert isinstance(experiment.problem, Gpt)
    problem = replace(experiment.problem, micro_batch=size, batch=size * shards * FEW_MICROBATCHES)
    return sample_experiment(replace(experiment, problem=problem))


def sample_experiment(experiment: TrainingExperiment) -> TrainingExperiment:
    """A sample of the experiment: few layers and microbatches on the ranks of one stage, without the pipeline.

    Layers that differ in their attention (sliding windows) are sampled in whole periods.  Of layers with a dense MLP
    beside layers of experts, the sample has as large a share as the model, rounded to whole layers.  The sample of a
    pipeline has no overlap of sums over data (`ogr`), which stay outside the passes of a pipeline.
    """
    problem, stages, execution = experiment.problem, experiment.stages, experiment.execution
    assert isinstance(problem, Gpt)
    period = lcm(problem.architecture.layer_period(problem.sequence), problem.experts.every if problem.experts else 1)
    layers = min(stages.layers, -(-single_layer_count(experiment.execution) // period) * period)
    alone = stages.microbatches == stages.count == 1
    batch = experiment.microbatches.rows * (1 if alone else FEW_MICROBATCHES)
    few = replace(
        problem,
        layers=layers,
        batch=batch,
        interleave=1,
        pipeline_schedule="1f1b",
        pipeline_limit=0,
        stages=(),
        experts=_sampled_experts(problem, layers),
    )
    grid = replace(experiment.grid, pipeline=1)
    if experiment.grid.pipeline > 1:
        execution = replace(execution, overlaps=execution.overlaps - {"ogr"})
    return replace(experiment, problem=few, grid=grid, execution=execution)


def _sampled_experts(problem: Gpt, layers: int) -> Experts | None:
    """The experts of a sample of some layers, of which as large a share is dense as of the model's layers."""
    experts = problem.experts
    if experts is None or not (dense := experts.dense(problem.layers)):
        return experts
    count = min(round(layers * sum(dense) / problem.layers), layers - 1)
    return replace(experts, dense_layers=frozenset(range(count)), every=1)


def loops_by_op(schedule: Schedule) -> dict[str, Loops]:
    """The loops around each op, by the op's name: those of which the op runs at more than one index.

    An overlap moves some ops out of a loop for the first or last iteration, which counts as a further index.  It also
    cuts the first or last microbatch off its loop, where ops that run in this microbatch alone count once in a step.
    """
    indices: dict[str, dict[str, set[int | None]]] = {}
    for role in schedule.roles:
        rank = role.start * schedule.grid.stride(role.axis) if role.axis else 0
        for op, coordinates in walk(role.program, schedule.coordinates(rank)):
            of_op = indices.setdefault(op.name, {loop: set() for loop in OF_BOTH})
            for loop, seen in of_op.items():
                seen.add(coordinates.indices.get(loop))
    return {name: frozenset(loop for loop, seen in of_op.items() if len(seen) > 1) for name, of_op in indices.items()}


def step_parts(each: Iterable[tuple[Loops, float]], sampled: TrainingExperiment) -> StepParts:
    """The parts of a step, from the times of the ops of its sample.

    With one microbatch, the time per layer cannot be distinguished from the time per layer of a microbatch.

    Parameters
    ----------
    each : loops around each op, and the op's time in the sample [s]
    sampled : sample of the experiment
    """
    totals = dict.fromkeys((NEITHER, OF_LAYERS, OF_MICROBATCHES, OF_BOTH), 0.0)
    for loops, seconds in each:
        totals[loops] += seconds
    stages, problem = sampled.stages, sampled.problem
    assert isinstance(problem, Gpt)
    forward = 1 / 4 if problem.recompute in WHOLE_LAYERS else 1 / 3
    layer = totals[OF_LAYERS] / stages.layers
    if stages.microbatches == 1:
        return StepParts(totals[NEITHER], 0.0, 0.0, layer, forward)
    microbatch, both = (totals[loop] / stages.microbatches for loop in (OF_MICROBATCHES, OF_BOTH))
    return StepParts(totals[NEITHER], layer, microbatch, both / stages.layers, forward)
