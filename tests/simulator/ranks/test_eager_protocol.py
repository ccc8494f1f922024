"""Messages that are buffered: they go before their receivers are there, who then find them."""

import dataclasses

import msgspec
import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.formats.measured_rows import TransferRow
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Broadcast, Gemm, Receive, Send
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.runtime.carriers.message_options import CHUNK_BYTES
from quadrille.runtime.carriers.pipelined_steps import CHUNKS_BEFORE_READY
from quadrille.runtime.measuring.overlap_interference import overlapped_gather
from quadrille.simulator.ranks import eager_protocol
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.topologies.machines.machine import NetworkCosts
from tests.support.toy_laboratories import LEAF_SPINE, laboratory

SIZE, RATE, LATENCY, TAKEN, LATE = 4 * 10**5, 25e6, 2e-5, 7e-4, 3e-3
AHEAD_BYTES = eager_protocol.CHUNKS_BEFORE_READY * CHUNK_BYTES


def machine(
    buffered,
    wakeup_delay=0.0,
    back_to_back_latency=None,
    sender_ack_delay=0.0,
    rows=(),
    chunk_bytes=CHUNK_BYTES,
    **given,
):
    found = laboratory(None, **given)
    emulation = msgspec.structs.replace(
        found.emulation,
        eager=buffered,
        chunk_bytes=chunk_bytes,
        core_seconds_per_byte=0.0,
        wakeup_delay_seconds=wakeup_delay,
        back_to_back_latency_seconds=back_to_back_latency,
        sender_ack_delay_seconds=sender_ack_delay,
    )
    return msgspec.structs.replace(found, network=NetworkCosts(transfer=rows), emulation=emulation)


def late(elements, product=1024):
    """Rank 0 sends to rank 1, which multiplies before it receives."""
    side = Part("m")
    tensors = declare(
        Tensor("sent", Part("p"), Part("one")),
        Tensor("room", Part("p"), Part("one")),
        *(Tensor(name, side, side) for name in "ABC"),
    )
    send = (Send(name="message", axis="x", to=1, source="sent"),)
    receive = (Gemm(name="multiply", a="A", b="B", c="C"), Receive(name="message", axis="x", sender=0, into="room"))
    roles = (Role(in_sequence(send), "x", 0, 1), Role(in_sequence(receive), "x", 1, 2))
    sizes = {"p": elements, "one": 1, "m": product}
    return Schedule("late", sizes, Grid(x=2), "float64", tensors, ("sent", "A", "B"), ("room", "C"), roles)


def ends(schedule, buffered, chunk_bytes=CHUNK_BYTES, sender_ack_delay=0.0):
    on = machine(buffered, chunk_bytes=chunk_bytes, sender_ack_delay=sender_ack_delay)
    timeline = simulate(schedule, on).timeline
    return {(span.rank, span.op): span.end for span in timeline.spans}


