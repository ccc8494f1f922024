"""Steps between products: the schedules are valid, and give as many steps as are asked for."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import bytes_sent
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES, MessageOptions
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.measuring import chained_transfers as chains
from quadrille.runtime.measuring.chained_transfers import ITEM_BYTES, STEPS, WARM, chain
from quadrille.runtime.operands.operands import Operands
from tests.support.launched import launched

SIZE = 1000
CHAINS = [("shift", 1), ("shift", 2), ("shift", 3), ("shift", 5), ("exchange", 2), ("exchange", 6)]
CHAINS += [("one_way", 2), ("one_way", 5)]
BODY = ["write", "multiply", "tiny", "alone", "step"]
PROGRAM = f"""
import json
from mpi4py import MPI
from quadrille.runtime.measuring import chained_transfers as chains
found = [chains.measure_chain(MPI.COMM_WORLD, pattern, {SIZE}, product_size=16) for pattern in ("shift", "one_way")]
every = MPI.COMM_WORLD.gather([(steps, overheads.issue_seconds, overheads.compute_seconds, overheads.alone_seconds)
                               for steps, overheads, _ in found])
if every is not None:
    print(json.dumps(every))
"""


@pytest.mark.parametrize(("pattern", "ranks"), CHAINS)
def test_a_chain_is_a_valid_schedule_whose_only_messages_are_its_steps(pattern, ranks):
    schedule = validate(chain(pattern, ranks, SIZE, product_size=16))
    sent = [bytes_sent(schedule, rank, Choices()) for rank in range(ranks)]
    turns = WARM + STEPS
    if pattern == "one_way":
        pair = [turns * SIZE, turns * ITEM_BYTES]
        assert sent == [*pair * (ranks // 2), *[0] * (ranks % 2)]
    else:
        assert sent == [turns * SIZE if ranks > 1 else 0] * ranks


@pytest.mark.parametrize(("pattern", "ranks"), CHAINS)
def test_ranks_in_one_process_take_each_step_between_products(pattern, ranks):
    schedule = chain(pattern, ranks, SIZE, product_size=16)
    (timeline,) = execute(schedule, Operands(16, 16, 16, "float64"), InProcess(ranks), repeats=1, warmups=0).timelines
    for rank in range(ranks):
        ops = [span.op for span in sorted(timeline.spans, key=lambda span: span.start) if span.rank == rank]
        last = ["step"] if pattern != "one_way" else ["step", "answer"] if rank < ranks // 2 * 2 else ["rest"]
        assert ops == [*BODY[:-1], *last] * (WARM + STEPS)


def test_the_receiver_of_a_one_way_message_does_not_multiply():
    schedule = validate(chain("one_way", 3, SIZE, waits=True, product_size=16))
    (timeline,) = execute(schedule, Operands(16, 16, 16, "float64"), InProcess(3), repeats=1, warmups=0).timelines
    multiplying = {span.rank for span in timeline.spans if span.op == "multiply"}
    assert multiplying == {0, 2}


@pytest.mark.parametrize(
    ("starts", "ends", "seconds"),
    [
        ((3.0, 0.0), (5.5, 5.0), 0.5),
        ((3.0, 0.0, 1.0, 0.0, 0.0, 1.0), (5.5, 5.0, 4.0, 3.0, 9.0, 2.0), 0.75),  # the last receiver came late
        ((3.0, 0.0), (4.0, 5.0), 0.0),
    ],
)
def test_a_sender_is_as_much_later_as_it_ends_behind_receivers_that_were_there_before(starts, ends, seconds):
    assert chains.sender_ack_delay_seconds(timeline_of(starts, ends)) == pytest.approx(seconds)


def test_senders_whose_receivers_all_came_late_tell_nothing_of_how_much_later_they_hear():
    assert chains.sender_ack_delay_seconds(timeline_of((0.0, 1.0), (3.0, 2.0))) is None


@pytest.mark.parametrize(
    ("pattern", "message_options", "known"),
    [
        ("one_way", MessageOptions(SIZE // 2), True),
        ("one_way", MessageOptions(SIZE), False),
        ("one_way", WHOLE_MESSAGES, False),
        ("shift", MessageOptions(SIZE // 2), False),
    ],
)
def test_it_is_measured_for_one_way_messages_of_more_than_a_chunk(monkeypatch, pattern, message_options, known):
    timeline = timeline_of((3.0, 0.0), (5.5, 5.0))
    monkeypatch.setattr(chains, "execute", lambda *_, **__: SimpleNamespace(timelines=[timeline]))
    monkeypatch.setattr(chains, "_overheads", lambda _: None)
    monkeypatch.setattr(chains, "MpiCarrier", lambda *_, **__: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(chains, "on_own_cores", lambda _: nullcontext())
    two = SimpleNamespace(Get_size=lambda: 2, bcast=lambda found, root: found)
    found = chains.measure_chain(two, pattern, SIZE, message_options=message_options).sender_ack_delay_seconds
    assert found == (0.5 if known else None)


@pytest.mark.parametrize(
    ("pattern", "starts", "ends", "seconds"),
    [
        ("shift", (0.0, 1.0, 2.0), (5.0, 5.0, 5.0), (3.0 + 3.0 + 3.0) / 3),
        ("shift", (0.0, 1.0, 2.0, 0.0), (4.0, 5.0, 5.0, 3.0), (3.0 + 3.0 + 3.0 + 1.0) / 4),
        ("exchange", (0.0, 1.0, 5.0, 4.0), (2.0, 2.0, 7.0, 7.0), (1.0 + 1.0 + 2.0 + 2.0) / 4),
        ("one_way", (3.0, 0.0), (3.1, 5.0), 2.0),
    ],
)
def test_a_step_begins_when_all_that_it_is_between_are_there(pattern, starts, ends, seconds):
    assert chains.step_seconds(timeline_of(starts, ends), pattern, buffered=False) == pytest.approx([seconds])


@pytest.mark.parametrize(
    ("pattern", "starts", "ends", "seconds"),
    [
        ("shift", (0.0, 1.0, 2.0), (5.0, 5.0, 2.1), 5.0 - 2.0),
        ("shift", (2.0, 1.0, 0.0), (2.5, 5.0, 5.0), ((5.0 - 2.0) + (5.0 - 1.0)) / 2),
        ("exchange", (0.0, 1.0, 5.0, 4.0), (3.0, 1.1, 5.1, 8.0), ((3.0 - 1.0) + (8.0 - 5.0)) / 2),
        ("one_way", (3.0, 0.0), (3.1, 5.0), 2.0),
        ("one_way", (0.0, 3.0), (0.1, 3.5), 0.5),
        ("one_way", (3.0, 0.0, 1.0, 0.0, 0.0, 2.0), (3.1, 5.0, 1.1, 2.0, 0.1, 9.0), (2.0 + 1.0) / 2),
    ],
)
def test_with_eager_sends_only_a_receiver_that_waited_shows_how_long_they_take(pattern, starts, ends, seconds):
    assert chains.step_seconds(timeline_of(starts, ends), pattern, buffered=True) == pytest.approx([seconds])


def timeline_of(starts, ends):
    spans = [
        Span(rank, "step", "shift", "x", start, start, start, end, index=WARM)
        for rank, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    return Timeline.of_spans(spans, "measured", Grid(x=len(starts)))


@pytest.mark.mpi
def test_real_ranks_agree_on_every_step_and_on_what_ops_cost_beside_it():
    ended = launched(2, "-c", PROGRAM)
    assert (ended.status, ended.err) == (0, "")
    first, second = json.loads(ended.out)
    assert first == second
    for steps, *overheads in first:
        assert len(steps) == STEPS
        assert min(overheads) >= 0


def test_fills_that_follow_each_other_are_a_valid_schedule_of_nothing_else_and_take_some_time():
    (timeline,) = execute(validate(chains.fills()), {}, InProcess(1), repeats=1, warmups=0).timelines
    assert [span.op for span in timeline.spans] == ["tiny"] * chains.FILLS
    assert 0 < chains.measure_fills() < 1
