"""What a topology comes to as namespaces, cables and routes: every packet arrives, on the links of the simulator."""

import msgspec
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.experiments.laboratory import laboratory_ranks
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.laboratory.laboratory_ranks import command_with_topology, launch_in_laboratory
from quadrille.experiments.laboratory.topology_plan import MOST_HOSTS, namespace_plan, scaled_network
from quadrille.runtime.laboratory.namespace_plan import HOST_INTERFACE
from quadrille.runtime.laboratory.register import LaboratoryRecord, Register
from quadrille.runtime.launching.mpirun import Mpi
from quadrille.topologies.build import build, parse_topology
from quadrille.topologies.files import node_link
from quadrille.topologies.machines.machine import NetworkCosts
from quadrille.topologies.machines.machine_file import save_machine
from quadrille.topologies.routes.routing import Routes, parse_routing
from tests.support.toy_machines import star

SINGLE_HOMED = [
    "star:hosts=5",
    "leaf-spine:leaves=2,spines=1,hosts_per_leaf=2",
    "leaf-spine:leaves=3,spines=2,hosts_per_leaf=3",
    "fat-tree:ports=4",
    "tree:down=4x4,up=1x2,parallel=1x2",
    "dragonfly:groups=3,routers=2,hosts_per_router=2,global_links=1",
]
MANY_HOMED = ["torus:dims=2x3", "ring:hosts=5", "full:hosts=4"]


def network(text, rate=25e6):
    family, arguments = parse_topology(text)
    return build(family, {"bandwidth": rate, "latency": 0.0} | arguments)


def links_walked(made, source, target):
    """The ends (place, interface) by which a packet leaves, on its way from one host to another."""
    there = {
        end.hardware: other
        for cable in made.cables
        for end, other in ((cable.near, cable.far), (cable.far, cable.near))
    }
    ports = {(end.place, end.interface): end for cable in made.cables for end in (cable.near, cable.far)}
    place, taken = source, []
    while place != target:
        found = [
            route
            for route in made.routes
            if route.place == place
            and route.target == made.addresses[target]
            and route.source in ("", made.addresses[source])
        ]
        assert len(found) == 1, (place, source, target)
        port = ports[place, found[0].interface]
        assert there[port.hardware].hardware == found[0].next_hardware
        taken.append(port)
        place = there[port.hardware].place
        assert len(taken) < 99
    return taken


@pytest.mark.parametrize("text", [*SINGLE_HOMED, *MANY_HOMED])
def test_a_pair_has_a_queue_at_each_port_with_a_rate_on_its_path_and_nowhere_else(text):
    net = network(text)
    made = namespace_plan(net)
    assert len(made.hosts) == net.endpoint_count
    for source in made.hosts:
        for target in set(made.hosts) - {source}:
            pair = made.addresses[source], made.addresses[target]
            queued = {port for port, pairs in made.passing.items() if pair in pairs}
            assert queued == {port for port in links_walked(made, source, target) if port.rate}


@pytest.mark.parametrize("routing", ["shortest", "ecmp:3"])
@pytest.mark.parametrize("text", [*SINGLE_HOMED, *MANY_HOMED])
def test_packets_take_the_links_that_the_simulator_takes(text, routing):
    net = network(text)
    made = namespace_plan(net, parse_routing(routing))
    routes = Routes(net, parse_routing(routing))
    for source in range(net.endpoint_count):
        for target in range(net.endpoint_count):
            if source == target:
                continue
            walked = links_walked(made, f"host:{source}", f"host:{target}")
            expected = routes.between([source], [target]).links
            assert [port.rate for port in walked if port.rate] == net.bandwidths[expected].tolist()
            names = [net.node_name(int(node)) for node in net.sources[expected]]
            assert [port.place.removeprefix("beside-") for port in walked if port.rate] == names


@pytest.mark.parametrize("text", [*SINGLE_HOMED, *MANY_HOMED])
def test_every_host_has_one_interface_and_every_link_its_rate(text):
    net = network(text)
    made = namespace_plan(net)
    ends = [end for cable in made.cables for end in (cable.near, cable.far)]
    for host in made.hosts:
        assert [end.interface for end in ends if end.place == host] == [HOST_INTERFACE]
    assert sorted(end.rate for end in ends if end.rate) == sorted(net.bandwidths.tolist())
    assert len({end.hardware for end in ends}) == len(ends)
    assert len({(end.place, end.interface) for end in ends}) == len(ends)


def test_each_direction_has_the_rate_of_its_link():
    net = network("star:hosts=2")
    uneven = net.with_bandwidths(np.array([1e6, 2e6, 3e6, 4e6]))
    rates = {(c.near.place, c.near.rate, c.far.place, c.far.rate) for c in namespace_plan(uneven).cables}
    by_link = {
        (name.split(">")[0], rate) for name, rate in zip(uneven.link_names(range(4)), [1e6, 2e6, 3e6, 4e6], strict=True)
    }
    assert {end for one, rate, other, back in rates for end in ((one, rate), (other, back))} == by_link


