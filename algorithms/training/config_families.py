"""Model types of Hugging Face `config.json` files: their keys, their traits, and what schedules do otherwise.

Each `model_type` has a `Family`: the names of its keys, the traits that the type implies, and functions that read the
traits that its keys choose.

Source: the configuration and model classes of the `transformers` library, version 4.57: GPT2Config, GPTNeoXConfig,
LlamaConfig, MistralConfig, BloomConfig, Qwen2Config, Qwen3Config, Gemma2Config, Gemma3TextConfig, PhiConfig,
Phi3Config, Olmo2Config, Olmo3Config, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig, DeepseekV2Config,
DeepseekV3Config, GPTJConfig, FalconConfig, GptOssConfig, Qwen3NextConfig; BLOOM's only key for its sequence
is `seq_length`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quadrille.algorithms.training.architecture import GEMMA, GPT_OSS, LLAMA, OLMO, PLAIN, QWEN2, QWEN3, Architecture
from quadrille.algorithms.training.config_reader import USUAL_KEYS, Keys, Reader
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.latent_configs import COLUMNS, latent_experts, latent_traits

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
    needed : keys that a file of this type needs beside its sizes
    """

    architecture: Architecture
    keys: Keys = USUAL_KEYS
    traits: Callable[[Reader, int], Traits] = lambda _reader, _layers: {}
    approximations: Callable[[Reader], Differences] = lambda _reader: iter(())
    head_columns: int = 0
    embedding_norm: bool = False
    experts: Callable[[Reader, int], Experts | None] = lambda _reader, _layers: None
    defaults: Mapping[str, int] = field(default_factory=dict)
    needed: tuple[str, ...] = ()


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
    return {
        **window,
        **_local_base(reader, window),
        "score_cap": reader.number(("attn_logit_softcapping",), 0.0),
        "logit_cap": reader.number(("final_logit_softcapping",), 0.0),
        "score_columns": reader.number(("query_pre_attn_scalar",), 256),
    }


def _local_base(reader: Reader, window: Traits) -> Traits:
    """The base of rotary positions in layers with a window, where a file may give it by two keys."""
    if not window or (base := local_base(reader)):
        return {"local_rotary_base": base} if window else {}
    return {"local_rotary_base": reader.number(("rope_local_base_freq",), 10_000, 1)}


def local_base(reader: Reader) -> float:
    """The base in `rope_parameters` of the layers with a window; 0 if the file has no table for them alone."""
    tables = reader.config.get("rope_parameters")
    table = tables.get(SLIDING) if isinstance(tables, dict) else None
    if not isinstance(table, dict) or table.get("rope_theta") is None:
        return 0.0
    base = table["rope_theta"]
    if isinstance(base, bool) or not isinstance(base, int | float) or base <= 1:
        raise reader.error(f"rope_theta = {base!r:.60} of {SLIDING} in rope_parameters: a number above 1 is needed")
    return float(base)


def _gemma_differences(reader: Reader) -> Differences:
    yield from _is_on(reader, "attention_bias", "products have no biases")
    yield from _gate(reader, ("hidden_activation", "hidden_act"), GELUS, "the MLP's gate is GELU by tanh")


def _phi3(reader: Reader, layers: int) -> Traits:
    return {**_window(reader, layers, 0), "rotary_share": reader.share(("partial_rotary_factor",), 1.0)}


def _phi_differences(reader: Reader) -> Differences:
    yield "model_type = phi: logits have no bias"
    yield from _is_on(reader, "qk_layernorm", "queries and keys are not normalised")
    yield from _gate(reader, ("hidden_act",), GELUS, "the MLP's function is GELU by tanh")


def _neox(reader: Reader, _layers: int) -> Traits:
    """The share of rotary positions, and whether the MLP is beside attention."""
    return {
        "rotary_share": reader.share(("rotary_pct", "partial_rotary_factor"), 0.25),
        "branches": "parallel" if reader.flag("use_parallel_residual", True) else "serial",
    }


def _gptj(reader: Reader, _layers: int) -> Traits:
    """The share of rotary positions, which the file gives in columns of a head."""
    head = reader.count(("n_embd",)) // reader.count(("n_head",))
    rotated = reader.optional("rotary_dim", 64)
    if rotated > head:
        raise reader.error(f"rotary_dim = {rotated}: a whole number up to n_embd / n_head = {head} is accepted")
    return {"rotary_share": rotated / head}


def _gptj_differences(reader: Reader) -> Differences:
    yield "model_type = gptj: attention's products have biases, and logits have none"
    yield from _gate(reader, ("activation_function",), GELUS, "the MLP's function is GELU by tanh")


def _falcon(reader: Reader, _layers: int) -> Traits:
    """The key heads, norms, biases and positions of Falcon, which had three arrangements."""
    newer, beside = reader.flag("new_decoder_architecture", False), reader.flag("parallel_attn", True)
    norms = reader.optional("num_ln_in_parallel_attn", 2)
    several = reader.count(("num_kv_heads", "n_head_kv"))
    of_one = 1 if reader.flag("multi_query", True) else 0
    return {
        "key_heads": several if newer else of_one,
        "branches": "parallel" if newer and norms > 1 else "shared" if newer or beside else "serial",
        "biases": reader.flag("bias", False),
        "positions": "none" if reader.flag("alibi", False) else "rotary",
    }


