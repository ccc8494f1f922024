import json

import networkx as nx
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import build, parse_topology
from quadrille.topologies.families.basic import star
from quadrille.topologies.files.node_link import dumps
from quadrille.topologies.files.topology_file import check_written, load_topology
from quadrille.topologies.routes.routing import Routes, Routing

STAR = star(2, bandwidth=1e9, latency=1e-6)


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "net.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write


def assert_equal(one, other):
    assert (one.name, one.endpoints, one.per_node) == (other.name, other.endpoints, other.per_node)
    assert dict(one.kinds) == dict(other.kinds)
    for column in ("sources", "targets", "bandwidths", "latencies", "cores"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))


TOPOLOGIES = [
    "star:hosts=3,bandwidth=1e9,latency=1e-6,cores=2",
    "dragonfly:groups=3,routers=4,hosts_per_router=2,global_links=1,bandwidth=1e9,latency=1e-6",
    "leaf-spine:leaves=2,spines=2,hosts_per_leaf=3,bandwidth=3e9,latency=1e-6",
    "frontier:gpus=11",
    "bench-2to1:gpus=100",
    "gpu-cluster:nodes=3,node=summit",
]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_topology_comes_back_from_its_file(write, topology):
    net = build(*parse_topology(topology))
    loaded = load_topology(write(dumps(net)))
    assert_equal(loaded, net)
    assert loaded.indices is None
    assert dumps(loaded).splitlines()[1:] == dumps(net).splitlines()[1:]


@pytest.mark.parametrize("edges", ["edges", "links"])
def test_networkx_reads_what_is_written_and_writes_what_is_read(write, edges):
    net = build(*parse_topology(TOPOLOGIES[1]))
    graph = nx.node_link_graph(json.loads(dumps(net)), edges="edges")
    assert dict(graph.nodes) == dict(net.graph().nodes)
    assert dict(graph.edges) == dict(net.graph().edges)
    loaded = load_topology(write(nx.node_link_data(graph, edges=edges))).graph()
    assert dict(loaded.nodes) == dict(graph.nodes)
    assert sorted(loaded.edges(data=True), key=str) == sorted(graph.edges(data=True), key=str)


def test_links_that_have_failed_come_back_failed(write):
    net = build(*parse_topology("leaf-spine:leaves=2,spines=2,hosts_per_leaf=3,bandwidth=3e9,latency=1e-6"))
    bandwidths = net.bandwidths.copy()
    bandwidths[net.link_numbers("leaf:0-spine:1")] = 0.0
    back = load_topology(write(dumps(net.with_bandwidths(bandwidths))))
    assert back.bandwidths.tolist() == bandwidths.tolist()
    assert back.link_names(Routes(back).between([0], [3]).links)[1] == "leaf:0>spine:0"


@pytest.mark.parametrize("multigraph", [True, False])
def test_an_edge_without_direction_is_a_cable_both_ways(write, multigraph):
    graph = nx.MultiGraph() if multigraph else nx.Graph()
    graph.add_edge("host:0", "switch:0", bandwidth=1e9, latency=1e-6)
    graph.add_edge("switch:0", "host:1", bandwidth=2e9, latency=1e-6)
    if multigraph:
        graph.add_edge("host:1", "switch:0", bandwidth=3e9, latency=1e-6)
    net = load_topology(write(nx.node_link_data(graph, edges="edges")))
    cables = net.link_names(np.arange(net.link_count)), net.bandwidths.tolist()
    first = ["host:0>switch:0", "switch:0>host:0", "switch:0>host:1", "host:1>switch:0"]
    more = ["switch:0>host:1#1", "host:1>switch:0#1"]
    assert cables[0][:4] == first
    assert sorted(cables[0][4:]) == sorted(more if multigraph else [])
    assert cables[1] == [1e9, 1e9, 2e9, 2e9] + ([3e9, 3e9] if multigraph else [])


def test_a_directed_graph_without_parallel_links_needs_no_keys(write):
    graph = nx.DiGraph(STAR.graph())
    net = load_topology(write(nx.node_link_data(graph, edges="edges")))
    assert sorted(net.graph().edges(data=True)) == sorted(STAR.graph().edges(data=True))


# Networks with routes of their own