def test_a_rate_sets_the_links_of_hosts_and_the_others_in_proportion():
    net = network("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,uplink_bandwidth=50e6")
    assert sorted(set(scaled_network(net, 1e6).bandwidths.tolist())) == [1e6, 2e6]


@pytest.mark.parametrize(
    ("typed", "rate", "said"),
    [
        ("star:hosts=4", "200mbit", {"bandwidth": 25e6, "hosts": 4}),
        ("star:hosts=4,bandwidth=1e6", "", {"bandwidth": 1e6, "hosts": 4}),
        (
            "leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,bandwidth=1e9,uplink_bandwidth=2e9",
            "8mbit",
            {"leaves": 2, "spines": 1, "hosts_per_leaf": 2, "bandwidth": 1e6, "uplink_bandwidth": 2e6},
        ),
        ("tree:down=4x4,up=1x2,parallel=1x2,bandwidth=1e8x4e8", "80mbit", {"bandwidth": "10000000.0x40000000.0"}),
    ],
)
def test_a_topology_in_full_names_the_rates_that_its_links_have(typed, rate, said):
    found = parse_laboratory(typed, rate, name="x")
    family, arguments = parse_topology(found.in_full)
    assert family == typed.partition(":")[0]
    assert said.items() <= arguments.items()
    again = build(family, arguments | {"latency": 0.0})
    rates = dict(zip(again.link_names(range(again.link_count)), again.bandwidths.tolist(), strict=True))
    assert rates == pytest.approx(found.rates)


def four_in_a_file(folder, rate=25e6):
    path = folder / "four.json"
    path.write_text(node_link.dumps(build("star", {"hosts": 4, "bandwidth": rate, "latency": 1e-5}), {}))
    return path


def test_a_topology_in_a_file_is_called_by_its_name_unless_its_rates_are_changed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = four_in_a_file(tmp_path)
    found = parse_laboratory("./four.json", name="x")
    assert found.in_full == str(path)
    assert set(found.rates.values()) == {25e6}
    assert parse_laboratory("./four.json", "8mbit", name="x").in_full == ""


@pytest.mark.parametrize("rate", ["", "80mbit"])
def test_links_of_a_machine_file_have_the_rates_before_headers_and_messages_its_routing(tmp_path, rate):
    wired = {"family": "tree", "down": [2, 2], "up": "1x2", "bandwidth_bytes_per_second": [25e6, 50e6],
             "latency_seconds": 1e-5}  # fmt: skip
    machine = msgspec.structs.replace(
        star(4), topology=wired, routing="ecmp:3", network=NetworkCosts(payload_share=0.9)
    )
    save_machine(machine, tmp_path / "lab.toml")
    found = parse_laboratory(str(tmp_path / "lab.toml"), rate, name="x")
    times = 10e6 / 25e6 if rate else 1.0
    assert sorted(set(found.rates.values())) == pytest.approx([25e6 * times, 50e6 * times])
    assert found.routing == "ecmp:3"
    assert parse_laboratory(str(tmp_path / "lab.toml"), rate, "shortest", name="x").routing == "shortest"
    family, arguments = parse_topology(found.in_full)
    assert (family, arguments["down"]) == ("tree", "2x2") and "latency_seconds" not in arguments
    again = build(family, arguments | {"latency": 0.0})
    assert sorted(set(again.bandwidths.tolist())) == pytest.approx([25e6 * times, 50e6 * times])


def test_of_a_machine_file_whose_links_are_slower_a_calibration_is_refused(tmp_path):
    slower = msgspec.structs.replace(star(3, bandwidth=25e6), faults=Faults(degrade={"host:1>switch:0": 0.5}))
    save_machine(slower, tmp_path / "lab.toml")
    found = parse_laboratory(str(tmp_path / "lab.toml"), name="x")
    assert found.rates["host:1>switch:0"] == 12.5e6 and found.in_full == ""
    save_machine(msgspec.structs.replace(slower, faults=None, topology={"file": str(four_in_a_file(tmp_path))}),
                 tmp_path / "lab.toml")  # fmt: skip
    assert parse_laboratory(str(tmp_path / "lab.toml"), name="x").in_full == str(tmp_path / "four.json")


STAR = LaboratoryRecord(
    name="x",
    topology="star:hosts=2",
    addresses={"host:0": "10.77.0.1", "host:1": "10.77.0.2"},
    namespaces={},
    rates=dict.fromkeys(("host:0>switch:0", "switch:0>host:0", "host:1>switch:0", "switch:0>host:1"), 25e6),
    in_full="star:hosts=2,…",
)


