import networkx as nx
import numpy as np
import pytest

from quadrille.experiments.drawing.network_picture import LINK_KIND, picture_of
from quadrille.experiments.drawing.topology_figure import network_figure
from quadrille.experiments.network.topology_show import find_topology

RATES = "bandwidth=1e9,latency=1e-6"
PLATFORM = """<platform version="4.1"><zone id="w" routing="Full">
<host id="a" speed="1Gf"/><host id="b" speed="1Gf"/><host id="c" speed="1Gf"/>
<link id="l1" bandwidth="1GBps" latency="7us"/><link id="l2" bandwidth="1GBps" latency="7us"/>
<link id="l3" bandwidth="1GBps" latency="7us"/><link id="bb" bandwidth="2GBps" latency="7us"/>
<route src="a" dst="b"><link_ctn id="l1"/><link_ctn id="bb"/><link_ctn id="l2"/></route>
<route src="a" dst="c"><link_ctn id="l1"/><link_ctn id="bb"/><link_ctn id="l3"/></route>
<route src="b" dst="c"><link_ctn id="l2"/><link_ctn id="bb"/><link_ctn id="l3"/></route></zone></platform>"""


def graph_of(picture):
    graph = nx.Graph()
    graph.add_nodes_from(range(len(picture.positions)))
    graph.add_edges_from(cable.ends for cable in picture.cables)
    return graph


@pytest.mark.parametrize("dims", ["4x3", "5x4x3", "3x2x2x2", "2x2x2x2x2x2"])
@pytest.mark.parametrize("hosts", [0, 2])
def test_no_two_nodes_of_a_torus_stand_in_one_place(dims, hosts):
    picture = picture_of(find_topology(f"torus:dims={dims},hosts_per_router={hosts},{RATES}"))
    assert len(np.unique(picture.positions.round(6), axis=0)) == len(picture.positions)


def test_a_torus_is_drawn_on_its_lattice_and_only_closing_cables_are_curved():
    picture = picture_of(find_topology(f"torus:dims=4x3,{RATES}"))
    assert sorted(map(tuple, picture.positions)) == [(x, y) for x in range(4) for y in range(3)]
    curved = [cable for cable in picture.cables if cable.curvature]
    assert len(curved) == 4 + 3
    assert nx.is_isomorphic(graph_of(picture), nx.grid_graph([4, 3], periodic=True))


def test_a_mesh_has_no_curved_cables():
    picture = picture_of(find_topology(f"mesh:dims=4x3,{RATES}"))
    assert not any(cable.curvature for cable in picture.cables)


def test_the_nodes_of_a_ring_stand_on_a_circle():
    picture = picture_of(find_topology(f"ring:hosts=8,{RATES}"))
    radii = np.hypot(*picture.positions.T)
    assert radii == pytest.approx(np.full(8, radii[0]))


def test_hosts_of_a_platform_are_joined_through_the_links_of_their_routes(tmp_path):
    (tmp_path / "net.xml").write_text(PLATFORM)
    picture = picture_of(find_topology(str(tmp_path / "net.xml")))
    graph = graph_of(picture)
    assert nx.is_connected(graph)
    by_label = {label: node for node, label in enumerate(picture.labels)}
    assert set(by_label) == {"a", "b", "c", "l1", "l2", "l3", "bb"}
    assert nx.shortest_path(graph, by_label["a"], by_label["c"]) == [
        by_label[name] for name in ("a", "l1", "bb", "l3", "c")
    ]
    assert len(picture.kinds[LINK_KIND]) == 4


def test_used_links_have_colours_and_the_others_are_grey():
    net = find_topology(f"star:hosts=3,{RATES}")
    figure = network_figure(net, {"host:0>switch:0": 0.9})
    colours = [patch.get_edgecolor() for patch in figure.axes[0].patches]
    assert len(colours) == 3
    assert sum(len(set(colour[:3])) > 1 for colour in colours) == 1
    assert "Which links are used most?" in figure.get_suptitle()
    assert figure.axes[1].get_ylabel() == "utilisation of the busier direction [%]"