PLATFORMS = {
    "listed": """<zone id="w" routing="Full"><host id="a" core="3"/><host id="b"/><host id="c"/>
<link id="l" bandwidth="1GBps" latency="1us"/><link id="f" bandwidth="2GBps" latency="5us" sharing_policy="FATPIPE"/>
<link id="d" bandwidth="3GBps" latency="7us" sharing_policy="SPLITDUPLEX"/>
<route src="a" dst="b"><link_ctn id="l"/><link_ctn id="f"/></route>
<route src="a" dst="c"><link_ctn id="l"/><link_ctn id="l"/></route>
<route src="b" dst="c"><link_ctn id="d" direction="UP"/></route></zone>""",
    "shared": '<cluster id="c" radical="0-4" bw="1GBps" lat="1us" sharing_policy="SHARED"/>',
    "backbone": '<cluster id="c" radical="0-4" bw="1GBps" lat="1us" bb_bw="2GBps" bb_lat="3us"/>',
    "fat backbone": '<cluster id="c" radical="0-4" bw="1GBps" lat="1us" bb_bw="2GBps" bb_sharing_policy="FATPIPE"/>',
    "torus": '<cluster id="c" radical="0-5" bw="1GBps" lat="1us" topology="TORUS" topo_parameters="3,2"/>',
    "dragonfly": """<cluster id="c" radical="0-7" bw="1GBps" lat="1us"
topology="DRAGONFLY" topo_parameters="2,1;1,1;2,1;2"/>""",
}


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_network_with_routes_of_its_own_comes_back_from_json(write, tmp_path, name):
    path = tmp_path / "net.xml"
    path.write_text(f'<platform version="4.1">{PLATFORMS[name]}</platform>')
    net = load_topology(path)
    check_written(net, "out.json")
    back = load_topology(write(dumps(net)))
    assert_equal(back, net)
    sources, targets = np.divmod(np.arange(net.endpoint_count**2), net.endpoint_count)
    for rule in ("shortest", "spray"):
        there, here = (Routes(one, Routing(rule)).between(sources, targets) for one in (net, back))
        assert (there.links.tolist(), there.shares.tolist()) == (here.links.tolist(), here.shares.tolist())
        assert there.latency.tolist() == here.latency.tolist()
    unshared = [None if one.unshared is None else one.unshared.tolist() for one in (net, back)]
    assert unshared[0] == unshared[1]
    assert dumps(back) == dumps(net)


def test_routes_between_too_many_endpoints_are_not_listed(tmp_path):
    path = tmp_path / "net.xml"
    path.write_text(f'<platform version="4.1">{PLATFORMS["shared"]}</platform>')
    with pytest.raises(InputError, match="own between 5 endpoints; JSON lists them one by one, between at most 4"):
        check_written(load_topology(path), "out.json", most_endpoints=4)


def test_parallel_links_keep_their_numbers(write):
    data = json.loads(dumps(STAR))
    data["edges"].append({"source": "host:0", "target": "switch:0", "key": 1, "bandwidth": 7e9, "latency": 0})
    net = load_topology(write(data))
    assert net.link(net.link_number("host:0>switch:0#1")).bandwidth == 7e9


def test_nodes_of_a_kind_may_have_any_order_and_numbers(write):
    data = json.loads(dumps(star(3, bandwidth=1e9, latency=1e-6)).replace("switch:0", "switch:7"))
    data["nodes"].insert(0, data["nodes"].pop())
    data["nodes"][1], data["nodes"][3] = data["nodes"][3], data["nodes"][1]
    net = load_topology(write(data))
    assert net.link_names(Routes(net).between([0], [2]).links) == ["host:0>switch:7", "switch:7>host:2"]


def test_routes_of_a_file_follow_its_links_not_its_family(write):
    data = json.loads(dumps(star(3, bandwidth=1e9, latency=1e-6)))
    data["edges"].append({"source": "host:0", "target": "host:2", "key": 0, "bandwidth": 1e9, "latency": 1e-6})
    net = load_topology(write(data))
    assert net.link_names(Routes(net).between([0], [2]).links) == ["host:0>host:2"]


def test_places_are_all_gpus_or_all_hosts_where_the_file_does_not_say(write):
    data = json.loads(dumps(star(3, bandwidth=1e9, latency=1e-6)))
    del data["graph"]["places"]
    assert load_topology(write(data)).endpoints == ("host", 3)


def broken(change):
    data = json.loads(dumps(STAR))
    change(data)
    return data


def twice_without_keys(data):
    for edge in data["edges"]:
        del edge["key"]
    data.update(multigraph=False)
    data["edges"].append(dict(data["edges"][0]))


def without_ways_to(node):
    return broken(lambda d: d.update(edges=[edge for edge in d["edges"] if edge["target"] != node]))


def two_pieces():
    data = json.loads(dumps(star(4, bandwidth=1e9, latency=1e-6)))
    data["nodes"].append({"id": "switch:1"})
    for edge in data["edges"]:
        for end in ("source", "target"):
            if {edge["source"], edge["target"]} & {"host:2", "host:3"} and edge[end] == "switch:0":
                edge[end] = "switch:1"
    return data


