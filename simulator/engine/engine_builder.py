"""The builder of the flow engine's model: resources, flows, channels, programs and streams, each with a number.

A *resource* has a capacity that flows share: a link [B/s], a host's cores, its memory bandwidth.
A *flow* is an amount of work that takes units of resources while it runs: a message, a GEMM, a copy.
A *channel* matches sends with receives in order, as MPI does for one sender, receiver, tag and communicator.
A *program* is a list of stages without decisions: a send and a receive, then local work.
A *stream* runs programs one after the other, like a CUDA stream; a rank has a stream for each lane, that is for
computation and for communication along each axis.

Numbers start at 0 and follow the order of addition.  The engine copies new entries into its state
(`engine_state.py`) before it goes on, so entries may be added while the simulation runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from quadrille.algorithms.errors import InputError
from quadrille.simulator.engine.flow_state import NONE


@dataclass(frozen=True, slots=True)
class ProgramStage:
    """One stage of a program: a send and a receive at the same time, then local work; repeated `count` times.

    Parameters
    ----------
    count : number of repetitions
    send : number of the channel, and number of the flow that is the message; None if the stage sends nothing
    receive : number of the channel; None if the stage receives nothing
    local : number of the flow of the local work, None if there is none
    only_if_waited : whether the stage is skipped unless the stream waited for its last transfers
    only_if_overlapped : whether the stage is skipped unless the rank's compute stream runs a program
    posted : whether the stream goes on to the next stage at once, which then also waits for these transfers
    """

    count: int = 1
    send: tuple[int, int] | None = None
    receive: int | None = None
    local: int | None = None
    only_if_waited: bool = False
    only_if_overlapped: bool = False
    posted: bool = False


@dataclass(frozen=True, slots=True)
class BurstLink:
    """A link with a token bucket.

    Parameters
    ----------
    resource : number of the link
    burst : size of the bucket [B]
    empty_event : dummy flow whose event is that the bucket is empty
    """

    resource: int
    burst: float
    empty_event: int


class EngineBuilder:
    """The resources, flows, channels, programs and streams of an engine; base class of `FlowEngine`.

    Attributes
    ----------
    capacities, full_capacities : capacity of each resource; for a throttle, the reduced and the full capacity
    names : name of each resource, or a function that makes it
    throttles, burst_links : resources of these kinds
    flows : work, latency, alone_seconds and extrapolated of each flow
    flow_resources, flow_shares : resources of each flow, and units of them for each unit of work
    caps, weights : largest rate [units of work/s] and max-min weight of each flow
    stages : columns of each stage, see `engine_state.py`
    first_stages : program p has the stages first_stages[p] .. first_stages[p + 1] - 1
    communicates : whether each program sends or receives
    throttle_of_stream, compute_streams, rate_shares_left : see `engine_state.py`, by stream
    eager : whether each channel sends eagerly
    """

    def __init__(self) -> None:
        self.capacities: list[float] = []
        self.full_capacities: list[float] = []
        self.names: list[str | Callable[[], str]] = []
        self.throttles: list[int] = []
        self.burst_links: list[BurstLink] = []
        self.flows: list[tuple[float, float, float, int]] = []
        self.flow_resources: list[tuple[int, ...]] = []
        self.flow_shares: list[tuple[float, ...]] = []
        self.caps: list[float] = []
        self.weights: list[float] = []
        self.stages: list[tuple[int, int, int, int, int, int, int, int, int]] = []
        self.first_stages: list[int] = [0]
        self.communicates: list[int] = []
        self.throttle_of_stream: list[int] = []
        self.compute_streams: list[int] = []
        self.rate_shares_left: list[float] = []
        self.eager: list[int] = []

    # Resources

    def add_resource(self, capacity: float, name: str | Callable[[], str] = "") -> int:
        """Add a resource; returns its number.

        Parameters
        ----------
        capacity : units per second, may be infinite
        name : or a function that makes the name when it is needed

        Raises
        ------
        InputError : a capacity that is not above zero
        """
        if not capacity > 0:
            label = name if isinstance(name, str) else name()
            raise InputError(f"capacity {capacity!r} of resource {label!r}: a capacity is a number above 0")
        self.capacities.append(float(capacity))
        self.full_capacities.append(float(capacity))
        self.names.append(name)
        return len(self.names) - 1

    def add_throttle(self, slowdown: float, name: str = "") -> int:
        """Add a throttle, a resource that slows work while its streams communicate; returns its number.

        Parameters
        ----------
        slowdown : factor on the time of the work; the capacity is 1, or 1 / slowdown while a stream communicates
        """
        throttle = self.add_resource(1.0 / slowdown, name)
        self.full_capacities[throttle] = 1.0
        self.throttles.append(throttle)
        return throttle

    def add_link(self, rate: float, burst: float, name: str | Callable[[], str] = "") -> int:
        """Add a link with a token bucket; returns the number of its resource.

        Parameters
        ----------
        rate : capacity while the bucket is empty [B/s]
        burst : bytes that cross the link at once after an idle time [B]
        """
        link = self.add_resource(rate, name)
        self.burst_links.append(BurstLink(link, burst, self.add_flow(0.0, {}, cap=1.0)))
        return link

    @property
    def resource_count(self) -> int:
        return len(self.names)

    def resource_name(self, resource: int) -> str:
        name = self.names[resource]
        return name if isinstance(name, str) else name()

    def resource_capacity(self, resource: int) -> float:
        """The capacity of a resource [units/s]; for a throttle, while no stream communicates."""
        return self.full_capacities[resource]

    # Work

    def add_flow(
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
        """Add a flow, an amount of work that may run any number of times, but once at a time; returns its number.

        Parameters
        ----------
        work : size in any unit (bytes, flop, seconds); work 0 ends right after the latency
        demands : units of each resource for each unit of work
        weight : share of resources relative to other flows
        cap : largest rate [units of work/s]
        latency : time before the work starts [s]
        alone : seconds of the work with nothing else under way, for the time breakdown
        extrapolated : whether the work is larger than what was measured

        Raises
        ------
        InputError : a number out of range, an unknown resource, nothing that limits the rate
        """
        self._check(work, demands, weight, cap, latency)
        used = [(resource, float(demand)) for resource, demand in sorted(demands.items()) if demand > 0]
        self.flows.append((float(work), float(latency), float(alone), int(extrapolated)))
        self.flow_resources.append(tuple(resource for resource, _ in used))
        self.flow_shares.append(tuple(demand for _, demand in used))
        self.caps.append(float(cap))
        self.weights.append(float(weight))
        return len(self.flows) - 1

    def add_channel(self, *, eager: bool = False) -> int:
        """Add a channel, which matches sends with receives in order; returns its number.

        Parameters
        ----------
        eager : whether messages start when they are sent (eager protocol), not when send and receive match (rendezvous)
        """
        self.eager.append(int(eager))
        return len(self.eager) - 1

    def add_program(self, stages: Sequence[ProgramStage]) -> int:
        """Add a program, whose stages run one after the other; returns its number."""
        for stage, transfers in zip(stages, transfers_together(stages), strict=True):
            assert stage.send is not None or stage.receive is not None or stage.local is not None, "an empty stage"
            assert not stage.posted or (stage.count == 1 and stage.local is None), "posted stages only send and receive"
            channel, flow = stage.send or (NONE, NONE)
            receive, local = (NONE if part is None else part for part in (stage.receive, stage.local))
            flags = int(stage.only_if_waited), int(stage.only_if_overlapped), int(stage.posted)
            self.stages.append((stage.count, channel, flow, receive, local, *flags, transfers))
        self.first_stages.append(len(self.stages))
        self.communicates.append(int(any(stage.send is not None or stage.receive is not None for stage in stages)))
        return len(self.first_stages) - 2

    def add_stream(
        self, throttle: int | None = None, *, compute_stream: int | None = None, message_slowdown: float = 1.0
    ) -> int:
        """Add a stream, which runs programs one after the other; returns its number.

        Parameters
        ----------
        throttle : number of the throttle that is slower while this stream communicates
        compute_stream : number of the same rank's compute stream, whose work slows the messages of this stream
        message_slowdown : factor by which this stream's work lengthens messages of its rank's other streams
        """
        previous = self.compute_streams
        assert compute_stream is None or compute_stream + 1 == len(previous) or previous[-1] == compute_stream, (
            "streams follow their compute stream"
        )
        self.throttle_of_stream.append(NONE if throttle is None else throttle)
        self.compute_streams.append(NONE if compute_stream is None else compute_stream)
        self.rate_shares_left.append(1.0 / message_slowdown)
        return len(self.throttle_of_stream) - 1

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


def transfers_together(stages: Sequence[ProgramStage]) -> list[int]:
    """The number of transfers that each stage waits for, with those of the stages that are posted with it.

    >>> transfers_together([ProgramStage(send=(0, 0), posted=True), ProgramStage(receive=1), ProgramStage(receive=2)])
    [2, 2, 1]
    """
    counts: list[int] = []
    group: list[int] = []
    for stage in stages:
        group.append((stage.send is not None) + (stage.receive is not None))
        if not stage.posted:
            counts += [sum(group)] * len(group)
            group = []
    assert not group, "the last stage of a program is not posted"
    return counts
