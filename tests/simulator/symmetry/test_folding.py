"""Folding finds equitable partitions, checks them, and names the cause of broken symmetry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.simulator.symmetry.fold import equal_bags, fault, fold, quotient, unfolded
from quadrille.simulator.symmetry.partition import Flows, Partition
from quadrille.simulator.symmetry.refinement import refine
from tests.support.toy_networks import LEAF, NIC, paths, two_levels


def ring(gpus, route, stride=1):
    sender = np.arange(gpus)
    receiver = (sender + stride) % gpus
    way = route(sender, receiver)
    return Flows(sender, receiver, way.offsets, way.links, way.shares, {"latency": way.latency})


def same(gpus):
    return {"program": np.zeros(gpus)}


def leaf_ring(gpus, change=lambda capacities: None):
    capacities, route = two_levels(gpus, LEAF * NIC)
    change(capacities)
    return same(gpus), ring(gpus, route), {"bandwidth": capacities}


def as_sets(classes):
    return {frozenset(np.flatnonzero(classes == one).tolist()) for one in set(classes.tolist())}


@pytest.mark.parametrize("gpus", [64, 96, 1024])
def test_ranks_of_a_ring_at_a_distance_of_a_leaf_are_equivalent(gpus):
    folding = fold(*leaf_ring(gpus))
    assert as_sets(folding.ranks) == {frozenset(range(i, gpus, LEAF)) for i in range(LEAF)}
    assert folding.rounds <= LEAF // 2
    assert (folding.folded, folding.not_folded_reason) == (True, "")


def test_links_that_nobody_uses_have_no_class():
    folding = fold(*leaf_ring(64))
    assert set(folding.links[-4:].tolist()) == {folding.links[-4], folding.links[-2]} != {-1}
    assert (folding.links == -1).any()


def test_a_slow_link_breaks_a_ring_wholly_and_is_named():
    def slow(capacities):
        capacities[2 * 64 + 31] *= 0.5

    folding = fold(*leaf_ring(64, slow), link_name=lambda link: f"cable {link}")
    assert not folding.folded
    assert folding.rank_classes == 64
    assert folding.not_folded_reason == "cable 159 differs in bandwidth (no two flows are alike)"


def test_a_rank_that_differs_is_named():
    ranks, flows, links = leaf_ring(64)
    speed = np.ones(64)
    speed[7] = 0.8
    folding = fold(ranks | {"speed": speed}, flows, links)
    assert folding.not_folded_reason.startswith("rank 7 differs in speed")


def test_a_leaf_that_is_not_full_breaks_a_ring():
    folding = fold(*leaf_ring(100))
    assert "is unlike every other within" in folding.not_folded_reason


def test_a_class_of_flows_counts_on_a_link_as_often_as_it_crosses_it():
    capacities, route = two_levels(64, NIC)
    flows = ring(64, route, stride=32)
    folding = fold(same(64), flows, {"bandwidth": capacities})
    few = quotient(folding, flows)
    assert (folding.rank_classes, folding.flow_classes) == (1, 1)
    taken = sorted(zip(few.link_of[few.flows.links].tolist(), few.flows.shares.tolist(), strict=True))
    assert taken == [(2 * 64, 1.0), (4 * 64, 32.0)]  # of a NIC and of a leaf; down is like up


def test_a_flow_of_a_rank_to_itself_is_work_on_what_it_shares():
    """Four ranks on two hosts: they are alike, and two of a class use a host's cores."""
    own = np.arange(4)
    work = Flows(own, own, np.arange(5), own // 2, np.ones(4))
    folding = fold(same(4), work, {"cores": np.full(2, 2.0)})
    assert folding.rank_classes == 1
    assert quotient(folding, work).flows.shares.tolist() == [2.0]


def test_shares_tell_flows_apart():
    one = np.arange(2)
    flows = Flows(one, one, np.array([0, 1, 2]), np.zeros(2, dtype=np.int64), np.array([0.5, 1.0]))
    assert not fold(same(2), flows, {"bandwidth": np.ones(1)}).folded


@given(st.data())
def test_what_is_found_is_equitable_and_permuting_ranks_permutes_it(data):
    gpus, capacities, flows = data.draw(random_flows())
    folding = fold(same(gpus), flows, {"bandwidth": capacities})
    crossed = np.flatnonzero(folding.links >= 0)
    if folding.folded:
        near = Flows(flows.sender, flows.receiver, flows.offsets, flows.links, flows.shares, flows.columns)
        links = np.where(folding.links < 0, folding.links.max() + 1 + np.arange(len(capacities)), folding.links)
        links = np.unique(links, return_inverse=True)[1]
        partition = Partition(folding.ranks, folding.flows, links)
        assert fault(partition, same(gpus), near, {"bandwidth": capacities}) == ""
    order = np.array(data.draw(st.permutations(range(gpus))))
    moved = Flows(order[flows.sender], order[flows.receiver], flows.offsets, flows.links, flows.shares, flows.columns)
    again = fold(same(gpus), moved, {"bandwidth": capacities})
    assert again.folded == folding.folded
    assert as_sets(again.ranks[order]) == as_sets(folding.ranks)
    assert (again.links[crossed] >= 0).all()


@st.composite
def random_flows(draw):
    """A permutation of ranks on random links, of which many are like each other."""
    gpus, links = draw(st.integers(2, 12)), draw(st.integers(1, 6))
    capacities = np.array(draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=links, max_size=links)))
    stride = draw(st.integers(1, gpus - 1))
    sender = np.arange(gpus)
    table = np.stack([sender * links // gpus, np.full(gpus, -1)], axis=1)
    for flow in draw(st.sets(st.integers(0, gpus - 1))):
        second = draw(st.integers(0, links - 1))
        table[flow, 1] = second if second != table[flow, 0] else -1
    way = paths(table)
    return (
        gpus,
        capacities,
        Flows(sender, (sender + stride) % gpus, way.offsets, way.links, way.shares, {"latency": way.latency}),
    )


# The check


def correct(gpus=64):
    ranks, flows, links = leaf_ring(gpus)
    folding = fold(ranks, flows, links)
    used = folding.links >= 0
    number = np.cumsum(used) - 1
    near = Flows(flows.sender, flows.receiver, flows.offsets, number[flows.links], flows.shares, flows.columns)
    partition = Partition(folding.ranks, folding.flows, folding.links[used])
    return partition, ranks, near, {"bandwidth": links["bandwidth"][used]}


def merged(classes, one, other):
    """Two classes taken for one."""
    return np.unique(np.where(classes == other, one, classes), return_inverse=True)[1]


def test_the_check_passes_what_is_right():
    assert fault(*correct()) == ""


COMPILED_FROM = {"whole arrays": 1 << 60, "flow by flow": 0}
"""Number of entries from which compiled kernels are used, by the way in which a problem of any size is solved."""


@pytest.fixture(params=COMPILED_FROM)
def compiled_from(request):
    return COMPILED_FROM[request.param]


@pytest.mark.parametrize("kind", ["ranks", "flows", "links"])
def test_the_check_catches_any_two_classes_merged(kind, compiled_from):
    partition, *what = correct()
    assert fault(partition, *what, compiled_from=compiled_from) == ""
    parts = {name: getattr(partition, name) for name in ("ranks", "flows", "links")}
    count = int(parts[kind].max()) + 1
    assert count > 1
    for other in range(1, count):
        wrong = Partition(**parts | {kind: merged(parts[kind], 0, other)})
        assert fault(wrong, *what, compiled_from=compiled_from) != ""


def test_the_check_catches_one_member_in_a_wrong_class(compiled_from):
    partition, *what = correct()
    ranks = partition.ranks.copy()
    ranks[5] = ranks[6]
    wrong = Partition(ranks, partition.flows, partition.links)
    assert "class" in fault(wrong, *what, compiled_from=compiled_from)


@pytest.mark.parametrize("once", [True, False])
def test_two_flows_of_a_rank_with_one_label_are_refused_if_asked(once, compiled_from):
    """Two ranks send two flows each to the other, all of one class: which is received first could not be told."""
    sender = np.array([0, 0, 1, 1])
    labels, classes = np.zeros(4, dtype=np.int64), np.zeros(2, dtype=np.int64)
    assert equal_bags(sender, labels, classes, compiled_from, once=once) is not once


@given(st.data())
def test_labels_are_the_same_flow_by_flow_and_by_whole_arrays(data):
    gpus, capacities, flows = data.draw(random_flows())
    shares = np.array(data.draw(st.lists(st.sampled_from([0.5, 1.0]), min_size=len(flows.links), max_size=1 << 9)))
    flows = Flows(flows.sender, flows.receiver, flows.offsets, flows.links, shares[: len(flows.links)], flows.columns)
    problem, limits = (same(gpus), flows, {"bandwidth": capacities}), {"most_rounds": 9, "most_classes": 99}
    one, other = (refine(*problem, **limits, compiled_from=least) for least in COMPILED_FROM.values())
    for kind in ("ranks", "flows", "links"):
        assert getattr(one, kind).tolist() == getattr(other, kind).tolist()
    assert (one.rounds, one.classes, one.settled) == (other.rounds, other.classes, other.settled)


def test_the_check_names_an_attribute_that_differs_within_a_class():
    partition, ranks, flows, links = correct()
    slow = links["bandwidth"].copy()
    slow[0] *= 2
    assert fault(partition, ranks, flows, {"bandwidth": slow}) == "links of a class differ in bandwidth"


def test_unfolded_is_everything_by_itself():
    _, flows, links = leaf_ring(64)
    folding = unfolded(64, flows, len(links["bandwidth"]))
    assert (folding.rank_classes, folding.flow_classes) == (64, 64)
    few = quotient(folding, flows)
    assert few.flows.sender.tolist() == flows.sender.tolist()
    for first, last in zip(flows.offsets[:-1], flows.offsets[1:], strict=True):
        assert few.link_of[few.flows.links[first:last]].tolist() == sorted(flows.links[first:last])
