"""A machine's network as it is: built, its faults applied, with the routing and the place of every rank."""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.topologies.build import build
from quadrille.topologies.files.topology_file import load_topology
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.routes.routing import Routes, parse_routing

NETWORKS_KEPT = 4
"""Networks are values: questions about one machine, asked one after the other, share its network."""


def network_of(machine: Machine) -> Network:
    """The network of a machine, after its faults.

    Raises
    ------
    InputError : a topology that cannot be built; a fault at a link that is not there, or a share of its rate
    """
    share = machine.network.payload_share if machine.network is not None else 1.0
    if "file" in machine.topology:
        return _with_faults(load_topology(str(machine.topology["file"])), machine.faults, share)
    faults = machine.faults or Faults()
    return _built(json.dumps((machine.topology, faults.fail, faults.degrade, share)))


@lru_cache(NETWORKS_KEPT)
def _built(described: str) -> Network:
    """The network of a family with its arguments, links that have failed and those that are slower, as JSON."""
    topology, fail, degrade, share = json.loads(described)
    arguments = {name: value for name, value in topology.items() if name != "family"}
    return _with_faults(build(topology["family"], arguments), Faults(fail=tuple(fail), degrade=degrade), share)


def _with_faults(net: Network, faults: Faults | None, payload_share: float | dict[str, float]) -> Network:
    if payload_share != 1.0:
        net = net.with_bandwidths(net.bandwidths * _by_link(net, payload_share, unnamed=1.0))
    if faults is None or not (faults.fail or faults.degrade):
        return net
    bandwidths = net.bandwidths.copy()
    for name, share in faults.degrade.items():
        bandwidths[net.link_numbers(name)] *= share
    for name in faults.fail:
        bandwidths[net.link_numbers(name)] = 0.0
    return net.with_bandwidths(bandwidths)


def routes_of(machine: Machine, net: Network) -> Routes:
    """Routes through a machine's network by the machine's rule."""
    return Routes(net, parse_routing(machine.routing))


def speeds_of(machine: Machine, net: Network) -> Floats:
    """Share of its speed that each compute place has [places].

    Raises
    ------
    InputError : a slow node that is no compute place
    """
    speeds = np.ones(net.endpoint_count)
    for name, share in (machine.faults.slow if machine.faults is not None else {}).items():
        speeds[place_number(net, name, "--slow")] = share
    return speeds


def bursts_of(machine: Machine, net: Network) -> Floats:
    """What each link lets through at once after an idle time [B]; empty where no link has a token bucket.

    Raises
    ------
    InputError : a link that is not there
    """
    said = machine.network.burst_bytes if machine.network is not None else None
    if said is None:
        return np.zeros(0)
    return _by_link(net, said, unnamed=0.0)


def _by_link(net: Network, said: float | dict[str, float], *, unnamed: float) -> Floats:
    """What a machine file says of every link, or by link [links].

    Raises
    ------
    InputError : a link that is not there
    """
    if not isinstance(said, dict):
        return np.full(net.link_count, said)
    found = np.full(net.link_count, unnamed)
    for name, value in said.items():
        found[net.link_numbers(name)] = value
    return found


def place_number(net: Network, name: str, who: str) -> int:
    """Number of the compute place of this name.

    Raises
    ------
    InputError : no such place
    """
    kind, count = net.endpoints
    word, _, text = name.partition(":")
    if word == kind and text.isascii() and text.isdigit() and str(int(text)) == text and int(text) < count:
        return int(text)
    raise InputError(f"{who} {name}: {net.name} computes on {kind}:0 to {kind}:{count - 1}")


def cores_of_places(machine: Machine, net: Network) -> Ints:
    """Cores of every place; a GPU counts as one."""
    if net.endpoints[0] == "gpu":
        cores = np.array([1])
    else:
        cores = np.array([machine.host.cores]) if machine.host is not None else np.asarray(net.cores)
    return np.broadcast_to(cores, (net.endpoint_count,))


