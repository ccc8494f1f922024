"""The order of nodes with the least predicted time: found where there is one, and written for MPI and Slurm."""

import json
from itertools import permutations

import numpy as np
import pytest

from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.place.allocation import allocated_names
from quadrille.experiments.place.node_orders import best_orders
from quadrille.experiments.place.node_traffic import FabricLoad, node_classes, node_traffic
from quadrille.experiments.place.rank_files import FORMS
from quadrille.simulator.machine.placement import endpoints_by_rule
from quadrille.topologies.files import node_link
from quadrille.topologies.files.imported.fabric_network import Rates
from quadrille.topologies.files.imported.import_topology import import_topology
from quadrille.topologies.routes.routing import Routes, parse_routing
from tests.support.quadrille import called

CONF = "SwitchName=core Switches=leaf[0-1]\nSwitchName=leaf0 Nodes=n[0-3]\nSwitchName=leaf1 Nodes=n[4-7]\n"
JOB = ["--gpt", "layers=1,hidden=1024,heads=16,sequence=512,vocabulary=1024", "--batch", "4", "--micro-batch", "1"]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory):
    """A network file of 8 nodes of 8 GPUs under two leaves with a 64th of their bandwidth upwards."""
    folder = tmp_path_factory.mktemp("fabric")
    (folder / "topology.conf").write_text(CONF)
    net, _ = import_topology([str(folder / "topology.conf")], node="hgx-h100", rates=Rates(oversubscription=64.0))
    (folder / "fabric.json").write_text(node_link.dumps(net))
    return folder / "fabric.json"


