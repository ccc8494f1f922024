"""`rank_class_tasks`: the tasks of one rank of each class of ranks whose tasks differ in their peers alone.

Candidates are ranks with one label (`simulated_ranks.py`) and devices of one speed.  A rank joins a class if its
communication ops are those of the class's first rank with each peer and each group replaced by another one.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.formats.message_graph import GraphTask, check_count
from quadrille.algorithms.schedule.ops import CollectiveKind, Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.ranks.op_tasks import SOURCE, OpTasks, WrittenOp
from quadrille.simulator.ranks.schedule_graph import GraphWriter
from quadrille.simulator.ranks.simulated_ranks import rank_labels
from quadrille.topologies.machines.machine import Machine

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks to which a rank of a class talks.

    Parameters
    ----------
    ranks : rank in place of each peer of the first rank of the class
    groups : group in place of each group of its whole collectives
    """

    ranks: dict[int, int]
    groups: dict[Group, Group]


@dataclass(frozen=True, slots=True)
class RankClass:
    """A class of ranks.

    Parameters
    ----------
    rank : the first rank
    tasks : tasks of the first rank
    members : peers of each rank of the class, by its number
    """

    rank: int
    tasks: Sequence[GraphTask]
    members: dict[int, Peers]


def rank_class_tasks(
    schedule: Schedule,
    machine: Machine,
    choices: Choices,
    placement: RankPlacement,
    threads: int | None = None,
    *,
    whole: Collection[CollectiveKind] = (),
) -> list[RankClass]:
    """The classes of ranks of a schedule on a machine, in the order of their first ranks.

    Parameters and errors are those of `message_graph`.
    """
    writer = GraphWriter(schedule, machine, choices, placement, threads, whole)
    labels = rank_labels(schedule, choices, placement)
    classes: dict[Hashable, list[tuple[RankClass, list[tuple[Op, Coordinates, WrittenOp]]]]] = {}
    count = 0
    for rank in range(schedule.grid.size):
        key = rank if labels is None else labels[rank], writer.op_tasks.device(rank)
        candidates = classes.setdefault(key, [])
        for candidate, ops in candidates:
            peers = _peers(writer.op_tasks, schedule, rank, ops)
            if peers is not None:
                candidate.members[rank] = peers
                break
        else:
            tasks = writer.tasks(rank)
            count += len(tasks)
            check_count(count, SOURCE)
            own = Peers(
                {task.peer: task.peer for task in tasks if task.peer >= 0},
                {task.group: task.group for task in tasks if task.group},
            )
            candidates.append((RankClass(rank, tasks, {rank: own}), writer.op_tasks.communications()))
    return sorted((entry for listed in classes.values() for entry, _ in listed), key=lambda entry: entry.rank)


def _peers(
    op_tasks: OpTasks, schedule: Schedule, rank: int, ops: Iterable[tuple[Op, Coordinates, WrittenOp]]
) -> Peers | None:
    """The peers of a rank in the communication ops of a class; None if the rank is of another class."""
    peers = Peers({}, {})
    op_tasks.begin(rank)
    along = schedule.coordinates(rank).along
    for op, coordinates, first in ops:
        own = op_tasks.of(op, replace(coordinates, along=along))
        if own.ends != first.ends or len(own.tasks) != len(first.tasks):
            return None
        if not all(_match(peers, *pair) for pair in zip(first.tasks, own.tasks, strict=True)):
            return None
    return peers


def _match(peers: Peers, first: GraphTask, own: GraphTask) -> bool:
    """Whether two tasks differ in their peers alone, which are noted."""
    if first._replace(peer=own.peer, group=own.group) != own:
        return False
    groups = peers.groups.setdefault(first.group, own.group) == own.group if first.group else not own.group
    return groups and (own.peer == -1 if first.peer < 0 else peers.ranks.setdefault(first.peer, own.peer) == own.peer)
