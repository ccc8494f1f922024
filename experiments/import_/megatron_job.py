"""Megatron-LM's arguments as a `MegatronStep`: what each argument means, and what Megatron-LM assumes without it.

Assumptions, as Megatron-LM makes them: layers of TransformerEngine with fused attention, dropout of 0.1, an MLP of four
times hidden (8/3 with SwiGLU, in multiples of 64), gradients of bf16 summed in 32 bits, a vocabulary padded to a
multiple of 128 times the tensor group, gradients accumulated by the product itself, no sequence parallelism on one
tensor rank, one microbatch for each data rank.

Source: NVIDIA, Megatron-LM, megatron/training/arguments.py (defaults and implications),
megatron/training/tokenizer (padding; `NullTokenizer` adds one entry).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.training.context import ContextForm, find_context_form
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.megatron_software import uncounted
from quadrille.algorithms.training.megatron_step import MegatronStep
from quadrille.experiments.import_.argument_values import ArgumentValues
from quadrille.experiments.import_.megatron_arguments import JobArguments
from quadrille.experiments.import_.megatron_coverage import (
    APPROXIMATE,
    EXACT_VALUES,
    NEVER,
    READ,
    SCRIPTS,
)
from quadrille.experiments.import_.megatron_experts import (
    expert_differences,
    expert_ranks,
    experts_of,
    latent_traits,
    products_of,
)
from quadrille.experiments.import_.pipeline_layout import layers_of_chunks

GPT2_VOCABULARY = 50257
DIVISIBLE_BY = 128
DROPOUT = "0.1"
GATED_MULTIPLE = 64
ROTARY = ("rope", "yarn", "mrope")
"""Words of `--position-embedding-type` that rotate queries and keys."""
SMALL_WEIGHTS = ("fp8-param-gather", "fp8-param", "fp4-param", "fp4-param-gather")


@dataclass(frozen=True, slots=True)
class MegatronJob:
    """A job under Megatron-LM.

    Parameters
    ----------
    step : training step
    rotary_base, rotary_share : rotary positions; a share of 0 for none
    clip : largest norm of the gradient; 0 for no limit
    overlaps_gradients, overlaps_weights : whether sums of gradients over data overlap the backward pass, and gathers of
        the weights of the sharded optimizer the forward pass
    experts : experts in place of the dense MLP; None for a dense model
    expert_ranks : ranks that share out the experts, and ranks that cut each
    latent : traits of latent attention by name; empty without it
    products : precision of the products of linear layers
    small_weights : whether weights are stored and gathered in small numbers alone
    context_form : form of context parallelism
    ignored : arguments that are not read, in the order of the file
    approximated : what the step does instead, for arguments that cannot be followed
    """

    step: MegatronStep
    rotary_base: float = 10000.0
    rotary_share: float = 0.0
    clip: float = 1.0
    overlaps_gradients: bool = False
    overlaps_weights: bool = False
    experts: Experts | None = None
    expert_ranks: tuple[int, int] = (1, 1)
    latent: Mapping[str, Any] = field(default_factory=dict)
    products: Products = "dtype"
    small_weights: bool = False
    context_form: ContextForm = "ring"
    ignored: tuple[str, ...] = ()
    approximated: tuple[str, ...] = ()

    @property
    def uncounted(self) -> str:
        """Reason why the accounting of Megatron-LM's memory does not cover the job; empty if it does."""
        return uncounted(self.experts, self.latent.get("key_rank", 0), self.products)


