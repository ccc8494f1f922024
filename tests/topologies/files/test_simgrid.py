"""Platforms of SimGrid: what its documentation says of latencies and shares, counted by hand."""

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.torus import torus
from quadrille.topologies.families.tree import tree
from quadrille.topologies.files.topology_file import load_topology
from quadrille.topologies.routes.routing import Routes

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
    assert net.endpoints == ("host", 8)
    paths = Routes(net).between([0, 7], [7, 0])
    assert paths.latency.tolist() == pytest.approx([100e-6, 100e-6])
    assert net.bandwidths[paths.links].tolist() == [125e6] * 4
    assert len(set(paths.links.tolist())) == 4


def test_full_duplex_is_the_old_word_for_a_link_of_two_directions(load):
    old, new = (load(cluster(more=f'sharing_policy="{word}"')) for word in ("FULLDUPLEX", "SPLITDUPLEX"))
    assert old.name == new.name
    assert Routes(old).between([0, 7], [7, 0]).links.tolist() == Routes(new).between([0, 7], [7, 0]).links.tolist()


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


def test_a_dragonfly_has_three_kinds_of_links(load):
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
    assert net.endpoints == ("host", 3)
    assert net.cores.tolist() == [2, 1, 1]
    thin, fat = listed(net, 0, 1)
    assert (thin.bandwidth, thin.latency) == pytest.approx((10e6 / 8, 5e-3))
    assert (fat.bandwidth, fat.latency) == pytest.approx((2**30, 20e-6))
    assert [link.name for link in listed(net, 0, 1)] == ["thin", "fat_UP"]


def test_routes_back_take_shared_links_again_and_others_backwards(load):
    net = load(PAIR)
    assert [link.name for link in listed(net, 1, 0)] == ["fat_DOWN", "thin"]
    assert [link.name for link in listed(net, 1, 2)] == ["fat_DOWN"]
    assert [link.name for link in listed(net, 2, 1)] == ["fat_UP"]
    assert [link.name for link in listed(net, 0, 2)] == ["thin"]
    assert [link.name for link in listed(net, 2, 0)] == ["thin"] * 2


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


# Clusters among other zones


MIXED = """<zone id="world" routing="Full">
<cluster id="one" prefix="n-" suffix="" radical="0-1" speed="1Gf" bw="1GBps" lat="1us" bb_bw="4GBps" bb_lat="2us"/>
<cluster id="two" prefix="t-" suffix="" radical="0-8" speed="1Gf" bw="1GBps" lat="4us"
topology="TORUS" topo_parameters="9"/>
<link id="wan" bandwidth="3GBps" latency="1ms" sharing_policy="FATPIPE"/>
<zoneRoute src="one" dst="two" gw_src="n-one_router" gw_dst="t-3"><link_ctn id="wan"/></zoneRoute>
</zone>"""  # fmt: skip


def test_a_cluster_in_a_zone_is_left_by_its_backbone_or_by_the_host_that_is_the_gateway(load):
    net = load(MIXED)
    assert net.endpoints == ("host", 11)
    assert latency(net, 0, 1) == pytest.approx(1e-6 + 2e-6 + 1e-6)
    assert latency(net, 0, 2 + 3) == pytest.approx(1e-6 + 2e-6 + 1e-3)
    assert latency(net, 2 + 8, 1) == pytest.approx(4 * 4e-6 + 1e-3 + 2e-6 + 1e-6)
    assert latency(net, 2 + 1, 2 + 4) == pytest.approx(3 * 4e-6)


def test_links_of_a_cluster_in_a_zone_have_a_direction_each_and_its_backbone_has_none(load):
    net = load(MIXED)
    there, back = (Routes(net).between([one], [other]).links.tolist() for one, other in ((0, 1), (1, 0)))
    assert there[1] == back[1]
    assert {there[0] ^ 1, there[2] ^ 1} == {back[2], back[0]}


def test_a_fatpipe_link_holds_no_flow_back_however_many_there_are(load):
    net = load(MIXED)
    wan = np.flatnonzero(net.unshared)
    shared = net.bandwidths[~net.unshared].sum()
    assert net.bandwidths[wan].tolist() == [2 * shared, 2 * shared]
    assert set(wan.tolist()) & set(Routes(net).between([0], [2 + 3]).links.tolist())


def test_a_fatpipe_link_may_fail_but_not_be_degraded(load):
    net = load(MIXED)
    wan = int(np.flatnonzero(net.unshared)[0])
    for share, message in (
        (0.5, r"is not shared by flows \(FATPIPE\): it can fail, but not be degraded"),
        (0.0, "no path"),
    ):
        bandwidths = net.bandwidths.copy()
        bandwidths[wan] *= share
        with pytest.raises(InputError, match=message):
            Routes(net.with_bandwidths(bandwidths)).between([0], [2])


