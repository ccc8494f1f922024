import json

import networkx as nx
import pytest

from algorithms.errors import InputError
from topologies.build import build, parse_topology
from topologies.file import load_topology
from topologies.graph import places
from topologies.routes import Routes
from topologies.star import star


def data_of(net, edges="edges"):
    return nx.node_link_data(net, edges=edges)


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "net.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write


@pytest.mark.parametrize("edges", ["edges", "links"])
@pytest.mark.parametrize("family", ["star:hosts=3,bandwidth=1e9,latency=1e-6,cores=2", "frontier:gpus=11"])
def test_a_topology_comes_back_from_its_file(write, family, edges):
    net = build(*parse_topology(family))
    loaded = load_topology(write(data_of(net, edges)))
    assert dict(loaded.nodes) == dict(net.nodes)
    assert list(loaded.edges(data=True)) == list(net.edges(data=True))
    assert places(loaded) == places(net)


def test_routes_of_a_file_follow_its_links_not_its_family(write):
    net = star(3, bandwidth=1e9, latency=1e-6)
    net.add_edge("host:0", "host:2", bandwidth=1e9, latency=1e-6)
    assert Routes(load_topology(write(data_of(net)))).between(0, 2) == ("host:0>host:2",)


def test_places_are_all_gpus_or_all_hosts_where_the_file_does_not_say(write):
    data = data_of(star(3, bandwidth=1e9, latency=1e-6))
    del data["graph"]["places"]
    assert places(load_topology(write(data))) == ["host:0", "host:1", "host:2"]


def broken(change):
    data = data_of(star(2, bandwidth=1e9, latency=1e-6))
    change(data)
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "is not a graph in node-link form"),
        ({"nodes": []}, "must be directed and multigraph"),
        (broken(lambda d: d.update(multigraph=False)), "must be directed and multigraph"),
        (broken(lambda d: d.pop("edges")), "is not a graph in node-link form: KeyError"),
        (broken(lambda d: d["nodes"][0].update(id="host-0")), "is not among the nodes"),
        (broken(lambda d: d["nodes"].append({"id": "gateway"})), "node 'gateway' is not kind:index"),
        (broken(lambda d: d["nodes"][0].update(cores=0)), "host:0 has cores=0"),
        (broken(lambda d: d["nodes"].pop()), "an edge ends at switch:0, which is not among the nodes"),
        (broken(lambda d: d["edges"][0].update(bandwidth=0)), "link host:0>switch:0 has bandwidth=0; .* above 0"),
        (broken(lambda d: d["edges"][0].pop("latency")), "latency=None"),
        (broken(lambda d: d["edges"][0].update(latency="1us")), "latency='1us'"),
        (broken(lambda d: d["graph"].update(places=["host", 3])), "place host:2 of 3 is not among the nodes"),
        (broken(lambda d: d["graph"].update(places=["host", 0])), "must be \\[kind, count\\]"),
        (broken(lambda d: d["graph"].update(places="host")), "must be \\[kind, count\\]"),
    ],
)
def test_a_file_that_is_no_topology_is_refused_in_one_line(write, data, message):
    path = write(data)
    with pytest.raises(InputError, match=message) as refused:
        load_topology(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_topology(tmp_path / "net.json")
