"""The claims of papers about their parallel training schemes, each with its prediction; nothing is fitted to a claim.

The grid of a prediction follows the rule of `claimed_steps.py`, with two exceptions: for the gain by overlap it is the
fastest of the four grids that the paper's analytical model ranks best, and Megatron-LM gets its fastest grid that fits
in memory.  `setting` states the assumptions that the paper's abstract does not print.  `what_if` has predictions under
other assumptions, the possible causes of a difference.

Source: Singh et al., "A 4D Hybrid Algorithm to Scale Parallel Training to
Thousands of GPUs", arXiv 2305.13525, abstract (the gain by overlap: an earlier
version's); Singh et al., "Democratizing AI", SC'24, arXiv 2502.08145, abstract;
Bian et al., "Maximizing Parallelism in Distributed Training for Huge Neural
Networks", arXiv 2105.14450, abstract.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, Grid
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.runtime.host.console import remark
from quadrille.studies.published_training.claimed_steps import ClaimedTraining, paper_grid, step_time
from quadrille.studies.published_training.megatron_search import fastest, megatron_runs
from quadrille.studies.published_training.report import Claim, predicted_text
from quadrille.studies.published_training.time_limit import run_with_time_limit

AXONN, SC24, BIAN = "arXiv 2305.13525", "SC'24, arXiv 2502.08145", "arXiv 2105.14450"
BIAN_ORDER: tuple[Axis, ...] = ("z", *(axis for axis in DEFAULT_ORDER if axis != "z"))
"""Order of the axes in Bian et al.: ranks along z, the axis along which weights are gathered, are neighbours."""
LIMIT_SECONDS = 900.0
"""Time limit for the prediction of one claim [s]."""


def known_training(name: str, machine: str, gpus: int, batch: int) -> ClaimedTraining:
    """The training of a model that the project knows by name."""
    return ClaimedTraining(machine, gpus, SHAPES[name], batch)


AXONN_80B = known_training("80b", "perlmutter", 1024, 1024)
AXONN_20B = known_training("20b", "perlmutter", 32, 32)
GRIDS_20B = (Grid(z=32), Grid(x=4, z=8), Grid(x=4, z=4, data=2), Grid(x=2, z=16))
"""The four best grids with at least 16-way tensor parallelism, by the paper's analytical model."""
LARGEST = (
    (known_training("40b", "perlmutter", 4096, 8192), 48.5),
    (known_training("320b", "frontier", 32768, 8192), 22.0),
    (known_training("60b", "alps", 6144, 8192), 23.4),
)
TACC = ClaimedTraining(
    "longhorn", 64, ModelShape("24 layers of 4096", 24, 4096, 64, 512, 51200), 64, "bian", "none", "float16"
)
CUBE = Grid(x=4, y=4, z=4, order=BIAN_ORDER)
MESHES = (("megatron", "1-D", Grid(x=64), 2.32), ("optimus", "2-D", Grid(x=8, z=8), 1.57))

FUSED = "device.achieved.attention=fused"
MEASURED = "the network between nodes at what AxoNN's authors measured"
MEASURED_SHARES = {"perlmutter": 0.8, "frontier": 0.4}
"""Measured share of the 100 GB/s of a node's four NICs, in all-reduces over nodes.

Source: axonn-ai/axonn, the communication model's tables: 80 GB/s and 40 GB/s.
"""
SLOWER = "local work that takes 1.19 times as long beside communication"
"""Lee et al., "Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning", arXiv
2507.03114: 18.9 % on average over A100, H100, MI250 and MI210."""
FREE_SUMS = "sums over data that cost nothing"
QUARTER = "topology.bandwidth_bytes_per_second=x0.25"


@dataclass(frozen=True, slots=True)
class ClaimPrediction:
    """The prediction of a claim.

    Parameters
    ----------
    predicted : predicted value; None if the prediction took too long
    setting : grid and assumptions
    what_if : predictions under other assumptions, by the name of the assumption
    low, high : bounds of the exact prediction; None if `predicted` is exact
    """

    predicted: float | None
    setting: str
    what_if: Mapping[str, float]
    low: float | None = None
    high: float | None = None


