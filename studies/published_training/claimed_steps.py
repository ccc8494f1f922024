"""Training steps that claims are about: which model on how many GPUs of what, on which grid, and their seconds.

Layers are alike: a few are simulated, and the step goes on to all in a straight line
(`quadrille.experiments.predict.depths`).  Where even those would take too long, since no ranks are
alike, all layers are simulated at the granularity of collectives, and the exact step
is known between two bounds.  Grids follow one rule: x within a node, then the smallest
power of two for z with which the model fits, the rest data.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from quadrille.algorithms.collectives.choices import parse_choices
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.flops import flops_per_second_per_gpu, step_flops
from quadrille.algorithms.training.gpt import gpt_of, gpt_schedule
from quadrille.algorithms.training.models import ModelShape
from quadrille.algorithms.training.recompute import Recompute
from quadrille.algorithms.training.schemes import find_scheme
from quadrille.experiments.predict.depths import depths_of, straight
from quadrille.experiments.rank.memory import peak_bytes_by_grid
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.simulator.simulate import Prediction, Shortcuts, Simulator
from quadrille.simulator.symmetry.even_shards import with_even_shards
from quadrille.studies.published_training.step import machine_for
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.machines.what_if import apply_settings

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
        return apply_settings(machine_for(self.machine, MACHINES[self.machine].gpu, self.gpus), self.settings)

    def what_if(self, *settings: str) -> "Training":
        """The same on a machine that is changed."""
        return replace(self, settings=(*self.settings, *settings))

    def schedule(self, grid: Grid, layers: int, overlaps: frozenset[OverlapName] = OVERLAPS) -> Schedule:
        problem = replace(gpt_of(self.shape, self.batch, dtype=self.half, recompute=self.recompute), layers=layers)
        return overlap(gpt_schedule(problem, grid, find_scheme(self.scheme)), overlaps)

    def share_of_peak(self, seconds: float) -> float:
        """Hardware flop/s, recomputation included, of the peak, where a step takes so long [%]."""
        flops = step_flops(self.shape, self.batch, recompute="full").hardware
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
    fits = peak_bytes_by_grid(few, lengths) <= training.model.device.memory_bytes
    z = depths[int(np.argmax(fits))]
    return Grid(x=x, z=z, data=rest // z)


@dataclass(frozen=True, slots=True)
class Taken:
    """The time of a step [s].

    Parameters
    ----------
    seconds : predicted time
    sums : time in which nothing runs but sums over the data axis, part of `seconds`
    low, high : bounds of the exact step; both are equal to `seconds` if the prediction is exact
    """

    seconds: float
    sums: float
    low: float
    high: float

    @property
    def exact(self) -> bool:
        return self.low == self.high


@cache
def taken(training: Training, grid: Grid, overlaps: frozenset[OverlapName] = OVERLAPS) -> Taken:
    """The time of a step: extrapolated from few layers, or simulated with all layers collective by collective."""

    def simulation(layers: int, granularity: AskedGranularity) -> Simulator:
        return Simulator(
            with_even_shards(training.schedule(grid, layers, overlaps)),
            training.model,
            choices=CHOICES,
            threads=None,
            placement="packed",
            shortcuts=Shortcuts(),
            granularity=granularity,
        )

    layers, depths = training.shape.layers, depths_of(ExecutionOptions(overlaps=overlaps))
    if simulation(min(layers, depths[1]), "auto").granularity == "collective":
        return _taken(simulation(layers, "collective").run())
    if layers <= depths[1]:
        return _taken(simulation(layers, "exact").run())
    few, more = (_taken(simulation(depth, "exact").run()) for depth in depths)
    step = straight(few.seconds, more.seconds, depths, layers)
    return Taken(step, straight(few.sums, more.sums, depths, layers), step, step)


def _taken(prediction: Prediction) -> Taken:
    sums = sum(times.exposed_seconds for times in prediction.op_times().values() if times.axis == "data")
    step, bound = prediction.timeline.makespan, prediction.bound
    return Taken(step, sums, *((step, step) if bound is None else (bound.low, bound.high)))
