"""Hugging Face `config.json` files: the shape of a transformer, and the differences of a schedule from the model.

Three kinds of keys are distinguished:

    read             the shape follows the key
    approximated     a schedule cannot do what the key asks for; `--approximate` goes on without it
    ignored          the key changes neither operations nor sizes (initialisation, generation, ε of norms)
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import parse_json, read_text
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.config_families import (
    FAMILIES,
    WITHIN,
    Family,
    local_base,
)
from quadrille.algorithms.training.config_reader import SIZES, Reader
from quadrille.algorithms.training.model_shapes import ModelShape

MOST_BYTES = 2**24
LONGEST_DEFAULT = 8192
"""Tokens of the longest sequence that a file has by default: the sequence on which Llama 3 was trained."""


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
    reader.check_present(keys, gated=family.architecture.gated, needed=family.needed)
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
            *_left_out(reader),
            *remarks,
        ),
        approximations=tuple(family.approximations(reader)),
        experts=family.experts(reader, sizes["layers"]),
    )


def _opened(path: str | Path) -> tuple[str, Reader, tuple[str, ...]]:
    """The model type of a file, the reader of its language model, and a remark about other parts of the model."""
    try:
        config = parse_json(read_text(path, MOST_BYTES))
    except OSError as error:
        raise InputError(f"model {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"model {path}: {error}") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in (*FAMILIES, *WITHIN):
        raise InputError(f"model {path}: model_type {kind!r:.60}: accepted are {', '.join((*FAMILIES, *WITHIN))}")
    if kind in FAMILIES:
        return kind, Reader({**FAMILIES[kind].defaults, **config}, path), ()
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise InputError(f"model {path}: text_config is missing, which has the sizes of the language model of {kind}")
    language = WITHIN[kind]
    return language, Reader({**FAMILIES[language].defaults, **text}, path), ("the encoder of images is left out",)


def _architecture(family: Family, reader: Reader, sizes: Mapping[str, int]) -> Architecture:
    """The traits of a model type, with those that the keys of a file choose."""
    usual = family.architecture
    head = reader.optional("head_dim", family.head_columns)
    heads, hidden = sizes["heads"], sizes["hidden"]
    try:
        traits = {
            "key_heads": reader.count(family.keys.key_heads),
            "head_columns": 0 if not hidden % heads and head == hidden // heads else head,
            "shared_table": reader.flag("tie_word_embeddings", usual.shared_table),
            **family.traits(reader, sizes["layers"]),
        }
        bases = _rotary_bases(family, reader, traits) if usual.positions == "rotary" else {}
        return replace(usual, **{**traits, **bases})
    except InputError as error:
        raise error if str(error).startswith("model ") else reader.error(str(error)) from None


def _rotary_bases(family: Family, reader: Reader, traits: Mapping[str, Any]) -> dict[str, float]:
    """The base of rotary positions, and that of layers with a window where `rope_parameters` has another for them."""
    base = reader.number(family.keys.rotary_base, family.architecture.rotary_base, 1)
    local = local_base(reader) if traits.get("window") else 0.0
    if not traits.get("global_every"):
        return {"rotary_base": local or base}
    return {"rotary_base": base} | ({"local_rotary_base": local} if local not in (0.0, base) else {})


def _trained_positions(reader: Reader, positions: int) -> int:
    """Returns the positions before the extension of rotary positions, where the file names them.

    Source: transformers, modeling_rope_utils.py: `original_max_position_embeddings`.
    """
    extended = reader.config.get("rope_scaling") or reader.rotary_parameters()
    inside = extended.get("original_max_position_embeddings") if isinstance(extended, dict) else None
    original = inside if inside is not None else reader.config.get("original_max_position_embeddings")
    return min(original, positions) if isinstance(original, int) and original > 0 else positions


def _sequence_remark(sequence: int, positions: int, *, chosen: bool) -> Iterator[str]:
    """Yields the difference of the sequences from the largest position of a file, as text for a report."""
    if sequence > positions:
        yield f"sequences of {sequence} tokens are longer than its {positions} positions"
    if sequence < positions and not chosen:
        yield f"sequences have {sequence} tokens by default, and not all its {positions} positions (--sequence N)"


def _rotary_remark(reader: Reader) -> Iterator[str]:
    """Yields the remark that the angles of rotary positions differ, which changes no operation."""
    kind = reader.rotary_parameters().get("rope_type", "default")
    if reader.config.get("rope_scaling") or kind != "default":
        yield "rotary positions are not scaled"


def _left_out(reader: Reader) -> Iterator[str]:
    """Yields the remark that layers which predict further tokens are left out, as the model classes leave them out."""
    if reader.config.get("num_nextn_predict_layers"):
        yield "the layers that predict further tokens are left out"
