"""The search for Megatron-LM's fastest run of a training: all parallel configurations that fit in memory, predicted."""

from dataclasses import dataclass
from math import ceil

from quadrille.algorithms.formats.measured_rows import Variant
from quadrille.algorithms.training.recompute import Recompute
from quadrille.studies.published_training.claimed_steps import ClaimedTraining
from quadrille.studies.published_training.memory import peak_bytes
from quadrille.studies.published_training.published_runs import PublishedRun
from quadrille.studies.published_training.training_step import slot_seconds, step_seconds
from quadrille.topologies.machines.machine_catalogue import MACHINES

MICROS = (1, 2, 4)
"""Sequences of a microbatch that are tried, of 2,048 tokens; of shorter sequences as many tokens."""
FULL_SEQUENCE = 2048


@dataclass(frozen=True, slots=True)
class MegatronSetup:
    """The features of Megatron-LM that a search uses.

    Parameters
    ----------
    attention : fused or unfused attention
    sequence_parallel : whether activations between products are sharded over the tensor-parallel group
    interleaving : whether stages may hold several chunks of layers
    tensor : whether layers may be sharded over a tensor-parallel group
    zero : ZeRO stages to try
    recompute : recomputation of activations
    memory : factor on the memory of a GPU
    """

    attention: Variant = "fused"
    sequence_parallel: bool = True
    interleaving: bool = True
    tensor: bool = True
    zero: tuple[int, ...] = (1,)
    recompute: Recompute = "full"
    memory: float = 1.0


MEGATRON_CORE = MegatronSetup()
"""Megatron-LM from 2022 on: fused attention, sequence parallelism, interleaved stages, sharded optimizer."""
PLAIN_1F1B = MegatronSetup("unfused", sequence_parallel=False, interleaving=False, zero=(0, 1))
"""Megatron-LM and DeepSpeed of 2021: unfused attention, 1F1B, the optimizer sharded or not."""


def megatron_runs(training: ClaimedTraining, setup: MegatronSetup = MEGATRON_CORE) -> list[PublishedRun]:
    """All runs of Megatron-LM that a training could be, and that fit in memory.

    The lengths of the tensor, pipeline and data parallel groups divide the number of GPUs; microbatches are 1, 2 or 4
    sequences of 2,048 tokens, or as many tokens.

    Parameters
    ----------
    training : model, machine, number of GPUs and batch
    setup : features that a run may use
    """
    shape, gpus = training.shape, training.gpus
    return [
        run
        for tensor in (_divisors(gpus) if setup.tensor else [1])
        if shape.heads % tensor == 0
        for pipeline in _divisors(gpus // tensor)
        if pipeline <= shape.layers
        for micro in (factor * max(1, FULL_SEQUENCE // shape.sequence) for factor in MICROS)
        if (data := gpus // tensor // pipeline) * micro <= training.batch
        for chunks in _chunks(shape.layers, pipeline, ceil(training.batch / (micro * data)), setup)
        for zero in setup.zero
        for run in (_run(training, setup, (tensor, pipeline, data), micro, chunks, zero),)
        if min(run.layers) > 0 and peak_bytes(run) <= setup.memory * run.gpu.memory_bytes
    ]


def _divisors(number: int) -> list[int]:
    """The divisors of a number."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _chunks(layers: int, stages: int, microbatches: int, setup: MegatronSetup) -> list[int]:
    """The numbers of chunks that a stage may have: interleaving needs equal chunks and whole rounds of microbatches."""
    if not setup.interleaving or stages == 1 or layers % stages or microbatches % stages:
        return [1]
    return _divisors(layers // stages)


def _run(
    training: ClaimedTraining,
    setup: MegatronSetup,
    lengths: tuple[int, int, int],
    micro: int,
    chunks: int,
    zero: int,
) -> PublishedRun:
    """A run of Megatron-LM; `lengths` are those of the tensor, pipeline and data parallel groups."""
    tensor, pipeline, data = lengths
    return PublishedRun(
        machine=training.machine,
        gpu=MACHINES[training.machine].gpu,
        gpus=training.gpus,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        interleave=chunks,
        zero=zero,
        shape=training.shape,
        batch=training.batch,
        micro=micro,
        recompute=setup.recompute,
        dtype=training.half,
        deepspeed=False,
        sequence_parallel=setup.sequence_parallel and tensor > 1,
        attention=setup.attention,
    )


def fastest(runs: list[PublishedRun]) -> tuple[PublishedRun, float]:
    """The fastest run and the predicted time of its step [s], by branch and bound.

    Runs are predicted in the order of a lower bound, until the bound exceeds the fastest prediction.
    """
    fastest_seconds, best = float("inf"), runs[0]
    for bound, number in sorted((_lower_bound_seconds(run), number) for number, run in enumerate(runs)):
        if bound >= fastest_seconds:
            break
        if (seconds := step_seconds(runs[number]).seconds) < fastest_seconds:
            fastest_seconds, best = seconds, runs[number]
    return best, fastest_seconds


def _lower_bound_seconds(run: PublishedRun) -> float:
    """A lower bound of the step's time [s]: the microbatches of the busiest stage."""
    slots = slot_seconds(run)
    microbatch_seconds = [forward + backward for forward, backward in zip(slots.forward, slots.backward, strict=True)]
    return ceil(run.microbatches) * max(microbatch_seconds)
