"""Tori, meshes and rings of hosts, or of routers with hosts."""

from collections.abc import Sequence
from math import prod

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.lattice import LatticePaths
from quadrille.topologies.families.number_lists import WholeNumbers, as_word, whole_numbers
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.size_limits import check_cable, check_counts, check_size

MAX_DIMENSIONS = 12


def torus(
    dims: int | str | Sequence[int],
    *,
    bandwidth: float,
    latency: float,
    hosts_per_router: int = 0,
    host_bandwidth: float | None = None,
    host_latency: float | None = None,
    cores: int = 1,
) -> Network:
    """A torus: a grid with these lengths, written 8x8x4, in which every line is closed to a ring.

    Vertex v has the coordinates v mod dims[0], v // dims[0] mod dims[1], … (the
    first varies fastest) and a cable to the next vertex along every dimension.  A
    dimension of length 2 has one cable, not two, between its two vertices; a
    dimension of length 1 has no cables.

    >>> torus("4x4x2", bandwidth=1e9, latency=1e-6).link_count
    160

    Parameters
    ----------
    dims : number of vertices along each dimension
    bandwidth, latency : rates of each cable of the grid, per direction [B/s, s]
    hosts_per_router : number of hosts on each router; host h is on router h // hosts_per_router.  With 0 the hosts
        themselves are the vertices, as in Blue Gene
    host_bandwidth, host_latency : rates of the cable from a host to its router [B/s, s]; by default those of the grid
    cores : number of cores of each host

    Raises
    ------
    InputError : a length below one; more than 12 dimensions; a bandwidth or latency out of range

    Source: Dally, Towles, "Principles and Practices of Interconnection
    Networks", Morgan Kaufmann 2004, chapter 5: k-ary n-cubes.
    """
    return _grid(
        "torus",
        dims,
        hosts_per_router,
        cores,
        bandwidth=bandwidth,
        latency=latency,
        host_bandwidth=host_bandwidth,
        host_latency=host_latency,
    )


def mesh(
    dims: int | str | Sequence[int],
    *,
    bandwidth: float,
    latency: float,
    hosts_per_router: int = 0,
    host_bandwidth: float | None = None,
    host_latency: float | None = None,
    cores: int = 1,
) -> Network:
    """A mesh: a torus whose lines are not closed, with dims[i] - 1 cables in each line along dimension i.

    The arguments are those of `torus`.

    >>> mesh("4x4", bandwidth=1e9, latency=1e-6).link_count
    48

    Raises
    ------
    InputError : as `torus`
    """
    return _grid(
        "mesh",
        dims,
        hosts_per_router,
        cores,
        bandwidth=bandwidth,
        latency=latency,
        host_bandwidth=host_bandwidth,
        host_latency=host_latency,
    )


def _grid(family: str, dims: WholeNumbers, hosts_per_router: int, cores: int, **cables: float | None) -> Network:
    """The torus or mesh, by its family, with its hosts."""
    vertices = prod(_lengths(family, dims))
    check_counts(family, cores=cores)
    if hosts_per_router < 0:
        raise InputError(f"{family}: hosts_per_router={hosts_per_router} must be a whole number from 0")
    hosts = vertices * max(1, hosts_per_router)
    check_size(family, hosts + vertices, 2 * hosts)
    builder = Builder(family, {"dims": as_word(dims), "hosts_per_router": hosts_per_router, **cables, "cores": cores})
    add = add_torus if family == "torus" else add_mesh
    endpoints = builder.nodes("host", hosts)
    paths = add(builder, endpoints, dims=dims, per_router=hosts_per_router, **cables)  # type: ignore[arg-type]
    return builder.network(("host", hosts), paths, cores=cores)


def _lengths(family: str, dims: WholeNumbers) -> tuple[int, ...]:
    lengths = whole_numbers(family, "dims", dims)
    if len(lengths) > MAX_DIMENSIONS:
        raise InputError(
            f"{family}: dims={as_word(dims)!s:.60} has {len(lengths)} dimensions; at most {MAX_DIMENSIONS} are built"
        )
    return lengths


