"""How several hosts are wired, as the user says it."""

from algorithms.errors import InputError
from topologies.build import build, parse_topology, with_stand_ins

GivenTopology = tuple[str, dict[str, int | float | str]]
"""Family and arguments of the topology of several hosts."""


def parse_wiring(text: str, hosts: int) -> GivenTopology:
    """Family and arguments of the wiring of so many hosts, known to be one.

    Link speeds that are left out are measured, where there are several hosts.

    >>> parse_wiring("leaf-spine:leaves=2,spines=1,hosts_per_leaf=3", 6)
    ('leaf-spine', {'leaves': 2, 'spines': 1, 'hosts_per_leaf': 3})

    Raises
    ------
    InputError : a wiring that cannot be built, or of another number of hosts
    """
    family, arguments = parse_topology(text)
    net = build(family, with_stand_ins(family, arguments, {"bandwidth": 1.0, "latency": 0.0}))
    kind, count = net.places
    if (kind, count) != ("host", hosts):
        found = f"{hosts} host{'s' if hosts > 1 else ''}"
        raise InputError(
            f"topology {text!r} has {count} {kind}s and the ranks are on {found}: a wiring of {found} is needed"
        )
    if hosts == 1:
        build(family, arguments)  # between whose ranks no link is measured
    return family, arguments
