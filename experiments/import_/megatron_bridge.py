"""Configurations of Megatron-Bridge and NeMo: nested keys of the names that Megatron-LM's arguments have.

    section                      keys
    model                        fields of Megatron-Core's TransformerConfig and of the model provider: sizes, parallel
                                 groups, experts, recomputation, dropout, fused attention and cross entropy
    train, data                  global_batch_size, micro_batch_size
    dataset, data                seq_length, sequence_length
    mixed_precision              a name such as bf16_mixed or bf16_with_fp8_current_scaling_mixed, or fields
    ddp, optimizer               use_distributed_optimizer, grad_reduce_in_fp32, clip_grad
    trainer                      num_nodes, devices (number of GPUs in NeMo)

A field without an argument of the same name has its argument in `RENAMED`.  A model that a recipe builds has no sizes
in the file: `--model NAME` gives them.

Source: NVIDIA-NeMo/Megatron-Bridge@067f987d, src/megatron/bridge/training/config.py, mixed_precision.py; NVIDIA,
Megatron-LM, megatron/core/transformer/transformer_config.py.
"""

from collections.abc import Sequence
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.experiments.import_.argument_values import Argument
from quadrille.experiments.import_.imported_job import Asked
from quadrille.experiments.import_.megatron_arguments import JobArguments
from quadrille.experiments.import_.megatron_coverage import APPROXIMATE, NEVER, READ
from quadrille.experiments.import_.settings import Settings

NAME = "Megatron-Bridge"
RENAMED = {
    "num-moe-experts": "num-experts",
    "gated-linear-unit": "swiglu",
    "add-bias-linear": "",
    "share-embeddings-and-output-weights": "",
    "fp8": "fp8-format",
    "num-microbatches": "",
    "encoder-seq-length": "seq-length",
    "sequence-length": "seq-length",
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "activation-func": "",
}
"""Fields whose argument has another name; an empty name for those that `_switches` reads."""
SECTIONS = ("model", "train", "data", "dataset", "ddp", "optimizer", "mixed_precision", "model.config", "comm_overlap")
OPTIMIZER = ("clip-grad", "use-distributed-optimizer")
RECIPES = (
    ("fp8_current_scaling", "tensorwise"), ("fp8_delayed_scaling", "delayed"), ("fp8_subchannel_scaling", "blockwise"),
    ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"), ("fp8", "delayed"),
)  # fmt: skip
"""Words in the names of mixed precision, and the recipe that each means."""


def fits(settings: Settings) -> bool:
    """Whether a file is a configuration of Megatron-Bridge or NeMo."""
    tops = {key.partition(".")[0] for key in settings.values}
    return "model" in tops and bool(tops & {"train", "trainer", "dataset", "ddp"})


def bridge_arguments(files: Sequence[Settings], asked: Asked) -> tuple[JobArguments, tuple[str, ...], tuple[str, ...]]:
    """The arguments of Megatron-LM, the keys that are not read, and what cannot be followed.

    Raises
    ------
    InputError : no model, or a value that is not accepted
    """
    settings = files[0]
    if asked.shape is None and not settings.has("model.num_layers"):
        raise InputError(f"{settings.path}: model.num_layers is missing: --model NAME gives the model of a recipe")
    arguments: dict[str, Argument] = {"grad-reduce-in-bf16": True}
    if asked.shape is not None:
        arguments |= shape_arguments(asked.shape)
    ignored = []
    for key, value in settings.values.items():
        section, _, field = key.rpartition(".")
        name = field.replace("_", "-")
        name = RENAMED.get(name, name)
        is_argument = name in READ or name in APPROXIMATE or name in NEVER
        if section in SECTIONS and is_argument and (section != "optimizer" or name in OPTIMIZER):
            arguments.pop(name, None)
            if value is not None and value is not False:
                arguments[name] = True if value is True else str(value)
        elif value is not None and not _is_read(key):
            ignored.append(key)
    arguments |= _switches(settings)
    arguments = _with_precision(settings, arguments)
    gpus = settings.whole("trainer.num_nodes", 1) * settings.whole("trainer.devices", 0) or None
    return JobArguments(arguments, gpus), tuple(ignored), ()


def _is_read(key: str) -> bool:
    return key in PRECISION_KEYS or key in ("trainer.num_nodes", "trainer.devices") or key in SWITCHES


