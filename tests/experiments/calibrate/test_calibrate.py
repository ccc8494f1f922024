"""Calibration with few and small points, on real ranks: what is measured, where it goes, and that it predicts."""

import json
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import simpy

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import MemoryRow
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.schedule.ops import VECTOR_CALL_KINDS
from quadrille.cli.parsing.flags import MatmulFlags
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.experiments.calibrate.calibration_benchmarks import (
    DTYPES,
    LAYOUTS,
    PASS_OPERATIONS,
    CalibrationMeasurements,
    LocalMeasurements,
)
from quadrille.experiments.calibrate.measured_machine import LARGE_RESIDUAL, make_machine
from quadrille.experiments.calibrate.network_benchmarks import NetworkMeasurements, remeasured_points, transfer_points
from quadrille.experiments.calibrate.network_sections import links_agree
from quadrille.experiments.calibrate.topology_option import parse_routing_option, parse_topology_option
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.runtime.carriers.message_options import CHUNK_BYTES
from quadrille.runtime.host.world import ComputeHost
from quadrille.runtime.measuring.calibration_sizes import FULL, QUICK
from quadrille.runtime.measuring.chained_transfers import LEAST_STEPS, STEPS, Overheads
from quadrille.runtime.measuring.library_collectives import KINDS, GroupShape
from quadrille.runtime.measuring.link_speed import LinkSpeed
from quadrille.runtime.measuring.measured_points import CollectivePoint, GemmPoint, TransferPoint
from quadrille.runtime.measuring.overlap_interference import OverlapCost
from quadrille.runtime.measuring.pass_benchmarks import sizes_of
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.compute_model import LEAST_ROWS, LEAST_ROWS_IN_PAGES, in_whole_pages
from quadrille.simulator.machine.network import network_of
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.topologies.build import build
from quadrille.topologies.files import node_link
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_file import load_machine
from quadrille.topologies.routes.routing import Routing, parse_routing
from tests.support.all_pairs_rounds import rounds, slower
from tests.support.calibrations import SMALL
from tests.support.launched import launched
from tests.support.quadrille import called, quadrille

mpi = pytest.mark.mpi
POINTS, STREAMS, TRANSFERS = SMALL.products, SMALL.stream_bytes, SMALL.transfer_bytes
IMPORTS = """
import sys
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES
from quadrille.runtime.host import world
from quadrille.runtime.measuring.link_speed import LinkSpeed
from quadrille.experiments.calibrate import measured_machine, calibration_benchmarks
from tests.support.calibrations import SMALL
"""
TWO_HOSTS = (
    IMPORTS
    + """
from quadrille.topologies.machines.machine_file import save_machine
from quadrille.topologies.build import parse_topology
from quadrille.topologies.routes.routing import Routing
hosts = (world.ComputeHost("one", (0,), 1), world.ComputeHost("other", (1,), 1))
measured = calibration_benchmarks.measure(world.world(), hosts, WHOLE_MESSAGES, sizes=SMALL)
if world.world().rank == 0:
    for path, text in zip(sys.argv[1::2], sys.argv[2::2]):
        wiring = parse_topology(text) if text else None
        save_machine(measured_machine.make_machine("two", measured, hosts, wiring, Routing()), path)
"""
)
UNEQUAL_HOSTS = (
    IMPORTS
    + """
import ast, json
hosts = [world.ComputeHost(str(ranks), ranks, cores) for ranks, cores in ast.literal_eval(sys.argv[1])]
measured = calibration_benchmarks.measure(world.world(), hosts, WHOLE_MESSAGES, sizes=SMALL)
if world.world().rank == 0:
    print(json.dumps({"together": max(point.busy_ranks for point in measured.local.gemm),
                      "network": len(measured.between.transfers)}))
"""
)
AGAIN = (
    IMPORTS
    + """
import json
from quadrille.experiments.calibrate.network_benchmarks import measure_all_pairs_flows
found = {
    said: measure_all_pairs_flows(
        world.world(), 2, LinkSpeed(1e-4, 25e6, 0.0), WHOLE_MESSAGES, lambda _, flows: flows[-1].round >= least, SMALL
    )
    for said, least in (("agree", 1), ("agree in the end", 6), ("do not", 100))
}
if world.world().rank == 0:
    print(json.dumps({said: sorted({flow.round for flow in flows}) for said, flows in found.items()}))
"""
)
TRAINING = MatmulFlags(matmul="61,47,53", dtype="float64", passes="training")


