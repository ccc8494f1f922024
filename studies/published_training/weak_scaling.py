"""The weak scaling of AxoNN on Perlmutter, Frontier and Alps: published and predicted share of peak.

The number of parameters grows with the number of GPUs, the batch stays 8,192 sequences.  Every step is what `quadrille
simulate` predicts with the collectives of the machine (NCCL's model), fused attention and full recomputation; `command`
is the command line of `differing`.

The grid is the fastest of two kinds of candidates, as predicted for equal GPUs:

    rule    x fills a node and z is the smallest power of two with which the model fits (`claimed_steps.paper_grid`)
    model   the fastest of the three grids that AxoNN's communication model ranks best, among grids with at least as
            many ranks over x, y and z as AxoNN's launch script asks for

What may grow with scale is added step by step:

    untapered    cables between groups that never fill, so that nothing is tapered
    equal        the machine as it is, with equal GPUs
    differing    GPUs that differ in speed: all wait for the slowest (`--jitter gpus=machine`)
    measured     the same, and the network between nodes at the rate that AxoNN's authors measured

No number is fitted to a published point.

Source: axonn-ai/Megatron-AxoNN, examples/launch_per_comm_model.py (least tensor
parallelism of each model; the grids of the communication model are launched,
and the fastest run counts), examples/template_perlmutter.sh (fused attention,
full recomputation); Singh et al., SC'24, arXiv 2502.08145, abstract (the
largest runs).  The share on 8,192 GCDs of Frontier is from a public summary of
the paper.  The models of the smaller runs are an assumption: as many parameters
for each GPU as in the largest run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Grid, complete_order
from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.runtime.host.console import remark
from quadrille.studies.published_training.claimed_steps import (
    DIFFERING,
    FUSED,
    ClaimedTraining,
    paper_grid,
    share_by_nccl,
)
from quadrille.studies.published_training.scaling_point import ScalingPoint

BATCH = 8192
DEPTH_FIRST = complete_order(("y", "z", "x", "data"))
UNTAPERED = "topology.global_bandwidth_bytes_per_second=x1000"


@dataclass(frozen=True, slots=True)
class ScalingRun:
    """A run of the weak scaling.

    Parameters
    ----------
    machine : name of the machine
    model : name of the model
    gpus : number of GPUs
    grid : fastest grid of the three that the communication model ranks best, see `RANK_COMMAND`; None if
        the grids were not ranked
    published : published share of peak [%]; None if it is not at hand
    source : source of the published share
    """

    machine: str
    model: str
    gpus: int
    grid: Grid | None
    published: float | None = None
    source: str = ""

    @property
    def training(self) -> ClaimedTraining:
        """The training of the run, with fused attention."""
        shape = SHAPES[self.model]
        return ClaimedTraining(self.machine, self.gpus, shape, BATCH, attention_dropout=0.0).what_if(FUSED)


RANK_COMMAND = (
    "quadrille rank --gpt MODEL --batch 8192 --gpus GPUS --machine MACHINE --overlap oar,ors,oag --recompute full "
    "--top 3 --min-model-parallel LEAST --powers-of-two"
)
"""The command whose fastest grid is the grid of a run; LEAST is 4, 8, 16, 32, 64, 64, 128, 256 from 5B to 320B."""
ABSTRACT, SUMMARY = "abstract", "public summary"
RUNS = (
    ScalingRun("perlmutter", "5b", 512, Grid(z=512)),
    ScalingRun("perlmutter", "10b", 1024, Grid(z=256, data=4)),
    ScalingRun("perlmutter", "20b", 2048, Grid(z=512, data=4)),
    ScalingRun("perlmutter", "40b", 4096, Grid(z=1024, data=4), 48.5, ABSTRACT),
    ScalingRun("frontier", "5b", 512, Grid(z=256, data=2)),
    ScalingRun("frontier", "10b", 1024, Grid(z=256, data=4)),
    ScalingRun("frontier", "20b", 2048, Grid(z=512, data=4)),
    ScalingRun("frontier", "40b", 4096, Grid(z=1024, data=4)),
    ScalingRun("frontier", "80b", 8192, Grid(x=2, z=2048, data=2, order=DEPTH_FIRST), 36.3, SUMMARY),
    ScalingRun("frontier", "160b", 16384, Grid(x=2, z=4096, data=2, order=DEPTH_FIRST)),
    ScalingRun("frontier", "320b", 32768, None, 22.0, ABSTRACT),
    ScalingRun("alps", "10b", 1024, Grid(z=128, data=8)),
    ScalingRun("alps", "20b", 2048, Grid(z=256, data=8)),
    ScalingRun("alps", "40b", 4096, None),
    ScalingRun("alps", "60b", 6144, None, 23.4, ABSTRACT),
)


def scaling_points(runs: Sequence[ScalingRun] = RUNS) -> Iterator[ScalingPoint]:
    """Every run with its predictions; progress goes to stderr."""
    for run in runs:
        remark(f"weak scaling, {run.model} on {run.gpus} GPUs of {run.machine} …")
        yield scaling_point(run)


def scaling_point(run: ScalingRun) -> ScalingPoint:
    """The predictions of a run."""
    training = run.training
    candidates = {"rule": paper_grid(training)} | ({"model": run.grid} if run.grid is not None else {})
    shares = {name: share_by_nccl(training, grid) for name, grid in candidates.items()}
    chosen = max(shares, key=shares.__getitem__)
    grid, slow = candidates[chosen], training.on_measured_network
    return ScalingPoint(
        machine=run.machine,
        model=run.model,
        gpus=run.gpus,
        grid=str(grid),
        chosen=chosen,
        published=run.published,
        source=run.source,
        untapered=share_by_nccl(training.what_if(UNTAPERED), grid),
        equal=shares[chosen],
        differing=share_by_nccl(training, grid, DIFFERING),
        measured=share_by_nccl(slow, grid, DIFFERING) if slow else None,
        command=_command(run, grid),
    )


def _command(run: ScalingRun, grid: Grid) -> str:
    """The command line that predicts the step with GPUs that differ."""
    order = "" if grid.order == DEFAULT_ORDER else f" --order {','.join(grid.order)}"
    return (
        f"quadrille simulate --gpt {run.model} --batch {BATCH} --grid {grid}{order} --machine {run.machine} "
        f"--overlap oar,ors,oag --recompute full --jitter gpus=machine"
    )
