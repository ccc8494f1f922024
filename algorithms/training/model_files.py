"""Model files: the shape of a transformer from a name, numbers, or a Hugging Face `config.json`.

Source: the configuration classes of the `transformers` library: GPT2Config, GPTNeoXConfig, LlamaConfig, MistralConfig,
BloomConfig; BLOOM's only key for its sequence is `seq_length`, and it normalises after the embedding.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from quadrille.algorithms.errors import InputError, nearest_names
from quadrille.algorithms.formats.input_files import parse_json, read_text
from quadrille.algorithms.training.architecture import ARCHITECTURES, LLAMA, PLAIN, ROTARY_BASE, Architecture
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.algorithms.units import parse_integer


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of a `config.json` for each field of a shape; the first present key counts."""

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
MOST_BYTES = 2**24
LONGEST_DEFAULT = 8192
"""Tokens of the longest sequence that a file has by default: the sequence on which Llama 3 was trained."""
WITH_DEFAULTS = ("inner", "key_heads")
SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary", "inner")


def from_config(path: str | Path, sequence: int | None = None) -> ModelShape:
    """Returns the shape in a Hugging Face `config.json` of a GPT-2, GPT-NeoX, Llama, Mistral or BLOOM.

    The largest position of a file says what a model accepts, not what it is trained on.  Without `sequence` the
    sequences have the positions before the extension of rotary positions, and at most `LONGEST_DEFAULT` tokens.

    Parameters
    ----------
    path : path of the file
    sequence : tokens of a sequence; None for the default

    Raises
    ------
    InputError : an unreadable file, an unknown model type, a missing key, or heads of another width than hidden / heads
    """
    try:
        config = parse_json(read_text(path, MOST_BYTES))
    except OSError as error:
        raise InputError(f"model {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"model {path}: {error}") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"model {path}: model_type {kind!r}: accepted are {', '.join(_KINDS)}")
    keys, architecture = _KINDS[kind]
    sizes = {name: _number(config, getattr(keys, name), name, path) for name in SIZES}
    positions = sizes["sequence"]
    sizes["sequence"] = sequence or min(_trained_positions(config, positions), LONGEST_DEFAULT)
    shared = config.get("tie_word_embeddings", architecture.shared_table)
    architecture = replace(
        architecture,
        key_heads=_number(config, keys.key_heads, "key_heads", path),
        rotary_base=_base(config, keys.rotary_base, path),
        shared_table=bool(shared),
    )
    head_columns, usual = config.get("head_dim"), sizes["hidden"] // sizes["heads"]
    if head_columns not in (None, usual):
        raise InputError(f"model {path}: head_dim = {head_columns!r}: hidden / heads = {usual} is accepted")
    otherwise = (
        *_sequence_remark(sizes["sequence"], positions, chosen=sequence is not None),
        *_otherwise(kind, config, sizes["sequence"]),
    )
    return ModelShape(
        str(path), **sizes, architecture=architecture, embedding_norm=kind == "bloom", otherwise=otherwise
    )


def _trained_positions(config: Mapping[str, object], positions: int) -> int:
    """Returns the positions before the extension of rotary positions, where the file names them.

    Source: transformers, modeling_rope_utils.py: `original_max_position_embeddings`.
    """
    extended = config.get("rope_scaling")
    original = extended.get("original_max_position_embeddings") if isinstance(extended, dict) else None
    return min(original, positions) if isinstance(original, int) and original > 0 else positions


def _sequence_remark(sequence: int, positions: int, *, chosen: bool) -> Iterator[str]:
    """Yields the difference of the sequences from the largest position of a file, as text for a report."""
    if sequence > positions:
        yield f"sequences of {sequence} tokens are longer than its {positions} positions"
    if sequence < positions and not chosen:
        yield f"sequences have {sequence} tokens by default, and not all its {positions} positions (--sequence N)"


def _otherwise(kind: str, config: Mapping[str, object], sequence: int) -> Iterator[str]:
    """Yields the differences of a schedule from a model of this type, as texts for a report."""
    match kind:
        case "bloom":
            yield "attention's scores have no ALiBi"
        case "gpt_neox":
            if config.get("use_parallel_residual", True):
                yield "the MLP follows attention, not beside it"
            if (share := config.get("rotary_pct", 0.25)) != 1:
                yield f"all columns of a head are rotated, not a share of {share!s:.60}"
        case "llama" | "mistral":
            window = config.get("sliding_window")
            if config.get("rope_scaling"):
                yield "rotary positions are not scaled"
            if isinstance(window, int) and window < sequence:
                yield f"attention sees all tokens before each, not the last {window!s:.60}"
            if config.get("attention_bias") or config.get("mlp_bias"):
                yield "products have no biases"
            if (gate := config.get("hidden_act", "silu")) != "silu":
                yield f"the MLP's gate is silu, not {gate!s:.60}"
        case _:
            pass


def _base(config: Mapping[str, object], keys: tuple[str, ...], path: str | Path) -> float:
    """Base of rotary positions, at the top level or among the rotary parameters; the default if absent.

    Source: LlamaConfig: `rope_theta`, from version 5 on inside `rope_parameters`.
    """
    nested = config.get("rope_parameters")
    everywhere = {**(nested if isinstance(nested, dict) else {}), **config}
    value = next((everywhere[key] for key in keys if everywhere.get(key) is not None), ROTARY_BASE)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 1:
        raise InputError(f"model {path}: {keys[0]} = {value!r}: a number above 1 is needed")
    return float(value)


def _number(config: Mapping[str, object], keys: tuple[str, ...], field: str, path: str | Path) -> int:
    """Returns the number under the first present key; 0 for a field with a default."""
    entry = next(((key, config[key]) for key in keys if config.get(key) is not None), None)
    if entry is None:
        if field in WITH_DEFAULTS:
            return 0
        raise InputError(f"model {path}: {' or '.join(keys)} is missing, which says how long {field} is")
    key, value = entry
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"model {path}: {key} = {value!r}: a whole number from 1 is needed")
    return value


