"""SimuMax's files: the model and the strategy of a job under Megatron-LM.

    model                                          argument of Megatron-LM
    layer_num, hidden_size, head_num, head_size    num-layers, hidden-size, num-attention-heads, kv-channels
    kv_head_num, intermediate_size, vocab_size     num-query-groups, ffn-hidden-size, vocab-size
    use_swiglu                                     swiglu; always RMSNorm, rotary positions, two tables, no biases
    expert_num, topk, moe_ffn_hidden_size          num-experts, moe-router-topk, moe-ffn-hidden-size
    moe_shared_expert_intermediate_size            the same name
    dense_layers                                   moe-layer-freq [0]*N+[1]*(layers - N)
    attention_type: mla                            multi-latent-attention, with the sizes of the same names

    strategy                                       argument of Megatron-LM
    world_size, tp_size, pp_size, cp_size          GPUs and parallel groups
    ep_size, etp_size                              expert-model-parallel-size, expert-tensor-parallel-size
    seq_len, micro_batch_size, micro_batch_num     seq-length, micro-batch-size; global batch = size x num x data
    interleaving_size                              num-virtual-stages-per-pipeline-rank
    enable_sequence_parallel, zero_state           sequence-parallel, use-distributed-optimizer (1)
    use_math_sdp, use_fp32_accum_grad, dtype       attention-backend unfused, accumulate-allreduce-grads-in-fp32, bf16
    enable_dropout                                 dropout of 0.1, or none
    recompute_granularity: full_block              recompute-granularity full; other words are differences
    fp8                                            fp8-format with the recipe blockwise

The system file (accelerator, networks) is ignored: `--machine` names the machine.

Source: MooreThreads/SimuMax@4dcaae51, configs/ and simumax/core/config.py.
"""

from collections.abc import Mapping, Sequence

from quadrille.experiments.import_.argument_values import Argument
from quadrille.experiments.import_.megatron_arguments import JobArguments
from quadrille.experiments.import_.settings import Settings, file_with

NAME = "SimuMax"
MODEL, STRATEGY, SYSTEM = "head_num", "micro_batch_num", "accelerator.backend"
"""A key of each kind of file."""
SIZES = {
    "layer_num": "num-layers",
    "hidden_size": "hidden-size",
    "head_num": "num-attention-heads",
    "head_size": "kv-channels",
    "kv_head_num": "num-query-groups",
    "intermediate_size": "ffn-hidden-size",
    "vocab_size": "vocab-size",
    "expert_num": "num-experts",
    "topk": "moe-router-topk",
    "moe_ffn_hidden_size": "moe-ffn-hidden-size",
    "moe_shared_expert_intermediate_size": "moe-shared-expert-intermediate-size",
    "q_lora_rank": "q-lora-rank",
    "kv_lora_rank": "kv-lora-rank",
    "qk_head_dim": "qk-head-dim",
    "qk_pos_emb_head_dim": "qk-pos-emb-head-dim",
    "v_head_dim": "v-head-dim",
}
LAYOUT = {
    "tp_size": "tensor-model-parallel-size",
    "pp_size": "pipeline-model-parallel-size",
    "cp_size": "context-parallel-size",
    "ep_size": "expert-model-parallel-size",
    "etp_size": "expert-tensor-parallel-size",
    "seq_len": "seq-length",
    "micro_batch_size": "micro-batch-size",
    "interleaving_size": "num-virtual-stages-per-pipeline-rank",
}
READ = (
    *("use_swiglu", "dense_layers", "attention_type", "model_type", "model_name", "world_size", "micro_batch_num"),
    *("enable_sequence_parallel", "zero_state", "use_math_sdp", "use_flash_sdp", "use_fp32_accum_grad", "dtype"),
    *("enable_dropout", "enable_recompute", "recompute_granularity", "recompute_layer_num", "fp8", "use_fused_norm"),
    *("moe_dispatcher_policy",),
)
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


def fits(settings: Settings) -> bool:
    """Whether a file is one of SimuMax's."""
    keys = settings.values
    return (MODEL in keys and "layer_num" in keys) or (STRATEGY in keys and "tp_size" in keys) or SYSTEM in keys


