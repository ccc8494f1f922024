"""Time of a training step from the times of its parts: once, per layer, per microbatch, and per layer of a microbatch.

A step repeats a few ops, so one schedule of a few layers and two microbatches, without a
pipeline, determines the times of all layers and microbatches of any pipeline.  The slots
of the pipeline are walked in the order of the schedule
(`quadrille.experiments.predict.pipeline_slots`):

    seconds = end of the last slot + once + once for each layer of the fullest stage

The last stage has the ops before and after all layers (nearly all of their time is that
of logits and loss).  The forward pass takes a third of the time of a layer, or a quarter
if activations are recomputed, like its products.  Above `WALKED` microbatches for each
stage, each further microbatch takes as long as on the slowest stage.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.parts import cut
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.microbatches import MICROBATCH, microbatches
from quadrille.algorithms.training.pipeline import Stages
from quadrille.algorithms.training.transformer import LAYER
from quadrille.experiments.predict.depths import depth_of_one
from quadrille.experiments.predict.pipeline_slots import SlotSeconds, stage_ends
from quadrille.experiments.workloads.training import TrainingExperiment

FEW_MICROBATCHES = 2
WALKED = 4
Loops = frozenset[str]
"""The loops around an op: over layers, over microbatches, both or neither."""
NEITHER: Loops = frozenset()
OF_LAYERS, OF_MICROBATCHES = frozenset({LAYER}), frozenset({MICROBATCH})
OF_BOTH = OF_LAYERS | OF_MICROBATCHES


@dataclass(frozen=True, slots=True)
class Parts:
    """Times of the parts of a step: once in a step, per layer, per microbatch, and per layer of a microbatch [s].

    Parameters
    ----------
    forward : share of the forward pass in `both`
    """

    once: float
    layer: float
    microbatch: float
    both: float
    forward: float = 1 / 3

    def step(self, stages: Stages, hop: float = 0.0) -> float:
        """Seconds of a step.

        >>> Parts(1.0, 0.5, 2.0, 3.0).step(Stages(1, layers=4, microbatches=2))
        31.0
        >>> Parts(1.0, 0.5, 0.0, 3.0).step(Stages(2, layers=4, microbatches=5))
        38.0

        Parameters
        ----------
        hop : time of a message from a stage to the next [s]
        """
        after = self.once + self.layer * -(-stages.layers // stages.count)
        if stages.count == 1:
            return after + stages.microbatches * (self.both * stages.layers + self.microbatch)
        walked = replace(stages, microbatches=min(stages.microbatches, WALKED * stages.count))
        slots = self._slots(stages, hop)
        more = (stages.microbatches - walked.microbatches) * self._slowest(stages, slots)
        return after + max(stage_ends(walked, slots)) + more

    def __add__(self, addend: "Parts") -> "Parts":
        return self._each(addend, lambda first, second: first + second)

    def times(self, factor: float) -> "Parts":
        """The parts, each multiplied by a factor."""
        return self._each(self, lambda seconds, _: factor * seconds)

    def _each(self, parts: "Parts", change: Callable[[float, float], float]) -> "Parts":
        names = ("once", "layer", "microbatch", "both")
        return replace(self, **{name: change(getattr(self, name), getattr(parts, name)) for name in names})

    def _slots(self, stages: Stages, hop: float) -> SlotSeconds:
        """Times of the slots of a pipeline."""
        parts = stages.count * stages.chunks
        sizes = [stop - start for start, stop in (cut(stages.layers, parts, part) for part in range(parts))]
        layers = [self.both * size for size in sizes]
        forward = [self.forward * seconds for seconds in layers]
        backward = [seconds - ahead for seconds, ahead in zip(layers, forward, strict=True)]
        forward[-1] += self.forward * self.microbatch
        backward[-1] += (1 - self.forward) * self.microbatch
        return SlotSeconds(forward, backward, hop)

    def _slowest(self, stages: Stages, slots: SlotSeconds) -> float:
        """Seconds of a microbatch on the slowest stage."""
        each = [
            forward + backward + 2 * slots.travel
            for forward, backward in zip(slots.forward, slots.backward, strict=True)
        ]
        return max(sum(each[stage :: stages.count]) for stage in range(stages.count))

    def reporting(self, stages: Stages) -> float:
        """Time of a step in which the mean stage computes [s]."""
        work = stages.microbatches * (self.both * stages.layers + self.microbatch)
        return (self.once + self.layer * stages.layers + work) / stages.count


def hops_of(stages: Stages) -> float:
    """Messages that the mean stage sends in a step, there and back.

    >>> hops_of(Stages(2, layers=4, microbatches=3))
    3.0
    """
    return 2 * stages.microbatches * (stages.count * stages.chunks - 1) / stages.count


def stages_of(experiment: TrainingExperiment) -> Stages:
    """The layers, microbatches and pipeline stages of a step of this experiment."""
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    parts = microbatches(problem.batch, problem.micro_batch, grid)
    return Stages(grid.pipeline, problem.layers, parts.count, problem.interleave)


def sample(experiment: TrainingExperiment) -> TrainingExperiment:
    """The experiment with few layers and microbatches, without its pipeline: on the ranks of one stage."""
    problem, stages = experiment.problem, stages_of(experiment)
    assert isinstance(problem, Gpt)
    layers = min(stages.layers, depth_of_one(experiment.execution))
    alone = stages.microbatches == stages.count == 1
    batch = problem.batch // stages.microbatches * (1 if alone else FEW_MICROBATCHES)
    few = replace(problem, layers=layers, batch=batch, interleave=1)
    lengths = {axis: experiment.grid.length(axis) for axis in ("data", "z", "y", "x")}
    return replace(experiment, problem=few, grid=Grid(**lengths, order=experiment.grid.order))


def loops_of(schedule: Schedule) -> dict[str, Loops]:
    """The loops around each op, by the op's name; a loop with one iteration does not count.

    An op that an overlap moved out of a loop, for the first or last iteration, counts as inside the loop.
    """
    loops: dict[str, Loops] = {}

    def look(program: Program, around: Loops) -> None:
        for entry in program:
            if isinstance(entry, Repeat):
                look(entry.body, around | OF_BOTH.intersection({entry.loop} if entry.count != 1 else ()))
            else:
                loops[entry.name] = loops.get(entry.name, NEITHER) | around

    for role in schedule.roles:
        look(role.program, NEITHER)
    return loops


def parts_of(each: Iterable[tuple[Loops, float]], sampled: TrainingExperiment) -> Parts:
    """The parts whose sum is the time of a sample.

    With one microbatch, the time per layer cannot be distinguished from the time per layer of a microbatch.

    Parameters
    ----------
    each : loops around an op, and its seconds
    """
    totals = dict.fromkeys((NEITHER, OF_LAYERS, OF_MICROBATCHES, OF_BOTH), 0.0)
    for loops, seconds in each:
        totals[loops] += seconds
    stages, problem = stages_of(sampled), sampled.problem
    assert isinstance(problem, Gpt)
    forward = 1 / 4 if problem.recompute == "full" else 1 / 3
    layer = totals[OF_LAYERS] / stages.layers
    if stages.microbatches == 1:
        return Parts(totals[NEITHER], 0.0, 0.0, layer, forward)
    microbatch, both = (totals[loop] / stages.microbatches for loop in (OF_MICROBATCHES, OF_BOTH))
    return Parts(totals[NEITHER], layer, microbatch, both / stages.layers, forward)