NEEDED = ("layers", "hidden", "heads", "sequence", "vocabulary")
OPTIONAL = ("inner",)
TRAITS = tuple(field.name for field in fields(Architecture))
ACCEPTED = (*NEEDED, *OPTIONAL, "architecture", *TRAITS)
YES_OR_NO = {"yes": True, "no": False}


def find_shape(text: str, sequence: int | None = None) -> ModelShape:
    """Returns the shape that `text` gives: a name, numbers by name, or a file that ends in `.json`.

    Changes may follow a name and a file: `llama3-8b,sequence=4096`.

    >>> find_shape("layers=2,hidden=8,heads=2,sequence=4,vocabulary=16").parameters
    1920
    >>> find_shape("GPT3-175B") == find_shape("gpt3-175b")
    True
    >>> find_shape("llama3-8b,sequence=4096").sequence, find_shape("llama3-8b", 2048).sequence
    (4096, 2048)

    Parameters
    ----------
    text : the model
    sequence : tokens of a sequence; None for those of the model

    Raises
    ------
    InputError : an unknown name, a missing or invalid number, a file without a known model
    """
    base, changes = base_and_changes(text)
    by_lower_case = {name.lower(): shape for name, shape in SHAPES.items()}
    if base and base.lower() not in by_lower_case and not base.endswith(".json"):
        raise _unknown_model(base)
    values = _values(text, changes, sequence)
    if not base:
        return _by_numbers(text, values)
    is_file = base.lower() not in by_lower_case
    shape = from_config(base, _sizes(text, values).get("sequence")) if is_file else by_lower_case[base.lower()]
    return _changed(text, shape, values) if values else shape


def base_and_changes(text: str) -> tuple[str, str]:
    """Returns the name or the file of a model, empty for numbers by name, and the text of the changes or numbers.

    >>> base_and_changes("a,b/config.json,sequence=8"), base_and_changes("layers=2,hidden=8")
    (('a,b/config.json', 'sequence=8'), ('', 'layers=2,hidden=8'))
    """
    path, suffix, changes = text.partition(".json,")
    if suffix or text.endswith(".json"):
        return (path + ".json", changes) if suffix else (text, "")
    name, _, changes = text.partition(",")
    return ("", text) if "=" in name else (name.strip(), changes)


