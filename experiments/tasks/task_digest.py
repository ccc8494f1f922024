"""`task_digest`: the content hash of a task, by which a store finds its result again.

A task is a pure function with its arguments. The hash covers the name of the function, all values of the arguments, and
the source of the packages that compute the result. Another machine, another value and changed code give another hash.
The versions of Python and of other people's packages are not part of the hash.
"""

from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import numpy as np

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import ROOT
from quadrille.topologies.machines.machine import Machine

PACKAGES = ("algorithms", "topologies", "simulator", "experiments")
"""The packages whose files decide a prediction: their code and their tables."""
PROSE, COMPILED = ".md", "__pycache__"
"""The suffix and the folder of files that decide no prediction; Numba's compiled kernels are in that folder, too."""
MACHINES_KEPT = 256


def task_digest(function: str, arguments: object) -> bytes:
    """The SHA-256 of a task, 32 bytes.

    >>> task_digest("square", 2) == task_digest("square", 2), task_digest("square", 2) == task_digest("square", 2.5)
    (True, False)

    Parameters
    ----------
    function : name of the function
    arguments : values that decide the result: plain values, dataclasses, structs, arrays and machines

    Raises
    ------
    TypeError : an argument that is no such value
    """
    text = msgspec.json.encode([function, code_digest(), plain_value(arguments)])
    return sha256(text).digest()


def plain_value(value: Any) -> object:
    """A value as lists, texts and numbers, which are equal if the values are equal.

    >>> plain_value({"b": 1, "a": (2.0, None)})
    ['dict', ['a', [2.0, None]], ['b', 1]]
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Machine):
        return _plain_machine(value)
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, Mapping):
        return ["dict", *sorted(([key, plain_value(item)] for key, item in value.items()), key=str)]
    if isinstance(value, Set):
        return ["set", *sorted((plain_value(item) for item in value), key=str)]
    if names := _field_names(type(value)):
        return [type(value).__qualname__, *(plain_value(getattr(value, name)) for name in names)]
    if isinstance(value, np.ndarray | np.generic):
        return ["array", value.dtype.str, list(value.shape), sha256(value.tobytes()).hexdigest()]
    if isinstance(value, FunctionType) and "<" not in value.__qualname__:
        return [value.__module__, value.__qualname__]
    raise TypeError(f"{type(value).__qualname__} is no plain value")


def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass or struct; none for other types."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


_machines: dict[int, tuple[Machine, str]] = {}
"""The hashes of the latest machines, by identity; a machine that is kept here keeps its identity."""


def _plain_machine(machine: Machine) -> str:
    """The hash of the contents of a machine and of its topology file, without its path and provenance."""
    kept = _machines.get(id(machine))
    if kept is None:
        topology = dict(machine.topology)
        if "file" in topology:
            topology["file"] = _file_digest(str(topology["file"]))
        contents = msgspec.structs.replace(machine, provenance=None, topology={"family": "none"})
        text = msgspec.json.encode([schema_files.plain_tables(contents), topology], order="sorted")
        if len(_machines) >= MACHINES_KEPT:
            _machines.clear()
        kept = _machines[id(machine)] = machine, sha256(text).hexdigest()
    return kept[1]


def _file_digest(path: str) -> str:
    return sha256(Path(path).read_bytes()).hexdigest()


@cache
def code_digest(root: Path = ROOT) -> str:
    """The SHA-256 of all files of `PACKAGES`, code and tables, in hexadecimal digits.

    Parameters
    ----------
    root : folder of the packages
    """
    code = sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix != PROSE and COMPILED not in path.parts and path.is_file():
                contents = path.read_bytes()
                code.update(f"{path.relative_to(root)} {len(contents)}\n".encode())
                code.update(contents)
    return code.hexdigest()
