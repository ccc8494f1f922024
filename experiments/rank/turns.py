"""Seconds of a training step from those of its parts: what happens once, for each layer, each microbatch, or both.

A step is the same few ops over and over, so one schedule of a few layers and two
microbatches, without a pipeline, says what all layers and microbatches of any
pipeline take.  Its turns are then walked in the order of the schedule
(`quadrille.experiments.predict.pipeline_slots`), and what remains of a step follows them:

    seconds = turns of all microbatches + once + once for each layer of the fullest stage

The last stage has what comes before and behind all layers (nearly all of it are
the logits and the loss).  Forward is a third of a turn of a layer, and a quarter
where activations are made again: as its products are.  Beyond `WALKED`
microbatches for each stage each takes as long as the slowest stage does.
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
from quadrille.experiments.predict.pipeline_slots import TurnSeconds, stage_ends
from quadrille.experiments.workloads.training import TrainingExperiment

FEW_MICROBATCHES = 2
WALKED = 4
Loops = frozenset[str]
"""Those, of layers and of microbatches, in which an op stands."""
NEITHER: Loops = frozenset()
OF_LAYERS, OF_MICROBATCHES = frozenset({LAYER}), frozenset({MICROBATCH})
OF_BOTH = OF_LAYERS | OF_MICROBATCHES


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of what happens once in a step, once for each layer, for each microbatch, and for each layer of one.

    Parameters
    ----------
    forward : share of the forward pass in the last
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
        hop : seconds of a message from a stage to the next
        """
        after = self.once + self.layer * -(-stages.layers // stages.count)
        if stages.count == 1:
            return after + stages.microbatches * (self.both * stages.layers + self.microbatch)
        walked = replace(stages, microbatches=min(stages.microbatches, WALKED * stages.count))
        turns = self._turns(stages, hop)
        more = (stages.microbatches - walked.microbatches) * self._slowest(stages, turns)
        return after + max(stage_ends(walked, turns)) + more

    def __add__(self, other: "Parts") -> "Parts":
        return self._each(other, lambda one, another: one + another)

    def times(self, factor: float) -> "Parts":
        """The same, all of it longer."""
        return self._each(self, lambda one, _: factor * one)

    def _each(self, other: "Parts", change: Callable[[float, float], float]) -> "Parts":
        names = ("once", "layer", "microbatch", "both")
        return replace(self, **{name: change(getattr(self, name), getattr(other, name)) for name in names})

    def _turns(self, stages: Stages, hop: float) -> TurnSeconds:
        parts = stages.count * stages.chunks
        sizes = [stop - start for start, stop in (cut(stages.layers, parts, part) for part in range(parts))]
        layers = [self.both * size for size in sizes]
        forward = [self.forward * one for one in layers]
        backward = [one - ahead for one, ahead in zip(layers, forward, strict=True)]
        forward[-1] += self.forward * self.microbatch
        backward[-1] += (1 - self.forward) * self.microbatch
        return TurnSeconds(forward, backward, hop)

    def _slowest(self, stages: Stages, turns: TurnSeconds) -> float:
        """Seconds of a microbatch on the stage that takes longest."""
        each = [one + other + 2 * turns.travel for one, other in zip(turns.forward, turns.backward, strict=True)]
        return max(sum(each[stage :: stages.count]) for stage in range(stages.count))

    def reporting(self, stages: Stages) -> float:
        """Seconds of a step that the mean stage is at work."""
        turns = stages.microbatches * (self.both * stages.layers + self.microbatch)
        return (self.once + self.layer * stages.layers + turns) / stages.count


def hops_of(stages: Stages) -> float:
    """Messages that the mean stage sends in a step, there and back.

    >>> hops_of(Stages(2, layers=4, microbatches=3))
    3.0
    """
    return 2 * stages.microbatches * (stages.count * stages.chunks - 1) / stages.count


def stages_of(experiment: TrainingExperiment) -> Stages:
    """What a step of this experiment repeats, and on how many stages."""
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    parts = microbatches(problem.batch, problem.micro_batch, grid)
    return Stages(grid.pipeline, problem.layers, parts.count, problem.interleave)


def sample(experiment: TrainingExperiment) -> TrainingExperiment:
    """The same with a few layers and microbatches, and without its pipeline: on the ranks of one stage."""
    problem, stages = experiment.problem, stages_of(experiment)
    assert isinstance(problem, Gpt)
    layers = min(stages.layers, depth_of_one(experiment.execution))
    alone = stages.microbatches == stages.count == 1
    batch = problem.batch // stages.microbatches * (1 if alone else FEW_MICROBATCHES)
    few = replace(problem, layers=layers, batch=batch, interleave=1)
    lengths = {axis: experiment.grid.length(axis) for axis in ("data", "z", "y", "x")}
    return replace(experiment, problem=few, grid=Grid(**lengths, order=experiment.grid.order))


def loops_of(schedule: Schedule) -> dict[str, Loops]:
    """By the name of an op, the loops in which it stands; one that is gone through once is none.

    Of ops that overlaps take out of a loop for its first or last turn, the loop is meant all the same.
    """
    found: dict[str, Loops] = {}

    def look(program: Program, around: Loops) -> None:
        for entry in program:
            if isinstance(entry, Repeat):
                look(entry.body, around | OF_BOTH.intersection({entry.loop} if entry.count != 1 else ()))
            else:
                found[entry.name] = found.get(entry.name, NEITHER) | around

    for role in schedule.roles:
        look(role.program, NEITHER)
    return found


def parts_of(each: Iterable[tuple[Loops, float]], sampled: TrainingExperiment) -> Parts:
    """The parts that add up to what a sample takes.

    Of one microbatch what each layer takes once is not told from what the microbatch takes of it.

    Parameters
    ----------
    each : seconds of what takes time in it, and the loops in which that stands
    """
    found = dict.fromkeys((NEITHER, OF_LAYERS, OF_MICROBATCHES, OF_BOTH), 0.0)
    for loops, seconds in each:
        found[loops] += seconds
    stages, problem = stages_of(sampled), sampled.problem
    assert isinstance(problem, Gpt)
    forward = 1 / 4 if problem.recompute == "full" else 1 / 3
    layer = found[OF_LAYERS] / stages.layers
    if stages.microbatches == 1:
        return Parts(found[NEITHER], 0.0, 0.0, layer, forward)
    microbatch, both = (found[loop] / stages.microbatches for loop in (OF_MICROBATCHES, OF_BOTH))
    return Parts(found[NEITHER], layer, microbatch, both / stages.layers, forward)
