"""The members of a group in one pattern: which of them do the same steps, and who sends to whom in which."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from quadrille.algorithms.analysis.labels import Ints, pairs, sequences
from quadrille.algorithms.analysis.traffic import Traffic
from quadrille.algorithms.collectives.lowered import Lowered

SIZED = ("first_piece_sent", "first_piece_received", "piece_stride", "piece_spacing", "origin", "around")
SHAPED = ("count", "cycle", "pieces_sent", "pieces_received", "reduce")


def even_pieces(moved: Traffic) -> bool:
    """Whether all pieces have one size, so that it does not matter which one goes when."""
    sizes = {after - before for edges in (moved.edges, moved.receive_edges) for before, after in pairwise(edges)}
    return len(sizes) == 1


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The members of a group in one pattern.

    Parameters
    ----------
    kinds : members of one kind do the same steps, whoever their peers are, and bear the same mark [members]
    events : (place in the program, whether it is a send) of the uses of channels
    sender, receiver, event : each use of a channel, from the sender's or the receiver's side
    """

    kinds: Ints
    events: list[tuple[int, bool]]
    sender: Ints
    receiver: Ints
    event: Ints

    @classmethod
    def of(cls, lowered: Lowered, marks: Ints, *, even: bool) -> "Members":
        """From all members' programs; pieces of one size need not be told apart.

        Parameters
        ----------
        marks : numbers from 0 that tell members apart beside their steps [members]
        """
        runs = lowered.runs()
        member = np.repeat(np.arange(runs.members), np.diff(runs.offsets))
        position = np.arange(len(member)) - runs.offsets[member]
        sends, receives = runs.send_to >= 0, runs.receive_from >= 0
        columns = [getattr(runs, name) for name in (SHAPED if even else (*SHAPED, *SIZED))]
        columns += [sends, receives, runs.send_to == runs.receive_from]
        kinds = sequences(member, position, columns, runs.members)
        place = np.concatenate([position[sends], position[receives]])
        is_send = np.concatenate([np.ones(sends.sum(), dtype=bool), np.zeros(receives.sum(), dtype=bool)])
        found, event = np.unique(place * 2 + is_send, return_inverse=True)
        return cls(
            pairs(kinds, marks),
            [(int(one) // 2, bool(one % 2)) for one in found],
            np.concatenate([member[sends], runs.receive_from[receives]]),
            np.concatenate([runs.send_to[sends], member[receives]]),
            event,
        )
