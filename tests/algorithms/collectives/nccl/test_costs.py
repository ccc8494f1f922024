from fractions import Fraction
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.analysis import alpha_beta
from quadrille.algorithms.analysis.alpha_beta import AlphaBetaLink
from quadrille.algorithms.errors import InputError

LINK = AlphaBetaLink(latency=3e-6, bandwidth=12.5e9)
UNIT = AlphaBetaLink(latency=1, bandwidth=1)
FREE = AlphaBetaLink(latency=0, bandwidth=1)
ONE_BYTE_RINGS = [alpha_beta.ring_all_gather, alpha_beta.ring_reduce_scatter, alpha_beta.pairwise_all_to_all]
WHOLE_BLOCK = [
    alpha_beta.ring_all_reduce,
    alpha_beta.recursive_doubling_all_reduce,
    alpha_beta.halving_doubling_all_reduce,
]
TREES = [alpha_beta.binomial_broadcast, alpha_beta.binomial_reduce]
POWERS = [alpha_beta.doubling_all_gather, alpha_beta.halving_reduce_scatter, alpha_beta.halving_doubling_all_reduce]


@pytest.mark.parametrize("collective", ONE_BYTE_RINGS + WHOLE_BLOCK + TREES + POWERS)
def test_a_group_of_one_costs_nothing(collective):
    assert collective(1, 12345, LINK) == 0


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_chain_of_one_costs_nothing(chunks):
    assert alpha_beta.pipelined_broadcast(1, 99, LINK, chunks=chunks) == 0


@pytest.mark.parametrize("collective", [*WHOLE_BLOCK, *TREES])
def test_a_pair_costs_at_least_one_message(collective):
    assert collective(2, 1e6, LINK) >= alpha_beta.point_to_point(1e6, LINK) * (1 - 1e-12)


def simulated_ring_all_gather(ranks, shard_bytes, link):
    """Message by message: rank r may pass shard s on once it holds it and its link is free."""
    held = {(rank, rank): Fraction(0) for rank in range(ranks)}
    free = [Fraction(0)] * ranks
    cost = Fraction(link.latency) + Fraction(shard_bytes) / Fraction(link.bandwidth)
    for step in range(ranks - 1):
        for rank in range(ranks):
            shard = (rank - step) % ranks
            free[rank] = max(free[rank], held[rank, shard]) + cost
            held[(rank + 1) % ranks, shard] = free[rank]
    return float(max(held.values()))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 12])
def test_ring_all_gather_equals_its_messages_one_by_one(ranks):
    assert alpha_beta.ring_all_gather(ranks, 5000, LINK) == pytest.approx(simulated_ring_all_gather(ranks, 5000, LINK))


def simulated_chain(ranks, block_bytes, link, chunks):
    """Chunk by chunk along a chain; a rank sends one message at a time."""
    arrived = [[0.0] * chunks for _ in range(ranks)]
    for rank in range(1, ranks):
        free = 0.0
        for chunk in range(chunks):
            free = max(free, arrived[rank - 1][chunk]) + link.seconds(block_bytes / chunks)
            arrived[rank][chunk] = free
    return arrived[-1][-1]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("chunks", [1, 2, 7])
def test_pipelined_broadcast_equals_its_chunks_one_by_one(ranks, chunks):
    expected = simulated_chain(ranks, 1e6, LINK, chunks)
    assert alpha_beta.pipelined_broadcast(ranks, 1e6, LINK, chunks=chunks) == pytest.approx(expected)
    assert alpha_beta.pipelined_reduce(ranks, 1e6, LINK, chunks=chunks) == pytest.approx(expected)


@given(st.integers(0, 6).map(lambda exponent: 2**exponent), st.floats(0, 1e9))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks, size):
    ring = alpha_beta.ring_reduce_scatter(ranks, size / ranks, LINK) + alpha_beta.ring_all_gather(
        ranks, size / ranks, LINK
    )
    assert alpha_beta.ring_all_reduce(ranks, size, LINK) == pytest.approx(ring)
    halving = 2 * log2(ranks) * LINK.latency + 2 * (ranks - 1) / ranks * size / LINK.bandwidth
    assert alpha_beta.halving_doubling_all_reduce(ranks, size, LINK) == pytest.approx(halving)


@given(st.integers(1, 6).map(lambda exponent: 2**exponent), st.floats(1, 1e9))
def test_without_latency_ring_and_doubling_move_the_same(ranks, size):
    assert alpha_beta.doubling_all_gather(ranks, size, FREE) == pytest.approx(
        alpha_beta.ring_all_gather(ranks, size, FREE)
    )
    assert alpha_beta.halving_doubling_all_reduce(ranks, size, FREE) == pytest.approx(
        alpha_beta.ring_all_reduce(ranks, size, FREE)
    )


@pytest.mark.parametrize(("ranks", "steps"), [(2, 1), (3, 3), (4, 2), (5, 4), (7, 4), (8, 3), (12, 5)])
def test_recursive_doubling_takes_two_steps_more_off_the_powers_of_two(ranks, steps):
    assert alpha_beta.recursive_doubling_all_reduce(ranks, 0, UNIT) == steps


@given(st.integers(1, 1000))
def test_a_binomial_tree_is_as_deep_as_the_holders_double(ranks):
    assert alpha_beta.binomial_broadcast(ranks, 0, UNIT) == ceil(log2(ranks))


@pytest.mark.parametrize("collective", POWERS)
@pytest.mark.parametrize("ranks", [3, 6, 12])
def test_doubling_refuses_what_is_no_power_of_two(collective, ranks):
    with pytest.raises(InputError, match=f"ranks={ranks} is not a power of two"):
        collective(ranks, 8, LINK)


@pytest.mark.parametrize("bad", [{"latency": -1, "bandwidth": 1}, {"latency": 0, "bandwidth": 0}])
def test_a_link_that_cannot_be_is_refused(bad):
    with pytest.raises(InputError):
        AlphaBetaLink(**bad)


@pytest.mark.parametrize(("ranks", "size"), [(0, 1), (2, -1), (2, float("nan"))])
def test_a_group_or_size_that_cannot_be_is_refused(ranks, size):
    with pytest.raises(InputError):
        alpha_beta.ring_all_reduce(ranks, size, LINK)
