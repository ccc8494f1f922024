"""Runs that rows describe, and why a row describes none that is modelled.

What a source leaves out is taken as follows, and no other way: a run without a
pipeline whose microbatch is not printed takes a replica's share at once; one
with a pipeline takes single sequences.  Whether a run computed its activations
again follows from its seconds and flop/s where both are printed and the row does
not say: they are by the formula with four passes or with three.

Attention stores its scores unless something says that it is fused: the row, its
source, or a GPU that is younger than fused attention.  Sequence parallelism is
what a row says.  Of mixed precisions, those named `amp` reduce gradients in fp32.

Source: mosaicml/llm-foundry, scripts/train/benchmarking/README.md ("our models
use Flash Attention"; tables, columns Precision and MP Mode); mosaicml/composer,
composer/trainer/mosaic_fsdp_utils.py, `get_mixed_precision` (DEFAULT and PURE).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from quadrille.algorithms.formats.measured_rows import Variant
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.flops import flops_per_second_per_gpu, step_flops
from quadrille.algorithms.training.models import ModelShape
from quadrille.algorithms.training.recompute import RECOMPUTES, Recompute
from quadrille.studies.published_training.fused import OF_A100
from quadrille.studies.published_training.rows import WORDS, TrainingRow
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.nodes.gpus import A100_40GB, A100_80GB, H100_SXM, V100_16GB, V100_32GB, Generation, Gpu

NAMES: dict[tuple[str, Generation], str] = {
    ("selene", "ampere"): "selene",
    ("dgx a100", "ampere"): "selene",
    ("mosaicml platform", "ampere"): "selene",
    ("dgx h100", "hopper"): "h100-superpod",
    ("mosaicml platform", "hopper"): "h100-superpod",
    ("jean zay gpu_p5", "ampere"): "jean-zay-a100",
    ("jean zay gpu_p13", "volta"): "jean-zay-v100",
}
"""Ours, by words that the machine's name has and by what the GPUs are.

