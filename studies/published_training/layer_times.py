"""Times of a transformer layer, the embedding and the loss on a tensor-parallel group, from a simulated schedule.

A schedule of one layer and one microbatch is simulated on the GPUs of the tensor-parallel group.  Its ops run one after
the other, so their times can be added: those of the layer once for each layer, those of the embedding on the first and
those of the loss on the last pipeline stage.  The optimizer and the gradient sums over replicas are not included.

With sequence parallelism, the reduce-scatters of input gradients and the second all-gathers of inputs overlap with the
matrix products, as in Megatron-LM.  Of overlapped communication only the exposed part counts.

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
from quadrille.studies.published_training.fused_attention import fused_seconds
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.nodes.gpus import Generation

MEGATRON = Scheme4D()
"""The 4D scheme; with x as the only long axis it is Megatron-LM's tensor parallelism in pairs of column and row."""
MEGATRON_SCATTERED = find_scheme("megatron", sequence_parallel=True)
OVERLAPS: dict[bool, frozenset[OverlapName]] = {False: frozenset(), True: frozenset({"oar", "oag"})}
"""The overlaps of communication with matrix products, without and with sequence parallelism."""

ATTENTION_DROPOUT = 0.1
"""Dropout of the attention weights in Megatron-LM's runs; that of the hidden states is fused into other passes."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Times of the forward and of the backward pass over a microbatch [s]."""

    forward: float
    backward: float

    def __add__(self, added: "PassSeconds") -> "PassSeconds":
        return PassSeconds(self.forward + added.forward, self.backward + added.backward)

    @property
    def both(self) -> float:
        """The time of both passes [s]."""
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

    layer: PassSeconds
    first: PassSeconds
    last: PassSeconds
    attention: PassSeconds


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
    """Simulated times of one layer, the embedding and the loss for one microbatch.

    Parameters
    ----------
    shape : shape of the model
    tensor : number of GPUs of the tensor-parallel group
    micro : number of sequences of the microbatch
    dtype : dtype of the weights and activations
    machine : machine with at least `tensor` GPUs
    sequence_parallel : whether activations between the matrix products are sharded over the group too
    fused_on : generation of the GPUs if attention is fused (`fused_attention.py`); None if attention stores its scores
    """
    scheme = MEGATRON_SCATTERED if sequence_parallel else MEGATRON
    problem = Gpt(
        1,
        shape.hidden,
        shape.heads,
        shape.sequence,
        shape.vocabulary,
        micro,
        dtype=dtype,
        attention_dropout=ATTENTION_DROPOUT,
    )
    schedule = gpt_schedule(problem, Grid(x=tensor), scheme)
    prediction = simulate(overlap(schedule, OVERLAPS[sequence_parallel]), machine, choices=parse_choices("library"))
    times = {name: _op_seconds(op_times) for name, op_times in prediction.timeline.op_times().items()}
    rows, hidden = Part("batch", unit=shape.sequence), Part("hidden")
    norm = Norm("last", rows, hidden, shape.hidden, "X", "last N", "dlast N", "dX")
    layer = transformer_layer(LayerShape(1, shape.hidden, shape.heads, shape.sequence), rows, scheme)
    if fused_on is not None:
        times |= _fused_attention_times(layer, schedule, fused_on, machine.device.peak_flops_per_second[dtype])
    loss = scheme.vocabulary_loss(rows, "last N", "dlast N", problem.tokens)
    return LayerTimes(
        _seconds(layer, times),
        _seconds(scheme.embedding(rows, "X", "dX"), times),
        _seconds(normalisation(norm, scheme), times) + _seconds(loss, times),
        PassSeconds(
            *(sum(times[op.name] for op in _attention_kernels(program)) for program in (layer.forward, layer.backward))
        ),
    )


def _op_seconds(times: OpTimes) -> float:
    """The time that an op adds to its pass [s]: of communication only the exposed part."""
    return times.waiting_seconds + (times.seconds if times.axis is None else times.exposed_seconds)


def _fused_attention_times(layer: Layer, schedule: Schedule, generation: Generation, peak: float) -> dict[str, float]:
    """The times of the layer's attention kernels if they are fused, by the name of the op [s]."""
    coordinates = schedule.coordinates(0)
    kernels = _attention_kernels((*layer.forward, *layer.backward))
    works = {op.name: attention_products(op, schedule, coordinates) for op in kernels}
    return {name: fused_seconds(work, generation, peak) for name, work in works.items() if work is not None}


def _attention_kernels(program: Program) -> list[Kernel]:
    """The kernels of attention: scores, softmax and their product with V."""
    return [op for op in ops(program) if isinstance(op, Kernel) and op.function in ATTENTION_PRODUCTS]


def _seconds(layer: Layer, times: Mapping[str, float]) -> PassSeconds:
    """The times of a layer's passes, from the times of its ops by name."""
    return PassSeconds(_sum(layer.forward, times), _sum(layer.backward, times))


def _sum(program: Program, times: Mapping[str, float]) -> float:
    """The total time of a program's ops [s]."""
    return sum(times[op.name] for op in ops(program))
