"""`quadrille topology show`: nodes, links, bandwidths and distances of a network, as text, JSON or a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import files
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.units import format_bytes_per_second, format_seconds
from quadrille.experiments.network.topology_figure import check_drawable, draw_network
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
SPELLED = 3
"""Largest number of different bandwidths or latencies of a kind of link that are listed."""


def show(
    topology: str, *, gpus: int | None = None, json: str = "", figure: str = "", command: Sequence[str] = ()
) -> None:
    """Prints the description of a topology, and writes it if asked.

    Parameters
    ----------
    topology : named machine, `family:key=value,…`, topology file (.json, .xml) or machine file (.toml)
    gpus : number of GPUs of a named machine that are modelled
    json : path of the node-link JSON; `-` for stdout, which then has nothing else
    figure : path of the picture

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
    if json != files.STDOUT:
        print("\n".join(described(net)))
    if json:
        origin = msgspec.to_builtins(provenance(command or ["quadrille", "topology", "show", topology]))
        files.write_text(json, node_link.dumps(net, origin))
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


def described(net: Network) -> Iterator[str]:
    """Lines that describe a network: its parts, its figures, and a sketch by levels."""
    kind, count = net.endpoints
    yield net.name
    yield f"  places           {count} {'GPUs' if kind == 'gpu' else 'hosts'}" + (
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
    yield from sketch(net)


def _figure(figure: Figure, value: str) -> str:
    """A figure as text: value, whether it is a bound, and how it was computed."""
    return f"{value} ({figure.method})" if figure.bound == "exact" else f"{figure.bound} {value} ({figure.method})"


def _latency(net: Network) -> str:
    """Smallest and largest latency between two endpoints, as text."""
    count = net.endpoint_count
    if count < 2:
        return "a single place"
    if count * (count - 1) <= PAIRS:
        sources, targets = np.divmod(np.arange(count * count), count)
        said = "all pairs"
    else:
        # Where ways are searched, a source costs a search of the whole network.
        starts = SOURCES if net.paths is None else PAIRS
        draw = np.random.default_rng(0)
        sources = np.concatenate([[0] * (PAIRS // 2), draw.integers(0, count, starts)[np.arange(PAIRS // 2) % starts]])
        targets = np.concatenate([np.arange(PAIRS // 2) % count, draw.integers(0, count, PAIRS // 2)])
        said = f"{len(sources)} pairs"
    different = sources != targets
    latencies = Routes(net).between(sources[different], targets[different]).latency
    return (
        f"{format_seconds(float(latencies.min()))} to {format_seconds(float(latencies.max()))} ({said}, shortest ways)"
    )


@dataclass(frozen=True, slots=True)
class Bundle:
    """All links from one kind of node to another."""

    lower: str
    upper: str
    links: Ints


def levels(net: Network) -> list[str]:
    """Kinds of nodes, from the farthest from the endpoints to the endpoints themselves."""
    hops = Hops(net).nearest(net.endpoint_nodes())
    hops = np.where(hops < 0, net.node_count, hops)
    mean = {kind: float(hops[first : first + count].mean()) for kind, (first, count) in net.kinds.items() if count}
    return sorted(mean, key=lambda kind: (-mean[kind], list(net.kinds).index(kind)))


def bundles(net: Network) -> Iterator[Bundle]:
    """The links between each two kinds of nodes: links upwards, and links within a kind."""
    order = {kind: place for place, kind in enumerate(reversed(levels(net)))}
    kinds = list(net.kinds)
    starts = np.array([first for first, _ in net.kinds.values()])
    source_kinds = np.searchsorted(starts, net.sources, side="right") - 1
    target_kinds = np.searchsorted(starts, net.targets, side="right") - 1
    for pair in np.unique(source_kinds * len(kinds) + target_kinds).tolist():
        lower, upper = kinds[pair // len(kinds)], kinds[pair % len(kinds)]
        if order[lower] <= order[upper]:
            yield Bundle(lower, upper, np.flatnonzero(source_kinds * len(kinds) + target_kinds == pair))


def sketch(net: Network) -> Iterator[str]:
    r"""Lines with the levels of nodes, endpoints last, and the links between levels.

    >>> from quadrille.topologies.families.basic import star
    >>> print("\n".join(sketch(star(3, bandwidth=25e9, latency=1e-6))))
      switch  1
        │       3 from host, each 25 GB/s, 1 us
      host    3
    """
    joins = list(bundles(net))
    width = max(map(len, net.kinds))
    order = levels(net)
    for place, kind in enumerate(order):
        yield f"  {kind:{width}}  {net.kinds[kind][1]}"
        bar = "│" if place + 1 < len(order) else " "
        among = [bundle for bundle in joins if bundle.lower == bundle.upper == kind]
        for bundle in among:
            yield f"    {bar} {'':{width}}{len(bundle.links) // 2} among {kind}, {_cable(net, bundle)}"
        for bundle in (join for join in joins if join.upper == kind != join.lower):
            yield f"    {bar} {'':{width}}{len(bundle.links)} from {bundle.lower}, {_cable(net, bundle)}"


def _cable(net: Network, bundle: Bundle) -> str:
    """Bandwidth and latency of a bundle of links, as text."""
    rates = _spelled([format_bytes_per_second(value) for value in np.unique(net.bandwidths[bundle.links]).tolist()])
    return f"each {rates}, {_spelled([format_seconds(v) for v in np.unique(net.latencies[bundle.links]).tolist()])}"


def _spelled(values: Sequence[str]) -> str:
    kept = list(dict.fromkeys(values))
    return " or ".join(kept) if len(kept) <= SPELLED else f"{kept[0]} to {kept[-1]}"
