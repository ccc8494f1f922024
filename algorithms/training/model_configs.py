"""Hugging Face `config.json` files: the shape of a transformer, and the differences of a schedule from the model.

Each `model_type` has a `_Family`: the names of its keys, the traits that the type implies, and functions that read the
traits that its keys choose.  Three kinds of keys are distinguished:

    read             the shape follows the key
    approximated     a schedule cannot do what the key asks for; `--approximate` goes on without it
    ignored          the key changes neither operations nor sizes (initialisation, generation, ε of norms)

Source: the configuration and model classes of the `transformers` library, version 4.57: GPT2Config, GPTNeoXConfig,
LlamaConfig, MistralConfig, BloomConfig, Qwen2Config, Qwen3Config, Gemma2Config, Gemma3TextConfig, PhiConfig,
Phi3Config, Olmo2Config, Olmo3Config; BLOOM's only key for its sequence is `seq_length`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import parse_json, read_text
from quadrille.algorithms.training.architecture import LLAMA, PLAIN, ROTARY_BASE, Architecture
from quadrille.algorithms.training.model_shapes import Experts, ModelShape

Config = Mapping[str, Any]
MOST_BYTES = 2**24
LONGEST_DEFAULT = 8192
"""Tokens of the longest sequence that a file has by default: the sequence on which Llama 3 was trained."""
GELUS = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu")
"""Names of GELU: with tanh, which the kernels compute, and with the error function, which differs by less than 1e-3."""
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of a `config.json` for each field of a shape; the first present key counts."""

    layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    sequence: tuple[str, ...] = ("max_position_embeddings",)
    vocabulary: tuple[str, ...] = ("vocab_size",)
    inner: tuple[str, ...] = ("intermediate_size",)
    key_heads: tuple[str, ...] = ("num_key_value_heads",)
    rotary_base: tuple[str, ...] = ("rope_theta",)


SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary", "inner")
WITH_DEFAULTS = ("inner",)


class _Reader:
    """The checked values of a configuration file.

    Parameters
    ----------
    config : content of the file, or of the part that describes the language model
    path : path of the file, for messages
    """

    def __init__(self, config: Config, path: str | Path) -> None:
        self.config, self._path = config, path

    def error(self, text: str) -> InputError:
        """The error about the file with this text."""
        return InputError(f"model {self._path}: {text}")

    def check_present(self, keys: _Keys, *, gated: bool) -> None:
        """Checks that the file has every key without a default; a gated MLP has no usual width.

        Raises
        ------
        InputError : names all missing keys
        """
        fields = [field for field in SIZES if field not in WITH_DEFAULTS or (gated and field == "inner")]
        missing = [
            " or ".join(getattr(keys, field))
            for field in fields
            if not any(self.config.get(key) is not None for key in getattr(keys, field))
        ]
        if missing:
            raise self.error(f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing")

    def count(self, keys: tuple[str, ...]) -> int:
        """The whole number under the first present key; 0 if all are absent."""
        entry = next(((key, self.config[key]) for key in keys if self.config.get(key) is not None), None)
        return self.whole(*entry) if entry else 0

    def whole(self, key: str, value: object) -> int:
        """A whole number from 1, checked."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} = {value!r:.60}: a whole number from 1 is needed")
        return value

    def optional(self, key: str, default: int = 0) -> int:
        """The whole number under a key; the default where the key is absent or null."""
        value = self.config.get(key)
        return default if value is None else self.whole(key, value)

    def number(self, keys: tuple[str, ...], default: float, above: float = 0.0) -> float:
        """The number above a limit under the first present key, at the top level or among the rotary parameters.

        Source: LlamaConfig: `rope_theta`, from version 5 on inside `rope_parameters`.
        """
        nested = self.config.get("rope_parameters")
        everywhere = {**(nested if isinstance(nested, dict) else {}), **self.config}
        entry = next(((key, everywhere[key]) for key in keys if everywhere.get(key) is not None), None)
        if entry is None:
            return default
        key, value = entry
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= above:
            raise self.error(f"{key} = {value!r:.60}: a number above {above:g} is needed")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """The truth value under a key."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} = {value!r:.60}: true or false is needed")
        return value

    def word(self, keys: tuple[str, ...], default: str) -> tuple[str, str]:
        """The key and the word under the first present key."""
        key = next((key for key in keys if self.config.get(key) is not None), keys[0])
        value = self.config.get(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key} = {value!r:.60}: a word is needed")
        return key, value

    def share(self, keys: tuple[str, ...], default: float) -> float:
        """The number above 0 and up to 1 under the first present key."""
        value = self.number(keys, default)
        if value > 1:
            key = next(key for key in keys if self.config.get(key) is not None)
            raise self.error(f"{key} = {value:g}: a number above 0 and up to 1 is needed")
        return value


