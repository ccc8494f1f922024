"""Rank placement: the host or GPU of each rank, and the cores, speed and neighbours that follow from it."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import read_text
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.units import parse_integer
from quadrille.simulator.machine.network import bursts_of, cores_of_endpoints, endpoint_number, network_of, speeds_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats, Ints, Network


@dataclass(frozen=True, eq=False)
class RankPlacement:
    """The endpoint (host or GPU) of each rank, and the cores and speed that follow from it.

    Parameters
    ----------
    net : network of the machine, with its faults
    of_rank : endpoint of each rank [ranks]
    slowdown : factor on the seconds of local work of every rank
    """

    machine: Machine
    net: Network
    of_rank: Ints
    slowdown: float = 1.0

    @cached_property
    def _ranks_at(self) -> Ints:
        """Number of ranks at each endpoint."""
        return np.bincount(self.of_rank, minlength=self.net.endpoint_count)

    @cached_property
    def _speeds(self) -> Floats:
        return speeds_of(self.machine, self.net) / self.slowdown

    def endpoint(self, rank: int) -> int:
        """Number of a rank's endpoint."""
        return int(self.of_rank[rank])

    def cores(self, endpoint: int) -> int:
        """Number of cores of a host; a GPU counts as one core."""
        return int(self._cores[endpoint])

    @cached_property
    def _cores(self) -> Ints:
        return cores_of_endpoints(self.machine, self.net)

    @property
    def hosts_share_cores(self) -> bool:
        """Whether all hosts are emulated on one machine and share its cores and memory."""
        return self.machine.emulated.shared_cores and self.net.endpoints[0] != "gpu"

    @property
    def pinned_evenly(self) -> bool:
        """Whether each rank is pinned to one of the shared cores, with equally many ranks on each core."""
        return self.hosts_share_cores and len(self.of_rank) % self.cores(0) == 0

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more ranks than shared cores, and no even pinning."""
        return self.hosts_share_cores and not self.pinned_evenly and len(self.of_rank) > self.cores(0)

    @cached_property
    def core_of_rank(self) -> Ints:
        """Core to which each rank is pinned; 0 if ranks are not pinned."""
        return np.arange(len(self.of_rank)) % (self.cores(0) if self.pinned_evenly else 1)

    @property
    def _core_key(self) -> Ints:
        """Key that equal ranks have in common: the core; the rank itself if ranks move between cores."""
        return np.arange(len(self.of_rank)) if self.oversubscribed else self.core_of_rank

    def neighbours(self, rank: int) -> int:
        """Number of ranks at this rank's endpoint, itself included."""
        return int(self._ranks_at[self.of_rank[rank]])

    def sharing(self, rank: int) -> int:
        """Number of ranks that share cores with this rank, itself included."""
        return len(self.of_rank) if self.hosts_share_cores else self.neighbours(rank)

    def threads(self, rank: int) -> int:
        """BLAS threads of a rank by default: its share of the cores."""
        return max(1, self.cores(self.endpoint(rank)) // self.sharing(rank))

    def speed(self, rank: int) -> float:
        """Fraction of the device's speed at which a rank computes."""
        return float(self._speeds[self.of_rank[rank]])

    @cached_property
    def bursts(self) -> Floats:
        """Bytes that each link carries at once after an idle time [links] [B]; empty if no link has a token bucket."""
        return bursts_of(self.machine, self.net)

    @cached_property
    def used_endpoints(self) -> int:
        """Number of endpoints with ranks."""
        return int(np.count_nonzero(self._ranks_at))

    @cached_property
    def rank_on_fullest_endpoint(self) -> int:
        """A rank at an endpoint with the most ranks."""
        return int(np.argmax(self._ranks_at[self.of_rank]))

    def at_the_pace_of_the_slowest(self, sigma: float) -> "RankPlacement":
        """The placement with all devices at the expected pace of the slowest device that has ranks.

        Parameters
        ----------
        sigma : standard deviation of the logarithm of the seconds of local work from device to device
        """
        from quadrille.simulator.machine.slowest_device import slowest_factor  # only few predictions need it

        return replace(self, slowdown=slowest_factor(sigma, self.used_endpoints)) if sigma else self

    @property
    def shared(self) -> bool:
        """Whether two ranks share an endpoint."""
        return self.used_endpoints < len(self.of_rank)

    def columns(self) -> dict[str, Floats]:
        """Attributes of each rank's endpoint that distinguish ranks."""
        return {
            "core": self._core_key.astype(np.float64),
            "speed": self._speeds[self.of_rank],
            "ranks that share its place": self._ranks_at[self.of_rank].astype(np.float64),
            "cores": self._cores[self.of_rank].astype(np.float64),
        }


def place_ranks(machine: Machine, ranks: int, placement: str = "packed", grid: Grid | None = None) -> RankPlacement:
    """The placement of the ranks of a run on a machine.

    Parameters
    ----------
    ranks : number of ranks
    placement : placement rule, see `endpoints_by_rule`
    grid : grid of the ranks, for rules by axes

    Raises
    ------
    InputError : more ranks than GPUs; a placement rule or a fault that does not fit
    """
    net = network_of(machine)
    return RankPlacement(machine, net, endpoint_of_each_rank(machine, net, ranks, placement, grid))


def endpoint_of_each_rank(
    machine: Machine, net: Network, ranks: int, rule: str = "packed", grid: Grid | None = None
) -> Ints:
    """Endpoint of each rank of a run on a machine.

    The machine file says how many ranks each GPU or host has; the default is one for each GPU and one for each core.
    Hosts take more ranks if there are more ranks than that.

    Raises
    ------
    InputError : more ranks than GPUs, a placement rule that does not fit
    """
    ranks_each = machine.host.ranks if machine.host is not None else None
    if machine.emulated.shared_cores and rule == "packed":
        return spread_evenly(ranks, net.endpoint_count)
    if net.endpoints[0] != "gpu":
        on_each = ranks_each or int(cores_of_endpoints(machine, net)[0])
        return endpoints_by_rule(net, ranks, max(on_each, -(-ranks // net.endpoint_count)), rule, grid)
    on_each = ranks_each or 1
    if ranks > net.endpoint_count * on_each:
        most = "one rank" if on_each == 1 else f"{on_each} ranks"
        raise InputError(f"{ranks} ranks: {machine.name} has {net.endpoint_count} GPUs; at most {most} a GPU")
    return endpoints_by_rule(net, ranks, on_each, rule, grid)


def spread_evenly(ranks: int, endpoints: int) -> Ints:
    """Endpoint of each rank in order, with one rank more at the first endpoints, as an emulated network starts its
    ranks.

    >>> spread_evenly(6, 4).tolist()
    [0, 0, 1, 1, 2, 3]
    """
    each, more = divmod(ranks, endpoints)
    return np.repeat(np.arange(endpoints), np.where(np.arange(endpoints) < more, each + 1, each))


def endpoints_by_rule(
    net: Network, ranks: int, ranks_per_endpoint: int, rule: str = "packed", grid: Grid | None = None
) -> Ints:
    """Endpoint of each rank, by a placement rule.

    Parameters
    ----------
    ranks_per_endpoint : number of ranks at each endpoint before the next endpoint is used
    rule : `packed`, in order; `packed:N`, in order on the first N endpoints of each node; `scattered`, round robin over
        the nodes that packing would use; `axes:z,x`, packed in the order of these axes, the first fastest; else a file
        with one endpoint on each line
    grid : grid of the ranks, for `axes:`

    Raises
    ------
    InputError : more ranks than endpoints, a rule or file that does not fit
    """
    if ranks > net.endpoint_count * ranks_per_endpoint:
        each = "one rank" if ranks_per_endpoint == 1 else f"{ranks_per_endpoint} ranks"
        kind = {"gpu": "GPUs", "host": "hosts"}.get(net.endpoints[0], net.endpoints[0])
        raise InputError(f"{ranks} ranks: {net.name} has {net.endpoint_count} {kind}; at most {each} on each")
    slots = np.arange(ranks)
    if rule == "packed":
        return slots // ranks_per_endpoint
    if rule == "scattered":
        per_node = net.per_node * ranks_per_endpoint
        used = np.arange(min(-(-ranks // per_node) * per_node, net.endpoint_count * ranks_per_endpoint))
        return used[np.argsort(used % per_node, kind="stable")][:ranks] // ranks_per_endpoint
    if rule.startswith("packed:"):
        return _in_part_of_nodes(rule, net, slots // ranks_per_endpoint)
    if rule.startswith("axes:"):
        return _by_axes(rule, ranks, grid) // ranks_per_endpoint
    return _from_file(rule, net, ranks, ranks_per_endpoint)


def _in_part_of_nodes(rule: str, net: Network, packed: Ints) -> Ints:
    """Endpoints in order, of which each node has only the first N."""
    each = parse_integer(rule.removeprefix("packed:")) or 0
    nodes = net.endpoint_count // net.per_node
    if not 1 <= each <= net.per_node:
        raise InputError(
            f"placement {rule!r:.60}: packed:N with N from 1 to {net.per_node}, those of a node, is accepted"
        )
    if (needed := int(packed[-1]) // each + 1) > nodes:
        raise InputError(f"placement {rule}: {needed} nodes are needed, and {net.name} has {nodes}")
    node, place = np.divmod(packed, each)
    endpoints: Ints = node * net.per_node + place
    return endpoints


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
    coordinates: dict[str, Ints] = {}
    for axis in grid.order:
        rest, coordinates[axis] = np.divmod(rest, grid.length(axis))
    return coordinates


def _from_file(path: str, net: Network, ranks: int, ranks_per_endpoint: int) -> Ints:
    if "/" not in path and not Path(path).suffix:
        raise InputError(
            f"placement {path!r}: accepted are packed, packed:N, scattered, axes:AXIS,… and a file, one place a line"
        )
    try:
        lines = read_text(path).split("\n")
    except OSError as error:
        raise InputError(f"placement {path}: cannot be read: {error.strerror}") from None
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if len(names) != ranks:
        raise InputError(f"placement {path}: has {len(names)} places; {ranks} ranks need one a line each")
    endpoints = np.array([endpoint_number(net, name, f"placement {path}:") for name in names], dtype=np.int64)
    counts = np.bincount(endpoints)
    if counts.max() > ranks_per_endpoint:
        fullest = int(counts.argmax())
        raise InputError(
            f"placement {path}: {net.endpoints[0]}:{fullest} is given to {counts[fullest]} ranks; "
            f"at most {ranks_per_endpoint} each"
        )
    return endpoints
