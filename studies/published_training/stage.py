"""What one layer and the two ends of a model take on a tensor-parallel group: simulated, from the schedule of a step.

A schedule of one layer and one microbatch is simulated on so many GPUs of the
machine.  Ops are one after the other in it, so their times may be added: those
of the layer count once for each layer, those of the ends on the first and the
last stage.  The optimizer and sums over replicas are not of a microbatch.

With sequence parallelism, sums towards inputs and the second gathers of inputs
run beside the products, as Megatron-LM has it; of communication only what no
work hides is counted.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", arXiv 2205.05198, section 4.2.2 (the second gather is
overlapped); NVIDIA/Megatron-LM, megatron/core/tensor_parallel/layers.py
(the scattered sum too).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quadrille.algorithms.analysis.volumes import attention_products
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS
from quadrille.algorithms.schedule.ops import Kernel, OverlapName
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program, ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.normalisation import Norm, normalisation
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.training.transformer import LayerShape, transformer_layer
from quadrille.simulator.simulate import simulate
from quadrille.studies.published_training.fused import fused_seconds
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.nodes.gpus import Generation

MEGATRON = Scheme4D()
"""With x the only long axis these are Megatron-LM's column and row parallel pairs."""
MEGATRON_SCATTERED = find_scheme("megatron", sequence_parallel=True)
BESIDE: dict[bool, frozenset[OverlapName]] = {False: frozenset(), True: frozenset({"oar", "oag"})}
"""What runs beside products, without sequence parallelism and with it."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of a forward and a backward pass over a microbatch."""

    forward: float
    backward: float

    def __add__(self, added: "Seconds") -> "Seconds":
        return Seconds(self.forward + added.forward, self.backward + added.backward)

    @property
    def both(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of a layer, of the embedding, and of the last norm and the loss.

    Parameters
    ----------
    layer : times of a layer
    first : times of the embedding
    last : times of the last norm and the loss
    attention : times of the scores and their softmax, without QKV and the other products; part of `layer`
    """

    layer: Seconds
    first: Seconds
    last: Seconds
    attention: Seconds


def layer_times(
    shape: ModelShape,
    tensor: int,
    micro: int,
    dtype: DType,
    machine: Machine,
    *,
    sequence_parallel: bool = False,
    fused_on: Generation | None = None,
) -> LayerTimes:
    """Times of a model's layers, which are sharded over `tensor` GPUs, for microbatches of `micro` sequences.

    Parameters
    ----------
    fused_on : generation of the GPUs if attention is fused (`fused.py`); None if attention stores its scores
    """
    scheme = MEGATRON_SCATTERED if sequence_parallel else MEGATRON
    problem = Gpt(1, shape.hidden, shape.heads, shape.sequence, shape.vocabulary, micro, dtype=dtype)
    schedule = gpt_schedule(problem, Grid(x=tensor), scheme)
    prediction = simulate(overlap(schedule, BESIDE[sequence_parallel]), machine, choices=parse_choices("library"))
    times = {name: _counted(op_times) for name, op_times in prediction.timeline.op_times().items()}
    rows, hidden = Part("batch", unit=shape.sequence), Part("hidden")
    norm = Norm("last", rows, hidden, shape.hidden, "X", "last N", "dlast N", "dX")
    layer = transformer_layer(LayerShape(1, shape.hidden, shape.heads, shape.sequence), rows, scheme)
    if fused_on is not None:
        times |= _fused(layer, schedule, fused_on, machine.device.peak_flops_per_second[dtype])
    loss = scheme.vocabulary_loss(rows, "last N", "dlast N", problem.tokens)
    return LayerTimes(
        _seconds(layer, times),
        _seconds(scheme.embedding(rows, "X", "dX"), times),
        _seconds(normalisation(norm, scheme), times) + _seconds(loss, times),
        Seconds(*(sum(times[op.name] for op in _squares(program)) for program in (layer.forward, layer.backward))),
    )


def _counted(times: OpTimes) -> float:
    """Seconds that an op adds to the pass: for communication, only the exposed part."""
    return times.waiting_seconds + (times.seconds if times.axis is None else times.exposed_seconds)


def _fused(layer: Layer, schedule: Schedule, generation: Generation, peak: float) -> dict[str, float]:
    place = schedule.coordinates(0)
    works = {op.name: attention_products(op, schedule, place) for op in _squares((*layer.forward, *layer.backward))}
    return {name: fused_seconds(work, generation, peak) for name, work in works.items() if work is not None}


def _squares(program: Program) -> list[Kernel]:
    """The kernels of attention."""
    return [op for op in ops(program) if isinstance(op, Kernel) and op.function in ATTENTION_PRODUCTS]


def _seconds(piece: Layer, times: Mapping[str, float]) -> Seconds:
    return Seconds(_sum(piece.forward, times), _sum(piece.backward, times))


def _sum(program: Program, times: Mapping[str, float]) -> float:
    return sum(times[op.name] for op in ops(program))
