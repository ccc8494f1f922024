"""Machines of published collectives that are no computing centre: cloud instances, and nodes of unnamed owners."""

from dataclasses import replace

from quadrille.topologies.machines.fabric_wirings import ONE_SWITCH, one_switch
from quadrille.topologies.machines.named_machine import OVERHEAD, NamedMachine
from quadrille.topologies.nodes.amd import MI300X_NODE
from quadrille.topologies.nodes.gpus import A100_80GB
from quadrille.topologies.nodes.switched import AWS_P4D, AWS_P6_B200, switched_node
from quadrille.topologies.quantity import Quantity

EFA = Quantity(
    "network",
    "one switch",
    "simplification: all NICs on one switch that blocks nothing; the latency of EFA is not published and taken to be "
    "InfiniBand's, which is too low",
)

AWS_P4D_MACHINE = NamedMachine(
    name="aws-p4d",
    summary="AWS p4d.24xlarge: 8 A100 (40 GB) on NVSwitches, 4 EFA NICs of 100 Gb/s",
    gpus=4000,
    gpus_source='AWS, "Amazon EC2 P4 Instances": more than 4,000 A100 in an UltraCluster',
    node=AWS_P4D,
    wiring=one_switch,
    overhead=OVERHEAD,
    notes=(EFA,),
)
AWS_P6_B200_MACHINE = NamedMachine(
    name="aws-p6-b200",
    summary="AWS p6-b200.48xlarge: 8 B200 on NVSwitches, 8 EFAv4 NICs of 400 Gb/s",
    gpus=32,
    gpus_source="as many as in the published rows (4 instances); the size of a cluster is not published",
    node=AWS_P6_B200,
    wiring=one_switch,
    overhead=OVERHEAD,
    notes=(EFA,),
)
MI300X_MACHINE = NamedMachine(
    name="mi300x-node",
    summary="8 MI300X, any two joined by one Infinity Fabric link",
    gpus=8,
    gpus_source="one node; more are modelled on one switch",
    node=MI300X_NODE,
    wiring=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
)

UNNAMED = (
    "assumption: read off the plateau of the published rows of this machine themselves (92 GB/s of bus bandwidth on 4 "
    "nodes), so that these rows judge no bandwidth"
)
UNNAMED_4X8 = NamedMachine(
    name="unnamed-4x8",
    summary="Four nodes of 8 GPUs whose kind is not published (stas00/ml-engineering); taken for A100 with 100 GB/s",
    gpus=32,
    gpus_source="stas00/ml-engineering@744d01e18b79, network/benchmarks/README.md: 4 nodes of 8 GPUs",
    node=replace(
        switched_node("unnamed", A100_80GB, 4, 25e9, node="assumption: A100 on NVSwitches", nic=UNNAMED),
        name="unnamed-4x8",
    ),
    wiring=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
)

CLOUDS = (AWS_P4D_MACHINE, AWS_P6_B200_MACHINE, MI300X_MACHINE, UNNAMED_4X8)
