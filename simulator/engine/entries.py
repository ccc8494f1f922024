"""What may be under way: resources, flows on them, wires, programs, and members who go through these.

All are numbers, counted from 0 in the order in which they were entered; the tables of
`state.py` are made of what is here (`builder.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from quadrille.algorithms.errors import InputError
from quadrille.simulator.engine.engine_state import NONE, EngineState


@dataclass(frozen=True, slots=True)
class ProgramStage:
    """What a member does at once: a send and a receive, then local work; `count` times.

    Parameters
    ----------
    send : a wire, and the flow that goes over it
    receive : a wire
    local : a flow
    if_waited : whether it is left out where the member did not wait for the last transfers before it
    if_beside : whether it is left out where the member's worker does nothing
    """

    count: int = 1
    send: tuple[int, int] | None = None
    receive: int | None = None
    local: int | None = None
    if_waited: bool = False
    if_beside: bool = False


@dataclass(frozen=True, slots=True)
class BurstLink:
    """A link with a token bucket of `burst` bytes; the event of the flow `tap` is that it is empty."""

    resource: int
    burst: float
    tap: int


class EngineBuilder:
    """Everything that has been entered.

    `flows` are work, latency, alone and extrapolated of each flow, `resources` and `shares` what it takes of
    which; `stages` are count, send_wire, send_flow, receive_wire, local, if_waited and if_beside, those of program p
    from first[p] to first[p + 1]; `calm` is the capacity of each resource while nobody disturbs it, `capacities`
    what it is then; `disturbs` the pace that each member disturbs, `worker` the member whose work slows its messages,
    `leaves` the part of their rate that messages beside a member keep while it is at work; `buffered` whether messages
    of each wire go before anybody receives them; `bursty` links with a token bucket.
    """

    def __init__(self) -> None:
        self.capacities: list[float] = []
        self.calm: list[float] = []
        self.names: list[str | Callable[[], str]] = []
        self.paces: list[int] = []
        self.bursty: list[BurstLink] = []
        self.flows: list[tuple[float, float, float, int]] = []
        self.resources: list[tuple[int, ...]] = []
        self.shares: list[tuple[float, ...]] = []
        self.caps: list[float] = []
        self.weights: list[float] = []
        self.stages: list[tuple[int, int, int, int, int, int, int]] = []
        self.first: list[int] = [0]
        self.wired: list[int] = []
        self.disturbs: list[int] = []
        self.worker: list[int] = []
        self.leaves: list[float] = []
        self.buffered: list[int] = []

    def add_resource(self, capacity: float, name: str | Callable[[], str] = "") -> int:
        """Number of a new resource that serves `capacity` units per second (may be infinite).

        Parameters
        ----------
        name : or what makes it when somebody asks

        Raises
        ------
        InputError : a capacity that is not above zero
        """
        if not capacity > 0:
            told = name if isinstance(name, str) else name()
            raise InputError(f"capacity {capacity!r} of resource {told!r}: a capacity is a number above 0")
        self.capacities.append(float(capacity))
        self.calm.append(float(capacity))
        self.names.append(name)
        return len(self.names) - 1

    def add_throttle(self, slowdown: float, name: str = "") -> int:
        """Number of a new resource of capacity 1, or 1 / slowdown while members that disturb it are at their wires."""
        pace = self.add_resource(1.0 / slowdown, name)
        self.calm[pace] = 1.0
        self.paces.append(pace)
        return pace

    def add_link(self, rate: float, burst: float, name: str | Callable[[], str] = "") -> int:
        """Number of a new resource of this rate [B/s], whose first `burst` bytes after an idle time go at once."""
        link = self.add_resource(rate, name)
        self.bursty.append(BurstLink(link, burst, self.flow(0.0, {}, cap=1.0)))
        return link

    @property
    def resource_count(self) -> int:
        return len(self.names)

    def resource_name(self, resource: int) -> str:
        name = self.names[resource]
        return name if isinstance(name, str) else name()

    def resource_capacity(self, resource: int) -> float:
        """Units per second."""
        return self.calm[resource]

    def flow(
        self,
        work: float,
        demands: Mapping[int, float],
        *,
        weight: float = 1.0,
        cap: float = inf,
        latency: float = 0.0,
        alone: float = 0.0,
        extrapolated: bool = False,
    ) -> int:
        """A piece of work that may be under way, once at a time.

        Parameters
        ----------
        work : size in the activity's own units (bytes, flop, seconds); 0 ends right after the latency
        demands : units of each resource that one unit of work takes
        weight : share relative to the others
        cap : largest rate [units of work per second]
        latency : paid once, before the work starts [s]
        alone : seconds that the work takes with nothing else under way, as it is told
        extrapolated : whether it is larger than what was measured

        Raises
        ------
        InputError : a number out of range, an unknown resource, nothing that limits the rate
        """
        self._check(work, demands, weight, cap, latency)
        used = [(resource, float(d)) for resource, d in sorted(demands.items()) if d > 0]
        self.flows.append((float(work), float(latency), float(alone), int(extrapolated)))
        self.resources.append(tuple(resource for resource, _ in used))
        self.shares.append(tuple(d for _, d in used))
        self.caps.append(float(cap))
        self.weights.append(float(weight))
        return len(self.flows) - 1

    def wire(self, *, buffered: bool = False) -> int:
        """What brings together a send and a receive.

        Parameters
        ----------
        buffered : whether messages go as soon as they are sent, and are kept for whoever receives them
        """
        self.buffered.append(int(buffered))
        return len(self.buffered) - 1

    def program(self, stages: Sequence[ProgramStage]) -> int:
        """Stages, one after the other."""
        for one in stages:
            assert one.send is not None or one.receive is not None or one.local is not None, "a stage does something"
            wire, flow = one.send or (NONE, NONE)
            receive, local = (NONE if part is None else part for part in (one.receive, one.local))
            conditions = int(one.if_waited), int(one.if_beside)
            self.stages.append((one.count, wire, flow, receive, local, *conditions))
        self.first.append(len(self.stages))
        self.wired.append(int(any(one.send is not None or one.receive is not None for one in stages)))
        return len(self.first) - 2

    def member(self, disturbs: int | None = None, *, worker: int | None = None, slows: float = 1.0) -> int:
        """Somebody who goes through programs, one after the other.

        Parameters
        ----------
        disturbs : a pace
        worker : another member; while it is in a program, messages to and from this one are slower
        slows : how many times as long messages take that this member's work slows
        """
        assert worker is None or worker + 1 == len(self.worker) or self.worker[-1] == worker, "workers come just before"
        self.disturbs.append(NONE if disturbs is None else disturbs)
        self.worker.append(NONE if worker is None else worker)
        self.leaves.append(1.0 / slows)
        return len(self.disturbs) - 1

    def _check(self, work: float, demands: Mapping[int, float], weight: float, cap: float, latency: float) -> None:
        if not 0 <= work < inf:
            raise InputError(f"work {work!r}: the size of an activity is a finite number from 0")
        if not 0 <= latency < inf:
            raise InputError(f"latency {latency!r} s: a latency is a finite number from 0")
        for resource, demand in demands.items():
            if not 0 <= resource < self.resource_count:
                raise InputError(f"resource {resource}: there are {self.resource_count}, numbered from 0")
            if not (isfinite(demand) and demand >= 0):
                raise InputError(
                    f"demand {demand!r} on {self.resource_name(resource)!r}: a demand is a finite number from 0"
                )
        if not (isfinite(weight) and weight > 0):
            raise InputError(f"weight {weight!r}: a weight is a finite number above 0")
        if not cap > 0:
            raise InputError(f"cap {cap!r}: a cap is a rate above 0")
        if cap == inf and not any(demand > 0 and self.capacities[j] < inf for j, demand in demands.items()):
            raise InputError("an activity needs a finite cap, or a demand on a resource of finite capacity")

    def is_more_than(self, under: EngineState) -> bool:
        """Whether something has been registered since the table was made."""
        return (
            len(self.flows) != len(under.work)
            or len(self.first) != len(under.first)
            or len(self.disturbs) != len(under.stage)
            or len(self.capacities) != len(under.using)
            or len(self.buffered) != len(under.waits)
        )
