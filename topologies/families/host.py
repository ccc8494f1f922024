"""One host, whose ranks share its cores and memory and need no network."""

from quadrille.topologies.builder import Builder
from quadrille.topologies.limits import check_counts
from quadrille.topologies.network import Network


def host(cores: int = 1) -> Network:
    """The single node host:0 with `cores` cores, without links.

    >>> host(cores=2).cores.tolist()
    [2]

    Raises
    ------
    InputError : fewer than one core
    """
    check_counts("host", cores=cores)
    builder = Builder("host", {"cores": cores})
    builder.nodes("host", 1)
    return builder.network(("host", 1), cores=cores)
