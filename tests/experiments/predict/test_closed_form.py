from dataclasses import replace
from math import isclose

import pytest

from quadrille.algorithms.analysis import alpha_beta
from quadrille.algorithms.analysis.axonn import NodeBandwidths, effective_bandwidth, layer_cost
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import MemoryRow, TransferRow
from quadrille.algorithms.matmuls.catalogue import find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.recompute import RECOMPUTES
from quadrille.algorithms.training.scheme_catalogue import SCHEMES
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.matmul_grids import rank_grids
from quadrille.experiments.workloads.grids import grids
from quadrille.simulator.simulate import simulate
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine, NetworkCosts
from tests.support.toy_machines import (
    BANDWIDTH,
    FREE,
    LATENCY,
    device,
    gemm_row,
    leaf_spine,
    memory_row,
    one_host,
    star,
)


def simulated(problem, ranked, machine, choices=None):
    schedule = matmul_schedule(problem, ranked.algorithm, ranked.grid)
    return simulate(schedule, machine, choices=choices or Choices()).timeline.makespan


def ranked_and_simulated(problem, name, ranks, machine, choices=None):
    ranked = rank_grids(problem, [find_algorithm(name)], ranks, machine, choices=choices)
    assert ranked
    return [(one.closed_form.seconds, simulated(problem, one, machine, choices)) for one in ranked]


def nodes(count, *, gpus=4, nics=4, nic_bandwidth=25e9):
    """Nodes of GPUs without latency, whose inside is ten times as fast as a NIC."""
    topology = {"family": "gpu-cluster", "nodes": count, "gpus_per_node": gpus, "nics_per_node": nics}
    topology |= {
        "gpu_bandwidth": 250e9,
        "gpu_latency_seconds": 0.0,
        "nic_bandwidth": nic_bandwidth,
        "nic_latency_seconds": 0.0,
    }
    return Machine(name="nodes", topology=topology, device=device())


@pytest.mark.parametrize("passes", ["forward", "training"])
@pytest.mark.parametrize("name", ["1d-column", "1d-row", "3d", "4d"])
@pytest.mark.parametrize("ranks", [1, 2, 6, 8])
def test_equal_blocks_on_a_star_take_the_time_of_the_closed_form(name, ranks, passes):
    problem = Matmul(48, 144, 96, "float64", passes)
    for closed, seconds in ranked_and_simulated(problem, name, ranks, star(ranks, memory=1e9, overhead=3e-6)):
        assert closed == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("passes", ["forward", "training"])
@pytest.mark.parametrize("name", ["1d-column", "1d-row", "cannon", "summa", "2.5d", "3d", "4d"])
def test_one_rank_takes_the_time_of_the_closed_form_overheads_and_measured_rows_included(name, passes):
    """Prices of local work are the simulator's: each kind of op pays what it pays there."""
    rows = [memory_row("add", 1 << 10, 3e-6), memory_row("add", 1 << 16, 9e-6), memory_row("copy", 1 << 12, 5e-6)]
    machine = star(1, memory=1e9, overhead=7e-6, memory_rows=rows, gemm=[gemm_row(64, 64, 64, 2e-5)])
    problem = Matmul(160, 96, 224, "float64", passes, panel=32)
    ((closed, seconds),) = ranked_and_simulated(problem, name, 1, machine)
    assert closed == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("passes", ["forward", "training"])
