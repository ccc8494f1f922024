"""How several hosts are wired, as the user says it."""

from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import build, parse_topology, with_stand_ins
from quadrille.topologies.files.topology_file import is_topology_file, load_topology
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes, Routing, parse_routing

GivenTopology = tuple[str, dict[str, int | float | str]]
"""Family and arguments of the topology of several hosts; of one in a file, `FILE` and where that is."""

FILE = "file"


def parse_wiring(text: str, hosts: int) -> GivenTopology:
    """Family and arguments of the wiring of so many hosts, known to be one.

    Link speeds that are left out are measured, where there are several hosts; a file says them all.

    >>> parse_wiring("leaf-spine:leaves=2,spines=1,hosts_per_leaf=3", 6)
    ('leaf-spine', {'leaves': 2, 'spines': 1, 'hosts_per_leaf': 3})

    Raises
    ------
    InputError : a wiring that cannot be built, or of another number of hosts
    """
    given: GivenTopology = (FILE, {FILE: str(Path(text).resolve())}) if is_topology_file(text) else parse_topology(text)
    net = without_speeds(given)
    kind, count = net.places
    if (kind, count) != ("host", hosts):
        found = f"{hosts} host{'s' if hosts > 1 else ''}"
        raise InputError(
            f"topology {text!r} has {count} {kind}s and the ranks are on {found}: a wiring of {found} is needed"
        )
    if hosts == 1 and given[0] != FILE:
        build(*given)  # between whose ranks no link is measured
    return given


def star_of(hosts: int) -> GivenTopology:
    """The wiring of hosts of which nothing is said."""
    return "star", {"hosts": hosts}


def parse_ways(text: str, wiring: GivenTopology | None, hosts: int) -> Routing:
    """The rule by which messages between so many hosts find their ways; shortest where nothing is said.

    >>> str(parse_ways("", None, 4)), str(parse_ways("ecmp:7", None, 4))
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
    Routes(without_speeds(wiring or star_of(hosts)), ways).between([0], [1])
    return ways


def without_speeds(given: GivenTopology) -> Network:
    """The network, with stand-ins for speeds that are not said."""
    family, arguments = given
    if family == FILE:
        return load_topology(str(arguments[FILE]))
    return build(family, with_stand_ins(family, arguments, {"bandwidth": 1.0, "latency": 0.0}))
