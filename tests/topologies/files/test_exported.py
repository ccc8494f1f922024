"""Networks go out as GraphML, GEXF and SimGrid XML, and come in again with the same links and predicted times."""

import json

import networkx as nx
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import build, parse_topology
from quadrille.topologies.files.exported import exported_text
from quadrille.topologies.files.topology_file import load_topology
from quadrille.topologies.routes.routing import Routes, parse_routing
from tests.support.quadrille import called

TREE = "fat-tree:ports=4,bandwidth=12.5e9,latency=1e-6"
NETWORKS = [
    TREE,
    "torus:dims=4x2,bandwidth=1e9,latency=1e-6",
    "dragonfly:groups=3,routers=2,hosts_per_router=2,global_links=1,bandwidth=1e9,latency=1e-6",
]


def network(text):
    return build(*parse_topology(text))


def seconds(capsys, machine, *words):
    answer = called(capsys, "collective", "all-to-all", "--bytes", "1MiB", "--machine", machine, *words, "--json", "-")
    assert answer.status == 0, answer.err
    return json.loads(answer.out)["seconds"]


@pytest.mark.parametrize("text", NETWORKS)
def test_graphml_comes_back_as_the_same_network_with_the_paths_of_its_family(capsys, tmp_path, text):
    called(capsys, "export", "topology", text, "--out", tmp_path / "net.graphml")
    ended = called(capsys, "import", "topology", tmp_path / "net.graphml", "--out", tmp_path / "net.json")
    assert ended.status == 0, ended.err
    net, original = load_topology(tmp_path / "net.json"), network(text)
    assert net.kinds == original.kinds
    for name in ("sources", "targets", "bandwidths", "latencies", "cores"):
        assert np.array_equal(getattr(net, name), getattr(original, name))
    assert net.paths is not None
    predicted = seconds(capsys, text, "--collectives", "own")
    assert seconds(capsys, tmp_path / "net.json", "--collectives", "own") == pytest.approx(predicted, rel=1e-9)


@pytest.mark.parametrize("text", NETWORKS)
def test_simgrid_comes_back_with_the_same_routes_and_predicted_time(capsys, tmp_path, text):
    path = tmp_path / "net.xml"
    called(capsys, "export", "topology", text, "--out", path)
    net, original = load_topology(path), network(text)
    sources, targets = np.divmod(np.arange(original.endpoint_count**2), original.endpoint_count)
    apart = sources != targets
    ours, theirs = (
        Routes(n, parse_routing("shortest")).between(sources[apart], targets[apart]) for n in (original, net)
    )
    assert np.array_equal(np.diff(ours.offsets), np.diff(theirs.offsets))
    assert np.allclose(ours.latency, theirs.latency, rtol=1e-12)
    predicted = seconds(capsys, text, "--routing", "shortest", "--collectives", "own")
    assert seconds(capsys, path, "--collectives", "own") == pytest.approx(predicted, rel=1e-9)


def test_gexf_has_every_link_with_its_rates(capsys, tmp_path):
    path = tmp_path / "net.gexf"
    assert called(capsys, "export", "topology", TREE, "--out", path).status == 0
    graph, net = nx.read_gexf(path), network(TREE)
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (net.node_count, net.link_count)
    assert {data["bandwidth"] for _, _, data in graph.edges(data=True)} == {12.5e9}
    assert graph.nodes["host:0"]["kind"] == "host"


def test_a_failed_cable_stays_failed_in_graphml_and_is_no_link_of_simgrid():
    net = network("leaf-spine:leaves=2,spines=2,hosts_per_leaf=1,bandwidth=1e9,latency=1e-6")
    cut = net.with_bandwidths(np.where(np.arange(net.link_count) < 2, 0.0, net.bandwidths))
    lost = net.link_names(np.arange(2))
    graph = nx.parse_graphml(exported_text(cut, "net.graphml"))
    assert {f"{a}>{b}" for a, b, data in graph.edges(data=True) if data.get("failed")} == set(lost)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["torus:dims=4x2,bandwidth=1e9,latency=1e-6", "--out", "net.json"], "ends in .graphml, .gexf or .xml"),
        (["torus:dims=4x2,bandwidth=1e9,latency=1e-6"], "--out ''"),
        (["torus:dims=32x32,bandwidth=1e9,latency=1e-6", "--out", "net.xml"], "has 1024 endpoints"),
        (["nowhere", "--out", "net.xml"], "nowhere"),
        (["torus:dims=4x2,bandwidth=1e9,latency=1e-6", "--out", "/no/folder/net.xml"], "does not exist"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, words, fault):
    monkeypatch.chdir(tmp_path)
    ended = called(capsys, "export", "topology", *words)
    assert ended.status == 2
    assert fault in ended.line
    assert not list(tmp_path.iterdir())


def test_a_name_with_another_ending_is_refused():
    with pytest.raises(InputError, match="names end in"):
        exported_text(network(TREE), "net.dot")
