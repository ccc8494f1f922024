"""Model types of Hugging Face `config.json` files: their keys, their traits, and what schedules do otherwise.

Each `model_type` has a `Family`: the names of its keys, the traits that the type implies, and functions that read the
traits that its keys choose.

Source: the configuration and model classes of the `transformers` library, version 4.57: GPT2Config, GPTNeoXConfig,
LlamaConfig, MistralConfig, BloomConfig, Qwen2Config, Qwen3Config, Gemma2Config, Gemma3TextConfig, PhiConfig,
Phi3Config, Olmo2Config, Olmo3Config, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig; BLOOM's only key for its sequence
is `seq_length`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quadrille.algorithms.training.architecture import GEMMA, LLAMA, OLMO, PLAIN, QWEN2, QWEN3, Architecture
from quadrille.algorithms.training.config_reader import USUAL_KEYS, Keys, Reader
from quadrille.algorithms.training.experts import Experts

GELUS = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu")
"""Names of GELU: with tanh, which the kernels compute, and with the error function, which differs by less than 1e-3."""
FULL, SLIDING = "full_attention", "sliding_attention"
Traits = dict[str, Any]
Differences = Iterator[str]
"""Texts such as "`key`: what the schedule does instead"."""


@dataclass(frozen=True, slots=True)
class Family:
    """A `model_type`.

    Parameters
    ----------
    architecture : traits that the type implies
    keys : names of its keys
    traits : function that returns the traits that the keys of a file choose
    approximations : function that yields what a schedule cannot do
    head_columns : columns of a head where the file does not say; 0 for hidden / heads
    embedding_norm : whether a normalisation follows the embedding
    experts : function that returns the experts, from the number of layers
    defaults : sizes that a file of this type may leave out, by key
    """

    architecture: Architecture
    keys: Keys = USUAL_KEYS
    traits: Callable[[Reader, int], Traits] = lambda _reader, _layers: {}
    approximations: Callable[[Reader], Differences] = lambda _reader: iter(())
    head_columns: int = 0
    embedding_norm: bool = False
    experts: Callable[[Reader, int], Experts | None] = lambda _reader, _layers: None
    defaults: Mapping[str, int] = field(default_factory=dict)


def _window(reader: Reader, layers: int, period: int, default: int = 0) -> Traits:
    """The window, and the period of the layers without it.

    Parameters
    ----------
    layers : number of layers
    period : period of the layers without a window where the file does not list the layers; 0 if all have the window
    default : tokens of the window where the file does not say
    """
    window, types = reader.optional("sliding_window", default), reader.config.get("layer_types")
    if types is not None:
        period = _period(reader, types, layers)
        if period == 1:
            return {}
        if not window:
            raise reader.error(f"sliding_window is missing, and layer_types has {SLIDING!r}")
    return {"window": window, "global_every": period} if window else {}


def _period(reader: Reader, types: object, layers: int) -> int:
    """The period of the layers that see all tokens in a list of the types of layers; 0 if none of them does."""
    if not isinstance(types, list):
        raise reader.error(f"layer_types = {types!r:.60}: a list with an entry for each layer is needed")
    if len(types) != layers:
        raise reader.error(f"layer_types has {len(types)} entries: {layers}, one for each layer, are needed")
    if unknown := [kind for kind in types if kind not in (FULL, SLIDING)]:
        raise reader.error(f"layer_types has {unknown[0]!r:.60}: accepted are {FULL} and {SLIDING}")
    if FULL not in types:
        return 0
    period = types.index(FULL) + 1
    if types != [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]:
        raise reader.error(
            f"layer_types does not repeat its first {period} entries: a repeated pattern of {SLIDING} entries and one "
            f"{FULL} entry is accepted"
        )
    return period


def _gate(reader: Reader, keys: tuple[str, ...], accepted: tuple[str, ...], otherwise: str) -> Differences:
    """The function of the MLP, where it is not the kernels'."""
    key, name = reader.word(keys, accepted[0])
    if name not in accepted:
        yield f"{key} = {name:.40}: {otherwise}"


def _is_on(reader: Reader, key: str, text: str, *, default: bool = False) -> Differences:
    if reader.flag(key, default):
        yield f"{key}: {text}"


def _llama_biases(reader: Reader, _layers: int = 0) -> Traits:
    """The biases of a Llama; all products have biases only if both keys say so."""
    attention, mlp = reader.flag("attention_bias", False), reader.flag("mlp_bias", False)
    return {"biases": True} if attention and mlp else {"qkv_biases": True} if attention else {}