def homes(machine: Machine, net: Network, ranks: int, rule: str = "packed", grid: Grid | None = None) -> Ints:
    """Compute place of each rank of a run on a machine.

    As many ranks live on each GPU or host as the machine file says, by default
    one a GPU and one a core, and on hosts more where there are too many ranks
    for that.

    Raises
    ------
    InputError : more ranks than GPUs, a rule that does not fit
    """
    said = machine.host.ranks if machine.host is not None else None
    if machine.host is not None and machine.host.shared_by_hosts and rule == "packed":
        return spread_evenly(ranks, net.endpoint_count)
    if net.endpoints[0] != "gpu":
        on_each = said or int(cores_of_places(machine, net)[0])
        return placed(net, ranks, max(on_each, -(-ranks // net.endpoint_count)), rule, grid)
    on_each = said or 1
    if ranks > net.endpoint_count * on_each:
        most = "one rank" if on_each == 1 else f"{on_each} ranks"
        raise InputError(f"{ranks} ranks: {machine.name} has {net.endpoint_count} GPUs; at most {most} a GPU")
    return placed(net, ranks, on_each, rule, grid)


def spread_evenly(ranks: int, places: int) -> Ints:
    """Place of each rank, in order, the first places one more: as ranks of a laboratory are started.

    >>> spread_evenly(6, 4).tolist()
    [0, 0, 1, 1, 2, 3]
    """
    each, more = divmod(ranks, places)
    return np.repeat(np.arange(places), np.where(np.arange(places) < more, each + 1, each))


def placed(net: Network, ranks: int, per_place: int, rule: str = "packed", grid: Grid | None = None) -> Ints:
    """Compute place of each rank.

    Parameters
    ----------
    per_place : ranks on each place before the next one is used
    rule : `packed`, in order; `scattered`, one after the other over all nodes that packing would use; `axes:z,x`,
        packed in the order of these axes, the first fastest; else a file with one place a line
    grid : of the ranks, for `axes:`

    Raises
    ------
    InputError : more ranks than places, a rule or file that does not fit
    """
    if ranks > net.endpoint_count * per_place:
        each = "one rank" if per_place == 1 else f"{per_place} ranks"
        kind = {"gpu": "GPUs", "host": "hosts"}.get(net.endpoints[0], net.endpoints[0])
        raise InputError(f"{ranks} ranks: {net.name} has {net.endpoint_count} {kind}; at most {each} on each")
    slots = np.arange(ranks)
    if rule == "packed":
        return slots // per_place
    if rule == "scattered":
        per_node = net.per_node * per_place
        used = np.arange(min(-(-ranks // per_node) * per_node, net.endpoint_count * per_place))
        return used[np.argsort(used % per_node, kind="stable")][:ranks] // per_place
    if rule.startswith("axes:"):
        return _by_axes(rule, ranks, grid) // per_place
    return _from_file(rule, net, ranks, per_place)


def _by_axes(rule: str, ranks: int, grid: Grid | None) -> Ints:
    words = rule.removeprefix("axes:").split(",")
    if grid is None or len(set(words)) != len(words) or not set(words) <= set(AXES):
        raise InputError(
            f"placement {rule!r}: after axes: stand some of {', '.join(AXES)}, each once, the fastest first"
        )
    order = [*words, *(axis for axis in grid.order if axis not in words)]
    stride, slots = 1, np.zeros(ranks, dtype=np.int64)
    coordinates = _coordinates(grid)
    for axis in order:
        slots += coordinates[axis] * stride
        stride *= grid.length(axis)  # type: ignore[arg-type]
    return slots


def _coordinates(grid: Grid) -> dict[str, Ints]:
    """Coordinate of every rank along each axis."""
    rest = np.arange(grid.size)
    found: dict[str, Ints] = {}
    for axis in grid.order:
        rest, found[axis] = np.divmod(rest, grid.length(axis))
    return found


def _from_file(path: str, net: Network, ranks: int, per_place: int) -> Ints:
    if "/" not in path and not Path(path).suffix:
        raise InputError(
            f"placement {path!r}: accepted are packed, scattered, axes:AXIS,… and a file with one place a line"
        )
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"placement {path}: cannot be read: {error}") from None
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if len(names) != ranks:
        raise InputError(f"placement {path}: has {len(names)} places; {ranks} ranks need one a line each")
    found = np.array([place_number(net, name, f"placement {path}:") for name in names], dtype=np.int64)
    counts = np.bincount(found)
    if counts.max() > per_place:
        crowded = int(counts.argmax())
        raise InputError(
            f"placement {path}: {net.endpoints[0]}:{crowded} is given to {counts[crowded]} ranks; "
            f"at most {per_place} each"
        )
    return found
