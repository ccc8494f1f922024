"""Public reports, tried as a new user would: each test is a row of README.md beside it, with its number and source.

A tolerance is what the source states (a range, a peak, "no more than"), or 10 % beside a measurement on other hardware
of the same kind. No constant of the product was fitted to these points.
"""

import json

import numpy as np
import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.topologies.find_machine import find_machine_or_topology
from tests.support.quadrille import called

GIB, MIB, GB = 1 << 30, 1 << 20, 1e9
BESIDE_A_MEASUREMENT = 0.1
SIMGRID = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="zone0" routing="Full">
    <host id="A" speed="1Gf" />
    <host id="B" speed="1Gf" />
    <link id="link1" latency="10ms" bandwidth="1Mbps" />
    <route src="A" dst="B"><link_ctn id="link1" /></route>
  </zone>
</platform>
"""
DGX_1 = (
    "0-1:25 0-2:25 0-3:50 0-4:50 1-2:50 1-3:25 1-5:50 2-3:50 2-6:25 3-7:25 4-5:25 4-6:25 4-7:50 5-6:50 5-7:25 6-7:50"
)


def collective(kind, size, machine, gpus, collectives="default", **given):
    question = CollectiveQuestion(
        kind=kind, bytes=size, gpus=gpus, group=gpus, choices=parse_choices(collectives), **given
    )
    return predict_collective(question, find_machine_or_topology(str(machine), gpus=gpus))


def graph(path, cables, **attributes):
    names = {end for a, b, _ in cables for end in (a, b)}
    ordered = sorted(names, key=lambda name: (name.split(":")[0], int(name.split(":")[1])))
    edges = [{"source": a, "target": b, "bandwidth": rate, "latency": 1e-6} for a, b, rate in cables]
    data = {"directed": False, "multigraph": True, "graph": attributes, "nodes": [{"id": name} for name in ordered]}
    path.write_text(json.dumps(data | {"edges": edges}))
    return path


# Bandwidths that maintainers state, or users measured


@pytest.mark.parametrize(
    ("report", "kind", "size", "machine", "gpus", "collectives", "bus"),
    [
        (1, "all_reduce", 8 * GIB, "h100-node", 8, "default", 480),
        (2, "all_gather", 8 * GIB, "h100-node", 8, "default", 370),
        (3, "all_reduce", 4 * GIB, "h200-node", 8, "default", 475),
        (4, "all_reduce", 8 * GIB, "b200-node", 8, "default", 830),
        (5, "all_reduce", 16 * GIB, "h100-superpod", 16, "default", 470),
        (6, "all_reduce", 16 * GIB, "h100-superpod", 32, "default", 365.84),
        (7, "all_reduce", GIB, "h100-superpod", 32, "nccl:ring", 385.41),
        (8, "all_reduce", 8 * GIB, "h100-superpod", 1984, "default", 350),
        (9, "all_reduce", 8 * GIB, "abci-a100", 24, "nccl:ring", 96),
        (10, "all_reduce", 8 * GIB, "selene", 16, "nccl:ring", 192),
        (11, "all_reduce", 8 * GIB, "longhorn", 32, "default", 12),
        (12, "all_reduce", 8 * GIB, "abci-v100", 8, "default", 41.55),
        (13, "send_receive", 512 * MIB, "alps", 32, "default", 24.24),
        (14, "all_to_all", 8 * GIB, "h100-superpod", 48, "default", 6 / 5 * 48.5),
        (15, "all_reduce", 4 * GIB, "mi300x-node", 8, "default", 312.9),
    ],
)
def test_a_bus_bandwidth_is_what_the_report_has(report, kind, size, machine, gpus, collectives, bus):
    answer = collective(kind, size, machine, gpus, collectives)
    assert answer.bus_bandwidth == pytest.approx(bus * GB, rel=BESIDE_A_MEASUREMENT), f"report {report}"


def test_16_a_short_all_reduce_of_mi300x_takes_as_long_as_measured():
    assert collective("all_reduce", 8 * MIB, "mi300x-node", 8).seconds == pytest.approx(91.1e-6, rel=0.1)


def test_17_on_two_nodes_a_tree_goes_beyond_the_network_card():
    """Two nodes with one card of 100 Gb/s: a ring stays below the card, a tree need not."""
    ring, tree = (collective("all_reduce", 8 * GIB, "longhorn", 8, f"nccl:{name}") for name in ("ring", "tree"))
    assert ring.bus_bandwidth <= 12.5 * GB < tree.bus_bandwidth < 25 * GB


def test_18_ring_and_direct_all_reduce_take_equally_long_behind_one_switch():
    """2 (p - 1) / p of the bytes leave each host, whatever the algorithm; a factor of 2 between them is an artefact."""
    machine = "star:hosts=8,bandwidth=50GB/s,latency=10ns"
    ring = collective("all_reduce", 100_000_000, machine, 8, "own:ring")
    halving = collective("all_reduce", 100_000_000, machine, 8, "own:halving_doubling")
    for answer in (ring, halving):
        assert answer.seconds == pytest.approx(2 * 7 / 8 * 1e8 / 50e9, rel=1e-3)


def test_19_a_torus_of_2_x_8_is_as_fast_as_one_of_8_x_2():
    first, second = (
        collective("all_to_all", GIB, f"torus:dims={dims},bandwidth=200e9,latency=1e-9", 16) for dims in ("2x8", "8x2")
    )
    assert first.seconds == pytest.approx(second.seconds, rel=1e-9)


# Topologies and platforms of users


def flows(capsys, tmp_path, machine, rows):
    (tmp_path / "rows.csv").write_text("source,destination,bytes,start_s\n" + rows)
    ended = called(capsys, "flows", tmp_path / "rows.csv", "--machine", machine, "--json", "-")
    return json.loads(ended.out)


def test_20_four_cables_between_two_switches_carry_four_times_as_much(capsys, tmp_path):
    cables = [(f"host:{i}", f"leaf:{i // 2}", 50e9) for i in range(4)]
    cables += [(f"leaf:{i}", "spine:0", 12.5e9) for i in range(2) for _ in range(4)]
    machine = graph(tmp_path / "net.json", cables)
    answer = flows(capsys, tmp_path, machine, "0,2,50000000000,0\n1,3,50000000000,0\n")
    assert answer["makespan_s"] == pytest.approx(100e9 / 50e9, rel=1e-4)


def test_21_a_simgrid_platform_of_one_link_takes_latency_and_size_by_bandwidth(capsys, tmp_path):
    (tmp_path / "platform.xml").write_text(SIMGRID)
    answer = flows(capsys, tmp_path, tmp_path / "platform.xml", "0,1,100000,0\n")
    assert answer["makespan_s"] == pytest.approx(0.01 + 8e5 / 1e6, rel=1e-9)


def test_22_a_graph_of_gpus_without_switches_is_answered_and_beats_no_link(tmp_path):
    """Six NVLinks of 25 GB/s leave each GPU of a DGX-1: no all-reduce has more than 150 GB/s of bus bandwidth."""
    pairs = [(*ends.split("-"), float(rate)) for ends, rate in (word.split(":") for word in DGX_1.split())]
    machine = graph(tmp_path / "dgx1.json", [(f"gpu:{a}", f"gpu:{b}", rate * GB) for a, b, rate in pairs])
    answer = collective("all_reduce", GIB, machine, 8, "own:ring", channels=0)
    assert 75 * GB < answer.bus_bandwidth <= 150 * GB


# Memory


def memory(capsys, *words):
    return json.loads(called(capsys, "simulate", *words, "--json", "-").out)["memory_bytes_by_kind"]


@pytest.mark.parametrize(("zero", "share"), [(0, 16.0), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_23_zero_stages_need_the_bytes_of_the_paper(capsys, zero, share):
    """2 + 2 + 12 bytes a parameter, of which stage 1 shards 12, stage 2 14, and stage 3 all; within 1 %."""
    words = ["--gpt", "gpt3-6.7b", "--batch", "64", "--micro-batch", "1", "--grid", "data=64", "--zero", str(zero)]
    words += ["--gradient-bytes", "2", "--scheme", "megatron", "--machine", "selene"]
    kinds = memory(capsys, *words)
    states = sum(kinds[kind] for kind in ("parameters", "gradients", "optimizer"))
    assert states == pytest.approx(share * 6_658_404_352, rel=0.01)


def test_24_without_a_distributed_optimizer_a_parameter_has_18_bytes(capsys):
    words = ["--gpt", "llama-7b", "--batch", "8", "--micro-batch", "1", "--grid", "data=8", "--scheme", "megatron"]
    kinds = memory(capsys, *words, "--machine", "selene")
    states = sum(kinds[kind] for kind in ("parameters", "gradients", "optimizer"))
    assert states == pytest.approx(18 * 6_738_415_616, rel=0.01)


# Products


def test_25_files_in_fortran_order_are_read_as_the_matrices_that_they_hold(capsys, tmp_path):
    numbers = np.random.default_rng(0)
    a, b = numbers.standard_normal((13, 17)), numbers.standard_normal((17, 11))
    np.save(tmp_path / "a.npy", np.asfortranarray(a))
    np.save(tmp_path / "b.npy", b.T.copy().T)
    words = ["run", "--matmul", "13,17,11", "--dtype", "float64", "--a", tmp_path / "a.npy", "--b", tmp_path / "b.npy"]
    ended = called(capsys, *words, "--c", tmp_path / "c.npy", "--repeats", "1", "--warmups", "0")
    assert ended.status == 0
    assert np.load(tmp_path / "c.npy") == pytest.approx(a @ b, abs=1e-12)


def test_26_a_prime_number_of_ranks_costs_more_than_a_few_idle_ranks(capsys):
    """The largest rank of 1 x 19 sends more than twice as much as that of 3 x 6: one idle rank is the better grid."""
    sent, seconds = {}, {}
    for grid in ("z=19", "z=3,x=6"):
        words = [
            "simulate",
            "--matmul",
            "4096,4096,4096",
            "--algorithm",
            "summa",
            "--grid",
            grid,
            "--collectives",
            "own",
        ]
        answer = json.loads(called(capsys, *words, "--machine", "frontier", "--json", "-").out)
        sent[grid], seconds[grid] = answer["bytes_sent_per_rank_max"], answer["seconds"]
    assert 2 * sent["z=3,x=6"] < sent["z=19"]
    assert seconds["z=3,x=6"] < seconds["z=19"]
