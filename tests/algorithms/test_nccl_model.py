"""NCCL's model of itself, against sums done by hand from its published constants."""

from dataclasses import replace
from math import inf

import pytest

from quadrille.algorithms.collectives.nccl.communicator import (
    NcclGroup,
    channels_between,
    channels_inside,
    communicator,
)
from quadrille.algorithms.collectives.nccl.costs import ALGORITHMS_OF_KIND, bandwidth, latency, predicted_seconds
from quadrille.algorithms.collectives.nccl.tuner import choose, plan, used_channels
from quadrille.algorithms.collectives.nccl.tuning_constants import (
    ALGORITHMS,
    CORRECTED_SIZES,
    GENERATIONS,
    PROTOCOLS,
    TREE_CORRECTION,
)
from quadrille.algorithms.errors import InputError

GIB = 1 << 30
A100 = communicator(8, 1, "ampere", nvlinks=12)
H100 = communicator(8, 1, "hopper", nvlinks=18, nvls=True)
PODS = communicator(128, 16, "hopper", nvlinks=18, cards=8, card_bandwidth=50e9, nvls=True)
A100S = communicator(64, 16, "ampere", nvlinks=12, cards=4, card_bandwidth=25e9, cpu="amd")
GROUPS = [A100, H100, PODS, A100S]
KINDS = [kind for kind, algorithms in ALGORITHMS_OF_KIND.items() if algorithms]


def test_a_ring_inside_a_node_takes_its_steps_and_the_links_bandwidth():
    """8 A100: 12 channels of 20 GB/s; 14 steps of 3.4 us after 8.4 us; 8/14 of 240 GB/s."""
    expected = 8.4e-6 + 14 * 3.4e-6 + GIB * 14 / 8 / 240e9
    assert predicted_seconds("all_reduce", GIB, A100, "ring", "Simple") == pytest.approx(expected)
    expected = 8.4e-6 + 7 * 3.4e-6 + GIB * 7 / 8 / 240e9
    assert predicted_seconds("all_gather", GIB, A100, "ring", "Simple") == pytest.approx(expected)


def test_low_latency_protocols_pay_with_bandwidth():
    """LL: half of 240 GB/s, but no more than 87.7; LL128: 0.92 of it, under 12 x 20."""
    assert bandwidth("all_reduce", A100, "ring", "LL") == pytest.approx(87.7e9 * 8 / 14)
    assert bandwidth("all_reduce", A100, "ring", "LL128") == pytest.approx(0.92 * 240e9 * 8 / 14)
    assert latency("all_reduce", A100, "ring", "LL", 1) == pytest.approx(6.6e-6 + 14 * 0.6e-6)
    assert latency("all_reduce", A100, "ring", "LL128", 1) == pytest.approx(14e-6 + 14 * 1.9e-6)


def test_a_ring_across_nodes_has_steps_of_both_kinds_and_a_plateau():
    """128 ranks on 16 nodes: 254 steps, 30 of them over the network; 14 us each, three posts of 1 us the others."""
    steps = 8.4e-6 + 224 * 3.4e-6 + 30 * 14e-6
    assert latency("all_reduce", PODS, "ring", "Simple", 64 * 16 * 128 - 1) == pytest.approx(steps)
    assert latency("all_reduce", PODS, "ring", "Simple", 64 * 16 * 128) == pytest.approx(1.4 * steps)
    assert latency("all_gather", PODS, "ring", "Simple", GIB) == pytest.approx(8.4e-6 + 112 * 3.4e-6 + 15 * 14e-6)
    assert latency("all_gather", A100S, "ring", "Simple", GIB) == pytest.approx(8.4e-6 + 48 * 6e-6 + 15 * 14e-6)


def test_a_tree_has_the_logarithm_of_the_nodes():
    """16 nodes of 8: 7 hops inside, 4 between, up and down; 0.92 of 8 x 46.35 GB/s is more than 8 x 36, or 29."""
    assert latency("all_reduce", PODS, "tree", "LL128", 1) == pytest.approx(14e-6 + 2 * (7 * 1.25e-6 + 4 * 8.5e-6))
    assert bandwidth("all_reduce", PODS, "tree", "Simple") == pytest.approx(8 * 36e9 / 2)
    assert bandwidth("all_reduce", PODS, "tree", "LL128") == pytest.approx(8 * 29e9 / 2)
    assert bandwidth("all_reduce", PODS, "tree", "LL") == pytest.approx(20.4e9 / 2)