def test_a_calibration_gets_the_topology_in_full_and_an_unknown_one_is_refused():
    told = command_with_topology(STAR, 2, ["calibrate", "--out", "-"])
    assert told == ["calibrate", "--out", "-", "--topology", "star:hosts=2,…", "--routing", "shortest"]
    for words in (["calibrate", "--topology=star:hosts=2", "--routing", "minimal"], ["run"], []):
        assert command_with_topology(STAR, 1, words) == words
    other = msgspec.structs.replace(STAR, routing="ecmp:7")
    for words in (["calibrate", "--topology", "star:hosts=2,bandwidth=1e6"], ["calibrate", "--topology=star:hosts=2"]):
        assert command_with_topology(other, 1, words) == [*words, "--routing", "ecmp:7"]
    with pytest.raises(
        InputError, match="star:hosts=2 were changed: write the rates that are wanted into a topology file"
    ):
        command_with_topology(msgspec.structs.replace(STAR, in_full=""), 2, ["calibrate"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("star:hosts=4",), r"'star:hosts=4': the rate of its links is missing: --rate 200mbit sets .* bandwidth=25e6"),
        (("star:hosts=17",), r"'star:hosts=17' has 17 hosts and 1 switches: a laboratory takes 2 to 16 hosts"),
        (("star:hosts=17", "200mbit"), r"^topology 'star:hosts=17' has 17 hosts"),
        (("star:hosts=4", "", "bogus"), r"bogus"),
        (("star:hosts=4", "", "", "../x"), r"laboratory '\.\./x': up to 16 small letters"),
    ],
)
def test_what_is_wrong_is_named_whether_or_not_a_rate_is_given(asked, said):
    with pytest.raises(InputError, match=said):
        parse_laboratory(*asked)


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (
            "full:hosts=2",
            r"--topology full:hosts=2: it has other links than .*, star:hosts=2: leave it out",
        ),
        ("star:hosts=3", r"'star:hosts=3' has 3 hosts and the ranks are on 2 hosts"),
    ],
)
def test_a_calibration_with_other_links_is_refused_before_anything_is_made(topology, said):
    with pytest.raises(InputError, match=said):
        command_with_topology(STAR, 2, ["calibrate", "--topology", topology])


def test_a_calibration_of_fewer_ranks_than_hosts_is_refused_by_what_was_typed():
    with pytest.raises(InputError, match=r"-n 1: calibrate .* all 2 hosts of star:hosts=2, .*: -n 2 or more is"):
        command_with_topology(STAR, 1, ["calibrate"])


def test_fewer_than_one_rank_is_refused_before_anything_is_divided_by_it():
    with pytest.raises(InputError, match="-n 0: the number of ranks is a whole number from 1"):
        launch_in_laboratory(STAR, 0, ["run"])


def test_mpirun_gets_the_agent_in_the_words_of_its_own_version(tmp_path):
    both = ("4.1.6", "5.0.11")
    register = Register(tmp_path)
    words = {version: laboratory_ranks._mpirun_options(STAR, 2, Mpi("Open MPI", version), register) for version in both}
    agent = words["5.0.11"][words["5.0.11"].index("plm_ssh_agent") + 1]
    assert " ".join(["--mca", "plm_rsh_agent", agent]) in " ".join(words["4.1.6"])
    assert " ".join(["--prtemca", "plm_ssh_agent", agent]) in " ".join(words["5.0.11"])
    assert "--prtemca" not in words["4.1.6"] and "plm_rsh_agent" not in words["5.0.11"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("star:hosts=17", f"at most|2 to {MOST_HOSTS} hosts"),
        ("star:hosts=1", "2 to"),
        ("host", "2 to"),
        ("star:hosts=4,bandwidth=1e11", "host:0>switch:0 has 100 GB/s"),
        ("star:hosts=4,bandwidth=10", "host:0>switch:0"),
    ],
)
def test_what_cannot_be_built_is_refused(text, words):
    family, arguments = parse_topology(text)
    given = arguments if family == "host" else {"bandwidth": 25e6, "latency": 0.0} | arguments
    with pytest.raises(InputError, match=words):
        namespace_plan(build(family, given))


@pytest.mark.parametrize("text", ["torus:dims=3x3", "mesh:dims=3x3", "ring:hosts=6"])
def test_a_non_minimal_path_that_visits_a_place_twice_is_refused(text):
    said = r"routing valiant:0: the path from host:\d to host:\d passes host:\d twice, .* accepted are shortest,"
    with pytest.raises(InputError, match=said):
        namespace_plan(network(text), parse_routing("valiant:0"))


def test_non_minimal_paths_that_visit_every_place_once_are_taken():
    net, routing = network("dragonfly:groups=3,routers=2,hosts_per_router=2,global_links=1"), parse_routing("valiant:3")
    made, routes = namespace_plan(net, routing), Routes(net, routing)
    for source in range(net.endpoint_count):
        for target in set(range(net.endpoint_count)) - {source}:
            walked = links_walked(made, f"host:{source}", f"host:{target}")
            names = [net.node_name(int(node)) for node in net.sources[routes.between([source], [target]).links]]
            assert [port.place for port in walked] == names


def test_a_rate_needs_a_link_that_it_can_set():
    net = network("star:hosts=2")
    with pytest.raises(InputError, match="no link at a host"):
        scaled_network(net.with_bandwidths(net.bandwidths * 0), 25e6)


def test_a_rule_of_several_paths_is_refused():
    with pytest.raises(InputError, match="one path for each pair"):
        namespace_plan(network("star:hosts=4"), parse_routing("spray"))


def test_gpus_are_refused():
    with pytest.raises(InputError, match="takes hosts"):
        namespace_plan(build("perlmutter", {"gpus": 8}))
