"""A plan of NCCL and where it is carried out: groups, places, and what NCCL counts on from every link."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from quadrille.algorithms.collectives.nccl import Communicator, NcclPlan
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.causes import Causes
from quadrille.simulator.collectives.channels import ring_orders
from quadrille.simulator.collectives.collective import CollectiveResult, Ways
from quadrille.simulator.collectives.programs import Floats, Ints
from quadrille.simulator.engine.flows import FlowSet, simulate_flows
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSettings:
    """What a site adds to NCCL's model: all neutral unless measured there.

    Parameters
    ----------
    launch_seconds : before anything moves
    network_latency : of every hop between nodes, beside what NCCL's tables have
    inside, between : of what NCCL counts of the links inside and between nodes, the share that is reached
    ll128 : whether LL128 may be taken; between nodes that takes NICs close to the GPUs
    as_root : a broadcast's time is the root's alone, one after the other, as nccl-tests took it until 2021
    planned : what NCCL takes for a group and size, where it is another version's choice
    """

    launch_seconds: float = 0.0
    network_latency: float = 0.0
    inside: float = 1.0
    between: float = 1.0
    ll128: bool = True
    as_root: bool = False
    planned: Callable[[CollectiveKind, float, Communicator], NcclPlan] | None = None


NEUTRAL_SETTINGS = NcclSettings()


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """A plan and where it is carried out.

    Parameters
    ----------
    idle, capacities : what NCCL counts on from each link, and what of that the site reaches when all of them are
        loaded both ways [B/s]
    """

    kind: CollectiveKind
    bytes: float
    groups: Ints
    places: Ints
    routes: Routes
    idle: Floats
    capacities: Floats
    group: Communicator
    plan: NcclPlan
    root: int
    ways: Ways
    settings: NcclSettings

    @property
    def before(self) -> float:
        """What passes before the first byte counts [s]."""
        return self.plan.base_latency + self.plan.steps * self.plan.mean_step_latency

    def cap(self, ways: int) -> float:
        """Most that one of so many different ways carries, for all channels that it stands for [B/s]."""
        return self.plan.channel_rate * self.plan.wire_factor * self.plan.channels / ways

    def without_latency(self, sources: Ints, targets: Ints) -> Paths:
        paths = self.routes.between(sources, targets)
        return replace(paths, latency=np.zeros_like(paths.latency))

    def orders(self) -> list[Ints]:
        """Different ways through the nodes; a plan with more channels takes each several times."""
        found = ring_orders(self.routes, self.places[self.groups])
        return found[: max(1, self.plan.channels)]


def fluid(
    on: Laid, paths: Paths, sizes: Floats, cap: float, *, before: float | None = None, correction: float = 1.0
) -> CollectiveResult:
    """Everything at once, after what comes before: NCCL's latency if nothing else is given.

    Parameters
    ----------
    cap : most that each flow carries [B/s]
    correction : of the rates, what short pipelines leave
    """
    flows = len(sizes)
    zero, one = np.zeros(flows), np.ones(flows)
    # a flow over no link (a GPU to itself) takes no time
    sizes = np.where(np.diff(paths.offsets) > 0, sizes, 0.0)
    traffic = FlowSet(paths.offsets, paths.links, paths.shares, sizes, zero, zero, one, np.full(flows, cap))
    ran = simulate_flows(on.capacities, traffic)
    whole = float(ran.finish.max(initial=0.0)) / correction
    single = _alone_seconds(on, paths, sizes, cap) / correction
    causes = Causes.together(single, max(0.0, whole - single)) if on.ways.causes else None
    seconds = (on.before if before is None else before) + whole
    return _result(on, seconds, ran.carried, ran.busy, ran.events, flows, causes)


def _alone_seconds(on: Laid, paths: Paths, sizes: Floats, cap: float) -> float:
    """The longest that any flow would take if it were the only one [s]."""
    flow = np.repeat(np.arange(len(sizes)), np.diff(paths.offsets))
    rate = np.full(len(sizes), cap)
    np.minimum.at(rate, flow, on.capacities[paths.links] / paths.shares)
    return float((sizes / rate).max(initial=0.0))


def by_itself(on: Laid) -> CollectiveResult:
    """What NCCL predicts for itself, for PAT, whose steps are not laid on links."""
    links = np.zeros(len(on.capacities))
    causes = Causes.together(max(0.0, on.plan.seconds - on.before), 0.0) if on.ways.causes else None
    return _result(on, on.plan.seconds, links, links, 0, 0, causes)


def _result(
    on: Laid, seconds: float, carried: Floats, busy: Floats, events: int, flows: int, causes: Causes | None
) -> CollectiveResult:
    return CollectiveResult(
        seconds=seconds,
        ends=np.full(int(on.groups.max()) + 1, seconds),
        method="events",
        events=events,
        transfers=flows,
        rank_classes=on.groups.size,
        flow_classes=flows,
        rounds=0,
        folded=False,
        why_not="all edges carry at once: nothing repeats to be folded",
        link_bytes=carried,
        busy_seconds=busy,
        error_seconds=0.0,
        causes=causes,
    )