@pytest.mark.parametrize(
    ("generation", "cards", "rate", "inside", "found"),
    [
        ("ampere", 4, 25e9, 240e9, (4, 24e9)),  # HDR: the speed below 25
        ("volta", 2, 12.5e9, 120e9, (2, 12e9)),  # EDR
        ("ampere", 4, 50e9, 240e9, (8, 24e9)),  # 48 GB/s is split in two
        ("hopper", 8, 50e9, 370.8e9, (8, 45e9)),  # 8 of 48 are more than the links inside have; not split on Hopper
        ("hopper", 4, 50e9, 370.8e9, (8, 24e9)),
        ("ampere", 8, 50e9, 60e9, (4, 15e9)),  # the links inside bind: two of 30, split, carry more than one of 48
        ("ampere", 1, 1e7, 240e9, (1, 1e7)),  # slower than any speed that is tried
    ],
)
def test_channels_between_nodes_have_a_speed_of_the_list(generation, cards, rate, inside, found):
    channels, speed = channels_between(generation, cards, rate, inside)
    assert (channels, speed) == (found[0], pytest.approx(found[1]))


def test_rings_have_one_speed_all_the_way_and_trees_up_to_twice_that_inside():
    """2 nodes with 4 cards of 25 GB/s: rings 4 x 24; trees 4 x 48 inside, which 240 GB/s have, and 4 x 24 between."""
    two = communicator(16, 2, "ampere", nvlinks=12, cards=4, card_bandwidth=25e9)
    assert (two.ring_bandwidth, two.tree_bandwidth) == pytest.approx((96e9, 192e9))
    assert bandwidth("all_gather", two, "ring", "Simple") == pytest.approx(96e9 * 16 / 15)
    four = communicator(32, 4, "ampere", nvlinks=12, cards=4, card_bandwidth=25e9)
    assert (four.ring_bandwidth, four.tree_bandwidth) == pytest.approx((96e9, 96e9))


def test_a_gpu_alone_in_its_node_is_bound_by_its_card_only():
    alone = communicator(16, 16, "hopper", nvlinks=0, cards=1, card_bandwidth=50e9)
    assert alone.ring_bandwidth == pytest.approx(48e9)


def test_the_host_s_processor_slows_low_latency_between_nodes():
    """On more than two nodes LL carries 20.4 GB/s beside Intel's and 19 beside AMD's, whose posts take longer too."""
    intel, amd = (replace(A100S, cpu=cpu) for cpu in ("intel", "amd"))
    assert bandwidth("all_gather", intel, "ring", "LL") * 63 / 64 == pytest.approx(20.4e9)
    assert bandwidth("all_gather", amd, "ring", "LL") * 63 / 64 == pytest.approx(19.0e9)
    assert latency("all_gather", amd, "ring", "LL", 1) - latency("all_gather", intel, "ring", "LL", 1) == pytest.approx(
        48 * 1e-6
    )


def test_trees_are_corrected_in_the_middle_sizes_only():
    speed, base = bandwidth("all_reduce", PODS, "tree", "LL"), latency("all_reduce", PODS, "tree", "LL", 0)
    at_256k = predicted_seconds("all_reduce", 64 << 12, PODS, "tree", "LL")
    assert at_256k == pytest.approx(base + (64 << 12) / (0.4 * speed))
    huge = 64 << CORRECTED_SIZES
    assert predicted_seconds("all_reduce", huge, PODS, "tree", "LL") == pytest.approx(base + huge / speed)
    assert all(len(TREE_CORRECTION[protocol]) == CORRECTED_SIZES + 1 for protocol in PROTOCOLS)


