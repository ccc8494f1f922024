"""Shapes of transformers from a Hugging Face `config.json`, whose keys differ from kind to kind.

Source: the configuration classes of the `transformers` library: GPT2Config,
GPTNeoXConfig, LlamaConfig, MistralConfig, BloomConfig; BLOOM has no key for its sequence but
`seq_length`, and a normalisation after the embedding.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.architecture import LLAMA, PLAIN, ROTARY_BASE, Architecture
from quadrille.algorithms.training.models import ModelShape


@dataclass(frozen=True, slots=True)
class _Keys:
    """Under which keys a kind of `config.json` has what a shape needs, the first one that is there."""

    layers: tuple[str, ...]
    hidden: tuple[str, ...]
    heads: tuple[str, ...]
    sequence: tuple[str, ...]
    vocabulary: tuple[str, ...] = ("vocab_size",)
    inner: tuple[str, ...] = ()
    key_heads: tuple[str, ...] = ()
    rotary_base: tuple[str, ...] = ()


_USUAL = _Keys(
    ("num_hidden_layers",),
    ("hidden_size",),
    ("num_attention_heads",),
    ("max_position_embeddings",),
    inner=("intermediate_size",),
    key_heads=("num_key_value_heads",),
    rotary_base=("rope_theta",),
)
_ROTARY = Architecture(positions="rotary", shared_table=False)
_KINDS: dict[str, tuple[_Keys, Architecture]] = {
    "gpt2": (_Keys(("n_layer",), ("n_embd",), ("n_head",), ("n_positions", "n_ctx"), inner=("n_inner",)), PLAIN),
    "gpt_neox": (replace(_USUAL, key_heads=(), rotary_base=("rotary_emb_base", "rope_theta")), _ROTARY),
    "llama": (_USUAL, LLAMA),
    "mistral": (_USUAL, LLAMA),
    "bloom": (
        _Keys(
            ("n_layer", "num_hidden_layers"),
            ("hidden_size", "n_embed"),
            ("n_head", "num_attention_heads"),
            ("seq_length",),
        ),
        Architecture(positions="none"),
    ),
}
WITH_DEFAULTS = ("inner", "key_heads")
SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary", "inner")


def from_config(path: str | Path) -> ModelShape:
    """The shape in a Hugging Face `config.json` of a GPT-2, GPT-NeoX, Llama, Mistral or BLOOM.

    Raises
    ------
    InputError : a file that cannot be read, a kind that is not known, a key that is missing, heads of their own width
    """
    try:
        given = msgspec.json.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"model {path}: cannot be read: {error}") from None
    kind = given.get("model_type") if isinstance(given, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"model {path}: model_type {kind!r}: accepted are {', '.join(_KINDS)}")
    keys, architecture = _KINDS[kind]
    sizes = {name: _number(given, getattr(keys, name), name, path) for name in SIZES}
    shared = given.get("tie_word_embeddings", architecture.shared_table)
    architecture = replace(
        architecture,
        key_heads=_number(given, keys.key_heads, "key_heads", path),
        rotary_base=_base(given, keys.rotary_base, path),
        shared_table=bool(shared),
    )
    wide, usual = given.get("head_dim"), sizes["hidden"] // sizes["heads"]
    if wide not in (None, usual):
        raise InputError(f"model {path}: head_dim = {wide!r}: hidden / heads = {usual} is accepted")
    otherwise = tuple(_otherwise(kind, given, sizes["sequence"]))
    return ModelShape(
        str(path), **sizes, architecture=architecture, embedding_norm=kind == "bloom", otherwise=otherwise
    )


def _otherwise(kind: str, given: Mapping[str, object], sequence: int) -> Iterator[str]:
    """What schedules carry out in another way than a model of this kind, in words."""
    match kind:
        case "bloom":
            yield "attention's scores have no ALiBi"
        case "gpt_neox":
            if given.get("use_parallel_residual", True):
                yield "the MLP follows attention, not beside it"
            if (share := given.get("rotary_pct", 0.25)) != 1:
                yield f"all columns of a head are rotated, not a share of {share}"
        case "llama" | "mistral":
            window = given.get("sliding_window")
            if given.get("rope_scaling"):
                yield "rotary positions are not scaled"
            if isinstance(window, int) and window < sequence:
                yield f"attention sees all tokens before each, not the last {window}"
            if given.get("attention_bias") or given.get("mlp_bias"):
                yield "products have no biases"
            if (gate := given.get("hidden_act", "silu")) != "silu":
                yield f"the MLP's gate is silu, not {gate}"
        case _:
            pass


def _base(given: Mapping[str, object], keys: tuple[str, ...], path: str | Path) -> float:
    """The base of rotary positions, at the top or among the rotary parameters; the usual one where there is none.

    Source: LlamaConfig: `rope_theta`, from version 5 on inside `rope_parameters`.
    """
    nested = given.get("rope_parameters")
    everywhere = {**(nested if isinstance(nested, dict) else {}), **given}
    value = next((everywhere[key] for key in keys if everywhere.get(key) is not None), ROTARY_BASE)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 1:
        raise InputError(f"model {path}: {keys[0]} = {value!r}: a number above 1 is needed")
    return float(value)


def _number(given: Mapping[str, object], keys: tuple[str, ...], field: str, path: str | Path) -> int:
    """The number under the first of the keys that the file has; 0 for one that has a default."""
    found = next(((key, given[key]) for key in keys if given.get(key) is not None), None)
    if found is None:
        if field in WITH_DEFAULTS:
            return 0
        raise InputError(f"model {path}: {' or '.join(keys)} is missing, which says how long {field} is")
    key, value = found
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"model {path}: {key} = {value!r}: a whole number from 1 is needed")
    return value
