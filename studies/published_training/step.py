"""Seconds of a training step: simulated times, put together by the order of the pipeline's turns.

A stage takes for a microbatch: forward, forward again where activations are not
kept, backward, gradients added to those of the microbatches before.  The turns
are taken in the order of the schedules that are simulated, stages waiting for
what they send (`pipeline.py`).  A stage that is through sums its gradients over
replicas; then come the exchange of the shared table between the first and the
last stage, and the update, bound by memory.  With ZeRO 2 and 3 gradients are
summed in every microbatch, beside the work (`sharded.py`).

Source: Narayanan et al., SC21, sections 2.2 (order) and 4.1 (scatter and gather
between stages, which DeepSpeed's `PartitionedTensor` does too); Rajbhandari et
al., "ZeRO", 2020 (volumes).
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

import msgspec

from quadrille.algorithms.collectives.choices import parse_choices
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.models import ModelShape
from quadrille.algorithms.training.pipeline import Stages
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.question import CollectiveQuestion
from quadrille.experiments.predict.pipeline_slots import SlotSeconds, stage_ends
from quadrille.studies.published_training.runs import PublishedRun
from quadrille.studies.published_training.sharded import Sharded, sharded_layers
from quadrille.studies.published_training.stage import LayerTimes, Seconds, layer_times
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES, achieved_of
from quadrille.topologies.nodes.gpus import Generation, Gpu

UPDATE_BYTES = 52
"""Touched for each parameter: gradients made fp32 (6), their norm (4), clipped (8), Adam's four numbers read and three
written (28), weights made fp16 again (6)."""
HALF_BYTES, WIDE_BYTES = 2, 4
ADD_BYTES, WIDE_ADD_BYTES = 6, 10
"""Touched for each parameter to add a gradient to the sum so far, in 16 bits and in fp32."""
ADD_PASSES = 3
"""Times that what is received is touched to be added: both summands read, the sum written."""


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
        return self.steady + self.bubble + self.replicas + self.table + self.update


def step_seconds(run: PublishedRun, between: float = 1.0) -> StepSeconds:
    """What a step of a run takes.

    Parameters
    ----------
    between : share of the bandwidth between nodes that is reached
    """
    turns = turn_seconds(run, between)
    ends = stage_ends(Stages(run.pipeline, run.shape.layers, ceil(run.microbatches), run.interleave), turns)
    each = [forward + backward for forward, backward in zip(turns.forward, turns.backward, strict=True)]
    steady = ceil(run.microbatches) * max(sum(each[stage :: run.pipeline]) for stage in range(run.pipeline))
    parameters = stage_parameters(run)
    through = max(end + _replicas(run, size, between) for end, size in zip(ends, parameters, strict=True))
    return StepSeconds(
        steady,
        max(ends) - steady,
        through - max(ends),
        _table(run, between),
        _update(run, max(parameters)),
    )


def turn_seconds(run: PublishedRun, between: float = 1.0) -> SlotSeconds:
    """Seconds of a microbatch in each chunk of the layers, and of its transfer between two chunks."""
    times = _layer_times(run)
    layer, first, last = _layer(run, times), times.first, times.last
    added = [_added(run, size) / run.interleave for size in stage_parameters(run)]
    chunks = [layers / run.interleave for layers in run.layers] * run.interleave
    each = [Seconds(layers * layer.forward, layers * layer.backward) for layers in chunks]
    if run.zero > 1:
        each = [sharded_layers(run.shape.layers, layer, _sharded(run, between), run.zero)]
    forward = [stage.forward for stage in each]
    backward = [stage.backward + adding for stage, adding in zip(each, added * run.interleave, strict=True)]
    forward[0] += first.forward
    forward[-1] += last.forward
    backward[0] += first.backward
    backward[-1] += last.backward
    return SlotSeconds(forward, backward, _travel(run, between) if run.pipeline > 1 else 0.0)


def _layer(run: PublishedRun, times: LayerTimes) -> Seconds:
    """Seconds of a layer, with recomputation in the backward pass; fused attention always recomputes its scores."""
    match run.recompute:
        case "none":
            again = 0.0
        case "selective":
            again = times.attention.forward if run.attention == "unfused" else 0.0
        case "full":
            again = times.layer.forward
    return Seconds(times.layer.forward, times.layer.backward + again)


def _added(run: PublishedRun, parameters: float) -> float:
    """Seconds to add a microbatch's gradients to the sum; scattered gradients become fp32 before the scatter."""
    touched = (WIDE_ADD_BYTES if run.sums_in_fp32 else ADD_BYTES) if run.microbatches > 1 else 0
    if run.zero < 2:
        return _passes(run, parameters * touched)
    widened = HALF_BYTES + WIDE_BYTES if run.sums_in_fp32 else 0
    return _passes(run, parameters * (touched / run.data + widened))


