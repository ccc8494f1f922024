"""`load_topology` reads a topology from a file: node-link JSON (`node_link.py`) or SimGrid's XML (`simgrid.py`)."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import read_text
from quadrille.topologies.files import node_link
from quadrille.topologies.network import Network
from quadrille.topologies.routes.search import Hops
from quadrille.topologies.structured_paths import ListedPaths

MOST_BYTES = 1 << 30
MAX_LISTED_ENDPOINTS = 1024
"""Largest number of endpoints between which a JSON file lists the routes."""


def load_topology(path: str | Path) -> Network:
    """The topology in a file: SimGrid's XML if its name ends in `.xml`, else node-link JSON.

    Raises
    ------
    InputError : a file that cannot be read or is not a topology, or endpoints that do not all reach each other
    """
    text = _text(path)
    if str(path).endswith(".xml"):
        from quadrille.topologies.files import simgrid  # which brings networkx

        return simgrid.parse(text, str(path))
    net = node_link.parse(text, str(path))
    if net.paths is not None:
        return net
    check_connected(net, str(path))
    built = network_of_family(net)
    return net if built is None else replace(net, paths=built.paths)


MOST_KEPT = 4


def kept_topology(path: str) -> Network:
    """The topology in a file, read once as long as the file does not change."""
    try:
        stamp = Path(path).stat()
    except OSError:
        return load_topology(path)
    return _kept_topology(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(MOST_KEPT)
def _kept_topology(path: str, _changed: int, _size: int) -> Network:
    return load_topology(path)


def default_routing(path: str) -> str:
    """The default routing of a topology file: over all shortest paths, unless the file or its family has the paths.

    NCCL lays its channels, and networks their flows (ECMP), over equal paths; a single one would leave the others idle.
    """
    return "spray" if kept_topology(path).paths is None else "shortest"


def _text(path: str | Path) -> str:
    try:
        return read_text(path, MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def is_topology_file(text: str) -> bool:
    """Whether a TOPOLOGY argument names a file.

    >>> [is_topology_file(text) for text in ("net.json", "./net", "star:bandwidth=10GB/s", "perlmutter")]
    [True, True, False, False]
    """
    return text.endswith((".json", ".xml")) or "/" in text.partition("=")[0]


def network_of_family(net: Network) -> Network | None:
    """The network that the family of `net` builds, if it has exactly the nodes and links of `net`; else None."""
    from quadrille.topologies.build import FAMILIES, build

    if net.family not in FAMILIES:
        return None
    try:
        built = build(net.family, net.arguments)
    except InputError:
        return None
    same = (
        net.indices is None
        and dict(net.kinds) == dict(built.kinds)
        and np.array_equal(net.sources, built.sources)
        and np.array_equal(net.targets, built.targets)
    )
    return built if same else None


def check_written(net: Network, path: str, *, most_endpoints: int = MAX_LISTED_ENDPOINTS) -> None:
    """Checks that a network can be written as node-link JSON.

    Parameters
    ----------
    most_endpoints : largest number of endpoints between which routes are listed

    Raises
    ------
    InputError : a network with listed routes between more endpoints
    """
    if isinstance(net.paths, ListedPaths) and net.endpoint_count > most_endpoints:
        raise InputError(
            f"{path}: {net.name} has routes of its own between {net.endpoint_count} endpoints; "
            f"JSON lists them one by one, between at most {most_endpoints}"
        )


def check_connected(net: Network, path: str) -> None:
    """Checks that every endpoint and NIC has a link and that all endpoints reach each other.

    Raises
    ------
    InputError : an endpoint or NIC without a link, or an endpoint that does not reach all others; the message names it
    """
    first, nics = net.kinds.get("nic", (0, 0))
    loose = np.setdiff1d(np.arange(first, first + nics), net.sources)
    if len(loose):
        raise InputError(f"{path}: {net.node_name(int(loose[0]))} has no link to a GPU or a switch")
    nodes, kind = net.endpoint_nodes(), net.endpoints[0]
    linked = np.isin(nodes, net.sources) & np.isin(nodes, net.targets)
    if len(nodes) > 1 and not linked.all():
        raise InputError(f"{path}: {kind}:{int(np.argmin(linked))} has no link to the others, or none from them")
    for against, verb in ((False, "reaches"), (True, "is reached from")):
        reached = Hops(net, against=against).nearest(int(nodes[0]))[nodes] >= 0
        if not reached.all():
            lost = int(np.argmin(reached))
            raise InputError(
                f"{path}: the network is in pieces: {kind}:0 {verb} {int(reached.sum())} of {len(reached)} endpoints, "
                f"not {kind}:{lost}"
            )
