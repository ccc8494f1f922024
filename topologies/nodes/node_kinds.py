"""The kinds of GPU nodes that have names, each imported when it is first asked for."""

from quadrille.topologies.lazy_table import LazyTable, named_values
from quadrille.topologies.nodes.gpu_node import NodeKind

NODE_KINDS: LazyTable[NodeKind] = named_values(
    "quadrille.topologies.nodes",
    {
        "switched": (
            *("dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200"),
            *("abci-a", "jean-zay-a100", "aws-p4d", "aws-p6-b200"),
        ),
        "meshed": (
            *("perlmutter", "dgx-1v", "jean-zay-v100", "abci-v", "gh200-4", "gh200-1"),
            *("summit", "longhorn"),
        ),
        "amd": ("frontier", "mi250x", "mi300x"),
    },
)
"""Kinds of nodes by name."""