HOST_LINKS = """<zone id="c" routing="Cluster">
<host id="a" speed="1Gf"/><host id="b" speed="1Gf"/><router id="r"/>
<link id="half" bandwidth="1GBps" latency="1us"/>
<link id="both" bandwidth="1GBps" latency="2us" sharing_policy="SPLITDUPLEX"/>
<backbone id="bb" bandwidth="9GBps" latency="4us"/>
<host_link id="a" up="half" down="half"/><host_link id="b" up="both_UP" down="both_DOWN"/>
</zone>"""


def test_a_zone_of_host_links_has_one_up_and_one_down_for_each_host(load):
    net = load(HOST_LINKS)
    assert [link.name for link in listed(net, 0, 1)] == ["half", "bb", "both_DOWN"]
    assert [link.name for link in listed(net, 1, 0)] == ["both_UP", "bb", "half"]
    assert latency(net, 0, 1) == pytest.approx(7e-6)


def test_routes_of_zones_lead_through_zones_between_from_gateway_to_gateway(load):
    """left's router ra > wan > mid's m, inside mid to mm, > last > right's rb."""
    net = load(
        ZONES.replace('id="world" routing="Full"', 'id="world" routing="Floyd"')
        .replace('dst="right" gw_src="ra" gw_dst="rb"', 'dst="mid" gw_src="ra" gw_dst="m"')
        .replace(
            "<zoneRoute",
            """<zone id="mid" routing="Full"><router id="m"/><router id="mm"/>
<link id="in" bandwidth="1GBps" latency="32us"/><route src="m" dst="mm"><link_ctn id="in"/></route></zone>
<link id="last" bandwidth="1GBps" latency="64us"/>
<zoneRoute src="mid" dst="right" gw_src="mm" gw_dst="rb"><link_ctn id="last"/></zoneRoute>
<zoneRoute""",
        )
    )
    assert latency(net, 0, 2) == pytest.approx(1e-6 + 10e-3 + 32e-6 + 64e-6 + 4e-6)
    assert latency(net, 2, 0) == pytest.approx(1e-6 + 10e-3 + 32e-6 + 64e-6 + 4e-6)


BYPASSED = """<zone id="world" routing="Full">
<host id="a" speed="1Gf"/><host id="b" speed="1Gf"/><host id="c" speed="1Gf"/>
<link id="slow" bandwidth="1GBps" latency="9us"/><link id="fast" bandwidth="1GBps" latency="1us"/>
<route src="a" dst="b"><link_ctn id="slow"/></route><route src="a" dst="c"><link_ctn id="slow"/></route>
<route src="b" dst="c"><link_ctn id="slow"/></route>
<bypassRoute src="a" dst="c"><link_ctn id="fast"/></bypassRoute>
</zone>"""


def test_a_bypass_goes_before_the_route_in_its_one_direction(load):
    net = load(BYPASSED)
    assert [latency(net, *pair) for pair in ((0, 2), (2, 0), (0, 1))] == pytest.approx([1e-6, 9e-6, 9e-6])


def test_a_bypass_of_zones_is_taken_by_all_hosts_in_them(load):
    bypass = '<bypassZoneRoute src="right" dst="left" gw_src="rb" gw_dst="ra"><link_ctn id="l1"/></bypassZoneRoute>'
    net = load(ZONES.replace("</zoneRoute>", f"</zoneRoute>{bypass}"))
    assert latency(net, 2, 0) == pytest.approx(4e-6 + 2e-6 + 1e-6)
    assert latency(net, 0, 2) == pytest.approx(10e-3 + 1e-6 + 4e-6)


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
        (cluster(more='sharing_policy="FATPIPE"'), "sharing_policy='FATPIPE'; its hosts' links must be SPLITDUPLEX or"),
        (cluster(more='bb_bw="124MBps" bb_lat="0" bb_sharing_policy="FATPIPE"'), "FATPIPE backbone narrower"),
        (PAIR.replace('"5ms"/>', '"5ms" sharing_policy="FATPIPE"/>'),
         "FATPIPE link 'thin' is the narrowest on the route from 'alice' to 'bob'"),
        (MIXED.replace('gw_src="n-one_router"', 'gw_src="n-two_router"'), "gateway 'n-two_router', which is no host"),
        (MIXED.replace('bb_bw="4GBps" bb_lat="2us"', 'topology="TORUS" topo_parameters="2"'),
         "gateway 'n-one_router'"),
        (MIXED.replace('prefix="t-"', 'prefix="n-"'), r"line \d+: <cluster> \'n-0\' is there twice"),
        (HOST_LINKS.replace('up="both_UP"', 'up="both_LEFT"'), "<host_link> names the link 'both_LEFT', which is not"),
        (HOST_LINKS.replace('<host_link id="a"', '<host_link id="z"'), "the host 'z', which is not in zone 'c'"),
        (HOST_LINKS.replace('<host_link id="a" up="half" down="half"/>', ""), "host 'a' without a <host_link>"),
        (BYPASSED.replace('bypassRoute src="a"', 'bypassRoute src="d"'), "<bypassRoute> ends at 'd', which is not in"),
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
        (PAIR + cluster("0-3"), "a platform must hold one <zone>, in which all else is"),
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