def _unknown_model(text: str) -> InputError:
    if near := nearest_names(text, SHAPES):
        return InputError(f"model {text!r} is unknown; did you mean {' or '.join(near)}?")
    return InputError(
        f"model {text!r}: accepted are {', '.join(SHAPES)}; numbers as {','.join(f'{name}=…' for name in NEEDED)} "
        "(architecture=llama beside them for a Llama); "
        "and a Hugging Face config.json"
    )


def _values(text: str, changes: str, sequence: int | None) -> dict[str, str]:
    """Returns the texts of the numbers and traits by name.

    Raises
    ------
    InputError : an unknown name, a name that stands twice, another sequence than `sequence`
    """
    values: dict[str, str] = {}
    for item in changes.split(",") if changes else ():
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in ACCEPTED or name in values:
            raise InputError(f"model {text!r}: {name!r}: accepted, each once, are {', '.join(ACCEPTED)}")
        values[name] = value
    if sequence is not None and values.setdefault("sequence", str(sequence)) != str(sequence):
        raise InputError(f"--sequence {sequence}: the model {text!r} has sequence={values['sequence']}: leave one out")
    return values


def _sizes(text: str, values: Mapping[str, str]) -> dict[str, int]:
    return {name: _size(text, name, value) for name, value in values.items() if name in NEEDED + OPTIONAL}


def _with_traits(text: str, architecture: Architecture, values: Mapping[str, str]) -> Architecture:
    traits = {name: _trait(text, name, value) for name, value in values.items() if name in TRAITS}
    try:
        return replace(architecture, **traits)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"model {text!r}: {error}") from None


def _changed(text: str, shape: ModelShape, values: Mapping[str, str]) -> ModelShape:
    """Returns a named shape, or the shape of a file, with other numbers or traits."""
    if "architecture" in values:
        raise InputError(
            f"model {text!r}: architecture={values['architecture']}: {shape.name} has its own: leave it out"
        )
    sizes: dict[str, Any] = dict(_sizes(text, values))
    if set(values) == {"sequence"} and sizes["sequence"] == shape.sequence:
        return shape
    return replace(shape, name=text, **sizes, architecture=_with_traits(text, shape.architecture, values))


def _by_numbers(text: str, values: Mapping[str, str]) -> ModelShape:
    """Returns a shape from sizes and, beside them, an architecture by name or by its options.

    >>> text = "layers=2,hidden=8,heads=4,sequence=4,vocabulary=16,architecture=llama,key_heads=2"
    >>> llama = _by_numbers(text, _values(text, text, None))
    >>> ", ".join(llama.architecture.words)
    '2 key heads, gated MLP, RMSNorm, no biases, rotary positions, two tables'
    """
    kind = values.get("architecture", "gpt")
    if kind not in ARCHITECTURES:
        raise InputError(f"model {text!r}: architecture={kind}: accepted are {', '.join(ARCHITECTURES)}")
    sizes: dict[str, Any] = dict(_sizes(text, values))
    if missing := [name for name in NEEDED if name not in sizes]:
        raise InputError(f"model {text!r}: {missing[0]} is missing: needed are {', '.join(NEEDED)}")
    return ModelShape(text, **sizes, architecture=_with_traits(text, ARCHITECTURES[kind], values))


def _size(text: str, name: str, value: str) -> int:
    if not (size := parse_integer(value)):
        raise InputError(f"model {text[:80]!r}: {name}={value[:20]}: a whole number from 1 is needed")
    return size


def _trait(text: str, name: str, value: str) -> object:
    """Value of an architecture option, parsed by the type of the plain GPT's value."""
    match getattr(PLAIN, name):
        case bool():
            if value not in YES_OR_NO:
                raise InputError(f"model {text!r}: {name}={value}: accepted are {', '.join(YES_OR_NO)}")
            return YES_OR_NO[value]
        case int():
            return _size(text, name, value)
        case float():
            try:
                return float(value)
            except ValueError:
                range_text = " above 1" if name == "rotary_base" else ""
                raise InputError(f"model {text!r}: {name}={value}: a number{range_text} is needed") from None
        case _:
            return value
