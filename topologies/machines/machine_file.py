"""Reading and writing machine files, and `like`: a table that takes its keys from another machine.

    [device]
    like = "h100-superpod"
    memory_bytes = 94e9

The keys beside `like` override the keys of that machine.  Tables within the table,
such as the peaks, are merged key by key.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.topologies.machines.machine import OLDER, SCHEMA, Machine

TABLES = ("topology", "device", "host", "network")
"""Tables that may have `like`."""


def load_machine(path: str | Path, graph_routing: Callable[[str], str] | None = None) -> Machine:
    """The machine in the file at `path`.

    Parameters
    ----------
    graph_routing : routing rule for the graph in a topology file, where the machine file names none; None for the
        default of the key

    Raises
    ------
    InputError : a file without a valid machine; the message names the first fault
    """
    return _loaded(path, (), graph_routing)


def save_machine(machine: Machine, path: str | Path) -> None:
    """Writes `machine` as TOML, complete or not at all; `-` is stdout."""
    schema_files.write_toml(path, machine, SCHEMA)


def _loaded(path: str | Path, readers: tuple[Path, ...], graph_routing: Callable[[str], str] | None = None) -> Machine:
    """The machine in a file that the files `readers` refer to, each to the next."""
    return schema_files.read(
        path,
        Machine,
        SCHEMA,
        OLDER,
        expand=lambda raw: _with_routing(with_likes(raw, path, readers), path, graph_routing),
    )


def _with_routing(raw: dict[str, Any], path: str | Path, graph_routing: Callable[[str], str] | None) -> dict[str, Any]:
    """The content of a machine file with the routing of its graph, if it has a graph and names no routing itself."""
    topology = raw.get("topology")
    if graph_routing is None or "routing" in raw or not isinstance(topology, dict) or "family" in topology:
        return raw
    file = topology.get("file")
    return {**raw, "routing": graph_routing(str(Path(path).parent / file))} if isinstance(file, str) else raw


def with_likes(raw: dict[str, Any], path: str | Path, readers: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The content of a machine file in which each `like` is replaced by the keys that it stands for.

    `readers` are the files through which this file is being read.

    >>> raw = with_likes({"device": {"like": "h100-superpod", "memory_bytes": 94e9}}, "my.toml")
    >>> raw["device"]["memory_bytes"], raw["device"]["peak_flops_per_second"]["float64"]
    (94000000000.0, 66900000000000.0)

    Raises
    ------
    InputError : an unknown machine, a machine without this table, or files that refer to each other in a circle
    """
    expanded = dict(raw)
    for table in TABLES:
        keys = raw.get(table)
        if isinstance(keys, dict) and "like" in keys:
            own = {key: value for key, value in keys.items() if key != "like"}
            expanded[table] = _merged(_table(table, keys["like"], Path(path), readers), own)
    return expanded


def _table(table: str, like: object, path: Path, readers: tuple[Path, ...]) -> dict[str, Any]:
    """A table of the machine that `like` names."""
    where = f"machine file {path}: {table}.like"
    if not isinstance(like, str):
        raise InputError(f"{where} = {like!r:.60}: the name of a machine or of a machine file is needed")
    try:
        original = _machine(like, path, readers)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    keys: dict[str, Any] | None = schema_files.plain_tables(original)[table]
    if keys is None:
        raise InputError(f"{where}: machine {like!r:.60} has no {table}")
    return keys


def _machine(like: str, path: Path, readers: tuple[Path, ...]) -> Machine:
    from quadrille.topologies.machines.machine_catalogue import (  # most files are like no machine
        as_machine,
        is_file_name,
        machine,
    )

    if not is_file_name(like):
        return as_machine(machine(like))
    readers = (*readers, path.resolve())
    base = path.parent / like
    if base.resolve() in readers:
        raise InputError("the file refers to itself")
    return _loaded(base, readers)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `base`, overridden by those of `own`; tables are merged key by key."""
    merged = dict(base)
    for key, value in own.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
