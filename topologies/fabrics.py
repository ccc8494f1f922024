"""What can join the nodes of a cluster: every family of switches, by its name.

Each is `add_<family>(builder, endpoints, …)`; its own arguments keep their
names, and `bandwidth` and `latency` are, where they are not given, those of the
NICs' cables.
"""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import Builder
from quadrille.topologies.families.every import EVERY
from quadrille.topologies.lazy_table import LazyTable
from quadrille.topologies.network import Ints
from quadrille.topologies.structured_paths import PathSet

Fabric = Callable[[Builder, Ints], PathSet]
"""Joins endpoints, given by their node numbers, and says which paths there are between them."""


def _join_of(name: str) -> Callable[..., PathSet]:
    join = EVERY[name].join
    assert join is not None
    return join


FABRICS = LazyTable({name: partial(_join_of, name) for name in EVERY if name != "host"})
"""How the switches of each family join endpoints; a host has none."""
INTERNAL = ("builder", "endpoints", "kinds", "family", "closed")


def parameters_of(network: str) -> dict[str, Parameter]:
    """What this family takes from a user.

    >>> sorted(parameters_of("fat-tree"))
    ['bandwidth', 'latency', 'ports']
    """
    given = signature(FABRICS[network]).parameters
    return {name: parameter for name, parameter in given.items() if name not in INTERNAL}


def fabric_builder(network: str, arguments: Mapping[str, Any], *, bandwidth: float, latency: float) -> Fabric:
    """The fabric of this family with these arguments.

    Raises
    ------
    InputError : an unknown family, an argument that it does not take or that is missing
    """
    if network not in FABRICS:
        raise InputError(f"gpu-cluster: network={network} is unknown; there are {', '.join(FABRICS)}")
    accepted = parameters_of(network)
    if unknown := [name for name in arguments if name not in accepted]:
        raise InputError(
            f"gpu-cluster: network={network} does not take {', '.join(unknown)}; it takes {', '.join(accepted)}"
        )
    given = {name: value for name, value in (("bandwidth", bandwidth), ("latency", latency)) if name in accepted}
    given |= arguments
    missing = [p.name for p in accepted.values() if p.default is Parameter.empty and p.name not in given]
    if missing:
        raise InputError(f"gpu-cluster: network={network} lacks {', '.join(missing)}")
    return lambda builder, endpoints: FABRICS[network](builder, endpoints, **given)
