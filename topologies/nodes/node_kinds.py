"""The kinds of nodes that have names."""

from topologies.nodes.amd import AMD
from topologies.nodes.gpu_node import NodeKind
from topologies.nodes.meshed import MESHED
from topologies.nodes.power9 import POWER9
from topologies.nodes.switched import SWITCHED

NODE_KINDS: dict[str, NodeKind] = {kind.name: kind for kind in (*SWITCHED, *MESHED, *POWER9, *AMD)}
