import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.timeline_files import load_timeline, save_timeline
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Gemm
from quadrille.algorithms.timelines.op_times import op_times
from quadrille.algorithms.timelines.spans import ALONE, RepeatedIterations, Span, with_arrivals, with_groups
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.records.path_segments import path_segments


def span(rank, op, lane, start, end, *, ready=0, axis=None, index=0, group=ALONE, kind="", to_peer=0):
    kind = kind or ("gemm" if lane == "compute" else "all_reduce")
    return Span(rank, op, kind, lane, ready, start, start, end, axis, index, group, to_peer)


def timeline_of(*spans, ranks=1, kind="predicted"):
    return Timeline(tuple(with_arrivals(spans)), kind, ranks)


@st.composite
def played(draw):
    """A random program on two to three ranks, played with whole-number times: ops, lanes, dependencies, groups."""
    ranks = draw(st.integers(1, 3))
    spans, ends, free = [], [], {}
    for number in range(draw(st.integers(1, 12))):
        lane = draw(st.sampled_from(["compute", "x", "y"]))
        needs = draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        together = draw(st.integers(0, 5))
        starts, readies = [], []
        for rank in range(ranks):
            readies.append(max([0, *(ends[need][rank] for need in needs)]))
            starts.append(max(readies[-1], free.get((rank, lane), 0)))
        for rank in range(ranks):
            group = ALONE if lane == "compute" else 0
            own = draw(st.integers(0, 5)) if lane == "compute" else together
            end = (starts[rank] if lane == "compute" else max(starts)) + own
            free[rank, lane] = end
            axis = None if lane == "compute" else lane
            spans.append(
                span(rank, f"op {number}", lane, starts[rank], end, ready=readies[rank], axis=axis, group=group)
            )
        ends.append([free[rank, lane] for rank in range(ranks)])
    return Timeline(tuple(with_arrivals(spans)), "predicted", ranks)


def test_two_lanes_by_hand():
    timeline = timeline_of(
        span(0, "gather", "z", 0, 2, axis="z"),
        span(0, "multiply", "compute", 2, 5, ready=2),
        span(0, "prefetch", "z", 2, 4, axis="z", ready=2),
        span(0, "sum", "y", 5, 9, ready=5, axis="y"),
    )
    assert timeline.makespan == 9
    assert [step.op for step in timeline.critical_path()] == ["gather", "multiply", "sum"]
    assert {op: times.exposed_seconds for op, times in timeline.op_times().items()} == {
        "gather": 2,
        "multiply": 0,
        "prefetch": 0,
        "sum": 4,
    }


def test_the_critical_path_crosses_to_the_rank_that_comes_last():
    timeline = timeline_of(
        span(0, "multiply", "compute", 0, 1),
        span(1, "multiply", "compute", 0, 4),
        span(0, "sum", "y", 1, 6, ready=1, axis="y", group=0),
        span(1, "sum", "y", 4, 6, ready=4, axis="y", group=0),
        ranks=2,
    )
    path = timeline.critical_path()
    assert [(step.op, step.rank) for step in path if step.rank == 1] == [("multiply", 1), ("sum", 1)]
    assert ("multiply", 0) not in [(step.op, step.rank) for step in path]
    total = timeline.op_times()["sum"]
    assert (total.waiting_seconds, total.seconds, total.exposed_seconds) == (1.5, 2, 2)


def test_the_critical_path_follows_a_message_to_the_rank_that_is_late():
    """Rank 0 sends late to rank 1, which answers; the answer meets a receive that rank 0 posted before."""
    sent = {"axis": "pipeline", "kind": "send"}
    received = {"axis": "pipeline", "kind": "receive"}
    timeline = timeline_of(
        span(0, "forward", "compute", 0, 3),
        span(1, "receive X", "pipeline", 0, 4, to_peer=-1, **received),
        span(0, "send X", "pipeline", 3, 4, ready=3, to_peer=1, **sent),
        span(0, "receive dX", "pipeline 1", 0, 10, to_peer=1, **received),
        span(1, "backward", "compute", 4, 9, ready=4),
        span(1, "send dX", "pipeline 1", 9, 10, ready=9, to_peer=-1, **sent),
        span(0, "update", "compute", 10, 11, ready=10),
        ranks=2,
    )
    path = [(step.op, step.rank) for step in timeline.critical_path()]
    assert path == [
        ("forward", 0),
        ("send X", 0),
        ("receive X", 1),
        ("backward", 1),
        ("send dX", 1),
        ("receive dX", 0),
        ("update", 0),
    ]
    segments = path_segments(timeline, lambda _: {})
    assert [(segment.op, segment.seconds) for segment in segments] == [
        ("forward", 3),
        ("receive X", 1),
        ("backward", 5),
        ("receive dX", 1),
        ("update", 1),
    ]


