"""`simulate_graph`: the time of a message graph on a machine.

A task starts once its needs have ended.  A message starts when both its send and its receive have started
(rendezvous), takes the latency of its route and its share of the links, and ends at both ranks at once.  Calculations
of a stream of a rank run one after the other, in the order in which they can start.  Computing and communication do
not slow each other.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import simpy

from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph
from quadrille.algorithms.formats.record import LinkLoad
from quadrille.algorithms.schedule.grid import Grid
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.topologies.machines.machine import Machine

PATTERN = "one_way"
"""Pattern of a message, for machines whose messages were measured by pattern."""
BLOCKED_NAMED = 4
"""Tasks that the message of a deadlock names."""
LINKS_LISTED = 20


@dataclass(frozen=True, slots=True)
class GraphTimes:
    """The times of a message graph.

    Parameters
    ----------
    finish : end of each rank [s]
    calculating : seconds of the calculations of each rank, those of stream 0 [s]
    every_link : loads of all used links, the most used first
    """

    finish: tuple[float, ...]
    calculating: tuple[float, ...]
    every_link: tuple[LinkLoad, ...]

    @property
    def links(self) -> tuple[LinkLoad, ...]:
        """Loads of the most used links."""
        return self.every_link[:LINKS_LISTED]

    @property
    def makespan(self) -> float:
        """End of the last rank [s]."""
        return max(self.finish, default=0.0)


def simulate_graph(
    graph: MessageGraph, machine: Machine, placement: str = "packed", *, latency_weights: bool = False
) -> GraphTimes:
    """Simulates a message graph on a machine.

    Parameters
    ----------
    placement : rule of the rank placement
    latency_weights : whether messages share links in proportion to 1 / latency, as in SimGrid's model CM02, and not
        equally

    Raises
    ------
    InputError : more ranks than GPUs, a network that faults have cut in two
    Deadlock : tasks that wait for each other
    """
    return _GraphSimulation(graph, machine, placement, latency_weights=latency_weights).run()


class _GraphSimulation:
    """The tasks of all ranks on the clock of a flow engine."""

    def __init__(self, graph: MessageGraph, machine: Machine, placement: str, *, latency_weights: bool) -> None:
        self._latency_weights = latency_weights
        size = len(graph.ranks)
        self._graph, self._env = graph, simpy.Environment()
        self._engine = FlowEngine(self._env, long=sum(map(len, graph.ranks)) > 1 << 12)
        placed = place_ranks(machine, size, placement, Grid(x=size))
        self._demands = ResourceDemands(machine, size, self._engine, placement=placed)
        self._missing = [[len(task.needs) + len(task.starts) for task in tasks] for tasks in graph.ranks]
        self._followers = [_followers(tasks, "needs") for tasks in graph.ranks]
        self._start_followers = [_followers(tasks, "starts") for tasks in graph.ranks]
        self._sends: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self._receives: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self._queues: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._busy: set[tuple[int, int]] = set()
        self._programs: dict[Hashable, list[int]] = defaultdict(list)  # free ones
        self._streams: list[int] = []  # free ones
        self._left = sum(map(len, graph.ranks))
        self._finish = [0.0] * size
        self._done = self._env.event()

    def run(self) -> GraphTimes:
        """Simulates all tasks."""
        for rank, missing in enumerate(self._missing):
            for number in [number for number, count in enumerate(missing) if not count]:
                self._start(rank, number)
        if self._left:
            try:
                self._env.run(until=self._done)
            except RuntimeError:
                if self._done.triggered:
                    raise
                raise Deadlock(self._deadlock_text()) from None
        calculating = tuple(
            float(np.sum([task.amount for task in tasks if task.kind == "calculate" and not task.stream]))
            for tasks in self._graph.ranks
        )
        return GraphTimes(tuple(self._finish), calculating, self._links())

    def _start(self, rank: int, number: int) -> None:
        """Starts a task, or queues it behind the calculations of its stream."""
        task = self._graph.ranks[rank][number]
        if task.kind != "calculate":
            self._post(rank, number, task)
            return
        lane = rank, task.stream
        self._queues[lane].append(number)
        if lane not in self._busy:
            self._calculate_next(lane)

    def _calculate_next(self, lane: tuple[int, int]) -> None:
        rank, _ = lane
        if not self._queues[lane]:
            self._busy.discard(lane)
            return
        self._busy.add(lane)
        number = self._queues[lane].popleft()
        seconds = self._graph.ranks[rank][number].amount

        def end() -> None:
            self._end(rank, number)
            self._calculate_next(lane)

        self._begun(rank, number)
        self._run_flow((lane, seconds), lambda: self._engine.add_flow(0.0, {}, cap=1.0, latency=seconds), end)

    def _post(self, rank: int, number: int, task: GraphTask) -> None:
        """Posts a send or a receive; the message starts if the other end has posted its own."""
        is_send = task.kind == "send"
        sender, receiver = (rank, task.peer) if is_send else (task.peer, rank)
        key = sender, receiver, task.tag
        own, awaited = (self._sends, self._receives) if is_send else (self._receives, self._sends)
        self._begun(rank, number)
        if not awaited[key]:
            own[key].append(number)
            return
        partner = awaited[key].popleft()
        send, receive = (number, partner) if is_send else (partner, number)
        size = self._graph.ranks[sender][send].amount

        def end() -> None:
            self._end(sender, send)
            self._end(receiver, receive)

        self._run_flow((key, size), partial(self._message, sender, receiver, size), end)

    def _message(self, sender: int, receiver: int, size: float) -> int:
        demand = self._demands.transfer(sender, receiver, size, PATTERN)
        return self._engine.add_flow(
            demand.work,
            demand.demands,
            weight=1 / demand.latency if self._latency_weights and demand.latency else demand.weight,
            cap=demand.cap,
            latency=demand.latency,
            alone=demand.alone,
            extrapolated=demand.extrapolated,
        )

    def _run_flow(self, key: Hashable, add_flow: Callable[[], int], then: Callable[[], None]) -> None:
        """Runs a flow on a free stream; a flow that has ended serves equal tasks again."""
        free = self._programs[key]
        program = free.pop() if free else self._engine.add_program([ProgramStage(local=add_flow())])
        stream = self._streams.pop() if self._streams else self._engine.add_stream()

        def end() -> None:
            free.append(program)
            self._streams.append(stream)
            then()

        self._engine.begin(stream, program, end)

    def _begun(self, rank: int, number: int) -> None:
        """Tasks that wait for the start of a task go on."""
        for follower in self._start_followers[rank].get(number, ()):
            self._release(rank, follower)

    def _end(self, rank: int, number: int) -> None:
        """Tasks that wait for the end of a task go on."""
        self._finish[rank] = max(self._finish[rank], float(self._env.now))
        self._left -= 1
        for follower in self._followers[rank].get(number, ()):
            self._release(rank, follower)
        if not self._left:
            self._done.succeed()

    def _release(self, rank: int, number: int) -> None:
        missing = self._missing[rank]
        missing[number] -= 1
        if not missing[number]:
            self._start(rank, number)

    def _links(self) -> tuple[LinkLoad, ...]:
        """The used links, the most used first."""
        engine, end = self._engine, max(self._finish, default=0.0)
        loads = [
            LinkLoad(engine.resource_name(resource), units, busy, units / (engine.resource_capacity(resource) * end))
            for resource, (units, busy) in enumerate(engine.loads())
            if units and end
        ]
        return tuple(sorted(loads, key=lambda load: (-load.utilisation, load.link)))

    def _deadlock_text(self) -> str:
        waiting = [
            f"rank {sender if words == 'send to' else receiver} waits to {words} rank "
            f"{receiver if words == 'send to' else sender} with tag {tag}"
            for words, posted in (("send to", self._sends), ("receive from", self._receives))
            for (sender, receiver, tag), numbers in posted.items()
            if numbers
        ]
        more = len(waiting) - BLOCKED_NAMED
        return f"deadlock: {self._left:,} tasks cannot end: {'; '.join(waiting[:BLOCKED_NAMED])}" + (
            f"; and {more} more messages" if more > 0 else ""
        )


def _followers(tasks: Sequence[GraphTask], field: str) -> dict[int, list[int]]:
    """The tasks that wait for each task, by its index."""
    followers: dict[int, list[int]] = {}
    for number, task in enumerate(tasks):
        for need in getattr(task, field):
            followers.setdefault(need, []).append(number)
    return followers
