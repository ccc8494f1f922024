"""What papers claim of their schemes, each predicted and shown beside the claim; no number is fitted to a claim.

For the gain by overlap the grid is the fastest of the four that are best by the
analytical model; Megatron-LM is given its fastest grid that fits; all others
follow the rule of `claimed_steps.py`.  What a paper's abstract does not print and
is assumed here is in `setting`.  Beside a prediction stands what it would be if
something were otherwise (`what_if`): the causes of a gap that can be tried.

Source: Singh et al., "A 4D Hybrid Algorithm to Scale Parallel Training to
Thousands of GPUs", arXiv 2305.13525, abstract (the gain by overlap: an earlier
version's); Singh et al., "Democratizing AI", SC'24, arXiv 2502.08145, abstract;
Bian et al., "Maximizing Parallelism in Distributed Training for Huge Neural
Networks", arXiv 2105.14450, abstract.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, Grid
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.runtime.host.console import remark
from quadrille.studies.published_training.answers import Claimed, in_words
from quadrille.studies.published_training.claimed_steps import Training, smallest_depth, taken
from quadrille.studies.published_training.limited import limited
from quadrille.studies.published_training.megatron import fastest, megatron_runs

AXONN, SC24, BIAN = "arXiv 2305.13525", "SC'24, arXiv 2502.08145", "arXiv 2105.14450"
BIAN_ORDER: tuple[Axis, ...] = ("z", *(axis for axis in DEFAULT_ORDER if axis != "z"))
"""Of Bian et al. the axis along which weights are gathered is the fastest."""
LIMIT_SECONDS = 900.0
"""What one claim may take."""


def _known(name: str, machine: str, gpus: int, batch: int) -> Training:
    return Training(machine, gpus, SHAPES[name], batch)


AXONN_80B = _known("80b", "perlmutter", 1024, 1024)
AXONN_20B = _known("20b", "perlmutter", 32, 32)
GRIDS_20B = (Grid(z=32), Grid(x=4, z=8), Grid(x=4, z=4, data=2), Grid(x=2, z=16))
"""The four best of at least 16-way tensor parallelism, by the exact form of the analytical model."""
LARGEST = (
    (_known("40b", "perlmutter", 4096, 8192), 48.5),
    (_known("320b", "frontier", 32768, 8192), 22.0),
    (_known("60b", "alps", 6144, 8192), 23.4),
)
TACC = Training(
    "longhorn", 64, ModelShape("24 layers of 4096", 24, 4096, 64, 512, 51200), 64, "bian", "none", "float16"
)
CUBE = Grid(x=4, y=4, z=4, order=BIAN_ORDER)
MESHES = (("megatron", "1-D", Grid(x=64), 2.32), ("optimus", "2-D", Grid(x=8, z=8), 1.57))

FUSED = "device.achieved.attention=fused"
MEASURED = "the network between nodes at what AxoNN's authors measured"
MEASURED_SHARES = {"perlmutter": 0.8, "frontier": 0.4}
"""Of the 100 GB/s of a node's four NICs, in all-reduces over nodes.

