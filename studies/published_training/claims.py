"""The claims of papers about their parallel training schemes, each with its prediction; nothing is fitted to a claim.

AxoNN runs with fused attention, as its authors ran it, and Megatron-LM with fused attention, sequence parallelism and
interleaved stages.  The grid of a prediction follows the rule of `claimed_steps.py`, with two exceptions: for the gain
by overlap it is the fastest of the four grids that the paper's analytical model ranks best, and Megatron-LM gets its
fastest grid that fits in memory.  `assumptions` states what the paper's abstract does not print.  `what_if` has
predictions under other assumptions, the possible causes of a difference.

Of IPDPS'22, message-driven pipelines are predicted pass by pass (`pipeline_claims.py`), and static pipelines: the best
of Megatron-LM and DeepSpeed on the same GPUs, and AxoNN's pipeline without the memory optimisation.  The claimed ranges
of static pipelines follow from the abstract: AxoNN's share of peak divided by the claimed gains.

Source: Singh et al., "A 4D Hybrid Algorithm to Scale Parallel Training to
Thousands of GPUs", arXiv 2305.13525, abstract (the gain by overlap: an earlier
version's); Singh et al., "Democratizing AI", SC'24, arXiv 2502.08145, abstract;
Singh, Bhatele, "AxoNN", IPDPS'22, arXiv 2110.13005, abstract; Singh, Bhatele,
SAMO, IPDPS'23, arXiv 2302.05045, abstract; Bian et al.,
"Maximizing Parallelism in Distributed Training for Huge Neural Networks",
arXiv 2105.14450, abstract; axonn-ai/Megatron-AxoNN, examples/run_megatron.sh
and template_perlmutter.sh (fused attention and full recomputation of both).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, Grid
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import remark
from quadrille.studies.published_training.claim_prediction import ClaimPrediction
from quadrille.studies.published_training.claimed_steps import (
    DIFFERING,
    FUSED,
    UNFUSED,
    ClaimedTraining,
    paper_grid,
    share_by_nccl,
    step_time,
)
from quadrille.studies.published_training.megatron_search import (
    MEGATRON_CORE,
    PLAIN_1F1B,
    MegatronSetup,
    fastest,
)
from quadrille.studies.published_training.pipeline_claims import (
    compressed_communication,
    compressed_gain,
    compressed_states,
    gain_by_offload,
    offloaded_states,
    pipeline_share,
)
from quadrille.studies.published_training.report import Claim, predicted_text
from quadrille.studies.published_training.time_limit import run_with_time_limit

AXONN, SC24, BIAN = "arXiv 2305.13525", "SC'24, arXiv 2502.08145", "arXiv 2105.14450"
IPDPS, SAMO = "IPDPS'22, arXiv 2110.13005", "IPDPS'23, arXiv 2302.05045"
BIAN_ORDER: tuple[Axis, ...] = ("z", *(axis for axis in DEFAULT_ORDER if axis != "z"))
"""Order of the axes in Bian et al.: ranks along z, the axis along which weights are gathered, are neighbours."""
LIMIT_SECONDS = 1800.0
"""Time limit for the prediction of one claim [s]."""
AT_A_TIME = 2
"""Number of claims that are predicted at a time."""


def known_training(name: str, machine: str, gpus: int, batch: int) -> ClaimedTraining:
    """The training of a model that the project knows by name, with fused attention."""
    return ClaimedTraining(machine, gpus, SHAPES[name], batch, settings=(FUSED,))


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

SUMMIT_BATCH = 16384
SUMMIT_RUNS = tuple(
    ClaimedTraining(
        "summit",
        gpus,
        ModelShape(f"{layers} layers of {hidden}", layers, hidden, heads, 512, 51200),
        SUMMIT_BATCH,
        half="float16",
    )
    for gpus, layers, hidden, heads in (
        (48, 48, 4512, 24),
        (96, 48, 6336, 36),
        (192, 96, 6528, 48),
        (384, 96, 9360, 60),
    )
)
"""Transformers of 12, 23, 49 and 101 billion parameters on the claimed numbers of GPUs; their sizes are assumed."""
SAMO_RUN = ClaimedTraining("summit", 512, SHAPES["gpt3-2.7b"], 512, half="float16")
"""GPT-3 2.7B with its own batch of a million tokens."""
AXONN_SHARE = (49.4, 54.78)
"""Share of peak of AxoNN [%]."""
STATIC = (round(49.4 / 1.25, 1), round(54.78 / 1.15, 1))
"""Share of peak of the state of the art: that of AxoNN, 49.4 to 54.78 %, which is 15 to 25 % faster [%]."""
UNOPTIMISED = (round(49.4 / 1.13, 1), round(54.78 / 1.13, 1))
"""Share of peak of AxoNN without the memory optimisation, which makes it 13 % faster [%]."""
AXONN_1F1B = replace(PLAIN_1F1B, tensor=False, zero=(0,))
"""AxoNN's pipeline without the memory optimisation, with a static order: no tensor parallelism, whole optimizer."""
SLOWER = "local work that takes 1.19 times as long beside communication"
"""Lee et al., "Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning", arXiv
2507.03114: 18.9 % on average over A100, H100, MI250 and MI210."""
FREE_SUMS = "sums over data that cost nothing"
BY_PASSES = "unfused attention"
NCCL = "collectives by NCCL's model"
MOST_EXACT = 8192
"""Largest number of GPUs of which variants are simulated exactly."""
MEASURED = "the network between nodes at what AxoNN's authors measured"
QUARTER = "topology.bandwidth_bytes_per_second=x0.25"


