"""Platforms of SimGrid: what its documentation says of latencies and shares, counted by hand."""

import numpy as np
import pytest

from algorithms.errors import InputError
from topologies.families.torus import torus
from topologies.families.tree import tree
from topologies.files.topology_file import load_topology
from topologies.routes.routing import Routes

HEAD = '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
RATES = 'speed="1Gf" bw="125MBps" lat="50us"'


@pytest.fixture
def load(tmp_path):
    def load(body, head=HEAD, version="4.1"):
        path = tmp_path / "net.xml"
        path.write_text(f'{head}<platform version="{version}">\n{body}\n</platform>\n')
        return load_topology(path)

    return load


def cluster(radical="0-15", more="", rates=RATES):
    return (
        f'<zone id="world" routing="Full">\n<cluster id="c" prefix="node-" suffix="" radical="{radical}" {rates} '
        f'{more} loopback_bw="100MBps" loopback_lat="0"/>\n</zone>'
    )


def latency(net, source, target):
    return Routes(net).between([source], [target]).latency[0]


# Clusters


def test_a_flat_cluster_is_a_star(load):
    net = load(cluster("0-3,10,20-22"))
    assert net.places == ("host", 8)
    paths = Routes(net).between([0, 7], [7, 0])
    assert paths.latency.tolist() == pytest.approx([100e-6, 100e-6])
    assert net.bandwidths[paths.links].tolist() == [125e6] * 4
    assert len(set(paths.links.tolist())) == 4


def test_links_of_a_shared_cluster_serve_both_directions(load):
    net = load(cluster(more='sharing_policy="SHARED"'))
    paths = Routes(net).between([0, 7], [7, 0])
    assert len(set(paths.links.tolist())) == 2


def test_a_backbone_is_shared_by_all_flows_and_both_directions(load):
    net = load(cluster(more='bb_bw="2.25GBps" bb_lat="500us"'))
    paths = Routes(net).between([0, 9], [9, 4])
    assert paths.latency.tolist() == pytest.approx([600e-6, 600e-6])
    middle = paths.links[1::3]
    assert middle[0] == middle[1]
    assert net.bandwidths[middle[0]] == 2.25e9


def test_a_fat_tree_is_ours(load):
    net = load(cluster(more='topology="FAT_TREE" topo_parameters="2;4,4;1,2;1,2"'))
    ours = tree((4, 4), (1, 2), parallel=(1, 2), bandwidth=125e6, latency=50e-6)
    assert dict(net.kinds) == dict(ours.kinds)
    np.testing.assert_array_equal(net.sources, ours.sources)
    assert latency(net, 0, 1) == pytest.approx(2 * 50e-6)
    assert latency(net, 0, 15) == pytest.approx(4 * 50e-6)


def test_a_torus_joins_hosts_directly(load):
    net = load(cluster("0-11", 'topology="TORUS" topo_parameters="3,2,2"'))
    ours = torus("3x2x2", bandwidth=125e6, latency=50e-6)
    assert net.link_count == ours.link_count
    assert latency(net, 0, 11) == pytest.approx(latency(ours, 0, 11)) == pytest.approx(3 * 50e-6)


def test_a_dragonfly_has_three_colours_of_links(load):
    """3 groups of 4 chassis of 5 routers of 2 hosts; 4 blue, 3 black, 1 green link a pair."""
    net = load(cluster("0-119", 'topology="DRAGONFLY" topo_parameters="3,4;4,3;5,1;2"'))
    green, black, blue = 3 * 4 * 10, 3 * 5 * 6, 3
    assert net.kinds["router"][1] == 60
    assert net.link_count == 2 * (120 + green + black + blue)
    rates, counts = np.unique(net.bandwidths, return_counts=True)
    assert dict(zip(rates, counts, strict=True)) == {
        125e6: 2 * (120 + green),
        3 * 125e6: 2 * black,
        4 * 125e6: 2 * blue,
    }
    assert latency(net, 0, 1) == pytest.approx(2 * 50e-6)
    sources, targets = np.divmod(np.arange(120 * 120), 120)
    assert Routes(net).between(sources, targets).latency.max() <= (2 + 5) * 50e-6 * (1 + 1e-9)


