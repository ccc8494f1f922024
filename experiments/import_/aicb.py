"""AICB's jobs: its command line, and the workload that it writes for SimAI, with the model beside.

    command line                                   argument of Megatron-LM
    world_size, tensor_model_parallel_size         GPUs and parallel groups, with pipeline_model_parallel,
                                                   context-parallel-size, expert_model_parallel_size
    global_batch, micro_batch                      global-batch-size, micro-batch-size
    num_layers, hidden_size, seq_length, …         the same names; as many heads as layers without num_attention_heads
    enable_sequence_parallel, --sp                 sequence-parallel
    use_flash_attn                                 attention-backend flash; unfused without it
    moe_enable, num_experts, moe_router_topk       num-experts, moe-router-topk; dense without moe_enable
    dtype                                          bf16 (the default), fp16
    -m 7, 13, 22, 175, 405, moe                    the sizes that scripts/megatron_workload_with_aiob.sh sets

    workload                                       argument of Megatron-LM
    all_gpus, model_parallel_NPU_group, pp, ep     GPUs and parallel groups
    ga                                             global batch = micro-batch x ga x data ranks
    bytes of embedding_layer in the forward pass   micro-batch: 2 B x micro-batch x sequence x hidden
    pp_comm                                        the same, without tensor ranks
    ALLGATHER or REDUCESCATTER in forward          sequence-parallel
    REDUCESCATTER of weight gradients              use-distributed-optimizer

Times and other collectives of a workload are ignored.  AICB has two embedding tables, LayerNorm and no dropout.

Source: aliyun/aicb@23eec3c4, utils/utils.py (arguments and defaults), scripts/megatron_workload_with_aiob.sh (sizes,
defaults), workload_generator/SimAI_training_workload_generator.py (first line, bytes).
"""

import re
from collections.abc import Mapping, Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.experiments.import_.argument_values import Argument, ArgumentValues
from quadrille.experiments.import_.imported_job import Asked
from quadrille.experiments.import_.megatron_arguments import JobArguments, read_arguments
from quadrille.experiments.import_.megatron_bridge import shape_arguments
from quadrille.experiments.import_.simai_workload import Layer, read_workload, setting_of

NAME = "AICB"
COMMAND = re.compile(
    r"SimAI_training_workload_generator|megatron_workload_with_aiob\.sh|\bmegatron_gpt\.sh"
    r"|--(?:pipeline_model_parallel|global_batch)(?![\w-])"
)
"""A word that AICB's command lines have, and Megatron-LM's have not."""
SCRIPT = "megatron_workload_with_aiob.sh"
SIZE = re.compile(r"(?<!\S)-m[ \t]+([\w]+)(?![\w.])")
"""The size of the model in the words of a script; `python -m package.module` has a dot."""
RENAMED = {
    "pipeline-model-parallel": "pipeline-model-parallel-size",
    "global-batch": "global-batch-size",
    "micro-batch": "micro-batch-size",
    "enable-sequence-parallel": "sequence-parallel",
    "sp": "sequence-parallel",
    "sp-enable": "sequence-parallel",
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "ep": "expert-model-parallel-size",
    "experts": "num-experts",
    "topk": "moe-router-topk",
    "flash-attn": "use-flash-attn",
    "recompute": "recompute-activations",
}
EXPERTS = ("num-experts", "moe-router-topk", "expert-model-parallel-size", "moe-grouped-gemm")
DEFAULTS: Mapping[str, str] = {
    "world-size": "1", "global-batch-size": "4", "micro-batch-size": "1", "hidden-size": "1024", "num-layers": "24",
    "seq-length": "2048", "vocab-size": "32000", "num-experts": "1", "moe-router-topk": "1",
}  # fmt: skip
SCRIPT_DEFAULTS: Mapping[str, str] = {
    "world-size": "32", "global-batch-size": "1024", "seq-length": "4096", "vocab-size": "50257", "model-size": "13",
    "tensor-model-parallel-size": "8",
}  # fmt: skip
SIZES: Mapping[str, tuple[str, str, str, str, str]] = {
    "7": ("36", "4096", "32", "", "4"),
    "13": ("40", "5120", "40", "", ""),
    "22": ("48", "6144", "64", "", "8"),
    "175": ("96", "12288", "96", "", "8"),
    "405": ("128", "16384", "128", "53248", ""),
    "moe": ("32", "4096", "32", "14336", "4"),
}
SIZE_NAMES = ("num-layers", "hidden-size", "num-attention-heads", "ffn-hidden-size", "tensor-model-parallel-size")
"""The arguments that a size of the script sets, whatever its command line says; an empty text sets none."""
FIXED = ("untie-embeddings-and-output-weights", "no-create-attention-mask-in-dataloader")
MODEL_ALONE = "a workload names no hidden size, heads, sequence and vocabulary: --model NAME|FILE does"
EMBEDDING = "embedding_layer"
AS_IT_IS = "quadrille replay FILE --machine NAME predicts the workload as it is"
ELEMENT_BYTES = 2
Parts = tuple[JobArguments, tuple[str, ...], tuple[str, ...]]


def is_command(text: str) -> bool:
    """Whether a text is a command line of AICB.

    >>> is_command("python -m workload_generator.SimAI_training_workload_generator --world_size 8")
    True
    >>> is_command("python pretrain_gpt.py --global-batch-size 8")
    False
    """
    return COMMAND.search(text) is not None


