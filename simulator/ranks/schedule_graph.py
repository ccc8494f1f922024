"""`message_graph`: a schedule on a machine as a message graph, whose ranks do what the simulator's would do.

The tasks are read from the programs that the simulator would run (`op_programs.py`): one calculation for each local op,
copy, addition and overhead, and one send and one receive for each step of a collective.  Every rank and every iteration
is written out.  Messages are rendezvous, and no op slows another.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph, check_count
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.program import DrivenPasses, walk_around_passes
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.ranks.lane_simulation import simulated_lane
from quadrille.simulator.ranks.op_tasks import SOURCE, OpTasks
from quadrille.topologies.machines.machine import Machine


def message_graph(
    schedule: Schedule,
    machine: Machine,
    choices: Choices,
    placement: RankPlacement,
    threads: int | None = None,
    *,
    whole: Collection[CollectiveKind] = (),
) -> MessageGraph:
    """The tasks of all ranks of a schedule on a machine.

    Parameters
    ----------
    machine : machine without eager messages
    choices : which implementation runs each collective; collectives of NCCL are written as rings
    placement : GPU or host of each rank
    threads : BLAS threads of each rank, by default its share of the host's cores
    whole : kinds of collectives that stay one task, without the additions within them

    Raises
    ------
    InputError : a pipeline whose order messages decide, or too many tasks
    """
    writer = GraphWriter(schedule, machine, choices, placement, threads, whole)
    ranks, count = [], 0
    for rank in range(schedule.grid.size):
        ranks.append(writer.tasks(rank))
        count += len(ranks[-1])
        check_count(count, SOURCE)
    return MessageGraph(tuple(ranks))


class GraphWriter:
    """Walks the program of each rank, and writes the tasks of its ops with what each op waits for.

    Parameters are those of `message_graph`.
    """

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        choices: Choices,
        placement: RankPlacement,
        threads: int | None,
        whole: Collection[CollectiveKind],
    ) -> None:
        self._schedule, self._machine = schedule, machine
        self.op_tasks = OpTasks(schedule, machine, choices, placement, threads, whole)

    def tasks(self, rank: int) -> list[GraphTask]:
        """The tasks of a rank."""
        tasks: list[GraphTask] = []
        start = self._schedule.coordinates(rank)
        dependencies: Dependencies[list[OpEnd]] = Dependencies(self._schedule)
        last: dict[str, list[OpEnd]] = {}
        self.op_tasks.begin(rank)
        for op, coordinates in walk_around_passes(self._schedule.program(start), start):
            if isinstance(op, DrivenPasses):
                raise InputError(
                    "pipeline-schedule message-driven: messages decide the order of its passes, which a graph lacks; "
                    "accepted are the other schedules"
                )
            ends: list[OpEnd] = []
            lane = simulated_lane(op, self._machine)
            awaited, clock = latest([*last.get(lane, ()), *chain(*dependencies.enter(op, coordinates, ends))])
            written = self.op_tasks.of(op, coordinates)
            if written.tasks:
                ends.append(OpEnd(lane, len(tasks), tuple(len(tasks) + end for end in written.ends), clock))
                tasks += written.after(tuple(sorted(chain(*(end.tasks for end in awaited)))), len(tasks))
            else:
                ends += awaited
            last[lane] = ends
            check_count(len(tasks), SOURCE)
        return tasks


class OpEnd(NamedTuple):
    """The end of an op of a rank.

    Parameters
    ----------
    number : position of the op among those of its lane; later ops have larger numbers
    tasks : tasks with which the op ends
    clock : by lane, number of the latest op that has ended once this op starts
    """

    lane: str
    number: int
    tasks: tuple[int, ...]
    clock: Mapping[str, int]


def latest(ends: Iterable[OpEnd]) -> tuple[list[OpEnd], dict[str, int]]:
    """The ends without those that another of them implies, and the clock of an op that waits for all of them.

    >>> first = OpEnd("compute", 0, (0,), {})
    >>> second = OpEnd("x", 1, (1, 2), {"compute": 0})
    >>> latest([first, second, first])[0] == [second]
    True
    """
    distinct = {(end.lane, end.number): end for end in ends}
    before: dict[str, int] = {}
    for end in distinct.values():
        for lane, number in end.clock.items():
            before[lane] = max(number, before.get(lane, -1))
    awaited = [end for end in distinct.values() if before.get(end.lane, -1) < end.number]
    return awaited, before | {end.lane: end.number for end in awaited}
