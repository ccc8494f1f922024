"""Readers of Slurm's `topology.conf` and `topology.yaml`: trees of switches, and blocks.

    read          switches, the switches and nodes below them; blocks and their nodes
    ignored       LinkSpeed (Slurm does not use it, and it has no unit), BlockSizes, all topologies but the default
    not there     rates, and what joins blocks: one switch joins them, and blocks are switches

Source: SchedMD, topology.conf(5) and topology.yaml(5), slurm.schedmd.com.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.imported.fabric import Fabric, tree_fabric
from quadrille.topologies.files.imported.hostlist import host_names

WORD = re.compile(r"([A-Za-z]+)=(\S+)\s*")
ABOVE_BLOCKS = "between-blocks"
"""Name of the switch that joins the blocks."""
Say = Callable[[str], None]


def is_slurm_conf(text: str) -> bool:
    """Whether a text has a line of `topology.conf`."""
    return re.search(r"^\s*(SwitchName|BlockName)\s*=", text, re.MULTILINE | re.IGNORECASE) is not None


def read_slurm_conf(text: str, path: str, ignored: Say) -> Fabric:
    """The fabric of a `topology.conf`.

    Parameters
    ----------
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : a line that is not of this format, a switch defined twice, or as `tree_fabric`
    """
    switches: dict[str, list[str]] = {}
    nodes: dict[str, list[str]] = {}
    blocks: dict[str, list[str]] = {}
    for number, words in _conf_lines(text, path):
        here = f"{path}, line {number}"
        unknown = words.keys() - {"switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes"}
        if unknown:
            raise InputError(f"{here}: {min(unknown)!r:.40} is unknown; accepted are SwitchName, Switches, Nodes, …")
        for name in {"linkspeed", "blocksizes"} & words.keys():
            ignored({"linkspeed": "LinkSpeed", "blocksizes": "BlockSizes"}[name])
        if "switchname" in words:
            name = _new_name(here, words["switchname"], {**switches, **nodes})
            switches[name] = _names(here, words.get("switches", ""))
            nodes[name] = _names(here, words.get("nodes", ""))
        elif "blockname" in words:
            blocks[_new_name(here, words["blockname"], blocks)] = _names(here, words.get("nodes", ""))
        elif words.keys() - {"blocksizes"}:
            raise InputError(f"{here}: has neither SwitchName nor BlockName")
    return _either(path, switches, nodes, blocks)


def _conf_lines(text: str, path: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Number of each line with content, and its words `key=value` by the key in lower case."""
    joined = text.replace("\\\n", " \x00")
    number = 1
    for line in joined.split("\n"):
        here, content = number, line.replace("\x00", "").partition("#")[0].strip()
        number += 1 + line.count("\x00")
        if not content:
            continue
        words: dict[str, str] = {}
        place = 0
        while place < len(content):
            match = WORD.match(content, place)
            if not match:
                raise InputError(f"{path}, line {here}: {content[place:]!r:.60} is not key=value of a topology.conf")
            words[match[1].lower()] = match[2]
            place = match.end()
        yield here, words


def _new_name(here: str, name: str, others: dict[str, list[str]]) -> str:
    if name in others:
        raise InputError(f"{here}: {name!r:.60} is there twice")
    return name


def _names(here: str, text: str) -> list[str]:
    try:
        return host_names(text) if text else []
    except InputError as error:
        raise InputError(f"{here}: {error}") from None


def _either(
    path: str, switches: dict[str, list[str]], nodes: dict[str, list[str]], blocks: dict[str, list[str]]
) -> Fabric:
    if switches and blocks:
        raise InputError(f"{path}: has switches and blocks; one of both is accepted")
    if blocks:
        return tree_fabric(path, {ABOVE_BLOCKS: list(blocks)}, blocks)
    if not switches:
        raise InputError(f"{path}: has no SwitchName and no BlockName")
    return tree_fabric(path, switches, {name: names for name, names in nodes.items() if names})


def is_slurm_yaml(data: Any) -> bool:
    """Whether a YAML value is a `topology.yaml`: a list of topologies."""
    return (
        isinstance(data, list) and bool(data) and all(isinstance(entry, dict) and "topology" in entry for entry in data)
    )


def read_slurm_yaml(data: Any, path: str, ignored: Say) -> Fabric:
    """The fabric of the default topology of a `topology.yaml`, or of the first.

    Parameters
    ----------
    data : value of the YAML text
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : a topology of another kind, an entry that is missing, or as `tree_fabric`
    """
    chosen = next((entry for entry in data if str(entry.get("cluster_default")).lower() == "true"), data[0])
    for entry in data:
        if entry is not chosen:
            ignored(f"topology {entry.get('topology')!r:.40}")
    here = f"{path}: topology {chosen.get('topology')!r:.40}"
    tree, block = chosen.get("tree"), chosen.get("block")
    if isinstance(tree, dict):
        rows = _rows(here, tree, "switches", "switch")
        switches = {name: _names(f"{here}, switch {name!r:.40}", _text(row, "children")) for name, row in rows.items()}
        nodes = {name: _names(f"{here}, switch {name!r:.40}", _text(row, "nodes")) for name, row in rows.items()}
        return _either(here, switches, nodes, {})
    if isinstance(block, dict):
        if "block_sizes" in block:
            ignored("block_sizes")
        rows = _rows(here, block, "blocks", "block")
        return _either(
            here, {}, {}, {name: _names(f"{here}, {name!r:.40}", _text(row, "nodes")) for name, row in rows.items()}
        )
    raise InputError(f"{here}: has no tree and no block; a flat topology has no switches")


def _rows(here: str, table: dict[str, Any], key: str, name_key: str) -> dict[str, dict[str, Any]]:
    """The rows of a list by their names."""
    rows = table.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{here}: {key} must be a list of mappings")
    named: dict[str, dict[str, Any]] = {}
    for place, row in enumerate(rows):
        name = row.get(name_key)
        if not isinstance(name, str) or not name or name in named:
            raise InputError(f"{here}: {key}[{place}] has {name_key}={name!r:.40}; a name of its own is needed")
        named[name] = row
    return named


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key, "")
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
