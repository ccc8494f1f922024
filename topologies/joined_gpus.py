"""GPUs that links between GPUs and NVSwitches join, without the network."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from quadrille.topologies.network import Ints, Network


def links_between_gpus(net: "Network") -> NDArray[np.bool_]:
    """Whether each link joins two GPUs, or a GPU and the switch between GPUs [links]."""
    inside = np.zeros(net.node_count, dtype=bool)
    for kind in ("gpu", "nvswitch"):
        first, count = net.kinds.get(kind, (0, 0))
        inside[first : first + count] = True
    return np.asarray(inside[net.sources] & inside[net.targets])


def joined_groups(net: "Network") -> "Ints":
    """A label for each endpoint: equal labels if and only if such links join the endpoints [endpoints]."""
    within = links_between_gpus(net) & ~net.failed
    sources, targets = net.sources[within], net.targets[within]
    label = np.arange(net.node_count)
    while True:  # the smallest number among those that are joined spreads by one link a turn
        before = label.copy()
        np.minimum.at(label, targets, label[sources])
        np.minimum.at(label, sources, label[targets])
        if np.array_equal(before, label):
            return np.asarray(label[net.endpoint_nodes()], dtype=np.int64)


def joined_endpoints(net: "Network") -> int:
    """The number of consecutive GPUs that are joined; 1 without such regular blocks."""
    if net.endpoints[0] != "gpu":
        return 1
    groups = joined_groups(net)
    size = int((groups == groups[0]).sum())
    if len(groups) % size:
        return 1
    blocks = groups.reshape(-1, size)
    regular = bool((blocks == blocks[:, :1]).all()) and len(np.unique(blocks[:, 0])) == len(blocks)
    return size if regular else 1
