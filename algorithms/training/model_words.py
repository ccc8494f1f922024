"""A transformer's shape as it is asked for: a name, numbers by name, or a file."""

from dataclasses import fields, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.integers import parse_integer
from quadrille.algorithms.training.architecture import ARCHITECTURES, PLAIN, Architecture
from quadrille.algorithms.training.model_files import from_config
from quadrille.algorithms.training.models import SHAPES, ModelShape

NEEDED = ("layers", "hidden", "heads", "sequence", "vocabulary")
OPTIONAL = ("inner",)
TRAITS = tuple(field.name for field in fields(Architecture))
ACCEPTED = (*NEEDED, *OPTIONAL, "architecture", *TRAITS)
YES_OR_NO = {"yes": True, "no": False}


def find_shape(text: str) -> ModelShape:
    """The shape that `text` names: a name, numbers by name, or a file that ends in `.json`.

    >>> find_shape("layers=2,hidden=8,heads=2,sequence=4,vocabulary=16").parameters
    1920

    Raises
    ------
    InputError : an unknown name, a number that is missing or cannot be, a file that holds no known model
    """
    if text in SHAPES:
        return SHAPES[text]
    if "=" in text:
        return _by_numbers(text)
    if text.endswith(".json"):
        return from_config(text)
    raise InputError(
        f"model {text!r}: accepted are {', '.join(SHAPES)}; numbers as {','.join(f'{name}=…' for name in NEEDED)} "
        "(architecture=llama beside them for a Llama); "
        "and a Hugging Face config.json"
    )


def _by_numbers(text: str) -> ModelShape:
    """Sizes and, beside them, an architecture by name or by what it has otherwise.

    >>> llama = _by_numbers("layers=2,hidden=8,heads=4,sequence=4,vocabulary=16,architecture=llama,key_heads=2")
    >>> ", ".join(llama.architecture.words)
    '2 key heads, gated MLP, RMSNorm, no biases, rotary positions, two tables'
    """
    given: dict[str, str] = {}
    for item in text.split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in ACCEPTED or name in given:
            raise InputError(f"model {text!r}: {name!r}: accepted, each once, are {', '.join(ACCEPTED)}")
        given[name] = value
    kind = given.get("architecture", "gpt")
    if kind not in ARCHITECTURES:
        raise InputError(f"model {text!r}: architecture={kind}: accepted are {', '.join(ARCHITECTURES)}")
    sizes = {name: _size(text, name, value) for name, value in given.items() if name in NEEDED + OPTIONAL}
    traits = {name: _trait(text, name, value) for name, value in given.items() if name in TRAITS}
    if missing := [name for name in NEEDED if name not in sizes]:
        raise InputError(f"model {text!r}: {missing[0]} is missing: needed are {', '.join(NEEDED)}")
    try:
        architecture = replace(ARCHITECTURES[kind], **traits)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"model {text!r}: {error}") from None
    return ModelShape(text, **sizes, architecture=architecture)  # type: ignore[arg-type]


def _size(text: str, name: str, value: str) -> int:
    if not (found := parse_integer(value)):
        raise InputError(f"model {text[:80]!r}: {name}={value[:20]}: a whole number from 1 is needed")
    return found


def _trait(text: str, name: str, value: str) -> object:
    """What an architecture has under a name, by the type that the plain one has there."""
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
                raise InputError(f"model {text!r}: {name}={value}: a number above 1 is needed") from None
        case _:
            return value
