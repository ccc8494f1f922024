"""The kinds of nodes that have names."""

from quadrille.topologies.nodes.amd import AMD
from quadrille.topologies.nodes.gpu_node import NodeKind
from quadrille.topologies.nodes.meshed import MESHED
from quadrille.topologies.nodes.power9 import POWER9
from quadrille.topologies.nodes.switched import SWITCHED

NODE_KINDS: dict[str, NodeKind] = {kind.name: kind for kind in (*SWITCHED, *MESHED, *POWER9, *AMD)}