def megatron_job(arguments: JobArguments, gpus: int | None = None) -> MegatronJob:
    """The job that the arguments describe.

    >>> words = {"num-layers": "2", "hidden-size": "64", "num-attention-heads": "4", "seq-length": "32"}
    >>> job = megatron_job(JobArguments({**words, "micro-batch-size": "1", "vocab-size": "100", "bf16": True}, 2))
    >>> job.step.inner, job.step.vocabulary, job.step.data, job.step.gradient_bytes
    (256, 128, 2, 4)

    Parameters
    ----------
    arguments : arguments as read from a file
    gpus : number of GPUs; None for the number that the file names

    Raises
    ------
    InputError : a missing or impossible value, or an argument for which there is no experiment
    """
    name = arguments.script.rpartition("/")[2]
    if name not in SCRIPTS:
        raise InputError(f"{name}: pretrain_gpt.py is accepted")
    values = ArgumentValues(arguments.values)
    for refused, asked in NEVER.items():
        if text := values.text(refused):
            raise InputError(f"--{refused} {text:.40}: an experiment has no {asked} yet")
    count = gpus or arguments.gpus
    if count is None:
        raise InputError("the number of GPUs is missing: --gpus N, or torchrun --nproc_per_node N in the file")
    step = MegatronStep(gpus=count, **_sizes(values), **_layout(values, count), **_software(values), **_memory(values))
    experts = experts_of(values, step.layers, step.inner)
    return MegatronJob(
        step,
        values.number("rotary-base", 10000.0),
        values.number("rotary-percent", 1.0) if _is_rotary(values) else 0.0,
        values.number("clip-grad", 1.0),
        values.on("overlap-grad-reduce"),
        values.on("overlap-param-gather"),
        experts,
        expert_ranks(values, experts) if experts else (1, 1),
        latent_traits(values),
        products_of(values),
        any(values.on(name) for name in SMALL_WEIGHTS),
        find_context_form(values.text("cp-comm-type", "p2p")),
        tuple(name for name in arguments.values if name not in READ and name not in APPROXIMATE),
        (*_approximated(values), *expert_differences(values, experts)),
    )


def _is_rotary(values: ArgumentValues) -> bool:
    """Whether queries and keys are rotated."""
    return (
        values.text("position-embedding-type") in ROTARY
        or values.on("use-rotary-position-embeddings")
        or values.on("multi-latent-attention")
    )


