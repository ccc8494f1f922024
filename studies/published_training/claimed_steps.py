"""The training steps that the papers' claims are about: model, machine, grid, and predicted time.

All layers take the same time: steps with a few layers are simulated, and the time is extrapolated linearly in the
number of layers (`quadrille.experiments.predict.layer_extrapolation`).  If even these simulations would take too long,
because no two ranks are equivalent, all layers are simulated collective by collective, which gives two bounds of the
exact time.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.flops import flops_per_second_per_gpu, full_square_flops
from quadrille.algorithms.training.gpt import gpt_from_shape, gpt_schedule
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.recompute import Recompute
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.predict.layer_extrapolation import extrapolated, layer_counts
from quadrille.experiments.predict.prepared_experiment import EVEN_SHARDS_ABOVE
from quadrille.experiments.rank.memory_by_grid import peak_bytes_by_grid
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.simulator.ranks.jitter import Jitter
from quadrille.simulator.simulate import LIMITS, Limits, Prediction, Shortcuts, Simulator, simulate
from quadrille.simulator.symmetry.even_shards import with_even_shards
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES

OVERLAPS: frozenset[OverlapName] = frozenset({"oar", "ors", "oag"})
CHOICES = parse_choices("library")
FUSED, UNFUSED = "device.achieved.attention=fused", "device.achieved.attention=unfused"
ATTENTION_DROPOUT = 0.1
"""Dropout of the attention weights in Megatron-LM's runs; that of the hidden states is fused into other passes."""
MEASURED_SHARES = {"perlmutter": 0.8, "frontier": 0.4}
"""Measured share of the 100 GB/s of a node's four NICs, in all-reduces over nodes.

Source: axonn-ai/axonn, the communication model's tables: 80 GB/s and 40 GB/s.
"""
DIFFERING = Jitter(gpus="machine")
"""GPUs that differ in speed as the machine says."""


@dataclass(frozen=True, slots=True)
class ClaimedTraining:
    """The training of a model on a named machine.

    Parameters
    ----------
    machine : name of the machine
    gpus : number of GPUs
    shape : shape of the model
    batch : number of sequences of the global batch
    scheme : name of the parallel scheme
    recompute : recomputation of activations
    half : 16-bit dtype of the weights and activations
    settings : changes to the machine, as `--set` takes them
    attention_dropout : share of the attention weights that dropout sets to zero
    """

    machine: str
    gpus: int
    shape: ModelShape
    batch: int
    scheme: str = "4d"
    recompute: Recompute = "full"
    half: DType = "bfloat16"
    settings: tuple[str, ...] = (UNFUSED,)
    attention_dropout: float = ATTENTION_DROPOUT

    @property
    def description(self) -> str:
        """The model, machine and batch as text."""
        return f"{self.shape.name}, {self.gpus} GPUs of {self.machine}, batch {self.batch}"

    @property
    def on_measured_network(self) -> "ClaimedTraining | None":
        """The training with the network between nodes at the rate that AxoNN's authors measured; None if unknown."""
        share = MEASURED_SHARES.get(self.machine)
        return self.what_if(f"topology.bandwidth_bytes_per_second=x{share}") if share is not None else None

    @property
    def model(self) -> Machine:
        """The machine with the changes of `settings`."""
        return find_machine(self.machine, self.settings, gpus=self.gpus)

    def what_if(self, *settings: str) -> "ClaimedTraining":
        """The training on a machine with more changes, as `--set` takes them."""
        return replace(self, settings=(*self.settings, *settings))

    def schedule(self, grid: Grid, layers: int, overlaps: frozenset[OverlapName] = OVERLAPS) -> Schedule:
        """The schedule of a step of the model with this number of layers."""
        problem = gpt_from_shape(
            self.shape,
            self.batch,
            dtype=self.half,
            recompute=self.recompute,
            attention_dropout=self.attention_dropout,
        )
        problem = replace(problem, layers=layers)
        return overlap(gpt_schedule(problem, grid, find_scheme(self.scheme)), overlaps)

    def share_of_peak(self, seconds: float) -> float:
        """The share of the peak in hardware flop/s (recomputation included) of a step that takes `seconds` [%]."""
        flops = full_square_flops(self.shape, self.batch, recompute="full").hardware
        peak = self.model.device.peak_flops_per_second[self.half]
        return 100 * flops_per_second_per_gpu(flops, seconds, self.gpus) / peak


def share_by_nccl(training: ClaimedTraining, grid: Grid, jitter: Jitter | None = None) -> float:
    """The share of peak of a step with the collectives of NCCL's model, at collective granularity [%].

    Parameters
    ----------
    training : training that the claim is about
    grid : grid of the ranks
    jitter : spread of speeds from GPU to GPU; None for equal GPUs
    """
    schedule = training.schedule(grid, training.shape.layers)
    prediction = simulate(
        with_even_shards(schedule) if grid.size > EVEN_SHARDS_ABOVE else schedule,
        training.model,
        choices=parse_choices("nccl"),
        granularity="collective",
        jitter=jitter,
    )
    return training.share_of_peak(prediction.seconds)


def paper_grid(training: ClaimedTraining) -> Grid:
    """The grid of the papers' rule for a training.

    x fills a node, z is the smallest power of two with which the model fits in memory, and data has the other ranks.
    """
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
class StepTime:
    """The predicted time of a step [s].

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
        """Whether the prediction is exact; otherwise only its bounds are known."""
        return self.low == self.high


@cache
def step_time(
    training: ClaimedTraining, grid: Grid, overlaps: frozenset[OverlapName] = OVERLAPS, limits: Limits = LIMITS
) -> StepTime:
    """The predicted time of a step: extrapolated from few layers, or simulated with all layers by collective.

    Parameters
    ----------
    training : training that the claim is about
    grid : grid of the ranks
    overlaps : overlaps of communication with computation
    limits : limits of the wall time of an exact simulation
    """

    def simulation(layers: int, granularity: AskedGranularity) -> Simulator:
        """The simulator of a step with this number of layers."""
        return Simulator(
            with_even_shards(training.schedule(grid, layers, overlaps)),
            training.model,
            choices=CHOICES,
            threads=None,
            placement="packed",
            shortcuts=Shortcuts(),
            granularity=granularity,
            limits=limits,
        )

    layers, depths = training.shape.layers, layer_counts(ExecutionOptions(overlaps=overlaps))
    if simulation(min(layers, depths[1]), "auto").granularity == "collective":
        return _step_time(simulation(layers, "collective").run())
    if layers <= depths[1]:
        return _step_time(simulation(layers, "exact").run())
    few, more = (_step_time(simulation(depth, "exact").run()) for depth in depths)
    step = extrapolated(few.seconds, more.seconds, depths, layers)
    return StepTime(step, extrapolated(few.sums, more.sums, depths, layers), step, step)


def _step_time(prediction: Prediction) -> StepTime:
    """The time of a simulated step, with its bounds."""
    sums = sum(times.exposed_seconds for times in prediction.op_times().values() if times.axis == "data")
    step, bound = prediction.timeline.makespan, prediction.bound
    return StepTime(step, sums, *((step, step) if bound is None else (bound.low, bound.high)))