def _llama_differences(reader: Reader) -> Differences:
    attention, mlp = reader.flag("attention_bias", False), reader.flag("mlp_bias", False)
    if attention and not mlp:
        yield "attention_bias: QKV has biases, and the product after attention has none"
    if mlp and not attention:
        yield "mlp_bias: products have no biases"
    yield from _gate(reader, ("hidden_act",), ("silu", "swish"), "the MLP's gate is silu")


def _qwen_window(reader: Reader, layers: int) -> Traits:
    """The window of Qwen 2 and 3, which `use_sliding_window` turns on from layer `max_window_layers` on."""
    if reader.config.get("layer_types") is None and not reader.flag("use_sliding_window", False):
        return {}
    first = reader.config.get("max_window_layers", layers)
    if reader.config.get("layer_types") is None and first:
        raise reader.error(
            f"use_sliding_window = true with max_window_layers = {first!r:.20}: accepted are use_sliding_window = "
            "false, or max_window_layers = 0 (a window in all layers)"
        )
    return _window(reader, layers, 0)


def _gemma2(reader: Reader, layers: int) -> Traits:
    return {
        **_window(reader, layers, 2, 4096),
        "score_cap": reader.number(
            ("attn_logit_softcapping",), 0.0 if "attn_logit_softcapping" in reader.config else 50
        ),
        "logit_cap": reader.number(
            ("final_logit_softcapping",), 0.0 if "final_logit_softcapping" in reader.config else 30
        ),
        "score_columns": reader.number(("query_pre_attn_scalar",), 256),
    }


def _gemma3(reader: Reader, layers: int) -> Traits:
    window = _window(reader, layers, reader.optional("sliding_window_pattern", 6), 4096)
    local = {"local_rotary_base": reader.number(("rope_local_base_freq",), 10_000, 1)} if window else {}
    return {
        **window,
        **local,
        "score_cap": reader.number(("attn_logit_softcapping",), 0.0),
        "logit_cap": reader.number(("final_logit_softcapping",), 0.0),
        "score_columns": reader.number(("query_pre_attn_scalar",), 256),
    }


def _gemma_differences(reader: Reader) -> Differences:
    yield from _is_on(reader, "attention_bias", "products have no biases")
    yield from _gate(reader, ("hidden_activation", "hidden_act"), GELUS, "the MLP's gate is GELU by tanh")


def _phi3(reader: Reader, layers: int) -> Traits:
    return {**_window(reader, layers, 0), "rotary_share": reader.share(("partial_rotary_factor",), 1.0)}


def _phi_differences(reader: Reader) -> Differences:
    yield "model_type = phi: the MLP follows attention, not beside it, and each has a norm of its own"
    yield "model_type = phi: logits have no bias"
    yield from _is_on(reader, "qk_layernorm", "queries and keys are not normalised")
    yield from _gate(reader, ("hidden_act",), GELUS, "the MLP's function is GELU by tanh")


def _neox_differences(reader: Reader) -> Differences:
    yield from _is_on(reader, "use_parallel_residual", "the MLP follows attention, not beside it", default=True)
    yield from _gate(reader, ("hidden_act",), GELUS, "the MLP's function is GELU by tanh")


def _gpt2_differences(reader: Reader) -> Differences:
    yield from _gate(reader, ("activation_function",), GELUS, "the MLP's function is GELU by tanh")


def _bloom_differences(_reader: Reader) -> Differences:
    yield "model_type = bloom: attention's scores have no ALiBi"
    yield "model_type = bloom: no normalisation follows the embedding"


def _mixtral_experts(reader: Reader, _layers: int) -> Experts:
    """The experts of Mixtral: the dense MLP's width, in all layers."""
    inner = reader.count(("intermediate_size",))
    return _experts(reader, ("num_local_experts", "num_experts_per_tok"), inner)


def _qwen_experts(reader: Reader, layers: int) -> Experts:
    """The experts of Qwen 2 and 3, in every n-th layer that is not listed as dense; Qwen 2 has a shared expert."""
    dense = reader.config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) and 0 <= layer < layers for layer in dense):
        raise reader.error(
            f"mlp_only_layers = {dense!r:.60}: a list of numbers of layers from 0 to {layers - 1} is needed"
        )
    step = reader.optional("decoder_sparse_step", 1)
    between = (layer for layer in range(layers) if (layer + 1) % step)
    if not (inner := reader.count(("moe_intermediate_size",))):
        raise reader.error("moe_intermediate_size is missing")
    experts = _experts(reader, ("num_experts", "num_experts_per_tok"), inner)
    experts = replace(experts, normalised=reader.flag("norm_topk_prob", False))
    shared = reader.count(("shared_expert_intermediate_size",))
    return replace(experts, shared=shared, shared_gate=shared > 0, dense_layers=frozenset((*dense, *between)))


