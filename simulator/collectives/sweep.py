"""Steps of all members at once, where transfers never contend.

Where every flow may run at its own best rate whatever the others do, a step of
a member takes a time d that is known beforehand, and when each has reached step
s + 1 follows from when all had reached step s:

    start = max(T_i, T_to(i))           a transfer starts when both its ends are there
    end   = start + d_i
    T'_i  = max(end_i, end_from(i))     a member goes on when it has sent and received

This is what the event queue would find, without the queue: one pass over arrays
for each step.

Folding over time
-----------------
T' = F(T), where F only takes maxima and adds constants.  So F(T + c) = F(T) + c,
and F brings no two times further apart than they were.  If in a step the
members of a component (a cycle of to) all move on by the same c, they do so
again in the next step, and in every one of the section; deviations from c up to
e are e in each further step at most, so a jump over n steps is wrong by at most
n e, which is carried along.  No longer periods need to be looked for: T'_i is at
least T_i + d_i, so a cycle of the greatest mean weight, to whose pace all times of
a component settle, is always one from a member to itself (F. Baccelli et al.,
"Synchronization and Linearity", Wiley, 1992, chapter 3).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quadrille.simulator.collectives.piece_sizes import PieceSizes, select, step_bytes
from quadrille.simulator.collectives.programs import Floats, Ints, MemberPrograms

STEADY = 1e-13
"""Steps of two members that differ by less than this part of one are the same."""
WATCHED = 32
"""Steps between two looks whether all move alike; the first 1, 2, 4, … are looked at, too."""


@dataclass(frozen=True, slots=True, eq=False)
class LockstepSection:
    """A run of all members together: each sends on one flow and receives on one, `count` times.

    Parameters
    ----------
    count : steps
    run : of each member [members]
    send : flow of each member, -1 where it sends nothing [members]
    to, sender : members at the other ends; the member itself where there is none [members]
    """

    count: int
    run: Ints
    send: Ints
    to: Ints
    sender: Ints


@dataclass(frozen=True, slots=True, eq=False)
class SweepResult:
    """When each member has ended [s], steps swept, and at most how wrong jumps in time made it [s]."""

    ends: Floats
    steps: int
    error_seconds: float


def sections(programs: MemberPrograms) -> list[LockstepSection] | None:
    """The programs as sections that all members go through together; None where they do not."""
    lengths = np.diff(programs.offsets)
    if not programs.members or (lengths != lengths[0]).any() or (programs.cycle != 1).any():
        return None
    counts = programs.count.reshape(programs.members, -1)
    if (counts != counts[0]).any() or _may_be_empty(programs):
        return None
    found = []
    everyone = np.arange(programs.members)
    for column, count in enumerate(counts[0].tolist()):
        run = programs.offsets[:-1] + column
        send, receive = programs.send[run], programs.receive[run]
        to = np.where(send >= 0, programs.receiver[send], everyone)
        sender = np.where(receive >= 0, programs.sender[receive], everyone)
        if (receive[to[send >= 0]] != send[send >= 0]).any() or (
            send[sender[receive >= 0]] != receive[receive >= 0]
        ).any():
            return None
        found.append(LockstepSection(count, run, send, to, sender))
    return found


def _may_be_empty(programs: MemberPrograms) -> bool:
    """Whether there may be transfers of no bytes that are left out."""
    if programs.empty.all():
        return False
    if programs.pieces is not None:
        return bool((programs.pieces.elements == 0).any())
    return bool((programs.sent_bytes[programs.send >= 0] == 0).any())


def sweep(
    programs: MemberPrograms, parts: list[LockstepSection], latency: Floats, rate: Floats, *, fold_time: bool = True
) -> SweepResult:
    """All members through all sections.

    Parameters
    ----------
    latency : of each flow [s]
    rate : at which each flow runs [B/s]
    fold_time : jump over what repeats
    """
    state = _Times(np.zeros(programs.members))
    for part in parts:
        used = part.send >= 0
        overhead = np.where(used, latency[part.send], 0.0)
        seconds_a_byte = np.where(used, 1.0 / rate[part.send], 0.0)
        if programs.pieces is not None:
            state.uneven(part, overhead, seconds_a_byte, select(programs.pieces, part.run))
        else:
            durations = overhead + programs.sent_bytes[part.run] * seconds_a_byte
            state.even(part, durations, fold_time=fold_time and bool(used.all()))
    return SweepResult(state.base + state.time, state.steps, state.error)


class _Times:
    """When each member reached its present step: `base` + `time`, so that `time` stays small."""

    def __init__(self, time: Floats) -> None:
        self.time = time
        self.base = 0.0
        self.steps = 0
        self.error = 0.0
        self._ends = np.empty_like(time)
        self._others = np.empty_like(time)

    def even(self, part: LockstepSection, durations: Floats, *, fold_time: bool) -> None:
        """All steps of a section in which every step is like the first."""
        component = None
        done, look = 0, 1
        while done < part.count:
            if not fold_time or done < look or part.count - done < 4:
                self._step(part, durations)
                done += 1
                continue
            look += min(look, WATCHED)
            self._rebase()
            before = self.time.copy()
            self._step(part, durations)
            done += 1
            if component is None:
                component = _components(part.to)
            done += self._jump(self.time - before, component, part.count - done)
        self._rebase()

    def uneven(self, part: LockstepSection, overhead: Floats, seconds_a_byte: Floats, pieces: PieceSizes) -> None:
        """All steps of a section in which sizes go from step to step."""
        for sizes in step_bytes(pieces, part.count):
            self._step(part, overhead + sizes * seconds_a_byte)
        self._rebase()

    def _step(self, part: LockstepSection, durations: Floats) -> None:
        ends, others = self._ends, self._others
        np.take(self.time, part.to, out=ends, mode="clip")
        np.maximum(ends, self.time, out=ends)
        ends += durations
        np.take(ends, part.sender, out=others, mode="clip")
        np.maximum(ends, others, out=self.time)
        self.steps += 1

    def _rebase(self) -> None:
        least = float(self.time.min())
        self.time -= least
        self.base += least

    def _jump(self, moved: Floats, component: Ints, left: int) -> int:
        """Steps jumped over: all that are left if each component moves on as one, else none."""
        pace = moved[component]
        deviation = float(np.abs(moved - pace).max())
        rounding = 4 * np.finfo(np.float64).eps * float(self.time.max())
        if deviation > STEADY * float(pace.max()) + rounding:
            return 0
        self.time += left * pace
        self.error += left * deviation
        return left


def _components(to: Ints) -> NDArray[np.int64]:
    """The least member of the cycle of a permutation on which each lies."""
    least, ahead = np.arange(len(to)), to
    for _ in range(len(to).bit_length()):
        least = np.minimum(least, least[ahead])
        ahead = ahead[ahead]
    return least
