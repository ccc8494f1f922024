"""Names of a SimGrid platform stay usable; stated defaults are accepted; sizes and speeds are checked."""

import json
import time

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.topology_file import load_topology
from quadrille.topologies.link_patterns import matching_links
from tests.support.quadrille import called

PLATFORM = """<platform version="4.1"><zone id="world" routing="Full">
<host id="paris" speed="1Gf" {host}/> <host id="lyon" speed="98.095Mf,1e9" core="2"/> <host id="nice" speed="1"/>
<link id="wan" bandwidth="1GBps" latency="1ms" {link}/>
<link id="lan-1" bandwidth="2GBps" latency="1us" sharing_policy="SPLITDUPLEX"/>
<route src="paris" dst="lyon"><link_ctn id="wan"/></route>
<route src="paris" dst="nice"><link_ctn id="lan-1" direction="UP"/></route>
<route src="lyon" dst="nice"><link_ctn id="wan"/></route>
</zone></platform>"""


@pytest.fixture
def platform(tmp_path):
    def write(host="", link="", text=PLATFORM):
        path = tmp_path / "net.xml"
        path.write_text(text.replace("{host}", host).replace("{link}", link))
        return str(path)

    return write


@pytest.mark.parametrize(
    "host", ['state="ON"', 'availability="1.0"', 'availability="1"', 'state="ON" availability="1.0"']
)
def test_stated_defaults_change_nothing(platform, host):
    plain = load_topology(platform())
    stated = load_topology(platform(host, 'state="ON"'))
    assert stated.bandwidths.tolist() == plain.bandwidths.tolist() and stated.host_names == plain.host_names


@pytest.mark.parametrize(
    ("host", "link", "said"),
    [
        ('state="OFF"', "", "another state than 'ON'"),
        ('availability="0.5"', "", "another availability than '1.0'"),
        ("", 'state="OFF"', "<link> has another state than 'ON'"),
        ("", 'availability="1.0"', "availability='1.0', which is not supported"),
    ],
)
def test_other_values_are_refused_with_their_line(platform, host, link, said):
    with pytest.raises(InputError, match=f"line [23]: .*{said}"):
        load_topology(platform(host, link))


def test_links_have_the_names_of_the_file(platform):
    net = load_topology(platform())
    assert net.host_names == ("paris", "lyon", "nice")
    assert [net.link_names(matching_links(net, name)) for name in ("wan", "lan-1_UP", "lan-1_DOWN", "w*")] == [
        ["wan", "wan"],
        ["lan-1_UP"],
        ["lan-1_DOWN"],
        ["wan", "wan"],
    ]
    assert len(matching_links(net, "lan-1")) == 2
    with pytest.raises(InputError, match=r"link 'wam' is not in topology .*there is for example wan"):
        matching_links(net, "wam")


def seconds(capsys, tmp_path, net, rows, *words):
    path = tmp_path / "traffic.csv"
    path.write_text("source,destination,bytes,start_s\n" + rows)
    done = called(capsys, "flows", path, "--machine", net, *words, "--json", "-")
    assert done.status == 0, done.err
    return json.loads(done.out)["makespan_s"]


def test_traffic_by_host_name_and_a_degraded_link_by_its_name(capsys, tmp_path, platform):
    net = platform()
    whole = seconds(capsys, tmp_path, net, "paris,lyon,1e9,0\n")
    assert whole == seconds(capsys, tmp_path, net, "0,1,1e9,0\n") == pytest.approx(1.001)
    assert seconds(capsys, tmp_path, net, "paris,lyon,1e9,0\n", "--degrade", "wan=0.5") == pytest.approx(2.001)
    assert seconds(capsys, tmp_path, net, "nice,paris,1e9,0\n", "--degrade", "lan-1_UP=0.5") == pytest.approx(0.500001)
    assert seconds(capsys, tmp_path, net, "paris,nice,1e9,0\n", "--degrade", "lan-1_UP=0.5") == pytest.approx(1.000001)


def test_an_unknown_host_is_named_with_the_nearest(capsys, tmp_path, platform):
    path = tmp_path / "traffic.csv"
    path.write_text("source,destination,bytes,start_s\nparis,lyon,1,0\nparis,lion,1e9,0\n")
    done = called(capsys, "flows", path, "--machine", platform())
    assert done.status == 2 and "line 3: destination 'lion' is no host; did you mean lyon?" in done.line


CLUSTER = (
    '<platform version="4.1"><cluster id="c" prefix="n-" radical="{}" speed="{}" bw="1GBps" lat="1us"/></platform>'
)


@pytest.mark.parametrize(
    ("radical", "speed", "said"),
    [
        ("0-8000000", "1Gf", "8000001 hosts by radical='0-8000000'; at most 1048576 are accepted"),
        ("0-3", "fast", "speed='fast'; write a rate such as 1Gf"),
        ("0-3", "", "speed=''; write a rate"),
    ],
)
def test_what_is_too_large_or_no_speed_is_refused_at_once(platform, radical, speed, said):
    begin = time.process_time()
    with pytest.raises(InputError, match=said):
        load_topology(platform(text=CLUSTER.format(radical, speed)))
    assert time.process_time() - begin < 0.5


def test_a_clusters_hosts_have_their_names(capsys, tmp_path, platform):
    net = platform(text=CLUSTER.format("0-3", "1Gf"))
    assert seconds(capsys, tmp_path, net, "n-1,n-3,1e9,0\n") == seconds(capsys, tmp_path, net, "1,3,1e9,0\n")