def _sizes(values: ArgumentValues) -> dict[str, Any]:
    """The sizes of the model."""
    hidden, heads = values.whole("hidden-size"), values.whole("num-attention-heads")
    gated = values.on("swiglu")
    usual = hidden * 8 // 3 // GATED_MULTIPLE * GATED_MULTIPLE if gated else 4 * hidden
    learned = values.text("position-embedding-type", "learned_absolute") == "learned_absolute"
    learned = learned and not _is_rotary(values)
    grouped = values.on("group-query-attention")
    sequence = values.whole("seq-length")
    return {
        "layers": values.whole("num-layers"),
        "hidden": hidden,
        "heads": heads,
        "sequence": sequence,
        "vocabulary": _vocabulary(values),
        "inner": values.whole("ffn-hidden-size", usual),
        "head_columns": values.whole("kv-channels", hidden // max(heads, 1)),
        "key_heads": values.whole("num-query-groups", 1) if grouped else heads,
        "gated": gated,
        "rms_norm": values.text("normalization") == "RMSNorm",
        "biases": not values.on("disable-bias-linear"),
        "qkv_biases": values.on("add-qkv-bias"),
        "head_norm": values.on("qk-layernorm"),
        "positions": values.whole("max-position-embeddings", sequence) if learned else 0,
        "untied": values.on("untie-embeddings-and-output-weights"),
        "hidden_dropout": values.number("hidden-dropout", float(DROPOUT)),
        "attention_dropout": values.number("attention-dropout", float(DROPOUT)),
    }


def _vocabulary(values: ArgumentValues) -> int:
    """Entries of the embedding table, padded as Megatron-LM pads them."""
    if values.text("padded-vocab-size"):
        return values.whole("padded-vocab-size")
    if values.text("vocab-size"):
        entries = values.whole("vocab-size") + (values.text("tokenizer-type") == "NullTokenizer")
    elif values.text("tokenizer-type", "GPT2BPETokenizer") == "GPT2BPETokenizer":
        entries = GPT2_VOCABULARY
    else:
        kind = values.text("tokenizer-type")
        words = "its size is in no argument: --vocabulary N gives it, or --vocab-size N in the file"
        raise InputError(f"--tokenizer-type {kind:.40}: {words}")
    multiple = values.whole("make-vocab-size-divisible-by", DIVISIBLE_BY) * values.whole(
        "tensor-model-parallel-size", 1
    )
    return ceil(entries / max(multiple, 1)) * max(multiple, 1)


def _layout(values: ArgumentValues, gpus: int) -> dict[str, Any]:
    """The parallel groups, and the division of the batch and of the layers."""
    tensor, pipeline = values.whole("tensor-model-parallel-size", 1), values.whole("pipeline-model-parallel-size", 1)
    context, micro = values.whole("context-parallel-size", 1), values.whole("micro-batch-size")
    data = max(1, gpus // max(1, tensor * pipeline * context))
    layers = values.whole("num-layers")
    layout = str(values.values.get("pipeline-model-parallel-layout", ""))
    stages = layers_of_chunks(layout, layers, pipeline) if layout else _stages(values, layers, pipeline)
    chunk = values.whole("num-layers-per-virtual-pipeline-stage", 0)
    named = ("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size")
    chunks = next((values.whole(name) for name in named if values.text(name)), 0)
    virtual = (
        len(stages) // max(1, pipeline)
        if layout
        else chunks or (max(1, layers // max(1, pipeline) // chunk) if chunk else 1)
    )
    return {
        "micro_batch": micro,
        "global_batch": values.whole("global-batch-size", micro * data),
        "tensor": tensor,
        "pipeline": pipeline,
        "context": context,
        "virtual": virtual if pipeline > 1 else 1,
        "group": values.whole("microbatch-group-size-per-virtual-pipeline-stage", 0),
        "stage_layers": stages,
        "sequence_parallel": values.on("sequence-parallel") and tensor > 1,
    }


def _stages(values: ArgumentValues, layers: int, pipeline: int) -> tuple[int, ...]:
    """The layers of each stage; empty for the same number on each."""
    ends = [values.whole(f"decoder-{end}-pipeline-num-layers", 0) for end in ("first", "last")]
    if pipeline < 2 or not any(ends):
        return ()
    between = pipeline - sum(1 for end in ends if end)
    left = layers - sum(ends)
    if left < 0 or (left and not between) or (between and left % between):
        raise InputError(f"--decoder-first-pipeline-num-layers {ends[0]}, -last- {ends[1]}: {left} layers are left")
    middle = left // between if between else 0
    first, last = (end or middle for end in ends)
    return (first, *[middle] * (pipeline - 2), last)


def _software(values: ArgumentValues) -> dict[str, Any]:
    """The kernels of a layer."""
    local = values.text("transformer-impl", "transformer_engine") == "local"
    backend = values.text("attention-backend", "auto")
    flash = values.on("use-flash-attn") or backend == "flash"
    unfused = backend in ("unfused", "local") or (local and not flash)
    fusion = values.on("cross-entropy-loss-fusion")
    return {
        "implementation": "local" if local else "transformer_engine",
        "attention": "flash" if flash else "unfused" if unfused else "cudnn" if backend == "fused" else "auto",
        "deterministic": values.on("deterministic-mode"),
        "loss": values.text("cross-entropy-fusion-impl", "native") if fusion else "unfused",
        "fused_gradients": not values.on("no-gradient-accumulation-fusion"),
        "mask_from_loader": not values.on("no-create-attention-mask-in-dataloader"),
    }


def _memory(values: ArgumentValues) -> dict[str, Any]:
    """Precisions, shards of the optimizer, and recomputation."""
    precision = "bfloat16" if values.on("bf16") else "float16" if values.on("fp16") else "float32"
    wide = values.on("accumulate-allreduce-grads-in-fp32") or (
        precision == "bfloat16" and not values.on("grad-reduce-in-bf16")
    )
    fsdp = any(values.on(name) for name in ("use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2"))
    strategy = values.text("data-parallel-sharding-strategy", "optim_grads_params" if fsdp else "no_shard")
    recompute = values.text("recompute-granularity", "selective" if values.on("recompute-activations") else "none")
    if (
        recompute == "full"
        and values.text("recompute-method") == "block"
        and not values.whole("recompute-num-layers", 1)
    ):
        recompute = "none"
    return {
        "precision": precision,
        "gradient_bytes": 4 if wide or precision == "float32" else 2,
        "distributed_optimizer": values.on("use-distributed-optimizer") or (fsdp and strategy != "no_shard"),
        "optimizer_instances": values.whole("num-distributed-optimizer-instances", 1),
        "sharded_weights": fsdp and strategy == "optim_grads_params",
        "recompute": recompute,
        "recompute_layers": max(1, values.whole("recompute-num-layers", 1)),
        "recompute_block": values.text("recompute-method") == "block",
    }


def _approximated(values: ArgumentValues) -> Iterator[str]:
    """What the step does instead, for each argument that cannot be followed."""
    for name, instead in APPROXIMATE.items():
        if (text := values.text(name)) and text not in EXACT_VALUES.get(name, ()):
            yield f"--{name} {text}: {instead}"