@pytest.mark.parametrize("transposed", ["a", "b"])
@pytest.mark.parametrize("ranks", [1, 2, 6, 8])
def test_equal_blocks_of_transposed_operands_take_the_time_of_the_closed_form(ranks, transposed, passes):
    problem, machine = Matmul(144, 144, 144, "float64", passes, transposed=transposed), star(ranks, memory=1e9)
    for closed, seconds in ranked_and_simulated(problem, "3d", ranks, machine):
        assert closed == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("attention", ["fused", "unfused"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_training_step_of_one_rank_takes_the_time_of_the_closed_form(scheme, attention, recompute):
    problem = Gpt(3, 24, 4, 8, 31, 6, attention=attention, recompute=recompute, micro_batch=2)
    schedule = gpt_schedule(problem, Grid(), SCHEMES[scheme])
    for machine in (star(1, memory=1e9, overhead=7e-6), find_machine("perlmutter", (), gpus=1)):
        closed = ClosedFormModel(machine, "float32", 1, Choices()).closed_form(schedule)
        assert closed.seconds == pytest.approx(simulate(schedule, machine).timeline.makespan, rel=1e-9)


@pytest.mark.parametrize("collectives", ["own:doubling", "own:halving_doubling", "library"])
@pytest.mark.parametrize("name", ["3d", "4d"])
def test_each_set_of_collectives_takes_the_time_of_its_closed_form(name, collectives):
    problem, choices = Matmul(64, 128, 192, "float32", "training"), parse_choices(collectives)
    for closed, seconds in ranked_and_simulated(problem, name, 8, star(8, memory=1e10), choices):
        assert closed == pytest.approx(seconds, rel=1e-9)


def test_the_order_of_the_closed_form_is_that_of_brute_force():
    problem = Matmul(4096, 1024, 2048, "bfloat16", "training")
    seconds = [seconds for _, seconds in ranked_and_simulated(problem, "4d", 8, find_machine("perlmutter", gpus=8))]
    assert seconds == pytest.approx(sorted(seconds), rel=1e-9)


@pytest.mark.parametrize(("machine", "ranks"), [("perlmutter", 6), ("perlmutter", 12), ("frontier", 10)])
def test_uneven_rings_partly_inside_a_node_take_the_time_of_the_closed_form_within_15_percent(machine, ranks):
    problem = Matmul(1999, 1511, 997, "bfloat16", "training")
    for closed, seconds in ranked_and_simulated(problem, "4d", ranks, find_machine(machine, gpus=ranks)):
        assert closed == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize(("name", "ranks"), [("summa", 6), ("cannon", 9), ("2.5d", 8)])
def test_pipelined_panels_take_the_time_of_the_closed_form_within_a_third(name, ranks):
    problem = Matmul(2048, 2048, 1024, "float32", "training")
    turned = [replace(problem, transposed=form) for form in ("a", "b") if find_algorithm(name).any_form]
    for one in (problem, *turned):
        for closed, seconds in ranked_and_simulated(one, name, ranks, star(ranks, memory=1e11)):
            assert closed == pytest.approx(seconds, rel=1 / 3)


@pytest.mark.parametrize("name", ["summa", "3d", "4d"])
def test_the_fastest_of_all_is_among_the_three_first_of_the_closed_form_or_nearly_so(name):
    problem = Matmul(1999, 1511, 997, "bfloat16", "training")
    seconds = [seconds for _, seconds in ranked_and_simulated(problem, name, 6, find_machine("perlmutter", gpus=6))]
    assert min(seconds[:3]) <= 1.02 * min(seconds)


@pytest.mark.parametrize("ranks", [1, 2, 4, 6])
def test_ranks_that_share_the_cores_of_a_host_take_the_time_of_the_closed_form(ranks):
    problem = Matmul(120, 240, 360, "float64", "training")
    rows = [MemoryRow(operation="copy", bytes=1000 * size, bytes_per_second=1e9 / size) for size in (1, 9)]
    machine = one_host(2, memory=1e9, overhead=1e-6, memory_rows=rows)
    for closed, seconds in ranked_and_simulated(problem, "4d", ranks, machine):
        assert closed == pytest.approx(seconds, rel=0.15)


def test_measured_transfers_count_at_the_size_that_is_sent():
    rows = [
        TransferRow(pattern=pattern, ranks=2, bytes=size, seconds=1e-5 + size / rate)
        for pattern in ("shift", "exchange")
        for size, rate in ((100, 1e6), (100_000, 1e8))
    ]
    problem = Matmul(48, 96, 96, "float64", "training")
    machine = star(4, network=rows)
    assert machine.network == NetworkCosts(transfer=tuple(rows))
    for closed, seconds in ranked_and_simulated(problem, "4d", 4, machine):
        assert closed == pytest.approx(seconds, rel=1e-9)


def closed_form_model(machine, ranks):
    return ClosedFormModel(machine, "float64", ranks, Choices())


def test_an_idle_star_gives_every_axis_its_cables():
    link = closed_form_model(star(12), 12).hops.axis_link(Grid(z=2, y=3, x=2), "y")
    assert link.latency == pytest.approx(2 * LATENCY) and link.bandwidth == pytest.approx(BANDWIDTH)


def test_an_axis_of_one_rank_costs_nothing():
    link = closed_form_model(star(3), 3).hops.axis_link(Grid(x=3), "y")
    assert link.seconds(1e9) == 0


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_with_joined_nics_the_rule_of_axonn_for_rings_that_leave_a_node_follows(stride):
    machine, ranks = nodes(8, nics=1, nic_bandwidth=100e9), 32
    node = NodeBandwidths(4, {}, 100e9)
    lengths = [length for length in (2, 4, 8, 16) if 4 < stride * length <= ranks]
    assert lengths == {1: [8, 16], 2: [4, 8, 16], 4: [2, 4, 8], 8: [2, 4]}[stride]
    for length in lengths:
        grid = Grid(x=stride, y=length, data=ranks // stride // length)
        found = closed_form_model(machine, ranks).hops.axis_link(grid, "y").bandwidth
        assert found == pytest.approx(effective_bandwidth(stride, length, node))


def test_with_separate_nics_a_lone_ring_gets_one_of_them_only():
    grid = Grid(x=8, data=4)
    assert closed_form_model(nodes(8), 32).hops.axis_link(grid, "x").bandwidth == pytest.approx(25e9)


def test_groups_that_cross_a_link_together_share_it():
    machine = leaf_spine(2, 3)
    link = closed_form_model(machine, 6).hops.axis_link(Grid(x=3, y=2), "y")
    assert link.bandwidth == pytest.approx(BANDWIDTH / 3)
    assert closed_form_model(machine, 6).hops.axis_link(Grid(x=3, y=2), "x").bandwidth == pytest.approx(BANDWIDTH)


def test_without_latency_the_closed_form_is_that_of_the_4d_layer():
    m, k, n = 96, 144, 192
    machine = star(12, latency=0.0, memory=FREE)
    problem = Matmul(m, k, n, "float32", "training")
    all_grids = list(grids(12, find_algorithm("4d")))
    assert len(all_grids) == 40
    for grid in all_grids:
        closed = closed_form_model(machine, 12).closed_form(matmul_schedule(problem, "4d", grid))
        bandwidths = dict.fromkeys(AXES, BANDWIDTH)
        layer = layer_cost(m / grid.data, k, n, grid.lengths, bandwidths, element_bytes=4, gradient_bytes=4)
        assert closed.communication_seconds == pytest.approx(layer.training, rel=1e-9)
        assert closed.seconds == closed.compute_seconds + closed.communication_seconds


def test_a_reduction_is_a_part_of_every_step_that_reduces():
    slow = star(4, memory=3e9)
    schedule = matmul_schedule(Matmul(16, 16, 16, "float64"), "1d-row", Grid(y=4))
    closed = ClosedFormModel(slow, "float64", 4, Choices()).closed_form(schedule).communication_seconds
    size = 16 * 16 * 8
    hop = alpha_beta.AlphaBetaLink(2 * LATENCY, BANDWIDTH)
    assert closed == pytest.approx(alpha_beta.ring_all_reduce(4, size, hop) + 3 * 3 * size / 4 / 3e9)


def test_more_ranks_on_a_core_make_products_slower_by_as_much():
    schedule = matmul_schedule(Matmul(16, 16, 16, "float64"), "1d-column", Grid(x=4))
    alone, oversubscribed = (
        ClosedFormModel(machine, "float64", 4, Choices()).closed_form(schedule).compute_seconds
        for machine in (one_host(4), one_host(2))
    )
    assert isclose(oversubscribed, 2 * alone)


def test_the_memory_of_a_ranked_grid_is_that_of_its_fullest_rank():
    for name in ("4d", "3d", "2.5d", "summa"):
        ranked = rank_grids(Matmul(37, 53, 29, "float64", "training"), [find_algorithm(name)], 12, star(12))
        assert ranked
        for one in ranked:
            schedule = matmul_schedule(Matmul(37, 53, 29, "float64", "training"), name, one.grid)
            assert one.peak_bytes == volumes(schedule, Choices()).peak_bytes_per_rank_max


def test_an_overlap_changes_the_memory_and_not_the_closed_form():
    problem, machine = Matmul(32, 64, 64, "float64", "training"), star(4)
    plain, ahead = (
        {str(one.grid): one for one in rank_grids(problem, [find_algorithm("4d")], 4, machine, overlaps=overlaps)}
        for overlaps in (frozenset(), frozenset({"oag"}))
    )
    assert all(plain[name].closed_form.seconds == pytest.approx(one.closed_form.seconds) for name, one in ahead.items())
    schedule = overlap(matmul_schedule(problem, "4d", Grid(z=4)), {"oag"})
    assert ahead["z=4"].peak_bytes == volumes(schedule, Choices()).peak_bytes_per_rank_max > plain["z=4"].peak_bytes


def test_several_algorithms_are_ranked_together():
    names = ["3d", "4d", "cannon"]
    ranked = rank_grids(Matmul(32, 32, 32), [find_algorithm(name) for name in names], 4, star(4))
    assert [one.closed_form.seconds for one in ranked] == pytest.approx(
        sorted(one.closed_form.seconds for one in ranked)
    )
    assert {one.algorithm for one in ranked} == set(names)


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(InputError, match=r"9 ranks: nodes has 8 GPUs"):
        rank_grids(Matmul(32, 32, 32), [find_algorithm("4d")], 9, nodes(2))
