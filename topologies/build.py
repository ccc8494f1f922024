"""`build` makes a network from the name of its topology family and its arguments, as in machine files and commands."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, getdoc, signature
from pathlib import Path

from quadrille.algorithms.errors import InputError, nearest_hint, nearest_names, unknown_name
from quadrille.algorithms.units import parse_measure
from quadrille.topologies.cluster import with_signature
from quadrille.topologies.families.family_table import HOST_NETWORKS
from quadrille.topologies.families.number_lists import as_word
from quadrille.topologies.lazy_table import LazyTable
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.network import Argument, Network
from quadrille.topologies.quantity import bare_name


def _host_builder(name: str) -> Callable[..., Network]:
    return HOST_NETWORKS[name]


def _machine_builder(name: str) -> Callable[..., Network]:
    return MACHINES[name].builder()


FAMILIES: LazyTable[Callable[..., Network]] = LazyTable(
    {
        **{name: partial(_host_builder, name) for name in HOST_NETWORKS},
        "gpu-cluster": with_signature,
        **{name: partial(_machine_builder, name) for name in MACHINES},
    }
)
"""The function that builds the network of each family, and of each named machine."""

ArgumentValue = Argument | list[float] | tuple[float, ...]
"""The value of an argument in a machine file; it may be a list where the builder takes a word such as `4x4`."""
LARGEST = 1e300
LONGEST_NAME = 255
"""Longest file name that Linux accepts [B]."""
WHOLE = re.compile("-?[0-9]{1,18}")
REAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|-?inf|nan")

SPEEDS = {"bandwidth": "bandwidth=25e9", "latency": "latency=1e-6"}
"""Bandwidth and latency of a link as error messages show them in examples."""


def build(family: str, arguments: Mapping[str, ArgumentValue]) -> Network:
    """The topology of this family with these arguments.

    Names may end in their unit: `bandwidth_bytes_per_second` is `bandwidth`,
    `latency_seconds` is `latency`.  A list may be a word such as `4x4` (`families/number_lists.py`).

    >>> build("star", {"hosts": 3, "bandwidth_bytes_per_second": 25e6, "latency_seconds": 1e-5}).link_count
    6

    Raises
    ------
    InputError : an unknown family; an argument that is unknown, missing or of the wrong type or size
    """
    if not isinstance(family, str):
        raise InputError(f"topology family {family!r}: accepted is a name, such as {next(iter(FAMILIES))}")
    if family not in FAMILIES:
        raise _unknown_family("topology family", family)
    builder = FAMILIES[family]
    accepted = signature(builder).parameters
    bare = _without_units(family, arguments)
    if unknown := [name for name in bare if name not in accepted]:
        hint = nearest_hint(unknown[0], accepted)
        raise InputError(
            f"topology {family}: {', '.join(unknown)} is unknown; it takes {_accepted_names(builder)}{hint}"
        )
    if missing := [p.name for p in accepted.values() if p.default is Parameter.empty and p.name not in bare]:
        example = (
            f", as in {','.join(SPEEDS[name] for name in missing)} (B/s, s)" if set(missing) <= set(SPEEDS) else ""
        )
        raise InputError(f"topology {family} lacks {', '.join(missing)}; it takes {_accepted_names(builder)}{example}")
    return builder(**{name: _typed_argument(family, accepted[name], value) for name, value in bare.items()})


@dataclass(frozen=True, slots=True)
class FamilyArguments:
    """Names of the arguments that a family of topologies takes.

    Parameters
    ----------
    needed, optional : names of the arguments without and with a default
    described : docstring of the builder, without its examples and errors
    """

    needed: tuple[str, ...]
    optional: tuple[str, ...]
    described: str


def _unknown_family(kind: str, family: str) -> InputError:
    """The error for a word that is neither a family nor a machine; it suggests the nearest, or lists the families."""
    if nearest_names(family, FAMILIES):
        return unknown_name(kind, family, FAMILIES)
    families = [name for name in FAMILIES if name not in MACHINES]
    return unknown_name(kind, family, families, "and the machines of `quadrille machines`")


def families() -> dict[str, FamilyArguments]:
    """The arguments of every family, by the name of the family; named machines are not listed.

    >>> families()["star"].needed
    ('hosts', 'bandwidth', 'latency')
    """
    return {name: _arguments_of(builder) for name, builder in FAMILIES.items() if name not in MACHINES}


def _arguments_of(builder: Callable[..., Network]) -> FamilyArguments:
    parameters = signature(builder).parameters.values()
    needed = tuple(parameter.name for parameter in parameters if parameter.default is Parameter.empty)
    optional = tuple(parameter.name for parameter in parameters if parameter.name not in needed)
    return FamilyArguments(needed, optional, _help_text(getdoc(builder) or ""))


def _help_text(docstring: str) -> str:
    """A docstring as help for a user: without doctests and errors, and `Arguments:` as heading of the parameters."""
    paragraphs = (part for part in docstring.split("\n\n") if not part.startswith((">>>", "Raises\n---")))
    return "\n\n".join(re.sub(r"^Parameters\n-+$", "Arguments:", part, flags=re.MULTILINE) for part in paragraphs)


def with_stand_ins(
    family: str, arguments: Mapping[str, Argument], stand_ins: Mapping[str, Argument]
) -> dict[str, Argument]:
    """The arguments, and those stand-ins that the builder takes and that are not among them, with or without unit.

    >>> with_stand_ins("star", {"hosts": 3, "bandwidth_bytes_per_second": 25e6}, {"bandwidth": 1.0, "latency": 0.0})
    {'latency': 0.0, 'hosts': 3, 'bandwidth_bytes_per_second': 25000000.0}
    """
    accepted, names = signature(FAMILIES[family]).parameters, {name.partition("_")[0] for name in arguments}
    left_out = {word: value for word, value in stand_ins.items() if word in accepted and word not in names}
    return left_out | dict(arguments)


def parse_topology(text: str) -> tuple[str, dict[str, Argument]]:
    """Family and arguments of a topology word, `family:key=value,…`.

    >>> parse_topology("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,bandwidth=25e6")
    ('leaf-spine', {'leaves': 2, 'spines': 1, 'hosts_per_leaf': 2, 'bandwidth': 25000000.0})
    >>> parse_topology("host")
    ('host', {})
    >>> parse_topology("star:hosts=2,bandwidth=400Gbit/s,latency=1.35us")[1]
    {'hosts': 2, 'bandwidth': 50000000000.0, 'latency': 1.35e-06}

    Raises
    ------
    InputError : an unknown family, or a file of another kind; a word without `=`; a key given twice
    """
    family, _, rest = text.partition(":")
    if family not in FAMILIES:
        if len(text) <= LONGEST_NAME and Path(text).exists():
            raise InputError(f"topology {text!r:.80}: a file of a topology is called .json, .xml or .toml")
        raise _unknown_family(f"topology {text!r:.80}: family", family)
    arguments: dict[str, Argument] = {}
    for word in rest.split(",") if rest else ():
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise InputError(
                f"topology {text!r:.80}: {word!r:.40} is not key=value; "
                f"{family} takes {_accepted_names(FAMILIES[family])}"
            )
        if key in arguments:
            raise InputError(f"topology {text!r:.80}: {key} is given twice")
        arguments[key] = _number(key, value)
    return family.lower(), arguments


def _number(key: str, text: str) -> Argument:
    """The value that a text stands for: an integer, a number, a bandwidth or latency with a unit, or a word.

    >>> _number("hosts", "4"), _number("latency", "1.35us"), _number("bandwidth", "25GB/sx100GB/s")
    (4, 1.35e-06, '25000000000.0x100000000000.0')
    """
    if WHOLE.fullmatch(text):
        return int(text)
    if REAL.fullmatch(text):
        return float(text)
    if bare_name(key).endswith(("bandwidth", "latency")):
        words = text.replace(":", "x").split("x")
        if all(map(REAL.fullmatch, words)):
            return text
        parts = [_rate(key, word) for word in words]
        return parts[0] if len(parts) == 1 else as_word(parts)
    return text


def _rate(key: str, text: str) -> float:
    """A bandwidth [B/s] or a latency [s], written with or without a unit."""
    return float(text) if REAL.fullmatch(text) else parse_measure(text, bare_name(key))


def _without_units(family: str, arguments: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """The arguments, by their names without units."""
    bare: dict[str, ArgumentValue] = {}
    for name, value in arguments.items():
        word = bare_name(name)
        if word in bare:
            raise InputError(f"topology {family}: {word} is given twice, with and without its unit")
        bare[word] = value
    return bare


def _accepted_names(builder: Callable[..., Network]) -> str:
    """Names of the arguments of a builder, joined by commas; arguments with a default are in brackets."""
    parameters = signature(builder).parameters.values()
    return ", ".join(p.name if p.default is Parameter.empty else f"[{p.name}]" for p in parameters)


def _typed_argument(family: str, parameter: Parameter, value: ArgumentValue) -> Argument:
    """The value in the type that the builder's signature names; a list becomes a word.

    Raises
    ------
    InputError : a value of another type
    """
    wanted = str(parameter.annotation)
    if isinstance(value, list | tuple) and value and "Sequence[" in wanted and all(map(_is_number, value)):
        return as_word(value)
    number = _is_number(value)
    fits = (
        ("bool" in wanted and isinstance(value, bool))
        or ("str" in wanted and isinstance(value, str))
        or ("float" in wanted and number)
        or ("int" in wanted and number and isinstance(value, int))
    )
    if "Sequence[int]" in wanted:
        accepted = "whole numbers joined by x, such as 4x4, or a list of them"
    elif "Sequence[float]" in wanted:
        accepted = "finite numbers joined by x, such as 25e9x100e9, or a list of them"
    else:
        accepted = "a word" if "str" in wanted else "a finite number" if "float" in wanted else "a whole number"
    if isinstance(value, list | tuple) or not fits:
        raise InputError(f"topology {family}: {parameter.name}={value!r:.60} must be {accepted}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