RULE = "x fills a node, z is the least that fits"
AXONN_SETUP = ("fused attention", "full recomputation", "bfloat16", "OAR, ORS and OAG", "rings over the links")
"""Assumptions of AxoNN's runs, from the authors' scripts; the collectives are the study's."""


def share_of_peak(training: ClaimedTraining, others: tuple[tuple[str, ClaimedTraining], ...]) -> ClaimPrediction:
    """The predicted share of peak in hardware flop/s [%], on the grid of `paper_grid`.

    Parameters
    ----------
    training : training that the claim is about
    others : variants of the training with their names; they are exact if the step is, and if it has few GPUs
    """
    grid = paper_grid(training)
    step = step_time(training, grid)
    what_if = {FREE_SUMS: training.share_of_peak(step.seconds - step.sums), NCCL: share_by_nccl(training, grid)}
    what_if[f"{NCCL}, GPUs that differ in speed"] = share_by_nccl(training, grid, DIFFERING)
    deeper = replace(grid, z=2 * grid.z, data=grid.data // 2)
    what_if |= _variants(training, ((f"grid {deeper}", training, deeper),), exact=step.exact)
    what_if |= _variants(training, tuple((name, changed, grid) for name, changed in others), exact=step.exact)
    low, high = (None if step.exact else training.share_of_peak(seconds) for seconds in (step.high, step.low))
    return ClaimPrediction(
        training.share_of_peak(step.seconds), f"grid {grid}", what_if, low, high, (RULE, *AXONN_SETUP)
    )


def _variants(
    training: ClaimedTraining, variants: tuple[tuple[str, ClaimedTraining, Grid], ...], *, exact: bool
) -> dict[str, float]:
    """The share of peak of each variant of a training by name [%].

    It is by NCCL's model if there are more than `MOST_EXACT` GPUs, where an exact step takes minutes, or if no step is
    exact.  The slowdown of computation beside communication is then left out, which that model has in its upper bound
    only.
    """
    if exact and training.gpus <= MOST_EXACT:
        return {name: changed.share_of_peak(step_time(changed, own).seconds) for name, changed, own in variants}
    return {f"{NCCL}, {name}": share_by_nccl(changed, own) for name, changed, own in variants if name != SLOWER}


def ahead_of_megatron() -> ClaimPrediction:
    """The predicted extra time of Megatron-LM with its fastest grid that fits, relative to AxoNN [%]."""
    ours = step_time(AXONN_80B, paper_grid(AXONN_80B))

    def ahead(setup: MegatronSetup, seconds: float = ours.seconds) -> float:
        """AxoNN's lead over Megatron-LM with these features [%]."""
        return 100 * (fastest(AXONN_80B, setup)[1] / seconds - 1)

    run, _ = fastest(AXONN_80B)
    what_if = {
        FREE_SUMS: ahead(MEGATRON_CORE, ours.seconds - ours.sums),
        "Megatron-LM without interleaving": ahead(replace(MEGATRON_CORE, interleaving=False)),
        "Megatron-LM without sequence parallelism": ahead(replace(MEGATRON_CORE, sequence_parallel=False)),
        "Megatron-LM with unfused attention": ahead(replace(MEGATRON_CORE, attention="unfused")),
    }
    assumptions = (*AXONN_SETUP[:3], "Megatron-LM: sequence parallelism, interleaving, sharded optimizer, NCCL")
    return ClaimPrediction(ahead(MEGATRON_CORE), f"Megatron-LM: {_lengths(run)}", what_if, assumptions=assumptions)


def _lengths(run: TrainingExperiment) -> str:
    """The parallel configuration of a run as text."""
    grid, problem = run.grid, run.problem
    assert isinstance(problem, Gpt)
    chunks = f", {problem.interleave} chunks a stage" if problem.interleave > 1 else ""
    lengths = f"tensor={grid.x}, pipeline={grid.pipeline}, data={grid.data}, microbatches of {problem.micro_batch}"
    return f"{lengths}{chunks}, ZeRO {problem.zero}"


def gain_by_overlap() -> ClaimPrediction:
    """The predicted extra time of AxoNN's step without overlap, relative to the step with overlap [%]."""

    def gain(grid: Grid) -> float:
        """The gain on a grid [%]."""
        return 100 * (step_time(AXONN_20B, grid, frozenset()).seconds / step_time(AXONN_20B, grid).seconds - 1)

    grid = min(GRIDS_20B, key=lambda candidate: step_time(AXONN_20B, candidate).seconds)
    others = {f"grid {candidate}": gain(candidate) for candidate in GRIDS_20B if candidate != grid}
    assumptions = ("32 GPUs of Perlmutter", "32 sequences", *AXONN_SETUP[:3])
    return ClaimPrediction(gain(grid), f"grid {grid}", others, assumptions=assumptions)


def cube_against(scheme: str, grid: Grid) -> ClaimPrediction:
    """The predicted time of another scheme divided by that of Bian et al.'s 3-D scheme.

    Parameters
    ----------
    scheme : name of the other scheme
    grid : grid of the other scheme
    """

    def times(training: ClaimedTraining) -> float:
        """The ratio of the two times for a training."""
        theirs = replace(training, scheme=scheme)
        return step_time(theirs, grid, frozenset()).seconds / step_time(training, CUBE, frozenset()).seconds

    wide = replace(TACC, shape=replace(TACC.shape, name="24 layers of 8192", hidden=8192))
    what_if = {
        "a quarter of the network's bandwidth": times(TACC.what_if(QUARTER)),
        "layers of 8192": times(wide),
        "a quarter of the batch": times(replace(TACC, batch=TACC.batch // 4)),
    }
    assumptions = (TACC.shape.name, f"sequences of {TACC.shape.sequence}", f"batch {TACC.batch}", "float16")
    return ClaimPrediction(times(TACC), f"grids {CUBE} and {grid}", what_if, assumptions=assumptions)


def static_pipeline(training: ClaimedTraining, setup: MegatronSetup = PLAIN_1F1B) -> ClaimPrediction:
    """The predicted share of peak of the fastest static pipeline that fits [%].

    Parameters
    ----------
    training : training that the claim is about
    setup : features that the pipeline may use
    """
    run, seconds = fastest(training, setup)
    what_if = {}
    if not setup.tensor:  # memory decides the number of stages
        _, roomy = fastest(training.what_if("device.memory_bytes=x2"), setup)
        what_if = {"GPUs with twice the memory": training.share_of_peak(roomy)}
    assumptions = (training.shape.name, f"batch {training.batch}", "unfused attention", "full recomputation", "float16")
    return ClaimPrediction(training.share_of_peak(seconds), _lengths(run), what_if, assumptions=assumptions)


def _of_peak(training: ClaimedTraining) -> Callable[[], ClaimPrediction]:
    """The function that predicts the share of peak of a training."""
    variants = [(SLOWER, training.what_if("device.overlap_slowdown=1.19")), (BY_PASSES, training.what_if(UNFUSED))]
    if measured := training.on_measured_network:
        variants.append((MEASURED, measured))
    return partial(share_of_peak, training, tuple(variants))


Claimed = float | tuple[float, float]
"""The published figure, or the ends of a published range."""
PublishedClaim = tuple[str, str, Claimed, str, Callable[[], ClaimPrediction]]
"""Name, unit, published figure, source, and the function that predicts the figure."""
CLAIMS: tuple[PublishedClaim, ...] = (
    (f"{AXONN_80B.description}: share of peak", "%", 57.0, AXONN, _of_peak(AXONN_80B)),
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
    *(
        (f"{run.description}: best of Megatron-LM and DeepSpeed", "%", STATIC, IPDPS, partial(static_pipeline, run))
        for run in SUMMIT_RUNS
    ),
    (
        f"{SUMMIT_RUNS[0].description}: AxoNN without its memory optimisation",
        "%",
        UNOPTIMISED,
        IPDPS,
        partial(static_pipeline, SUMMIT_RUNS[0], AXONN_1F1B),
    ),
    *(
        (f"{run.description}: AxoNN, message-driven, offloaded", "%", AXONN_SHARE, IPDPS, partial(pipeline_share, run))
        for run in SUMMIT_RUNS
    ),
    (
        f"{SUMMIT_RUNS[0].description}: states on the device without offload",
        "x",
        4.0,
        IPDPS,
        partial(offloaded_states, SUMMIT_RUNS[0]),
    ),
    (
        f"{SUMMIT_RUNS[0].description}: gain by the memory optimisation",
        "%",
        13.0,
        IPDPS,
        partial(gain_by_offload, SUMMIT_RUNS[0]),
    ),
    (f"{SAMO_RUN.description}: SAMO's states", "%", -74.0, SAMO, partial(compressed_states, SAMO_RUN)),
    (f"{SAMO_RUN.description}: SAMO's communication", "%", -40.0, SAMO, partial(compressed_communication, SAMO_RUN)),
    (f"{SAMO_RUN.description}: SAMO ahead of AxoNN", "%", 34.0, SAMO, partial(compressed_gain, SAMO_RUN)),
)


def relative_error(predicted: float, claimed: Claimed) -> float:
    """Predicted / claimed - 1; of a range, the distance from its nearest end, and 0 within it.

    >>> relative_error(3.0, 2.0), relative_error(3.0, (2.0, 4.0)), relative_error(5.0, (2.0, 4.0))
    (0.5, 0.0, 0.25)
    """
    low, high = claimed if isinstance(claimed, tuple) else (claimed, claimed)
    return predicted / min(max(predicted, low), high) - 1


def claims_named(part: str) -> list[PublishedClaim]:
    """The claims whose names have a part; all claims for an empty part.

    >>> [name.rpartition(": ")[2] for name, *_ in claims_named("80b")]
    ['share of peak', 'ahead of Megatron-LM']

    Raises
    ------
    InputError : no name has the part
    """
    chosen = [claim for claim in CLAIMS if part in claim[0]]
    if not chosen:
        raise InputError(
            f"--only {part}: is in no name of a claim; accepted are parts of them, such as {CLAIMS[0][0]!r}"
        )
    return chosen


def predicted_claims(limit: float = LIMIT_SECONDS, claims: Sequence[PublishedClaim] = CLAIMS) -> Iterator[Claim]:
    """Every claim with its prediction, two at a time; progress goes to stderr, because a claim takes minutes.

    Parameters
    ----------
    limit : time limit for one claim, after which the claim is left out [s]
    claims : published claims to predict
    """
    with ThreadPoolExecutor(AT_A_TIME) as pool:  # each claim has a process of its own
        yield from pool.map(partial(_predicted_claim, limit), claims)


def _predicted_claim(limit: float, published: PublishedClaim) -> Claim:
    """The claim with its prediction, or with the reason why it is left out."""
    name, unit, claimed, source, work = published
    remark(f"{name} …")
    start = time.monotonic()
    prediction = run_with_time_limit(work, limit)
    if prediction is None:
        prediction = ClaimPrediction(None, f"left out: not done after {limit:g} s", {})
    claim = Claim(
        name=name,
        source=source,
        unit=unit,
        claimed=claimed[0] if isinstance(claimed, tuple) else claimed,
        claimed_high=claimed[1] if isinstance(claimed, tuple) else None,
        predicted=prediction.predicted,
        predicted_low=prediction.low,
        predicted_high=prediction.high,
        relative_error=None if prediction.predicted is None else relative_error(prediction.predicted, claimed),
        setting=prediction.setting,
        what_if=prediction.what_if,
        assumptions=list(prediction.assumptions),
    )
    outcome = prediction.setting if prediction.predicted is None else predicted_text(claim)
    remark(f"{name}: {outcome} ({time.monotonic() - start:.0f} s)")
    return claim
