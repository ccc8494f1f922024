"""Model texts: the shape of a transformer from a name, numbers, or the path of a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from quadrille.algorithms.errors import InputError, nearest_hint, nearest_names
from quadrille.algorithms.training.architecture import ARCHITECTURES, PLAIN, Architecture
from quadrille.algorithms.training.experts import EXPERT_DEFAULTS, EXPERT_KEYS, Experts, changed_experts
from quadrille.algorithms.training.model_configs import from_config
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.algorithms.units import parse_integer

NEEDED = ("layers", "hidden", "heads", "sequence", "vocabulary")
OPTIONAL = ("inner",)
TRAITS = tuple(field.name for field in fields(Architecture))
ACCEPTED = (*NEEDED, *OPTIONAL, "architecture", *TRAITS, *EXPERT_KEYS)
BY_FILE = ("deepseek", "kimi", "gpt-j", "gpt-neox", "falcon", "qwen3-next", "bloom")
"""First words of the names of models that are read from files alone."""
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
    hub_name = text.rpartition("/")[2]  # "Qwen/Qwen3-8B" names an organisation first
    unnamed = [family for family in BY_FILE if not any(name.startswith(family) for name in SHAPES)]
    if by_file := next((family for family in unnamed if hub_name.lower().startswith(family)), ""):
        return InputError(f"model {text!r}: {by_file} is read from its Hugging Face config.json, not by name")
    if near := nearest_names(hub_name, SHAPES):
        return InputError(f"model {text!r} is unknown; did you mean {' or '.join(near)}?")
    return InputError(
        f"model {text!r}: accepted are names such as {', '.join(list(SHAPES)[:3])} (`quadrille models` lists them); "
        f"numbers as {','.join(f'{name}=…' for name in NEEDED)}; and a Hugging Face config.json"
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
            raise _unknown_key(text, name)
        values[name] = value
    if sequence is not None and values.setdefault("sequence", str(sequence)) != str(sequence):
        raise InputError(f"--sequence {sequence}: the model {text!r} has sequence={values['sequence']}: leave one out")
    return values


def _unknown_key(text: str, name: str) -> InputError:
    if name in ACCEPTED:
        return InputError(f"model {text!r}: {name!r}: accepted, each once, and it stands twice")
    hint = nearest_hint(name, ACCEPTED)
    return InputError(f"model {text!r}: {name!r}: accepted, each once, are {', '.join(ACCEPTED)}{hint}")


def _sizes(text: str, values: Mapping[str, str]) -> dict[str, int]:
    return {name: _size(text, name, value) for name, value in values.items() if name in NEEDED + OPTIONAL}


def _with_traits(text: str, architecture: Architecture, values: Mapping[str, str]) -> Architecture:
    traits = {name: _trait(text, name, value) for name, value in values.items() if name in TRAITS}
    try:
        return replace(architecture, **traits)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"model {text!r}: {error}") from None


def _with_experts(text: str, experts: Experts | None, values: Mapping[str, str]) -> Experts | None:
    changes = {
        name: _parsed(text, name, value, EXPERT_DEFAULTS[name]) for name, value in values.items() if name in EXPERT_KEYS
    }
    try:
        return changed_experts(experts, changes)
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
    experts = _with_experts(text, shape.experts, values)
    architecture = _with_traits(text, shape.architecture, values)
    return replace(shape, name=text, **sizes, architecture=architecture, experts=experts)


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
    architecture, experts = _with_traits(text, ARCHITECTURES[kind], values), _with_experts(text, None, values)
    return ModelShape(text, **sizes, architecture=architecture, experts=experts)


def _size(text: str, name: str, value: str) -> int:
    if not (size := parse_integer(value)):
        raise InputError(f"model {text[:80]!r}: {name}={value[:20]}: a whole number from 1 is needed")
    return size


def _trait(text: str, name: str, value: str) -> object:
    """Value of an architecture option, parsed by the type of the plain GPT's value."""
    return _parsed(text, name, value, getattr(PLAIN, name))


def _parsed(text: str, name: str, value: str, usual: object) -> object:
    """A value, parsed by the type of its usual value."""
    match usual:
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
