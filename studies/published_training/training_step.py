"""The predicted time of a training step, composed of simulated layer times by the order of the pipeline (1F1B).

The time of a microbatch on a pipeline stage is that of the forward pass, of the recomputation, of the backward pass and
of the addition of its gradients to the sum.  The microbatches follow the 1F1B order, interleaved or not, and wait for
the messages between stages (`algorithms/training/pipeline.py`).  After its last microbatch a stage sums its gradients
over the replicas.  The gradient sum of the embedding table over the first and the last stage, and the optimizer, which
is bound by memory, follow.  With ZeRO 2 and 3, gradients are summed over replicas in every microbatch and overlap with
computation (`zero_sharding.py`).

Source: Narayanan et al., SC21, sections 2.2 (order) and 4.1 (scatter and gather
between stages, which DeepSpeed's `PartitionedTensor` does too); Rajbhandari et
al., "ZeRO", 2020 (volumes).
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

import msgspec

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.pipeline import Stages
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.predict.pipeline_slots import SlotSeconds, stage_ends
from quadrille.studies.published_training.layer_times import LayerTimes, PassSeconds, layer_times
from quadrille.studies.published_training.published_runs import PublishedRun
from quadrille.studies.published_training.zero_sharding import ShardingSeconds, zero_layer_seconds
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES, achieved_of
from quadrille.topologies.nodes.gpus import Generation, Gpu

UPDATE_BYTES = 52
"""Bytes that the optimizer reads and writes for each parameter: gradients converted to fp32 (6), their norm (4),
clipping (8), Adam's four numbers read and three written (28), weights converted to fp16 (6)."""
HALF_BYTES, WIDE_BYTES = 2, 4
ADD_BYTES, WIDE_ADD_BYTES = 6, 10
"""Bytes read and written for each parameter to add a gradient to a sum in 16 bits, and in fp32."""
ADD_PASSES = 3
"""Reads and writes of each received gradient to add it: two summands read, the sum written."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of a training step, by part.

    Parameters
    ----------
    steady : busy time of the busiest stage
    bubble : messages and waiting until the last stage ends
    replicas, table, update : gradient sums over replicas, gradient sum of the embedding table, and optimizer, all
        after the last microbatch
    """

    steady: float
    bubble: float
    replicas: float
    table: float
    update: float

    @property
    def seconds(self) -> float:
        """The time of the whole step [s]."""
        return self.steady + self.bubble + self.replicas + self.table + self.update


def step_seconds(run: PublishedRun, between: float = 1.0) -> StepSeconds:
    """The predicted time of a run's step, by part.

    Parameters
    ----------
    run : training run
    between : reached share of the bandwidth between nodes
    """
    slots = slot_seconds(run, between)
    ends = stage_ends(Stages(run.pipeline, run.shape.layers, ceil(run.microbatches), run.interleave), slots)
    both = [forward + backward for forward, backward in zip(slots.forward, slots.backward, strict=True)]
    steady = ceil(run.microbatches) * max(sum(both[stage :: run.pipeline]) for stage in range(run.pipeline))
    parameters = stage_parameters(run)
    summed = max(end + _replicas(run, size, between) for end, size in zip(ends, parameters, strict=True))
    return StepSeconds(
        steady,
        max(ends) - steady,
        summed - max(ends),
        _table(run, between),
        _update(run, max(parameters)),
    )


def slot_seconds(run: PublishedRun, between: float = 1.0) -> SlotSeconds:
    """The times of a microbatch in each chunk of layers, and of its transfer between two chunks [s].

    Parameters
    ----------
    run : training run
    between : reached share of the bandwidth between nodes
    """
    times = _layer_times(run)
    layer, first, last = _layer(run, times), times.first, times.last
    added = [_addition_seconds(run, size) / run.interleave for size in stage_parameters(run)]
    chunks = [layers / run.interleave for layers in run.layers] * run.interleave
    passes = [PassSeconds(layers * layer.forward, layers * layer.backward) for layers in chunks]
    if run.zero > 1:
        passes = [zero_layer_seconds(run.shape.layers, layer, _sharding_seconds(run, between), run.zero)]
    forward = [chunk.forward for chunk in passes]
    backward = [chunk.backward + adding for chunk, adding in zip(passes, added * run.interleave, strict=True)]
    forward[0] += first.forward
    forward[-1] += last.forward
    backward[0] += first.backward
    backward[-1] += last.backward
    return SlotSeconds(forward, backward, _travel(run, between) if run.pipeline > 1 else 0.0)


