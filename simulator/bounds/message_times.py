"""End times of the members of a communication op: the steps of many groups at once, each message at a fixed rate.

A step of all groups is one pass over arrays, in the rows LOW, TYPICAL and HIGH:

    start = max(T_sender, T_receiver)      a transfer starts when both its ends are ready
    end   = start + latency + bytes / rate
    T'    = max(end of the send, end of the receive) + time to add what was received

Equal steps need not all be executed. T' = F(T), where F only takes maxima and
adds constants, so F(T + c) = F(T) + c and F is monotone. If in one step the
members of a group advance by at least a and at most b, they do so in every later
step: n steps later T + n a <= F^n(T) <= T + n b. Once a and b agree to `EQUAL_ADVANCES`,
all remaining steps are added at once, by a in the lowest row and by b in the
highest, so the bounds remain bounds. Every group does so by itself, in each row.

Groups that have the same costs and begin alike end alike. On a regular machine
hundreds of groups of an op differ in little (of 504 rings of 64 GPUs of Frontier,
10 have costs of their own), so only one of each kind is computed.
"""

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints, first_equal_rows
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL
from quadrille.simulator.bounds.group_step_costs import GroupSteps, StepArrays, StepCosts
from quadrille.simulator.engine.kernel_compiler import compile_kernels
from quadrille.topologies.network import Floats

SAME = 2.0**-43
"""Part of the latest time by which members' begins may differ and count as equal."""


def equivalent_groups(times: Floats, costs: Ints) -> Ints:
    """For each group the first group with the same costs whose members begin at the same distances [rows, groups].

    Parameters
    ----------
    times : when members begin [rows, members of all groups]
    costs : for each group the first group with the same costs [rows, groups]
    """
    rows, groups = costs.shape
    grouped = times.reshape(rows, groups, -1)
    unit = SAME * max(float(times.max()), np.finfo(float).tiny)
    offsets = np.rint((grouped - grouped[:, :, :1]) / unit).astype(np.int64)
    return np.stack([first_equal_rows([costs[row][:, None], offsets[row]]) for row in range(rows)])


EQUAL_ADVANCES = 1e-10
"""Relative difference up to which two advances count as equal."""

CHECK_EVERY = 8
"""Equal steps between two checks whether all members advance alike; steps 1, 2 and 4 are checked, too."""

SEARCH_FROM = 8
"""Equal steps from which on a search for equivalent groups pays."""

NEVER = -1.0
"""Value of `tolerance` with which all steps are executed."""


def end_times(steps: GroupSteps, times: Floats) -> tuple[Floats, int]:
    """The end time of each member of an instance [3, members of all groups], and the number of simulated messages.

    Parameters
    ----------
    times : start time of each member [s] [3, members of all groups]
    """
    times = np.ascontiguousarray(times + steps.before)
    messages = 0
    if steps.pipeline is not None:
        steps.pipeline.execute(steps.slow, times)
        messages = steps.pipeline.messages
    else:
        for at in range(len(steps.work.stages)):
            messages += _execute_stage(steps, at, times)
    return times + steps.after, messages


def _execute_stage(steps: GroupSteps, at: int, times: Floats) -> int:
    """Executes all steps of a stage: `times` become end times; returns the number of simulated messages."""
    stage = steps.work.stages[at]
    if steps.steps_equal(stage):
        may_jump = steps.work.even and not steps.work.flat
        return _execute_step(steps.step(at, 0), times, stage.times, EQUAL_ADVANCES if may_jump else NEVER)
    return sum(_execute_step(steps.step(at, k), times, 1, NEVER) for k in range(stage.times))


def _execute_step(step: StepCosts, times: Floats, count: int, tolerance: float) -> int:
    """Executes a step `count` times: `times` become end times; returns the number of simulated messages."""
    if not step.messages:
        return 0
    kernels = compile_kernels(KERNELS, CALLED) if step.compiled else {"take_steps": take_steps}
    members = times.shape[1] // step.groups
    first = (
        equivalent_groups(times, step.equivalents)
        if step.groups > 1 and count >= SEARCH_FROM
        else np.tile(np.arange(step.groups), (3, 1))
    )
    buffers = np.empty(step.messages), np.empty(members)
    return int(kernels["take_steps"](step.arrays, times, times[:, ::members].copy(), first, *buffers, count, tolerance))


