"""Alpha-beta model: closed-form times of collective algorithms, against which the simulator is tested.

A message of n bytes takes α + n/β.  A rank sends one message and receives one message at a time.  All hops are equal
and free of other traffic.  Local reductions cost nothing.  Symbols: p ranks, latency α [s], bandwidth β [B/s], n bytes.

Source of every formula that names no other: Thakur, Rabenseifner, Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005, sections 3 and 4.
"""

from dataclasses import dataclass
from math import isfinite

from quadrille.algorithms.errors import InputError


@dataclass(frozen=True, slots=True)
class AlphaBetaLink:
    """One hop: `latency` α [s] and `bandwidth` β [B/s].

    >>> AlphaBetaLink(latency=0.5, bandwidth=100e9).seconds(25e9)
    0.75
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and isfinite(self.latency)):
            raise InputError(f"latency {self.latency} s: a finite number from 0 is needed")
        if not self.bandwidth > 0:
            raise InputError(f"bandwidth {self.bandwidth} B/s: a number above 0 is needed")

    def seconds(self, size: float) -> float:
        """Seconds until `size` bytes have arrived."""
        return self.latency + size / self.bandwidth


def point_to_point(size: float, link: AlphaBetaLink) -> float:
    """Seconds until one message of `size` bytes has arrived: α + n / β.

    >>> point_to_point(1e9, AlphaBetaLink(latency=0, bandwidth=100e9))
    0.01
    """
    return link.seconds(size)


def ring_all_gather(ranks: int, shard_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds until every rank holds every rank's shard, in a ring of p - 1 steps.

        t = (p - 1) (α + n / β)

    >>> ring_all_gather(4, 1e9, AlphaBetaLink(latency=0, bandwidth=100e9))
    0.03

    Parameters
    ----------
    shard_bytes : n, bytes that one rank holds at the start [B]
    """
    _check(ranks, shard_bytes)
    return (ranks - 1) * link.seconds(shard_bytes)


