"""Sweep of a collective without contention: the step times of all members at once, as a max-plus recurrence.

If every flow has its own best rate whatever the others do, a step of a member
takes a time d that is known beforehand, and when each member reaches step s + 1
follows from when all reached step s:

    start = max(T_i, T_to(i))           a transfer starts when both its ends are ready
    end   = start + d_i
    T'_i  = max(end_i, end_from(i))     a member advances when it has sent and received

This is what an event queue would compute, without the queue: one pass over arrays
for each step.

Skipping of steps
-----------------
T' = F(T), where F only takes maxima and adds constants. So F(T + c) = F(T) + c, and
F brings no two times further apart than they were. If in a step the members of a
component (a cycle of `to`) all advance by the same c, they do so again in every later
step of the section; deviations from c up to e are at most e in each further step, so
skipping n steps has an error of at most n e, which is summed up. Longer periods do
not exist: T'_i is at least T_i + d_i, so a cycle of the greatest mean weight, to whose
pace all times of a component settle, always goes from one member to itself (F.
Baccelli et al., "Synchronization and Linearity", Wiley, 1992, chapter 3).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quadrille.simulator.collectives.piece_sizes import PieceSizes, select, step_bytes
from quadrille.simulator.collectives.programs import Floats, Ints, MemberPrograms

STEADY = 1e-13
"""Part of a step by which the steps of two members may differ and count as equal."""
WATCHED = 32
"""Steps between two checks whether all members advance alike; steps 1, 2, 4, … are checked, too."""


@dataclass(frozen=True, slots=True, eq=False)
class LockstepSection:
    """A run of all members together: each sends on one flow and receives on one, `count` times.

    Parameters
    ----------
    count : number of steps
    run : run of each member [members]
    send : flow of each member, -1 if it sends nothing [members]
    to, sender : members at the other ends; the member itself if there is none [members]
    """

    count: int
    run: Ints
    send: Ints
    to: Ints
    sender: Ints


@dataclass(frozen=True, slots=True, eq=False)
class SweepResult:
    """The end of each member [s], the number of computed steps, and the error bound of skipped steps [s]."""

    ends: Floats
    steps: int
    error_seconds: float


def sections(programs: MemberPrograms) -> list[LockstepSection] | None:
    """The programs as sections that all members go through together; None if they do not."""
    lengths = np.diff(programs.offsets)
    if not programs.members or (lengths != lengths[0]).any() or (programs.cycle != 1).any():
        return None
    counts = programs.count.reshape(programs.members, -1)
    if (counts != counts[0]).any() or _may_be_empty(programs):
        return None
    common = []
    all_members = np.arange(programs.members)
    for column, count in enumerate(counts[0].tolist()):
        run = programs.offsets[:-1] + column
        send, receive = programs.send[run], programs.receive[run]
        to = np.where(send >= 0, programs.receiver[send], all_members)
        sender = np.where(receive >= 0, programs.sender[receive], all_members)
        if (receive[to[send >= 0]] != send[send >= 0]).any() or (
            send[sender[receive >= 0]] != receive[receive >= 0]
        ).any():
            return None
        common.append(LockstepSection(count, run, send, to, sender))
    return common


def _may_be_empty(programs: MemberPrograms) -> bool:
    """Whether there may be transfers of no bytes that are left out."""
    if programs.empty.all():
        return False
    if programs.pieces is not None:
        return bool((programs.pieces.elements == 0).any())
    return bool((programs.sent_bytes[programs.send >= 0] == 0).any())


def sweep(
    programs: MemberPrograms,
    common_sections: list[LockstepSection],
    latency: Floats,
    rate: Floats,
    *,
    fold_time: bool = True,
) -> SweepResult:
    """Sweeps all members through all sections.

    Parameters
    ----------
    latency : latency of each flow [s]
    rate : rate of each flow [B/s]
    fold_time : skip steps that repeat
    """
    state = _Times(np.zeros(programs.members))
    for section in common_sections:
        used = section.send >= 0
        overhead = np.where(used, latency[section.send], 0.0)
        seconds_a_byte = np.where(used, 1.0 / rate[section.send], 0.0)
        if programs.pieces is not None:
            state.uneven(section, overhead, seconds_a_byte, select(programs.pieces, section.run))
        else:
            durations = overhead + programs.sent_bytes[section.run] * seconds_a_byte
            state.even(section, durations, fold_time=fold_time and bool(used.all()))
    return SweepResult(state.base + state.time, state.steps, state.error)


class _Times:
    """The time at which each member reached its present step: `base` + `time`, so that `time` stays small."""

    def __init__(self, time: Floats) -> None:
        self.time = time
        self.base = 0.0
        self.steps = 0
        self.error = 0.0
        self._ends = np.empty_like(time)
        self._others = np.empty_like(time)

    def even(self, section: LockstepSection, durations: Floats, *, fold_time: bool) -> None:
        """All steps of a section in which every step is like the first."""
        component = None
        done, look = 0, 1
        while done < section.count:
            if not fold_time or done < look or section.count - done < 4:
                self._step(section, durations)
                done += 1
                continue
            look += min(look, WATCHED)
            self._rebase()
            before = self.time.copy()
            self._step(section, durations)
            done += 1
            if component is None:
                component = _components(section.to)
            done += self._jump(self.time - before, component, section.count - done)
        self._rebase()

    def uneven(self, section: LockstepSection, overhead: Floats, seconds_a_byte: Floats, pieces: PieceSizes) -> None:
        """All steps of a section in which sizes differ from step to step."""
        for sizes in step_bytes(pieces, section.count):
            self._step(section, overhead + sizes * seconds_a_byte)
        self._rebase()

    def _step(self, section: LockstepSection, durations: Floats) -> None:
        """One step of all members."""
        ends, ends_of_peers = self._ends, self._others
        np.take(self.time, section.to, out=ends, mode="clip")
        np.maximum(ends, self.time, out=ends)
        ends += durations
        np.take(ends, section.sender, out=ends_of_peers, mode="clip")
        np.maximum(ends, ends_of_peers, out=self.time)
        self.steps += 1

    def _rebase(self) -> None:
        """Moves the common part of all times to `base`."""
        least = float(self.time.min())
        self.time -= least
        self.base += least

    def _jump(self, advance: Floats, component: Ints, left: int) -> int:
        """Skips the remaining steps if each component advances as one; returns the number of steps skipped."""
        pace = advance[component]
        deviation = float(np.abs(advance - pace).max())
        rounding = 4 * np.finfo(np.float64).eps * float(self.time.max())
        if deviation > STEADY * float(pace.max()) + rounding:
            return 0
        self.time += left * pace
        self.error += left * deviation
        return left


def _components(to: Ints) -> NDArray[np.int64]:
    """The least member of the cycle of a permutation that each member lies on."""
    least, ahead = np.arange(len(to)), to
    for _ in range(len(to).bit_length()):
        least = np.minimum(least, least[ahead])
        ahead = ahead[ahead]
    return least
