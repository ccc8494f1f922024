"""Two synthetic clusters on which simulators are compared; their numbers are fixed and belong to no real machine."""

from dataclasses import replace

from quadrille.topologies.families.family_table import Fabric
from quadrille.topologies.machines.named_machine import FabricPlan, NamedMachine, NodesToConnect
from quadrille.topologies.nodes.gpu_node import nvswitch_node
from quadrille.topologies.nodes.gpus import H100_SXM
from quadrille.topologies.quantity import Quantity

PINNED = "pinned: the cluster on which simulators of the field were compared"
NODES_PER_LEAF = 4

NODE = replace(
    nvswitch_node(8, 0, gpu_bandwidth=450e9, gpu_latency=1e-6, nic_bandwidth=50e9, nic_latency=1e-6),
    name="bench",
    gpu=H100_SXM,
    quantities=(
        Quantity("gpus_per_node", 8, PINNED),
        Quantity("nics_per_node", 0, f"{PINNED}; each GPU has its own link to the leaf"),
        Quantity("nvlink_bandwidth_bytes_per_second", 450e9, f"{PINNED}; from each GPU to the NVSwitch"),
        Quantity("nvlink_latency_seconds", 1e-6, PINNED),
        Quantity("nic_bandwidth_bytes_per_second", 50e9, PINNED),
        Quantity("nic_latency_seconds", 1e-6, PINNED),
    ),
)


def leaves(uplink_bandwidth: float) -> FabricPlan:
    """A fabric of leaves with four nodes each; each leaf has one cable of this bandwidth to a single spine."""

    def fabric(site: NodesToConnect) -> Fabric:
        from quadrille.topologies.families.leaf_spine import add_leaf_spine

        kind = site.kind
        return lambda builder, endpoints: add_leaf_spine(
            builder,
            endpoints,
            per_leaf=site.count("nodes_per_leaf", NODES_PER_LEAF) * kind.network_ports,
            spines=1,
            bandwidth=kind.nic_bandwidth,
            latency=kind.nic_latency,
            uplink_bandwidth=site.numbers.get(
                "uplink_bandwidth", uplink_bandwidth * kind.nic_bandwidth / NODE.nic_bandwidth
            ),
        )

    return fabric


def cluster(name: str, summary: str, uplink_bandwidth: float) -> NamedMachine:
    """A cluster with this bandwidth of the links above its leaves [B/s]."""
    return NamedMachine(
        name=name,
        summary=f"bench cluster, {summary}: 8 GPUs a node, 4 nodes a leaf, one up and one down link above each leaf",
        gpus=1024,
        gpus_source=f"{PINNED}; of any size",
        node=NODE,
        fabric=leaves(uplink_bandwidth),
        overhead=Quantity("overhead_seconds", 0.0, f"{PINNED}; the compared model has none"),
        has_kernels=False,
        any_size=True,
        notes=(
            Quantity("nodes_per_leaf", NODES_PER_LEAF, PINNED),
            Quantity("uplink_bandwidth_bytes_per_second", uplink_bandwidth, PINNED),
            Quantity("network", "leaf-spine", f"{PINNED}; one spine stands for all, under ideal spraying"),
        ),
    )


BENCH = (
    cluster("bench-1to1", "non-blocking", 1600e9),
    cluster("bench-2to1", "2:1 oversubscribed", 800e9),
)
