"""How several hosts are wired, as the user says it."""

from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import build, parse_topology, with_stand_ins
from quadrille.topologies.files.topology_file import is_topology_file, load_topology
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes, Routing, parse_routing

TopologyOption = tuple[str, dict[str, int | float | str]]
"""Family and arguments of the topology of several hosts; of one in a file, `FILE` and where that is."""

FILE = "file"


def parse_topology_option(text: str, hosts: int) -> TopologyOption:
    """Family and arguments of the wiring of so many hosts, known to be one.

    Link speeds that are left out are measured, where there are several hosts; a file says them all.

    >>> parse_topology_option("leaf-spine:leaves=2,spines=1,hosts_per_leaf=3", 6)
    ('leaf-spine', {'leaves': 2, 'spines': 1, 'hosts_per_leaf': 3})

    Raises
    ------
    InputError : a wiring that cannot be built, or of another number of hosts
    """
    given: TopologyOption = (
        (FILE, {FILE: str(Path(text).resolve())}) if is_topology_file(text) else parse_topology(text)
    )
    net = network_without_speeds(given)
    kind, count = net.endpoints
    if (kind, count) != ("host", hosts):
        found = f"{hosts} host{'s' if hosts > 1 else ''}"
        raise InputError(
            f"topology {text!r} has {count} {kind}s and the ranks are on {found}: a wiring of {found} is needed"
        )
    if hosts == 1 and given[0] != FILE:
        build(*given)  # between whose ranks no link is measured
    return given


def default_star(hosts: int) -> TopologyOption:
    """The wiring of hosts of which nothing is said."""
    return "star", {"hosts": hosts}


def parse_routing_option(text: str, wiring: TopologyOption | None, hosts: int) -> Routing:
    """The rule by which messages between so many hosts find their ways; shortest where nothing is said.

    >>> str(parse_routing_option("", None, 4)), str(parse_routing_option("ecmp:7", None, 4))
    ('shortest', 'ecmp:7')

    Parameters
    ----------
    wiring : of the hosts; a star where it is not known

    Raises
    ------
    InputError : another rule, one that the wiring has no ways for, or any on a single host
    """
    if not text:
        return Routing()
    ways = parse_routing(text)
    if hosts == 1:
        raise InputError(f"--routing {text}: the ranks are on 1 host, between whose ranks there are no ways to choose")
    Routes(network_without_speeds(wiring or default_star(hosts)), ways).between([0], [1])
    return ways


def network_without_speeds(given: TopologyOption) -> Network:
    """The network, with stand-ins for speeds that are not said."""
    family, arguments = given
    if family == FILE:
        return load_topology(str(arguments[FILE]))
    return build(family, with_stand_ins(family, arguments, {"bandwidth": 1.0, "latency": 0.0}))
