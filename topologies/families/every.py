"""Every family: how a network of hosts is built, and how its switches join endpoints of any kind."""

from collections.abc import Callable
from dataclasses import dataclass

from quadrille.topologies.families.dragonfly import add_dragonfly, dragonfly
from quadrille.topologies.families.dragonfly_plus import add_dragonfly_plus, dragonfly_plus
from quadrille.topologies.families.dumbbell import add_dumbbell, dumbbell
from quadrille.topologies.families.fat_tree import add_fat_tree, fat_tree
from quadrille.topologies.families.full import add_full, full
from quadrille.topologies.families.host import host
from quadrille.topologies.families.leaf_spine import add_leaf_spine, leaf_spine
from quadrille.topologies.families.rail_optimised import add_rail_optimised, rail_optimised
from quadrille.topologies.families.ring import add_ring, ring
from quadrille.topologies.families.star import add_star, star
from quadrille.topologies.families.torus import add_mesh, add_torus, mesh, torus
from quadrille.topologies.families.tree import add_tree, tree
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


EVERY = {
    "host": Family(host),
    "star": Family(star, add_star),
    "leaf-spine": Family(leaf_spine, add_leaf_spine),
    "dumbbell": Family(dumbbell, add_dumbbell),
    "fat-tree": Family(fat_tree, add_fat_tree),
    "tree": Family(tree, add_tree),
    "dragonfly": Family(dragonfly, add_dragonfly),
    "dragonfly+": Family(dragonfly_plus, add_dragonfly_plus),
    "torus": Family(torus, add_torus),
    "mesh": Family(mesh, add_mesh),
    "rail-optimised": Family(rail_optimised, add_rail_optimised),
    "ring": Family(ring, add_ring),
    "full": Family(full, add_full),
}
