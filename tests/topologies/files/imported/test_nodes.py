"""Descriptions of nodes become their parts and cables, and merge with a fabric."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.basic import star
from quadrille.topologies.files import node_link
from quadrille.topologies.files.imported.fabric_network import Rates
from quadrille.topologies.files.imported.import_topology import import_topology
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.nodes.nvswitch_nodes import HGX_H100
from quadrille.topologies.routes.search import Hops
from tests.support.fabric_files import GRAPHML, HWLOC, SAMPLES, ibnetdiscover, nccl_xml, nvidia_smi


def read(tmp_path, *texts, **options):
    paths = [tmp_path / f"part{number}" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return import_topology([str(path) for path in paths], **options)


def kinds(net):
    return {kind: count for kind, (_, count) in net.kinds.items()}


def cables(net, first, second):
    """Bandwidths of the links from nodes of one kind to nodes of another."""
    ends = [range(start, start + count) for start, count in (net.kinds[first], net.kinds[second])]
    return net.bandwidths[np.isin(net.sources, ends[0]) & np.isin(net.targets, ends[1])].tolist()


def test_nccls_dump_of_a_hopper_node_has_the_rates_of_the_data_sheet(tmp_path):
    net, remarks = read(tmp_path, nccl_xml())
    assert kinds(net) == {"gpu": 8, "nvswitch": 1, "cpu": 2, "pcie": 8, "nic": 8}
    assert cables(net, "gpu", "nvswitch") == [HGX_H100.nvlink_bandwidth] * 8
    assert cables(net, "gpu", "pcie") == pytest.approx([63.015e9] * 8, rel=1e-4)
    assert net.per_node == 8 and remarks == ()


def test_links_to_all_gpus_beyond_what_a_gpu_has_are_links_to_a_switch(tmp_path):
    mesh, _ = read(tmp_path, nccl_xml(4, sm=80, links=4, to_switch=False))
    assert cables(mesh, "gpu", "gpu") == [100e9] * 12
    switched, _ = read(tmp_path, nccl_xml(4, sm=80, links=12, to_switch=False))
    assert cables(switched, "gpu", "nvswitch") == [300e9] * 4


def test_blackwells_links_are_twice_as_fast(tmp_path):
    net, _ = read(tmp_path, nccl_xml(2, sm=100))
    assert cables(net, "gpu", "nvswitch") == [900e9] * 2


def test_a_users_file_without_nvlinks_is_a_tree_of_pcie():
    net, remarks = import_topology([str(SAMPLES / "ndv4-topo.xml")])
    assert kinds(net) == {"gpu": 8, "cpu": 4, "pcie": 4, "nic": 8}
    assert "no NVLinks" in remarks[0]
    assert cables(net, "gpu", "pcie") == pytest.approx([31.508e9] * 8, rel=1e-4)


def test_the_matrix_of_nvidia_smi_and_nccls_dump_agree_about_a_node(tmp_path):
    matrix, _ = read(tmp_path, nvidia_smi())
    dump, _ = read(tmp_path, nccl_xml())
    assert kinds(matrix) == kinds(dump)
    for ends in (("gpu", "nvswitch"), ("gpu", "pcie"), ("nic", "pcie"), ("pcie", "cpu")):
        assert cables(matrix, *ends) == pytest.approx(cables(dump, *ends), rel=1e-3)
    assert dict(matrix.labels) == {f"mlx5_{nic}": f"nic:{nic}" for nic in range(8)}


def test_hwloc_gives_gpus_and_cards_without_the_screen_of_the_board(tmp_path):
    net, remarks = read(tmp_path, HWLOC)
    assert kinds(net) == {"gpu": 2, "cpu": 2, "pcie": 1, "nic": 1}
    assert dict(net.labels) == {"mlx5_0": "nic:0"}
    assert any("NVLinks" in line for line in remarks)


def test_a_node_and_a_fabric_become_one_network(tmp_path):
    fabric, node = ibnetdiscover(4, 2, 2, adapters=8), nccl_xml()
    net, remarks = read(tmp_path, fabric, node, node="hgx-h100")
    assert kinds(net) == {"gpu": 32, "nvswitch": 4, "cpu": 8, "pcie": 32, "nic": 32, "leaf": 16, "spine": 2}
    assert (net.endpoints, net.per_node, net.node_kind) == (("gpu", 32), 8, "hgx-h100")
    assert net.labels["dgx-002/mlx5_5"] == "nic:21" and remarks == ()
    near, far = net.endpoint_nodes()[[5, 13]].tolist()
    assert Hops(net).nearest(near)[far] == 6  # gpu, pcie, nic, leaf, nic, pcie, gpu
    assert read(tmp_path, node, fabric, node="hgx-h100")[0].kinds == net.kinds


def test_a_named_node_stands_for_a_file(tmp_path):
    net, _ = read(tmp_path, ibnetdiscover(4, 2, 2, adapters=8), node="hgx-h100")
    assert kinds(net) == {"gpu": 32, "nvswitch": 4, "nic": 32, "leaf": 16, "spine": 2}
    assert cables(net, "nic", "leaf") == [50e9] * 32


def test_a_fabric_without_rates_takes_those_of_the_nodes_cards(tmp_path):
    net, _ = read(
        tmp_path, "SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\nSwitchName=c Switches=a,b", node="hgx-h100"
    )
    assert cables(net, "nic", "leaf") == [50e9] * 64
    assert cables(net, "leaf", "spine") == [4 * 8 * 50e9] * 2


def test_an_astra_network_has_its_dimensions_and_its_gigabytes():
    net, _ = import_topology([str(SAMPLES / "astra_hgx_h100_16gpu.yml")])
    assert kinds(net) == {"gpu": 16, "switch": 2}
    assert cables(net, "gpu", "switch") == [400 * 2**30] * 16
    assert cables(net, "gpu", "gpu") == [50 * 2**30] * 16
    assert sorted(set(net.latencies.tolist())) == pytest.approx([936.25e-9, 1e-6])


@pytest.mark.parametrize(("shape", "sizes"), [("Ring", (4, 8)), ("FullyConnected", (3, 4)), ("Ring", (2, 5))])
def test_an_astra_network_is_the_product_of_its_dimensions(tmp_path, shape, sizes):
    text = f"topology: [{shape}, {shape}]\nnpus_count: [{sizes[0]}, {sizes[1]}]\nbandwidth: [1, 2]\nlatency: [1, 1]\n"
    net, _ = read(tmp_path, text)
    line = nx.cycle_graph if shape == "Ring" else nx.complete_graph
    expected = nx.cartesian_product(*(line(size) if size > 2 else nx.path_graph(size) for size in sizes))
    graph = nx.Graph(net.graph())
    assert nx.is_isomorphic(graph, expected)


def test_a_graph_that_networkx_writes_is_the_same_network_again(tmp_path):
    net = star(5, bandwidth=25e9, latency=1e-6, cores=2)
    graph = net.graph()
    graph.graph.clear()
    nx.write_graphml(graph, tmp_path / "star.graphml")
    again, _ = import_topology([str(tmp_path / "star.graphml")])
    links = [
        sorted(zip(*(part.tolist() for part in (n.sources, n.targets, n.bandwidths, n.latencies)), strict=True))
        for n in (again, net)
    ]
    assert links[0] == links[1]
    assert again.cores.tolist() == [2] * 5


def test_a_graph_without_kinds_computes_at_its_ends(tmp_path):
    net, _ = read(tmp_path, GRAPHML, rates=Rates(latency=1e-3))
    assert kinds(net) == {"host": 2, "switch": 1} and dict(net.labels)["Lyon"] == "switch:0"
    assert set(net.bandwidths.tolist()) == {1e9}


BOMB = '<!DOCTYPE x [<!ENTITY a "ha">]><system version="1"><cpu>&a;</cpu></system>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "entities are refused"),
        ("<system>" + "<pci>" * 100, "nested more than"),
        ("<system><cpu>", "line 1: is not XML"),
        ("<system/>", "has 0 GPUs"),
        ("<other/>", "<other> is none of"),
        (nccl_xml(2).replace('dev="1"', 'dev="9999999"'), "line .*dev='9999999'"),
        (nccl_xml(2).replace("32.0 GT/s PCIe", "fast"), "link_speed='fast'"),
        (nccl_xml(2).replace('count="18"', 'count="1e9"'), "count='1e9'"),
        (nvidia_smi()[:-900].replace("NIC7", "NIC6"), "there twice"),
        (nvidia_smi().replace("PIX", "NEAR"), "'NEAR'; X, NV#"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1\n", "GPU1 has no row"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1\nGPU1\tNV2\tX\n", "GPU0 to GPU1 is NV1 and"),
        (GRAPHML.replace('target="2"', 'target="9"'), "line .*'9', which is not among"),
        (GRAPHML.replace("8e9", "x"), "LinkSpeedRaw='x'"),
        (HWLOC.replace("0302 [", "zz ["), "pci_type='zz"),
        (HWLOC.replace('"31.507692"', '"nan"'), "pci_link_speed='nan'"),
        ("topology: [Ring]\nnpus_count: [1000000000000]\nbandwidth: [1]\nlatency: [1]\n", "too many"),
        ("topology: [Ring]\nnpus_count: [4, 4]\nbandwidth: [1]\nlatency: [1]\n", "equal length"),
        ("topology: [Moebius]\nnpus_count: [4]\nbandwidth: [1]\nlatency: [1]\n", "'Moebius' is unknown"),
        ('{"logical-dims": ["4"]}', "has no rates"),
        ("", "is empty"),
        ("\0\0\0", "zero byte"),
        ("hello: world\n", "not of a known kind"),
        ('{"nodes": [], "edges": []}', "is a node-link graph"),
    ],
)
def test_a_faulty_description_is_one_line_with_its_place(tmp_path, text, reason):
    with pytest.raises(InputError, match=reason):
        read(tmp_path, text)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not text in UTF-8"):
        import_topology([str(path)])


def test_files_that_do_not_go_together_are_refused(tmp_path):
    with pytest.raises(InputError, match="is a second node"):
        read(tmp_path, nccl_xml(), nvidia_smi())
    with pytest.raises(InputError, match="is a whole network"):
        read(tmp_path, GRAPHML, nccl_xml())
    with pytest.raises(InputError, match="is a second fabric"):
        read(tmp_path, "SwitchName=a Nodes=n[0-3]\n", "SwitchName=a Nodes=n[0-3]\n")
    with pytest.raises(InputError, match="has 8 GPUs, and the node"):
        read(tmp_path, ibnetdiscover(2, 2, 1), nccl_xml(4), node="hgx-h100")


def test_a_network_file_that_names_its_nodes_is_a_machine_with_their_gpus(tmp_path):
    net, _ = read(tmp_path, ibnetdiscover(2, 2, 1, adapters=8), node="hgx-h100")
    path = tmp_path / "fabric.json"
    path.write_text(node_link.dumps(net))
    assert find_machine(str(path)).device == find_machine("h100-superpod").device
    assert find_machine(str(path)).routing == "spray"
    path.write_text(node_link.dumps(replace(net, node_kind="")))
    with pytest.raises(InputError, match=r"is a topology alone.*names its nodes"):
        find_machine(str(path))
