"""The three-level fat tree of equal switches."""

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import Builder
from quadrille.topologies.families.tree import TreePaths, add_tree
from quadrille.topologies.limits import check_counts, check_size
from quadrille.topologies.network import Ints, Network


def fat_tree(ports: int, *, bandwidth: float, latency: float, cores: int = 1) -> Network:
    """A fat tree of switches with `ports` ports each (k in the paper), non-blocking.

    With h = ports / 2: `ports` pods, each of h edge and h aggregation switches,
    every edge switch wired to every aggregation switch of its pod and to h hosts;
    h² core switches, core:c wired to aggregation switch c // h of every pod.

    >>> {kind: count for kind, (_, count) in fat_tree(4, bandwidth=1e9, latency=1e-6).kinds.items()}
    {'host': 16, 'edge': 8, 'aggregation': 8, 'core': 4}

    Parameters
    ----------
    ports : per switch, even
    bandwidth : of each cable, each direction [B/s]
    latency : of each cable [s]
    cores : of each host

    Raises
    ------
    InputError : ports odd or below 2; fewer than one core; a cable that cannot be

    Source: Al-Fares, Loukissas, Vahdat, "A Scalable, Commodity Data Center
    Network Architecture", SIGCOMM 2008, section 3.1.
    """
    check_counts("fat-tree", ports=ports, cores=cores)
    hosts = ports * (ports // 2) ** 2
    check_size("fat-tree", 2 * hosts, 6 * hosts)
    builder = Builder("fat-tree", {"ports": ports, "bandwidth": bandwidth, "latency": latency, "cores": cores})
    paths = add_fat_tree(builder, builder.nodes("host", hosts), ports=ports, bandwidth=bandwidth, latency=latency)
    return builder.network(("host", hosts), paths, cores=cores)


def add_fat_tree(builder: Builder, endpoints: Ints, *, ports: int, bandwidth: float, latency: float) -> TreePaths:
    """Joins the endpoints, at most ports³ / 4, by the fat tree of these switches, without pods that hold nobody.

    Raises
    ------
    InputError : ports odd; more endpoints than it has room for; a cable that cannot be
    """
    if ports < 2 or ports % 2:
        raise InputError(f"fat-tree: ports={ports} must be even: half of the ports go up and half down")
    half = ports // 2
    if len(endpoints) > ports * half * half:
        raise InputError(f"fat-tree: ports={ports} has room for {ports * half * half}, not for {len(endpoints)}")
    return add_tree(
        builder,
        endpoints,
        down=(half, half, ports),
        up=(1, half, half),
        bandwidth=bandwidth,
        latency=latency,
        kinds=("edge", "aggregation", "core"),
        family="fat-tree",
    )
