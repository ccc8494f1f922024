"""Topologies from files: node-link JSON (`node_link.py`) and SimGrid's platform XML (`simgrid_xml.py`)."""

from pathlib import Path

import numpy as np

from algorithms.errors import InputError
from topologies.files import node_link, simgrid_xml
from topologies.network import Network
from topologies.routes.search import Hops

MOST_BYTES = 1 << 30


def load_topology(path: str | Path) -> Network:
    """The topology in a file: SimGrid's XML where its name ends in `.xml`, else node-link JSON.

    Raises
    ------
    InputError : a file that cannot be read, or is not a topology whose places all reach each other
    """
    text = _text(path)
    if str(path).endswith(".xml"):
        return simgrid_xml.parse(text, str(path))
    net = node_link.parse(text, str(path))
    check_connected(net, str(path))
    return net


def _text(path: str | Path) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"{path}: is longer than {MOST_BYTES} bytes, and no topology that can be built is")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text: {error}") from None
    except ValueError as error:
        raise InputError(f"{path!r}: cannot be the name of a file: {error}") from None


def is_topology_file(text: str) -> bool:
    """Whether a TOPOLOGY argument names a file.

    >>> [is_topology_file(text) for text in ("net.json", "net.xml", "./net", "star:hosts=4", "perlmutter")]
    [True, True, True, False, False]
    """
    return text.endswith((".json", ".xml")) or "/" in text


def check_connected(net: Network, path: str) -> None:
    """Refuses a network in which a place has no link, or does not reach all others.

    Raises
    ------
    InputError : naming the place
    """
    nodes, kind = net.place_nodes(), net.places[0]
    linked = np.isin(nodes, net.sources) & np.isin(nodes, net.targets)
    if len(nodes) > 1 and not linked.all():
        raise InputError(f"{path}: {kind}:{int(np.argmin(linked))} has no link to the others, or none from them")
    for against, way in ((False, "reaches"), (True, "is reached from")):
        found = Hops(net, against=against).nearest(int(nodes[0]))[nodes] >= 0
        if not found.all():
            lost = int(np.argmin(found))
            raise InputError(
                f"{path}: the network is in pieces: {kind}:0 {way} {int(found.sum())} of {len(found)} places, "
                f"not {kind}:{lost}"
            )