def calibrated(folder, ranks):
    """A machine file made by so many ranks."""
    path = folder / f"host-{ranks}.toml"
    ended = launched(ranks, "-m", "tests.support.calibrations", "calibrate", "--out", str(path))
    assert ended.status == 0, ended.err
    assert (ended.out, ended.err.count("; wrote "), ended.err.count("calibrate: verdict: ")) == ("", 1, 1)
    begun = re.findall(r"^calibrate: (.*) …$", ended.err, re.MULTILINE)
    done = re.findall(r"^calibrate: [0-9]+\.[0-9] s: (.*)$", ended.err, re.MULTILINE)
    assert begun == done and begun[-1].startswith("collectives" if ranks > 1 else "copies, sums and layer functions")
    assert ended.err.rstrip().splitlines()[-1].startswith("calibrate: verdict: ")
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return calibrated(tmp_path_factory.mktemp("calibrated"), 2)


@pytest.fixture(scope="module")
def wired(tmp_path_factory):
    """Machine files of two hosts: as a star by default, by a wiring with and without its speeds."""
    folder = tmp_path_factory.mktemp("wired")
    wiring = "leaf-spine:leaves=2,spines=1,hosts_per_leaf=1"
    given = {"star": "", "leaf-spine": wiring, "speeds": f"{wiring},bandwidth=25e6,latency_seconds=1e-4"}
    paths = {name: folder / f"{name}.toml" for name in given}
    ended = launched(2, "-c", TWO_HOSTS, *(str(word) for name in given for word in (paths[name], given[name])))
    assert ended.status == 0, ended.err
    return paths


# One host


def settings(machine):
    """Threads and busy ranks of the products."""
    return {(row.threads, row.busy_ranks) for row in machine.device.gemm}


def busy(machine, ranks):
    """How many ranks computed at once: one, and as many as there are cores."""
    return {1, min(ranks, machine.host.cores)}


@mpi
def test_every_dtype_layout_and_setting_has_all_its_products(two):
    machine = load_machine(two)
    assert {ranks for _, ranks in settings(machine)} == busy(machine, 2)
    found = [(row.dtype, row.layout, row.threads, row.busy_ranks) for row in machine.device.gemm]
    expected = [(*names, *setting) for *names, setting in product(DTYPES, LAYOUTS, settings(machine))]
    assert sorted(found) == sorted(expected * (POINTS + LEAST_ROWS_IN_PAGES))
    rows = [(dtype, row) for dtype in DTYPES for row in machine.device.gemm if row.dtype == dtype]
    in_pages = [row for dtype, row in rows if in_whole_pages(row.n, dtype)]
    assert len(in_pages) == len(expected) * LEAST_ROWS_IN_PAGES


@mpi
def test_every_pass_is_measured_in_every_size_alone_and_together(two):
    machine = load_machine(two)
    found = [(row.operation, row.dtype, (row.matrices, row.rows, row.columns)) for row in machine.device.passes]
    expected = [
        (operation, dtype, sizes) for dtype in DTYPES for operation in PASS_OPERATIONS for sizes in sizes_of(operation)
    ]
    assert sorted(found) == sorted(expected * len(busy(machine, 2)))
    assert {row.busy_ranks for row in machine.device.passes} == busy(machine, 2)
    assert 0 < machine.device.following_overhead_seconds < 1


@mpi
def test_memory_is_measured_alone_and_together(two):
    machine = load_machine(two)
    found = [(row.operation, row.bytes, row.busy_ranks) for row in machine.device.memory]
    assert sorted(found) == sorted(product(("copy", "add", "zero"), STREAMS, busy(machine, 2)))