def _sharded(run: PublishedRun, between: float) -> Sharded:
    """Seconds of a microbatch's gathers and scatters over the replicas."""
    inner = run.shape.layer_parameters / run.tensor
    outer = stage_parameters(run)[0] - run.shape.layers * inner
    gathers = [_over_replicas(run, "all_gather", size * HALF_BYTES, between) for size in (inner, outer)]
    wide = WIDE_BYTES if run.sums_in_fp32 else HALF_BYTES
    scatters = [_over_replicas(run, "reduce_scatter", size * wide, between) for size in (inner, outer)]
    adding = _passes(run, ADD_PASSES * inner * wide * (run.data - 1) / run.data)
    return Sharded(gathers[0], scatters[0], gathers[1], scatters[1], adding)


def stage_parameters(run: PublishedRun) -> list[float]:
    """Parameters on each GPU of each stage; with a pipeline, the last stage has the embedding table too."""
    parameters = [layers * run.shape.layer_parameters / run.tensor for layers in run.layers]
    parameters[0] += (run.shape.table + run.shape.sequence * run.shape.hidden) / run.tensor
    if run.pipeline > 1:
        parameters[-1] += run.shape.table / run.tensor
    return parameters


def _travel(run: PublishedRun, between: float) -> float:
    """A microbatch's activations from a stage to the next, each GPU of the group sending its share.

    Stages whose ranks fill nodes are on different ones; else half of what leaves is taken to stay.
    """
    node = MACHINES[run.machine].node
    size = run.micro * run.shape.sequence * run.shape.hidden * 2
    sharing = min(node.gpus, run.tensor * run.data) / run.tensor
    rate = node.nic_bandwidth * node.nics * between
    return size * max(1.0, sharing) / rate


def _replicas(run: PublishedRun, parameters: float, between: float) -> float:
    """The sum of gradients over replicas; sharded optimizers gather what they have updated.

    With ZeRO 2 and 3 all this has been done in every microbatch.  DeepSpeed's bf16
    optimizer sums in fp32 and gathers bf16: half as much again as an fp32 sum, where
    the fp16 one moves half of that.
    """
    if run.zero > 1:
        return 0.0
    wide = run.sums_in_fp32
    reduced = _over_replicas(run, "reduce_scatter", parameters * (WIDE_BYTES if wide else HALF_BYTES), between)
    gathered_bytes = HALF_BYTES if run.zero or not wide else WIDE_BYTES
    return reduced + _over_replicas(run, "all_gather", parameters * gathered_bytes, between)


def _over_replicas(run: PublishedRun, kind: CollectiveKind, size: float, between: float) -> float:
    """A collective of all replicas, of so many bytes of each GPU."""
    if run.data == 1:
        return 0.0
    across = run.tensor * run.data > MACHINES[run.machine].gpus_per_node
    return _group(run, kind, size, run.data, run.tensor) / (between if across else 1.0)


def _table(run: PublishedRun, between: float) -> float:
    """The sum of the shared table's gradient over the first and the last stage."""
    if run.pipeline == 1:
        return 0.0
    stride = max(run.tensor * run.data, MACHINES[run.machine].gpus_per_node)
    return _group(run, "all_reduce", run.shape.table / run.tensor * 2, 2, stride) / between


def _update(run: PublishedRun, parameters: float) -> float:
    return _passes(run, parameters / (run.data if run.zero else 1) * UPDATE_BYTES)


def _passes(run: PublishedRun, size: float) -> float:
    """Seconds in which so many bytes of memory are touched."""
    device = machine_for(run.machine, run.gpu, 1).device
    assert device.achieved is not None
    return size / (device.memory_bytes_per_second * device.achieved.memory_share)


def _group(run: PublishedRun, kind: CollectiveKind, size: float, members: int, stride: int) -> float:
    return _collective(run.machine, run.gpu, kind, int(size), members, stride)


@cache
def _collective(machine: str, gpu: Gpu, kind: CollectiveKind, size: int, members: int, stride: int) -> float:
    """A collective of all groups of so many members, so far apart, at once, by NCCL's model."""
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
    device_machine = machine_for(machine, gpu, tensor)
    return layer_times(
        shape, tensor, micro, dtype, device_machine, sequence_parallel=sequence_parallel, fused_on=fused_on
    )


@cache
def machine_for(name: str, gpu: Gpu, gpus: int) -> Machine:
    """A named machine with `gpus` of these GPUs, and with the shares of peak that public microbenchmarks report.

    Attention is unfused; `fused.py` has the times of fused attention.
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