Clusters of DGX A100 that are not named are taken as Selene's network; so are MosaicML's nodes of A100, whose 1600 Gb/s
are Selene's too, and those of H100, of the class of 8 x 400 Gb/s, as a SuperPOD of DGX H100.
"""
GPUS: dict[tuple[str, str], Gpu] = {
    ("a100", "40gb"): A100_40GB,
    ("a100", "80gb"): A100_80GB,
    ("h100", ""): H100_SXM,
    ("v100", "16gb"): V100_16GB,
    ("v100", "32gb"): V100_32GB,
}
"""By words that the GPU's name begins with and has."""
OTHER_BOARDS = ("pcie", "nvl")
"""In the names of GPUs that are slower and joined in other ways."""
DTYPES: dict[str, DType] = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "amp_fp16": "float16",
    "amp_bf16": "bfloat16",
}
FUSED_ATTENTION = ("mosaicml/llm-foundry",)
"""Sources that say it of all their runs."""
PRINTED = ("gpus", "tensor", "pipeline", "data", "layers", "hidden", "heads", "sequence", "vocabulary", "batch")
PERHAPS_PRINTED = ("context", "interleave", "zero", "micro")
NOT_PLAIN = ("llama", "mistral", "mixtral", "qwen", "deepseek", "gemma", "moe")
"""In the names of models whose layers are not those of a GPT."""
CLOSE = 0.12
"""Flop/s by four passes and by three are a third apart: nearer than this to one of them is told."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A training run.

    Parameters
    ----------
    machine : the name of ours
    tensor, pipeline, data : lengths of the groups
    interleave : chunks of layers of a stage
    micro : sequences of a microbatch
    deepspeed : whether pipeline and optimizer are DeepSpeed's, else Megatron-LM's
    amp : whether weights are cast for each product, so that their gradients are of fp32
    sequence_parallel : whether activations between products are cut over the tensor-parallel group
    attention : whether its scores stay within one kernel
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
    attention: Variant = "unfused"

    @property
    def microbatches(self) -> float:
        """Microbatches of a replica in a step; may be fractional, and then the last microbatch is partial."""
        return self.batch / (self.micro * self.data)

    @property
    def sums_in_fp32(self) -> bool:
        """Whether gradients are added up and reduced in fp32: DeepSpeed's bf16 optimizer does."""
        return self.amp or (self.deepspeed and self.dtype == "bfloat16")

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage, see `cut`."""
        return cut(self.shape.layers, self.pipeline)


def cut(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage.

    Evenly where that is possible; else with the embedding and the logits counted
    as a layer each, where that is even; else whole shares from the first stage
    on, and the last one takes what is left (DeepSpeed's partition by type).

    Source: BigScience, tr11-176B-ml/chronicles-prequel.md, "Re-do" and "Rebalancing layers".

    >>> cut(12, 3), cut(10, 3), cut(11, 3)
    ((4, 4, 4), (3, 4, 3), (4, 4, 3))
    """
    if layers % stages == 0:
        return (layers // stages,) * stages
    if stages > 1 and (layers + 2) % stages == 0:
        inner = (layers + 2) // stages
        return (inner - 1, *(inner,) * (stages - 2), inner - 1)
    share = -(-layers // stages)
    return tuple(max(0, min(share, layers - stage * share)) for stage in range(stages))


def run_of(row: TrainingRow, same: Sequence[TrainingRow]) -> PublishedRun | str:
    """The run of a row, or why it is none that is modelled.

    Parameters
    ----------
    same : rows of the same run
    """
    if reason := _not_printed(row) or _not_ours(row) or _not_whole(row):
        return reason
    gpu, name = _gpu(row), _machine(row)
    assert gpu is not None and name is not None, row.id
    shape = ModelShape(row.words["model"], row.layers, row.hidden, row.heads, row.sequence, row.vocabulary)
    micro = row.micro or (row.batch // row.data if row.pipeline == 1 else 1)
    if row.batch < max(1, micro) * row.data:
        return f"a batch of {row.batch} is less than a microbatch of {max(1, micro)} on each of {row.data} replicas"
    if row.gpus > MACHINES[name].gpus:
        return f"{row.gpus} GPUs are more than the {MACHINES[name].gpus} of {name}"
    interleave = max(1, row.interleave) if row.pipeline > 1 else 1
    turns = row.pipeline * interleave
    if interleave > 1 and (row.layers % turns or row.batch % (micro * row.data * row.pipeline)):
        return "interleaved chunks are no whole layers, or microbatches no multiple of the stages"
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
        row.zero,
        shape,
        row.batch,
        micro,
        recompute,
        DTYPES[row.words["precision"]],
        deepspeed="deepspeed" in row.words["algorithm"].lower(),
        amp=row.words["precision"].startswith("amp"),
        sequence_parallel=_sequence_parallel(row),
        attention=_attention(row, gpu),
    )


def _gpu(row: TrainingRow) -> Gpu | None:
    said = row.words["gpu_type"].lower()
    if any(board in said for board in OTHER_BOARDS):
        return None
    return next((gpu for (kind, size), gpu in GPUS.items() if said.startswith(kind) and size in said), None)


def _machine(row: TrainingRow) -> str | None:
    """The name of ours; None where it is none of ours."""
    gpu, said = _gpu(row), row.words["machine"].lower().replace("-", " ")
    if gpu is None:
        return None
    return next((name for (words, kind), name in NAMES.items() if words in said and kind == gpu.generation), None)


def _not_printed(row: TrainingRow) -> str:
    """What a row would have to say, and does not; empty where it says all."""
    if worded := [field for field in (*PRINTED, *PERHAPS_PRINTED) if getattr(row, field) == WORDS]:
        return f"{worded[0]} {row.printed_in(worded[0])!r} is no whole number"
    missing = [field for field in PRINTED if not getattr(row, field)]
    return f"the source does not print {', '.join(missing)}" if missing else ""


def _not_ours(row: TrainingRow) -> str:
    """Why the machine, the quantity or the software of a row are none that are predicted; empty where they are."""
    if _machine(row) is None:
        return f"machine {row.words['machine']!r} with {row.words['gpu_type']!r} is none of ours"
    if row.metric is None:
        return f"{row.words['metric']} in {row.words['unit']} is not predicted"
    if row.words["precision"] not in DTYPES:
        return f"precision {row.words['precision']!r} is not predicted"
    if any(word in row.words["model"].lower() for word in NOT_PLAIN):
        return f"model {row.words['model']!r}: the plain GPT alone is modelled here"
    gpu = _gpu(row)
    if gpu is not None and gpu.generation not in OF_A100 and _attention(row, gpu) == "fused":
        return f"fused attention on {row.words['gpu_type']} is not modelled"
    return "ZeRO 2 and 3 are not modelled with a pipeline" if row.zero > 1 and row.pipeline > 1 else ""


def _not_whole(row: TrainingRow) -> str:
    """What the numbers of a row contradict, or have that is not modelled; empty where there is nothing."""
    if row.context > 1:
        return f"context parallelism (cp={row.context}) is not modelled"
    if row.tensor * row.pipeline * row.data != row.gpus:
        return "tensor x pipeline x data is not the number of GPUs"
    if row.hidden % row.heads or row.heads % row.tensor or row.layers < row.pipeline:
        return "heads or layers do not divide as the row says"
    return ""


def _sequence_parallel(row: TrainingRow) -> bool:
    """Whether the row says so; without tensor parallelism there is nothing to cut."""
    words = re.findall("[a-z]+", f"{row.words['algorithm']} {row.words['recompute']}".lower())
    return row.tensor > 1 and ("sp" in words or "sequence parallel" in " ".join(words))


def _attention(row: TrainingRow, gpu: Gpu) -> Variant:
    """Whether its scores stay within one kernel; what is said to be without flash attention is not."""
    words = f"{row.words['algorithm']} {row.words.get('note', '')}".lower()
    if re.search(r"\b(no|without|not) flash", words):
        return "unfused"
    said = "flash" in words
    young = gpu.generation == "hopper" or row.words["source"].startswith(FUSED_ATTENTION)
    return "fused" if said or young else "unfused"


def _recompute(row: TrainingRow, same: Sequence[TrainingRow], shape: ModelShape) -> Recompute | None:
    said = [recompute for recompute in RECOMPUTES if row.words["recompute"].lower().startswith(recompute)]
    if said:
        return said[0]
    printed = {printed_row.metric[0]: printed_row.printed for printed_row in same if printed_row.metric is not None}
    seconds, rate = printed.get("seconds"), printed.get("flops")
    if not seconds or not rate:
        return None
    flops = step_flops(shape, row.batch, recompute="full")
    for recompute, count in (("none", flops.model), ("full", flops.hardware)):
        if abs(flops_per_second_per_gpu(count, seconds, row.gpus) / rate - 1) < CLOSE:
            return recompute  # type: ignore[return-value]
    return None
