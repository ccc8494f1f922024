"""Sweeps: the same ends as the queue of events; jumps in time change nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.collectives.lowering import SETS, lower
from quadrille.simulator.collectives.event_walk import walk_from_events
from quadrille.simulator.collectives.programs import CollectiveJob, programs_of
from quadrille.simulator.collectives.sweep import sections, sweep
from quadrille.simulator.symmetry.partition import Flows

EXACT = 1e-9


def private(programs):
    """A link for each flow: nothing contends."""
    own = np.arange(programs.flows)
    return Flows(programs.sender, programs.receiver, np.append(own, len(own)), own, np.ones(len(own)))


@given(
    st.sampled_from(["ring", "doubling"]),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from(["even", "exact"]),
    st.integers(0, 2**32 - 1),
)
def test_a_sweep_ends_when_the_events_do(name, members, groups, shards, seed):
    lowered = lower("all_gather", SETS[name]["all_gather"], members)
    ranks = np.arange(groups * members).reshape(groups, members)
    programs = programs_of([CollectiveJob(lowered.runs(), ranks, 4001.0)], shards)
    draw = np.random.default_rng(seed)
    rate, latency = draw.uniform(1, 3, programs.flows), draw.uniform(0, 100, programs.flows)
    parts = sections(programs)
    assert parts is not None
    swept = sweep(programs, parts, latency, rate)
    jumpless = sweep(programs, parts, latency, rate, fold_time=False)
    walked = walk_from_events(programs, private(programs), rate, latency, np.full_like(rate, np.inf), alone=rate)
    assert swept.ends == pytest.approx(jumpless.ends, rel=EXACT)
    assert swept.ends == pytest.approx(walked.ends, rel=EXACT)


def test_groups_at_different_paces_are_jumped_over_each_by_its_own():
    """A ring of 4 at 1 s a step and one at 2 s: neither waits for the other."""
    programs = programs_of([CollectiveJob(lower("all_gather", "ring", 4).runs(), np.arange(8).reshape(2, 4), 4.0)])
    many = programs.count * 1000
    programs = type(programs)(**{name: getattr(programs, name) for name in programs.__slots__} | {"count": many})
    rate = np.where(programs.sender < 4, 1.0, 0.5)
    swept = sweep(programs, sections(programs), np.zeros(8), rate)
    assert swept.ends.tolist() == [3000.0] * 4 + [6000.0] * 4
    assert swept.steps < 10


def test_a_slow_member_holds_up_its_ring_step_by_step():
    """T' = max over both sides: after s steps, those within s of the slow one are late."""
    programs = programs_of([CollectiveJob(lower("all_gather", "ring", 12).runs(), np.arange(12)[None], 12.0)])
    slow = np.where(programs.sender == 0, 0.5, 1.0)
    ends = sweep(programs, sections(programs), np.zeros(12), slow).ends
    assert ends.max() == 22.0
    assert ends.min() < 22.0 - 4


def test_members_that_do_different_things_at_a_time_are_no_sections():
    chain = lower("broadcast", "pipelined", 4, size_bytes=4 << 20)
    programs = programs_of([CollectiveJob(chain.runs(), np.arange(4)[None], 4.0)])
    assert sections(programs) is None
