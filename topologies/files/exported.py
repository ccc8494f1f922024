"""Writers of networks for other programs: GraphML and GEXF by networkx, and SimGrid's platform files.

    GraphML, GEXF   nodes with kind, label and cores; an edge for each direction of a cable, with bandwidth [B/s],
                    latency [s] and number `link`; the graph's family, arguments, per_node and node
    SimGrid         hosts, a link for each direction of a cable, and the route of each pair of hosts

A GraphML file is read again to an equal network.  SimGrid has no GPUs and no several paths: every endpoint is a host,
and the routes are those of the rule `shortest`.

Source: graphml.graphdrawing.org; gexf.net; SimGrid's documentation, "Describing Virtual Platforms: XML Reference".
"""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from xml.sax.saxutils import quoteattr

import networkx as nx
import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes, parse_routing

FORMATS = (".graphml", ".gexf", ".xml")
MOST_HOSTS = 256
"""Largest number of hosts of a SimGrid file, which lists a route for each pair of hosts."""
SPEED = "1Gf"
"""Speed of every host: SimGrid needs one, and a network has none."""


def exported_text(net: Network, path: str) -> str:
    """The network as text in the format that the end of `path` names.

    Raises
    ------
    InputError : another ending, or too many hosts for SimGrid
    """
    suffix = Path(path).suffix
    if suffix == ".graphml":
        return "\n".join(nx.generate_graphml(_graph(net))) + "\n"
    if suffix == ".gexf":
        buffer = BytesIO()
        nx.write_gexf(_graph(net), buffer)
        return buffer.getvalue().decode() + "\n"
    if suffix == ".xml":
        return "\n".join(_simgrid_lines(net, path)) + "\n"
    raise InputError(f"{path}: names end in .graphml, .gexf or .xml (SimGrid); topology show --json writes our own")


def _graph(net: Network) -> "nx.MultiDiGraph":
    """The network as a networkx graph whose attributes are words and numbers."""
    graph = net.graph()
    graph.graph = {
        "name": net.name,
        "family": net.family,
        "arguments": json.dumps(dict(net.arguments)),
        "per_node": net.per_node,
        **({"node": net.node_kind} if net.node_kind else {}),
    }
    for label, name in net.labels.items():
        graph.nodes[name]["label"] = label
    for link, ends in enumerate(_ends(net)):
        graph.edges[ends]["link"] = link
        for word, links in (("failed", net.failed), ("unshared", net.unshared)):
            if links is not None and links[link]:
                graph.edges[ends][word] = True
    return graph


def _ends(net: Network) -> Iterator[tuple[str, str, int]]:
    """Yields the two ends of each link, and its number among the links with these ends."""
    counts: dict[tuple[int, int], int] = {}
    for source, target in zip(net.sources.tolist(), net.targets.tolist(), strict=True):
        key = counts.get((source, target), 0)
        counts[source, target] = key + 1
        yield net.node_name(source), net.node_name(target), key


def _simgrid_lines(net: Network, path: str) -> Iterator[str]:
    """Yields the lines of a platform file."""
    count = net.endpoint_count
    if count > MOST_HOSTS:
        raise InputError(
            f"{path}: {net.name} has {count} endpoints; SimGrid lists a route for each pair, up to {MOST_HOSTS}"
        )
    nodes = net.endpoint_nodes().tolist()
    hosts = list(net.host_names) or [net.node_name(node) for node in nodes]
    names = net.link_names(np.arange(net.link_count))
    cores = net.cores.tolist() if net.endpoints[0] == "host" and len(net.cores) == count else [1] * count
    yield '<?xml version="1.0"?>'
    yield '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">'
    yield '<platform version="4.1">'
    yield '  <zone id="network" routing="Full">'
    for host, core in zip(hosts, cores, strict=True):
        yield f'    <host id={quoteattr(host)} speed="{SPEED}" core="{core}"/>'
    for link in np.flatnonzero(net.bandwidths > 0).tolist():
        policy = "FATPIPE" if net.unshared is not None and net.unshared[link] else "SHARED"
        yield (
            f'    <link id={quoteattr(names[link])} bandwidth="{float(net.bandwidths[link])!r}Bps" '
            f'latency="{float(net.latencies[link])!r}s" sharing_policy="{policy}"/>'
        )
    for source, target, links in _routes(net):
        hops = "".join(f"<link_ctn id={quoteattr(names[link])}/>" for link in links)
        ends = f"src={quoteattr(hosts[source])} dst={quoteattr(hosts[target])}"
        yield f'    <route {ends} symmetrical="NO">{hops}</route>'
    yield "  </zone>"
    yield "</platform>"


def _routes(net: Network) -> Iterator[tuple[int, int, list[int]]]:
    """Yields the links of the shortest path of each pair of endpoints."""
    count = net.endpoint_count
    sources, targets = np.divmod(np.arange(count * count), count)
    apart = sources != targets
    sources, targets = sources[apart], targets[apart]
    paths = Routes(net, parse_routing("shortest")).between(sources, targets)
    for flow, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        first, last = paths.offsets[flow : flow + 2].tolist()
        yield source, target, paths.links[first:last].tolist()