def test_a_message_goes_before_its_receiver_is_there_and_its_sender_waits_until_it_is_taken():
    found = ends(late(SIZE // 8), buffered=True, sender_ack_delay=TAKEN)
    assert found[1, "multiply"] > LATENCY + SIZE / RATE
    assert found[1, "message"] == found[1, "multiply"]
    assert found[0, "message"] == pytest.approx(found[1, "multiply"] + TAKEN)


def test_whose_receiver_was_there_before_hears_as_much_later_than_that_one():
    found = ends(late(SIZE // 8, product=64), buffered=True, sender_ack_delay=TAKEN)
    assert found[1, "multiply"] < found[1, "message"]
    assert found[0, "message"] == pytest.approx(found[1, "message"] + TAKEN)


@pytest.mark.parametrize("product", [64, 1024])
@pytest.mark.parametrize(("measured", "beyond"), [(SIZE, set()), (SIZE // 4, {"message"})])
def test_a_message_beyond_the_measured_sizes_is_reported_whether_it_comes_early_or_late(product, measured, beyond):
    rows = tuple(TransferRow(pattern="one_way", ranks=2, bytes=size, seconds=size / RATE) for size in (1, measured))
    found = simulate(late(SIZE // 8, product), machine(True, rows=rows))
    assert found.extrapolated - {"multiply"} == beyond


def test_without_buffers_it_goes_when_both_are_there():
    found = ends(late(SIZE // 8), buffered=False)
    assert found[1, "message"] == found[0, "message"] == pytest.approx(found[1, "multiply"] + LATENCY + SIZE / RATE)


def test_only_the_eager_part_of_a_long_message_is_sent_ahead():
    size = 3 * AHEAD_BYTES
    found = ends(late(size // 8, product=2048), buffered=True)
    assert found[1, "multiply"] > size / RATE
    assert found[1, "message"] - found[1, "multiply"] == pytest.approx(LATENCY + size * 2 / 3 / RATE)


def test_who_receives_at_once_has_a_message_after_its_latency():
    found = ends(late(SIZE // 8, product=1), buffered=True)
    assert found[1, "message"] == pytest.approx(LATENCY + SIZE / RATE, rel=1e-3)


def gather_seconds(products, wakeup_delay):
    """Of a gather of one chunk from each of four hosts."""
    schedule = overlapped_gather(4, 4 * CHUNK_BYTES, products)
    timeline = simulate(schedule, machine(True, wakeup_delay)).timeline
    (seconds,) = {round(span.seconds, 12) for span in timeline.spans if span.op == "gather"}
    return seconds


def test_a_rank_that_computes_hears_of_each_step_s_message_later():
    assert gather_seconds(40, LATE) == pytest.approx(gather_seconds(40, 0.0) + 3 * LATE, rel=1e-6)


@pytest.mark.parametrize("working", [1, 2])
def test_it_hears_sooner_where_fewer_compute(working):
    """Of four hosts on two cores one or two, who then wait for half as long as where all four do."""
    schedule = overlapped_gather(4, 4 * CHUNK_BYTES, 40)
    (role,) = schedule.roles
    idle = Role(role.program[:2], "x", working, 4)
    schedule = dataclasses.replace(schedule, roles=(Role(role.program, "x", 0, working), idle))
    gathers = [
        {
            span.rank: span.seconds
            for span in simulate(schedule, machine(True, late)).timeline.spans
            if span.op == "gather"
        }
        for late in (0.0, LATE)
    ]
    late = max(gathers[1][rank] - gathers[0][rank] for rank in range(working))
    assert 0.5 * LATE * (1 - 1e-6) <= late <= 3 * 0.5 * LATE * (1 + 1e-6)


def test_only_the_first_step_of_an_op_finds_members_as_their_products_have_left_them():
    first, following = 4e-3, 5e-4
    rows = tuple(
        TransferRow(pattern="shift", ranks=4, bytes=size, seconds=first + size / RATE) for size in (1, 1 << 20)
    )
    schedule = overlapped_gather(4, 4 * 1024, 0)
    every, only_first = (
        simulate(schedule, machine(True, back_to_back_latency=known, rows=rows)).timeline.makespan
        for known in (None, following)
    )
    assert every - only_first == pytest.approx(2 * (first - following), rel=1e-3)


def test_a_rank_that_does_not_compute_hears_at_once():
    assert gather_seconds(0, LATE) == pytest.approx(gather_seconds(0, 0.0), rel=1e-9)


def test_what_has_come_before_anybody_waits_for_it_is_not_late():
    schedule = late(SIZE // 8)
    found = simulate(schedule, machine(True, LATE)).timeline
    ends = {(span.rank, span.op): span.end for span in found.spans}
    assert ends[1, "message"] == ends[1, "multiply"]


@pytest.mark.parametrize("gathered", [4 * CHUNK_BYTES, 1 << 20])
def test_folding_changes_nothing_where_ranks_hear_late(gathered):
    schedule = overlapped_gather(4, gathered, 40)
    every = [
        sum(span.end for span in simulate(schedule, machine(True, LATE), shortcuts=shortcuts).timeline.spans)
        for shortcuts in (Shortcuts(), Shortcuts(fold=False), Shortcuts(fold=False, fold_time=False, local=False))
    ]
    assert every[1:] == pytest.approx(every[:1] * 2, rel=1e-9)


@pytest.mark.parametrize("family", [None, LEAF_SPINE])
@pytest.mark.parametrize("algorithm", ["summa", "2.5d", "cannon", "4d"])
def test_folding_changes_nothing_under_the_eager_protocol(algorithm, family):
    grid = Grid(z=2, x=2) if algorithm != "2.5d" else Grid(z=2, x=2, y=2)
    schedule = matmul_schedule(Matmul(512, 512, 512), algorithm, grid)
    lab = machine(True, family=family, sender_ack_delay=TAKEN)  # 2.5d: two ranks on each host
    every = [
        simulate(schedule, lab, shortcuts=shortcuts).timeline.makespan
        for shortcuts in (Shortcuts(), Shortcuts(fold=False), Shortcuts(fold=False, fold_time=False, local=False))
    ]
    assert every[1:] == pytest.approx(every[:1] * 2, rel=1e-9)


def test_shifts_beside_the_librarys_collectives_are_our_own_steps():
    schedule = matmul_schedule(Matmul(512, 512, 512), "cannon", Grid(z=2, x=2))
    lab = machine(True, sender_ack_delay=TAKEN)
    own, library = (
        simulate(schedule, lab, choices=parse_choices(word)).timeline.makespan for word in ("own", "library")
    )
    assert own == library


def test_a_sender_of_the_same_host_hears_at_once_that_all_was_taken():
    on_one = machine(True, sender_ack_delay=TAKEN, family={"family": "star", "hosts": 1})
    found = {(span.rank, span.op): span.end for span in simulate(late(SIZE // 8, product=64), on_one).timeline.spans}
    assert found[1, "multiply"] < found[1, "message"] == pytest.approx(found[0, "message"])


def broadcast(elements, hosts):
    tensors = declare(*(Tensor(name, Part("p"), Part("one")) for name in ("source", "copy")))
    passed_on = Broadcast(name="message", axis="x", root=0, source="source", into="copy")
    sizes, role = {"p": elements, "one": 1}, Role(in_sequence((passed_on,)))
    return Schedule("chain", sizes, Grid(x=hosts), "float64", tensors, ("source",), ("copy",), (role,))


def test_down_a_chain_every_link_that_was_idle_adds_its_latency_only():
    burst, latency, size = 7e4, 1e-3, 20 * CHUNK_BYTES
    rows = tuple(
        TransferRow(pattern="one_way", ranks=2, bytes=some, seconds=latency + max(0.0, some - burst) / RATE)
        for some in (1, 1 << 16, 1 << 20, 1 << 22)
    )
    lab = machine(True, rows=rows, back_to_back_latency=1e-4)
    lab = msgspec.structs.replace(lab, emulation=msgspec.structs.replace(lab.emulation, burst_bytes=burst))
    found = [simulate(broadcast(size // 8, hosts), lab).timeline.makespan for hosts in (2, 3, 4)]
    assert found == pytest.approx([hops * latency + (size - burst) / RATE for hops in (1, 2, 3)], rel=0.01)


def test_as_much_goes_ahead_as_the_runtime_lets_go():
    assert CHUNKS_BEFORE_READY == eager_protocol.CHUNKS_BEFORE_READY


def test_of_a_message_in_larger_chunks_more_goes_ahead():
    size, chunks = 6 * AHEAD_BYTES, (CHUNK_BYTES, 3 * CHUNK_BYTES)
    ahead = [ends(late(size // 8, product=2048), buffered=True, chunk_bytes=chunk) for chunk in chunks]
    left = [found[1, "message"] - found[1, "multiply"] for found in ahead]
    assert left == pytest.approx([LATENCY + size * 5 / 6 / RATE, LATENCY + size * 3 / 6 / RATE])
