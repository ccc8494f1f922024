"""A Megatron-LM job as a training experiment.

What an experiment has no word for is listed: the result differs from the job there.
"""

from collections.abc import Iterator
from dataclasses import replace

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.gpt import Gpt, check_gpt
from quadrille.algorithms.training.megatron_software import software_of
from quadrille.algorithms.training.megatron_step import MegatronStep
from quadrille.algorithms.training.recompute import Recompute
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.import_.megatron_job import MegatronJob
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment


def job_experiment(job: MegatronJob) -> TrainingExperiment:
    """The experiment of a job.

    Raises
    ------
    InputError : sizes that a schedule cannot divide, or options that do not go together
    """
    step = job.step
    problem = Gpt(
        step.layers,
        step.hidden,
        step.heads,
        step.sequence,
        step.vocabulary,
        step.global_batch,
        dtype=step.precision,
        adam=Adam(rate=default_rate(step.hidden), clip=job.clip),
        micro_batch=step.micro_batch,
        interleave=step.virtual,
        stages=step.stage_layers,
        zero=3 if step.sharded_weights else 1 if step.distributed_optimizer and step.data * step.context > 1 else 0,
        gradient_bytes=step.gradient_bytes,
        attention="unfused" if step.attention == "unfused" else "fused",
        recompute=_recompute(step),
        inner=step.inner,
        architecture=_architecture(job),
        dropout=step.hidden_dropout,
        context_parallel=job.context_form,
        experts=job.experts,
        products=job.products,
        fp8_param_gather=job.small_weights and job.products != "dtype",
    )
    software = "" if job.uncounted else str(software_of(step))
    expert, tensor = job.expert_ranks
    box = Grid(pipeline=step.pipeline, data=step.data, x=step.tensor, context=step.context)
    grid = replace(box, expert=expert, expert_tensor=tensor)
    scheme = find_scheme("megatron", sequence_parallel=step.sequence_parallel)
    check_gpt(problem, grid, scheme)
    return TrainingExperiment(problem, grid, scheme, ExecutionOptions(overlaps=_overlaps(job)), software=software)


def _overlaps(job: MegatronJob) -> frozenset[OverlapName]:
    """The overlaps of a job.

    Source: NVIDIA, Megatron-LM, megatron/core/tensor_parallel/layers.py (oar; with sequence parallelism oag, the input
    that is gathered again for the gradient of a weight); megatron/core/distributed/ (ogr, opg).
    """
    step = job.step
    replicas = step.data * step.context
    overlaps: dict[OverlapName, bool] = {
        "oar": step.tensor > 1,
        "ors": step.sharded_weights,
        "oag": step.sharded_weights or step.sequence_parallel,
        "ogr": job.overlaps_gradients and replicas > 1 and not step.sharded_weights,
        "opg": job.overlaps_weights and replicas > 1 and step.distributed_optimizer and not step.sharded_weights,
    }
    return frozenset(name for name, applies in overlaps.items() if applies)


def _recompute(step: MegatronStep) -> Recompute:
    """What is recomputed; fused attention stores no weights that could be."""
    return "none" if step.recompute == "selective" and step.attention != "unfused" else step.recompute


def _architecture(job: MegatronJob) -> Architecture:
    step = job.step
    rotary = job.rotary_share > 0
    own_columns = step.head_columns * step.heads != step.hidden
    architecture = Architecture(
        key_heads=0 if step.key_heads == step.heads else step.key_heads,
        gated=step.gated,
        norm="rms" if step.rms_norm else "layer",
        biases=step.biases,
        positions="rotary" if rotary else "learned" if step.positions else "none",
        rotary_base=job.rotary_base if rotary else Architecture().rotary_base,
        rotary_share=job.rotary_share if rotary else 1.0,
        shared_table=not step.untied,
        head_columns=step.head_columns if own_columns else 0,
        qkv_biases=step.qkv_biases and not step.biases,
        qk_norm="head" if step.head_norm else "none",
    )
    return replace(architecture, qk_norm="none", rotary_share=1.0, **job.latent) if job.latent else architecture


def differences(job: MegatronJob) -> tuple[str, ...]:
    """What the experiment does otherwise than the job."""
    return (*job.approximated, *_layout_differences(job.step))


def memory_remark(job: MegatronJob) -> str:
    """What the memory of the experiment counts, if it is not that of Megatron-LM; empty if it is."""
    if not job.uncounted:
        return ""
    return f"memory counts the buffers of the schedule: Megatron-LM's is not known with {job.uncounted}"


def _layout_differences(step: MegatronStep) -> Iterator[str]:
    if step.virtual > 1 and step.group not in (0, step.pipeline):
        group = step.group
        yield f"groups of {group} microbatches in the interleaved order: groups of {step.pipeline} are predicted"
    if step.optimizer_instances > 1:
        yield f"{step.optimizer_instances} copies of the optimizer state: one is predicted"
    if step.recompute == "full" and (step.recompute_block or step.recompute_layers > 1):
        yield "recomputed units of several layers: every layer is recomputed alone"
    if step.attention == "unfused" and step.attention_dropout != step.hidden_dropout:
        drops = step.attention_dropout, step.hidden_dropout
        yield f"dropout {drops[0]:g} of attention and {drops[1]:g} elsewhere: {drops[1]:g} is predicted everywhere"
