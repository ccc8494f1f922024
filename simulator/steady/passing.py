"""Messages of many groups at once, each at a rate of its own: when every member has ended.

A step of all groups is one pass over arrays, in three rows: with every transfer as
fast as it can be, as it typically is, and as slow as it can be.

    start = max(T_sender, T_receiver)      a transfer starts when both its ends are there
    end   = start + latency + bytes / rate
    T'    = max(end of what I send, end of what I get) + what I add

Equal steps need not all be taken.  T' = F(T), where F only takes maxima and adds
constants, so F(T + c) = F(T) + c and F is monotone.  If in one step the members of a
group move on by at least a and at most b, they do so in every further one: after n
more, T + n a <= F^n(T) <= T + n b.  Once a and b are alike to `STEADY`, the rest
is said at once, the lowest row by a and the highest by b: the bounds stay bounds.
"""

import numpy as np

from simulator.sharing.compiled import compiled
from simulator.steady.prepared import Prepared, Step, Wires
from simulator.steady.rates import HIGH, LOW, TYPICAL
from simulator.steady.story import ROWS
from topologies.network import Floats

STEADY = 1e-10
"""Relative difference of steps that are taken for alike."""
LOOKS = 8
"""Equal steps between two looks whether all are alike; the first 1, 2, 4 are looked at, too."""


def passed(prepared: Prepared, times: Floats) -> tuple[Floats, int]:
    """When the members of an instance end, and how many messages were looked at.

    Parameters
    ----------
    times : when each member begins [3, members of all groups]
    """
    times = np.ascontiguousarray(times + prepared.before * prepared.slow)
    messages = 0
    if prepared.waves is not None:
        prepared.waves.pass_on(prepared.slow, times)
        messages = prepared.waves.messages
    else:
        for at in range(len(prepared.part.stages)):
            times, looked_at = _go(prepared, at, times)
            messages += looked_at
    return times + prepared.after * prepared.slow, messages


def _go(prepared: Prepared, at: int, times: Floats) -> tuple[Floats, int]:
    """All steps of a stage."""
    stage, messages = prepared.part.stages[at], 0
    alike, jumps = prepared.alike(stage), prepared.part.even
    k = 0
    while k < stage.times:
        step = prepared.step(at, k)
        count = min(stage.times, _next_look(k) if jumps else stage.times) - k if alike else 1
        _take(step, times, count - 1)
        before = times.copy() if jumps else times
        _take(step, times, 1)
        k, messages = k + count, messages + count * step.messages
        left = stage.times - k
        if jumps and left > 1 and _steady(prepared, times - before):
            return _jumped(prepared, times, times - before, left), messages
    return times, messages


def _next_look(k: int) -> int:
    """The next number of steps after which it is looked whether all are alike: 1, 2, 4, 8, 16, 24, …

    >>> [_next_look(k) for k in (0, 1, 2, 4, 8, 16)]
    [1, 2, 4, 8, 16, 24]
    """
    return k + LOOKS - k % LOOKS if k >= LOOKS else 1 << k.bit_length()


def _steady(prepared: Prepared, moved: Floats) -> bool:
    grouped = moved.reshape(ROWS, *prepared.part.ranks.shape)
    least, most = grouped.min(axis=2), grouped.max(axis=2)
    return bool((most - least <= STEADY * most).all())


def _jumped(prepared: Prepared, times: Floats, moved: Floats, steps: int) -> Floats:
    grouped = moved.reshape(ROWS, *prepared.part.ranks.shape)
    by = np.stack([grouped[LOW].min(axis=1), grouped[TYPICAL].mean(axis=1), grouped[HIGH].max(axis=1)])
    found: Floats = times + steps * np.repeat(by, prepared.part.ranks.shape[1], axis=1)
    return found


def _take(step: Step, times: Floats, count: int) -> None:
    """Takes a step so many times: `times` become when members end."""
    if count and step.messages:
        kernel = compiled(KERNELS)["take"] if step.compiled else take
        kernel(step.wires, times, np.empty(step.messages), count)


def take(wires: Wires, times: Floats, ends: Floats, count: int) -> None:
    """So many equal steps of all groups; all messages of a hop look at the times before it.

    Parameters
    ----------
    times : when each member begins, and then ends [3, members of all groups]
    ends : room for when messages end [messages]
    """
    messages = len(wires.sender)
    for row in range(3):
        for _ in range(count):
            for hop in range(len(wires.first) - 1):
                begin, stop = wires.first[hop], wires.first[hop + 1]
                for m in range(begin, stop):
                    a, b = times[row, wires.sender[m]], times[row, wires.receiver[m]]
                    ends[m] = (a if a > b else b) + wires.latency[m] + wires.moving[row * messages + m]
                for m in range(begin, stop):
                    times[row, wires.sender[m]] = ends[m]
                for m in range(begin, stop):
                    to = wires.receiver[m]
                    own = times[row, to]
                    times[row, to] = (own if own > ends[m] else ends[m]) + wires.added[row * messages + m]


KERNELS = (take,)
assert (LOW, TYPICAL, HIGH) == (0, 1, 2), "the kernel goes through the rows"
