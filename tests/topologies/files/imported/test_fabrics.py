"""Descriptions of fabrics become networks with the hosts, switches and rates of the files."""

import time

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files import node_link
from quadrille.topologies.files.imported.fabric_network import Rates
from quadrille.topologies.files.imported.import_topology import import_topology
from quadrille.topologies.link_patterns import matching_links
from tests.support.fabric_files import SAMPLES, SLURM_YAML, ibnetdiscover

RATE = Rates(bandwidth=50e9)


def read(tmp_path, text, name="fabric.txt", **options):
    path = tmp_path / name
    path.write_text(text)
    return import_topology([str(path)], **options)


def kinds(net):
    return {kind: count for kind, (_, count) in net.kinds.items()}


def between(net, first, second):
    """Bandwidth from one kind of nodes to another, all links together."""
    ends = [range(start, start + count) for start, count in (net.kinds[first], net.kinds[second])]
    return net.bandwidths[np.isin(net.sources, ends[0]) & np.isin(net.targets, ends[1])].sum()


def test_ibnetdiscover_gives_each_cable_once_with_its_rate(tmp_path):
    net, remarks = read(tmp_path, ibnetdiscover(8, 4, 2, adapters=2))
    assert kinds(net) == {"host": 8, "leaf": 4, "spine": 2}
    assert net.link_count == 2 * (8 * 2 + 4 * 2)
    assert set(net.bandwidths.tolist()) == {50e9}
    assert net.node_names == tuple(f"dgx-{host:03d}" for host in range(8))
    assert remarks == ()


def test_a_real_form_of_ibnetdiscover_is_read_without_its_aggregation_node():
    net, remarks = import_topology([str(SAMPLES / "superbench_ibnetdiscover.txt")])
    assert kinds(net) == {"host": 10, "leaf": 5, "spine": 2, "core": 1}
    assert set(net.bandwidths.tolist()) == {25e9}
    assert "rack-0908-01ib1-A/S01" in net.labels
    assert any("aggregation" in line for line in remarks)


@pytest.mark.parametrize(
    ("speed", "rate"), [("4xHDR", 25e9), ("2xHDR", 12.5e9), ("4xEDR", 12.5e9), ("4xXDR", 100e9), ("4xQDR", 4e9)]
)
def test_the_rate_of_a_cable_is_width_times_the_data_rate_of_a_lane(tmp_path, speed, rate):
    net, _ = read(tmp_path, ibnetdiscover(2, 2, 1, speed=speed))
    assert set(net.bandwidths.tolist()) == {rate}


def test_ten_thousand_hosts_are_read(tmp_path):
    """The limit that the project promises is ten seconds; this machine may be busy, so processor time counts."""
    path = tmp_path / "large.txt"
    path.write_text(ibnetdiscover(10_000, 32, 16))
    started = time.process_time()
    net, _ = import_topology([str(path)])
    print(f"{time.process_time() - started:.1f} s of processor time")
    assert net.endpoint_count == 10_000 and kinds(net)["leaf"] == 313


def test_planes_of_one_fabric_are_joined_by_the_names_of_hosts(tmp_path):
    for plane in range(2):
        text = ibnetdiscover(4, 2, 1).replace("leaf-", f"p{plane}-leaf-").replace("spine-", f"p{plane}-spine-")
        (tmp_path / f"{plane}.txt").write_text(text.replace("mlx5_0", f"mlx5_{plane}"))
    net, _ = import_topology([str(tmp_path / "0.txt"), str(tmp_path / "1.txt")])
    assert kinds(net) == {"host": 4, "leaf": 4, "spine": 2}


def test_slurm_trees_carry_the_full_bandwidth_of_the_hosts_below_each_switch():
    net, _ = import_topology([str(SAMPLES / "tree_topology.conf")], rates=RATE)
    assert kinds(net) == {"host": 96, "leaf": 12, "spine": 6, "core": 1}
    assert between(net, "host", "leaf") == between(net, "leaf", "spine") == between(net, "spine", "core") == 96 * 50e9
    thin, _ = import_topology([str(SAMPLES / "tree_topology.conf")], rates=Rates(bandwidth=50e9, oversubscription=4.0))
    assert between(thin, "leaf", "spine") == 96 * 50e9 / 4


