"""The options `--topology` and `--routing` of a calibration: the network between the hosts, as the user declares it."""

from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import build, parse_topology, with_stand_ins
from quadrille.topologies.files.topology_file import is_topology_file, load_topology
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes, Routing, parse_routing

TopologyOption = tuple[str, dict[str, int | float | str]]
"""Family and arguments of a topology; for a topology file, `FILE` and its path."""

FILE = "file"


def parse_topology_option(text: str, hosts: int) -> TopologyOption:
    """The family and arguments of a topology, after a check that it has as many hosts as the launch.

    Link speeds may be missing; calibration measures them.  A topology file has all speeds.

    >>> parse_topology_option("leaf-spine:leaves=2,spines=1,hosts_per_leaf=3", 6)
    ('leaf-spine', {'leaves': 2, 'spines': 1, 'hosts_per_leaf': 3})

    Raises
    ------
    InputError : a topology that cannot be built, or of another number of hosts
    """
    option: TopologyOption = (
        (FILE, {FILE: str(Path(text).resolve())}) if is_topology_file(text) else parse_topology(text)
    )
    net = network_without_speeds(option)
    kind, count = net.endpoints
    if (kind, count) != ("host", hosts):
        hosts_in_words = f"{hosts} host{'s' if hosts > 1 else ''}"
        raise InputError(
            f"topology {text!r} has {count} {kind}s and the ranks are on {hosts_in_words}: "
            f"a topology of {hosts_in_words} is needed"
        )
    if hosts == 1 and option[0] != FILE:
        build(*option)  # no link is measured on a single host
    return option


def default_star(hosts: int) -> TopologyOption:
    """The topology of hosts whose network the user does not declare: a star."""
    return "star", {"hosts": hosts}


def parse_routing_option(text: str, topology: TopologyOption | None, hosts: int) -> Routing:
    """The routing rule between `hosts` hosts; `shortest` by default.

    >>> str(parse_routing_option("", None, 4)), str(parse_routing_option("ecmp:7", None, 4))
    ('shortest', 'ecmp:7')

    Parameters
    ----------
    text : value of `--routing`
    topology : topology of the hosts; None for a star
    hosts : number of hosts

    Raises
    ------
    InputError : an unknown rule, a rule without paths in this topology, or any rule on a single host
    """
    if not text:
        return Routing()
    routing = parse_routing(text)
    if hosts == 1:
        raise InputError(f"--routing {text}: all ranks are on 1 host, and a host has no network paths to choose from")
    Routes(network_without_speeds(topology or default_star(hosts)), routing).between([0], [1])
    return routing


def network_without_speeds(option: TopologyOption) -> Network:
    """The network, with placeholders for missing speeds."""
    family, arguments = option
    if family == FILE:
        return load_topology(str(arguments[FILE]))
    return build(family, with_stand_ins(family, arguments, {"bandwidth": 1.0, "latency": 0.0}))
