"""Configurations that train a model on a number of GPUs: scheme, grid, pipeline, ZeRO, chunks, microbatch.

A scheme is tried on grids of the form that its authors give it (`FORMS` of
`quadrille.experiments.sweep.best_step`), whose groups of x and y span no more than `WIDEST`
nodes.  The pipeline's axis is the slowest.  Microbatches are powers of two, at
most `LARGEST` sequences in a pipeline, or all of a replica's share.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from quadrille.algorithms.analysis.axonn import MODELLED
from quadrille.algorithms.errors import InputError, ParameterError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt, check_gpt
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.schemes import find_scheme
from quadrille.experiments.predict.step_parts import pipeline_stages
from quadrille.experiments.rank.candidates import Limits
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.sweep.best_step import FORMS, WIDEST
from quadrille.experiments.workloads.grids import divisors, factorisations
from quadrille.experiments.workloads.rank_orders import FASTEST_FIRST
from quadrille.experiments.workloads.training import TrainingExperiment

LARGEST = 8


@dataclass(frozen=True, slots=True)
class Space:
    """The options that are tried.

    Parameters
    ----------
    stages, micro_batches : numbers of stages, and sequences of a microbatch; None for all possible values
    zeros, chunks : stages of ZeRO, and chunks of layers of a stage; without a pipeline only one chunk is tried
    """

    schemes: tuple[Scheme, ...]
    stages: tuple[int, ...] | None = (1,)
    zeros: tuple[int, ...] = (0,)
    chunks: tuple[int, ...] = (1,)
    micro_batches: tuple[int, ...] | None = None


@dataclass(slots=True)
class LeftOut:
    """Configurations that are left out, counted by reason, with the first example of each reason.

    >>> left_out = LeftOut()
    >>> left_out.add("memory", "60 GiB of 40 GiB"), left_out.add("memory", "61 GiB of 40 GiB")
    (None, None)
    >>> left_out.counts["memory"], left_out.examples["memory"]
    (2, '60 GiB of 40 GiB')
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: str, count: int = 1) -> None:
        if count:
            self.counts[reason] += count
            self.examples.setdefault(reason, example)

    def lines(self) -> list[str]:
        """A line for each reason, the most frequent reason first.

        >>> left_out = LeftOut()
        >>> left_out.add("memory", "60 GiB of 40 GiB", 2)
        >>> left_out.lines()
        ['2 by memory: 60 GiB of 40 GiB']
        """
        return [f"{count} by {reason}: {self.examples[reason]}" for reason, count in self.counts.most_common()]


def configurations(question: RankQuestion, space: Space) -> tuple[list[TrainingExperiment], LeftOut]:
    """All possible configurations, and why others are left out."""
    from quadrille.simulator.machine.network import network_of

    training, per_node = question.training, network_of(question.machine).per_node
    left_out, experiments = LeftOut(), []
    for scheme, grid in product(space.schemes, _grids(question.gpus, space, question.limits)):
        if reason := _not_tried(scheme, grid, per_node) or _counted_before(scheme, grid, space):
            left_out.add(reason, f"{scheme.name} on {grid}")
            continue
        for zero, chunks in product(space.zeros, space.chunks if grid.pipeline > 1 else (1,)):
            for problem in _problems(training, grid, space, zero=zero, chunks=chunks):
                experiment = replace(training, problem=problem, scheme=scheme, grid=grid)
                try:
                    _check(experiment)
                except InputError as error:
                    left_out.add("what does not divide", str(error))
                else:
                    experiments.append(experiment)
    return experiments, left_out


def _grids(gpus: int, space: Space, limits: Limits) -> Iterator[Grid]:
    for count in space.stages or divisors(gpus):
        if gpus % count:
            raise ParameterError("pipeline", f"{count}: a number of stages that divides {gpus} GPUs is accepted")
        for lengths in factorisations(gpus // count, len(MODELLED)):
            grid = Grid(
                **dict(zip(MODELLED, lengths, strict=True)), pipeline=count, order=limits.order or FASTEST_FIRST
            )
            if limits.powers_of_two and any(length & (length - 1) for length in (*lengths, count)):
                continue
            if grid.x * grid.y * grid.z >= limits.least_model_parallel:
                yield grid


def _not_tried(scheme: Scheme, grid: Grid, per_node: int) -> str:
    """Why the scheme is not tried on the grid; empty if it is tried."""
    try:
        scheme.check(grid)
    except InputError:
        return "axes that the scheme lacks"
    if not FORMS[scheme.name](grid):
        return "the form of grids that the scheme is tried on"
    if grid.x * grid.y > WIDEST * per_node:
        return f"sums of activations over more than {WIDEST} nodes"
    return ""


def _counted_before(scheme: Scheme, grid: Grid, space: Space) -> str:
    """Why the configuration is a duplicate: on x alone, 4D is Megatron-LM's scheme; empty if it is none."""
    same = scheme == find_scheme("4d") and grid.z == grid.y == 1 and find_scheme("megatron") in space.schemes
    return "the 4D algorithm on x alone, which is megatron's" if same else ""


def _problems(training: TrainingExperiment, grid: Grid, space: Space, *, zero: int, chunks: int) -> Iterator[Gpt]:
    """The model with each microbatch that is tried, the largest first."""
    problem = training.problem
    assert isinstance(problem, Gpt)
    share = max(1, problem.batch // (grid.data * grid.z))
    sizes: Sequence[int] = space.micro_batches or _sizes(share, most=share if grid.pipeline == 1 else LARGEST)
    for size in sorted(sizes, reverse=True):
        yield replace(problem, micro_batch=size, zero=zero, interleave=chunks)


def _sizes(share: int, most: int) -> list[int]:
    """Powers of two that divide the share, and the share itself, up to `most`.

    >>> _sizes(12, most=12), _sizes(12, most=8)
    ([1, 2, 4, 12], [1, 2, 4])
    """
    powers = [2**power for power in range(share.bit_length())]
    return [size for size in sorted({*powers, share}) if share % size == 0 and size <= most]


def _check(experiment: TrainingExperiment) -> None:
    """Refuse a configuration that is not possible.

    Raises
    ------
    InputError : the configuration is not possible; the message has the reason
    """
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    stages = pipeline_stages(experiment)
    check_gpt(problem, grid, experiment.scheme, problem.batch // stages.microbatches)
    if grid.y > problem.hidden or grid.x > problem.vocabulary:
        raise InputError(
            f"grid {grid}: hidden = {problem.hidden} is cut over y, and vocabulary = {problem.vocabulary} over x: "
            "each part needs one"
        )
