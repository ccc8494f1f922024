"""The predicted peak memory of a published run: the buffers of its schedule, and 16-bit gradients.

The schedule of Megatron-LM's step is written with the pipeline, microbatches and sharded optimizer of the run, and its
buffers are counted as in `quadrille simulate`.  If gradients are summed in fp32, Megatron-LM and DeepSpeed's bf16
optimizer also keep all gradients in 16 bits, 2 bytes for each parameter; a schedule, like ZeRO 2 and 3, has them for
one layer at a time.  Layers that do not divide evenly are assigned as in a schedule: the first stages have one more.

Attention scores that a run recomputes are not counted: unfused attention with recomputation counts as fused.

Source: BigScience, chronicles-prequel.md, "Rebalancing layers" (the bf16
optimizer's gradients); microsoft/DeepSpeed, deepspeed/runtime/bf16_optimizer.py.
"""

from functools import cache
from math import ceil

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import gpt_from_shape, gpt_schedule
from quadrille.experiments.workloads.training_figures import schedule_peak_bytes as bytes_of_stages
from quadrille.studies.published_training.layer_times import MEGATRON, MEGATRON_SCATTERED
from quadrille.studies.published_training.published_runs import PublishedRun
from quadrille.studies.published_training.training_step import HALF_BYTES, WIDE_BYTES, stage_parameters


@cache
def peak_bytes(run: PublishedRun) -> float:
    """The peak memory of the fullest GPU [bytes], without the framework, libraries and fragmentation."""
    problem = gpt_from_shape(
        run.shape,
        run.micro * run.data * ceil(run.microbatches),
        dtype=run.dtype,
        micro_batch=run.micro,
        interleave=run.interleave,
        zero=run.zero,
        gradient_bytes=WIDE_BYTES if _wide(run) else HALF_BYTES,
        attention=run.attention if run.recompute == "none" else "fused",
        recompute="full" if run.recompute == "full" else "none",
    )
    grid = Grid(pipeline=run.pipeline, data=run.data, x=run.tensor)
    scheme = MEGATRON_SCATTERED if run.sequence_parallel else MEGATRON
    schedule_bytes = bytes_of_stages(gpt_schedule(problem, grid, scheme), parse_choices("library"))
    return schedule_bytes + (HALF_BYTES * max(stage_parameters(run)) if _wide(run) and run.zero < 2 else 0.0)


def _wide(run: PublishedRun) -> bool:
    """Whether gradients are summed in fp32: by the bf16 optimizer, or if the optimizer is not sharded."""
    return run.sums_in_fp32 or not run.zero
