"""Groups that do the same: the same costs, and members that begin as far apart from each other.

On a regular machine hundreds of groups of an op differ in little: of 504 rings of 64 GPUs
of Frontier, 10 have costs of their own.  Of groups that cost the same and begin alike one is
walked, and the others end as much later or earlier as they begin.  Groups are found by
hashes, and compared before they count as one.
"""

import numpy as np

from quadrille.algorithms.analysis.labels import Ints, first_alike
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL
from quadrille.simulator.bounds.group_steps import GroupSteps, PricedStep, StepArrays
from quadrille.simulator.engine.compiled import compiled
from quadrille.topologies.network import Floats

SAME = 2.0**-43
"""Part of the latest time by which members may begin apart and count as alike."""


def equivalent_groups(times: Floats, costs: Ints) -> Ints:
    """For each group the first that costs the same and whose members begin alike [rows, groups].

    Parameters
    ----------
    times : when members begin [rows, members of all groups]
    costs : for each group the first that costs the same [rows, groups]
    """
    rows, groups = costs.shape
    grouped = times.reshape(rows, groups, -1)
    unit = SAME * max(float(times.max()), np.finfo(float).tiny)
    apart = np.rint((grouped - grouped[:, :, :1]) / unit).astype(np.int64)
    return np.stack([first_alike([costs[row][:, None], apart[row]]) for row in range(rows)])


STEADY = 1e-10
"""Relative difference of steps that are taken for alike."""

LOOKS = 8
"""Equal steps between two looks whether all are alike; steps 1, 2, 4 are looked at, too."""

WORTH = 8
"""Equal steps from which on it is worth looking which groups do the same."""

NEVER = -1.0
"""All steps are taken."""


def passed(prepared: GroupSteps, times: Floats) -> tuple[Floats, int]:
    """When the members of an instance end, and how many messages were looked at.

    Parameters
    ----------
    times : when each member begins [3, members of all groups]
    """
    times = np.ascontiguousarray(times + prepared.before)
    messages = 0
    if prepared.waves is not None:
        prepared.waves.pass_on(prepared.slow, times)
        messages = prepared.waves.messages
    else:
        for at in range(len(prepared.part.stages)):
            messages += _go(prepared, at, times)
    return times + prepared.after, messages


def _go(prepared: GroupSteps, at: int, times: Floats) -> int:
    """All steps of a stage: `times` become when members end; gives back how many messages were looked at."""
    stage = prepared.part.stages[at]
    if prepared.alike(stage):
        steadily = prepared.part.even and not prepared.part.flat
        return _take(prepared.step(at, 0), times, stage.times, STEADY if steadily else NEVER)
    return sum(_take(prepared.step(at, k), times, 1, NEVER) for k in range(stage.times))


def _take(step: PricedStep, times: Floats, count: int, steady: float) -> int:
    """Takes a step so many times: `times` become when members end."""
    if not step.messages:
        return 0
    kernels = compiled(KERNELS, CALLED) if step.compiled else {"take": take}
    members = times.shape[1] // step.groups
    first = (
        equivalent_groups(times, step.alike)
        if step.groups > 1 and count >= WORTH
        else np.tile(np.arange(step.groups), (3, 1))
    )
    room = np.empty(step.messages), np.empty(members)
    return int(kernels["take"](step.wires, times, times[:, ::members].copy(), first, *room, count, steady))


def one_step(wires: StepArrays, times: Floats, ends: Floats, row: int, group: int, groups: int) -> None:
    """One step of a group in one row; all messages of a hop look at the times before it."""
    messages = len(wires.sender)
    for hop in range(len(wires.first) - 1):
        each = (wires.first[hop + 1] - wires.first[hop]) // groups
        begin = wires.first[hop] + group * each
        for m in range(begin, begin + each):
            a, b = times[row, wires.sender[m]], times[row, wires.receiver[m]]
            ends[m] = (a if a > b else b) + wires.latency[m] + wires.moving[row * messages + m]
        for m in range(begin, begin + each):
            times[row, wires.sender[m]] = ends[m]
        for m in range(begin, begin + each):
            to = wires.receiver[m]
            own = times[row, to]
            times[row, to] = (own if own > ends[m] else ends[m]) + wires.added[row * messages + m]


def jump(times: Floats, before: Floats, row: int, first: int, members: int, steps: int, steady: float) -> bool:
    """Whether all members of a group moved on alike in a step; then they take so many more at once.

    Parameters
    ----------
    before : the members' times before the step
    first, members : where the group's members begin, and how many they are
    steady : relative difference of steps that are taken for alike
    """
    least = most = times[row, first] - before[0]
    total = 0.0
    for i in range(members):
        moved = times[row, first + i] - before[i]
        least, most, total = min(least, moved), max(most, moved), total + moved
    if most - least > steady * most:
        return False
    by = least if row == LOW else most if row == HIGH else total / members
    for i in range(members):
        times[row, first + i] += steps * by
    return True


def follow(times: Floats, begin: Floats, row: int, group: int, twin: int, members: int) -> None:
    """The members of a group end as those of its twin do, as much later or earlier as they began."""
    later = begin[row, group] - begin[row, twin]
    for i in range(members):
        times[row, group * members + i] = times[row, twin * members + i] + later


def take(
    wires: StepArrays,
    times: Floats,
    begin: Floats,
    twin: Ints,
    ends: Floats,
    before: Floats,
    count: int,
    steady: float,
) -> int:
    """So many equal steps of all groups; gives back how many messages were looked at, in the typical row.

    Groups do not meet, so each takes all steps by itself: what it needs then stays in the processor's nearest cache.
    The messages and the members of a group stand one after the other.

    Parameters
    ----------
    times : when each member begins, and then ends [3, members of all groups]
    begin : when the first member of each group begins [3, groups]
    twin : the first group that does the same [3, groups]
    ends, before : room for when messages end [messages], and for the times of a group [members]
    steady : relative difference of steps that are taken for alike; below 0 all steps are taken
    """
    groups, looked_at = twin.shape[1], 0
    members = times.shape[1] // groups
    for row in range(3):
        for group in range(groups):
            if twin[row, group] != group:
                follow(times, begin, row, group, twin[row, group], members)
                continue
            first, taken = group * members, 0
            while taken < count:
                looks = steady >= 0.0 and (taken & (taken + 1) == 0 or (taken + 1) % LOOKS == 0)
                for i in range(members if looks else 0):
                    before[i] = times[row, first + i]
                one_step(wires, times, ends, row, group, groups)
                taken += 1
                looked_at += len(wires.sender) // groups if row == TYPICAL else 0
                if looks and count - taken > 1 and jump(times, before, row, first, members, count - taken, steady):
                    taken = count
    return looked_at


KERNELS = (one_step, jump, follow, take)

CALLED = ("take",)

assert (LOW, TYPICAL, HIGH) == (0, 1, 2), "the kernel goes through the rows"
