"""`quadrille topology show`: nodes, links, bandwidths and distances of a network, as text, JSON or a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.units import format_bytes_per_second, format_seconds
from quadrille.experiments.drawing.topology_figure import check_drawable, draw_network
from quadrille.experiments.output.destinations import Destinations
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.build import FAMILIES, build, parse_topology
from quadrille.topologies.files import node_link
from quadrille.topologies.files.topology_file import check_written, is_topology_file, load_topology
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_catalogue import MACHINES, is_file_name
from quadrille.topologies.measures.figure import Figure
from quadrille.topologies.measures.measures import links_by_kind, measures
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.routes.routing import Routes
from quadrille.topologies.routes.search import Hops
from quadrille.topologies.structured_paths import ListedPaths

PAIRS = 10_000
"""Largest number of pairs of endpoints whose latency is computed."""
SOURCES = 8
"""Number of sources of these pairs if paths must be searched."""
MOST_VALUES_LISTED = 3
"""Largest number of different bandwidths or latencies of a kind of link that are listed."""


def show_topology(
    topology: str, *, gpus: int | None = None, json: str = "", figure: str = "", command: Sequence[str] = ()
) -> None:
    """Prints the description of a topology, and writes its node-link JSON and its picture if paths are given.

    Parameters
    ----------
    topology : named machine, `family:key=value,…`, topology file (.json, .xml) or machine file (.toml)
    gpus : number of GPUs of a named machine that are modelled
    json : path of the node-link JSON; `-` for stdout, which then has nothing else
    figure : path of the picture
    command : words of the command line, for provenance

    Raises
    ------
    InputError : an unknown topology, a file that cannot be written, or more nodes than can be drawn
    """
    read = {"TOPOLOGY": topology} if is_topology_file(topology) or is_file_name(topology) else {}
    Destinations(json=json, plot=figure).check(read)
    net = find_topology(topology, gpus)
    if json:
        check_written(net, json)
    if figure:
        check_drawable(net)
    if json != schema_files.STDOUT:
        print("\n".join(description_lines(net)))
    if json:
        origin = msgspec.to_builtins(provenance(command or ["quadrille", "topology", "show", topology]))
        schema_files.write_text(json, node_link.dumps(net, origin))
    if figure:
        draw_network(net, figure)


def find_topology(text: str, gpus: int | None = None) -> Network:
    """The network that a TOPOLOGY argument names.

    Parameters
    ----------
    gpus : number of GPUs of a named machine; by default all

    Raises
    ------
    InputError : an unknown family, machine or file, or `gpus` for a topology that is not a named machine

    >>> find_topology("bench-1to1", 100).endpoint_count
    100
    >>> find_topology("star:hosts=3,bandwidth=25e6,latency=1e-5").link_count
    6
    """
    if text in MACHINES:
        return network_of(find_machine(text, gpus=gpus))
    if gpus is not None:
        raise InputError(f"--gpus={gpus} is for named machines, {', '.join(MACHINES)}; not for {text!r}")
    if text.endswith(".toml"):
        return network_of(find_machine(text))
    if is_topology_file(text):
        return load_topology(text)
    if not text:
        raise InputError(f"topology is missing: give a file, or one of {', '.join(FAMILIES)}")
    return build(*parse_topology(text))


# Text


def description_lines(net: Network) -> Iterator[str]:
    """The lines that describe a network: its parts, its measures, and its levels with the links between them."""
    kind, count = net.endpoints
    yield net.name
    yield f"  endpoints        {count} {'GPUs' if kind == 'gpu' else 'hosts'}" + (
        f", {net.per_node} a node" if net.per_node > 1 else ""
    )
    yield "  nodes            " + ", ".join(f"{number} {name}" for name, (_, number) in net.kinds.items())
    pairs = ", ".join(f"{number} {name}" for name, number in links_by_kind(net).items())
    yield f"  links            {net.link_count}: {pairs}"
    if net.failed.any():
        failed = np.flatnonzero(net.failed)
        yield f"  failed           {', '.join(net.link_names(failed[:8]))}" + (
            f" and {len(failed) - 8} more; --json FILE has all" if len(failed) > 8 else ""
        )
    if isinstance(net.paths, ListedPaths):
        yield "  routes           as the file lists them: no diameter or bisection"
    else:
        measured = measures(net)
        yield f"  diameter         {_figure(measured.diameter, f'{measured.diameter.value:g} links')}"
        yield f"  bisection        {_figure(measured.bisection, format_bytes_per_second(measured.bisection.value))}"
        yield f"  oversubscription {_figure(measured.oversubscription, f'{measured.oversubscription.value:.4g}')}"
    yield f"  latency          {_latency(net)}"
    yield ""
    yield from level_lines(net)


def _figure(figure: Figure, value: str) -> str:
    """A measure of the network as text: value, whether the value is a bound, and how it was computed."""
    return f"{value} ({figure.method})" if figure.bound == "exact" else f"{figure.bound} {value} ({figure.method})"


def _latency(net: Network) -> str:
    """The smallest and the largest latency between two endpoints, as text."""
    count = net.endpoint_count
    if count < 2:
        return "a single endpoint"
    if count * (count - 1) <= PAIRS:
        sources, targets = np.divmod(np.arange(count * count), count)
        pairs_text = "all pairs"
    else:
        # If paths must be searched, each source costs a search of the whole network.
        starts = SOURCES if net.paths is None else PAIRS
        draw = np.random.default_rng(0)
        sources = np.concatenate([[0] * (PAIRS // 2), draw.integers(0, count, starts)[np.arange(PAIRS // 2) % starts]])
        targets = np.concatenate([np.arange(PAIRS // 2) % count, draw.integers(0, count, PAIRS // 2)])
        pairs_text = f"{len(sources)} pairs"
    different = sources != targets
    latencies = Routes(net).between(sources[different], targets[different]).latency
    least, most = format_seconds(float(latencies.min())), format_seconds(float(latencies.max()))
    return f"{least} to {most} ({pairs_text}, shortest paths)"


@dataclass(frozen=True, slots=True)
class LinkBundle:
    """All links from one kind of node to another."""

    lower: str
    upper: str
    links: Ints


def node_levels(net: Network) -> list[str]:
    """Kinds of nodes, from the farthest from the endpoints to the endpoints themselves."""
    hops = Hops(net).nearest(net.endpoint_nodes())
    hops = np.where(hops < 0, net.node_count, hops)
    mean = {kind: float(hops[first : first + count].mean()) for kind, (first, count) in net.kinds.items() if count}
    return sorted(mean, key=lambda kind: (-mean[kind], list(net.kinds).index(kind)))


def link_bundles(net: Network) -> Iterator[LinkBundle]:
    """The links between each two kinds of nodes: links upwards, and links within a kind."""
    order = {kind: level for level, kind in enumerate(reversed(node_levels(net)))}
    kinds = list(net.kinds)
    starts = np.array([first for first, _ in net.kinds.values()])
    source_kinds = np.searchsorted(starts, net.sources, side="right") - 1
    target_kinds = np.searchsorted(starts, net.targets, side="right") - 1
    for pair in np.unique(source_kinds * len(kinds) + target_kinds).tolist():
        lower, upper = kinds[pair // len(kinds)], kinds[pair % len(kinds)]
        if order[lower] <= order[upper]:
            yield LinkBundle(lower, upper, np.flatnonzero(source_kinds * len(kinds) + target_kinds == pair))


def level_lines(net: Network) -> Iterator[str]:
    r"""Lines with the levels of nodes, endpoints last, and the links between levels.

    >>> from quadrille.topologies.families.basic import star
    >>> print("\n".join(level_lines(star(3, bandwidth=25e9, latency=1e-6))))
      switch  1
        │       3 from host, each 25 GB/s, 1.00 us
      host    3
    """
    all_bundles = list(link_bundles(net))
    width = max(map(len, net.kinds))
    order = node_levels(net)
    for level, kind in enumerate(order):
        yield f"  {kind:{width}}  {net.kinds[kind][1]}"
        bar = "│" if level + 1 < len(order) else " "
        inner_bundles = [bundle for bundle in all_bundles if bundle.lower == bundle.upper == kind]
        for bundle in inner_bundles:
            yield f"    {bar} {'':{width}}{len(bundle.links) // 2} among {kind}, {_link_text(net, bundle)}"
        for bundle in (join for join in all_bundles if join.upper == kind != join.lower):
            yield f"    {bar} {'':{width}}{len(bundle.links)} from {bundle.lower}, {_link_text(net, bundle)}"


def _link_text(net: Network, bundle: LinkBundle) -> str:
    """The bandwidth and latency of a bundle of links, as text."""
    rates = _values_text([format_bytes_per_second(value) for value in np.unique(net.bandwidths[bundle.links]).tolist()])
    return f"each {rates}, {_values_text([format_seconds(v) for v in np.unique(net.latencies[bundle.links]).tolist()])}"


def _values_text(values: Sequence[str]) -> str:
    kept = list(dict.fromkeys(values))
    return " or ".join(kept) if len(kept) <= MOST_VALUES_LISTED else f"{kept[0]} to {kept[-1]}"
