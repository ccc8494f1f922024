"""Flat collectives, which ignore nodes: rings, recursive doubling, all-to-alls, binomial trees and chains.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005;
doubling for sizes that are no power of two: Bruck et al., "Efficient algorithms for all-to-all communications in
multiport message-passing systems", IEEE TPDS 8(11), 1997; barrier: Hensgen, Finkel, Manber, "Two algorithms for barrier
synchronization", Int. J. Parallel Programming 17(1), 1988.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from quadrille.algorithms.collectives.lowered_collective import Lowered
from quadrille.algorithms.collectives.run_length_programs import IDLE, NOBODY, Integers, PieceRange, Section, Step


def ring_all_gather(members: int) -> Lowered:
    """Ring all-gather: each member forwards the piece that it received last."""

    def step(i: int, s: int) -> Step:
        send, receive = PieceRange((i - s) % members, 1), PieceRange((i - s - 1) % members, 1)
        return Step((i + 1) % members, send, (i - 1) % members, receive)

    return Lowered("ring", members, members, members - 1, step, lambda: [_ring_section(members, 0)])


def ring_reduce_scatter(members: int) -> Lowered:
    """Ring reduce-scatter: each member adds its own summand to the sum that it received last, and forwards it."""

    def step(i: int, s: int) -> Step:
        send, receive = PieceRange((i - s - 1) % members, 1), PieceRange((i - s - 2) % members, 1)
        return Step((i + 1) % members, send, (i - 1) % members, receive, reduce=True)

    return Lowered("ring", members, members, members - 1, step, lambda: [_ring_section(members, 1)])


def _ring_section(members: int, distance: int) -> Section:
    """Section of a ring in which a member first sends the piece of the member `distance` behind it; > 0 reduces."""
    here = np.arange(members)
    return Section(
        steps=members - 1,
        send_to=(here + 1) % members,
        send_first=(here - distance) % members,
        receive_from=(here - 1) % members,
        receive_first=(here - distance - 1) % members,
        reduce=distance > 0,
        stride=-1,
        modulus=members,
    )


def doubling_all_gather(members: int) -> Lowered:
    """All-gather by recursive doubling.

    With 2**q members, member i exchanges with i XOR 2**s.  Otherwise member i holds the pieces i .. i + 2**s - 1, sends
    them down and receives the next ones from above.
    """
    exchange = members & (members - 1) == 0

    def step(i: int, s: int) -> Step:
        count_held = 1 << s
        if exchange:
            peer, base = i ^ count_held, i & ~(count_held - 1)
            return Step(peer, PieceRange(base, count_held), peer, PieceRange(base ^ count_held, count_held))
        count = min(count_held, members - count_held)
        below, above = (i - count_held) % members, (i + count_held) % members
        return Step(below, PieceRange(i, count), above, PieceRange(above, count))

    def sections() -> Iterator[Section]:
        here = np.arange(members)
        for s in range(doublings(members)):
            count_held = 1 << s
            count = min(count_held, members - count_held)
            below, above = (here - count_held) % members, (here + count_held) % members
            first, second = here, above
            if exchange:
                below = above = here ^ count_held
                first = here & ~(count_held - 1)
                second = first ^ count_held
            yield Section(
                steps=1,
                send_to=below,
                send_first=first,
                sent=count,
                receive_from=above,
                receive_first=second,
                received=count,
            )

    return Lowered("doubling", members, members, doublings(members), step, sections)


def doubling_all_reduce(members: int) -> Lowered:
    """All-reduce of the whole buffer by recursive doubling.

    Members beyond the largest power of two first add their buffers to a partner, and receive the sum from it at the
    end.
    """
    core = largest_power_of_two(members)
    extra, whole = members - core, PieceRange(0, 1)
    inner = doublings(core)
    outer = 1 if extra else 0

    def step(i: int, s: int) -> Step:
        if outer and s == 0:
            return Step(i - core, whole) if i >= core else core_receive(i)
        if s < outer + inner:
            peer = i ^ (1 << (s - outer))
            return Step(peer, whole, peer, whole, reduce=True) if i < core else IDLE
        if i >= core:
            return Step(receive_from=i - core, receive=whole)
        return Step(i + core, whole) if i < extra else IDLE

    def core_receive(i: int) -> Step:
        return Step(receive_from=i + core, receive=whole, reduce=True) if i < extra else IDLE

    def sections() -> Iterator[Section]:
        here = np.arange(members)
        to_core = np.where(here >= core, here - core, NOBODY)
        to_extra = np.where(here < extra, here + core, NOBODY)
        if outer:
            yield Section(steps=1, send_to=to_core, receive_from=to_extra, reduce=here < extra)
        for s in range(inner):
            peer = np.where(here < core, here ^ (1 << s), NOBODY)
            yield Section(steps=1, send_to=peer, receive_from=peer, reduce=True)
        if outer:
            yield Section(steps=1, send_to=to_extra, receive_from=to_core)

    return Lowered("doubling", members, 1, inner + 2 * outer, step, sections)


def pairwise_all_to_all(members: int) -> Lowered:
    """Pairwise all-to-all: in step s each member sends to the member s + 1 after it."""

    def step(i: int, s: int) -> Step:
        to, sender = (i + s + 1) % members, (i - s - 1) % members
        return Step(to, PieceRange(to, 1), sender, PieceRange(sender, 1))

    def sections() -> Iterator[Section]:
        here = np.arange(members)
        for distance in range(1, members):
            to, sender = (here + distance) % members, (here - distance) % members
            yield Section(steps=1, send_to=to, send_first=to, receive_from=sender, receive_first=sender)

    return Lowered("pairwise", members, members, members - 1, step, sections)


def direct_all_to_all(members: int) -> Lowered:
    """Direct all-to-all: each member posts its messages to all others at once, as NCCL and UCX do."""
    return replace(pairwise_all_to_all(members), algorithm="direct", at_once=True)


def shift(members: int) -> Lowered:
    """Shift along a ring: each member sends its whole buffer to the next member, all at the same time."""
    whole = PieceRange(0, 1)

    def step(i: int, _: int) -> Step:
        return Step((i + 1) % members, whole, (i - 1) % members, whole)

    def sections() -> list[Section]:
        here = np.arange(members)
        return [Section(steps=1, send_to=(here + 1) % members, receive_from=(here - 1) % members)]

    return Lowered("shift", members, 1, 1, step, sections)


def dissemination_barrier(members: int) -> Lowered:
    """Dissemination barrier: in step s each member signals the member 2**s after it."""

    def step(i: int, s: int) -> Step:
        distance = 1 << s
        return Step((i + distance) % members, PieceRange(0, 1), (i - distance) % members, PieceRange(0, 1))

    def sections() -> Iterator[Section]:
        here = np.arange(members)
        for s in range(doublings(members)):
            yield Section(steps=1, send_to=(here + (1 << s)) % members, receive_from=(here - (1 << s)) % members)

    return Lowered("dissemination", members, 1, doublings(members), step, sections)


def largest_power_of_two(members: int) -> int:
    """Largest power of two that is at most `members`.

    >>> largest_power_of_two(12), largest_power_of_two(16)
    (8, 16)
    """
    return 1 << (members.bit_length() - 1)


def doublings(members: int) -> int:
    """Smallest s with 2**s >= members."""
    return (members - 1).bit_length()


def binomial_broadcast(members: int, root: int) -> Lowered:
    """Binomial broadcast: in step s the first 2**s members after the root send to the next 2**s."""
    whole = PieceRange(0, 1)

    def step(i: int, s: int) -> Step:
        distance, served = (i - root) % members, 1 << s
        if distance < served:
            return Step((i + served) % members, whole) if distance + served < members else IDLE
        if distance < 2 * served:
            return Step(receive_from=(i - served) % members, receive=whole)
        return IDLE

    def sections() -> Iterator[Section]:
        here = np.arange(members)
        distance = (here - root) % members
        for s in range(doublings(members)):
            served = 1 << s
            serves = (distance < served) & (distance + served < members)
            is_served = (distance >= served) & (distance < 2 * served)
            yield Section(
                steps=1,
                send_to=np.where(serves, (here + served) % members, NOBODY),
                receive_from=np.where(is_served, (here - served) % members, NOBODY),
            )

    return Lowered("binomial", members, 1, doublings(members), step, sections)


def pipelined_broadcast(members: int, root: int, pieces: int) -> Lowered:
    """Pipelined broadcast along a chain: in step s the member r after the root forwards piece s - r."""

    def step(i: int, s: int) -> Step:
        distance = (i - root) % members
        sends = distance < members - 1 and 0 <= s - distance < pieces
        receives = distance > 0 and 0 <= s - distance + 1 < pieces
        return Step(
            (i + 1) % members if sends else None,
            PieceRange(s - distance, 1) if sends else None,
            (i - 1) % members if receives else None,
            PieceRange(s - distance + 1, 1) if receives else None,
        )

    def sections() -> list[Section]:
        here = np.arange(members)
        return chain_sections((here - root) % members, members, pieces, (here + 1) % members, (here - 1) % members)

    return Lowered("pipelined", members, pieces, pieces + members - 2, step, sections)


def chain_sections(
    distance: Integers, length: int, pieces: int, after: Integers, before: Integers, base: Integers | int = 0
) -> list[Section]:
    """Sections of chains of `length` members that forward the pieces base, base + 1, ….

    Parameters
    ----------
    distance : distance of each member from the root of its chain
    after, before : next and previous member of the chain
    """
    first, last = distance == 0, distance == length - 1
    middle = ~first & ~last
    whole = 1 << 62
    return [
        Section(
            steps=np.where(middle, 1, np.where(first, 0, pieces)),
            receive_from=before,
            receive_first=base,
            stride=1,
            modulus=whole,
        ),
        Section(
            steps=np.where(middle, pieces - 1, 0),
            send_to=after,
            send_first=base,
            receive_from=before,
            receive_first=base + 1,
            stride=1,
            modulus=whole,
        ),
        Section(
            steps=np.where(middle, 1, np.where(last, 0, pieces)),
            send_to=after,
            send_first=np.where(middle, base + pieces - 1, base),
            stride=1,
            modulus=whole,
        ),
    ]
