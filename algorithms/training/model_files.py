"""Shapes of transformers from a Hugging Face `config.json`, whose keys differ from kind to kind.

Source: the configuration classes of the `transformers` library: GPT2Config,
GPTNeoXConfig, LlamaConfig, BloomConfig; BLOOM has no key for its sequence but
`seq_length`, and a normalisation after the embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec

from algorithms.errors import InputError
from algorithms.training.models import LLAMA, OPTIONAL, ModelShape


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


_USUAL = _Keys(
    ("num_hidden_layers",),
    ("hidden_size",),
    ("num_attention_heads",),
    ("max_position_embeddings",),
    inner=("intermediate_size",),
    key_heads=("num_key_value_heads",),
)
_KINDS: dict[str, tuple[_Keys, Mapping[str, object]]] = {
    "gpt2": (_Keys(("n_layer",), ("n_embd",), ("n_head",), ("n_positions", "n_ctx"), inner=("n_inner",)), {}),
    "gpt_neox": (replace(_USUAL, key_heads=()), {"positions": False, "shared_table": False}),
    "llama": (_USUAL, LLAMA),
    "bloom": (
        _Keys(
            ("n_layer", "num_hidden_layers"),
            ("hidden_size", "n_embed"),
            ("n_head", "num_attention_heads"),
            ("seq_length",),
        ),
        {"positions": False, "embedding_norm": True},
    ),
}


def from_config(path: str | Path) -> ModelShape:
    """The shape in a Hugging Face `config.json` of a GPT-2, GPT-NeoX, Llama or BLOOM.

    Raises
    ------
    InputError : a file that cannot be read, a kind that is not known, a key that is missing
    """
    try:
        given = msgspec.json.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"model {path}: cannot be read: {error}") from None
    kind = given.get("model_type") if isinstance(given, dict) else None
    if kind not in _KINDS:
        raise InputError(f"model {path}: model_type {kind!r}: accepted are {', '.join(_KINDS)}")
    keys, traits = _KINDS[kind]
    numbers = {field.name: _number(given, getattr(keys, field.name), field.name, path) for field in fields(_Keys)}
    if "tie_word_embeddings" in given:
        traits = {**traits, "shared_table": bool(given["tie_word_embeddings"])}
    return ModelShape(str(path), **numbers, **traits)  # type: ignore[arg-type]


def _number(given: Mapping[str, object], keys: tuple[str, ...], field: str, path: str | Path) -> int:
    """The number under the first of the keys that the file has; 0 for one that has a default."""
    found = next(((key, given[key]) for key in keys if given.get(key) is not None), None)
    if found is None:
        if field in OPTIONAL:
            return 0
        raise InputError(f"model {path}: {' or '.join(keys)} is missing, which says how long {field} is")
    key, value = found
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"model {path}: {key} = {value!r}: a whole number from 1 is needed")
    return value