@pytest.mark.parametrize("version", ["4", "4.1"])
def test_a_cluster_need_not_be_in_a_zone_of_its_own(load, version):
    assert (
        load(f'<cluster id="c" prefix="a" suffix="b" radical="0-1" {RATES} core="4"/>', version=version).cores[1] == 4
    )


# Listed routes

PAIR = """<zone id="world" routing="Full">
<host id="alice" speed="1Gf" core="2"/> <host id="bob" speed="98.095Mf,2Gf" pstate="0"/> <host id="carol" speed="1Gf"/>
<link id="thin" bandwidth="10Mbps" latency="5ms"/>
<link id="fat" bandwidth="1GiBps" latency="20us" sharing_policy="SPLITDUPLEX"/>
<route src="alice" dst="bob"><link_ctn id="thin"/><link_ctn id="fat" direction="UP"/></route>
<route src="bob" dst="carol"><link_ctn id="fat" direction="DOWN"/></route>
<route src="alice" dst="carol" symmetrical="NO"><link_ctn id="thin"/></route>
<route src="carol" dst="alice" symmetrical="NO"><link_ctn id="thin"/><link_ctn id="thin"/></route>
</zone>"""


def listed(net, source, target):
    return [net.link(int(link)) for link in Routes(net).between([source], [target]).links]


def test_routes_are_those_that_the_file_lists(load):
    net = load(PAIR)
    assert net.places == ("host", 3)
    assert net.cores.tolist() == [2, 1, 1]
    thin, fat = listed(net, 0, 1)
    assert (thin.bandwidth, thin.latency) == pytest.approx((10e6 / 8, 5e-3))
    assert (fat.bandwidth, fat.latency) == pytest.approx((2**30, 20e-6))
    assert [link.name for link in listed(net, 0, 1)] == ["end:0>end:1", "end:2>end:3"]


def test_routes_back_take_shared_links_again_and_others_backwards(load):
    net = load(PAIR)
    assert [link.name for link in listed(net, 1, 0)] == ["end:3>end:2", "end:0>end:1"]
    assert [link.name for link in listed(net, 1, 2)] == ["end:3>end:2"]
    assert [link.name for link in listed(net, 2, 1)] == ["end:2>end:3"]
    assert [link.name for link in listed(net, 0, 2)] == ["end:0>end:1"]
    assert [link.name for link in listed(net, 2, 0)] == ["end:0>end:1"] * 2


ZONES = """<zone id="world" routing="Full">
<link id="wan" bandwidth="1GBps" latency="10ms"/>
<zone id="left" routing="Floyd">
<host id="a0" speed="1Gf"/><host id="a1" speed="1Gf"/><router id="ra"/>
<link id="l0" bandwidth="1GBps" latency="1us"/><link id="l1" bandwidth="1GBps" latency="2us"/>
<route src="a0" dst="ra"><link_ctn id="l0"/></route><route src="a1" dst="ra"><link_ctn id="l1"/></route>
</zone>
<AS id="right" routing="Full">
<host id="b0" speed="1Gf"/><router id="rb"/>
<link id="l2" bandwidth="1GBps" latency="4us"/>
<route src="b0" dst="rb"><link_ctn id="l2"/></route>
</AS>
<zoneRoute src="left" dst="right" gw_src="ra" gw_dst="rb"><link_ctn id="wan"/></zoneRoute>
</zone>"""


