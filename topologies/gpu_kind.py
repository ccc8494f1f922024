"""The kind of a machine's nodes, and with it of its GPUs."""

from typing import TYPE_CHECKING

from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.topologies.nodes.gpu_node import NodeKind
    from quadrille.topologies.nodes.gpus import Generation


def node_kind_of(machine: Machine) -> "NodeKind | None":
    """The kind of the machine's nodes; None if unknown."""
    from quadrille.topologies.machines.machine_catalogue import MACHINES
    from quadrille.topologies.nodes.node_kinds import NODE_KINDS

    if "file" in machine.topology and "node" not in machine.topology:
        from quadrille.topologies.files.topology_file import kept_topology

        return NODE_KINDS.get(kept_topology(str(machine.topology["file"])).node_kind)
    family = str(machine.topology.get("family", ""))
    return MACHINES[family].node if family in MACHINES else NODE_KINDS.get(str(machine.topology.get("node", "")))


def gpu_generation(machine: Machine) -> "Generation | None":
    """The generation of the machine's GPUs; None if unknown."""
    kind = node_kind_of(machine)
    return kind.gpu.generation if kind is not None and kind.gpu is not None else None