def test_a_busy_lane_explains_a_late_start():
    timeline = timeline_of(
        span(0, "long", "z", 0, 8, axis="z"),
        span(0, "multiply", "compute", 0, 3),
        span(0, "short", "z", 8, 9, ready=3, axis="z"),
    )
    assert [step.op for step in timeline.critical_path()] == ["long", "short"]


def test_a_span_that_its_program_issues_late_follows_what_ended_at_its_start():
    timeline = timeline_of(
        span(0, "multiply", "compute", 0, 3),
        span(0, "fetch", "to-device", 3, 4, ready=0),
        span(0, "update", "compute", 4, 5, ready=4),
    )
    assert [step.op for step in timeline.critical_path()] == ["multiply", "fetch", "update"]


def test_a_root_that_ends_before_the_last_member_arrives_waited_and_took_no_time():
    root, late = with_arrivals(
        [span(0, "send out", "x", 1, 3, axis="x", group=0), span(1, "send out", "x", 5, 6, axis="x", group=0)]
    )
    assert (root.waiting_seconds, root.seconds) == (2, 0)
    assert (late.waiting_seconds, late.seconds) == (0, 1)


@given(played())
def test_waiting_and_seconds_add_up_to_the_span(timeline):
    for step in timeline.spans:
        assert step.waiting_seconds + step.seconds == step.end - step.start


@given(played())
def test_the_critical_path_has_no_gap_and_lasts_from_start_to_end(timeline):
    path = timeline.critical_path()
    assert path[-1].end == timeline.end
    assert path[0].start == timeline.start == 0
    for before, after in pairwise(path):
        same_instance = (before.op, before.index, before.group) == (after.op, after.index, after.group)
        assert before.end == after.start or (same_instance and before.start == after.arrival)


@given(played())
def test_each_instant_of_communication_without_computing_is_charged_once(timeline):
    def cells(spans, begin):
        return {cell for step in spans for cell in range(begin(step), step.end)}

    for rank, exposed in timeline.exposed().items():
        mine = [step for step in timeline.spans if step.rank == rank]
        computing = cells([step for step in mine if step.lane == "compute"], lambda step: step.start)
        moving = cells([step for step in mine if step.lane != "compute"], lambda step: max(step.arrival, step.start))
        assert exposed == len(moving - computing)


@given(played())
def test_no_op_is_exposed_longer_than_it_takes(timeline):
    for times in timeline.op_times().values():
        assert times.exposed_seconds <= times.seconds + 1e-12


@given(played(), st.permutations([1, 2, 3]))
def test_the_median_over_repeats_does_not_know_their_order(timeline, factors):
    def stretched(factor):
        spans = tuple(
            structs.replace(
                s, start=s.start * factor, arrival=s.arrival * factor, end=s.end * factor, ready=s.ready * factor
            )
            for s in timeline.spans
        )
        return replace(timeline, spans=spans)

    times = op_times(*(stretched(factor) for factor in factors))
    once = stretched(2).op_times()
    assert {op: (t.seconds, t.exposed_seconds) for op, t in times.items()} == {
        op: (t.seconds, t.exposed_seconds) for op, t in once.items()
    }


def test_a_rank_without_the_op_counts_as_zero_so_that_ops_add_up():
    timeline = timeline_of(span(0, "multiply", "compute", 0, 6), ranks=3)
    assert timeline.op_times()["multiply"].seconds == 2


def test_copies_represent_equivalent_ranks():
    spans = (span(0, "multiply", "compute", 0, 6), span(1, "multiply", "compute", 0, 2))
    folded = Timeline(spans, "predicted", ranks=4, copies={0: 1, 1: 3})
    whole = timeline_of(*spans, *(structs.replace(spans[1], rank=rank) for rank in (2, 3)), ranks=4)
    assert folded.op_times() == whole.op_times()


def test_instances_of_an_op_are_counted_and_summed():
    timeline = timeline_of(*(span(0, "step", "compute", 2 * i, 2 * i + 1, index=i) for i in range(5)))
    assert (timeline.op_times()["step"].count, timeline.op_times()["step"].seconds) == (5, 5)


