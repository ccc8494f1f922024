"""What computing hides of communication: each instant that nothing hides is charged to one op."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quadrille.simulator.bounds.instances import Instance
from quadrille.topologies.network import Floats

REMEMBERED = 256
"""Computing ops that are kept to tell what they hide."""


@dataclass(slots=True, eq=False)
class Moving:
    """A communication op that may still be hidden by what is computed later.

    Parameters
    ----------
    number : the how manieth of all instances it is
    stands_for : so many instances, itself included
    """

    number: int
    name: str
    begin: Floats
    end: Floats
    exposed: Floats
    stands_for: int = 1

    @property
    def seconds(self) -> float:
        """That nothing hides, on all ranks."""
        return float(np.maximum(0.0, self.exposed).sum())


@dataclass(slots=True, eq=False)
class Hiding:
    """What computing hides, on the ranks of one program: communication, and begin and end of what was computed.

    `covered` is the latest end of communication so far, and `covered_by` the instance that came last.
    """

    moving: list[Moving] = field(default_factory=list)
    computing: list[tuple[int, Floats, Floats]] = field(default_factory=list)
    covered: Floats | None = None
    covered_by: int = 0

    def go_on_beside(self, times: int, seconds: Floats, last: int, first: int) -> None:
        """Communication from before instance `first` that is under way still is hidden by more turns like the last one.

        Parameters
        ----------
        last : instances before that turn
        """
        for moving in self.moving:
            if moving.number > first:
                continue
            for number, start, end in self.computing:
                turns = min(times, int(float((moving.end - start).max()) / float(seconds.min())))
                for later in (seconds * turn for turn in range(1, turns + 1) if number > last):
                    moving.exposed -= _common(moving.begin, moving.end, start + later, end + later)

    def move_on(self, seconds: Floats, first: int) -> None:
        """What came after instance `first` is later."""
        for moving in self.moving:
            if moving.number > first:
                moving.begin, moving.end = moving.begin + seconds, moving.end + seconds
        self.computing = [
            (number, start + seconds, end + seconds) if number > first else (number, start, end)
            for number, start, end in self.computing
        ]
        if self.covered is not None and self.covered_by > first:
            self.covered = self.covered + seconds

    def computes(self, number: int, one: Instance) -> list[Moving]:
        """An op of the compute lane hides what is under way; gives back what no later one can hide."""
        for moving in self.moving:
            moving.exposed -= _common(moving.begin, moving.end, one.start, one.end)
        self.computing = [*self.computing[1 - REMEMBERED :], (number, one.start.copy(), one.end.copy())]
        return [moving for moving in self.moving if (moving.end <= one.end).all()]

    def communicates(self, number: int, one: Instance) -> None:
        """A communication op is under way, of which earlier ones charge their own part and computing hides some."""
        begin = np.maximum(one.arrival, one.start)
        if self.covered is not None:
            begin = np.minimum(one.end, np.maximum(begin, self.covered))
        self.covered = one.end if self.covered is None else np.maximum(self.covered, one.end)
        self.covered_by = number
        moving = Moving(number, one.op.name, begin, one.end, one.end - begin)
        earliest = float(begin.min())
        for _, start, end in reversed(self.computing):
            if float(end.max()) <= earliest:  # and so are those before it on the lane
                break
            moving.exposed -= _common(moving.begin, moving.end, start, end)
        self.moving.append(moving)

    def leave(self, done: Sequence[Moving]) -> None:
        """These are settled."""
        self.moving = [moving for moving in self.moving if all(moving is not one for one in done)]


def _common(begin: Floats, end: Floats, start: Floats, stop: Floats) -> Floats:
    """How long two stretches of time have in common."""
    found: Floats = np.maximum(0.0, np.minimum(end, stop) - np.maximum(begin, start))
    return found