def _experts(reader: Reader, keys: tuple[str, str], inner: int) -> Experts:
    count, chosen = (reader.count((key,)) for key in keys)
    if missing := [key for key, number in zip(keys, (count, chosen), strict=True) if not number]:
        raise reader.error(f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing")
    if chosen > count:
        raise reader.error(f"{keys[1]} = {chosen}: a whole number from 1 to {keys[0]} = {count} is accepted")
    loss = "router_aux_loss_coef"
    return Experts(count, chosen, inner, balance=0.0 if reader.config.get(loss) == 0 else reader.number((loss,), 0.001))


_GEMMA3_SIZES = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}
"""Sizes that the published files of Gemma 3 with images leave out.  Source: transformers 4.57, Gemma3TextConfig."""
_NEOX = Architecture(positions="rotary", shared_table=False)
FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        PLAIN,
        Keys(("n_layer",), ("n_embd",), ("n_head",), ("n_positions", "n_ctx"), inner=("n_inner",), key_heads=()),
        approximations=_gpt2_differences,
    ),
    "gpt_neox": Family(
        _NEOX,
        Keys(key_heads=(), rotary_base=("rotary_emb_base", "rope_theta")),
        lambda reader, _: {"rotary_share": reader.share(("rotary_pct", "partial_rotary_factor"), 0.25)},
        _neox_differences,
    ),
    "llama": Family(LLAMA, traits=_llama_biases, approximations=_llama_differences),
    "mistral": Family(
        LLAMA,
        traits=lambda reader, layers: _window(reader, layers, 0),
        approximations=_llama_differences,
    ),
    "bloom": Family(
        Architecture(positions="none"),
        Keys(
            ("n_layer", "num_hidden_layers"),
            ("hidden_size", "n_embed"),
            ("n_head", "num_attention_heads"),
            ("seq_length",),
            inner=(),
            key_heads=(),
            rotary_base=(),
        ),
        approximations=_bloom_differences,
        embedding_norm=True,
    ),
    "qwen2": Family(QWEN2, traits=_qwen_window, approximations=_llama_differences),
    "qwen3": Family(
        QWEN3,
        traits=lambda reader, layers: {**_qwen_window(reader, layers), **_llama_biases(reader)},
        approximations=_llama_differences,
        head_columns=128,
    ),
    "gemma2": Family(GEMMA, traits=_gemma2, approximations=_gemma_differences, head_columns=256),
    "gemma3_text": Family(
        replace(GEMMA, qk_norm="head", rotary_base=1e6),
        traits=_gemma3,
        approximations=_gemma_differences,
        head_columns=256,
        defaults=_GEMMA3_SIZES,
    ),
    "phi": Family(
        Architecture(positions="rotary", shared_table=False),
        traits=lambda reader, _: {"rotary_share": reader.share(("partial_rotary_factor",), 0.5)},
        approximations=_phi_differences,
    ),
    "phi3": Family(LLAMA, traits=_phi3, approximations=_llama_differences),
    "olmo2": Family(OLMO, traits=_llama_biases, approximations=_llama_differences),
    "olmo3": Family(
        OLMO,
        traits=lambda reader, layers: {**_window(reader, layers, 4, 4096), **_llama_biases(reader)},
        approximations=_llama_differences,
    ),
    "mixtral": Family(
        LLAMA,
        traits=lambda reader, layers: _window(reader, layers, 0),
        approximations=_llama_differences,
        experts=_mixtral_experts,
    ),
    "qwen2_moe": Family(
        QWEN2,
        traits=_qwen_window,
        approximations=_llama_differences,
        experts=_qwen_experts,
    ),
    "qwen3_moe": Family(
        QWEN3,
        traits=lambda reader, layers: {**_qwen_window(reader, layers), **_llama_biases(reader)},
        approximations=_llama_differences,
        head_columns=128,
        experts=_qwen_experts,
    ),
}
"""The model types whose files are read."""
WITHIN = {"gemma3": "gemma3_text"}
"""Model types of images and text, and the type of their language model, which is the object `text_config`."""
ONLY_COUNTED = ("qwen2_moe",)
"""Model types whose parameters are counted, and whose layers no schedule has."""
REFUSED: dict[str, str] = {
    "qwen3_next": "full_attention_interval: no schedule has linear attention",
    "deepseek_v2": "kv_lora_rank: no schedule has attention with latent keys and values",
    "deepseek_v3": "kv_lora_rank: no schedule has attention with latent keys and values",
    "gpt_oss": "num_local_experts: no schedule has experts with biases and attention with sinks",
}
"""Model types that no shape describes, and the key and the trait that are the cause."""
