"""Every run of Megatron-LM that a training could have been, by equal shares of what it has, and the fastest."""

from math import ceil

from quadrille.studies.published_training.claimed_steps import Training
from quadrille.studies.published_training.memory import peak_bytes
from quadrille.studies.published_training.runs import PublishedRun
from quadrille.studies.published_training.step import step_seconds, turn_seconds
from quadrille.topologies.machines.machine_catalogue import MACHINES

MICROS = (1, 2, 4)


def megatron_runs(training: Training) -> list[PublishedRun]:
    """Every run of Megatron-LM with equal shares of what it has, powers of two, that fits."""
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
    """The fastest run and its seconds; a run whose microbatches alone take longer is not predicted in full."""
    least, best = float("inf"), runs[0]
    for bound, number in sorted((_least_seconds(run), number) for number, run in enumerate(runs)):
        if bound >= least:
            break
        if (seconds := step_seconds(runs[number]).seconds) < least:
            least, best = seconds, runs[number]
    return best, least


def _least_seconds(run: PublishedRun) -> float:
    """Seconds of the busiest stage's microbatches, a lower bound of the step."""
    turns = turn_seconds(run)
    each = [forward + backward for forward, backward in zip(turns.forward, turns.backward, strict=True)]
    return ceil(run.microbatches) * max(each)