def alone(node):
    data = json.loads(dumps(build("gpu-cluster", {"nodes": 2, "node": "perlmutter"})))
    data["edges"] = [edge for edge in data["edges"] if node not in (edge["source"], edge["target"])]
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "is not JSON: .*line 1"),
        (dumps(STAR)[:-40], "is not JSON: .*line"),
        ("[1, 2]", "is not a graph in node-link form"),
        ("[" * 100_000, "is not (JSON|a graph in node-link form)"),
        ({"nodes": []}, "directed=None must be true or false"),
        (broken(lambda d: d.update(multigraph="no")), "multigraph='no' must be true or false: edges have keys"),
        (broken(lambda d: d.update(directed=False)), "edges\\[1\\]: link switch:0>host:0 with key=0 is there twice"),
        (broken(lambda d: d.update(directed=False, multigraph=False)), "edges\\[1\\]: .* with key=0 is there twice"),
        (broken(twice_without_keys), "edges\\[4\\]: link host:0>switch:0 is there twice"),
        (
            broken(lambda d: d["edges"][0].update(unshared=1)),
            "host:0>switch:0 has unshared=1; it must be true",
        ),
        (broken(lambda d: d.update(routes=7)), "routes must be a list of 2 lists, one from each host"),
        (broken(lambda d: d.update(routes=[[], []])), "routes\\[0\\] must be a list of 2 routes, one to each host"),
        (broken(lambda d: d.update(routes=[[[], [0, 4]], [[], []]])), "routes\\[0\\]\\[1\\]=\\[0, 4\\] .* from 0 to 3"),
        (broken(lambda d: d.update(routes=[[[], [True]], [[], []]])), "routes\\[0\\]\\[1\\]=\\[True\\] must be a list"),
        (broken(lambda d: d.update(routes=[[[], []], [[], [2]]])), "leads from host:1 to itself; it must be empty"),
        (broken(lambda d: d.pop("edges")), "is not a graph in node-link form: it has no list of edges"),
        (broken(lambda d: d.update(colour="red")), "the graph has 'colour', which is unknown; accepted are schema"),
        (
            broken(lambda d: d.update(schema="quadrille/record/1")),
            "schema='quadrille/record/1' must be 'quadrille/topology",
        ),
        (broken(lambda d: d["graph"].update(colour="red")), "graph has 'colour'"),
        (broken(lambda d: d.update(graph=[])), "graph=\\[\\] must be a table"),
        (broken(lambda d: d["nodes"][0].update(id="host-0")), "nodes\\[0\\]: node 'host-0' is not kind:index"),
        (broken(lambda d: d["nodes"].append({"id": "gateway"})), "nodes\\[3\\]: node 'gateway' is not kind:index"),
        (broken(lambda d: d["nodes"].append(7)), "nodes\\[3\\]: node 7 is not kind:index"),
        (broken(lambda d: d["nodes"].append(dict(d["nodes"][0]))), "nodes\\[3\\]: host:0 is there twice"),
        (broken(lambda d: d["nodes"][1].update(memory=8)), "nodes\\[1\\], host:1, has 'memory', which is unknown"),
        (broken(lambda d: d["nodes"][0].update(kind="gpu")), "host:0 has kind='gpu'"),
        (broken(lambda d: d["nodes"][0].update(cores=0)), "host:0 has cores=0"),
        (broken(lambda d: d["nodes"].pop()), "edges\\[0\\]: an edge ends at 'switch:0', which is not among the nodes"),
        (broken(lambda d: d["edges"][1].pop("source")), "edges\\[1\\]=.* has no source and target"),
        (broken(lambda d: d["edges"][0].update(target="host:0")), "leads from a node to itself"),
        (broken(lambda d: d["edges"][0].update(colour=1)), "edges\\[0\\], host:0>switch:0, has 'colour'"),
        (broken(lambda d: d["edges"].append(dict(d["edges"][0]))), "edges\\[4\\]: .* with key=0 is there twice"),
        (broken(lambda d: d["edges"][0].update(bandwidth=0)), "link host:0>switch:0 has bandwidth=0; .* above 0"),
        (broken(lambda d: d["edges"][0].update(bandwidth=-1)), "link host:0>switch:0 has bandwidth=-1"),
        (broken(lambda d: d["edges"][0].update(bandwidth=10**400)), "link host:0>switch:0 has bandwidth=1000"),
        (broken(lambda d: d["edges"][0].update(bandwidth=float("nan"))), "bandwidth=nan"),
        (broken(lambda d: d["graph"].update(arguments={"latency": float("inf")})), "graph has latency=inf"),
        (broken(lambda d: d["edges"][0].update(bandwidth=True)), "bandwidth=True"),
        (broken(lambda d: d["edges"][0].pop("latency")), "latency=None"),
        (broken(lambda d: d["edges"][0].update(latency="1us")), "latency='1us'"),
        (broken(lambda d: d["graph"].update(places=["host", 3])), "place host:2 of 3 is not among the nodes"),
        (broken(lambda d: d["graph"].update(places=["host", 10**12])), "place host:2 of 1000000000000 is not"),
        (broken(lambda d: d["graph"].update(places=["host", 0])), "must be \\[kind, count\\]"),
        (broken(lambda d: d["nodes"][0].update(cores=10**30)), "host:0 has cores=1000000000000000000000000000000; it"),
        (broken(lambda d: d["graph"].update(per_node=10**30)), "per_node=1000000000000000000000000000000 must be"),
        (broken(lambda d: d["graph"].update(name=["a"])), "name=\\['a'\\] must be a word"),
        (broken(lambda d: d["graph"].update(per_node=0)), "per_node=0 must be a whole number from 1"),
        (broken(lambda d: d["graph"].update(places="host")), "must be \\[kind, count\\]"),
        (broken(lambda d: d["graph"].update(places=["switch", 1])), "must be GPUs or hosts"),
        (without_ways_to("host:1"), "host:1 has no link to the others, or none from them"),
        (broken(lambda d: d["edges"][0].update(failed="yes")), "host:0>switch:0 has failed='yes'; it must be true or"),
        (
            broken(lambda d: d["edges"][0].update(failed=True)),
            "host:0 reaches 1 of 2 endpoints, not host:1",
        ),
        (alone("gpu:5"), "gpu:5 has no link to the others"),
        (alone("nic:5"), "nic:5 has no link to a GPU or a switch"),
        (two_pieces(), "the network is in pieces: host:0 reaches 2 of 4 endpoints, not host:2"),
    ],
)
def test_a_file_that_is_no_topology_is_refused_in_one_line(write, data, message):
    path = write(data)
    with pytest.raises(InputError, match=message) as refused:
        load_topology(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_a_network_of_links_in_one_direction_is_refused_where_there_is_no_path_back(write):
    data = json.loads(dumps(star(3, bandwidth=1e9, latency=1e-6)))
    data["nodes"].append({"id": "switch:1"})
    for edge in data["edges"]:
        if edge["source"] == "host:0":
            edge["target"] = "switch:1"
    data["edges"].append({"source": "switch:0", "target": "switch:1", "key": 0, "bandwidth": 1e9, "latency": 0})
    with pytest.raises(InputError, match="the network is in pieces: host:0 reaches 1 of 3 endpoints, not host:1"):
        load_topology(write(data))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_topology(tmp_path / "net.json")
    with pytest.raises(InputError, match="cannot be read: not a regular file"):
        load_topology(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "net.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(InputError, match="not text in UTF-8"):
        load_topology(path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/dev/zero", "/dev/zero: cannot be read: not a regular file"),
        (".", ".: cannot be read: not a regular file"),
        ("a\0b.json", "not the name of a file .embedded null"),
    ],
)
def test_what_cannot_be_read_whole_is_refused(path, message):
    with pytest.raises(InputError, match=message):
        load_topology(path)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    (tmp_path / "net.json").write_bytes(b"\xef\xbb\xbf" + dumps(STAR).encode())
    assert load_topology(tmp_path / "net.json").link_count == STAR.link_count


@pytest.mark.parametrize(
    "text", ["fat-tree:ports=4,bandwidth=1e9,latency=1e-6", "torus:dims=4x4,bandwidth=1e9,latency=1e-6"]
)
def test_a_written_family_comes_back_with_its_own_paths(tmp_path, text):
    family, arguments = parse_topology(text)
    net = build(family, arguments)
    path = tmp_path / "net.json"
    path.write_text(dumps(net))
    back = load_topology(path)
    sources, targets = np.divmod(np.arange(net.endpoint_count**2), net.endpoint_count)
    there, here = (Routes(one).between(sources, targets) for one in (net, back))
    assert back.paths is not None
    assert there.links.tolist() == here.links.tolist()


def test_a_changed_network_is_not_taken_for_its_family(tmp_path):
    net = build(*parse_topology("fat-tree:ports=4,bandwidth=1e9,latency=1e-6"))
    data = json.loads(dumps(net))
    data["edges"] = data["edges"][:-2]
    path = tmp_path / "net.json"
    path.write_text(json.dumps(data))
    assert load_topology(path).paths is None
