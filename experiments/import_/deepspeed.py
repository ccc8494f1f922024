"""DeepSpeed's JSON: batch, precision, ZeRO stage and offload; the model comes beside (`--model`).

    key                                            experiment
    train_batch_size                               --batch; else micro-batch x accumulation x data ranks
    train_micro_batch_size_per_gpu                 --micro-batch; else batch / accumulation / data ranks
    gradient_accumulation_steps                    number of microbatches
    bf16.enabled, fp16.enabled                     --dtype; float32 without both
    zero_optimization.stage                        --zero
    zero_optimization.offload_optimizer.device     --offload optimizer:host (cpu)
    zero_optimization.overlap_comm                 --overlap ors,oag at stage 3, ogr at stages 1 and 2
    data_types.grad_accum_dtype                    --gradient-bytes 4 (fp32); else 2
    gradient_clipping                              --clip
    tensor_parallel.autotp_size                    --grid x=…
    activation_checkpointing                       --recompute full

`"auto"` (Hugging Face's Trainer) counts as absent.  Differences: offload to NVMe, offload of parameters, compressed
gradients of ZeRO++, a pipeline of DeepSpeed's own engine, sparse attention, 1-bit optimizers.

Source: microsoft/DeepSpeed, docs/_pages/config-json.md; deepspeed/runtime/zero/config.py (defaults);
deepspeed/runtime/zero/stage_1_and_2.py (overlap_comm).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.training.offload import Offload
from quadrille.experiments.import_.imported_job import Asked, ImportedJob
from quadrille.experiments.import_.settings import Settings
from quadrille.experiments.import_.sharded_training import Layout, layout_experiment

NAME = "DeepSpeed"
MARKS = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization.stage", "gradient_accumulation_steps")
READ = (
    *MARKS,
    *("bf16.enabled", "fp16.enabled", "gradient_clipping", "data_types.grad_accum_dtype", "tensor_parallel"),
    *("zero_optimization.offload_optimizer", "zero_optimization.offload_param", "zero_optimization.overlap_comm"),
    *("zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_gradients"),
    *("activation_checkpointing", "optimizer.type", "sparse_attention", "pipeline"),
)
ADAMS = ("adam", "adamw", "fusedadam", "deepspeedcpuadam", "")


def fits(settings: Settings) -> bool:
    """Whether a file is a configuration of DeepSpeed."""
    return any(mark in settings.values for mark in MARKS)


def read_deepspeed(files: Sequence[Settings], asked: Asked) -> ImportedJob:
    """The job.

    Raises
    ------
    InputError : no model, no number of GPUs, or a value that is not accepted
    """
    settings = _without_auto(files[0])
    if asked.shape is None:
        raise InputError(f"{settings.path}: has no model: --model NAME, or --model config.json, gives it")
    if asked.gpus is None:
        raise InputError(f"{settings.path}: the number of GPUs is missing: --gpus N")
    half, brain = settings.flag("fp16.enabled"), settings.flag("bf16.enabled")
    stage = settings.whole("zero_optimization.stage", 0)
    if stage > 3:
        raise settings.error("zero_optimization.stage", "0 to 3 is accepted")
    layout = Layout(
        gpus=asked.gpus,
        sequence=asked.sequence or 0,
        tensor=settings.whole("tensor_parallel.autotp_size", 1) or 1,
        zero=stage,
        dtype="bfloat16" if brain else "float16" if half else "float32",
        gradient_bytes=4 if settings.word("data_types.grad_accum_dtype") == "fp32" else 2,
        clip=settings.number("gradient_clipping", 0.0),
        recompute="full" if any(key.startswith("activation_checkpointing.") for key in settings.values) else "none",
        offload=_offload(settings),
        overlaps=_overlaps(settings, stage),
    )
    experiment = layout_experiment(_with_batch(settings, layout, asked), asked.shape)
    return ImportedJob(
        experiment, settings.unread(*READ), (*_differences(settings), *asked.shape.approximations), asked.shape.remarks
    )


def _without_auto(settings: Settings) -> Settings:
    return replace(settings, values={key: value for key, value in settings.values.items() if value != "auto"})


def _with_batch(settings: Settings, layout: Layout, asked: Asked) -> Layout:
    """The layout with its batch, of which two of three numbers are enough.

    Raises
    ------
    InputError : numbers that contradict each other
    """
    batch = asked.batch or settings.whole("train_batch_size", 0)
    micro = settings.whole("train_micro_batch_size_per_gpu", 0)
    steps = settings.whole("gradient_accumulation_steps", 0)
    data = layout.data
    if not micro:
        micro = max(1, batch // (max(steps, 1) * data)) if batch else 1
    if not batch:
        batch = micro * max(steps, 1) * data
    if steps and batch != micro * steps * data:
        raise InputError(
            f"{settings.path}: train_batch_size {batch}: micro-batch x accumulation x data ranks = "
            f"{micro} x {steps} x {data} is accepted"
        )
    return replace(layout, batch=batch, micro_batch=micro)


def _overlaps(settings: Settings, stage: int) -> frozenset[OverlapName]:
    """The overlaps of a ZeRO stage; without the key, stage 3 has them and the other stages have none."""
    if not settings.flag("zero_optimization.overlap_comm", stage == 3):
        return frozenset()
    return frozenset({3: ("ors", "oag"), 2: ("ogr",), 1: ("ogr",)}.get(stage, ()))  # type: ignore[arg-type]


def _offload(settings: Settings) -> Offload | None:
    device = settings.word("zero_optimization.offload_optimizer.device", "none")
    return Offload(updates_on_host=True) if device != "none" else None


def _differences(settings: Settings) -> Iterator[str]:
    if (device := settings.word("zero_optimization.offload_optimizer.device", "none")) not in ("none", "cpu"):
        yield f"offload_optimizer.device {device:.40}: the optimizer is kept in host memory"
    if (device := settings.word("zero_optimization.offload_param.device", "none")) != "none":
        yield f"offload_param.device {device:.40}: weights stay on the GPU"
    for key in ("zero_quantized_weights", "zero_quantized_gradients"):
        if settings.flag(f"zero_optimization.{key}"):
            yield f"{key}: sent in the dtype of the weights"
    if (optimizer := settings.word("optimizer.type")) not in ADAMS:
        yield f"optimizer.type {optimizer:.40}: another optimizer is predicted as Adam"
    for section in ("sparse_attention", "pipeline"):
        if any(key.startswith(f"{section}.") for key in settings.values):
            yield f"{section}: is not followed"