Traits = dict[str, Any]
Differences = Iterator[str]
"""Texts such as "`key`: what the schedule does instead"."""


@dataclass(frozen=True, slots=True)
class _Family:
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
    """

    architecture: Architecture
    keys: _Keys = _Keys()
    traits: Callable[[_Reader, int], Traits] = lambda _reader, _layers: {}
    approximations: Callable[[_Reader], Differences] = lambda _reader: iter(())
    head_columns: int = 0
    embedding_norm: bool = False
    experts: Callable[[_Reader, int], Experts | None] = lambda _reader, _layers: None


def _window(reader: _Reader, layers: int, period: int, default: int = 0) -> Traits:
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


def _period(reader: _Reader, types: object, layers: int) -> int:
    """The period of the layers that see all tokens in a list of the types of layers; 0 if none of them does."""
    if not isinstance(types, list) or len(types) != layers:
        length = len(types) if isinstance(types, list) else "no list"
        raise reader.error(f"layer_types has {length} entries: {layers}, one for each layer, are needed")
    if unknown := [kind for kind in types if kind not in (FULL, SLIDING)]:
        raise reader.error(f"layer_types has {unknown[0]!r:.60}: accepted are {FULL} and {SLIDING}")
    if FULL not in types:
        return 0
    period = types.index(FULL) + 1
    if types != [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]:
        raise reader.error(
            f"layer_types is no repeated pattern of {SLIDING} layers and one {FULL} layer: needed is one"
        )
    return period


def _gate(reader: _Reader, keys: tuple[str, ...], accepted: tuple[str, ...], otherwise: str) -> Differences:
    """The function of the MLP, where it is not the kernels'."""
    key, name = reader.word(keys, accepted[0])
    if name not in accepted:
        yield f"{key} = {name:.40}: {otherwise}"


def _is_on(reader: _Reader, key: str, text: str, *, default: bool = False) -> Differences:
    if reader.flag(key, default):
        yield f"{key}: {text}"


def _llama_biases(reader: _Reader, _layers: int = 0) -> Traits:
    """The biases of a Llama; all products have biases only if both keys say so."""
    attention, mlp = reader.flag("attention_bias", False), reader.flag("mlp_bias", False)
    return {"biases": True} if attention and mlp else {"qkv_biases": True} if attention else {}


def _llama_differences(reader: _Reader) -> Differences:
    attention, mlp = reader.flag("attention_bias", False), reader.flag("mlp_bias", False)
    if attention and not mlp:
        yield "attention_bias: QKV has biases, and the product after attention has none"
    if mlp and not attention:
        yield "mlp_bias: products have no biases"
    yield from _gate(reader, ("hidden_act",), ("silu", "swish"), "the MLP's gate is silu")


def _qwen_window(reader: _Reader, layers: int) -> Traits:
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


def _gemma2(reader: _Reader, layers: int) -> Traits:
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


def _gemma3(reader: _Reader, layers: int) -> Traits:
    window = _window(reader, layers, reader.optional("sliding_window_pattern", 6), 4096)
    local = {"local_rotary_base": reader.number(("rope_local_base_freq",), 10_000, 1)} if window else {}
    return {
        **window,
        **local,
        "score_cap": reader.number(("attn_logit_softcapping",), 0.0),
        "logit_cap": reader.number(("final_logit_softcapping",), 0.0),
        "score_columns": reader.number(("query_pre_attn_scalar",), 256),
    }


def _gemma_differences(reader: _Reader) -> Differences:
    yield from _is_on(reader, "attention_bias", "products have no biases")
    yield from _gate(reader, ("hidden_activation", "hidden_act"), GELUS, "the MLP's gate is GELU by tanh")


def _phi3(reader: _Reader, layers: int) -> Traits:
    return {**_window(reader, layers, 0), "rotary_share": reader.share(("partial_rotary_factor",), 1.0)}


def _phi_differences(reader: _Reader) -> Differences:
    yield "model_type = phi: the MLP follows attention, not beside it, and each has a norm of its own"
    yield "model_type = phi: logits have no bias"
    yield from _is_on(reader, "qk_layernorm", "queries and keys are not normalised")
    yield from _gate(reader, ("hidden_act",), GELUS, "the MLP's function is GELU by tanh")


def _neox_differences(reader: _Reader) -> Differences:
    yield from _is_on(reader, "use_parallel_residual", "the MLP follows attention, not beside it", default=True)
    yield from _gate(reader, ("hidden_act",), GELUS, "the MLP's function is GELU by tanh")


def _gpt2_differences(reader: _Reader) -> Differences:
    yield from _gate(reader, ("activation_function",), GELUS, "the MLP's function is GELU by tanh")


