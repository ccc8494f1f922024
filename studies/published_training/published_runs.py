"""The training runs that published rows describe, or the reason why a row describes no run that is modelled.

Values that a source does not print are assumed as follows:

    microbatch       the whole batch of a replica without a pipeline, one sequence with a pipeline
    recomputation    If the row prints both step time and flop/s, their product shows whether three passes (no
                     recomputation) or four passes were counted.
    attention        unfused (the scores are stored), unless the row, its source or a GPU that is newer than fused
                     attention shows that it is fused
    sequence parallelism    none, unless the row names it
    mixed precision  gradients are reduced in fp32 if the name of the precision begins with `amp`

Source: mosaicml/llm-foundry, scripts/train/benchmarking/README.md ("our models
use Flash Attention"; tables, columns Precision and MP Mode); mosaicml/composer,
composer/trainer/mosaic_fsdp_utils.py, `get_mixed_precision` (DEFAULT and PURE).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.flops import flops_per_second_per_gpu, full_square_flops
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.algorithms.training.recompute import RECOMPUTES, Attention, Recompute
from quadrille.studies.published_training.training_rows import TEXT_INSTEAD, Metric, TrainingRow
from quadrille.topologies.nodes.gpus import (
    A100_40GB,
    A100_80GB,
    B200_SXM,
    B300_SXM,
    GB200_GPU,
    GB300_GPU,
    H100_SXM,
    H200_SXM,
    V100_16GB,
    V100_32GB,
    Generation,
    Gpu,
)

NAMES: dict[tuple[str, Generation], str] = {
    ("selene", "ampere"): "selene",
    ("dgx a100", "ampere"): "selene",
    ("mosaicml platform", "ampere"): "selene",
    ("dgx h100", "hopper"): "h100-superpod",
    ("mosaicml platform", "hopper"): "h100-superpod",
    ("dgx h200", "hopper"): "h200-superpod",
    ("dgx b200", "blackwell"): "b200-superpod",
    ("dgx b300", "blackwell"): "b300-superpod",
    ("gb200", "blackwell"): "gb200-nvl72",
    ("gb300", "blackwell"): "gb300-nvl72",
    ("jean zay gpu_p5", "ampere"): "jean-zay-a100",
    ("jean zay gpu_p13", "volta"): "jean-zay-v100",
}
"""Named machines by a part of the published name (lower case) and the generation of the GPUs.

Selene stands for clusters of DGX A100 without a name, and for MosaicML's A100 nodes, which have the same 1600 Gb/s.  A
SuperPOD of DGX H100 stands for MosaicML's H100 nodes, which have 8 x 400 Gb/s.
"""
GPUS: dict[tuple[str, str], Gpu] = {
    ("a100", "40gb"): A100_40GB,
    ("a100", "80gb"): A100_80GB,
    ("h100", ""): H100_SXM,
    ("h200", ""): H200_SXM,
    ("b200", ""): B200_SXM,
    ("b300", ""): B300_SXM,
    ("gb200", ""): GB200_GPU,
    ("gb300", ""): GB300_GPU,
    ("v100", "16gb"): V100_16GB,
    ("v100", "32gb"): V100_32GB,
}
"""GPUs by the beginning of the published name and by another part of it."""
OTHER_BOARDS = ("pcie", "nvl")
"""Parts of the names of GPUs that are slower and have other links, and are not modelled."""
DTYPES: dict[str, DType] = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "amp_fp16": "float16",
    "amp_bf16": "bfloat16",
    "amp_fp8": "bfloat16",
}
PRODUCTS: dict[str, Products] = {"amp_fp8": "fp8-delayed"}
"""Precision of products by the printed precision; other products have that of the weights.

