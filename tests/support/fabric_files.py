"""Descriptions of fabrics and nodes as other programs write them, of any size."""

from pathlib import Path

SAMPLES = Path(__file__).resolve().parent.parent / "topologies/files/imported/samples"


def ibnetdiscover(hosts, per_leaf, spines, adapters=1, speed="4xNDR"):
    """The output of ibnetdiscover for a leaf-spine fabric with a leaf for each adapter of `per_leaf` hosts."""
    lines = ["#", "# Topology file: generated on Thu Jan  1 00:00:00 2026", "#"]
    groups = [range(first, min(first + per_leaf, hosts)) for first in range(0, hosts, per_leaf)]
    leaves = [(group, adapter) for group in groups for adapter in range(adapters)]
    switch = [f"S-{0xA000 + number:016x}" for number in range(len(leaves) + spines)]
    adapter_name = [
        [f"H-{0xB0000000 + host * 16 + adapter:016x}" for adapter in range(adapters)] for host in range(hosts)
    ]
    described = [f"MF0;leaf-{leaf:03d}:MQM9700/U1" for leaf in range(len(leaves))]
    described += [f"MF0;spine-{spine:02d}:MQM9700/U1" for spine in range(spines)]
    for leaf, (group, adapter) in enumerate(leaves):
        lines += [
            "",
            "vendid=0x2c9",
            f'Switch\t64 "{switch[leaf]}"\t\t# "{described[leaf]}" enhanced port 0 lid {leaf} lmc 0',
        ]
        for port, host in enumerate(group, 1):
            name = adapter_name[host][adapter]
            lines.append(f'[{port}]\t"{name}"[1]({name[2:]}) \t\t# "dgx-{host:03d} mlx5_{adapter}" lid 9 {speed}')
        for spine in range(spines):
            far = len(leaves) + spine
            lines.append(f'[{100 + spine}]\t"{switch[far]}"[{leaf + 1}]\t\t# "{described[far]}" lid 8 {speed}')
    for spine in range(spines):
        far = len(leaves) + spine
        lines += ["", f'Switch\t64 "{switch[far]}"\t\t# "{described[far]}" base port 0 lid 8 lmc 0']
        lines += [
            f'[{leaf + 1}]\t"{switch[leaf]}"[{100 + spine}]\t\t# "{described[leaf]}" lid {leaf} {speed}'
            for leaf in range(len(leaves))
        ]
    for leaf, (group, adapter) in enumerate(leaves):
        for port, host in enumerate(group, 1):
            name = adapter_name[host][adapter]
            lines += ["", f'Ca\t1 "{name}"\t\t# "dgx-{host:03d} mlx5_{adapter}"']
            lines.append(
                f'[1]({name[2:]}) \t"{switch[leaf]}"[{port}]\t\t# lid 9 lmc 0 "{described[leaf]}" lid {leaf} {speed}'
            )
    return "\n".join(lines) + "\n"


def nccl_xml(gpus=8, *, sm=90, links=18, to_switch=True, speed=400000):
    """NCCL's dump of a node whose GPUs each share a PCIe switch with a NIC."""
    half = gpus // 2
    text = '<system version="1">\n'
    for cpu in range(2):
        text += (
            f'  <cpu numaid="{cpu}" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17">\n'
        )
        for gpu in range(cpu * half, (cpu + 1) * half):
            rate = 'link_speed="32.0 GT/s PCIe" link_width="16"'
            text += f'    <pci busid="0000:{16 * gpu + 1:02x}:00.0" class="0x060400" {rate}>\n'
            text += f'      <pci busid="0000:{16 * gpu + 2:02x}:00.0" class="0x030200" {rate}>\n'
            text += f'        <gpu dev="{gpu}" sm="{sm}" gdr="1">\n'
            if to_switch:
                text += f'          <nvlink target="fffffff:ffff:ff" count="{links}" tclass="0x068000"/>\n'
            else:
                for other in range(gpus):
                    if other != gpu:
                        bus = f"0000:{16 * other + 2:02x}:00.0"
                        text += f'          <nvlink target="{bus}" count="{links}" tclass="0x030200"/>\n'
            text += "        </gpu>\n      </pci>\n"
            text += f'      <pci busid="0000:{16 * gpu + 3:02x}:00.0" class="0x020700" {rate}>\n'
            text += f'        <nic><net name="mlx5_{gpu}" dev="{gpu}" speed="{speed}" port="1" guid="0x1"/></nic>\n'
            text += "      </pci>\n    </pci>\n"
        text += "  </cpu>\n"
    return text + "</system>\n"


