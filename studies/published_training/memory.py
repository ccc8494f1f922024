"""Bytes of memory of a run: what is kept for each parameter, activations by Korthikanti's formulas, and the rest.

For each parameter: fp16 weights and gradients (2 + 2), Adam's master copy and
moments (12), and 4 where gradients are kept or summed in fp32 too.  A layer
whose activations are computed again keeps its input, 2 s b h; while it is
computed again, s b h (10 + 24/t) + 5 b a s²/t.  The last stage makes logits:
fp16 and fp32, and their gradient, 10 bytes for each.  A stage holds as many
microbatches as there are stages from it to the end.

Source: Korthikanti et al., arXiv 2205.05198, sections 4.1 and 4.2; Rajbhandari
et al., "ZeRO", 2020; BigScience, chronicles-prequel.md, "Rebalancing layers"
(the bf16 optimizer's 4 bytes, which are not sharded).
"""

from studies.published_training.runs import Run
from studies.published_training.step import stage_parameters

STATE_BYTES, WIDE_BYTES, LOGIT_BYTES = 12.0, 4.0, 10.0


def peak_bytes(run: Run) -> float:
    """Of the fullest GPU, without what the framework, libraries and gaps between buffers take."""
    per_parameter = parameter_bytes(run)
    return max(
        parameters * per_parameter + _activations(run, stage) for stage, parameters in enumerate(stage_parameters(run))
    )


def parameter_bytes(run: Run) -> float:
    """For each parameter of a GPU: sharded states need a share of what is not weight or gradient."""
    if not run.zero:
        return 4.0 + WIDE_BYTES + STATE_BYTES
    return 4.0 + (WIDE_BYTES if run.sums_in_fp32 else 0.0) + STATE_BYTES / run.data


def _activations(run: Run, stage: int) -> float:
    """The inputs of layers that are kept, and the larger of one layer at work and the logits."""
    shape = run.shape
    elements = run.micro * shape.sequence * shape.hidden
    layers, in_flight = run.layers[stage], min(run.pipeline - stage, run.microbatches)
    scores = 5.0 * run.micro * shape.heads * shape.sequence**2 / run.tensor
    working = elements * (10 + 24 / run.tensor) + scores
    logits = LOGIT_BYTES * run.micro * shape.sequence * shape.vocabulary / run.tensor
    at_work = max(working, logits) if stage == run.pipeline - 1 else working
    match run.recompute:
        case "full":
            return layers * in_flight * 2.0 * elements + at_work
        case "selective":
            return layers * in_flight * elements * (10 + 24 / run.tensor) + at_work
        case "none":
            return layers * in_flight * working + (logits if stage == run.pipeline - 1 else 0.0)
