"""Broadcasts from a root in waves: a binomial tree of one piece, a chain of many.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005, section on broadcast.
"""

from collections.abc import Iterator

import numpy as np

from quadrille.algorithms.collectives.exchanges import doublings
from quadrille.algorithms.collectives.lowered import Lowered
from quadrille.algorithms.collectives.runs import NOBODY, Integers, Section
from quadrille.algorithms.collectives.transfer_steps import IDLE, PieceRange, Step


def binomial(members: int, root: int) -> Lowered:
    """Binomial broadcast: in step s the first 2**s members behind the root serve the next 2**s."""
    whole = PieceRange(0, 1)

    def step(i: int, s: int) -> Step:
        behind, served = (i - root) % members, 1 << s
        if behind < served:
            return Step((i + served) % members, whole) if behind + served < members else IDLE
        if behind < 2 * served:
            return Step(receive_from=(i - served) % members, receive=whole)
        return IDLE

    def sections() -> Iterator[Section]:
        here = np.arange(members)
        behind = (here - root) % members
        for s in range(doublings(members)):
            served = 1 << s
            serves = (behind < served) & (behind + served < members)
            is_served = (behind >= served) & (behind < 2 * served)
            yield Section(
                steps=1,
                send_to=np.where(serves, (here + served) % members, NOBODY),
                receive_from=np.where(is_served, (here - served) % members, NOBODY),
            )

    return Lowered("binomial", members, 1, doublings(members), step, sections)


def pipelined(members: int, root: int, pieces: int) -> Lowered:
    """Pipelined broadcast: in step s the member r behind the root passes on piece s - r."""

    def step(i: int, s: int) -> Step:
        behind = (i - root) % members
        sends = behind < members - 1 and 0 <= s - behind < pieces
        receives = behind > 0 and 0 <= s - behind + 1 < pieces
        return Step(
            (i + 1) % members if sends else None,
            PieceRange(s - behind, 1) if sends else None,
            (i - 1) % members if receives else None,
            PieceRange(s - behind + 1, 1) if receives else None,
        )

    def sections() -> list[Section]:
        here = np.arange(members)
        return chain_sections((here - root) % members, members, pieces, (here + 1) % members, (here - 1) % members)

    return Lowered("pipelined", members, pieces, pieces + members - 2, step, sections)


def chain_sections(
    behind: Integers, length: int, pieces: int, after: Integers, before: Integers, base: Integers | int = 0
) -> list[Section]:
    """Pieces base, base + 1, … down chains of `length`: each member receives the first, passes on, sends the last.

    Parameters
    ----------
    behind : how far each member is down its chain; the root is at 0
    after, before : the next and the last member of the chain
    """
    first, last = behind == 0, behind == length - 1
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