def test_routes_between_zones_go_by_their_gateways(load):
    net = load(ZONES)
    assert latency(net, 0, 1) == pytest.approx(3e-6)
    assert latency(net, 0, 2) == pytest.approx(10e-3 + 1e-6 + 4e-6)
    assert latency(net, 2, 1) == pytest.approx(10e-3 + 2e-6 + 4e-6)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (cluster("0-3") + "<zone", "line 7: is not XML: .*"),
        (cluster("0-3").replace("</zone>", ""), "line 7: is not XML: mismatched tag"),
        (cluster(rates='speed="1Gf" lat="50us"'), "line 5: <cluster> lacks bw"),
        (cluster(rates='speed="1Gf" bw="125MB" lat="50us"'), "bw='125MB'; it must be a number above 0 with a unit"),
        (cluster(rates='speed="1Gf" bw="0Bps" lat="50us"'), "bw='0Bps'; it must be a number above 0"),
        (cluster(rates='speed="1Gf" bw="1GBps" lat="-5us"'), "lat='-5us'; it must be a number from 0"),
        (cluster("0-"), "radical='0-'; write numbers and ranges"),
        (cluster("0-9,4-15"), "radical='0-9,4-15', in which 4 is there twice"),
        (cluster("3,3"), "radical='3,3', in which 3 is there twice"),
        (cluster("9-3"), "radical='9-3'; write numbers and ranges"),
        (cluster(more='topology="CUBE"'), "topology='CUBE'; supported are FLAT, FAT_TREE, TORUS, DRAGONFLY"),
        (cluster(more='limiter_link="1Bps"'), "has limiter_link='1Bps', which is not supported"),
        (cluster(more='sharing_policy="FATPIPE"'), "FATPIPE link, which every flow has to itself"),
        (cluster(more='topology="TORUS"'), "lacks topo_parameters"),
        (cluster(more='topology="TORUS" topo_parameters="3,2,2"'), "16 hosts by radical='0-15' and 12 by"),
        (cluster(more='topology="FAT_TREE" topo_parameters="2;4,4;1,2"'), "it must be like 2;4,4;1,2;1,2"),
        (cluster(more='topology="FAT_TREE" topo_parameters="3;4,4;1,2;1,2"'), "lists differ from its levels"),
        (cluster(more='topology="TORUS" topo_parameters="4,4" sharing_policy="SHARED"'), "SPLITDUPLEX' only"),
        (PAIR.replace('id="fat" direction="UP"', 'id="fat"'), "line 8: .* SPLITDUPLEX link 'fat' needs direction"),
        (PAIR.replace('"NO"><link_ctn id="thin"/></route>', '"NO"><link_ctn id="none"/></route>'),
         "line 10: <link_ctn> names the link 'none', which is not there"),
        (PAIR.replace('dst="bob"', 'dst="dave"'), "line 8: <route> ends at 'dave', which is not in zone 'world'"),
        (PAIR.replace('id="bob"', 'id="alice"'), "line 5: <host> 'alice' is there twice"),
        (PAIR.replace("</zone>", '<route src="bob" dst="alice"/></zone>'), "'bob' to 'alice': there is one already"),
        (PAIR.replace('"Full"', '"Vivaldi"'), "routing='Vivaldi'; supported are Full, Floyd"),
        (PAIR.replace("<link id", '<storage id="disk"/><link id', 1), "<storage> is not supported here"),
        (PAIR.replace('<route src="bob" dst="carol">', '<route src="bob" dst="carol" symmetrical="NO">'),
         "no route from 'carol' to 'bob'"),
        (PAIR + cluster("0-3"), "<cluster> is supported where it is all there is"),
        ("", "must hold one <zone>"),
        ('<zone id="empty" routing="Full"/>', "the platform has no hosts"),
        (ZONES.replace('gw_dst="rb"', 'gw_dst="ra"'), "gateway 'ra', which is not in zone 'right'"),
    ],
)  # fmt: skip
def test_a_platform_that_cannot_be_is_refused_in_one_line(load, body, message):
    with pytest.raises(InputError, match=message) as refused:
        load(body)
    assert "net.xml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_truncated_file_is_refused_with_its_line(tmp_path):
    path = tmp_path / "net.xml"
    path.write_text((HEAD + '<platform version="4.1">\n' + PAIR)[:400])
    with pytest.raises(InputError, match=r"net\.xml, line 8: is not XML"):
        load_topology(path)


def test_entities_are_refused_before_they_are_expanded(load):
    head = '<!DOCTYPE platform [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n'
    with pytest.raises(InputError, match="line 1: entity 'a' is declared; entities are refused"):
        load(cluster(), head=head)


def test_other_versions_and_documents_are_refused(load, tmp_path):
    with pytest.raises(InputError, match=r"version='3' of the platform; supported are 4, 4\.1"):
        load(cluster(), version="3")
    path = tmp_path / "other.xml"
    path.write_text("<html/>")
    with pytest.raises(InputError, match="line 1: <html> is not <platform>"):
        load_topology(path)