Source: mosaicml/composer, composer/core/precision.py (Transformer Engine's DelayedScaling).
"""
FUSED_ATTENTION = ("mosaicml/llm-foundry",)
"""Beginnings of sources that state fused attention for all their runs: those of MosaicML."""
LARGE_SCALE = "Large Scale"
"""Part of the title of MosaicML's table of runs on 128 H100 and more, which have a script of their own."""
MOSAIC_SECOND = ("MPT-1b", "MPT-3b", "MPT-7b", "MPT-70b")
"""Models of that table that ran FlashAttention 2; all others, and all other tables, ran the first one in Triton.

Source: mosaicml/llm-foundry, scripts/train/benchmarking: submit_benchmarks.py at b2a43a147 (October 2023,
`--attn_impl`, triton by default), sweep.py and submit_benchmarks.py at 5e85bd62d (January 2024, `gpu-flash2`).
"""
MOSAIC_ZERO_2 = ("MPT-1b", "MPT-3b")
"""Models of that table that ran with SHARD_GRAD_OP, which is ZeRO 2.  Source: the same, sweep.py."""
PRINTED = ("gpus", "tensor", "pipeline", "data", "layers", "hidden", "heads", "sequence", "vocabulary", "batch")
PERHAPS_PRINTED = ("context", "interleave", "zero", "micro")
NOT_PLAIN = ("llama", "mistral", "mixtral", "qwen", "deepseek", "gemma", "moe", "phi", "olmo", "bert", "t5")
"""Parts of the names of models whose layers are not those of a GPT."""
SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary")
NOT_YET: tuple[tuple[Callable[[TrainingRow], bool], str], ...] = (
    (lambda row: row.columns["precision"] not in DTYPES, "precision {precision!r}"),
    (lambda row: bool(re.search(r"moe|mixtral|deepseek|a\d+b", row.columns["model"].lower())), "experts of {model!r}"),
)
"""Rows that this study does not judge yet, each with the words that say so; without its line they are judged."""
BRIDGE = "NVIDIA Megatron-Bridge"
"""Beginning of the source whose rows of 8 and 4 bits the study `megatron-bridge` judges, from more columns."""
CLOSE = 0.12
"""Largest relative difference between printed flop/s and those of three or four passes, which differ by a third."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A published training run.

    Parameters
    ----------
    machine : name of the named machine
    gpu : data sheet of the GPU
    gpus : number of GPUs
    tensor, pipeline, data : lengths of the parallel groups
    interleave : number of layer chunks of a pipeline stage
    zero : ZeRO stage
    shape : shape of the model
    batch : number of sequences of the global batch
    micro : number of sequences of a microbatch
    recompute : recomputation of activations
    dtype : dtype of the weights and activations
    deepspeed : whether pipeline and optimizer are DeepSpeed's; otherwise Megatron-LM's
    amp : whether weights are cast for each matrix product (automatic mixed precision), so that gradients are fp32
    sequence_parallel : whether activations between the matrix products are sharded over the tensor-parallel group
    attention : `unfused`, `fused` (the scores stay within one kernel, the GPU's best), or a fused kernel by name
    products : precision of the products of linear layers
    context : size of the context-parallel group
    """

    machine: str
    gpu: Gpu
    gpus: int
    tensor: int
    pipeline: int
    data: int
    interleave: int
    zero: int
    shape: ModelShape
    batch: int
    micro: int
    recompute: Recompute
    dtype: DType
    deepspeed: bool
    amp: bool = False
    sequence_parallel: bool = False
    attention: Attention = "unfused"
    products: Products = "dtype"
    context: int = 1

    @property
    def microbatches(self) -> float:
        """The number of microbatches of a replica in a step; with a fraction if the last microbatch is partial."""
        return self.batch / (self.micro * self.data)

    @property
    def sums_in_fp32(self) -> bool:
        """Whether gradients are summed and reduced in fp32, as by DeepSpeed's bf16 optimizer."""
        return self.amp or (self.deepspeed and self.dtype == "bfloat16")

    @property
    def layers(self) -> tuple[int, ...]:
        """The number of layers of each pipeline stage, see `layers_of_stages`."""
        return layers_of_stages(self.shape.layers, self.pipeline)


def layers_of_stages(layers: int, stages: int) -> tuple[int, ...]:
    """The number of layers of each pipeline stage.

    The layers are divided evenly if possible.  Otherwise they are divided evenly with the embedding and the logits
    counted as one layer each, if possible.  Otherwise all stages except the last ones get the share rounded up
    (DeepSpeed's partition by type).

    Parameters
    ----------
    layers : number of layers
    stages : number of pipeline stages

    Source: BigScience, tr11-176B-ml/chronicles-prequel.md, "Re-do" and "Rebalancing layers".

    >>> layers_of_stages(12, 3), layers_of_stages(10, 3), layers_of_stages(11, 3)
    ((4, 4, 4), (3, 4, 3), (4, 4, 3))
    """
    if layers % stages == 0:
        return (layers // stages,) * stages
    if stages > 1 and (layers + 2) % stages == 0:
        inner = (layers + 2) // stages
        return (inner - 1, *(inner,) * (stages - 2), inner - 1)
    share = -(-layers // stages)
    return tuple(max(0, min(share, layers - stage * share)) for stage in range(stages))


def run_or_reason(row: TrainingRow, same: Sequence[TrainingRow]) -> PublishedRun | str:
    """The run of a row, or the reason why it is not modelled.

    Parameters
    ----------
    row : published row
    same : all rows of the same run
    """
    row = completed(row)
    if reason := _missing_columns(row) or _unmodelled_setup(row) or _inconsistency(row):
        return reason
    gpu, name, shape = _gpu(row), _machine(row), _shape(row)
    assert gpu is not None and name is not None, row.id
    micro = row.micro or (row.batch // row.data if row.pipeline == 1 else 1)
    if row.batch < max(1, micro) * row.data:
        return f"a batch of {row.batch} is less than a microbatch of {max(1, micro)} on each of {row.data} replicas"
    interleave = max(1, row.interleave) if row.pipeline > 1 else 1
    chunks = row.pipeline * interleave
    if interleave > 1 and (row.layers % chunks or row.batch % (micro * row.data * row.pipeline)):
        return "interleaved chunks are no whole layers, or microbatches no multiple of the stages"
    if contradiction := _contradiction(row, same, shape, gpu):
        return contradiction
    recompute = _recompute(row, same, shape)
    if recompute is None:
        return "whether activations are computed again is not printed and does not follow from seconds and flop/s"
    return PublishedRun(
        name,
        gpu,
        row.gpus,
        row.tensor,
        row.pipeline,
        row.data,
        interleave,
        2 if _is_large_scale(row, MOSAIC_ZERO_2) else row.zero,
        shape,
        row.batch,
        micro,
        recompute,
        DTYPES[row.columns["precision"]],
        deepspeed="deepspeed" in row.columns["algorithm"].lower(),
        amp=row.columns["precision"].startswith("amp"),
        sequence_parallel=_sequence_parallel(row),
        attention=_attention(row, gpu),
        products=PRODUCTS.get(row.columns["precision"], "dtype"),
        context=max(1, row.context),
    )


def known_shape(name: str) -> ModelShape | None:
    """The shape of a model that the product knows, by its published name; None for other models.

    >>> known_shape("LLAMA3.1_405B").name, known_shape("Llama-2 7B").name, known_shape("GPT 39.1B")
    ('llama3-405b', 'llama2-7b', None)
    """
    words = re.sub(r"[^a-z0-9.]", "", name.lower()).replace("llama3.1", "llama3").replace("llama1", "llama")
    return next((shape for own_name, shape in SHAPES.items() if own_name.replace("-", "") == words), None)


def completed(row: TrainingRow) -> TrainingRow:
    """The row with the sizes of its model that it does not print, if the product knows the model by its name."""
    shape = known_shape(row.columns["model"])
    if shape is None:
        return row
    sizes = {name: getattr(row, name) or getattr(shape, name) for name in SIZES}
    return replace(row, **sizes)


def _shape(row: TrainingRow) -> ModelShape:
    """The shape of a row's model: of a model that the product knows, with its architecture and MLP."""
    name, sizes = row.columns["model"], {field: getattr(row, field) for field in SIZES}
    named = known_shape(name)
    if named is None:
        return ModelShape(name, **sizes)
    return replace(named, **sizes)


def _contradiction(row: TrainingRow, same: Sequence[TrainingRow], shape: ModelShape, gpu: Gpu) -> str:
    """The reason why the printed numbers of a run cannot be: more than the peak, or time against flop/s; else empty."""
    flops = full_square_flops(shape, row.batch, recompute="full")
    printed = {printed_row.metric[0]: printed_row.printed for printed_row in same if printed_row.metric is not None}
    seconds, rate, peak = _printed_seconds(row, printed), printed.get("flops"), gpu.peak_flops_per_second
    dtype = DTYPES[row.columns["precision"]]
    if seconds and (reached := flops_per_second_per_gpu(flops.model, seconds, row.gpus)) > peak[dtype]:
        return f"the printed time means {reached / 1e12:.0f} TFLOP/s on a GPU of {peak[dtype] / 1e12:.0f}"
    if not seconds or not rate:
        return ""
    counts = (flops_per_second_per_gpu(count, seconds, row.gpus) / rate - 1 for count in (flops.model, flops.hardware))
    nearest = min(counts, key=abs)
    return "" if abs(nearest) <= CLOSE else f"time and flop/s contradict each other by {100 * abs(nearest):.0f} %"


def _printed_seconds(row: TrainingRow, printed: Mapping[Metric, float | None]) -> float | None:
    """The time of a step that a run's rows print, directly or as a rate; None if they print none."""
    if seconds := printed.get("seconds"):
        return seconds
    tokens = row.batch * row.sequence
    amounts = {"sequences": row.batch, "tokens": tokens, "tokens_per_gpu": tokens / row.gpus}
    return next((amounts[metric] / rate for metric, rate in printed.items() if rate and metric in amounts), None)


def _gpu(row: TrainingRow) -> Gpu | None:
    """The data sheet of a row's GPU; None if the GPU is not modelled."""
    gpu_type = row.columns["gpu_type"].lower()
    if any(board in gpu_type for board in OTHER_BOARDS):
        return None
    return next((gpu for (kind, size), gpu in GPUS.items() if gpu_type.startswith(kind) and size in gpu_type), None)


def _machine(row: TrainingRow) -> str | None:
    """The name of the named machine of a row; None if the machine is not modelled."""
    gpu, machine = _gpu(row), row.columns["machine"].lower().replace("-", " ")
    if gpu is None:
        return None
    return next((name for (words, kind), name in NAMES.items() if words in machine and kind == gpu.generation), None)


def _missing_columns(row: TrainingRow) -> str:
    """The reason that names the required numbers which a row does not print; empty if it prints all."""
    if worded := [field for field in (*PRINTED, *PERHAPS_PRINTED) if getattr(row, field) == TEXT_INSTEAD]:
        return f"{worded[0]} {row.printed_in(worded[0])!r} is no whole number"
    missing = [field for field in PRINTED if not getattr(row, field)]
    return f"the source does not print {', '.join(missing)}" if missing else ""


def _unmodelled_setup(row: TrainingRow) -> str:
    """The reason why the machine, metric, precision or model of a row is not modelled; empty if they are."""
    if _machine(row) is None:
        return f"machine {row.columns['machine']!r} with {row.columns['gpu_type']!r} is none of ours"
    if row.metric is None:
        return f"{row.columns['metric']} in {row.columns['unit']} is not predicted"
    if row.columns["paper"].startswith(BRIDGE) and row.columns["precision"] not in DTYPES:
        return "judged by the study megatron-bridge"
    if later := next((reason for is_later, reason in NOT_YET if is_later(row)), ""):
        return f"not yet: {later.format(**row.columns)}"
    name = row.columns["model"]
    if known_shape(name) is None and any(word in name.lower() for word in NOT_PLAIN):
        return f"model {name!r}: its layers are not those of a plain GPT, and it is none of ours"
    gpu = _gpu(row)
    if gpu is not None and gpu.generation == "volta" and _attention(row, gpu) != "unfused":
        return f"fused attention on {row.columns['gpu_type']} is not modelled"
    return "ZeRO 2 and 3 are not modelled with a pipeline" if row.zero > 1 and row.pipeline > 1 else ""


def _inconsistency(row: TrainingRow) -> str:
    """The reason why the parallel groups of a row contradict each other or are not modelled; empty if neither."""
    if row.tensor * row.pipeline * row.data * max(1, row.context) != row.gpus:
        return f"tensor x pipeline x data{' x context' if row.context > 1 else ''} is not the number of GPUs"
    if row.hidden % row.heads or row.heads % row.tensor or row.layers < row.pipeline:
        return "heads or layers do not divide as the row says"
    groups = _shape(row).key_value_heads
    return f"{groups} groups of heads are not cut over tensor={row.tensor}" if groups % row.tensor else ""


def _sequence_parallel(row: TrainingRow) -> bool:
    """Whether the row names sequence parallelism; without tensor parallelism there is none."""
    words = re.findall("[a-z]+", f"{row.columns['algorithm']} {row.columns['recompute']}".lower())
    return row.tensor > 1 and ("sp" in words or "sequence parallel" in " ".join(words))


def _attention(row: TrainingRow, gpu: Gpu) -> Attention:
    """The implementation of attention by the row's text, its source or its GPU."""
    words = f"{row.columns['algorithm']} {row.columns.get('note', '')}".lower()
    if re.search(r"\b(no|without|not) flash", words):
        return "unfused"
    if row.columns["source"].startswith(FUSED_ATTENTION):
        return "flash2" if _is_large_scale(row, MOSAIC_SECOND) else "flash1"
    young = gpu.generation in ("hopper", "blackwell")
    return "fused" if "flash" in words or young else "unfused"


def _is_large_scale(row: TrainingRow, models: Sequence[str]) -> bool:
    """Whether a row is of MosaicML's runs on 128 H100 and more, with one of these models."""
    large = LARGE_SCALE in row.columns.get("table_or_figure", "")
    return large and row.columns["source"].startswith(FUSED_ATTENTION) and row.columns["model"] in models


def _recompute(row: TrainingRow, same: Sequence[TrainingRow], shape: ModelShape) -> Recompute | None:
    """The recomputation that a row names, or that follows from its step time and flop/s; None if neither."""
    named = [recompute for recompute in RECOMPUTES if row.columns["recompute"].lower().startswith(recompute)]
    if named:
        return named[0]
    printed = {printed_row.metric[0]: printed_row.printed for printed_row in same if printed_row.metric is not None}
    seconds, rate = printed.get("seconds"), printed.get("flops")
    if not seconds or not rate:
        return None
    flops = full_square_flops(shape, row.batch, recompute="full")
    for recompute, count in (("none", flops.model), ("full", flops.hardware)):
        if abs(flops_per_second_per_gpu(count, seconds, row.gpus) / rate - 1) < CLOSE:
            return recompute  # type: ignore[return-value]
    return None