def _layer(run: PublishedRun, times: LayerTimes) -> PassSeconds:
    """The times of a layer, with recomputation in the backward pass.

    Selective recomputation of fused attention costs nothing more, because its backward kernel recomputes the scores.
    """
    match run.recompute:
        case "none":
            recomputation = 0.0
        case "selective":
            recomputation = times.attention.forward if run.attention == "unfused" else 0.0
        case "full":
            recomputation = times.layer.forward
    return PassSeconds(times.layer.forward, times.layer.backward + recomputation)


def _addition_seconds(run: PublishedRun, parameters: float) -> float:
    """The time to add a microbatch's gradients to the sum [s]; scattered gradients become fp32 before the scatter."""
    touched = (WIDE_ADD_BYTES if run.sums_in_fp32 else ADD_BYTES) if run.microbatches > 1 else 0
    if run.zero < 2:
        return _passes(run, parameters * touched)
    widened = HALF_BYTES + WIDE_BYTES if run.sums_in_fp32 else 0
    return _passes(run, parameters * (touched / run.data + widened))


def _sharding_seconds(run: PublishedRun, between: float) -> ShardingSeconds:
    """The times of a microbatch's gathers and scatters over the replicas [s]."""
    inner = run.shape.layer_parameters / run.tensor
    outer = stage_parameters(run)[0] - run.shape.layers * inner
    gathers = [_over_replicas(run, "all_gather", size * HALF_BYTES, between) for size in (inner, outer)]
    wide = WIDE_BYTES if run.sums_in_fp32 else HALF_BYTES
    scatters = [_over_replicas(run, "reduce_scatter", size * wide, between) for size in (inner, outer)]
    adding = _passes(run, ADD_PASSES * inner * wide * (run.data - 1) / run.data)
    return ShardingSeconds(gathers[0], scatters[0], gathers[1], scatters[1], adding)


def stage_parameters(run: PublishedRun) -> list[float]:
    """The number of parameters on a GPU of each stage; with a pipeline, the last stage has the embedding table too."""
    parameters = [layers * run.shape.layer_parameters / run.tensor for layers in run.layers]
    parameters[0] += (run.shape.table + run.shape.sequence * run.shape.hidden) / run.tensor
    if run.pipeline > 1:
        parameters[-1] += run.shape.table / run.tensor
    return parameters


def _travel(run: PublishedRun, between: float) -> float:
    """The time to send a microbatch's activations to the next stage [s]; each GPU of the group sends its share.

    The tensor-parallel groups of a stage on the same node share its NICs.  If a node holds several stages, only
    one of them sends to another node.
    """
    node = MACHINES[run.machine].node
    size = run.micro * run.shape.sequence * run.shape.hidden * 2
    sharing = min(node.gpus, run.tensor * run.data) / run.tensor
    rate = node.nic_bandwidth * node.nics * between
    return size * max(1.0, sharing) / rate


def _replicas(run: PublishedRun, parameters: float, between: float) -> float:
    """The time of the gradient sum over replicas after the last microbatch [s]; a sharded optimizer gathers weights.

    It is 0 with ZeRO 2 and 3, which sum in every microbatch.  DeepSpeed's bf16 optimizer reduce-scatters gradients in
    fp32 and all-gathers weights in bf16.
    """
    if run.zero > 1:
        return 0.0
    wide = run.sums_in_fp32
    reduced = _over_replicas(run, "reduce_scatter", parameters * (WIDE_BYTES if wide else HALF_BYTES), between)
    gathered_bytes = HALF_BYTES if run.zero or not wide else WIDE_BYTES
    return reduced + _over_replicas(run, "all_gather", parameters * gathered_bytes, between)


