"""Every family: how a network of hosts is built, and how its switches join endpoints of any kind."""

from collections.abc import Callable
from dataclasses import dataclass

from quadrille.topologies.lazy_table import LazyTable
from quadrille.topologies.network import Network
from quadrille.topologies.structured_paths import PathSet


@dataclass(frozen=True, slots=True)
class Family:
    """A family of topologies.

    Parameters
    ----------
    of_hosts : builds the network of hosts
    join : `add_<family>(builder, endpoints, …)`, which joins endpoints that are there already; None where it cannot
    """

    of_hosts: Callable[..., Network]
    join: Callable[..., PathSet] | None = None


def _host() -> Family:
    from quadrille.topologies.families.host import host

    return Family(host)


def _star() -> Family:
    from quadrille.topologies.families.star import add_star, star

    return Family(star, add_star)


def _leaf_spine() -> Family:
    from quadrille.topologies.families.leaf_spine import add_leaf_spine, leaf_spine

    return Family(leaf_spine, add_leaf_spine)


def _dumbbell() -> Family:
    from quadrille.topologies.families.dumbbell import add_dumbbell, dumbbell

    return Family(dumbbell, add_dumbbell)


def _fat_tree() -> Family:
    from quadrille.topologies.families.fat_tree import add_fat_tree, fat_tree

    return Family(fat_tree, add_fat_tree)


def _tree() -> Family:
    from quadrille.topologies.families.tree import add_tree, tree

    return Family(tree, add_tree)


def _dragonfly() -> Family:
    from quadrille.topologies.families.dragonfly import add_dragonfly, dragonfly

    return Family(dragonfly, add_dragonfly)


def _dragonfly_plus() -> Family:
    from quadrille.topologies.families.dragonfly_plus import add_dragonfly_plus, dragonfly_plus

    return Family(dragonfly_plus, add_dragonfly_plus)


def _torus() -> Family:
    from quadrille.topologies.families.torus import add_torus, torus

    return Family(torus, add_torus)


def _mesh() -> Family:
    from quadrille.topologies.families.torus import add_mesh, mesh

    return Family(mesh, add_mesh)


def _rail_optimised() -> Family:
    from quadrille.topologies.families.rail_optimised import add_rail_optimised, rail_optimised

    return Family(rail_optimised, add_rail_optimised)


def _ring() -> Family:
    from quadrille.topologies.families.ring import add_ring, ring

    return Family(ring, add_ring)


def _full() -> Family:
    from quadrille.topologies.families.full import add_full, full

    return Family(full, add_full)


EVERY = LazyTable(
    {
        "host": _host,
        "star": _star,
        "leaf-spine": _leaf_spine,
        "dumbbell": _dumbbell,
        "fat-tree": _fat_tree,
        "tree": _tree,
        "dragonfly": _dragonfly,
        "dragonfly+": _dragonfly_plus,
        "torus": _torus,
        "mesh": _mesh,
        "rail-optimised": _rail_optimised,
        "ring": _ring,
        "full": _full,
    }
)