def doubling_all_gather(ranks: int, shard_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds of the all-gather by recursive doubling; p is a power of two.

        t = log2(p) α + (p - 1) n / β

    >>> doubling_all_gather(8, 1e9, AlphaBetaLink(latency=1, bandwidth=1e9))
    10.0
    """
    _check(ranks, shard_bytes)
    return _power_of_two(ranks, "doubling all-gather") * link.latency + (ranks - 1) * shard_bytes / link.bandwidth


def ring_reduce_scatter(ranks: int, shard_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds until every rank holds its shard of the sum: the reverse of the ring all-gather.

        t = (p - 1) (α + n / β)

    >>> ring_reduce_scatter(4, 1e9, AlphaBetaLink(latency=0, bandwidth=100e9))
    0.03

    Parameters
    ----------
    shard_bytes : n, bytes that one rank holds at the end [B]
    """
    return ring_all_gather(ranks, shard_bytes, link)


def halving_reduce_scatter(ranks: int, shard_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds of the reduce-scatter by recursive halving; p is a power of two.

        t = log2(p) α + (p - 1) n / β

    >>> halving_reduce_scatter(8, 1e9, AlphaBetaLink(latency=1, bandwidth=1e9))
    10.0
    """
    _check(ranks, shard_bytes)
    return _power_of_two(ranks, "halving reduce-scatter") * link.latency + (ranks - 1) * shard_bytes / link.bandwidth


def ring_all_reduce(ranks: int, block_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds until every rank holds the sum: ring reduce-scatter, then ring all-gather.

        t = 2 (p - 1) (α + n / (p β))

    >>> ring_all_reduce(4, 1e9, AlphaBetaLink(latency=0, bandwidth=100e9))
    0.015

    Parameters
    ----------
    block_bytes : n, bytes that each rank holds [B]
    """
    _check(ranks, block_bytes)
    return 2 * (ranks - 1) * link.seconds(block_bytes / ranks)


def recursive_doubling_all_reduce(ranks: int, block_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds of the all-reduce that exchanges whole blocks at distances 1, 2, 4, ….

        t = s (α + n / β),   s = log2(p), or floor(log2(p)) + 2 where p is no power of two

    (the ranks beyond the power of two hand their block in first and are given the sum last).

    >>> [recursive_doubling_all_reduce(p, 1, AlphaBetaLink(latency=1, bandwidth=1)) for p in (1, 2, 3, 8)]
    [0.0, 2.0, 6.0, 6.0]
    """
    _check(ranks, block_bytes)
    steps = ranks.bit_length() - 1
    if ranks & (ranks - 1):
        steps += 2
    return steps * float(link.seconds(block_bytes))


def halving_doubling_all_reduce(ranks: int, block_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds of a halving reduce-scatter followed by a doubling all-gather; p is a power of two.

        t = 2 log2(p) α + 2 (p - 1)/p n / β

    >>> halving_doubling_all_reduce(4, 4, AlphaBetaLink(latency=1, bandwidth=1))
    10.0

    Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
    """
    shard_bytes = block_bytes / ranks
    return halving_reduce_scatter(ranks, shard_bytes, link) + doubling_all_gather(ranks, shard_bytes, link)


def binomial_broadcast(ranks: int, block_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds until the last rank has the root's block; the number of holders doubles in each step.

        t = ceil(log2(p)) (α + n / β)

    >>> [binomial_broadcast(p, 1, AlphaBetaLink(latency=0, bandwidth=1)) for p in (1, 2, 5, 8)]
    [0.0, 1.0, 3.0, 3.0]
    """
    _check(ranks, block_bytes)
    return (ranks - 1).bit_length() * float(link.seconds(block_bytes))


def binomial_reduce(ranks: int, block_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds until the root holds the sum: the reverse of the binomial broadcast.

    >>> binomial_reduce(5, 1, AlphaBetaLink(latency=0, bandwidth=1))
    3.0
    """
    return binomial_broadcast(ranks, block_bytes, link)


def pipelined_broadcast(ranks: int, block_bytes: float, link: AlphaBetaLink, *, chunks: int) -> float:
    """Seconds until the last rank of a chain has the root's block, sent in c chunks.

        t = (p - 2 + c) (α + n / (c β))   for p >= 2

    >>> pipelined_broadcast(4, 8, AlphaBetaLink(latency=0, bandwidth=1), chunks=4)
    12.0

    Parameters
    ----------
    block_bytes : n, bytes that the root holds [B]
    chunks : c, number of chunks
    """
    _check(ranks, block_bytes)
    if chunks < 1:
        raise InputError(f"chunks={chunks}: a whole number from 1 is needed")
    return (ranks - 2 + chunks) * float(link.seconds(block_bytes / chunks)) if ranks > 1 else 0.0


def pipelined_reduce(ranks: int, block_bytes: float, link: AlphaBetaLink, *, chunks: int) -> float:
    """Seconds until the root of a chain holds the sum: the reverse of the pipelined broadcast.

    >>> pipelined_reduce(4, 8, AlphaBetaLink(latency=0, bandwidth=1), chunks=4)
    12.0

    Parameters
    ----------
    block_bytes : n, bytes that each rank holds [B]
    chunks : c, number of chunks
    """
    return pipelined_broadcast(ranks, block_bytes, link, chunks=chunks)


def pairwise_all_to_all(ranks: int, piece_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds until every rank has a shard from every other rank; in step s rank r sends to r + s.

        t = (p - 1) (α + n / β)

    >>> pairwise_all_to_all(4, 1, AlphaBetaLink(latency=1, bandwidth=1))
    6.0

    Parameters
    ----------
    piece_bytes : n, bytes that one rank sends to one other rank [B]
    """
    _check(ranks, piece_bytes)
    return (ranks - 1) * link.seconds(piece_bytes)


def direct_all_to_all(ranks: int, piece_bytes: float, link: AlphaBetaLink) -> float:
    """Seconds until every rank has a shard from every other rank, if each rank posts all its messages at once.

    The messages of a rank share its link, and their latencies overlap:

        t = α + (p - 1) n / β

    >>> direct_all_to_all(4, 1, AlphaBetaLink(latency=1, bandwidth=1))
    4.0

    Parameters
    ----------
    piece_bytes : n, bytes that one rank sends to one other rank [B]
    """
    _check(ranks, piece_bytes)
    return link.seconds((ranks - 1) * piece_bytes) if ranks > 1 else 0.0


def _check(ranks: int, size: float) -> None:
    if ranks < 1:
        raise InputError(f"ranks={ranks}: a whole number from 1 is needed")
    if not size >= 0:
        raise InputError(f"size {size} bytes: a number from 0 is needed")


def _power_of_two(ranks: int, collective: str) -> int:
    """Returns log2 of `ranks`."""
    if ranks & (ranks - 1):
        raise InputError(f"ranks={ranks} is not a power of two: {collective} takes 1, 2, 4, 8, …")
    return ranks.bit_length() - 1
