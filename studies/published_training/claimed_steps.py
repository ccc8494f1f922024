"""Training steps that claims are about: which model on how many GPUs of what, on which grid, and their seconds.

Layers are alike: a step is simulated with two layers and with three, and
continued in a straight line.  Grids follow one rule: x within a node, then the
smallest power of two for z with which the model fits, the rest data.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from algorithms.collectives.choices import parse_choices
from algorithms.formats.machine import Machine
from algorithms.formats.what_if import apply
from algorithms.grid import AXES, Grid
from algorithms.ops import OverlapName
from algorithms.reordering.overlap import overlap
from algorithms.schedule import Schedule
from algorithms.training.flops import flops_per_second_per_gpu, step_flops
from algorithms.training.gpt import Gpt, gpt_schedule
from algorithms.training.models import ModelShape
from algorithms.training.recompute import Recompute
from algorithms.training.schemes import find_scheme
from simulator.folding.even_shards import evenly
from simulator.simulate import simulate
from studies.published_training.step import machine_for
from studies.rank.memory import peak_bytes as bytes_of_rank_0
from studies.training.step import FEW, straight
from topologies.machines.named import MACHINES

OVERLAPS: frozenset[OverlapName] = frozenset({"oar", "ors", "oag"})
CHOICES = parse_choices("library")


@dataclass(frozen=True, slots=True)
class Training:
    """A model of Quadrille trained on so many GPUs of a machine.

    Parameters
    ----------
    settings : what-if changes to the machine, as `--set` takes them
    """

    machine: str
    gpus: int
    shape: ModelShape
    batch: int
    scheme: str = "4d"
    recompute: Recompute = "full"
    half: str = "bfloat16"
    settings: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return f"{self.shape.name}, {self.gpus} GPUs of {self.machine}, batch {self.batch}"

    @property
    def model(self) -> Machine:
        return apply(machine_for(self.machine, MACHINES[self.machine].gpu, self.gpus), self.settings)

    def what_if(self, *settings: str) -> "Training":
        """The same on a machine that is changed."""
        return replace(self, settings=(*self.settings, *settings))

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

    def share_of_peak(self, seconds: float) -> float:
        """Hardware flop/s, recomputation included, of the peak, where a step takes so long [%]."""
        flops = step_flops(self.shape, self.batch, "full").hardware
        peak = self.model.device.peak_flops_per_second["bfloat16"]
        return 100 * flops_per_second_per_gpu(flops, seconds, self.gpus) / peak


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
    step, sums = (straight(low, high, turns) for low, high in zip(few, more, strict=True))
    return step, sums


def _simulated(training: Training, schedule: Schedule) -> tuple[float, float]:
    ran = simulate(evenly(schedule), training.model, choices=CHOICES, granularity="exact")
    sums = sum(one.exposed_seconds for one in ran.timeline.op_times().values() if one.axis == "data")
    return ran.timeline.makespan, sums
