"""Predictions at the granularity of passes: a walk through the passes of a pipeline, with the times of single passes.

1.  A schedule in which each stage runs one pass of each kind is simulated on all ranks (`single_passes.py`).
2.  Its spans give the times of passes, of messages between stages, and of the ops outside the passes
    (`pass_times.py`).  In each stage, one rank stands for all ranks whose groups lie on nodes in the same way.
3.  The rule of the pipeline decides the order of passes in virtual time (`pipeline_slots.py`).
4.  Ops after the passes follow, as messages between stages order them.

So the cost of the simulation of flows does not depend on the number of microbatches, and a pass costs as much as one
event.  Passes and messages of different stages do not slow each other, except as in step 1.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import EXPERT, Axis, Grid
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.pipeline import Stages
from quadrille.algorithms.training.single_passes import agrees_alone, with_single_passes
from quadrille.experiments.predict.pass_noise import PassNoise, without_op_noise
from quadrille.experiments.predict.pass_spans import RankSpans, StageSlots, stage_slots
from quadrille.experiments.predict.pass_times import (
    StageTimes,
    TimedOp,
    ends_after_passes,
    slot_seconds,
    stage_times,
)
from quadrille.experiments.predict.pipeline_slots import Slot, slots_and_ends
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.simulator.prediction import Prediction, TimeBreakdowns
from quadrille.simulator.simulate import ALL_SHORTCUTS, LIMITS, Limits, Shortcuts, Simulator
from quadrille.simulator.uncertainty import uncertainty
from quadrille.topologies.network import Ints

MOST_SPANS = 100_000
"""Largest number of spans in the timeline; the stage that ends last is always in it."""


def unsupported_passes(experiment: object) -> str:
    """The reason, in words, why an experiment cannot be predicted pass by pass; empty if it can."""
    if not isinstance(experiment, TrainingExperiment) or experiment.stages.count == 1:
        return "is for training on a grid with pipeline=2 or more"
    jitter = experiment.execution.jitter
    if jitter is not None and jitter.network:
        return f"knows no single message, and jitter {jitter} draws noise for each"
    if experiment.problem.steps > 1:
        return f"predicts one step, and there are {experiment.problem.steps}"
    return ""


def check_passes(experiment: object) -> TrainingExperiment:
    """The experiment, if it can be predicted pass by pass.

    Raises
    ------
    InputError : a grid without a pipeline, no training, several steps, or noise of messages
    """
    reason = unsupported_passes(experiment)
    if reason:
        raise InputError(f"granularity passes: {reason}; accepted is exact, collective or auto")
    assert isinstance(experiment, TrainingExperiment)
    return experiment


def predict_passes(
    prepared: PreparedExperiment,
    *,
    timeline_ranks: Sequence[int] = (),
    shortcuts: Shortcuts = ALL_SHORTCUTS,
    limits: Limits = LIMITS,
) -> Prediction:
    """The prediction of a training step with a pipeline, pass by pass.

    Parameters
    ----------
    timeline_ranks : ranks that the timeline must have
    shortcuts, limits : shortcuts and limits of the simulation of single passes

    Raises
    ------
    InputError : an experiment that cannot be predicted pass by pass
    """
    experiment = check_passes(prepared.experiment)
    stages, grid = experiment.stages, experiment.grid
    schedule = with_single_passes(prepared.simulated_schedule, stages)
    chains = _chains(prepared, stages)
    simulator = Simulator(
        schedule,
        prepared.machine,
        choices=prepared.experiment.execution.choices,
        threads=prepared.threads,
        placement=prepared.experiment.execution.placement,
        shortcuts=shortcuts,
        granularity="auto",
        rank_placement=prepared.placement,
        limits=limits,
        jitter=without_op_noise(experiment.execution.jitter),
    )
    ranks = {rank for chain in chains for members in chain for rank in members}
    single = simulator.run(sorted(ranks | {*timeline_ranks}), tight=False)
    spans = _spans_by_rank(single)

    def times_of(rank: int) -> StageTimes:
        return stage_times(schedule, rank, spans[single.breakdowns.stands_for(rank)], stages)

    each = [[_slowest(map(times_of, members)) for members in chain] for chain in chains]
    noises = _noises(experiment)
    if noises and len(each) == 1:
        each *= grid.data
    walks = [_walk(of_chain, stages, noise) for of_chain, noise in zip_longest(each, noises)]
    walk = max(walks, key=lambda each: each.seconds)
    shown = {grid.coordinate(rank, "pipeline"): times_of(rank) for rank in timeline_ranks}
    return _prediction(prepared, single, walk, shown)


def _noises(experiment: TrainingExperiment) -> list[PassNoise]:
    """The noise of the passes of each data shard; empty without noise."""
    jitter, grid = experiment.execution.jitter, experiment.grid
    if jitter is None or not jitter.compute:
        return []
    return [PassNoise(jitter, grid, shard, experiment.stages.microbatches) for shard in range(grid.data)]


def _chains(prepared: PreparedExperiment, stages: Stages) -> list[list[list[int]]]:
    """Ranks of each stage of each chain that is walked; the ranks of a chain process the same microbatches.

    If all ranks are as fast, the chains differ in the nodes of their groups alone (`_chains_by_nodes`).  Else each data
    shard has its own chain, in which the first rank of a stage, or the slower ranks of the stage, decide how long its
    passes take.
    """
    grid, placement = prepared.experiment.grid, prepared.placement
    if prepared.machine.faults is None:
        return _chains_by_nodes(prepared, stages)
    shards: list[dict[Axis, int]] = [{"data": shard} for shard in range(grid.data)]
    chains = [[[grid.rank_at({**shard, "pipeline": stage})] for stage in range(stages.count)] for shard in shards]
    for rank in range(grid.size):
        members = chains[grid.coordinate(rank, "data")][grid.coordinate(rank, "pipeline")]
        if placement.speed(rank) < placement.speed(members[0]):
            members.append(rank)
    return chains


def _chains_by_nodes(prepared: PreparedExperiment, stages: Stages) -> list[list[list[int]]]:
    """The different chains of data shards, the rank with the most rows of experts in each; with noise, all of them.

    In each stage, the first rank stands for those whose groups lie on nodes in the same way.
    """
    experiment, grid = check_passes(prepared.experiment), prepared.experiment.grid
    hottest, labels = _hottest(experiment), node_labels(grid, prepared.nodes)
    firsts = [grid.group(grid.rank_at({"data": shard}), EXPERT)[hottest] for shard in range(grid.data)]
    ranks = np.array(firsts)[:, None] + np.arange(stages.count) * grid.stride("pipeline")
    standing: dict[tuple[int, int], int] = {}
    chains = [
        tuple(standing.setdefault((stage, int(labels[rank])), int(rank)) for stage, rank in enumerate(of_shard))
        for of_shard in ranks
    ]
    each = chains if _noises(experiment) else dict.fromkeys(chains)
    return [[[rank] for rank in chain] for chain in each]


def node_labels(grid: Grid, nodes: Sequence[int]) -> Ints:
    """A label of each rank, equal where its groups, without those over data, lie on nodes in the same way [ranks].

    Groups of two ranks on nodes of three: the second of four groups is on two nodes.

    >>> node_labels(Grid(data=4, x=2), [0, 0, 0, 1, 1, 1, 2, 2]).tolist()
    [0, 0, 1, 1, 0, 0, 0, 0]

    Parameters
    ----------
    nodes : node of each rank
    """
    ranks, labels = np.arange(grid.size), np.zeros(grid.size, dtype=np.int64)
    for axis in grid.axes if len(set(nodes)) > 1 else ():
        length, stride = grid.length(axis), grid.stride(axis)
        if length == 1 or axis in ("data", "replica"):
            continue
        firsts = ranks - ranks // stride % length * stride
        on = np.sort(np.asarray(nodes)[firsts[:, None] + np.arange(length) * stride], axis=1)
        _, of_axis = np.unique(on - on[:, :1], axis=0, return_inverse=True)
        labels = labels * (int(of_axis.max()) + 1) + of_axis.ravel()
    return labels


def _hottest(experiment: Experiment) -> int:
    """Coordinate along `expert` of the rank with the most rows of experts; 0 for even loads."""
    problem, grid = experiment.problem, experiment.grid
    loads = problem.experts.taken(problem.loads) if isinstance(problem, Gpt) and problem.experts else ()
    each = len(loads) // grid.expert
    return max(range(grid.expert), key=lambda rank: sum(loads[rank * each : (rank + 1) * each]))


def _slowest(each: Iterable[StageTimes]) -> StageTimes:
    """The rank of a stage whose passes take longest."""
    return max(each, key=lambda times: times.work_seconds)


def _spans_by_rank(prediction: Prediction) -> Mapping[int, list[Span]]:
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in prediction.timeline.unrolled().spans:
        by_rank[span.rank].append(span)
    return by_rank


@dataclass(frozen=True, slots=True)
class _Walk:
    """The passes of a chain of ranks in time.

    Parameters
    ----------
    each : times of the rank of each stage
    slots : slots of each stage
    after : ops of each stage after its passes, each with its end [s]
    seconds : end of the last op [s]
    """

    each: Sequence[StageTimes]
    slots: Sequence[StageSlots]
    after: Sequence[Sequence[tuple[TimedOp, float]]]
    seconds: float

    @property
    def last_stage(self) -> int:
        """The stage that ends last."""
        return max(range(len(self.each)), key=lambda stage: max((end for _, end in self.after[stage]), default=0.0))

    @property
    def slot_list(self) -> list[Slot]:
        return [slot for stage in self.slots for slot in stage.slots]


def _walk(each: Sequence[StageTimes], stages: Stages, noise: PassNoise | None) -> _Walk:
    begins = [times.end_of("setup", "before") for times in each]
    longer = [noise.of_passes(times, stage) for stage, times in enumerate(each)] if noise else []
    seconds = slot_seconds(each, stages, begins, longer)
    slots_in_time, ends = slots_and_ends(stages, seconds)
    after = ends_after_passes(each, ends)
    slots = stage_slots(stages, slots_in_time, seconds)
    last = max(end for ends in after for _, end in ends)
    return _Walk(each, slots, after, last)


def _prediction(
    prepared: PreparedExperiment, single: Prediction, walk: _Walk, shown: Mapping[int, StageTimes]
) -> Prediction:
    """The prediction of the step, from that of single passes and the walk through all passes."""
    experiment, spans = prepared.experiment, _timeline_spans(single.breakdowns, walk, shown)
    assert isinstance(experiment, TrainingExperiment)
    timeline = Timeline(
        tuple(span for each in spans for span in each.spans),
        "predicted",
        experiment.grid.size,
        prepared.schedule.name,
        grid=experiment.grid,
    )
    counts = _Counts(walk.each, experiment.stages.microbatches)
    idle = {op.name for op in all_ops(prepared.schedule) if agrees_alone(op, experiment.grid)}
    scaled = {name: counts.scaled(op) for name, op in single.op_times().items() if name not in idle}
    times = _with_receives(scaled, walk, experiment.stages)
    parts = {
        name: _parts(times[name], {part: seconds * counts.factor(name) for part, seconds in of_op.items()})
        for name, of_op in single.parts.items()
        if name in times
    }
    breakdowns = {instance: parts for each in spans for instance, parts in each.breakdowns.items()}
    return replace(
        single,
        timeline=timeline,
        parts=parts,
        uncertainty=uncertainty(prepared.machine, timeline.makespan, None),
        contention={name: seconds * counts.factor(name) for name, seconds in single.contention.items()},
        links=(),
        breakdowns=TimeBreakdowns(breakdowns, lambda rank: rank, {}),
        times=times,
        bound=None,
        pass_orders=tuple("".join(slot.kind for slot in stage.slots) for stage in walk.slots),
    )


def _timeline_spans(measured: TimeBreakdowns, walk: _Walk, shown: Mapping[int, StageTimes]) -> list[RankSpans]:
    """Spans of the ranks that are shown, and of one rank of each stage as far as they are not too many."""
    built: list[RankSpans] = []
    order = [walk.last_stage, *(stage for stage in range(len(walk.each)) if stage != walk.last_stage)]
    ranks = [(stage, walk.each[stage]) for stage in order]
    ranks[1:1] = [(stage, times) for stage, times in shown.items() if times.rank not in {of.rank for of in walk.each}]
    for stage, times in ranks:
        if built and stage not in shown and sum(len(each.spans) for each in built) + len(built[0].spans) > MOST_SPANS:
            continue
        spans = RankSpans(times, measured)
        spans.add_passes(walk.slots[stage])
        spans.add_outside(walk.after[stage])
        built.append(spans)
    return sorted(built, key=lambda each: each.times.rank)


class _Counts:
    """How often and how long ops run in a step, relative to a simulation of single passes."""

    def __init__(self, each: Sequence[StageTimes], microbatches: int) -> None:
        self._single: dict[str, float] = defaultdict(float)
        self._step: dict[str, float] = defaultdict(float)
        self._most: Counter[str] = Counter()
        for times in each:
            of_stage: Counter[str] = Counter()
            equal = microbatches if times.smaller_last is None else times.smaller_last
            for section, ops in times.by_section.items():
                instances = equal if section.phase == "passes" and not section.of_last else 1
                for timed in ops:
                    weight = 1.0 if times.smaller_last is None else timed.span.seconds
                    of_stage[timed.op.name] += instances
                    self._step[timed.op.name] += instances * weight
                    self._single[timed.op.name] += weight
            self._most |= of_stage

    def factor(self, name: str) -> float:
        """Instances of an op in a step for each instance in the simulation of single passes.

        With a smaller last microbatch, instances count by their times.
        """
        return self._step[name] / self._single[name] if self._single.get(name) else 1.0

    def scaled(self, op: OpTimes) -> OpTimes:
        """The times of an op in a step."""
        factor = self.factor(op.name)
        return replace(
            op,
            count=self._most[op.name] or op.count,
            seconds=op.seconds * factor,
            waiting_seconds=op.waiting_seconds * factor,
            exposed_seconds=op.exposed_seconds * factor,
        )


def _with_receives(times: Mapping[str, OpTimes], walk: _Walk, stages: Stages) -> dict[str, OpTimes]:
    """The times of all ops, with those of the messages that begin passes as in the walk."""
    seconds: dict[str, float] = defaultdict(float)
    exposed: dict[str, float] = defaultdict(float)
    for rank, slots in zip(walk.each, walk.slots, strict=True):
        idle = slots.idle_before()
        for slot, start, end in slots.received():
            message = rank.receive(rank.section(slot))
            assert message is not None
            seconds[message.op] += (end - start) / stages.count
            exposed[message.op] += idle[slot] / stages.count
    changed = {
        name: replace(times[name], seconds=seconds[name], waiting_seconds=0.0, exposed_seconds=exposed[name])
        for name in seconds
    }
    return {**times, **changed}


def _parts(op: OpTimes, parts: Mapping[str, float]) -> dict[str, float]:
    """Seconds of an op by cause, as many as the op takes."""
    if op.lane == "compute":
        return {**parts, "compute": op.seconds, "waiting": op.waiting_seconds}
    latency = min(op.seconds, parts["latency"])
    compute = min(op.seconds - latency, parts["compute"])
    return {
        "compute": compute,
        "transfer": op.seconds - latency - compute,
        "latency": latency,
        "waiting": op.waiting_seconds,
    }
