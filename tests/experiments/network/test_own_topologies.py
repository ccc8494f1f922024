"""Collectives on topologies of one's own: nodes without `per_node`, several equal paths, and kinds of GPU."""

import json

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.nccl.layout import generation_of
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine_or_topology
from tests.support.quadrille import called

GIB = 1 << 30


def graph(path, gpus, switches, *, bandwidth=100e9, **attributes):
    """Every GPU is joined to every NVSwitch."""
    nodes = [*(f"gpu:{i}" for i in range(gpus)), *(f"nvswitch:{i}" for i in range(switches))]
    edges = [
        {"source": f"gpu:{i}", "target": f"nvswitch:{j}", "bandwidth": bandwidth, "latency": 1e-7}
        for i in range(gpus)
        for j in range(switches)
    ]
    data = {"directed": False, "multigraph": False, "graph": attributes, "nodes": [{"id": name} for name in nodes]}
    path.write_text(json.dumps(data | {"edges": edges}))
    return str(path)


def all_reduce(machine, gpus, **given):
    choices = parse_choices(given.pop("collectives", "own"))
    question = CollectiveQuestion(kind="all_reduce", bytes=GIB, gpus=gpus, group=gpus, choices=choices, **given)
    return predict_collective(question, machine)


@pytest.mark.parametrize("planes", [1, 2, 4])
def test_equal_paths_share_the_bytes_by_default(tmp_path, planes):
    machine = find_machine_or_topology(graph(tmp_path / "planes.json", 2, planes))
    assert machine.routing == "spray"
    assert all_reduce(machine, 2).bus_bandwidth == pytest.approx(planes * 100e9, rel=1e-3)


def test_a_rule_that_is_named_holds(capsys, tmp_path):
    file = graph(tmp_path / "planes.json", 2, 2)
    words = ["collective", "all-reduce", "--bytes", "1GiB", "--collectives", "own", "--machine", file, "--json", "-"]
    for rule, bandwidth in (("shortest", 100e9), ("spray", 200e9)):
        answer = json.loads(called(capsys, *words, "--routing", rule).out)
        assert answer["routing"] == rule
        assert answer["bus_bandwidth"] == pytest.approx(bandwidth, rel=1e-3)


def test_a_file_of_a_known_family_keeps_the_paths_of_the_family(capsys, tmp_path):
    words = ["topology", "show", "fat-tree:ports=4,bandwidth=1e9,latency=1e-6", "--json", tmp_path / "net.json"]
    assert called(capsys, *words).status == 0
    assert find_machine_or_topology(str(tmp_path / "net.json")).routing == "shortest"


@pytest.mark.parametrize(("gpus", "switches"), [(2, 1), (8, 4), (4, 2)])
@pytest.mark.parametrize("collectives", ["nccl", "nccl:ring", "nccl:tree"])
def test_nccl_takes_gpus_that_nvswitches_join_for_one_node(tmp_path, gpus, switches, collectives):
    machine = find_machine_or_topology(graph(tmp_path / "node.json", gpus, switches))
    assert network_of(machine).per_node == gpus
    answer = all_reduce(machine, gpus, collectives=collectives)
    wire = 2 * (gpus - 1) / gpus * GIB / (switches * 100e9)
    assert wire < answer.seconds < 2 * wire
    assert "1 nodes" in answer.why


def test_nodes_that_nvlinks_alone_join_are_one_for_nccl(tmp_path):
    """`per_node` of 1 in the file, and no link that leaves an NVSwitch's GPUs."""
    answer = all_reduce(
        find_machine_or_topology(graph(tmp_path / "node.json", 4, 1, per_node=1)), 4, collectives="nccl"
    )
    assert "1 nodes" in answer.why
    assert 0 < answer.seconds < 1


def test_two_nodes_of_a_file_are_found_by_their_switches(tmp_path):
    nodes = [f"gpu:{i}" for i in range(4)] + ["nvswitch:0", "nvswitch:1", "switch:0"]
    cables = [(f"gpu:{i}", f"nvswitch:{i // 2}", 300e9) for i in range(4)]
    cables += [(f"gpu:{i}", "switch:0", 25e9) for i in range(4)]
    edges = [{"source": a, "target": b, "bandwidth": rate, "latency": 1e-6} for a, b, rate in cables]
    data = {"directed": False, "multigraph": False, "graph": {}, "nodes": [{"id": name} for name in nodes]}
    (tmp_path / "two.json").write_text(json.dumps(data | {"edges": edges}))
    machine = find_machine_or_topology(str(tmp_path / "two.json"))
    assert network_of(machine).per_node == 2
    answer = all_reduce(machine, 4, collectives="nccl:ring")
    assert "2 nodes" in answer.why
    assert answer.different_paths == 2