def nvidia_smi(gpus=8, nvlinks=18):
    """The matrix of a node with NVSwitches in which GPU i and NIC i share a PCIe switch."""
    names = [f"GPU{gpu}" for gpu in range(gpus)] + [f"NIC{gpu}" for gpu in range(gpus)]

    def entry(first, second):
        if first == second:
            return "X"
        if first < gpus and second < gpus:
            return f"NV{nvlinks}"
        here, there = first % gpus, second % gpus
        return "PIX" if here == there else "NODE" if here * 2 // gpus == there * 2 // gpus else "SYS"

    lines = ["\x1b[4m" + "\t".join(["", *names, "CPU Affinity", "NUMA Affinity"]) + "\x1b[0m"]
    for row, name in enumerate(names):
        lines.append("\t".join([f"{name:6}", *(entry(row, column) for column in range(2 * gpus)), "0-55", "0"]))
    lines += ["", "Legend:", "", "  X    = Self", "  SYS  = Connection traversing PCIe and the SMP interconnect", ""]
    lines += ["NIC Legend:", "", *(f"  NIC{gpu}: mlx5_{gpu}" for gpu in range(gpus))]
    return "\n".join(lines) + "\n"


HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0">
    <object type="Package" os_index="0">
      <object type="Core" os_index="0"/>
      <object type="Bridge" bridge_type="0-1">
        <object type="Bridge" bridge_type="1-1" pci_link_speed="31.507692">
          <object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0302 [10de:20b0] a1" pci_link_speed="31.5">
            <object type="OSDev" name="nvml0" osdev_type="1"/>
          </object>
          <object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0207 [15b3:101b] 00" pci_link_speed="31.5">
            <object type="OSDev" name="ib0" osdev_type="2"/>
            <object type="OSDev" name="mlx5_0" osdev_type="3"/>
          </object>
        </object>
        <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0300 [1a03:2000] [1a03:2000] 41" pci_link_speed="0"/>
      </object>
    </object>
    <object type="Package" os_index="1">
      <object type="Bridge" bridge_type="0-1">
        <object type="PCIDev" pci_busid="0000:81:00.0" pci_type="0302 [10de:20b0] a1" pci_link_speed="31.5"/>
      </object>
    </object>
  </object>
</topology>
"""
SLURM_YAML = """---
- topology: flat1
  flat: true
- topology: tree1
  cluster_default: true
  tree:
    switches:
      - switch: core
        children: leaf[0-1]
      - switch: leaf0
        nodes: n[00-03]
      - switch: leaf1
        nodes: n[04-07]
"""
GRAPHML = """<?xml version='1.0' encoding='utf-8'?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="node" attr.name="label" attr.type="string"/>
  <key id="d1" for="edge" attr.name="LinkSpeedRaw" attr.type="double"/>
  <graph edgedefault="undirected">
    <node id="0"><data key="d0">Paris</data></node>
    <node id="1"><data key="d0">Lyon</data></node>
    <node id="2"><data key="d0">Nice</data></node>
    <edge source="0" target="1"><data key="d1">8e9</data></edge>
    <edge source="1" target="2"><data key="d1">8e9</data></edge>
  </graph>
</graphml>
"""


SIMAI = (
    "9 2 2 3 12 H100\n4 5 6 7 8 \n"
    + "".join(f"{gpu} {4 + gpu // 2} 2880Gbps 0.000025ms 0\n" for gpu in range(4))
    + "".join(f"{gpu} {6 + gpu % 2} 400Gbps 0.0005ms 0\n" for gpu in range(4))
    + "".join(f"{leaf} 8 {rate}Gbps 0.0005ms 0\n" for leaf in (6, 7) for rate in (200, 200))
)
"""Two servers of two GPUs on two rails, which a switch joins by two cables each."""
FABRICS = {
    "ibnetdiscover": ibnetdiscover(4, 2, 2),
    "slurm-conf": (SAMPLES / "tree_topology.conf").read_text(),
    "slurm-block": (SAMPLES / "block_topology.conf").read_text(),
    "slurm-yaml": SLURM_YAML,
    "topograph": (SAMPLES / "topograph_model_medium.yaml").read_text(),
    "nccl": nccl_xml(4),
    "nvidia-smi": nvidia_smi(4),
    "graphml": GRAPHML,
    "astra-sim": (SAMPLES / "astra_hgx_h100_16gpu.yml").read_text(),
    "astra-json": '{"logical-dims": ["8", "2"]}',
    "hwloc": HWLOC,
    "simai": SIMAI,
}
"""A valid description of each kind."""