@mpi
def test_steps_of_every_pattern_and_size_are_measured_within_the_host(two):
    machine = load_machine(two)
    found = [(row.pattern, row.ranks, row.bytes) for row in machine.host.transfer]
    assert sorted(found) == sorted(product(("shift", "one_way"), (2,), TRANSFERS))
    assert all(row.seconds > 0 for row in machine.host.transfer)
    assert machine.network is None


@mpi
def test_the_librarys_collectives_are_measured_by_kind_and_size_and_predicted_from_that(two):
    machine = load_machine(two)
    assert {(row.ranks, row.stride, row.world_size) for row in machine.host.library} == {(2, 1, 2)}
    found = sorted((row.kind, row.bytes) for row in machine.host.library if row.called != "vector")
    assert found == sorted(product(KINDS, TRANSFERS))
    found = sorted((row.kind, row.bytes) for row in machine.host.library if row.called == "vector")
    assert found == sorted(product(VECTOR_CALL_KINDS, TRANSFERS[::2]))
    for word in ("library", "library:vector"):
        flags = replace(TRAINING, algorithm="4d", grid="z=2", collectives=word)
        record, _ = predict_record_and_timeline(parse_matmul(flags), machine)
        assert {op.algorithm for op in record.ops if op.axis == "z"} == {f"{word} (measured)"}