def test_sums_in_the_switch_take_a_channel_less():
    """8 H100: a channel of 40 GB/s for each, 0.85 of 7/8 of them, twice for both halves, 8/14 of it."""
    assert bandwidth("all_reduce", H100, "nvls", "Simple") == pytest.approx(2 * 0.85 * 7 * 40e9 * 8 / 14)
    assert latency("all_reduce", H100, "nvls", "Simple", GIB) == pytest.approx(25e-6)
    assert predicted_seconds("all_reduce", GIB, A100, "nvls", "Simple") == inf


def test_few_gpus_go_around_and_many_sum_in_the_switch_as_published():
    """On HGX H200 with NCCL 2.27.7 large all-reduces of 4 GPUs are rings, those of 5 to 8 sum in the switch.

    Source: stas00/ml-engineering@744d01e18b79, network/README.md, which also has the sizes: ring by LL up to 1 MiB.
    """
    groups = {gpus: communicator(gpus, 1, "hopper", nvlinks=18, nvls=True) for gpus in range(2, 9)}
    chosen = {gpus: choose("all_reduce", 8 * GIB, group).algorithm for gpus, group in groups.items()}
    assert chosen == {gpus: "ring" if gpus <= 4 else "nvls" for gpus in groups}
    eight = [choose("all_reduce", size, groups[8]) for size in (1 << 20, 2 << 20)]
    assert [(one.algorithm, one.protocol) for one in eight] == [("ring", "LL"), ("nvls", "Simple")]


def test_small_goes_by_ll_large_by_simple_and_the_switch_is_used_where_it_sums():
    chosen = [choose("all_reduce", size, A100).protocol for size in (1 << 10, 4 << 20, 4 << 30)]
    assert chosen == ["LL", "LL128", "Simple"]
    assert choose("all_reduce", GIB, H100).algorithm == "nvls"
    assert choose("all_reduce", GIB, A100).algorithm == "ring"


def test_many_nodes_reduce_small_buffers_by_trees():
    for group in (PODS, A100S):
        assert choose("all_reduce", 64 << 10, group).algorithm in ("tree", "nvls_tree")
        assert choose("all_reduce", 64 << 10, group).protocol in ("LL", "LL128")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_choice_is_the_least_of_all_that_are_there(group, kind):
    for size in (1, 1000, 1 << 20, 1 << 26, 1 << 33):
        best = choose(kind, size, group)
        times = [predicted_seconds(kind, size, group, one, two) for one, twos in ALGORITHMS.items() for two in twos]
        assert best.seconds == min(times)
        for algorithm in ALGORITHMS_OF_KIND[kind]:
            for protocol in ALGORITHMS[algorithm]:
                if predicted_seconds(kind, size, group, algorithm, protocol) < inf:
                    held = choose(kind, size, group, algorithm=algorithm, protocol=protocol)
                    assert (held.algorithm, held.protocol) == (algorithm, protocol)
                    assert held.seconds >= best.seconds


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_more_bytes_never_take_less_time_by_a_ring(group, kind):
    for protocol in PROTOCOLS:
        times = [predicted_seconds(kind, 1 << bits, group, "ring", protocol) for bits in range(36)]
        assert times == sorted(times)


def test_what_nccl_has_not_is_refused_with_what_it_has():
    there = (
        r"there it has tree \(LL, LL128, Simple\), ring \(LL, LL128, Simple\); nvls takes one node whose NVSwitch sums"
    )
    with pytest.raises(InputError, match=f"no all_reduce by nvls for 8 ampere GPUs on 1 node; {there}"):
        choose("all_reduce", GIB, A100, algorithm="nvls")
    with pytest.raises(
        InputError, match=r"by nvls for 128 hopper GPUs on 16 nodes; .*nvls_tree \(Simple\); nvls takes one"
    ):
        choose("all_reduce", GIB, PODS, algorithm="nvls")
    with pytest.raises(
        InputError, match="no all_to_all by any algorithm for 8 ampere GPUs on 1 node; it has none at all"
    ):
        choose("all_to_all", GIB, A100)
    with pytest.raises(InputError, match="no all_gather by tree"):
        choose("all_gather", GIB, PODS, algorithm="tree")