def test_repeats_on_different_numbers_of_ranks_are_refused():
    one = timeline_of(span(0, "a", "compute", 0, 1))
    with pytest.raises(InputError, match="1, 2 ranks"):
        op_times(one, replace(one, ranks=2))


def test_spans_of_ops_find_their_group_and_arrival_on_the_grid():
    grid = Grid(y=2, x=3)
    total = AllReduce(name="sum C", axis="y", buffer="C")
    spans = [Span.of(rank, total, "y", 0, "y", 0.0, float(rank), 9.0) for rank in range(6)]
    spans += [
        Span.of(rank, Gemm(name="multiply", a="A", b="B", c="C"), "compute", 0, None, 0, 0, 1) for rank in range(6)
    ]
    timeline = Timeline.of_spans(spans, "measured", grid)
    sums = {s.rank: s for s in timeline.spans if s.kind == "all_reduce"}
    assert {rank: s.group for rank, s in sums.items()} == {rank: grid.group(rank, "y")[0] for rank in range(6)}
    assert {rank: s.arrival for rank, s in sums.items()} == {rank: rank % 3 + 3 for rank in range(6)}
    assert all(s.group == ALONE for s in timeline.spans if s.kind == "gemm")


def test_the_two_ends_of_a_transfer_are_no_group():
    alone = with_groups([structs.replace(span(0, "send", "x", 0, 1, axis="x"), kind="send")], Grid(x=2))
    assert alone[0].group == ALONE


def test_an_empty_timeline_lasts_no_time():
    empty = Timeline((), "measured", 1)
    assert (empty.makespan, empty.critical_path(), empty.op_times()) == (0, (), {})


def test_a_long_timeline_is_explained_to_its_start():
    spans = tuple(span(rank, "step", "compute", i, i + 1, ready=i, index=i) for rank in range(4) for i in range(2000))
    timeline = Timeline(spans, "predicted", 4)
    assert len(timeline.critical_path()) == 2000
    assert timeline.op_times()["step"].seconds == 2000


@given(played(), st.text(max_size=5))
def test_a_timeline_survives_its_file(tmp_path_factory, timeline, name):
    path = tmp_path_factory.getbasetemp() / "timeline.json"
    timeline = replace(timeline, name=name, copies={0: 2}, provenance=provenance(["quadrille"]))
    save_timeline(timeline, path)
    assert load_timeline(path) == timeline


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw["spans"]["rank"].append(0), "columns of different lengths"),
        (lambda raw: raw["spans"]["end_seconds"].__setitem__(0, -1.0), r"end_seconds\[0\] = -1.0"),
        (lambda raw: raw["spans"]["op"].__setitem__(0, 9), "spans.op = 9: below 1"),
        (lambda raw: raw["spans"]["rank"].__setitem__(0, 1), "spans.rank = 1: below 1"),
        (lambda raw: raw["spans"]["rank"].__setitem__(0, -1), r"spans.rank\[0\] = -1"),
        (lambda raw: raw.update(kind="guessed"), "kind = 'guessed': one of measured, predicted"),
        (lambda raw: raw.update(schema="quadrille/timeline/3"), "newer"),
        (lambda raw: raw.update(colour="red"), "colour is unknown"),
    ],
)
def test_a_file_with_a_fault_is_refused(tmp_path, change, words):
    path = tmp_path / "timeline.json"
    save_timeline(timeline_of(span(0, "a", "compute", 0, 1)), path)
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=words):
        load_timeline(path)


@st.composite
def repeating(draw):
    """Turns said once, of spans that may reach over several turns, with others before and after them."""
    period, times = draw(st.integers(1, 6)), draw(st.integers(1, 70))
    first = 40 + period * times
    spans = []
    for number in range(draw(st.integers(1, 5))):
        lane = draw(st.sampled_from(["compute", "x", "y"]))
        start = first + draw(st.integers(0, 4 * period - 1)) / 4
        spans.append(
            span(draw(st.integers(0, 1)), f"op {number}", lane, start, start + draw(st.integers(0, 15)), index=99)
        )
    for number in range(draw(st.integers(0, 4))):
        lane, early = draw(st.sampled_from(["compute", "x"])), draw(st.booleans())
        start = draw(st.integers(0, 39)) if early else first + period + draw(st.integers(0, 5))
        spans.append(span(0, f"other {number}", lane, start, start + draw(st.integers(0, 12))))
    turns = RepeatedIterations(first, period, times, {one.op: 1 for one in spans if one.op.startswith("op")})
    return replace(timeline_of(*spans, ranks=2), repeated=(turns,))


