"""The kinds of GPU nodes that have names, each imported when it is first asked for."""

from collections.abc import Iterable

from quadrille.topologies.lazy_table import LazyTable, named_values
from quadrille.topologies.nodes.gpu_node import NodeKind


def _switched() -> Iterable[NodeKind]:
    from quadrille.topologies.nodes.nvswitch_nodes import SWITCHED

    return SWITCHED


def _meshed() -> Iterable[NodeKind]:
    from quadrille.topologies.nodes.nvlink_mesh_nodes import MESHED

    return MESHED


def _amd() -> Iterable[NodeKind]:
    from quadrille.topologies.nodes.amd_nodes import AMD

    return AMD


NODE_KINDS: LazyTable[NodeKind] = named_values(
    {
        _switched: (
            *("dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "hgx-b300", "gb200-nvl72", "gb300-nvl72"),
            *("abci-a", "jean-zay-a100", "aws-p4d", "aws-p6-b200"),
        ),
        _meshed: (
            *("perlmutter", "dgx-1v", "jean-zay-v100", "abci-v", "gh200-4", "gh200-1"),
            *("summit", "longhorn"),
        ),
        _amd: ("frontier", "mi250x", "mi300x", "mi325x", "mi355x"),
    },
)
"""Kinds of nodes by name."""
