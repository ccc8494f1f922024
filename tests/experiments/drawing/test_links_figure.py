import errno
import json

import pytest

from quadrille.algorithms.formats import schema_files
from quadrille.experiments.drawing.links_figure import MOST_BARS, links_figure
from quadrille.experiments.drawing.topology_figure import HOT_QUESTION
from quadrille.experiments.network.topology_show import find_topology
from tests.support.quadrille import called

STAR = "star:hosts=3,bandwidth=1e9,latency=1e-6"


def coloured(figure):
    """The number of cables whose colour is no grey."""
    return sum(len(set(patch.get_edgecolor()[:3])) > 1 for patch in figure.axes[0].patches)


@pytest.fixture
def traffic(tmp_path):
    (tmp_path / "traffic.csv").write_text("source,destination,bytes,start_s\n0,1,1e9,0\n")
    return str(tmp_path / "traffic.csv")


def test_the_cables_of_used_links_are_coloured_and_cores_are_left_out():
    figure = links_figure({"host:0>switch:0": 1.0, "cores of host:0": 0.7}, find_topology(STAR), setting="a job")
    assert coloured(figure) == 1
    assert figure.get_suptitle().startswith(f"{HOT_QUESTION}\na job; widest line")


@pytest.mark.parametrize("net", [None, find_topology("torus:dims=9x9x9,bandwidth=1e9,latency=1e-6")])
def test_bars_have_the_busiest_links_where_no_network_can_be_drawn(net):
    used = {f"host:{number}>switch:0": number / 100 for number in range(30)}
    axes = links_figure(used, net).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([29 - place for place in range(MOST_BARS)])
    assert axes.get_yticklabels()[0].get_text() == "host:29>switch:0"
    assert f"the {MOST_BARS} busiest of 30 links" in axes.figure.get_suptitle()


def test_flows_draw_the_network_and_say_the_same_as_without(capsys, traffic, tmp_path):
    words = ("flows", traffic, "--machine", STAR)
    ended = called(capsys, *words, "--plot", tmp_path / "links.svg")
    assert (ended.status, ended.out.splitlines()[1:]) == (0, called(capsys, *words).out.splitlines()[1:])
    assert "1 flows on star" in (tmp_path / "links.svg").read_text()


def test_replay_draws_the_links_of_a_message(capsys, tmp_path):
    (tmp_path / "ring.goal").write_text(
        "num_ranks 2\nrank 0 {\nl1: send 1000000b to 1 tag 0\n}\nrank 1 {\nl1: recv 1000000b from 0 tag 0\n}\n"
    )
    words = ("replay", tmp_path / "ring.goal", "--machine", STAR, "--json", tmp_path / "replay.json")
    assert called(capsys, *words, "--plot", tmp_path / "links.svg").status == 0
    assert len(json.loads((tmp_path / "replay.json").read_text())["links"]) == 2
    assert "1 messages of 2 ranks" in (tmp_path / "links.svg").read_text()


def test_bad_figures_are_refused_in_a_line(capsys, traffic, tmp_path):
    for path, message in [("links.gif", "'gif'"), (tmp_path / "none" / "links.svg", "none"), (traffic, "both name")]:
        ended = called(capsys, "flows", traffic, "--machine", STAR, "--plot", path)
        assert ended.status == 2
        assert message in ended.line


def test_a_full_disk_is_a_line_and_leaves_no_file(capsys, traffic, tmp_path, monkeypatch):
    def full(path, content, mode):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(schema_files, "replace_file", full)
    ended = called(capsys, "flows", traffic, "--machine", STAR, "--plot", tmp_path / "links.svg")
    assert ended.status != 0
    assert "No space left on device" in ended.line
    assert not (tmp_path / "links.svg").exists()
