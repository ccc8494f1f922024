"""The library's collectives between products: every rank takes each step, and these count from the last to come."""

import pytest

from quadrille.algorithms.schedule.ops import ROOTED
from quadrille.algorithms.timelines.spans import Span
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.measuring.library_collectives import (
    IN_A_ROW,
    KINDS,
    WARM,
    GroupShape,
    back_to_back_seconds,
    collective_chain,
    first_seconds,
    group_shapes,
    member_shares,
    round_seconds,
)
from quadrille.runtime.operands.operands import Operands

STEPS = 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", list(group_shapes(4)))
def test_every_rank_takes_two_steps_each_after_a_product(kind, shape):
    schedule = collective_chain(kind, shape, 1000, STEPS, product_size=16)
    operands = Operands(16, 16, 16, "float32")
    (timeline,) = execute(schedule, operands, InProcess(4), repeats=1).timelines
    for rank in range(4):
        ops = [span.op for span in sorted(timeline.spans, key=lambda span: span.start) if span.rank == rank]
        assert ops == ["write", "multiply", "step"] * IN_A_ROW


@pytest.mark.parametrize("kind", ROOTED)
@pytest.mark.parametrize("shape", list(group_shapes(4)))
def test_every_member_is_the_root_once_in_a_round(kind, shape):
    schedule = collective_chain(kind, shape, 1000, STEPS, product_size=16)
    (timeline,) = execute(schedule, Operands(16, 16, 16, "float32"), InProcess(4), repeats=1).timelines
    turns = [f"{name} {root}" for root in range(shape.members) for name in ("write", "multiply", "step")]
    for rank in range(4):
        ops = [span.op for span in sorted(timeline.spans, key=lambda span: span.start) if span.rank == rank]
        assert ops == turns * (WARM + STEPS)
    assert len(round_seconds(shape, timeline.spans)) == STEPS


def test_a_step_of_a_round_takes_what_the_round_takes_beside_work():
    """Two ranks, two roots: a round of 10 s, of which 1 s of work on one rank and 3 s on the other."""
    spans = []
    for index in range(WARM + 1):
        for rank, work in enumerate((1.0, 3.0)):
            begin = 10.0 * index
            spans.append(Span(rank, "multiply 0", "gemm", "compute", begin, begin, begin, begin + work, index=index))
            for root in range(2):
                at = begin + work + root
                end = begin + 10.0 - (rank == 1)
                spans.append(Span(rank, f"step {root}", "broadcast", "y", at, at, at, end, axis="y", index=index))
    assert round_seconds(GroupShape(2, 1, 2), tuple(spans)) == [(10.0 - 2.0) / 2]


@pytest.mark.parametrize("ranks", [12, 64, 97, 4096])
def test_a_large_world_has_a_few_shapes_all_ranks_among_them(ranks):
    found = list(group_shapes(ranks))
    assert 1 <= len(found) <= 3 and GroupShape(ranks, 1, ranks) in found
    assert all(shape.grid().size == ranks and shape.members > 1 for shape in found)


def test_the_first_step_lasts_to_the_last_end_and_the_one_that_follows_to_the_mean():
    spans = tuple(
        Span(rank, "step", "all_gather", "y", start, start, start, start + seconds, index=index)
        for index, begin in enumerate((0.0, 10.0))
        for rank, (start, seconds) in enumerate([(begin + 1.0, 3.0), (begin + 3.0, 3.0)])
    )
    assert first_seconds(GroupShape(2, 1, 2), spans) == 6.0 - 3.0
    assert back_to_back_seconds(GroupShape(2, 1, 2), spans) == (14.0 + 16.0) / 2 - 13.0


def first_steps(shape, ends):
    """The first step of every rank, begun in turn by a second and ended so long after the last had begun."""
    last = {rank: float(max(group)) for group in shape.grid().groups("y") for rank in group}
    return tuple(
        Span(rank, "step", "reduce_scatter", "y", rank, float(rank), rank, last[rank] + end, axis="y", index=0)
        for rank, end in enumerate(ends)
    )


@pytest.mark.parametrize(
    ("runs", "shares"),
    [
        ([(1.8, 2.0, 4.0, 4.0)] * 3, (0.475, 1.0)),  # groups of ranks 0 and 2, 1 and 3
        ([(1.0, 2.0, 4.0, 4.0)] * 3, ()),  # ahead by a half or three quarters: not steadily
        ([(2.0, 2.0, 4.0, 4.0)] * 3, (0.5, 1.0)),
        ([(2.0, 2.0, 4.0, 4.0)] * 2, ()),  # too few
        ([(2.0, 2.0, 4.0, 4.0)] * 2 + [(2.0, 4.0, 4.0, 2.0)], ()),  # one or the other
        ([(3.7, 3.7, 4.0, 4.0)] * 3, ()),  # by too little
        ([(2e-5, 2e-5, 4e-5, 4e-5)] * 3, ()),  # clocks are no better
        ([(-1e-4, -1e-4, 1e-4, 1e-4)] * 3, ()),  # nor did these end before all had come
        ([(0.0, 0.0, 0.0, 0.0)] * 3, ()),
    ],
)
def test_members_end_apart_that_do_so_in_every_run_and_group_by_about_as_much(runs, shares):
    shape = GroupShape(2, 2, 4)
    assert member_shares(shape, [first_steps(shape, ends) for ends in runs]) == pytest.approx(shares)
