"""Noise of the passes of a pipeline (`--jitter compute=SIGMA`): the sum of the noise of their ops.

In each pass, each op of local work of each rank draws a factor from the distribution of `simulator/ranks/jitter.py`.
Ranks of a stage that communicate within a pass wait for each other:

    clock of a rank += seconds of an op · factor           local work
    clock of a rank  = largest clock of its group          communication along an axis
    noise of a pass  = largest clock - Σ seconds of its ops

Communication that overlaps local work makes no rank wait here.  Ops outside the passes have no noise, and data shards
meet after the passes.
"""

from dataclasses import replace

import numpy as np

from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.program import PassKind, is_concurrent
from quadrille.experiments.predict.pass_times import StageTimes, TimedOp
from quadrille.simulator.ranks.jitter import QUANTILES, Jitter

AXES_OF_A_SHARD: tuple[Axis, ...] = ("z", "y", "x")
"""Axes of the ranks of a stage that process the same data shard."""


def without_op_noise(jitter: Jitter | None) -> Jitter | None:
    """The noise without that of op instances: speeds that differ from GPU to GPU; None if there is no other noise."""
    return replace(jitter, compute=0.0, network=0.0) if jitter is not None and jitter.gpus else None


class PassNoise:
    """Draws the noise of the passes of the ranks of a data shard.

    Parameters
    ----------
    jitter : noise of op instances
    grid : grid of ranks
    shard : coordinate along data
    microbatches : number of microbatches
    """

    def __init__(self, jitter: Jitter, grid: Grid, shard: int, microbatches: int) -> None:
        self._lengths = tuple(grid.length(axis) for axis in AXES_OF_A_SHARD)
        self._seed, self._microbatches = (jitter.seed, shard), microbatches
        self._factors = np.array([jitter.factors(quantile).local for quantile in range(QUANTILES)])

    def of_passes(self, times: StageTimes, stage: int) -> dict[tuple[PassKind, int], list[float]]:
        """Seconds by which the passes of a stage take longer, for each microbatch, by kind and chunk of the passes."""
        draws = np.random.default_rng((*self._seed, stage))
        noise: dict[tuple[PassKind, int], list[float]] = {}
        for section, ops in times.by_section.items():
            if section.phase == "passes":
                drawn, passes = self._of_section(ops, draws), (section.kind, section.chunk)
                noise[passes] = [*noise[passes][:-1], drawn[-1]] if section.of_last else drawn
        return noise

    def _of_section(self, ops: list[TimedOp], draws: np.random.Generator) -> list[float]:
        clocks = np.zeros((*self._lengths, self._microbatches))
        seconds = 0.0
        for timed in ops:
            if not isinstance(timed.op, Communication):
                seconds += timed.span.seconds
                drawn = draws.integers(0, QUANTILES, clocks.shape, dtype=np.uint8)
                clocks += timed.span.seconds * self._factors[drawn]
            elif timed.op.axis in AXES_OF_A_SHARD and not is_concurrent(timed.op):
                clocks = np.broadcast_to(
                    clocks.max(AXES_OF_A_SHARD.index(timed.op.axis), keepdims=True), clocks.shape
                ).copy()
        noise: list[float] = (clocks.max((0, 1, 2)) - seconds).tolist()
        return noise