def simumax_arguments(files: Sequence[Settings]) -> tuple[JobArguments, tuple[str, ...], tuple[str, ...]]:
    """The arguments of Megatron-LM, the keys that are not read, and what cannot be followed.

    Raises
    ------
    InputError : no model or no strategy, or a value that is not accepted
    """
    model, strategy = (
        file_with(files, key, name, "SimuMax")
        for key, name in ((MODEL, "model (head_num, …)"), (STRATEGY, "strategy (tp_size, …)"))
    )
    arguments = {**_model(model), **_strategy(strategy)}
    ignored = (*model.unread(*SIZES, *READ), *strategy.unread(*LAYOUT, *READ))
    ignored += tuple(f"all of {file.path}" for file in files if SYSTEM in file.values)
    return JobArguments(arguments, strategy.whole("world_size", least=1)), ignored, tuple(_differences(strategy))


def _sizes(settings: Settings, names: Mapping[str, str]) -> dict[str, Argument]:
    return {name: str(settings.whole(key)) for key, name in names.items() if settings.has(key)}


def _model(model: Settings) -> dict[str, Argument]:
    fixed = ("disable-bias-linear", "untie-embeddings-and-output-weights", "group-query-attention")
    arguments: dict[str, Argument] = {**_sizes(model, SIZES), **dict.fromkeys(fixed, True)}
    arguments |= {"normalization": "RMSNorm", "position-embedding-type": "rope"}
    if model.flag("use_swiglu", default=True):
        arguments["swiglu"] = True
    if model.word("attention_type") == "mla":
        arguments["multi-latent-attention"] = True
        arguments = {name: value for name, value in arguments.items() if name != "kv-channels"}
    if dense := model.whole("dense_layers", 0):
        layers = model.whole("layer_num")
        arguments["moe-layer-freq"] = f"[0]*{dense}+[1]*{max(layers - dense, 0)}"
    return arguments


def _strategy(strategy: Settings) -> dict[str, Argument]:
    arguments = _sizes(strategy, LAYOUT)
    gpus, micro = strategy.whole("world_size", least=1), strategy.whole("micro_batch_size", least=1)
    ranks = 1
    for key in ("tp_size", "pp_size", "cp_size"):
        ranks *= strategy.whole(key, 1, least=1)
    arguments["global-batch-size"] = str(micro * strategy.whole("micro_batch_num", least=1) * max(gpus // ranks, 1))
    dropout = "0.1" if strategy.flag("enable_dropout") else "0"
    arguments |= {"hidden-dropout": dropout, "attention-dropout": dropout, "moe-token-dispatcher-type": "alltoall"}
    arguments["attention-backend"] = "unfused" if strategy.flag("use_math_sdp") else "flash"
    dtype = strategy.word("dtype", "bf16")
    switches = {
        "sequence-parallel": strategy.flag("enable_sequence_parallel", default=True),
        "use-distributed-optimizer": strategy.whole("zero_state", 1) > 0,
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "accumulate-allreduce-grads-in-fp32": strategy.flag("use_fp32_accum_grad", default=True),
        "grad-reduce-in-bf16": not strategy.flag("use_fp32_accum_grad", default=True),
        "no-create-attention-mask-in-dataloader": True,
    }
    arguments |= {name: True for name, is_on in switches.items() if is_on}
    if strategy.flag("fp8"):
        arguments |= {"fp8-format": "e4m3", "fp8-recipe": "blockwise"}
    if strategy.flag("enable_recompute", default=True) and strategy.word("recompute_granularity") == "full_block":
        arguments |= {"recompute-granularity": "full", "recompute-method": "block"}
        arguments["recompute-num-layers"] = str(strategy.whole("recompute_layer_num", 1))
    return arguments


def _differences(strategy: Settings) -> list[str]:
    granularity = strategy.word("recompute_granularity")
    lines = []
    if strategy.flag("enable_recompute", default=True) and granularity not in ("", "full_block"):
        lines.append(f"recompute_granularity {granularity:.40}: nothing is recomputed")
    if (zero := strategy.whole("zero_state", 1)) > 1:
        lines.append(f"zero_state {zero}: Megatron-LM shards the optimizer alone")
    return lines