@given(timeline=repeating())
def test_run_length_encoded_iterations_are_counted_as_if_they_were_listed(timeline):
    told = timeline.unrolled()
    expected = told.op_times()
    for name, times in timeline.op_times().items():
        assert times.count == expected[name].count
        for part in ("seconds", "waiting_seconds", "exposed_seconds"):
            assert getattr(times, part) == pytest.approx(getattr(expected[name], part), rel=1e-9, abs=1e-9)
    assert timeline.exposed() == pytest.approx(told.exposed(), rel=1e-9, abs=1e-9)


def shifted(timeline, seconds, index):
    return tuple(structs.replace(one.moved(seconds, 0), index=index) for one in timeline.spans)


@given(timeline=played(), pause=st.integers(1, 3), times=st.integers(1, 9), late=st.integers(0, 8))
def test_the_critical_path_through_iterations_is_that_of_every_iteration(timeline, pause, times, late):
    """Turns of a random program on several ranks; a boundary between turns may lie within a collective."""
    period = timeline.end + pause
    every = [one for turn in range(times + 2) for one in shifted(timeline, turn * period, turn)]
    begin = (times + 0.125 * late) * period  # of the turn that is said, of which some ranks have begun a part before
    per_turn = dict.fromkeys((one.op for one in timeline.spans), 1)
    kept = [one for one in every if one.start >= begin or one.start < begin - times * period]
    short = replace(timeline, spans=tuple(kept), repeated=(RepeatedIterations(begin, period, times, per_turn),))
    assert sorted(short.unrolled().spans, key=str) == sorted(with_arrivals(every), key=str)
    assert short.critical_path() == replace(timeline, spans=tuple(every)).critical_path()


@given(timeline=repeating())
def test_spans_that_reach_over_iterations_are_on_the_critical_path_too(timeline):
    assert timeline.critical_path() == timeline.unrolled().critical_path()


def test_spans_at_the_same_time_are_taken_by_rank_in_whatever_order_they_are_listed():
    spans = [span(rank, f"op {1 - rank}", "compute", 41, 42, ready=0, index=99) for rank in (1, 0)]
    turns = (RepeatedIterations(41.0, 1.0, 1, {"op 0": 1, "op 1": 1}),)
    for told in (spans, spans[::-1]):
        timeline = replace(timeline_of(*told, ranks=2), repeated=turns)
        assert [one.rank for one in timeline.critical_path()] == [0, 0]
        assert timeline.critical_path() == timeline.unrolled().critical_path()


def test_a_rank_is_expanded_without_the_others():
    spans = [span(rank, "step", "compute", 10 + rank, 12 + rank, index=5) for rank in range(2)]
    members = {0: (range(30_000),), 1: (range(30_000, 10**6),)}
    folded = Timeline(
        tuple(spans), "predicted", 10**6, members=members, repeated=(RepeatedIterations(10.0, 2.0, 5, {"step": 1}),)
    )
    found = folded.expanded(Grid(data=10**6), [29_999, 30_001]).spans
    assert {(one.rank, one.start) for one in found} == {
        *((29_999, 10.0 - 2 * turn) for turn in range(6)),
        *((30_001, 11.0 - 2 * turn) for turn in range(6)),
    }


def test_the_critical_path_of_many_iterations_lists_the_spans_of_one_rank_only():
    spans = [
        span(rank, "step", "compute", 1e4, 1e4 + (1 if rank else 2), ready=1e4, index=10**4) for rank in range(500)
    ]
    many = replace(timeline_of(*spans, ranks=500), repeated=(RepeatedIterations(1e4, 2.0, 4999, {"step": 1}),))
    path = many.critical_path()
    assert len(path) == 5000 and {one.rank for one in path} == {0}


def test_the_encoding_of_iterations_does_not_grow_with_them():
    last = span(0, "multiply", "compute", 1e6, 1e6 + 1)
    many = replace(timeline_of(last), repeated=(RepeatedIterations(1e6, 1.0, 10**6, {"multiply": 1}),))
    assert len(many.weighted_spans()[0]) < 20
    assert (many.op_times()["multiply"].count, many.op_times()["multiply"].seconds) == (10**6 + 1, 10**6 + 1)