def share_of_peak(training: ClaimedTraining, others: tuple[tuple[str, ClaimedTraining], ...]) -> ClaimPrediction:
    """The predicted share of peak in hardware flop/s [%], on the grid of `paper_grid`.

    Parameters
    ----------
    training : training that the claim is about
    others : variants of the training with their names; they count only if the step is exact, because otherwise only
        the upper bound contains the slowdown of computation that overlaps with communication
    """
    grid = paper_grid(training)
    step = step_time(training, grid)
    deeper = replace(grid, z=2 * grid.z, data=grid.data // 2)
    what_if = {FREE_SUMS: training.share_of_peak(step.seconds - step.sums)}
    what_if[f"grid {deeper}"] = training.share_of_peak(step_time(training, deeper).seconds)
    if step.exact:
        what_if |= {name: changed.share_of_peak(step_time(changed, grid).seconds) for name, changed in others}
    low, high = (None if step.exact else training.share_of_peak(seconds) for seconds in (step.high, step.low))
    return ClaimPrediction(training.share_of_peak(step.seconds), f"grid {grid}", what_if, low, high)


def ahead_of_megatron() -> ClaimPrediction:
    """The predicted extra time of Megatron-LM with its fastest grid that fits, relative to AxoNN [%]."""
    run, theirs = fastest(megatron_runs(AXONN_80B))
    setting = f"Megatron-LM: tensor={run.tensor}, pipeline={run.pipeline}, data={run.data}, microbatches of {run.micro}"
    ours = step_time(AXONN_80B, paper_grid(AXONN_80B))
    free_sums = 100 * (theirs / (ours.seconds - ours.sums) - 1)
    return ClaimPrediction(100 * (theirs / ours.seconds - 1), setting, {FREE_SUMS: free_sums})


def gain_by_overlap() -> ClaimPrediction:
    """The predicted extra time of AxoNN's step without overlap, relative to the step with overlap [%]."""

    def gain(grid: Grid) -> float:
        """The gain on a grid [%]."""
        return 100 * (step_time(AXONN_20B, grid, frozenset()).seconds / step_time(AXONN_20B, grid).seconds - 1)

    grid = min(GRIDS_20B, key=lambda candidate: step_time(AXONN_20B, candidate).seconds)
    others = {f"grid {candidate}": gain(candidate) for candidate in GRIDS_20B if candidate != grid}
    return ClaimPrediction(gain(grid), f"grid {grid}; GPUs and batch are assumed", others)


def cube_against(scheme: str, grid: Grid) -> ClaimPrediction:
    """The predicted time of another scheme divided by that of Bian et al.'s 3-D scheme.

    Parameters
    ----------
    scheme : name of the other scheme
    grid : grid of the other scheme
    """

    def times(*settings: str) -> float:
        """The ratio of the two times on a machine with these changes."""
        ours = TACC.what_if(*settings)
        theirs = replace(ours, scheme=scheme)
        return step_time(theirs, grid, frozenset()).seconds / step_time(ours, CUBE, frozenset()).seconds

    setting = f"{TACC.shape.name}, sequence {TACC.shape.sequence}, batch {TACC.batch}, float16: assumed"
    return ClaimPrediction(times(), setting, {"a quarter of the network's bandwidth": times(QUARTER)})


def _of_peak(training: ClaimedTraining, *more: tuple[str, str]) -> Callable[[], ClaimPrediction]:
    """The function that predicts the share of peak of a training.

    Parameters
    ----------
    training : training that the claim is about
    more : variants in addition to the usual ones: name, and change to the machine as `--set` takes it
    """
    variants = [(SLOWER, "device.overlap_slowdown=1.19"), *more]
    if share := MEASURED_SHARES.get(training.machine):
        variants.append((MEASURED, f"topology.bandwidth_bytes_per_second=x{share}"))
    return partial(share_of_peak, training, tuple((name, training.what_if(setting)) for name, setting in variants))


PublishedClaim = tuple[str, str, float, str, Callable[[], ClaimPrediction]]
"""Name, unit, published figure, source, and the function that predicts the figure."""
CLAIMS: tuple[PublishedClaim, ...] = (
    (
        f"{AXONN_80B.description}: share of peak",
        "%",
        57.0,
        AXONN,
        _of_peak(AXONN_80B, ("fused attention", FUSED)),
    ),
    (f"{AXONN_80B.description}: ahead of Megatron-LM", "%", 26.0, AXONN, ahead_of_megatron),
    (f"{AXONN_20B.description}: gain by overlap", "%", 53.0, AXONN, gain_by_overlap),
    *(
        (f"64 V100 of longhorn: 3-D over {name}", "x", claimed, BIAN, partial(cube_against, scheme, grid))
        for scheme, name, grid, claimed in MESHES
    ),
    *(
        (f"{training.description}: share of peak", "%", claimed, SC24, _of_peak(training))
        for training, claimed in LARGEST
    ),
)


def predicted_claims(limit: float = LIMIT_SECONDS, claims: Sequence[PublishedClaim] = CLAIMS) -> Iterator[Claim]:
    """Every claim with its prediction; progress goes to stderr, because a claim takes minutes.

    Parameters
    ----------
    limit : time limit for one claim, after which the claim is left out [s]
    claims : published claims to predict
    """
    for name, unit, claimed, source, work in claims:
        remark(f"{name} …")
        start = time.monotonic()
        prediction = run_with_time_limit(work, limit)
        if prediction is None:
            prediction = ClaimPrediction(None, f"left out: not done after {limit:g} s", {})
        claim = Claim(
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
        outcome = prediction.setting if prediction.predicted is None else predicted_text(claim)
        remark(f"{name}: {outcome} ({time.monotonic() - start:.0f} s)")
        yield claim


"""The claims: name, unit, claimed value, paper, and the function that predicts the value."""
