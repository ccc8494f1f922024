"""Whether the bounds walk can simulate a schedule on a machine, and the axes along which ranks run different programs.

The *bounds walk* computes a lower bound, an estimate and an upper bound of the makespan, collective by collective.
Every long simulation calls this check, so the module imports nothing of the walk.
"""

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.expressions import variables
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.ops import AllToAll, Receive, Send, is_host_op
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.simulator.machine.library_collectives import LibraryTimes
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.symmetry.signatures import loop_count_axes


def program_axes(schedule: Schedule) -> set[Axis]:
    """Axes whose coordinate decides which program a rank follows."""
    axes: set[Axis] = {role.axis for role in schedule.roles if role.axis is not None}
    return axes.union(*(loop_count_axes(role.program) for role in schedule.roles))


def unsupported_reason(schedule: Schedule, placement: RankPlacement, choices: Choices) -> str:
    """The reason, in words, why the bounds walk cannot simulate the schedule on the machine; empty if it can."""
    if placement.hosts_share_cores or len(placement.bursts):
        return f"{placement.machine.name} is a laboratory, whose hosts share cores and whose links have token buckets"
    if schedule.driven:
        return "messages decide the order of passes, and the bounds walk knows one order"
    distinguished, library = program_axes(schedule), LibraryTimes(placement.machine, schedule.grid, placement)
    for op in all_ops(schedule):
        if choices.by_library(op) and library.are_known(op):
            return f"op {op.name!r} takes what the MPI library was measured to take, which is no sum of its messages"
        if is_host_op(op) and placement.machine.host_link is None:
            return f"op {op.name!r} is work of the host, which the bounds walk would run beside the computation"
        if isinstance(op, AllToAll) and _posts_at_once(op, choices):
            return f"op {op.name!r} posts all its messages at once, and the bounds walk goes from step to step"
        if isinstance(op, Send | Receive):
            peer = op.to if isinstance(op, Send) else op.sender
            deciding = {op.axis, *(axis for axis in AXES if axis in variables(peer))} - distinguished
            if deciding:
                axis = min(deciding)
                return f"op {op.name!r} goes to one rank or another by the coordinate of {axis}, which no role tells"
    return ""


def _posts_at_once(op: AllToAll, choices: Choices) -> bool:
    """Whether each rank posts all messages of an all-to-all together; NCCL's time is that of the whole group."""
    choice = choices.of(op.name)
    return choice.implementation != "nccl" and choice.algorithm("all_to_all") == "direct"