def _bloom_differences(_reader: _Reader) -> Differences:
    yield "model_type = bloom: attention's scores have no ALiBi"
    yield "model_type = bloom: no normalisation follows the embedding"


def _mixtral_experts(reader: _Reader, _layers: int) -> Experts:
    """The experts of Mixtral: the dense MLP's width, in all layers."""
    inner = reader.count(("intermediate_size",))
    return _experts(reader, ("num_local_experts", "num_experts_per_tok"), inner)


def _qwen_experts(reader: _Reader, layers: int) -> Experts:
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
    shared = reader.count(("shared_expert_intermediate_size",))
    return replace(experts, shared=shared, shared_gate=shared > 0, dense_layers=frozenset((*dense, *between)))


def _experts(reader: _Reader, keys: tuple[str, str], inner: int) -> Experts:
    count, chosen = (reader.count((key,)) for key in keys)
    if missing := [key for key, number in zip(keys, (count, chosen), strict=True) if not number]:
        raise reader.error(f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing")
    if chosen > count:
        raise reader.error(f"{keys[1]} = {chosen}: a whole number from 1 to {keys[0]} = {count} is accepted")
    return Experts(count, chosen, inner)


_GEMMA = replace(LLAMA, shared_table=True, gate="gelu", norm_place="both", scaled_embedding=True)
_OLMO = replace(LLAMA, norm_place="after", qk_norm="row")
_NEOX = Architecture(positions="rotary", shared_table=False)
FAMILIES: dict[str, _Family] = {
    "gpt2": _Family(
        PLAIN,
        _Keys(("n_layer",), ("n_embd",), ("n_head",), ("n_positions", "n_ctx"), inner=("n_inner",), key_heads=()),
        approximations=_gpt2_differences,
    ),
    "gpt_neox": _Family(
        _NEOX,
        _Keys(key_heads=(), rotary_base=("rotary_emb_base", "rope_theta")),
        lambda reader, _: {"rotary_share": reader.share(("rotary_pct", "partial_rotary_factor"), 0.25)},
        _neox_differences,
    ),
    "llama": _Family(LLAMA, traits=_llama_biases, approximations=_llama_differences),
    "mistral": _Family(
        LLAMA,
        traits=lambda reader, layers: _window(reader, layers, 0),
        approximations=_llama_differences,
    ),
    "bloom": _Family(
        Architecture(positions="none"),
        _Keys(
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
    "qwen2": _Family(replace(LLAMA, qkv_biases=True), traits=_qwen_window, approximations=_llama_differences),
    "qwen3": _Family(
        replace(LLAMA, qk_norm="head"),
        traits=lambda reader, layers: {**_qwen_window(reader, layers), **_llama_biases(reader)},
        approximations=_llama_differences,
        head_columns=128,
    ),
    "gemma2": _Family(_GEMMA, traits=_gemma2, approximations=_gemma_differences, head_columns=256),
    "gemma3_text": _Family(
        replace(_GEMMA, qk_norm="head", rotary_base=1e6),
        traits=_gemma3,
        approximations=_gemma_differences,
        head_columns=256,
    ),
    "phi": _Family(
        Architecture(positions="rotary", shared_table=False),
        traits=lambda reader, _: {"rotary_share": reader.share(("partial_rotary_factor",), 0.5)},
        approximations=_phi_differences,
    ),
    "phi3": _Family(LLAMA, traits=_phi3, approximations=_llama_differences),
    "olmo2": _Family(_OLMO, traits=_llama_biases, approximations=_llama_differences),
    "olmo3": _Family(
        _OLMO,
        traits=lambda reader, layers: {**_window(reader, layers, 4, 4096), **_llama_biases(reader)},
        approximations=_llama_differences,
    ),
    "mixtral": _Family(
        LLAMA,
        traits=lambda reader, layers: _window(reader, layers, 0),
        approximations=_llama_differences,
        experts=_mixtral_experts,
    ),
    "qwen2_moe": _Family(
        replace(LLAMA, qkv_biases=True),
        traits=_qwen_window,
        approximations=_llama_differences,
        experts=_qwen_experts,
    ),
    "qwen3_moe": _Family(
        replace(LLAMA, qk_norm="head"),
        traits=lambda reader, layers: {**_qwen_window(reader, layers), **_llama_biases(reader)},
        approximations=_llama_differences,
        head_columns=128,
        experts=_qwen_experts,
    ),
}
"""The model types whose files are read; no schedule has experts, so those of the last ones are only counted."""
WITHIN = {"gemma3": "gemma3_text"}
"""Model types of images and text, and the type of their language model, which is the object `text_config`."""
REFUSED: dict[str, str] = {
    "qwen3_next": "full_attention_interval: linear attention in most layers",
    "deepseek_v2": "kv_lora_rank: attention with latent keys and values",
    "deepseek_v3": "kv_lora_rank: attention with latent keys and values",
    "gpt_oss": "num_local_experts: experts with biases, and attention with sinks",
}
"""Model types that no shape describes, and the key and the trait that are the cause."""


def from_config(path: str | Path, sequence: int | None = None) -> ModelShape:
    """Returns the shape in a Hugging Face `config.json`.

    The largest position of a file says what a model accepts, not what it is trained on.  Without `sequence` the
    sequences have the positions before the extension of rotary positions, and at most `LONGEST_DEFAULT` tokens.

    Parameters
    ----------
    path : path of the file
    sequence : tokens of a sequence; None for the default

    Raises
    ------
    InputError : an unreadable file, an unknown model type, or a missing, invalid or contradictory key
    """
    kind, reader, remarks = _opened(path)
    family = FAMILIES[kind]
    keys = family.keys
    reader.check_present(keys, gated=family.architecture.gated)
    sizes = {name: reader.count(getattr(keys, name)) for name in SIZES}
    positions = sizes["sequence"]
    sizes["sequence"] = sequence or min(_trained_positions(reader, positions), LONGEST_DEFAULT)
    architecture = _architecture(family, reader, sizes)
    return ModelShape(
        str(path),
        **sizes,
        architecture=architecture,
        embedding_norm=family.embedding_norm,
        remarks=(
            *_sequence_remark(sizes["sequence"], positions, chosen=sequence is not None),
            *_rotary_remark(reader),
            *remarks,
        ),
        approximations=tuple(family.approximations(reader)),
        experts=family.experts(reader, sizes["layers"]),
    )


def _opened(path: str | Path) -> tuple[str, _Reader, tuple[str, ...]]:
    """The model type of a file, the reader of its language model, and a remark about other parts of the model."""
    try:
        config = parse_json(read_text(path, MOST_BYTES))
    except OSError as error:
        raise InputError(f"model {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"model {path}: {error}") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if isinstance(kind, str) and kind in REFUSED:
        raise InputError(
            f"model {path}: model_type {kind}: {REFUSED[kind]} is not known; accepted are "
            f"{', '.join((*FAMILIES, *WITHIN))}"
        )
    if not isinstance(kind, str) or kind not in (*FAMILIES, *WITHIN):
        raise InputError(f"model {path}: model_type {kind!r:.60}: accepted are {', '.join((*FAMILIES, *WITHIN))}")
    if kind in FAMILIES:
        return kind, _Reader(config, path), ()
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise InputError(f"model {path}: text_config is missing, which has the sizes of the language model of {kind}")
    return WITHIN[kind], _Reader(text, path), ("the encoder of images is left out",)


def _architecture(family: _Family, reader: _Reader, sizes: Mapping[str, int]) -> Architecture:
    """The traits of a model type, with those that the keys of a file choose."""
    usual, base = family.architecture, family.architecture.rotary_base
    head = reader.optional("head_dim", family.head_columns)
    heads, hidden = sizes["heads"], sizes["hidden"]
    try:
        return replace(
            usual,
            key_heads=reader.count(family.keys.key_heads),
            head_columns=0 if not hidden % heads and head == hidden // heads else head,
            rotary_base=reader.number(family.keys.rotary_base, base, 1) if usual.positions == "rotary" else ROTARY_BASE,
            shared_table=reader.flag("tie_word_embeddings", usual.shared_table),
            **family.traits(reader, sizes["layers"]),
        )
    except InputError as error:
        raise error if str(error).startswith("model ") else reader.error(str(error)) from None


def _trained_positions(reader: _Reader, positions: int) -> int:
    """Returns the positions before the extension of rotary positions, where the file names them.

    Source: transformers, modeling_rope_utils.py: `original_max_position_embeddings`.
    """
    extended = reader.config.get("rope_scaling")
    inside = extended.get("original_max_position_embeddings") if isinstance(extended, dict) else None
    original = inside if inside is not None else reader.config.get("original_max_position_embeddings")
    return min(original, positions) if isinstance(original, int) and original > 0 else positions


def _sequence_remark(sequence: int, positions: int, *, chosen: bool) -> Iterator[str]:
    """Yields the difference of the sequences from the largest position of a file, as text for a report."""
    if sequence > positions:
        yield f"sequences of {sequence} tokens are longer than its {positions} positions"
    if sequence < positions and not chosen:
        yield f"sequences have {sequence} tokens by default, and not all its {positions} positions (--sequence N)"


def _rotary_remark(reader: _Reader) -> Iterator[str]:
    """Yields the remark that the angles of rotary positions differ, which changes no operation."""
    if reader.config.get("rope_scaling"):
        yield "rotary positions are not scaled"