def add_torus(
    builder: Builder,
    endpoints: Ints,
    *,
    dims: WholeNumbers,
    bandwidth: float,
    latency: float,
    per_router: int = 0,
    host_bandwidth: float | None = None,
    host_latency: float | None = None,
    family: str = "torus",
    closed: bool = True,
) -> LatticePaths:
    """Connects the endpoints by a torus: as its vertices, or `per_router` on each of its routers.

    Parameters
    ----------
    per_router : number of endpoints on each router; 0 if the endpoints are the vertices
    family : name of the family, for messages
    closed : whether lines longer than 2 are closed to rings; False for a mesh

    Raises
    ------
    InputError : as `torus`; a number of endpoints other than that of the vertices, or more than fit on the routers
    """
    lengths = _lengths(family, dims)
    check_cable(family, bandwidth, latency)
    vertices, count = prod(lengths), len(endpoints)
    check_size(family, vertices + count, 2 * (vertices * len(lengths) + count))
    own = {"host_bandwidth": host_bandwidth, "host_latency": host_latency}
    if not per_router and (host_rates := [name for name, value in own.items() if value is not None]):
        raise InputError(
            f"{family}: {', '.join(host_rates)} is for hosts on routers: give hosts_per_router "
            "(in a gpu-cluster per_router) too"
        )
    if not per_router and count != vertices:
        raise InputError(f"{family}: dims={as_word(dims)} has {vertices} vertices, not {count}, one for each endpoint")
    if per_router and count > vertices * per_router:
        raise InputError(f"{family}: dims={as_word(dims)} has room for {vertices * per_router} endpoints, not {count}")
    nodes, up = endpoints, None
    if per_router:
        rate = bandwidth if host_bandwidth is None else host_bandwidth
        delay = latency if host_latency is None else host_latency
        check_cable(family, rate, delay, prefix="host_")
        nodes = builder.nodes("router", vertices)
        up = builder.cables(endpoints, nodes[np.arange(count) // per_router], bandwidth=rate, latency=delay)
    ahead = _lattice(builder, nodes, lengths, closed=closed, bandwidth=bandwidth, latency=latency)
    return LatticePaths(lengths, closed, ahead, up, max(1, per_router))


def _lattice(
    builder: Builder, nodes: Ints, lengths: tuple[int, ...], *, closed: bool, bandwidth: float, latency: float
) -> Ints:
    """Connects each vertex to the next along every dimension; links, -1 at the end of a mesh [vertices, dims]."""
    ahead = np.full((len(nodes), len(lengths)), -1, dtype=np.int64)
    number, stride = np.arange(len(nodes)), 1
    for dimension, length in enumerate(lengths):
        coordinate = number // stride % length
        rings = closed and length > 2
        tail = number if rings else number[coordinate < length - 1]
        head = tail + stride - np.where(coordinate[tail] == length - 1, stride * length, 0)
        ahead[tail, dimension] = builder.cables(nodes[tail], nodes[head], bandwidth=bandwidth, latency=latency)
        stride *= length
    return ahead


def add_mesh(
    builder: Builder,
    endpoints: Ints,
    *,
    dims: WholeNumbers,
    bandwidth: float,
    latency: float,
    per_router: int = 0,
    host_bandwidth: float | None = None,
    host_latency: float | None = None,
) -> LatticePaths:
    """Connects the endpoints by a mesh; the arguments are those of `add_torus`."""
    return add_torus(
        builder,
        endpoints,
        dims=dims,
        bandwidth=bandwidth,
        latency=latency,
        per_router=per_router,
        host_bandwidth=host_bandwidth,
        host_latency=host_latency,
        family="mesh",
        closed=False,
    )


def ring(hosts: int, *, bandwidth: float, latency: float, cores: int = 1) -> Network:
    """A ring: a cable from each host to the next and from the last to host:0; two hosts have one cable.

    >>> ring(5, bandwidth=25e9, latency=1e-6).link_count
    10

    Parameters
    ----------
    bandwidth, latency : bandwidth and latency of each cable, per direction [B/s, s]
    cores : number of cores of each host

    Raises
    ------
    InputError : fewer than one host or core; a bandwidth or latency out of range
    """
    check_counts("ring", hosts=hosts, cores=cores)
    check_size("ring", hosts, 2 * hosts)
    builder = Builder("ring", {"hosts": hosts, "bandwidth": bandwidth, "latency": latency, "cores": cores})
    paths = add_ring(builder, builder.nodes("host", hosts), bandwidth=bandwidth, latency=latency)
    return builder.network(("host", hosts), paths, cores=cores)


def add_ring(builder: Builder, endpoints: Ints, *, bandwidth: float, latency: float) -> LatticePaths:
    """Connects each endpoint to the next, and the last endpoint to the first."""
    return add_torus(builder, endpoints, dims=len(endpoints), bandwidth=bandwidth, latency=latency, family="ring")
