"""Bytes of memory of a run: what the schedule of its step keeps, and 16-bit gradients beside those in fp32.

Megatron-LM's schedule of the run, with its pipeline, microbatches and sharded
optimizer, is written, and its buffers counted as `simulate` counts them.  Where
gradients are added up in fp32, Megatron-LM and DeepSpeed's bf16 optimizer keep
those of 16 bits too, 2 bytes for each parameter; a schedule has them for one
layer at a time, and so has ZeRO 2 and 3.  Layers that do not come out even are cut
as a schedule cuts them, the first stages one longer.

Attention weights that a run does not store are not counted, fused or not: unfused
attention that is computed again counts as fused attention.

Source: BigScience, chronicles-prequel.md, "Rebalancing layers" (the bf16
optimizer's gradients); microsoft/DeepSpeed, deepspeed/runtime/bf16_optimizer.py.
"""

from functools import cache
from math import ceil

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import gpt_from_shape, gpt_schedule
from quadrille.experiments.workloads.training_figures import schedule_peak_bytes
from quadrille.studies.published_training.runs import PublishedRun
from quadrille.studies.published_training.stage import MEGATRON, MEGATRON_SCATTERED
from quadrille.studies.published_training.step import HALF_BYTES, WIDE_BYTES, stage_parameters


@cache
def peak_bytes(run: PublishedRun) -> float:
    """Peak memory of the fullest GPU [B], without the framework, libraries and fragmentation."""
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
    kept = schedule_peak_bytes(gpt_schedule(problem, grid, scheme), parse_choices("library"))
    return kept + (HALF_BYTES * max(stage_parameters(run)) if _wide(run) and run.zero < 2 else 0.0)


def _wide(run: PublishedRun) -> bool:
    """Whether gradients are added up in fp32: by the bf16 optimizer, and where the optimizer is not sharded."""
    return run.sums_in_fp32 or not run.zero