def test_ll128_is_left_out_where_stores_may_be_torn():
    torn = NcclGroup(
        ranks=8,
        nodes=1,
        channels=12,
        intra_bandwidth=20e9,
        inter_bandwidth=20e9,
        generation="ampere",
        ll128=False,
    )
    assert {choose("all_reduce", 1 << bits, torn).protocol for bits in range(34)} == {"LL", "Simple"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generation": "turing"}, "generation 'turing': accepted are volta, ampere, hopper, blackwell"),
        ({"nodes": 9}, "8 ranks on 9 nodes"),
        ({"nodes": 0}, "8 ranks on 0 nodes"),
        ({"channels": 0}, "0 channels"),
        ({"intra_bandwidth": 0.0}, "intra_bandwidth 0.0"),
        ({"inter_bandwidth": inf}, "inter_bandwidth inf"),
        ({"inter_bandwidth": float("nan")}, "inter_bandwidth nan"),
    ],
)
def test_a_group_that_cannot_be_is_refused(change, message):
    group = {
        "ranks": 8,
        "nodes": 1,
        "channels": 12,
        "intra_bandwidth": 20e9,
        "inter_bandwidth": 20e9,
        "generation": "ampere",
    }
    with pytest.raises(InputError, match=message):
        NcclGroup(**{**group, **change})


def test_small_buffers_keep_few_channels_busy():
    """Simple wants 64 B for each of 512 threads, LL 8 B for each thread and rank."""
    assert used_channels(1, A100, "ring", "Simple") == 1
    assert used_channels(5 * 512 * 64, A100, "ring", "Simple") == 5
    assert used_channels(5 * 512 * 8 * 8, A100, "ring", "LL") == 5
    assert used_channels(5 * 512 * 8, A100, "tree", "LL") == 5
    assert used_channels(GIB, A100, "ring", "Simple") == A100.channels_in_all == 24


@pytest.mark.parametrize("generation", GENERATIONS)
def test_channels_never_ask_for_more_than_the_links_have(generation):
    for links in range(1, 19):
        count, speed = channels_inside(generation, links * 20e9)
        assert 0.8 * links * 20e9 <= count * speed <= links * 20e9


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_adds_up_to_nccl_s_own_latency(group, kind):
    for size in (1000, 1 << 20, 1 << 30):
        possible = [
            (algorithm, protocol)
            for algorithm in ALGORITHMS_OF_KIND[kind]
            for protocol in ALGORITHMS[algorithm]
            if predicted_seconds(kind, size, group, algorithm, protocol) < inf
        ]
        assert ("ring", "Simple") in possible
        for algorithm, protocol in possible:
            choice = choose(kind, size, group, algorithm=algorithm, protocol=protocol)
            found = plan(kind, size, group, choice)
            whole = latency(kind, group, algorithm, protocol, size)
            assert found.base_latency + found.steps * found.mean_step_latency == pytest.approx(whole)
            assert found.wire_factor >= 1
            assert 0 < found.chunk_bytes <= size
            assert (
                found.label == f"nccl ({algorithm}, {protocol}, {choice.channels} channel{'s' * (choice.channels > 1)})"
            )


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_plan_s_ring_has_nccl_s_bandwidth_where_only_its_own_limits_bind(group, protocol):
    choice = choose("all_reduce", 8 * GIB, group, algorithm="ring", protocol=protocol)
    found = plan("all_reduce", 8 * GIB, group, choice)
    links = group.channels * (group.intra_bandwidth if group.nodes <= 2 else group.inter_bandwidth)
    limit = inf if protocol == "Simple" else found.channel_rate  # NCCL's own model lacks the rate of a copying channel
    carried = min(links / found.wire_factor, found.channels * limit)
    ratio = group.ranks / (2 * (group.ranks - 1))
    assert carried * ratio == pytest.approx(bandwidth("all_reduce", group, "ring", protocol))


def test_one_rank_takes_no_time():
    alone = communicator(1, 1, "hopper", nvlinks=18)
    choice = choose("all_reduce", GIB, alone)
    assert choice.seconds == 0.0
    assert plan("all_reduce", GIB, alone, choice).seconds == 0.0