def test_the_kind_of_node_can_be_named_and_decides_the_library(capsys, tmp_path):
    named = graph(tmp_path / "named.json", 8, 4, node="hgx-h100")
    machine = find_machine_or_topology(named)
    assert generation_of(machine) == "hopper"
    ended = called(capsys, "collective", "all-reduce", "--bytes", "1GiB", "--machine", named)
    assert "algorithm nccl (" in ended.out
    assert "kind of GPU" not in ended.err
    ended = called(capsys, "collective", "all-reduce", "--bytes", "1GiB", "--machine", graph(tmp_path / "n.json", 8, 4))
    assert "own:ring" in ended.out
    assert called(capsys, "topology", "show", named, "--json", tmp_path / "again.json").status == 0
    assert generation_of(find_machine_or_topology(str(tmp_path / "again.json"))) == "hopper"


def test_an_unknown_kind_of_node_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InputError, match=r"node='h1000' must be a kind of node: dgx-a100, hgx-h100"):
        find_machine_or_topology(graph(tmp_path / "n.json", 2, 1, node="h1000"))


def graph_of(path, cables, **attributes):
    """A graph of cables (node, node, bandwidth), each with 1 us of latency."""
    names = sorted({end for a, b, _ in cables for end in (a, b)}, key=lambda name: name.split(":"))
    edges = [{"source": a, "target": b, "bandwidth": rate, "latency": 1e-6} for a, b, rate in cables]
    data = {"directed": False, "multigraph": True, "graph": attributes, "nodes": [{"id": name} for name in names]}
    path.write_text(json.dumps(data | {"edges": edges}))
    return str(path)


@pytest.mark.parametrize("rates", [(125e9, 100e9, 100e9, 125e9), (50e9, 10e9), (1e9, 1e9, 7e9)])
def test_switches_that_differ_share_the_bytes_by_bandwidth(tmp_path, rates):
    """The GPUs of an HGX H100 have 5, 4, 4 and 5 of their 18 NVLinks to the four NVSwitches (SimAI issue 60)."""
    cables = [(f"gpu:{i}", f"nvswitch:{j}", rate) for i in range(4) for j, rate in enumerate(rates)]
    machine = find_machine_or_topology(graph_of(tmp_path / "uneven.json", cables))
    assert all_reduce(machine, 4).bus_bandwidth == pytest.approx(sum(rates), rel=5e-3)


def test_parallel_cables_that_differ_share_the_bytes_by_bandwidth(tmp_path):
    cables = [(host, "switch:0", rate) for host in ("gpu:0", "gpu:1") for rate in (30e9, 10e9)]
    machine = find_machine_or_topology(graph_of(tmp_path / "cables.json", cables))
    assert all_reduce(machine, 2).bus_bandwidth == pytest.approx(40e9, rel=1e-3)


@pytest.mark.parametrize("rates", [(40e9, 20e9, 10e9), (10e9, 10e9, 10e9)])
def test_a_narrow_link_behind_a_wide_link_limits_its_share(tmp_path, rates):
    """Three spines whose cables to the second leaf differ: the shares of the first hop follow the second."""
    cables = [("gpu:0", "leaf:0", 100e9), ("gpu:1", "leaf:1", 100e9)]
    for number, rate in enumerate(rates):
        cables += [("leaf:0", f"spine:{number}", 40e9), (f"spine:{number}", "leaf:1", rate)]
    machine = find_machine_or_topology(graph_of(tmp_path / "spines.json", cables))
    assert all_reduce(machine, 2).bus_bandwidth == pytest.approx(sum(rates), rel=1e-3)


def test_a_machine_file_with_a_graph_spreads_over_equal_paths_unless_it_names_a_rule(tmp_path):
    graph(tmp_path / "planes.json", 2, 2)
    head = 'schema = "quadrille/machine/2"\nname = "planes"\n'
    tables = '[topology]\nfile = "planes.json"\n[device]\nlike = "h100-superpod"\n'
    for text, routing, rate in ((head, "spray", 200e9), (head + 'routing = "shortest"\n', "shortest", 100e9)):
        (tmp_path / "m.toml").write_text(text + tables)
        machine = find_machine_or_topology(str(tmp_path / "m.toml"))
        assert machine.routing == routing
        assert all_reduce(machine, 2).bus_bandwidth == pytest.approx(rate, rel=1e-3)