Source: axonn-ai/axonn, the communication model's tables: 80 GB/s and 40 GB/s.
"""
SLOWER = "local work that takes 1.19 times as long beside communication"
"""Lee et al., "Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning", arXiv
2507.03114: 18.9 % on average over A100, H100, MI250 and MI210."""
FREE_SUMS = "sums over data that cost nothing"
QUARTER = "topology.bandwidth_bytes_per_second=x0.25"


def predicted_claims(limit: float = LIMIT_SECONDS) -> Iterator[Claimed]:
    """Every claim with its prediction; progress goes to stderr, because claims take minutes.

    Parameters
    ----------
    limit : time after which a claim is left out [s]
    """
    for name, unit, claimed, source, work in CLAIMS:
        remark(f"{name} …")
        begun = time.monotonic()
        prediction = limited(work, limit)
        if prediction is None:
            prediction = Found(None, f"left out: not done after {limit:g} s", {})
        claim = Claimed(
            name=name,
            source=source,
            unit=unit,
            claimed=claimed,
            predicted=prediction.predicted,
            predicted_low=prediction.low,
            predicted_high=prediction.high,
            relative_error=None if prediction.predicted is None else prediction.predicted / claimed - 1,
            setting=prediction.setting,
            what_if=prediction.what_if,
        )
        said = prediction.setting if prediction.predicted is None else in_words(claim)
        remark(f"{name}: {said} ({time.monotonic() - begun:.0f} s)")
        yield claim


@dataclass(frozen=True, slots=True)
class Found:
    """What is predicted, for what setting, and what it would be otherwise; `low` and `high` where it is not exact."""

    predicted: float | None
    setting: str
    what_if: Mapping[str, float]
    low: float | None = None
    high: float | None = None


def share_of_peak(training: Training, others: tuple[tuple[str, Training], ...]) -> Found:
    """The share of peak in hardware flop/s, on the grid of the paper's rule.

    Parameters
    ----------
    others : variants of the training with their names; they count only if the step is exact, because otherwise only
        the upper bound contains the slowdown of work beside communication
    """
    grid = smallest_depth(training)
    step = taken(training, grid)
    deeper = replace(grid, z=2 * grid.z, data=grid.data // 2)
    what_if = {FREE_SUMS: training.share_of_peak(step.seconds - step.sums)}
    what_if[f"grid {deeper}"] = training.share_of_peak(taken(training, deeper).seconds)
    if step.exact:
        what_if |= {words: changed.share_of_peak(taken(changed, grid).seconds) for words, changed in others}
    low, high = (None if step.exact else training.share_of_peak(seconds) for seconds in (step.high, step.low))
    return Found(training.share_of_peak(step.seconds), f"grid {grid}", what_if, low, high)


def ahead_of_megatron() -> Found:
    """How much longer Megatron-LM takes, with its fastest grid that fits."""
    run, theirs = fastest(megatron_runs(AXONN_80B))
    setting = f"Megatron-LM: tensor={run.tensor}, pipeline={run.pipeline}, data={run.data}, microbatches of {run.micro}"
    ours = taken(AXONN_80B, smallest_depth(AXONN_80B))
    free_sums = 100 * (theirs / (ours.seconds - ours.sums) - 1)
    return Found(100 * (theirs / ours.seconds - 1), setting, {FREE_SUMS: free_sums})


def gain_by_overlap() -> Found:
    def gain(grid: Grid) -> float:
        return 100 * (taken(AXONN_20B, grid, frozenset()).seconds / taken(AXONN_20B, grid).seconds - 1)

    grid = min(GRIDS_20B, key=lambda candidate: taken(AXONN_20B, candidate).seconds)
    others = {f"grid {candidate}": gain(candidate) for candidate in GRIDS_20B if candidate != grid}
    return Found(gain(grid), f"grid {grid}; GPUs and batch are assumed", others)


def cube_against(scheme: str, grid: Grid) -> Found:
    """How many times as long another scheme takes."""

    def times(*settings: str) -> float:
        ours = TACC.what_if(*settings)
        theirs = replace(ours, scheme=scheme)
        return taken(theirs, grid, frozenset()).seconds / taken(ours, CUBE, frozenset()).seconds

    setting = f"{TACC.shape.name}, sequence {TACC.shape.sequence}, batch {TACC.batch}, float16: assumed"
    return Found(times(), setting, {"a quarter of the network's bandwidth": times(QUARTER)})


def _of_peak(training: Training, *more: tuple[str, str]) -> Callable[[], Found]:
    """A function that predicts a share of peak, with the usual variants and more variants (name, setting)."""
    tried = [(SLOWER, "device.overlap_slowdown=1.19"), *more]
    if share := MEASURED_SHARES.get(training.machine):
        tried.append((MEASURED, f"topology.bandwidth_bytes_per_second=x{share}"))
    return partial(share_of_peak, training, tuple((words, training.what_if(setting)) for words, setting in tried))


CLAIMS: tuple[tuple[str, str, float, str, Callable[[], Found]], ...] = (
    (
        f"{AXONN_80B.words}: share of peak",
        "%",
        57.0,
        AXONN,
        _of_peak(AXONN_80B, ("fused attention", FUSED)),
    ),
    (f"{AXONN_80B.words}: ahead of Megatron-LM", "%", 26.0, AXONN, ahead_of_megatron),
    (f"{AXONN_20B.words}: gain by overlap", "%", 53.0, AXONN, gain_by_overlap),
    *(
        (f"64 V100 of longhorn: 3-D over {name}", "x", claimed, BIAN, partial(cube_against, scheme, grid))
        for scheme, name, grid, claimed in MESHES
    ),
    *((f"{training.words}: share of peak", "%", claimed, SC24, _of_peak(training)) for training, claimed in LARGEST),
)
"""Name, unit, what is claimed, by whom, and how it is predicted."""
