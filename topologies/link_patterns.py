"""Links by pattern: `nic:*>leaf:3` is every link from a NIC to leaf:3.

The wildcards are those of a shell: `*` any characters, `?` one character, `[0-3]`
one of several.  A pattern with `>` means one direction, a pattern with `-` both.
Parallel links all match, unless the pattern has a number after `#`.  The links of a
SimGrid platform have the names of its file, to which a pattern without `>` and `-` applies.
The nodes of an imported fabric also have the names of its file: `leaf-04>*`.
"""

import re
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError, nearest_names
from quadrille.topologies.network import Network

WILDCARDS = frozenset("*?[")
BOTH_DIRECTIONS = re.compile(r"-(?![^\[]*\])")
"""A hyphen outside of brackets."""
MAX_SUGGESTED_FROM = 10_000
"""Links among which the nearest names are looked for."""


def matching_links(net: Network, name: str) -> list[int]:
    """Numbers of the links that a name or a pattern means, each once.

    >>> from quadrille.topologies.families.basic import star
    >>> net = star(3, bandwidth=1e9, latency=1e-6)
    >>> matching_links(net, "host:*>switch:0"), matching_links(net, "host:[01]-switch:0")
    ([0, 2, 4], [0, 2, 1, 3])

    Raises
    ------
    InputError : no link with this name, or none that matches; the message names links that are spelled alike
    """
    if not WILDCARDS & set(name):
        return net.link_numbers(name)
    if of_file := [link for cable, links in net.cable_names.items() if fnmatchcase(cable, name) for link in links]:
        return list(dict.fromkeys(of_file))
    ends, mark, index = name.partition("#")
    source, arrow, target = ends.partition(">")
    if not arrow:
        parts = _both_ends(net, ends)
        if len(parts) < 2:
            raise InputError(f"link {name!r:.80}: write leaf:*>spine:1, or leaf:*-spine:1 for both directions")
        source, target = parts
    directions = [(source, target)] if arrow else [(source, target), (target, source)]
    links = [link for tail, head in directions for link in _between(net, tail, head)]
    if mark:
        links = [link for link in links if fnmatchcase(net.link_names([link])[0].partition("#")[2] or "0", index)]
    if not links:
        raise InputError(f"link {name!r:.80} matches no link of topology {net.name!r:.120}{_hint(net, source, target)}")
    return list(dict.fromkeys(links))


def _both_ends(net: Network, ends: str) -> list[str]:
    """The two parts of a pattern `a-b`; the hyphen is the first for which both parts match nodes."""
    parts = BOTH_DIRECTIONS.split(ends)
    if net.labels:
        for place in range(1, len(parts)):
            halves = ["-".join(parts[:place]), "-".join(parts[place:])]
            if all(_matching(net, half).any() for half in halves):
                return halves
    return BOTH_DIRECTIONS.split(ends, maxsplit=1)


def _between(net: Network, source: str, target: str) -> list[int]:
    """Links from nodes that match one pattern to nodes that match another."""
    links: list[int] = np.flatnonzero(
        _matching(net, source)[net.sources] & _matching(net, target)[net.targets]
    ).tolist()
    return links


def _matching(net: Network, pattern: str) -> NDArray[np.bool_]:
    """Whether the name or the label of each node matches a pattern [nodes]."""
    matches = (fnmatchcase(net.node_name(node), pattern) for node in range(net.node_count))
    matching = np.fromiter(matches, dtype=bool, count=net.node_count)
    matching[[net.node_number(name) for label, name in net.labels.items() if fnmatchcase(label, pattern)]] = True
    return matching


def _hint(net: Network, source: str, target: str) -> str:
    """Names of links that are spelled like the pattern."""
    names = net.link_names(np.arange(min(net.link_count, MAX_SUGGESTED_FROM)))
    wanted = re.sub(r"\[.*?\]|[*?]", "0", f"{source}>{target}")
    near = nearest_names(wanted, names, 3) or names[:3]
    return f"; there is for example {', '.join(near)}" if near else ""