def _over_replicas(run: PublishedRun, kind: CollectiveKind, size: float, between: float) -> float:
    """The time of a collective over all replicas on `size` bytes of each GPU [s]."""
    if run.data == 1:
        return 0.0
    across = run.tensor * run.data > MACHINES[run.machine].gpus_per_node
    return _group(run, kind, size, run.data, run.tensor) / (between if across else 1.0)


def _table(run: PublishedRun, between: float) -> float:
    """The time to sum the gradient of the embedding table over the first and the last stage [s]."""
    if run.pipeline == 1:
        return 0.0
    stride = max(run.tensor * run.data, MACHINES[run.machine].gpus_per_node)
    return _group(run, "all_reduce", run.shape.table / run.tensor * 2, 2, stride) / between


def _update(run: PublishedRun, parameters: float) -> float:
    """The time of the optimizer on a GPU with this number of parameters [s]."""
    return _passes(run, parameters / (run.data if run.zero else 1) * UPDATE_BYTES)


def _passes(run: PublishedRun, size: float) -> float:
    """The time to read and write `size` bytes of GPU memory [s]."""
    device = machine_for(run.machine, run.gpu, 1).device
    assert device.achieved is not None
    return size / (device.memory_bytes_per_second * device.achieved.memory_share)


def _group(run: PublishedRun, kind: CollectiveKind, size: float, members: int, stride: int) -> float:
    """The time of a collective in groups of the run's GPUs [s], see `_collective`."""
    return _collective(run.machine, run.gpu, kind, int(size), members, stride)


@cache
def _collective(machine: str, gpu: Gpu, kind: CollectiveKind, size: int, members: int, stride: int) -> float:
    """The time of a collective by NCCL's model [s].

    Parameters
    ----------
    machine : name of the machine
    gpu : data sheet of its GPUs
    kind : kind of collective
    size : size of the message [bytes]
    members : number of GPUs of a group
    stride : distance of two neighbours of a group; `stride` groups run at the same time
    """
    gpus = stride * members
    question = CollectiveQuestion(
        kind=kind,
        bytes=size,
        gpus=gpus,
        group=members,
        stride=stride,
        concurrent="all",
        choices=parse_choices("nccl"),
    )
    return predict_collective(question, machine_for(machine, gpu, gpus)).seconds


def _layer_times(run: PublishedRun) -> LayerTimes:
    """The layer times of a run, from the cache if a run with the same layers was predicted before."""
    fused_on = run.gpu.generation if run.attention == "fused" else None
    return _cached_layer_times(
        run.shape, run.tensor, run.micro, run.dtype, run.machine, run.gpu, run.sequence_parallel, fused_on
    )


@cache
def _cached_layer_times(
    shape: ModelShape,
    tensor: int,
    micro: int,
    dtype: DType,
    machine: str,
    gpu: Gpu,
    sequence_parallel: bool,
    fused_on: Generation | None,
) -> LayerTimes:
    """The layer times, cached by everything that they depend on."""
    device_machine = machine_for(machine, gpu, tensor)
    return layer_times(
        shape, tensor, micro, dtype, device_machine, sequence_parallel=sequence_parallel, fused_on=fused_on
    )


@cache
def machine_for(name: str, gpu: Gpu, gpus: int) -> Machine:
    """A named machine with `gpus` GPUs of a kind, and with the shares of peak that public microbenchmarks report.

    Attention is unfused; `fused_attention.py` has the times of fused attention.

    Parameters
    ----------
    name : name of the machine
    gpu : data sheet of the GPUs, in place of the machine's own
    gpus : number of GPUs
    """
    machine = find_machine(name, (), gpus=gpus)
    device = msgspec.structs.replace(
        machine.device,
        peak_flops_per_second=dict(gpu.peak_flops_per_second),
        memory_bytes_per_second=gpu.memory_bytes_per_second,
        memory_bytes=gpu.memory_bytes,
        achieved=achieved_of(gpu, "unfused"),
    )
    return msgspec.structs.replace(machine, device=device)