def test_a_switch_below_several_switches_shares_out_its_bandwidth(tmp_path):
    text = (
        "SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\nSwitchName=s1 Switches=a,b\nSwitchName=s2 Switches=a,b\n"
    )
    net, _ = read(tmp_path, text, rates=RATE)
    assert kinds(net) == {"host": 8, "leaf": 2, "spine": 2}
    assert set(net.bandwidths.tolist()) == {50e9, 2 * 50e9}


def test_slurm_blocks_are_switches_below_one():
    net, remarks = import_topology([str(SAMPLES / "block_topology.conf")], rates=RATE)
    assert kinds(net) == {"host": 96, "leaf": 12, "spine": 1}
    assert [line.partition(": ")[2] for line in remarks] == ["BlockSizes"]


def test_the_default_topology_of_slurms_yaml_is_read(tmp_path):
    net, remarks = read(tmp_path, SLURM_YAML, "topology.yaml", rates=RATE)
    assert kinds(net) == {"host": 8, "leaf": 2, "spine": 1}
    assert net.node_names[0] == "n00" and "flat1" in remarks[0]


def test_a_model_of_topograph_is_the_tree_that_its_comment_draws():
    net, _ = import_topology([str(SAMPLES / "topograph_model_medium.yaml")], rates=RATE)
    assert kinds(net) == {"host": 8, "leaf": 4, "spine": 2, "core": 1}
    assert net.node_names == ("1101", "1102", "1201", "1202", "1301", "1302", "1401", "1402")


def test_the_part_with_the_most_hosts_is_kept(tmp_path):
    net, remarks = read(tmp_path, "SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=m[0-1]\n", rates=RATE)
    assert net.node_names == ("n0", "n1", "n2", "n3")
    assert "2 hosts and 1 switches without a path" in remarks[0]


def test_names_survive_the_file_and_choose_links(tmp_path):
    net, _ = read(tmp_path, ibnetdiscover(4, 2, 2))
    again = node_link.parse(node_link.dumps(net), "fabric.json")
    assert again.node_names == net.node_names and dict(again.labels) == dict(net.labels)
    assert node_link.dumps(again) == node_link.dumps(net)
    for name, own in (("leaf-000>spine-01", "leaf:0>spine:1"), ("leaf-000-spine-01", "leaf:0-spine:1")):
        assert matching_links(again, name) == matching_links(again, own)
    assert matching_links(again, "leaf-001>*") == matching_links(again, "leaf:1>*")
    assert matching_links(again, "leaf-*-spine-0[01]") == matching_links(again, "leaf:*-spine:[01]")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n1\n", "is below itself"),
        ("SwitchName=a Switches=b\n", "'b' below it, which has no line"),
        ("SwitchName=a Nodes=n[1-2\n", "line 1: host list"),
        ("SwitchName=a Nodes=n[0-1000000000000]\n", "line 1: host list"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "line 2: 'a' is there twice"),
        ("SwitchName=a Nodes=a\n", "a switch and a host"),
        ("SwitchName=a Nodes=n1\nrubbish\n", "line 2: 'rubbish' is not key=value"),
        ("SwitchName=a Nodes=n1\n", "has no rates"),
        (ibnetdiscover(2, 2, 1)[:-30], "line .*truncated"),
        (ibnetdiscover(2, 2, 1).replace("4xNDR", "4xZZZ"), "speed 'ZZZ' is unknown"),
        (ibnetdiscover(2, 2, 1).replace("dgx", "MT4129 ConnectX7"), "no adapter whose description names a host"),
    ],
)
def test_a_faulty_description_is_one_line_with_its_place(tmp_path, text, reason):
    with pytest.raises(InputError, match=reason):
        read(tmp_path, text)
