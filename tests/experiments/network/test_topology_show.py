"""`quadrille topology show`: its text, the network that it writes, its picture, and what it refuses."""

import json
import re

import numpy as np
import pytest

from quadrille.experiments.drawing.topology_figure import positions_of_nodes
from quadrille.experiments.network.topology_show import find_topology, link_bundles, node_levels, show_topology
from quadrille.topologies.build import build, parse_topology
from quadrille.topologies.files.node_link import dumps
from quadrille.topologies.files.topology_file import load_topology
from tests.support.quadrille import called

MACHINE = """schema = "quadrille/machine/1"
name = "two-hosts"
[topology]
family = "leaf-spine"
leaves = 2
spines = 1
hosts_per_leaf = 4
bandwidth_bytes_per_second = 25e6
latency_seconds = 25e-6
[device]
peak_flops_per_second = { float64 = 8e10 }
memory_bytes_per_second = 1e10
memory_bytes = 8e9
overhead_seconds = 5e-6
"""
PLATFORM = """<platform version="4.1"><zone id="w" routing="Full">
<host id="a" speed="1Gf"/><host id="b" speed="1Gf"/><link id="l" bandwidth="1GBps" latency="7us"/>
<route src="a" dst="b"><link_ctn id="l"/></route></zone></platform>"""


def shown(capsys, topology, **flags):
    show_topology(topology, **flags)
    return capsys.readouterr().out


def test_a_named_machine_of_any_size_is_shown_with_counts_and_figures(capsys):
    text = shown(capsys, "bench-2to1", gpus=256)
    assert "256 GPUs, 8 a node" in text
    assert "256 gpu, 32 nvswitch, 8 leaf, 1 spine" in text
    assert "diameter         4 links" in text
    assert re.search(r"bisection +3\.2 TB/s", text)  # four leaves of 800 GB/s
    assert re.search(r"oversubscription 2 ", text)
    assert "2.00 us to 4.00 us" in text


def test_the_sketch_names_every_cable_once(capsys):
    text = shown(capsys, "summit", gpus=12)
    sketch = text.split("\n\n")[1]
    net = find_topology("summit", 12)
    among = sum(int(n) for n in re.findall(r"(\d+) among", sketch))
    between = sum(int(n) for n in re.findall(r"(\d+) from", sketch))
    assert 2 * (among + between) == net.link_count
    for name in net.kinds:
        assert re.search(rf"^  {name} +{net.kinds[name][1]}$", sketch, re.MULTILINE)


def test_levels_go_from_the_top_down_to_the_places():
    assert node_levels(find_topology("tree:down=4x4x2,up=1,bandwidth=1e9,latency=0")) == [
        "core",
        "spine",
        "leaf",
        "host",
    ]
    assert node_levels(find_topology("abci-v100", 8))[-1] == "gpu"


def test_bundles_part_the_links():
    net = find_topology("gpu-cluster:nodes=2,node=dgx-a100")
    up = np.concatenate([bundle.links for bundle in link_bundles(net)])
    assert len(np.unique(up)) == len(up) == net.link_count // 2


PLUS = "dragonfly+:groups=3,leaves=2,spines=2,hosts_per_leaf=2,global_links=1,bandwidth=1e9,latency=1e-6"


@pytest.mark.parametrize("topology", ["perlmutter", PLUS])
def test_the_json_that_is_written_is_the_network(tmp_path, capsys, topology):
    gpus = 8 if topology == "perlmutter" else None
    show_topology(topology, gpus=gpus, json=str(tmp_path / "net.json"))
    capsys.readouterr()
    written = load_topology(tmp_path / "net.json")
    net = find_topology(topology, gpus)
    assert dumps(written).splitlines()[1:] == dumps(net).splitlines()[1:]
    again = shown(capsys, str(tmp_path / "net.json"))
    assert again.split("\n\n")[1] == shown(capsys, topology, gpus=gpus).split("\n\n")[1]


def test_json_on_stdout_is_nothing_but_json(capsys):
    data = json.loads(shown(capsys, "star:hosts=2,bandwidth=1e9,latency=0", json="-"))
    assert data["schema"] == "quadrille/topology/1"
    assert data["provenance"]["command"].startswith("quadrille topology show star")
    assert len(data["nodes"]) == 3


def test_machine_files_and_platforms_are_shown_too(tmp_path, capsys):
    (tmp_path / "two.toml").write_text(MACHINE)
    (tmp_path / "pair.xml").write_text(PLATFORM)
    assert "8 hosts" in shown(capsys, str(tmp_path / "two.toml"))
    text = shown(capsys, str(tmp_path / "pair.xml"))
    assert "as the file lists them" in text
    assert "7.00 us to 7.00 us" in text


def test_a_topology_beside_a_machine_file_is_shown(tmp_path, capsys):
    (tmp_path / "net.json").write_text(dumps(build(*parse_topology("star:hosts=5,bandwidth=1e9,latency=0"))))
    plain = MACHINE.split("[topology]")[0] + '[topology]\nfile = "net.json"\n[device]' + MACHINE.split("[device]")[1]
    (tmp_path / "five.toml").write_text(plain)
    assert "5 hosts" in shown(capsys, str(tmp_path / "five.toml"))


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path, capsys, ending):
    path = tmp_path / f"net.{ending}"
    shown(capsys, "perlmutter", gpus=16, figure=str(path))
    assert path.stat().st_size > 10_000
    if ending == "svg":
        text = path.read_text()
        assert "router" in text
        assert "perlmutter:gpus=16" in text


def test_places_are_drawn_at_the_bottom_and_no_two_nodes_in_one_place():
    net = find_topology("gpu-cluster:nodes=3,node=summit")
    where = positions_of_nodes(net)
    assert len(np.unique(where, axis=0)) == net.node_count
    assert (where[:18, 1] == 0).all()
    assert (where[18:, 1] > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense",), "family 'nonsense' is unknown"),
        (("",), "TOPOLOGY '': a value is empty"),
        (("perlmutter", "--gpus", "0"), "a whole number from 1"),
        (("perlmutter", "--gpus", "many"), "--gpus 'many'"),
        (("star:hosts=2,bandwidth=1e9,latency=0", "--gpus", "2"), "--gpus=2 is for named machines"),
        (("star:hosts=2",), "lacks bandwidth, latency"),
        (("star:hosts=2,bandwidth=0,latency=0",), "bandwidth=0 must be a finite number of B/s above 0"),
        (("no/such.json",), "no/such.json: cannot be read: No such file"),
        (("no/such.xml",), "no/such.xml: cannot be read: No such file"),
        (("frontier", "--figure", "f.png"), "112971 nodes; at most 600 are drawn"),
        (("perlmutter", "--figure", "f.bmp"), "bmp"),
        (("perlmutter", "--json", "no/such/folder/net.json"), "no/such/folder"),
        (("perlmutter", "--json", "same.svg", "--figure", "same.svg"), "both name same.svg"),
        (("perlmutter", "--plot", "f.bmp"), "--plot figure f.bmp ends in 'bmp'"),
        (("./net.json", "--json", "net.json"), "both name"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line_and_nothing_is_written(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    done = called(capsys, "topology", "show", *arguments)
    assert done.status == 2
    assert message in done.line
    assert not done.out
    assert not list(tmp_path.iterdir())


def test_the_command_shows_a_topology(capsys):
    done = called(capsys, "topology", "show", "h100-node")
    assert done.status == 0
    assert "8 GPUs" in done.out
    assert not done.err
