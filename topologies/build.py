"""Topologies by the name of their family, as machine files and the command line give them."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from math import isfinite

import networkx as nx

from algorithms.errors import InputError
from topologies.cluster import gpu_cluster
from topologies.fat_tree import fat_tree
from topologies.graph import Argument
from topologies.host import host
from topologies.leaf_spine import leaf_spine
from topologies.named import MACHINES
from topologies.star import star

FAMILIES: dict[str, Callable[..., nx.MultiDiGraph]] = {
    "host": host,
    "star": star,
    "leaf-spine": leaf_spine,
    "fat-tree": fat_tree,
    "gpu-cluster": gpu_cluster,
    **{name: machine.topology for name, machine in MACHINES.items()},
}

# Files say the unit in the name; the builders' arguments are the bare words.
UNITS = ("_bytes_per_second", "_seconds")


def build(family: str, arguments: Mapping[str, Argument]) -> nx.MultiDiGraph:
    """The topology that the builder of this family makes from these arguments.

    Names may say their unit: `bandwidth_bytes_per_second` is `bandwidth`,
    `latency_seconds` is `latency`.

    >>> build("star", {"hosts": 3, "bandwidth_bytes_per_second": 25e6, "latency_seconds": 1e-5}).number_of_edges()
    6

    Raises
    ------
    InputError : an unknown family; an argument that is unknown, missing or of the wrong type or size
    """
    if family not in FAMILIES:
        raise InputError(f"topology family {family!r} is unknown; there are {', '.join(FAMILIES)}")
    builder = FAMILIES[family]
    accepted = signature(builder).parameters
    given = _bare(family, arguments)
    if unknown := [name for name in given if name not in accepted]:
        raise InputError(f"topology {family}: {', '.join(unknown)} is unknown; it takes {_takes(builder)}")
    if missing := [p.name for p in accepted.values() if p.default is Parameter.empty and p.name not in given]:
        raise InputError(f"topology {family} lacks {', '.join(missing)}; it takes {_takes(builder)}")
    return builder(**{name: _checked(family, accepted[name], value) for name, value in given.items()})


def parse_topology(text: str) -> tuple[str, dict[str, Argument]]:
    """Family and arguments of `family:key=value,…`.

    >>> parse_topology("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,bandwidth=25e6")
    ('leaf-spine', {'leaves': 2, 'spines': 1, 'hosts_per_leaf': 2, 'bandwidth': 25000000.0})
    >>> parse_topology("host")
    ('host', {})

    Raises
    ------
    InputError : an unknown family; a word without `=`; a key given twice
    """
    family, _, rest = text.partition(":")
    if family not in FAMILIES:
        raise InputError(f"topology {text!r}: family {family!r} is unknown; there are {', '.join(FAMILIES)}")
    arguments: dict[str, Argument] = {}
    for word in rest.split(",") if rest else ():
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise InputError(f"topology {text!r}: {word!r} is not key=value; {family} takes {_takes(FAMILIES[family])}")
        if key in arguments:
            raise InputError(f"topology {text!r}: {key} is given twice")
        arguments[key] = _number(value)
    return family, arguments


def _number(text: str) -> Argument:
    """The text as a whole number, else as a number, else as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _bare(family: str, arguments: Mapping[str, Argument]) -> dict[str, Argument]:
    """The arguments by their names without units."""
    bare: dict[str, Argument] = {}
    for name, value in arguments.items():
        word = name
        for unit in UNITS:
            word = word.removesuffix(unit)
        if word in bare:
            raise InputError(f"topology {family}: {word} is given twice, with and without its unit")
        bare[word] = value
    return bare


def _takes(builder: Callable[..., nx.MultiDiGraph]) -> str:
    """The arguments of a builder in words, those with a default in brackets."""
    parameters = signature(builder).parameters.values()
    return ", ".join(p.name if p.default is Parameter.empty else f"[{p.name}]" for p in parameters)


def _checked(family: str, parameter: Parameter, value: Argument) -> Argument:
    """The value as the builder's signature wants it.

    Raises
    ------
    InputError : a value of another type
    """
    wanted = str(parameter.annotation)
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if "str" in wanted:
        accepted, fits = "a word", isinstance(value, str)
    elif "int" in wanted:
        accepted, fits = "a whole number", number and isinstance(value, int)
    else:
        accepted, fits = "a finite number", number
    if not fits:
        raise InputError(f"topology {family}: {parameter.name}={value!r} must be {accepted}")
    return value
