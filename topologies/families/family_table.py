"""The table of topology families by name; each family's module is imported at its first use.

A family is two functions: `star(hosts, …)` builds a network of hosts, and
`add_star(builder, endpoints, …)` joins endpoints that exist already, such as the
NICs of a cluster.  `host` has no second function.
"""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

from quadrille.algorithms.errors import InputError, unknown_name
from quadrille.topologies.lazy_table import LazyTable
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.structured_paths import PathSet

Fabric = Callable[[Builder, Ints], PathSet]
"""Joins endpoints, given by their node numbers, and returns the paths between them."""

FAMILIES_OF_MODULE = {
    "basic": ("host", "star", "dumbbell", "full"),
    "leaf_spine": ("leaf-spine", "rail-optimised"),
    "tree": ("fat-tree", "tree"),
    "dragonfly": ("dragonfly",),
    "dragonfly_plus": ("dragonfly+",),
    "torus": ("torus", "mesh", "ring"),
}
ORDER = (
    *("host", "star", "leaf-spine", "dumbbell", "fat-tree", "tree", "dragonfly", "dragonfly+"),
    *("torus", "mesh", "rail-optimised", "ring", "full"),
)
"""Families as lists show them."""
INTERNAL = ("builder", "endpoints", "kinds", "family", "closed")
"""Parameters of `add_<family>` that a user does not set."""


def _module(name: str) -> ModuleType:
    """The module of this folder that has this name."""
    match name:
        case "basic":
            from quadrille.topologies.families import basic

            return basic
        case "leaf_spine":
            from quadrille.topologies.families import leaf_spine

            return leaf_spine
        case "tree":
            from quadrille.topologies.families import tree

            return tree
        case "dragonfly":
            from quadrille.topologies.families import dragonfly

            return dragonfly
        case "dragonfly_plus":
            from quadrille.topologies.families import dragonfly_plus

            return dragonfly_plus
        case "torus":
            from quadrille.topologies.families import torus

            return torus
        case _:
            raise AssertionError(name)


def _function(family: str, prefix: str = "") -> Callable[..., Any]:
    """The function of a family: `star`, or with the prefix `add_star`."""
    module = next(module for module, families in FAMILIES_OF_MODULE.items() if family in families)
    function: Callable[..., Any] = getattr(_module(module), prefix + family.replace("-", "_").replace("+", "_plus"))
    return function


HOST_NETWORKS: LazyTable[Callable[..., Network]] = LazyTable({family: partial(_function, family) for family in ORDER})
"""Builder of the network of hosts, by family."""
FABRICS: LazyTable[Callable[..., PathSet]] = LazyTable(
    {family: partial(_function, family, "add_") for family in ORDER if family != "host"}
)
"""Function that joins endpoints by the switches of a family."""


def parameters_of(network: str) -> dict[str, Parameter]:
    """The parameters of a family's fabric that a user may set.

    >>> sorted(parameters_of("fat-tree"))
    ['bandwidth', 'latency', 'ports']
    """
    parameters = signature(FABRICS[network]).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in INTERNAL}


def fabric_builder(network: str, arguments: Mapping[str, Any], *, bandwidth: float, latency: float) -> Fabric:
    """The fabric of this family with these arguments.

    Parameters
    ----------
    bandwidth, latency : rates of a cable where `arguments` does not set them [B/s, s]

    Raises
    ------
    InputError : an unknown family, an argument that the family does not take, or a missing argument
    """
    if network not in FABRICS:
        raise unknown_name("gpu-cluster: network", network, FABRICS)
    accepted = parameters_of(network)
    if unknown := [name for name in arguments if name not in accepted]:
        raise InputError(
            f"gpu-cluster: network={network} does not take {', '.join(unknown)}; it takes {', '.join(accepted)}"
        )
    defaults = {"bandwidth": bandwidth, "latency": latency}
    values = {name: value for name, value in defaults.items() if name in accepted} | dict(arguments)
    missing = [p.name for p in accepted.values() if p.default is Parameter.empty and p.name not in values]
    if missing:
        raise InputError(f"gpu-cluster: network={network} lacks {', '.join(missing)}")
    return lambda builder, endpoints: FABRICS[network](builder, endpoints, **values)