@mpi
def test_messages_during_products_are_timed_in_chunks_and_whole_with_a_thread_and_without(two):
    machine = load_machine(two)
    rows = machine.messages
    assert {(row.ranks, row.hosts, row.threads) for row in rows} == {(2, 1, max(1, machine.host.cores // 2))}
    assert {(row.chunk_bytes, row.progress) for row in rows} == set(product((0, CHUNK_BYTES), ("none", "thread")))
    assert all(row.seconds > 0 for row in rows)


@mpi
def test_a_machine_file_says_how_the_kernels_did_how_well_the_fit_does_and_who_made_it(two):
    machine = load_machine(two)
    for kernels in (machine.reference, machine.reference_alone):
        assert min(kernels.gemm_seconds, kernels.copy_seconds, kernels.add_seconds) > 0
    assert len(machine.fit.residuals) == len(DTYPES) * len(LAYOUTS) * len(settings(machine))
    assert machine.provenance.command.startswith("quadrille calibrate --out ")
    assert machine.topology == {"family": "host", "cores": machine.host.cores}


@mpi
@pytest.mark.parametrize(("algorithm", "grid"), [("4d", "x=1"), ("4d", "z=2"), ("cannon", "z=2,x=2"), ("summa", "x=3")])
def test_from_the_machine_file_alone_multiplications_are_predicted(capsys, tmp_path, two, algorithm, grid):
    path = tmp_path / "predicted.json"
    words = ["--matmul", TRAINING.matmul, "--algorithm", algorithm, "--grid", grid, "--passes", "training"]
    ended = called(capsys, "simulate", *words, "--machine", two, "--json", path)
    assert ended.status == 0, ended.err
    record = load_record(path)
    assert record.seconds > 0 and record.machine.name == "host-2"
    assert record.machine.sha256 == load_machine(two).sha256


@mpi
def test_one_rank_alone_calibrates_without_messages(tmp_path):
    machine = load_machine(calibrated(tmp_path, 1))
    assert {ranks for _, ranks in settings(machine)} == {1}
    assert (machine.host.transfer, machine.messages) == ((), ())
    assert machine.reference == machine.reference_alone
    assert machine.host.single_rank_op_seconds >= 0
    assert predict_record_and_timeline(parse_matmul(TRAINING), machine)[0].seconds > 0
    assert predict_record_and_timeline(parse_matmul(replace(TRAINING, grid="z=2")), machine)[0].seconds > 0


@mpi
def test_three_ranks_take_steps_together_and_two_by_two_and_compute_on_the_cores_there_are(tmp_path):
    machine = load_machine(calibrated(tmp_path, 3))
    assert {ranks for _, ranks in settings(machine)} == busy(machine, 3)
    assert {row.ranks for row in machine.host.transfer if row.pattern == "shift"} == {2, 3}
    assert predict_record_and_timeline(parse_matmul(replace(TRAINING, grid="z=3")), machine)[0].seconds > 0


def test_a_quick_calibration_has_only_sizes_of_a_real_one_and_says_what_it_leaves_out():
    for name in ("stream_bytes", "kernel_elements", "transfer_bytes", "library_bytes"):
        assert set(getattr(QUICK, name)) < set(getattr(FULL, name))
        assert getattr(QUICK, name)[0] == getattr(FULL, name)[0]
    assert QUICK.products >= LEAST_ROWS
    left_out = QUICK.left_out()
    assert left_out[:2] == ["chunk sizes and progress threads of messages", "calls such as MPI_Allgatherv"]
    assert "18 of 24 products of each kind" in left_out and FULL.left_out() == []


# Several hosts


@mpi
def test_one_rank_of_each_host_measures_the_network(wired):
    machine = load_machine(wired["star"])
    found = [(row.pattern, row.ranks, row.bytes) for row in machine.network.transfer]
    assert sorted(found) == sorted(product(("shift", "one_way"), (2,), TRANSFERS))
    assert machine.host.transfer == ()


@mpi
def test_the_wiring_is_a_star_unless_it_is_given_and_its_speeds_are_measured_unless_given(wired):
    star, leaf_spine, speeds = (load_machine(wired[name]).topology for name in ("star", "leaf-spine", "speeds"))
    assert (star["family"], star["hosts"]) == ("star", 2)
    assert (leaf_spine["family"], leaf_spine["leaves"]) == ("leaf-spine", 2)
    for topology in (star, leaf_spine):
        assert topology["bandwidth_bytes_per_second"] > 0 and topology["latency_seconds"] > 0
    assert (speeds["bandwidth"], speeds["latency_seconds"]) == (25e6, 1e-4)
    assert "bandwidth_bytes_per_second" not in speeds


@mpi
@pytest.mark.parametrize("name", ["star", "leaf-spine", "speeds"])
def test_multiplications_between_two_hosts_are_predicted(wired, name):
    machine = find_machine(str(wired[name]))
    wiring = ResourceDemands(machine, 2, FlowEngine(simpy.Environment()))
    assert (wiring.endpoint(0), wiring.endpoint(1)) == (0, 1)
    for grid in ("z=2", "x=2", "y=2"):
        record, _ = predict_record_and_timeline(parse_matmul(replace(TRAINING, grid=grid)), machine)
        assert record.seconds > 0
        assert any(op.seconds > 0 for op in record.ops if op.bytes_sent_total)


@mpi
@pytest.mark.parametrize(("hosts", "together"), [("((0, 1), 2), ((2,), 1)", 2), ("((0,), 1), ((1, 2), 2)", 1)])
def test_hosts_with_unequal_numbers_of_ranks_calibrate_and_the_first_counts(hosts, together):
    ended = launched(3, "-c", UNEQUAL_HOSTS, hosts, seconds=60)
    assert ended.status == 0, ended.err
    assert json.loads(ended.out) == {"together": together, "network": 2 * len(TRANSFERS)}


# From points to a machine


LINK = LinkSpeed(latency=5e-5, bytes_per_second=24e6, burst_bytes=7e4)
BESIDE = OverlapCost(core_seconds_per_byte=2e-9, wakeup_delay_seconds=3e-3, back_to_back_latency_seconds=4e-4)


def measured(*, off=0.0, disturbed=0):
    """Points as they could be: products at 1 Gflop/s, every other one off by so much."""
    sizes = [(m, k, n) for m, k, n in product((16, 61, 200), repeat=3)]
    times = [2e-9 * m * k * n * (1 + off * (-1) ** i) for i, (m, k, n) in enumerate(sizes)]
    points = [
        GemmPoint(*size, dtype, layout, 1, 1, seconds)
        for dtype, layout in product(DTYPES, LAYOUTS)
        for size, seconds in zip(sizes, times, strict=True)
    ]
    streams = [MemoryRow(operation="copy", bytes=size, bytes_per_second=1e9) for size in FULL.stream_bytes]
    steps = [TransferPoint("one_way", 2, size, 1e-5 + size / 1e8, 0.0) for size in TRANSFERS]
    between = NetworkMeasurements(steps, [], LINK, BESIDE, idle_core_seconds=5e-3, sender_ack_delay_seconds=7e-4)
    collectives = [
        CollectivePoint("all_gather", GroupShape(2, 1, 2), size, 1e-5 + size / 1e8, 0.0, 1.0) for size in TRANSFERS
    ]
    times, overheads = [(1.0, 2.0, 3.0)], Overheads(0, 0, 0)
    together, alone = (
        LocalMeasurements(points, streams, [], [], times * 3, disturbed),
        LocalMeasurements([], [], [], [], times),
    )
    return CalibrationMeasurements(together, alone, [], between, collectives, overheads)


HOSTS = (ComputeHost("one", (0,), 2), ComputeHost("other", (1,), 2))


def test_points_that_a_fit_explains_raise_no_warning():
    fit = make_machine("calm", measured(), HOSTS[:1], None, Routing()).fit
    assert fit.warnings == () and max(fit.residuals.values()) < 0.01


def test_large_residuals_are_warned_of_by_name():
    fit = make_machine("noisy", measured(off=0.4), HOSTS[:1], None, Routing()).fit
    large = [name for name, residual in fit.residuals.items() if residual > LARGE_RESIDUAL]
    assert len(large) == len(fit.warnings) == len(DTYPES) * len(LAYOUTS)
    for name, warning in zip(large, fit.warnings, strict=True):
        assert warning.startswith(f"{name}: half of the products are off the fit by ")


@pytest.mark.parametrize(("disturbed", "warned"), [(0, 0), (16, 0), (17, 1)])
def test_many_disturbed_points_are_warned_of(disturbed, warned):
    found = measured(disturbed=disturbed)
    assert len(found.local.gemm) == 162
    assert len(make_machine("host", found, HOSTS[:1], None, Routing()).fit.warnings) == warned


@pytest.mark.parametrize(
    ("text", "hosts", "said"),
    [
        ("leaf-spine:leaves=2,spines=1,hosts_per_leaf=4", 2, "has 8 hosts and the ranks are on 2 hosts"),
        ("star:hosts=1", 1, "topology star lacks bandwidth, latency"),
        ("host:cores=2", 2, "has 1 hosts and the ranks are on 2 hosts"),
        ("perlmutter:gpus=2", 2, "has 2 gpus and the ranks are on 2 hosts"),
        ("star:hosts=2,rings=3", 2, "rings is unknown"),
        ("star:hosts=2,bandwidth=0", 2, "bandwidth=0"),
        ("moebius:hosts=2", 2, "family 'moebius' is unknown"),
    ],
)
def test_a_wiring_that_is_not_of_the_hosts_found_is_refused(text, hosts, said):
    with pytest.raises(InputError, match=said):
        parse_topology_option(text, hosts)


@pytest.mark.parametrize("speeds", ["", ",bandwidth=1e9", ",latency_seconds=1e-6,bandwidth_bytes_per_second=1e9"])
def test_a_wiring_of_the_hosts_found_is_taken_with_or_without_its_speeds(speeds):
    family, arguments = parse_topology_option(f"star:hosts=3{speeds}", 3)
    assert (family, arguments["hosts"], len(arguments)) == ("star", 3, 1 + speeds.count("="))


@mpi
def test_a_wiring_that_cannot_be_is_refused_before_anything_is_measured(tmp_path):
    words = [
        "calibrate",
        "--out",
        tmp_path / "host.toml",
        "--topology",
        "leaf-spine:leaves=2,spines=1,hosts_per_leaf=4",
    ]
    ended = quadrille("launch", "-n", "2", *words, seconds=20)
    assert ended.status == 2
    assert "has 8 hosts and the ranks are on 1 host: a topology of 1 host is needed" in ended.line
    assert not list(tmp_path.iterdir())


def test_the_link_speed_of_hosts_is_that_of_messages_from_one_to_another():
    machine = make_machine("two", measured(), HOSTS, None, Routing())
    assert machine.topology["bandwidth_bytes_per_second"] == 24e6
    assert machine.topology["latency_seconds"] == pytest.approx(2.5e-5)  # of each of the two links on the way
    assert (machine.network.payload_share, machine.emulation) == (1, None)


LEAVES = {"leaves": 2, "spines": 1, "hosts_per_leaf": 2}


def in_a_laboratory(text):
    hosts = tuple(ComputeHost(f"host{number}", (number,), 2, sharing=4) for number in range(4))
    return make_machine("lab", measured(), hosts, parse_topology_option(text, 4), Routing())


def test_a_laboratory_has_the_rates_that_it_was_given_and_what_was_measured_of_them():
    machine = in_a_laboratory("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,bandwidth=25e6,uplink_bandwidth=50e6")
    assert (machine.host.cores, machine.emulation.shared_cores, machine.host.ranks) == (2, True, None)
    assert machine.emulation.idle_core_seconds == 5e-3
    assert (machine.topology["bandwidth"], machine.topology["uplink_bandwidth"]) == (25e6, 50e6)
    emulated = machine.emulation
    assert (machine.network.payload_share, emulated.burst_bytes) == (24 / 25, 7e4)
    delays = emulated.wakeup_delay_seconds, emulated.back_to_back_latency_seconds, emulated.sender_ack_delay_seconds
    assert (emulated.core_seconds_per_byte, *delays) == (2e-9, 3e-3, 4e-4, 7e-4)
    assert len(machine.network.transfer) == len(TRANSFERS)


def test_a_laboratory_of_a_topology_file_has_the_rates_in_it_and_its_machine_file_names_it(tmp_path):
    path = tmp_path / "four.json"
    net = build("leaf-spine", LEAVES | {"bandwidth": 25e6, "uplink_bandwidth": 50e6, "latency": 1e-5})
    path.write_text(node_link.dumps(net, {}))
    machine = in_a_laboratory(str(path))
    assert machine.topology == {"file": str(path)}
    assert machine.network.payload_share == 24 / 25
    words = ",".join(f"{name}={value}" for name, value in LEAVES.items())
    same = in_a_laboratory(f"leaf-spine:{words},bandwidth=25e6,uplink_bandwidth=50e6")
    assert machine.network == same.network
    assert network_of(machine).bandwidths.tolist() == network_of(same).bandwidths.tolist()
    with pytest.raises(InputError, match="has 4 hosts and the ranks are on 2 hosts"):
        parse_topology_option(str(path), 2)
    with pytest.raises(InputError, match="cannot be read"):
        parse_topology_option(str(tmp_path / "none.json"), 4)


def test_a_machine_file_has_the_routing_of_its_messages():
    wiring = parse_topology_option("leaf-spine:leaves=2,spines=2,hosts_per_leaf=1", 2)
    found = [make_machine("lab", measured(), HOSTS, wiring, parse_routing(way)) for way in ("shortest", "ecmp:7")]
    assert [machine.routing for machine in found] == ["shortest", "ecmp:7"]


def test_a_rule_of_routing_that_there_is_not_is_refused_before_anything_is_measured(tmp_path):
    ended = quadrille("calibrate", "--out", str(tmp_path / "here.toml"), "--routing", "straight")
    assert ended.status == 2 and "routing 'straight': accepted are shortest" in ended.line


@pytest.mark.parametrize(
    ("rule", "hosts", "said"),
    [
        ("ecmp:7", 1, "--routing ecmp:7: all ranks are on 1 host"),
        ("valiant", 2, "non-minimal paths"),
        ("straight", 2, "routing 'straight': accepted are"),
    ],
)
def test_a_routing_that_hosts_do_not_have_is_refused(rule, hosts, said):
    with pytest.raises(InputError, match=said):
        parse_routing_option(rule, None, hosts)


def test_the_latency_of_a_message_is_that_of_the_links_on_one_of_its_paths():
    wiring = parse_topology_option("leaf-spine:leaves=2,spines=4,hosts_per_leaf=1", 2)
    found = [make_machine("lab", measured(), HOSTS, wiring, parse_routing(way)) for way in ("shortest", "spray")]
    one, several = (machine.topology["latency_seconds"] for machine in found)
    assert one == pytest.approx(several) == pytest.approx(1.25e-5)  # of four links


def test_links_whose_buckets_differ_are_listed_one_by_one():
    machine = in_a_laboratory("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,bandwidth=25e6,uplink_bandwidth=140e6")
    found = machine.emulation.burst_bytes
    assert len(found) == 12 and set(found.values()) == {7e4, 1.4e5}
    assert {name for name, burst in found.items() if burst == 1.4e5} == {
        f"{one}>{other}" for leaf in (0, 1) for one, other in [(f"leaf:{leaf}", "spine:0"), ("spine:0", f"leaf:{leaf}")]
    }


def of_rounds(machine_of, links):
    """A machine of four hosts at 25 MB/s whose links have these shares of that, behind headers that leave 0.96."""
    net = build("star", {"hosts": 4, "bandwidth": 25e6, "latency": 0.0})
    between = replace(measured().between, flows=rounds(slower(net, links), payload=24 / 25))
    return machine_of(replace(measured(), between=between))


def shares_found(links, text="star:hosts=4,bandwidth=25e6", sharing=4):
    hosts = tuple(ComputeHost(f"host{number}", (number,), 2, sharing=sharing) for number in range(4))
    return of_rounds(lambda found: make_machine("lab", found, hosts, parse_topology_option(text, 4), Routing()), links)


def test_links_that_agree_have_the_share_that_one_message_showed():
    machine = shares_found({})
    assert machine.network.payload_share == 24 / 25 and machine.sources == ()


def test_a_link_that_is_slower_than_most_has_a_share_of_its_own_and_is_warned_of():
    machine = shares_found({"host:2>switch:0": 0.5})
    shares = machine.network.payload_share
    assert shares.pop("host:2>switch:0") == pytest.approx(0.48) and set(shares.values()) == {24 / 25}
    assert len(shares) == 7 and machine.fit.warnings[-1].startswith("link host:2>switch:0 carries 0.50 times")


def test_a_slow_link_between_the_first_two_hosts_slows_no_other():
    with_rate, without = (
        network_of(shares_found({"switch:0>host:1": 24 / 25 / 2}, text))  # one message still showed 24 MB/s: half
        for text in ("star:hosts=4,bandwidth=50e6", "star:hosts=4")
    )
    slow = with_rate.link_number("switch:0>host:1")
    for net in (with_rate, without):
        assert net.bandwidths[slow] == pytest.approx(24e6)
        others = np.delete(net.bandwidths, slow)
        assert others.tolist() == pytest.approx([50e6] * 7)


def test_on_hosts_of_their_own_only_links_that_are_slower_have_less_than_their_rate():
    assert shares_found({}, sharing=0).network.payload_share == 1.0
    shares = shares_found({"host:2>switch:0": 0.5}, sharing=0).network.payload_share
    assert shares["host:2>switch:0"] == pytest.approx(0.5) and set(shares.values()) == {1.0, shares["host:2>switch:0"]}


def test_a_machine_file_names_the_links_that_no_round_filled():
    machine = in_a_laboratory("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,bandwidth=25e6,uplink_bandwidth=140e6")
    assert machine.sources == ()  # without rounds nothing is said
    net = build("leaf-spine", LEAVES | {"bandwidth": 25e6, "uplink_bandwidth": 140e6, "latency": 0.0})
    between = replace(measured().between, flows=rounds(net, payload=24 / 25))
    hosts = tuple(ComputeHost(f"host{number}", (number,), 2, sharing=4) for number in range(4))
    wiring = parse_topology_option(
        "leaf-spine:leaves=2,spines=1,hosts_per_leaf=2,bandwidth=25e6,uplink_bandwidth=140e6", 4
    )
    (line,) = make_machine("lab", replace(measured(), between=between), hosts, wiring, Routing()).sources
    assert line.quantity == "network.payload_share" and "no round saturated" in line.source
    assert set(line.value.split(", ")) == {name for name in net.link_names(range(net.link_count)) if "spine" in name}


class FakeBench:
    """Steps at a rate; those of some sizes are held up the first time."""

    ranks = 4

    def __init__(self, rate, held_up=()):
        self.rate, self.held_up, self.asked = rate, set(held_up), []

    def transfer(self, pattern, size, steps):
        self.asked.append((size, steps))
        times = 5.0 if size in self.held_up else 1.0
        self.held_up.discard(size)
        return TransferPoint(pattern, 4, size, 1e-4 + times * size / self.rate, 0.0), Overheads(0, 0, 0)


def test_steps_are_measured_up_to_those_that_take_long_and_slow_ones_less_often():
    bench = FakeBench(25e6)
    sizes = [point.bytes for point, _ in transfer_points(bench, "shift", [8, 1 << 16, 1 << 20, 1 << 22, 1 << 24])]
    assert sizes == [8, 1 << 16, 1 << 20, 1 << 22]
    steps = dict(bench.asked)
    assert steps[8] == steps[1 << 20] == STEPS and LEAST_STEPS <= steps[1 << 22] < STEPS


def test_a_step_that_takes_longer_than_its_parts_is_measured_again():
    sizes = [1 << 16, 1 << 18, 1 << 20, 1 << 22]
    found = [point for point, _ in transfer_points(FakeBench(25e6, [1 << 22]), "shift", sizes)]
    assert found == [point for point, _ in transfer_points(FakeBench(25e6), "shift", sizes)]


def steps_found(*rates):
    """Steps of 4 MiB by several patterns, at these rates [B/s]."""
    names = ("shift", "exchange", "one_way")
    return [
        (TransferPoint(name, 4, 1 << 22, (1 << 22) / rate, 0.0), None) for name, rate in zip(names, rates, strict=True)
    ]


def test_a_pattern_that_is_slower_than_others_is_measured_again_and_the_fastest_counts():
    bench = FakeBench(25e6)
    shift, exchange, one_way = (point for point, _ in remeasured_points(bench, steps_found(25e6, 18e6, 25e6)))
    assert [size for size, _ in bench.asked] == [1 << 22] and exchange.seconds < (1 << 22) / 24e6
    assert shift.seconds == one_way.seconds == (1 << 22) / 25e6


def test_a_pattern_that_stays_slower_is_believed():
    bench = FakeBench(18e6)
    _, exchange, _ = (point for point, _ in remeasured_points(bench, steps_found(25e6, 18e6, 25e6)))
    assert len(bench.asked) == 2 and exchange.seconds > (1 << 22) / 19e6


def test_a_laboratory_without_rates_has_those_that_were_measured():
    machine = in_a_laboratory("star:hosts=4")
    assert (machine.topology["bandwidth_bytes_per_second"], machine.network.payload_share) == (24e6, 1.0)


def test_a_machine_is_what_its_points_say():
    machine = make_machine("host", measured(), HOSTS[:1], None, Routing())
    assert machine.device.peak_flops_per_second == {dtype: pytest.approx(1e9) for dtype in DTYPES}
    assert machine.device.memory_bytes_per_second == pytest.approx(2e9)
    assert (machine.reference.gemm_seconds, machine.reference.copy_seconds, machine.reference.add_seconds) == (1, 2, 3)
    assert json.loads(json.dumps(machine.topology)) == {"family": "host", "cores": 2}


def test_links_agree_by_the_rates_that_are_said_or_by_that_of_one_message():
    net = build("star", {"hosts": 4, "bandwidth": 25e6, "latency": 0.0})
    for text in ("star:hosts=4,bandwidth=25e6", "star:hosts=4"):
        wiring = parse_topology_option(text, 4)
        assert links_agree(wiring, Routing(), LINK, rounds(net, payload=24 / 25))
        assert not links_agree(wiring, Routing(), LINK, rounds(slower(net, {"host:2>switch:0": 0.5}), payload=24 / 25))


@mpi
def test_where_links_seem_slow_rounds_are_measured_again_and_the_most_counts():
    ended = launched(2, "-c", AGAIN, seconds=60)
    assert ended.status == 0, ended.err
    assert json.loads(ended.out) == {
        "agree": [1, 2, 3],
        "agree in the end": [1, 2, 3, 4, 5, 6],
        "do not": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    }
