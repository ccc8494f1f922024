"""Messages down chains and trees, step by step, as kernels over arrays (`waves.py` says what they are given)."""

from typing import NamedTuple

from quadrille.algorithms.analysis.labels import Ints
from quadrille.simulator.bounds.rate_bounds import TYPICAL
from quadrille.topologies.network import Floats

CALLED = ("tell", "pass_on")
"""Kernels that Python calls."""
assert TYPICAL == 1, "the kernels name the row"


class Wires(NamedTuple):
    """What a kernel must know of table and hops, see there, row after row; a wire is a hop of a group.

    `shape` is how many groups, kinds of buffers, pieces, wires, and costs of a row there are.
    """

    shape: Ints
    first: Ints
    hop: Ints
    piece: Ints
    pattern: Ints
    gets: Ints
    sender: Ints
    receiver: Ints
    buffer: Ints
    kind: Ints
    size: Floats
    latency: Floats
    moving: Floats
    alone: Floats
    added: Floats


def kind_of(wires: Wires, message: int, wire: int) -> int:
    """The kind of a message on a wire."""
    of_buffer = wires.pattern[message] * wires.shape[1] + wires.buffer[wire]
    return int(wires.kind[of_buffer * wires.shape[2] + wires.piece[message]])


def meet(wires: Wires, step: int, times: Floats, ends: Floats, row: int) -> None:
    """When the messages of a step end; -1 of those that there are not."""
    groups, begin = wires.shape[0], wires.first[step]
    for m in range(begin, wires.first[step + 1]):
        for g in range(groups):
            wire = wires.hop[m] * groups + g
            k = kind_of(wires, m, wire)
            cost = k * wires.shape[3] + wire
            a, b = times[row, wires.sender[wire]], times[row, wires.receiver[wire]]
            end = (a if a > b else b) + wires.latency[cost] + wires.moving[row * wires.shape[4] + cost]
            ends[m - begin, g] = end if wires.size[k] > 0.0 else -1.0


def move_on(wires: Wires, step: int, slow: Floats, times: Floats, ends: Floats, row: int) -> None:
    """Members of a step go on: senders when their message has ended, then receivers, who may add what they got."""
    groups, begin = wires.shape[0], wires.first[step]
    for m in range(begin, wires.first[step + 1]):
        for g in range(groups):
            if ends[m - begin, g] >= 0.0:
                times[row, wires.sender[wires.hop[m] * groups + g]] = ends[m - begin, g]
    for m in range(begin, wires.first[step + 1]):
        for g in range(groups):
            if ends[m - begin, g] >= 0.0:
                wire = wires.hop[m] * groups + g
                to, cost = wires.receiver[wire], kind_of(wires, m, wire) * wires.shape[3] + wire
                times[row, to] = max(times[row, to], ends[m - begin, g]) + wires.added[cost] * slow[row, to]


def tell(wires: Wires, told: Floats, carried: Floats) -> int:
    """What the time of members goes into, and what goes over wires; gives back how many messages there are.

    Parameters
    ----------
    told : latency, bandwidth, contention and compute of each member, added to [4, members of all groups]
    carried : bytes and seconds over each wire, added to [2, wires]
    """
    messages, groups = 0, wires.shape[0]
    for m in range(len(wires.hop)):
        for g in range(groups):
            wire = wires.hop[m] * groups + g
            k = kind_of(wires, m, wire)
            cost = k * wires.shape[3] + wire
            if wires.size[k] > 0.0:
                messages += 1
                carried[0, wire] += wires.size[k]
                carried[1, wire] += wires.moving[wires.shape[4] + cost]
                told[3, wires.receiver[wire]] += wires.added[cost]
                for who in range(1 + wires.gets[m]):
                    member = wires.receiver[wire] if who else wires.sender[wire]
                    told[0, member] += wires.latency[cost]
                    told[1, member] += wires.alone[cost]
                    told[2, member] += wires.moving[wires.shape[4] + cost] - wires.alone[cost]
    return messages


def pass_on(wires: Wires, slow: Floats, times: Floats, ends: Floats) -> None:
    """All steps of all groups.

    Parameters
    ----------
    slow : what additions take longer, by row [3, members of all groups]
    times : when each member begins, and then ends [3, members of all groups]
    ends : room for the messages of a step [most messages, groups]
    """
    for row in range(3):
        for step in range(len(wires.first) - 1):
            meet(wires, step, times, ends, row)
            move_on(wires, step, slow, times, ends, row)


KERNELS = (kind_of, meet, move_on, tell, pass_on)
