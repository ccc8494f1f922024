"""Every lowered collective, executed step by step on small lists."""

from math import ceil, log2

import pytest

from algorithms.choices import SETS, lower
from algorithms.collectives import IDLE, Lowered

SIZES = range(1, 14)


def carry_out(lowered: Lowered, buffers: list[list[int | None]]) -> list[list[int | None]]:
    """All members in lockstep; each buffer holds one number (or None) per piece."""
    programs = [[lowered.step(member, s) for s in range(lowered.steps)] for member in range(lowered.members)]
    for s in range(lowered.steps):
        posted = {}
        for member, program in enumerate(programs):
            step = program[s]
            if step.send is not None:
                pieces = [(step.send.first + j) % lowered.pieces for j in range(step.send.count)]
                posted[member, step.send_to] = (pieces, [buffers[member][piece] for piece in pieces])
        for member, program in enumerate(programs):
            step = program[s]
            if step.receive is None:
                continue
            pieces = [(step.receive.first + j) % lowered.pieces for j in range(step.receive.count)]
            sent, values = posted.pop((step.receive_from, member))
            assert sent == pieces
            for piece, value in zip(pieces, values, strict=True):
                assert value is not None, "a piece is passed on before it is there"
                buffers[member][piece] = buffers[member][piece] + value if step.reduce else value
        assert not posted, "what is sent is received in the same step"
    return buffers


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "doubling"])
def test_an_all_gather_leaves_every_piece_everywhere(members, algorithm):
    start = [[i if i == piece else None for piece in range(members)] for i in range(members)]
    end = carry_out(lower("all_gather", algorithm, members), start)
    assert end == [list(range(members))] * members


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "halving"])
def test_a_reduce_scatter_leaves_each_sum_at_its_member(members, algorithm):
    start = [[10**i * (piece + 1) for piece in range(members)] for i in range(members)]
    end = carry_out(lower("reduce_scatter", algorithm, members), start)
    ones = sum(10**i for i in range(members))
    assert [end[i][i] for i in range(members)] == [ones * (i + 1) for i in range(members)]


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "doubling", "halving_doubling"])
def test_an_all_reduce_leaves_the_sum_everywhere(members, algorithm):
    lowered = lower("all_reduce", algorithm, members)
    start = [[10**i * (piece + 1) for piece in range(lowered.pieces)] for i in range(members)]
    ones = sum(10**i for i in range(members))
    assert carry_out(lowered, start) == [[ones * (piece + 1) for piece in range(lowered.pieces)]] * members


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["binomial", "pipelined"])
def test_a_broadcast_reaches_everyone_from_any_root(members, algorithm):
    for root in range(members):
        lowered = lower("broadcast", algorithm, members, root=root, size_bytes=5 << 20)
        start = [[piece if i == root else None for piece in range(lowered.pieces)] for i in range(members)]
        assert carry_out(lowered, start) == [list(range(lowered.pieces))] * members


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("algorithm", ["binomial", "pipelined"])
def test_a_reduce_sums_at_any_root(members, algorithm):
    for root in range(members):
        lowered = lower("reduce", algorithm, members, root=root, size_bytes=5 << 20)
        start = [[10**i * (piece + 1) for piece in range(lowered.pieces)] for i in range(members)]
        ones = sum(10**i for i in range(members))
        assert carry_out(lowered, start)[root] == [ones * (piece + 1) for piece in range(lowered.pieces)]


@pytest.mark.parametrize("members", SIZES)
def test_a_pairwise_exchange_meets_every_pair_once(members):
    lowered = lower("all_to_all", "pairwise", members)
    for s in range(lowered.steps):
        for member in range(members):
            step = lowered.step(member, s)
            assert lowered.step(step.send_to, s).receive_from == member
            assert (step.send.first, step.receive.first) == (step.send_to, step.receive_from)
    assert all(
        sorted(lowered.step(member, s).send_to for s in range(lowered.steps))
        == [i for i in range(members) if i != member]
        for member in range(members)
    )


@pytest.mark.parametrize("members", range(2, 14))
@pytest.mark.parametrize("set_name", SETS)
def test_no_member_sends_to_itself_and_every_send_has_its_receive(members, set_name):
    for kind, algorithm in SETS[set_name].items():
        lowered = lower(kind, algorithm, members, root=members - 1, size_bytes=4 << 20)
        for s in range(lowered.steps):
            sends = {(i, lowered.step(i, s).send_to) for i in range(members) if lowered.step(i, s).send is not None}
            receives = {
                (lowered.step(i, s).receive_from, i) for i in range(members) if lowered.step(i, s).receive is not None
            }
            assert sends == receives
            assert all(one != other for one, other in sends)
            assert any(lowered.step(i, s) != IDLE for i in range(members))


@pytest.mark.parametrize("members", range(2, 14))
def test_doubling_takes_the_logarithm_of_the_steps_of_a_ring(members):
    assert lower("all_gather", "ring", members).steps == members - 1
    assert lower("all_gather", "doubling", members).steps == ceil(log2(members))