def command_arguments(text: str) -> Parts:
    """The arguments of Megatron-LM in a command line of AICB, the words that are not read, and no differences.

    Raises
    ------
    InputError : no arguments, or a framework or a size that is not accepted
    """
    if "megatron_gpt.sh" in text:
        raise InputError(f"megatron_gpt.sh: the command that it prints is accepted, or {SCRIPT}")
    read = read_arguments(SIZE.sub(r"--model_size \1", text))
    named = {RENAMED.get(name, name): value for name, value in read.values.items()}
    frame = str(named.pop("frame", "Megatron"))
    if frame != "Megatron":
        raise InputError(f"--frame {frame:.40}: Megatron is accepted")
    if SCRIPT in text:
        named = _of_script(named)
    values = {**DEFAULTS, "num-attention-heads": str(named.get("num-layers", DEFAULTS["num-layers"])), **named}
    arguments, gpus = _megatron(values), ArgumentValues(values).whole("world-size")
    return JobArguments({name: value for name, value in arguments.items() if name != "world-size"}, gpus), (), ()


def _of_script(values: Mapping[str, Argument]) -> dict[str, Argument]:
    """The values with the defaults of the script and with its sizes."""
    named = {**SCRIPT_DEFAULTS, **values, "use-distributed-optimizer": True}
    size = str(named.pop("model-size"))
    if size not in SIZES:
        raise InputError(f"-m {size:.40}: accepted are {', '.join(SIZES)}")
    if size == "moe":
        named["moe-enable"] = True
    return named | {name: word for name, word in zip(SIZE_NAMES, SIZES[size], strict=True) if word}


def _megatron(values: Mapping[str, Argument]) -> dict[str, Argument]:
    """The arguments of Megatron-LM for AICB's values with their defaults."""
    has_experts, has_biases = "moe-enable" in values, "add-bias-linear" in values
    dropped = {"moe-enable", "add-bias-linear", "dtype", "use-flash-attn", *(() if has_experts else EXPERTS)}
    arguments = {name: value for name, value in values.items() if name not in dropped}
    dtype = str(values.get("dtype", "bfloat16"))
    switches = {
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        "disable-bias-linear": not has_biases,
        **dict.fromkeys(FIXED, True),
    }
    words = {
        "attention-backend": "flash" if "use-flash-attn" in values else "unfused",
        "hidden-dropout": "0",
        "attention-dropout": "0",
        "moe-token-dispatcher-type": "alltoall",
    }
    return {**arguments, **words, **{name: True for name, is_on in switches.items() if is_on}}


def workload_arguments(text: str, path: str, asked: Asked) -> Parts:
    """The arguments of Megatron-LM for a workload and a model, no words that are not read, and the differences.

    Raises
    ------
    InputError : a fault of the workload, no model, or a model of other sizes
    """
    ranks, layers = read_workload(text, path)
    shape = asked.shape
    if shape is None:
        raise InputError(f"{path}: {MODEL_ALONE}; {AS_IT_IS}")
    steps = setting_of(text, "ga", 1, path)
    data = ranks.count // ranks.tensor
    micro = _micro_batch(text, path, layers, asked, shape, data * steps)
    switches = {
        "bf16": True,
        "sequence-parallel": _is_sequence_parallel(layers) and ranks.tensor > 1,
        "use-distributed-optimizer": any(layer.parts[2].kind == "reduce_scatter" for layer in layers),
    }
    words: dict[str, Argument] = {
        "tensor-model-parallel-size": str(ranks.tensor),
        "pipeline-model-parallel-size": str(ranks.stages),
        "expert-model-parallel-size": str(ranks.expert),
        "micro-batch-size": str(micro),
        "global-batch-size": str(micro * steps * data),
        "moe-token-dispatcher-type": "alltoall",
        "vocab-size": str(shape.vocabulary),
    }
    sizes = {name: value for name, value in shape_arguments(shape).items() if name != "padded-vocab-size"}
    arguments = {**sizes, **words, **{name: True for name, is_on in switches.items() if is_on}}
    lines = _differences(setting_of(text, "vpp", 0, path) * ranks.stages, ranks.expert, shape)
    return JobArguments(arguments, ranks.count * ranks.stages), (), lines


def _differences(layers: int, expert_ranks: int, shape: ModelShape) -> tuple[str, ...]:
    """What the model has otherwise than the workload."""
    lines = []
    if layers not in (0, shape.layers):
        lines.append(f"vpp x pp = {layers} layers: the {shape.layers} of the model are predicted")
    if expert_ranks > 1 and shape.experts is None:
        lines.append(f"ep {expert_ranks}: the model has no experts, and a dense one is predicted")
    return tuple(lines)


def _is_sequence_parallel(layers: Sequence[Layer]) -> bool:
    kinds = {layer.parts[0].kind for layer in layers if layer.parts[0].group == "TP"}
    return bool(kinds & {"all_gather", "reduce_scatter"})


def _micro_batch(
    text: str, path: str, layers: Sequence[Layer], asked: Asked, shape: ModelShape, microbatches: int
) -> int:
    """Sequences of a microbatch, from the bytes that tensor ranks or stages exchange, or from the batch."""
    sent = [layer.parts[0].bytes for layer in layers if layer.name == EMBEDDING and layer.parts[0].kind]
    cut = setting_of(text, "model_parallel_NPU_group", 1, path) if _is_sequence_parallel(layers) else 1
    size = sent[0] if sent else setting_of(text, "pp_comm", 0, path) * cut
    if not size:
        if not asked.batch or asked.batch % microbatches:
            words = f"--batch N, a multiple of {microbatches}"
            raise InputError(f"{path}: no collective tells the microbatch: {words}, does; {AS_IT_IS}")
        return asked.batch // microbatches
    sequence = asked.sequence or shape.sequence
    unit = ELEMENT_BYTES * sequence * shape.hidden
    if size % unit:
        raise InputError(
            f"{path}: {size:.0f} B between ranks: a multiple of 2 B x sequence x hidden = 2 x {sequence} x "
            f"{shape.hidden} = {unit} is accepted: --model or --sequence is another one"
        )
    return int(size) // unit
