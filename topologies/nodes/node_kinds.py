"""The kinds of nodes that have names, each imported when it is first asked for."""

from collections.abc import Iterable
from functools import partial

from quadrille.topologies.lazy_table import LazyTable
from quadrille.topologies.nodes.gpu_node import NodeKind


def _named(name: str, kinds: Iterable[NodeKind]) -> NodeKind:
    return next(kind for kind in kinds if kind.name == name)


def _of_switched(name: str) -> NodeKind:
    from quadrille.topologies.nodes.switched import SWITCHED

    return _named(name, SWITCHED)


def _of_meshed(name: str) -> NodeKind:
    from quadrille.topologies.nodes.meshed import MESHED

    return _named(name, MESHED)


def _of_power9(name: str) -> NodeKind:
    from quadrille.topologies.nodes.power9 import POWER9

    return _named(name, POWER9)


def _of_amd(name: str) -> NodeKind:
    from quadrille.topologies.nodes.amd import AMD

    return _named(name, AMD)


NODE_KINDS: LazyTable[NodeKind] = LazyTable(
    {
        **{
            name: partial(_of_switched, name)
            for name in (
                "dgx-a100",
                "hgx-h100",
                "hgx-h200",
                "hgx-b200",
                "abci-a",
                "jean-zay-a100",
                "aws-p4d",
                "aws-p6-b200",
            )
        },
        **{
            name: partial(_of_meshed, name)
            for name in ("perlmutter", "dgx-1v", "jean-zay-v100", "abci-v", "gh200-4", "gh200-1")
        },
        **{name: partial(_of_power9, name) for name in ("summit", "longhorn")},
        **{name: partial(_of_amd, name) for name in ("frontier", "mi250x", "mi300x")},
    }
)
