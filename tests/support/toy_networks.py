"""A two-level network as arrays: GPUs in nodes, nodes under leaves, one link up and one down for each."""

from types import SimpleNamespace

import numpy as np

NODE, LEAF = 8, 32
NVLINK, NIC, LATENCY = 450e9, 50e9, 1e-6


def two_levels(gpus, leaf_bandwidth, *, node=NODE, leaf=LEAF, nvlink=NVLINK, nic=NIC):
    """Capacities, and routes between endpoints.

    Links, in this order: each GPU to its node's switch, back, each NIC to its leaf, back, each leaf up, and down.
    Inside a node and inside a leaf a route has two links, else four; each costs one latency.
    """
    leaves = -(-gpus // leaf)
    widths = (
        (gpus, nvlink),
        (gpus, nvlink),
        (gpus, nic),
        (gpus, nic),
        (leaves, leaf_bandwidth),
        (leaves, leaf_bandwidth),
    )
    capacities = np.concatenate([np.full(count, rate) for count, rate in widths])

    def route(sources, targets):
        table = np.full((len(sources), 4), -1)
        near = sources // node == targets // node
        close = sources // leaf == targets // leaf
        table[:, 0] = np.where(near, sources, 2 * gpus + sources)
        table[:, 1] = np.where(close, np.where(near, gpus, 3 * gpus) + targets, 4 * gpus + sources // leaf)
        table[:, 2] = np.where(close, -1, 4 * gpus + leaves + targets // leaf)
        table[:, 3] = np.where(close, -1, 3 * gpus + targets)
        return paths(table)

    return capacities, route


def star(hosts, bandwidth=1e9, latency=1e-6):
    """Hosts on one switch; each host has a link up and a link down."""

    def route(sources, targets):
        return paths(np.stack([sources, hosts + targets], axis=1), latency)

    return np.full(2 * hosts, bandwidth), route


def paths(table, latency=LATENCY):
    """One path for each flow, from a table of links; -1 stands for no link."""
    used = table >= 0
    offsets = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    links = table[used]
    return SimpleNamespace(
        offsets=offsets, links=links, shares=np.ones(len(links)), latency=latency * used.sum(axis=1).astype(float)
    )