SWITCHES = ("model.add_bias_linear", "model.share_embeddings_and_output_weights", "model.gated_linear_unit")
PRECISION_KEYS = (
    "mixed_precision", "mixed_precision.bf16", "mixed_precision.fp16", "mixed_precision.grad_reduce_in_fp32",
    "mixed_precision.fp8", "mixed_precision.fp8_recipe", "mixed_precision.fp8_param_gather", "ddp.grad_reduce_in_fp32",
)  # fmt: skip


def _switches(settings: Settings) -> dict[str, Argument]:
    """Arguments that turn a field off, or that are named by its opposite."""
    arguments: dict[str, Argument] = {}
    if not settings.flag("model.add_bias_linear", default=True):
        arguments["disable-bias-linear"] = True
    if not settings.flag("model.share_embeddings_and_output_weights", default=True):
        arguments["untie-embeddings-and-output-weights"] = True
    if settings.has("model.num_query_groups"):
        arguments["group-query-attention"] = True
    return arguments


def _with_precision(settings: Settings, arguments: dict[str, Argument]) -> dict[str, Argument]:
    """The arguments with those of mixed precision, which is bf16 unless the file says otherwise."""
    named = settings.word("mixed_precision") or settings.word("model.mixed_precision")
    half = settings.flag("mixed_precision.fp16") or named.startswith(("16", "fp16"))
    arguments = {name: value for name, value in arguments.items() if name not in ("bf16", "fp16")}
    arguments["fp16" if half else "bf16"] = True
    wide = settings.flag("mixed_precision.grad_reduce_in_fp32", settings.flag("ddp.grad_reduce_in_fp32"))
    if wide or half:
        arguments.pop("grad-reduce-in-bf16")
    recipe = next((recipe for word, recipe in RECIPES if word in named), "")
    if recipe == "nvfp4":
        arguments |= {"fp4-format": "e2m1"}
    elif recipe:
        arguments |= {"fp8-format": "hybrid", "fp8-recipe": recipe}
    return arguments


def shape_arguments(shape: ModelShape) -> dict[str, Argument]:
    """The arguments of Megatron-LM for the sizes of a model, and for those of its traits that have arguments."""
    traits, experts = shape.architecture, shape.experts
    sizes: dict[str, Any] = {
        "num-layers": shape.layers,
        "hidden-size": shape.hidden,
        "num-attention-heads": shape.heads,
        "seq-length": shape.sequence,
        "padded-vocab-size": shape.vocabulary,
        "ffn-hidden-size": shape.mlp,
        "rotary-base": traits.rotary_base,
        "rotary-percent": traits.rotary_share,
        "hidden-dropout": 0,
        "attention-dropout": 0,
    }
    if traits.head_columns and not traits.key_rank:
        sizes["kv-channels"] = traits.head_columns
    if traits.key_heads:
        sizes["num-query-groups"] = traits.key_heads
    if traits.positions != "learned":
        sizes["position-embedding-type"] = "rope" if traits.positions == "rotary" else "none"
    if traits.norm == "rms":
        sizes["normalization"] = "RMSNorm"
    if experts is not None:
        sizes |= _expert_sizes(experts, shape.layers)
    switches = {
        "swiglu": traits.gated,
        "group-query-attention": traits.key_heads > 0,
        "disable-bias-linear": not traits.biases,
        "add-qkv-bias": traits.qkv_biases,
        "qk-layernorm": traits.qk_norm == "head",
        "untie-embeddings-and-output-weights": not traits.shared_table,
        "multi-latent-attention": traits.key_rank > 0,
        "moe-shared-expert-gate": experts is not None and experts.shared_gate,
        "moe-router-pre-softmax": experts is not None and not experts.normalised,
    }
    words: dict[str, Argument] = {name: str(value) for name, value in sizes.items()}
    return words | {name: True for name, is_on in switches.items() if is_on}


def _expert_sizes(experts: Experts, layers: int) -> dict[str, Any]:
    """The arguments of experts that have a value."""
    return {
        "num-experts": experts.count,
        "moe-router-topk": experts.chosen,
        "moe-ffn-hidden-size": experts.inner,
        "moe-shared-expert-intermediate-size": experts.shared,
        "moe-router-score-function": experts.router,
        "moe-router-topk-scaling-factor": experts.scale,
        "moe-router-num-groups": experts.groups,
        "moe-router-group-topk": experts.chosen_groups,
        "moe-layer-freq": "+".join("[0]" if is_dense else "[1]" for is_dense in experts.dense(layers)),
    }
