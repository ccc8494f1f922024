"""The search for Megatron-LM's fastest run of a training: all parallel configurations that fit in memory, predicted."""

from math import ceil

from quadrille.studies.published_training.claimed_steps import ClaimedTraining
from quadrille.studies.published_training.memory import peak_bytes
from quadrille.studies.published_training.published_runs import PublishedRun
from quadrille.studies.published_training.training_step import slot_seconds, step_seconds
from quadrille.topologies.machines.machine_catalogue import MACHINES

MICROS = (1, 2, 4)


def megatron_runs(training: ClaimedTraining) -> list[PublishedRun]:
    """All runs of Megatron-LM that a training could be, and that fit in memory.

    The lengths of the tensor, pipeline and data parallel groups are powers of two, microbatches are 1, 2 or 4
    sequences, activations are recomputed in full, and the optimizer is sharded (ZeRO 1).

    Parameters
    ----------
    training : model, machine, number of GPUs and batch
    """
    gpu, shape, gpus = MACHINES[training.machine].gpu, training.shape, training.gpus
    powers = [2**power for power in range(gpus.bit_length())]
    return [
        run
        for tensor in powers
        if shape.heads % tensor == 0
        for pipeline in powers
        if pipeline <= shape.layers and tensor * pipeline <= gpus
        for micro in MICROS
        if (data := gpus // tensor // pipeline) * micro <= training.batch
        for run in (
            PublishedRun(
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