def question(fabric, grid, sizes, names):
    """The load of orders of these nodes, as a function of the classes at the places, and the classes."""
    net, _ = import_topology(
        [str(fabric.parent / "topology.conf")], node="hgx-h100", rates=Rates(oversubscription=64.0)
    )
    nodes = [net.node_names.index(name) for name in names]
    classes = node_classes(net, nodes)
    load = FabricLoad(Routes(net, parse_routing("spray")), nodes, classes)
    traffic = node_traffic(grid, sizes, np.arange(grid.size) // 8)
    return lambda chosen: load.seconds(traffic, chosen), classes


def test_the_load_of_a_ring_is_its_bytes_over_the_uplinks(fabric):
    """Two rings of 2 nodes: over the core, 2 nodes x 8 GPUs send at once over 4 x 8 x 50 GB/s / 64."""
    grid, names = Grid(data=2, x=16), ("n0", "n1", "n4", "n5")
    load, classes = question(fabric, grid, {"data": 1e9}, names)
    assert classes.tolist() == [0, 0, 1, 1]
    apart, together = load(np.array([0, 0, 1, 1])), load(np.array([0, 1, 0, 1]))
    assert apart == pytest.approx(2 * 8 * 1e9 / (4 * 8 * 50e9 / 64), rel=2e-3)
    assert together == pytest.approx(1e9 / 50e9, rel=2e-3)


def test_the_search_finds_the_least_load_of_all_orders(fabric):
    grid, names = Grid(data=4, x=16), tuple(f"n{node}" for node in (0, 4, 1, 5, 2, 6, 3, 7))
    load, classes = question(fabric, grid, {"data": 3e9, "x": 1e9}, names)
    least = min(load(np.array(order)) for order in set(permutations(classes.tolist())))
    orders = best_orders(classes, 8, load, 3, 500)
    assert orders[0].load == pytest.approx(least)
    assert sorted(orders[0].places.tolist()) == list(range(8))
    assert orders == sorted(orders, key=lambda order: order.load)


def test_a_bad_order_is_mended_and_the_file_predicts_the_printed_time(fabric, tmp_path, capsys):
    """Groups of 16 GPUs along z are pairs of nodes; as given, each pair is under two leaves."""
    places = tmp_path / "places.txt"
    words = ["--matmul", "4096,4096,4096", "--grid", "z=16,x=4", "--order", "z,y,x", "--collectives", "own"]
    options = ["--topology", fabric, "--nodes", "n0,n4,n1,n5,n2,n6,n3,n7", "--out", places, "--form", "placement"]
    done = called(capsys, "place", *words, *options, "--top", "1")
    best = done.out.splitlines()[0]
    assert best.startswith("Order searched 1 is best: ") and "less than as given" in best
    again = called(capsys, "simulate", *words, "--machine", fabric, "--placement", places, "--quiet")
    assert f"total: {best.split(': ')[1].split(', ')[0]} " in again.out
    nodes = [int(line.removeprefix("gpu:")) // 8 for line in places.read_text().split()]
    assert [sorted({node // 4 for node in nodes[first : first + 16]}) for first in range(0, 64, 16)] in (
        [[0], [0], [1], [1]],
        [[1], [1], [0], [0]],
        [[0], [1], [0], [1]],
        [[1], [0], [1], [0]],
        [[0], [1], [1], [0]],
        [[1], [0], [0], [1]],
    )


def test_an_order_that_keeps_groups_under_one_leaf_is_left_alone(fabric, capsys):
    words = ["--matmul", "4096,4096,4096", "--grid", "z=16,x=4", "--order", "z,y,x", "--collectives", "own"]
    done = called(capsys, "place", *words, "--topology", fabric, "--nodes", "n[0-7]", "--top", "1")
    assert done.out.startswith("The order as given is best: ")


def test_a_dead_cable_costs_what_the_line_says(fabric, capsys):
    words = [*JOB, "--grid", "data=4,x=8", "--topology", str(fabric), "--nodes", "n[0-3]", "--top", "1"]
    done = called(capsys, "place", *words, "--fail", "n0/nic0>*")
    assert "Without the faults, this order takes " in done.out.splitlines()[1]


def test_nodes_below_the_same_switches_need_no_order(fabric, capsys):
    done = called(capsys, "place", *JOB, "--grid", "data=2,x=8", "--topology", str(fabric), "--nodes", "n[0-1]")
    assert done.out.startswith("The order of the nodes does not matter: all are below the same switches.")
    assert done.out.count("\n") == 1


def test_json_has_the_orders_and_the_verdict_and_stands_alone(fabric, capsys):
    words = ["--matmul", "4096,4096,4096", "--grid", "z=16,x=4", "--order", "z,y,x", "--collectives", "own"]
    options = ["--topology", str(fabric), "--nodes", "n0,n4,n1,n5,n2,n6,n3,n7", "--top", "1", "--json", "-"]
    answer = json.loads(called(capsys, "place", *words, *options).out)
    assert answer["schema"] == "quadrille/node-orders/1" and answer["best"] == "searched 1"
    given, searched = answer["orders"]
    assert given["nodes"] == options[3].split(",") and sorted(searched["nodes"]) == sorted(given["nodes"])
    assert searched["against_given"] == pytest.approx(searched["seconds"] / given["seconds"] - 1)
    assert f"{-100 * searched['against_given']:.1f} % less" in answer["verdict"][0]


def test_the_figure_has_a_bar_for_each_order_and_a_box_for_each_node(fabric, capsys, tmp_path):
    words = ["--matmul", "4096,4096,4096", "--grid", "z=16,x=4", "--order", "z,y,x", "--collectives", "own"]
    options = ["--topology", str(fabric), "--nodes", "n0,n4,n1,n5,n2,n6,n3,n7", "--top", "1", "--quiet"]
    path = tmp_path / "place.svg"
    done = called(capsys, "place", *words, *options, "--plot", path)
    assert (done.status, done.err) == (0, "")
    figure = path.read_text()
    for text in ("Which order of the nodes is the fastest?", "as given", "searched 1", "below the switches of n0"):
        assert text in figure
    assert [figure.count(f"<!-- n{node} -->") for node in range(8)] == [2] * 8
    assert figure.count("fill: #0072b2") >= 8


def test_a_figure_over_the_json_is_refused(fabric, capsys, tmp_path):
    path = tmp_path / "one.svg"
    words = [*JOB, "--grid", "data=2,x=8", "--topology", str(fabric), "--nodes", "n[0-1]", "--json", path]
    done = called(capsys, "place", *words, "--plot", path)
    assert (done.status, path.exists()) == (2, False)


def test_each_form_names_the_node_of_every_rank(fabric):
    net, _ = import_topology([str(fabric.parent / "topology.conf")], node="hgx-h100")
    of_rank = np.concatenate([np.arange(8) + 16, np.arange(8)])
    assert endpoints_by_rule(net, 16, 1).tolist() == list(range(16))
    assert FORMS["hostfile"](net, of_rank) == "n2 slots=8\nn0 slots=8\n"
    assert FORMS["slurm"](net, of_rank) == "n2\n" * 8 + "n0\n" * 8
    assert FORMS["rankfile"](net, of_rank).splitlines()[8:10] == ["rank 8=n0 slot=0", "rank 9=n0 slot=1"]
    assert FORMS["placement"](net, of_rank).split()[:2] == ["gpu:16", "gpu:17"]


def test_names_come_from_a_list_or_from_a_file(tmp_path):
    path = tmp_path / "nodes"
    path.write_text("# nodes\nn1\nn1\nn[2-3]\n")
    assert allocated_names(str(path)) == ["n1", "n2", "n3"]
    assert allocated_names("n[2-3],n1") == ["n2", "n3", "n1"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--nodes", ""], "--nodes '': a value is empty"),
        (["--nodes", "n[0-1"], "a bracket does not close"),
        (["--nodes", "n0,n0"], "'n0' is there twice"),
        (["--nodes", "n[0-1],m9"], "--nodes: 'm9' is unknown"),
        (["--nodes", "n0"], "16 ranks need 2 nodes; 1 are allocated"),
        (["--nodes", "./missing"], "cannot be read"),
        (["--nodes", "n[0-1]", "--form", "xml"], "--form 'xml': accepted are rankfile, hostfile, slurm, placement"),
        (["--nodes", "n[0-1]", "--top", "0"], "--top '0'"),
    ],
)
def test_a_faulty_allocation_is_one_line(fabric, words, reason, capsys):
    done = called(capsys, "place", *JOB, "--grid", "data=2,x=8", "--topology", str(fabric), *words)
    assert done.status == 2 and reason in done.err
    assert done.err.count("\n") == 1


def test_a_fabric_of_another_program_is_to_be_imported_first(fabric, capsys):
    words = ["--topology", str(fabric.parent / "topology.conf"), "--nodes", "n[0-1]"]
    assert "quadrille import topology makes one" in called(capsys, "place", *JOB, "--grid", "data=2,x=8", *words).line


def test_a_machine_without_names_of_nodes_is_refused(capsys):
    done = called(capsys, "place", *JOB, "--grid", "data=2,x=8", "--machine", "selene", "--nodes", "n[0-1]")
    assert done.status == 2 and "has no names of nodes" in done.err
