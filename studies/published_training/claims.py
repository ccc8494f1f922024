"""What papers claim of their schemes, each predicted and shown beside the claim; no number is fitted to a claim.

Layers are alike: a step is simulated with two layers and with three, and
continued in a straight line.  Grids follow one rule: x within a node, then the
smallest power of two for z with which the model fits, the rest data; for the gain
by overlap, the fastest of the four grids that are best by the analytical model.
Megatron-LM is given its fastest grid that fits.  What a paper's abstract does not
print and is assumed here is in `setting`.

Source: Singh et al., "A 4D Hybrid Algorithm to Scale Parallel Training to
Thousands of GPUs", arXiv 2305.13525, abstract (the gain by overlap: an earlier
version's); Singh et al., "Democratizing AI", SC'24, arXiv 2502.08145, abstract;
Bian et al., "Maximizing Parallelism in Distributed Training for Huge Neural
Networks", arXiv 2105.14450, abstract.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from algorithms.choices import parse_choices
from algorithms.grid import AXES, DEFAULT_ORDER, Axis, Grid
from algorithms.machine import Machine
from algorithms.ops import OverlapName
from algorithms.overlap import overlap
from algorithms.schedule import Schedule
from algorithms.training.flops import flops_per_second_per_gpu, step_flops
from algorithms.training.gpt import Gpt, gpt_schedule
from algorithms.training.models import SHAPES, ModelShape
from algorithms.training.recompute import Recompute
from algorithms.training.schemes import find_scheme
from simulator.folding.even_shards import evenly
from simulator.simulate import simulate
from studies.published_training.answers import Claimed
from studies.published_training.memory import peak_bytes
from studies.published_training.runs import Run
from studies.published_training.step import machine_for, step_seconds
from studies.rank.memory import peak_bytes as bytes_of_rank_0
from studies.rank.step import FEW
from topologies.machines.named import MACHINES

OVERLAPS: frozenset[OverlapName] = frozenset({"oar", "ors", "oag"})
CHOICES = parse_choices("library")
AXONN, SC24, BIAN = "arXiv 2305.13525", "SC'24, arXiv 2502.08145", "arXiv 2105.14450"
BIAN_ORDER: tuple[Axis, ...] = ("z", *(axis for axis in DEFAULT_ORDER if axis != "z"))
"""Of Bian et al. the axis along which weights are gathered is the fastest."""


@dataclass(frozen=True, slots=True)
class Training:
    """A model of Quadrille trained on so many GPUs of a machine."""

    machine: str
    gpus: int
    shape: ModelShape
    batch: int
    scheme: str = "4d"
    recompute: Recompute = "full"
    half: str = "bfloat16"

    @property
    def words(self) -> str:
        return f"{self.shape.name}, {self.gpus} GPUs of {self.machine}, batch {self.batch}"

    @property
    def model(self) -> Machine:
        return machine_for(self.machine, MACHINES[self.machine].gpu, self.gpus)

    def schedule(self, grid: Grid, layers: int, overlaps: frozenset[OverlapName] = OVERLAPS) -> Schedule:
        shape = self.shape
        problem = Gpt(
            layers,
            shape.hidden,
            shape.heads,
            shape.sequence,
            shape.vocabulary,
            self.batch,
            dtype=self.half,  # type: ignore[arg-type]
            recompute=self.recompute,
        )
        return overlap(gpt_schedule(problem, grid, find_scheme(self.scheme)), overlaps)


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
TACC = ModelShape("24 layers of 4096", 24, 4096, 64, 512, 51200)
CUBE = Grid(x=4, y=4, z=4, order=BIAN_ORDER)
MESHES = (("megatron", "1-D", Grid(x=64), 2.32), ("optimus", "2-D", Grid(x=8, z=8), 1.57))


WHY_80B = (
    "grids were not searched, and the analytical model prefers others; products are taken to reach what one A100 was "
    "measured to reach, and attention is unfused"
)
WHY_MEGATRON = (
    "Megatron-LM's stages are taken as if the ends of the model counted as a layer each, since 42 layers do not "
    "divide; its grid is not in the abstract, and the fastest is taken"
)
WHY_OVERLAP = "the abstract gives no number of GPUs and no batch; on other grids less is gained"
WHY_LARGEST = {
    "perlmutter": "jitter, stragglers and traffic of other jobs on 1,024 nodes are not modelled",
    "frontier": (
        "ways between groups of the dragonfly are minimal in the model, and all rings over data of a group press "
        "through the cables to one other group; Slingshot goes round them by a third group"
    ),
    "alps": "as on Frontier for sums over data; what else is not known",
}
WHY_CUBE = {
    "megatron": (
        "the workload is assumed, since only the abstract is at hand; the model has Megatron-LM's two sums a layer at "
        "the full rate of rings over 16 nodes, which is 1-D's best case"
    ),
    "optimus": "the workload is assumed; broadcasts are pipelined here, where Optimus's own go by trees",
}


def predicted_claims() -> Iterator[Claimed]:
    """Every claim with what is predicted of it, and a line on stderr for each, for they take minutes."""
    for one in _claims():
        print(f"quadrille: {one.name}: {one.predicted:.3g} {one.unit}", file=sys.stderr)
        yield one


def _claims() -> Iterator[Claimed]:
    yield _share_of_peak(AXONN_80B, 57.0, AXONN, WHY_80B)
    yield _ahead_of_megatron()
    yield _gain_by_overlap()
    for scheme, name, grid, claimed in MESHES:
        yield _cube_against(scheme, name, grid, claimed)
    for training, claimed in LARGEST:
        yield _share_of_peak(training, claimed, SC24, WHY_LARGEST[training.machine])


def smallest_depth(training: Training) -> Grid:
    """The grid of the rule: x within a node, the smallest power of two for z with which the model fits, data."""
    x = MACHINES[training.machine].gpus_per_node
    rest = training.gpus // x
    depths = [2**power for power in range(1, rest.bit_length()) if rest % 2**power == 0]
    few = training.schedule(Grid(x=x, z=2, data=2), training.shape.layers)
    lengths = {axis: np.ones(len(depths), dtype=np.int64) for axis in AXES}
    lengths |= {"x": lengths["x"] * x, "z": np.array(depths), "data": rest // np.array(depths)}
    fits = bytes_of_rank_0(few, lengths) <= training.model.device.memory_bytes
    z = depths[int(np.argmax(fits))]
    return Grid(x=x, z=z, data=rest // z)


@cache
def seconds(training: Training, grid: Grid, overlaps: frozenset[OverlapName] = OVERLAPS) -> tuple[float, float]:
    """Of one step, and of it those in which sums over data are all that goes on: straight on from few layers to all."""
    few, more = (_simulated(training, training.schedule(grid, layers, overlaps)) for layers in FEW)
    turns = (training.shape.layers - FEW[0]) / (FEW[1] - FEW[0])
    step, sums = (low + turns * (high - low) for low, high in zip(few, more, strict=True))
    return step, sums


def _simulated(training: Training, schedule: Schedule) -> tuple[float, float]:
    ran = simulate(evenly(schedule), training.model, choices=CHOICES, granularity="exact")
    sums = sum(one.exposed_seconds for one in ran.timeline.op_times().values() if one.axis == "data")
    return ran.timeline.makespan, sums


def _share_of_peak(training: Training, claimed: float, source: str, why: str) -> Claimed:
    grid = smallest_depth(training)
    flops = step_flops(training.shape, training.batch, "full").hardware
    peak = training.model.device.peak_flops_per_second["bfloat16"]
    step, sums = seconds(training, grid)
    share, free = (100 * flops_per_second_per_gpu(flops, taken, training.gpus) / peak for taken in (step, step - sums))
    setting = f"grid {grid}; {free:.3g} % if sums over data cost nothing"
    return _claimed(f"{training.words}: share of peak", "%", claimed, share, (source, setting, why))


def _ahead_of_megatron() -> Claimed:
    """How much longer Megatron-LM takes, with its fastest grid that fits."""
    ours, _ = seconds(AXONN_80B, smallest_depth(AXONN_80B))
    run = min(megatron_runs(AXONN_80B), key=lambda one: step_seconds(one).seconds)
    setting = f"Megatron-LM: tensor={run.tensor}, pipeline={run.pipeline}, data={run.data}, microbatches of {run.micro}"
    gain = 100 * (step_seconds(run).seconds / ours - 1)
    return _claimed(f"{AXONN_80B.words}: ahead of Megatron-LM", "%", 26.0, gain, (AXONN, setting, WHY_MEGATRON))


def megatron_runs(training: Training) -> list[Run]:
    """Every run of Megatron-LM with equal shares of what it has, powers of two, that fits."""
    gpu, shape, gpus = MACHINES[training.machine].gpu, training.shape, training.gpus
    powers = [2**power for power in range(gpus.bit_length())]
    return [
        run
        for tensor in powers
        if shape.heads % tensor == 0
        for pipeline in powers
        if pipeline <= shape.layers and tensor * pipeline <= gpus
        for micro in (1, 2, 4)
        if (data := gpus // tensor // pipeline) * micro <= training.batch
        for run in (
            Run(
                machine=training.machine,
                gpu=gpu,
                gpus=gpus,
                tensor=tensor,
                pipeline=pipeline,
                data=data,
                interleave=1,
                zero=1,
                shape=shape,
                batch=training.batch,
                micro=micro,
                recompute="full",
                dtype="bfloat16",
                deepspeed=False,
            ),
        )
        if min(run.layers) > 0 and peak_bytes(run) <= gpu.memory_bytes
    ]


def _gain_by_overlap() -> Claimed:
    grid = min(GRIDS_20B, key=lambda one: seconds(AXONN_20B, one))
    gain = 100 * (seconds(AXONN_20B, grid, frozenset())[0] / seconds(AXONN_20B, grid)[0] - 1)
    setting = f"grid {grid}; GPUs and batch are assumed"
    return _claimed(f"{AXONN_20B.words}: gain by overlap", "%", 53.0, gain, (AXONN, setting, WHY_OVERLAP))


def _cube_against(scheme: str, name: str, grid: Grid, claimed: float) -> Claimed:
    def taken(scheme: str, grid: Grid) -> float:
        training = Training("longhorn", 64, TACC, 64, scheme, "none", "float16")
        return seconds(training, grid, frozenset())[0]

    setting = f"{TACC.name}, sequence {TACC.sequence}, batch 64, float16: assumed"
    times = taken(scheme, grid) / taken("bian", CUBE)
    return _claimed(f"64 V100 of longhorn: 3-D over {name}", "x", claimed, times, (BIAN, setting, WHY_CUBE[scheme]))


def _claimed(name: str, unit: str, claimed: float, predicted: float, words: tuple[str, str, str]) -> Claimed:
    source, setting, why = words
    return Claimed(
        name=name,
        source=source,
        unit=unit,
        claimed=claimed,
        predicted=predicted,
        relative_error=predicted / claimed - 1,
        setting=setting,
        why=why,
    )
