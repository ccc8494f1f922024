"""Programs of members: flows numbered, groups side by side, sizes that add up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quadrille.algorithms.collectives.lowering import SETS, lower
from quadrille.algorithms.collectives.run_length_programs import NOBODY
from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.schedule.parts import boundaries
from quadrille.simulator.collectives.collective import shapes
from quadrille.simulator.collectives.event_walk import walk_from_events
from quadrille.simulator.collectives.piece_sizes import sent_bytes, step_bytes
from quadrille.simulator.collectives.programs import CollectiveJob, class_programs, programs_of
from quadrille.simulator.symmetry.partition import Flows

KINDS = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all"]


def job(kind, name, groups, size, **given):
    return CollectiveJob(
        lower(kind, SETS[name][kind], groups.shape[1], size_bytes=int(size)).runs(), groups, size, **given
    )


def ring(groups, size=60.0, **given):
    return job("all_gather", "ring", np.asarray(groups), size, **given)


def test_flows_of_a_ring_go_from_each_member_to_the_next():
    programs = programs_of([ring([[4, 5, 6]])])
    assert programs.rank[programs.sender].tolist() == [4, 5, 6]
    assert programs.rank[programs.receiver].tolist() == [5, 6, 4]
    assert programs.send.tolist() == [0, 1, 2]
    assert programs.receive.tolist() == [2, 0, 1]
    assert programs.count.tolist() == [2, 2, 2]
    assert programs.sent_bytes.tolist() == [20.0] * 3


def test_groups_and_jobs_stand_side_by_side():
    groups = np.array([[0, 2, 4], [1, 3, 5]])
    programs = programs_of([ring(groups), ring(groups[:, ::-1], size=30.0)])
    assert programs.members == programs.flows == 12
    assert programs.rank.tolist() == [0, 2, 4, 1, 3, 5, 4, 2, 0, 5, 3, 1]
    assert programs.receiver.tolist() == [1, 2, 0, 4, 5, 3, 7, 8, 6, 10, 11, 9]
    assert programs.job.tolist() == [0] * 6 + [1] * 6
    assert programs.sent_bytes.tolist() == [20.0] * 6 + [10.0] * 6


def test_a_buffer_of_no_bytes_is_not_sent_but_a_barrier_is():
    assert programs_of([ring([[0, 1, 2]], size=0.0)]).transfers == 0
    barrier = lower("barrier", "dissemination", 3)
    assert programs_of([CollectiveJob(barrier.runs(), np.array([[0, 1, 2]]), 0.0, empty_messages=True)]).transfers == 6


@given(st.sampled_from(KINDS), st.sampled_from(sorted(SETS)), st.integers(1, 9), st.integers(0, 300))
def test_flows_carry_what_the_steps_say(kind, name, members, elements):
    lowered = lower(kind, SETS[name][kind], members, size_bytes=4 * elements)
    edges = boundaries(elements, lowered.pieces)
    sizes = np.diff(edges)
    expected = np.zeros((members, members))
    for member in range(members):
        for step in lowered.program(member):
            if step.send_to is not None:
                piece = np.arange(step.send.count) * step.send.spacing + step.send.first
                expected[member, step.send_to] += 4 * sizes[piece % lowered.pieces].sum()
    for shards in ("exact", "even"):
        programs = programs_of([job(kind, name, np.arange(members)[None], 4.0 * elements, item_bytes=4)], shards)
        found = np.zeros((members, members))
        found[programs.sender, programs.receiver] = programs.flow_bytes()
        if shards == "exact":
            assert found == pytest.approx(expected)
        else:
            assert found.sum() == pytest.approx(expected.sum(), abs=4 * lowered.pieces * members * 2)


@given(st.sampled_from(KINDS), st.sampled_from(sorted(SETS)), st.integers(2, 9))
def test_sizes_of_consecutive_steps_are_the_sizes_of_each_step(kind, name, members):
    pieces = programs_of([job(kind, name, np.arange(members)[None], 1009.0)], "exact").pieces
    assume(pieces is not None)
    steps = list(step_bytes(pieces, 5))
    assert len(steps) == 5
    for k, sizes in enumerate(steps):
        assert sizes.tolist() == sent_bytes(pieces, k).tolist()


def test_members_of_a_ring_have_one_shape_and_those_of_a_tree_several():
    assert set(shapes(programs_of([ring([[0, 1, 2, 3]])])).tolist()) == {0}
    tree = programs_of([job("broadcast", "doubling", np.arange(8)[None], 8.0)])
    lengths = np.diff(tree.offsets)
    found = shapes(tree)
    assert len(set(found.tolist())) > 1
    assert all(len(set(lengths[found == one].tolist())) == 1 for one in set(found.tolist()))


def test_exact_pieces_of_a_ring_are_shapes_of_their_own():
    uneven = programs_of([ring([[0, 1, 2, 3]], size=61.0)], "exact")
    assert len(set(shapes(uneven).tolist())) == 4
    assert set(shapes(programs_of([ring([[0, 1, 2, 3]], size=60.0)], "exact")).tolist()) == {0}


def test_programs_of_classes_are_those_of_their_representatives():
    programs = programs_of([ring([[0, 1, 2], [3, 4, 5]])])
    classes = np.arange(6) % 3
    few = class_programs(programs, np.arange(3), np.arange(3), classes, classes)
    one = programs_of([ring([[0, 1, 2]])])
    assert few.send.tolist() == one.send.tolist()
    assert few.receiver.tolist() == one.receiver.tolist()
    assert few.offsets.tolist() == one.offsets.tolist()


def test_a_deadlock_names_the_members_that_wait():
    """Member 1 of a ring of 3 leaves out what it should receive."""
    programs = programs_of([ring([[7, 8, 9]])])
    receive = programs.receive.copy()
    receive[1] = NOBODY
    broken = replace(programs, receive=receive)
    own = np.arange(3)
    flows = Flows(programs.sender, programs.receiver, np.arange(4), own, np.ones(3))
    rate = np.ones(3)
    with pytest.raises(Deadlock, match="rank 7 in step 0 to send to rank 8"):
        walk_from_events(broken, flows, rate, np.zeros(3), np.full(3, np.inf), alone=rate)