def one_step(arrays: StepArrays, times: Floats, ends: Floats, row: int, group: int, groups: int) -> None:
    """One step of a group in one row; all messages of a hop use the times before the hop."""
    messages = len(arrays.sender)
    for hop in range(len(arrays.first) - 1):
        count = (arrays.first[hop + 1] - arrays.first[hop]) // groups
        begin = arrays.first[hop] + group * count
        for m in range(begin, begin + count):
            sender_time, receiver_time = times[row, arrays.sender[m]], times[row, arrays.receiver[m]]
            ends[m] = (
                (sender_time if sender_time > receiver_time else receiver_time)
                + arrays.latency[m]
                + arrays.moving[row * messages + m]
            )
        for m in range(begin, begin + count):
            times[row, arrays.sender[m]] = ends[m]
        for m in range(begin, begin + count):
            receiver = arrays.receiver[m]
            time = times[row, receiver]
            times[row, receiver] = (time if time > ends[m] else ends[m]) + arrays.added[row * messages + m]


def skip_steps(times: Floats, before: Floats, row: int, first: int, members: int, steps: int, tolerance: float) -> bool:
    """Adds all remaining steps at once if all members of a group advanced alike in a step; returns whether it did.

    Parameters
    ----------
    before : the members' times before the step
    first, members : index of the group's first member, and number of members
    steps : remaining steps
    tolerance : relative difference up to which two advances count as equal
    """
    least = most = times[row, first] - before[0]
    total = 0.0
    for i in range(members):
        advance = times[row, first + i] - before[i]
        least, most, total = min(least, advance), max(most, advance), total + advance
    if most - least > tolerance * most:
        return False
    by = least if row == LOW else most if row == HIGH else total / members
    for i in range(members):
        times[row, first + i] += steps * by
    return True


def copy_equivalent(times: Floats, begin: Floats, row: int, group: int, equivalent: int, members: int) -> None:
    """Sets the end times of a group from an equivalent group, shifted by the difference of their begins."""
    later = begin[row, group] - begin[row, equivalent]
    for i in range(members):
        times[row, group * members + i] = times[row, equivalent * members + i] + later


def take_steps(
    arrays: StepArrays,
    times: Floats,
    begin: Floats,
    equivalent: Ints,
    ends: Floats,
    before: Floats,
    count: int,
    tolerance: float,
) -> int:
    """Executes `count` equal steps of all groups; returns the number of messages simulated in the typical row.

    Groups do not interact, so each group takes all steps by itself, and its data stays in the nearest cache.

    Parameters
    ----------
    times : when each member begins, and then ends [3, members of all groups]
    begin : when the first member of each group begins [3, groups]
    equivalent : the first equivalent group of each group [3, groups]
    ends, before : buffers for the ends of messages [messages], and for the times of a group [members]
    tolerance : relative difference up to which two advances count as equal; below 0 all steps are executed
    """
    groups, simulated_messages = equivalent.shape[1], 0
    members = times.shape[1] // groups
    for row in range(3):
        for group in range(groups):
            if equivalent[row, group] != group:
                copy_equivalent(times, begin, row, group, equivalent[row, group], members)
                continue
            first, taken = group * members, 0
            while taken < count:
                checks = tolerance >= 0.0 and (taken & (taken + 1) == 0 or (taken + 1) % CHECK_EVERY == 0)
                for i in range(members if checks else 0):
                    before[i] = times[row, first + i]
                one_step(arrays, times, ends, row, group, groups)
                taken += 1
                simulated_messages += len(arrays.sender) // groups if row == TYPICAL else 0
                if (
                    checks
                    and count - taken > 1
                    and skip_steps(times, before, row, first, members, count - taken, tolerance)
                ):
                    taken = count
    return simulated_messages


KERNELS = (one_step, skip_steps, copy_equivalent, take_steps)

CALLED = ("take_steps",)

assert (LOW, TYPICAL, HIGH) == (0, 1, 2), "the kernel goes through the rows"
