"""Which schedules can be walked at the granularity of collectives, and which ranks follow a program of their own.

This is asked of every simulation that may take long, so it brings nothing of what walks.
"""

from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.schedule.expressions import variables
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.ops import Receive, Send
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.simulator.machine.library_collectives import LibraryTimes
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.symmetry.signatures import loop_count_axes


def program_axes(schedule: Schedule) -> set[Axis]:
    """Axes by whose coordinate ranks follow programs of their own."""
    found: set[Axis] = {role.axis for role in schedule.roles if role.axis is not None}
    return found.union(*(loop_count_axes(role.program) for role in schedule.roles))


def unsupported_reason(schedule: Schedule, placement: RankPlacement, choices: Choices) -> str:
    """Why a schedule cannot be walked so on a machine, in words; empty where it can."""
    if placement.hosts_share_cores or len(placement.bursts):
        return f"{placement.machine.name} is a laboratory, whose hosts share cores and whose links have token buckets"
    apart, library = program_axes(schedule), LibraryTimes(placement.machine, schedule.grid, placement)
    for op in all_ops(schedule):
        if choices.by_library(op) and library.are_known(op):
            return f"op {op.name!r} takes what the MPI library was measured to take, which is no sum of its messages"
        if isinstance(op, Send | Receive):
            peer = op.to if isinstance(op, Send) else op.sender
            counting = {op.axis, *(axis for axis in AXES if axis in variables(peer))} - apart
            if counting:
                axis = min(counting)
                return f"op {op.name!r} goes to one rank or another by the coordinate of {axis}, which no role tells"
    return ""
