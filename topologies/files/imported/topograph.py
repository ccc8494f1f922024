"""Reader of topograph's models: switches by name, and the hosts of blocks or below switches.

    read          switches (`switches` and `nodes` below them), blocks (`switch`, `nodes`)
    ignored       labels, annotations, capacity blocks, types and attributes of nodes
    not there     rates, and which hosts an NVLink domain joins: it is an annotation of a scheduler

Source: NVIDIA, topograph, tests/models, github.com/NVIDIA/topograph.
"""

from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.imported.fabric import Fabric, tree_fabric
from quadrille.topologies.files.imported.hostlist import host_names
from quadrille.topologies.files.imported.slurm_topology import Say

KEYS = ("switches", "nodes", "blocks", "capacity_blocks")


def is_topograph(data: Any) -> bool:
    """Whether a YAML value is a model: a mapping with switches."""
    return isinstance(data, dict) and isinstance(data.get("switches"), dict)


def read_topograph(data: Any, path: str, ignored: Say) -> Fabric:
    """The fabric of a model.

    Parameters
    ----------
    data : value of the YAML text
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : an entry of another form, or as `tree_fabric`
    """
    switches: dict[str, list[str]] = {}
    nodes: dict[str, list[str]] = {}
    for name in data.keys() - {"switches", "blocks"}:
        ignored(str(name))
    for name, entry in data["switches"].items():
        table = entry or {}
        if not isinstance(table, dict):
            raise InputError(f"{path}: switch {name!r:.60} must be a mapping")
        for word in table.keys() - {"switches", "nodes"}:
            ignored(f"{word} of switches")
        switches[name] = _listed(f"{path}: switch {name!r:.60}", table, "switches")
        nodes[name] = _listed(f"{path}: switch {name!r:.60}", table, "nodes")
    blocks = data.get("blocks") or []
    if not isinstance(blocks, list):
        raise InputError(f"{path}: blocks must be a list")
    for place, block in enumerate(blocks):
        here = f"{path}: blocks[{place}]"
        if not isinstance(block, dict) or not isinstance(block.get("switch"), str) or not block["switch"]:
            raise InputError(f"{here} has no switch")
        for word in block.keys() - {"switch", "nodes"}:
            ignored(f"{word} of blocks")
        nodes.setdefault(block["switch"], []).extend(_listed(here, block, "nodes"))
    return tree_fabric(path, switches, {name: names for name, names in nodes.items() if names}, complete=False)


def _listed(here: str, table: dict[str, Any], key: str) -> list[str]:
    """The names of a list, each of which may stand for several."""
    words = table.get(key) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(f"{here}: {key} must be a list of names")
    try:
        return [name for word in words for name in host_names(word)]
    except InputError as error:
        raise InputError(f"{here}: {key}: {error}") from None