def _falcon_differences(reader: Reader) -> Differences:
    yield from _is_on(reader, "alibi", "attention's scores have no ALiBi")
    yield from _gate(reader, ("activation", "hidden_act"), GELUS, "the MLP's function is GELU by tanh")


def _gpt_oss_differences(reader: Reader) -> Differences:
    if not reader.flag("attention_bias", True):
        yield "attention_bias: attention's products have biases"
    if (limit := reader.number(("swiglu_limit",), 7.0)) != 7.0:
        yield f"swiglu_limit = {limit:g}: the gate is clamped to 7"
    yield from _gate(reader, ("hidden_act",), ("silu", "swish"), "the MLP's gate is silu")


def _qwen_next_differences(reader: Reader) -> Differences:
    period = reader.optional("full_attention_interval", 4)
    yield f"full_attention_interval = {period}: no layer has linear attention, and all have gated attention"
    yield from _llama_differences(reader)


def _neox_differences(reader: Reader) -> Differences:
    yield from _gate(reader, ("hidden_act",), GELUS, "the MLP's function is GELU by tanh")


def _gpt2_differences(reader: Reader) -> Differences:
    yield from _gate(reader, ("activation_function",), GELUS, "the MLP's function is GELU by tanh")


def _bloom_differences(_reader: Reader) -> Differences:
    yield "model_type = bloom: attention's scores have no ALiBi"
    yield "model_type = bloom: no normalisation follows the embedding"


def _latent_differences(reader: Reader) -> Differences:
    yield from _is_on(reader, "attention_bias", "products have no biases")
    yield from _gate(reader, ("hidden_act",), ("silu", "swish"), "the MLP's gate is silu")


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
    if not (inner := reader.count(("moe_intermediate_size",))):
        raise reader.error("moe_intermediate_size is missing")
    experts = _experts(reader, ("num_experts", "num_experts_per_tok"), inner)
    experts = replace(experts, normalised=reader.flag("norm_topk_prob", False))
    shared = reader.count(("shared_expert_intermediate_size",))
    return replace(experts, shared=shared, shared_gate=shared > 0, dense_layers=frozenset(dense), every=step)


def _gpt_oss_experts(reader: Reader, _layers: int) -> Experts:
    """The experts of GPT-OSS, in all layers, with biases."""
    chosen = "num_experts_per_tok" if reader.config.get("num_experts_per_tok") is not None else "experts_per_token"
    inner = reader.count(("intermediate_size",))
    return replace(_experts(reader, ("num_local_experts", chosen), inner), biases=True)


def _qwen_next_experts(reader: Reader, layers: int) -> Experts | None:
    return None if reader.config.get("num_experts") in (None, 0) else _qwen_experts(reader, layers)


def _experts(reader: Reader, keys: tuple[str, str], inner: int) -> Experts:
    count, chosen = (reader.count((key,)) for key in keys)
    if missing := [key for key, number in zip(keys, (count, chosen), strict=True) if not number]:
        raise reader.error(f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing")
    if chosen > count:
        raise reader.error(f"{keys[1]} = {chosen}: a whole number from 1 to {keys[0]} = {count} is accepted")
    loss = "router_aux_loss_coef"
    return Experts(count, chosen, inner, balance=0.0 if reader.config.get(loss) == 0 else reader.number((loss,), 0.001))


_LATENT = Family(
    LLAMA, traits=latent_traits, approximations=_latent_differences, experts=latent_experts, needed=COLUMNS
)
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
        _neox,
        _neox_differences,
    ),
    "gptj": Family(
        replace(_NEOX, branches="shared"),
        Keys(
            ("n_layer",),
            ("n_embd",),
            ("n_head",),
            ("n_positions",),
            inner=("n_inner",),
            key_heads=(),
            rotary_base=(),
        ),
        _gptj,
        _gptj_differences,
    ),
    "falcon": Family(
        replace(_NEOX, shared_table=True),
        Keys(
            ("num_hidden_layers", "n_layer"),
            heads=("num_attention_heads", "n_head"),
            inner=("ffn_hidden_size",),
            key_heads=(),
        ),
        _falcon,
        _falcon_differences,
        defaults={"max_position_embeddings": 2048},
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
        replace(_NEOX, branches="shared"),
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
        traits=lambda reader, layers: {**_qwen_window(reader, layers), "qkv_biases": reader.flag("qkv_bias", True)},
        approximations=_llama_differences,
        experts=_qwen_experts,
        needed=("shared_expert_intermediate_size",),
    ),
    "qwen3_moe": Family(
        QWEN3,
        traits=lambda reader, layers: {**_qwen_window(reader, layers), **_llama_biases(reader)},
        approximations=_llama_differences,
        head_columns=128,
        experts=_qwen_experts,
    ),
    "gpt_oss": Family(
        GPT_OSS,
        traits=lambda reader, layers: _window(reader, layers, 2, 128),
        approximations=_gpt_oss_differences,
        head_columns=64,
        experts=_gpt_oss_experts,
    ),
    "qwen3_next": Family(
        replace(QWEN3, gated_attention=True),
        traits=lambda reader, _: {
            "rotary_share": reader.share(("partial_rotary_factor",), 0.25),
            **_llama_biases(reader),
        },
        approximations=_qwen_next_differences,
        head_columns=256,
        experts=_qwen_next_experts,
    ),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
}
"""The model types whose files are read."""
WITHIN = {"gemma3": "gemma3_text"}
"""Model types of images and text, and the type of their language model, which is the object `text_config`."""
