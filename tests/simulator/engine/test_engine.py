"""The flow engine against formulas and against an event loop that solves everything anew."""

from math import inf, isnan

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy.events import NORMAL

from quadrille.algorithms.errors import InputError
from quadrille.simulator.engine.engine import Alarm, FlowEngine
from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.engine.max_min import Demands, max_min_rates
from quadrille.topologies.cluster import gpu_cluster
from quadrille.topologies.routes.routing import Routes
from tests.support import activities
from tests.support.draws import examples

SHORTCUTS = [{"memory": memory, "local": local} for memory in (True, False) for local in (True, False)]


@pytest.fixture
def env():
    return simpy.Environment()


@pytest.fixture
def engine(env):
    return FlowEngine(env)


def start(engine, work, demands, **options):
    """An activity, and the list that its end time is put into."""
    ends = []
    return activities.start(engine, work, demands, then=lambda: ends.append(engine.env.now), **options), ends


def naive_ends(capacities, arrivals):
    """End of each (at, work, demands, weight, cap, latency): step to the next start or end, solve all, repeat."""
    waiting = sorted((at + latency, i) for i, (at, *_, latency) in enumerate(arrivals))
    left, ends, now = {}, {}, 0.0
    while waiting or left:
        active = sorted(left)
        rates = max_min_rates(
            capacities,
            Demands.of([arrivals[i][2] for i in active]),
            [arrivals[i][3] for i in active],
            [arrivals[i][4] for i in active],
        )
        step = min((left[i] / rate for i, rate in zip(active, rates, strict=True)), default=inf)
        upcoming = waiting[0][0] if waiting else inf
        step = min(step, upcoming - now)
        now = upcoming if step == upcoming - now else now + step
        for i, rate in zip(active, rates, strict=True):
            left[i] -= rate * step
            if left[i] <= 1e-12 * arrivals[i][1]:
                ends[i] = now
                del left[i]
        while waiting and waiting[0][0] <= now:
            i = waiting.pop(0)[1]
            left[i] = arrivals[i][1]
    return [ends[i] for i in range(len(arrivals))]


def engine_ends(capacities, arrivals, **shortcuts):
    """The same end times by the engine; arrivals are processes of SimPy."""
    env = simpy.Environment()
    engine = FlowEngine(env, **shortcuts)
    for capacity in capacities:
        engine.add_resource(capacity)
    ends = {}

    def arrive(i, at, work, demands, weight, cap, latency):
        yield env.timeout(at)
        yield activities.event(engine, work, demands, weight=weight, cap=cap, latency=latency)
        ends[i] = env.now

    for i, arrival in enumerate(arrivals):
        env.process(arrive(i, *arrival))
    env.run()
    return [ends[i] for i in range(len(arrivals))]


ROUND = st.sampled_from([1.0, 2.0, 3.0, 5.0])
ANY = st.floats(0.125, 128.0, width=16)


@st.composite
def traffic(draw):
    """Capacities and arrivals: at round times with many ties, or at any times."""
    numbers = draw(st.sampled_from([ROUND, ANY]))
    resources = draw(st.integers(1, 5))
    demands = st.dictionaries(st.integers(0, resources - 1), numbers, min_size=1, max_size=3)
    arrival = st.tuples(
        st.one_of(st.just(0.0), numbers),
        numbers,
        demands,
        numbers,
        st.one_of(st.just(inf), numbers),
        st.one_of(st.just(0.0), numbers),
    )
    capacities = draw(st.lists(numbers, min_size=resources, max_size=resources))
    return capacities, draw(st.lists(arrival, min_size=1, max_size=11))


@settings(max_examples=examples(150), deadline=None)
@given(traffic=traffic())
def test_ends_are_those_of_a_loop_that_solves_everything_anew(traffic):
    expected = pytest.approx(naive_ends(*traffic), rel=1e-9)
    for shortcuts in SHORTCUTS:
        assert engine_ends(*traffic, **shortcuts) == expected


@settings(max_examples=20, deadline=None)
@given(traffic=traffic(), after=st.integers(0, 20))
def test_going_on_compiled_changes_no_end(traffic, after):
    assert engine_ends(*traffic, plain_events=after) == pytest.approx(naive_ends(*traffic), rel=1e-9)


def test_two_flows_on_one_link_take_twice_as_long(env, engine):
    link = engine.add_resource(25e9)
    _, first = start(engine, 1e9, {link: 1.0})
    _, second = start(engine, 1e9, {link: 1.0})
    env.run()
    assert first == second == [pytest.approx(2e9 / 25e9)]


def test_latency_is_paid_once_and_holds_no_resource(env, engine):
    link = engine.add_resource(10.0)
    _, late = start(engine, 10.0, {link: 1.0}, latency=1.0)
    _, early = start(engine, 10.0, {link: 1.0})
    env.run()
    assert (early, late) == ([1.0], [2.0])


def test_an_activity_without_work_ends_when_its_latency_is_over(env, engine):
    activity, ends = start(engine, 0.0, {}, cap=1.0, latency=3.0)
    env.run()
    assert ends == [3.0]
    assert (activity.requested, activity.ended) == (0.0, 3.0)


def test_an_activity_without_work_and_latency_ends_at_once_but_not_inside_start(env, engine):
    _, ends = start(engine, 0.0, {}, cap=1.0)
    assert ends == []
    env.run()
    assert ends == [0.0]


def test_activities_that_end_together_are_one_change_in_the_order_of_their_start(env, engine):
    ends = []
    for i in range(5):  # equal but for rounding
        link = engine.add_resource(0.1 * (i + 1))
        activities.start(engine, 0.3 * (i + 1), {link: 1.0}, then=lambda i=i: ends.append(i))
    env.run()
    assert ends == [0, 1, 2, 3, 4]
    assert engine.counts.changes == 2


def test_all_that_starts_at_one_instant_is_shared_once(env, engine):
    link = engine.add_resource(7.0)
    other = engine.add_resource(5.0)

    def rank():
        yield env.timeout(1.0)
        yield activities.event(engine, 1.0, {link: 1.0, other: 0.5})
        yield activities.event(engine, 1.0, {link: 2.0})

    for _ in range(6):
        env.process(rank())
    env.run()
    assert engine.counts.changes == 3


def test_then_may_start_the_next_at_the_same_instant(env, engine):
    link = engine.add_resource(2.0)
    ends = []

    def step(left):
        if left:
            activities.start(engine, 4.0, {link: 1.0}, latency=0.5, then=lambda: (ends.append(env.now), step(left - 1)))

    step(3)
    env.run()
    assert ends == [2.5, 5.0, 7.5]


def test_an_event_succeeds_with_its_activity(env, engine):
    link = engine.add_resource(2.0)
    activity = env.run(activities.event(engine, 4.0, {link: 1.0}, latency=1.0))
    assert (activity.work, activity.requested, activity.ended) == (4.0, 0.0, 3.0)


def test_the_rate_of_an_activity_can_be_asked_for(env, engine):
    link = engine.add_resource(6.0)
    one, _ = start(engine, 60.0, {link: 1.0})
    other, _ = start(engine, 30.0, {link: 1.0}, weight=2.0, latency=1.0)
    env.run(until=0.5)
    assert (one.rate, other.rate) == (6.0, 0.0)
    assert isnan(other.ended)
    env.run(until=1.5)
    assert (one.rate, other.rate) == (2.0, 4.0)
    env.run()
    assert (one.rate, other.rate) == (0.0, 0.0)


def test_a_resource_has_served_what_was_asked_of_it(env, engine):
    link = engine.add_resource(6.0, "leaf:0>spine:0")
    start(engine, 60.0, {link: 1.0})
    start(engine, 30.0, {link: 0.5}, latency=1.0)
    env.run(until=0.5)
    assert engine.loads()[link][0] == pytest.approx(3.0)
    env.run()
    assert engine.loads()[link][0] == pytest.approx(75.0)
    assert (engine.resource_name(link), engine.resource_capacity(link)) == ("leaf:0>spine:0", 6.0)


@pytest.mark.parametrize("others", [0, 3])
def test_a_pace_may_be_given_another_capacity_while_it_is_used(env, engine, others):
    """10 s of work: 4 s at full speed, 8 s at half, 2 s at full speed again."""
    pace, ends = engine.add_throttle(1.0, "a core"), []
    for resource in (pace, *(engine.add_resource(1.0) for _ in range(others))):
        program = engine.add_program([ProgramStage(local=engine.add_flow(10.0, {resource: 1.0}))])
        engine.begin(engine.add_stream(), program, lambda resource=resource: ends.append((resource, env.now)))
    for at, capacity in ((4.0, 0.5), (12.0, 1.0), (12.0, 0.25), (12.0, 1.0)):
        Alarm(env, lambda capacity=capacity: engine.set_throttle(pace, capacity), NORMAL, at)
    env.run()
    assert dict(ends) == {pace: 14.0} | dict.fromkeys(range(pace + 1, pace + 1 + others), 10.0)
    assert engine.loads()[pace] == (0.0, 14.0), "it tells how fast, not how much"


def test_two_engines_on_one_clock_do_not_wait_for_each_other(env):
    ends = []
    for capacity in (2.0, 4.0):
        engine = FlowEngine(env)
        link = engine.add_resource(capacity)
        activities.start(engine, 8.0, {link: 1.0}, then=lambda: ends.append(env.now))
    env.run()
    assert ends == [2.0, 4.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"work": -1.0}, "work -1.0: .* finite number from 0"),
        ({"work": inf}, "work inf"),
        ({"latency": -1e-6}, "latency -1e-06 s"),
        ({"weight": 0.0}, "weight 0.0: .* above 0"),
        ({"cap": 0.0}, "cap 0.0: .* above 0"),
        ({"demands": {5: 1.0}}, "resource 5: there are 1"),
        ({"demands": {0: -1.0}}, "demand -1.0 on 'link'"),
        ({"demands": {}}, "needs a finite cap"),
    ],
)
def test_an_activity_that_cannot_be_is_refused(engine, options, message):
    engine.add_resource(1.0, "link")
    with pytest.raises(InputError, match=message):
        activities.start(engine, **{"work": 1.0, "demands": {0: 1.0}, "then": lambda: None} | options)


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("nan")])
def test_a_resource_without_capacity_is_refused(engine, capacity):
    with pytest.raises(InputError, match="a capacity is a number above 0"):
        engine.add_resource(capacity, "link")


def pinned_cluster(gpus, uplink_bandwidth):
    """The cluster of the pinned workloads: 8 GPUs and 8 NICs a node, 4 nodes a leaf, 1 us a network link."""
    return gpu_cluster(
        gpus // 8,
        gpus_per_node=8,
        nics_per_node=8,
        gpu_bandwidth=450e9,
        gpu_latency=1e-6,
        nic_bandwidth=50e9,
        nic_latency=1e-6,
        nodes_per_leaf=4,
        uplink_bandwidth=uplink_bandwidth,
    )


def rings_seconds(net, rings, steps, size, **shortcuts):
    """Time of rings; step s + 1 of a rank starts when its own send and receive of step s are done."""
    env = simpy.Environment()
    engine = FlowEngine(env, **shortcuts)
    resources = [engine.add_resource(bandwidth) for bandwidth in net.bandwidths]
    routes = Routes(net)
    right = {rank: ring[(i + 1) % len(ring)] for ring in rings for i, rank in enumerate(ring)}
    finished = dict.fromkeys(((rank, step) for rank in right for step in range(steps)), 0)

    def send(rank, step):
        route = routes.between([rank], [right[rank]])
        demands = {resources[link]: 1.0 for link in route.links}
        activities.start(engine, size, demands, latency=float(route.latency[0]), then=lambda: arrived(rank, step))

    def arrived(rank, step):
        for member in (rank, right[rank]):
            finished[member, step] += 1
            if finished[member, step] == 2 and step + 1 < steps:
                send(member, step + 1)

    for rank in right:
        send(rank, 0)
    env.run()
    return env.now


@pytest.mark.parametrize("shortcuts", SHORTCUTS)
def test_a_ring_all_reduce_in_one_leaf_takes_its_closed_form(shortcuts):
    # 2(N-1)(S/N/B + α), B a NIC, α two links of a leaf.
    seconds = rings_seconds(pinned_cluster(32, 1600e9), [range(32)], 62, 2**30 / 32, **shortcuts)
    assert seconds == pytest.approx(62 * (2**30 / 32 / 50e9 + 2e-6), rel=1e-12)


def test_a_ring_all_reduce_across_leaves_pays_four_links():
    seconds = rings_seconds(pinned_cluster(64, 1600e9), [range(64)], 126, 2**30 / 64)
    assert seconds == pytest.approx(126 * (2**30 / 64 / 50e9 + 4e-6), rel=1e-12)
    assert round(seconds * 1e3, 3) == 42.783  # SimGrid's figure too


@pytest.mark.parametrize(("gpus", "milliseconds"), [(64, 20.193), (512, 40.325)])
def test_rings_that_share_oversubscribed_uplinks_share_their_bandwidth(gpus, milliseconds):
    # Rings of 16 at once, 2:1 uplinks: at 512 every member sits under its own leaf, 32 flows on each uplink.
    stride = gpus // 16
    rings = [range(first, gpus, stride) for first in range(stride)]
    seconds = rings_seconds(pinned_cluster(gpus, 800e9), rings, 15, 2**26)
    assert round(seconds * 1e3, 3) == milliseconds


def test_a_program_is_gone_through_by_itself(env, engine):
    """Two members exchange twice, and the one that has to add something keeps the other one waiting."""
    link, core = engine.add_resource(10.0), engine.add_resource(1.0)
    there, back = engine.add_channel(), engine.add_channel()
    one_way, other_way = (engine.add_flow(20.0, {link: 1.0}, latency=1.0, alone=2.0) for _ in range(2))
    adding = engine.add_flow(3.0, {core: 1.0}, alone=3.0, extrapolated=True)
    programs = [
        engine.add_program([ProgramStage(2, (there, one_way), back, adding)]),
        engine.add_program([ProgramStage(2, (back, other_way), there)]),
    ]
    ends = {}
    members = [engine.add_stream() for _ in programs]
    for member, program in zip(members, programs, strict=True):
        engine.begin(member, program, lambda member=member: ends.setdefault(member, env.now))
    env.run()
    # A step: latency 1, then both transfers on one link 4 s, then 3 s of adding; twice.
    assert ends == {members[0]: 16.0, members[1]: 13.0}
    stream_seconds = engine.stream_seconds(members[1])
    assert (
        stream_seconds.waiting,
        stream_seconds.path_latency,
        stream_seconds.bandwidth,
        stream_seconds.contention,
        stream_seconds.computing,
    ) == (
        3.0,
        2.0,
        4.0,
        4.0,
        0.0,
    )
    stream_seconds = engine.stream_seconds(members[0])
    assert (
        stream_seconds.waiting,
        stream_seconds.contention,
        stream_seconds.computing,
        stream_seconds.compute,
        stream_seconds.extrapolated,
    ) == (
        0.0,
        4.0,
        6.0,
        6.0,
        True,
    )


def test_who_waits_can_be_asked_for(env, engine):
    link = engine.add_resource(1.0)
    wire, never = engine.add_channel(), engine.add_channel()
    flow, other = engine.add_flow(1.0, {link: 1.0}), engine.add_flow(1.0, {link: 1.0})
    sends = engine.add_program([ProgramStage(send=(wire, flow)), ProgramStage(send=(never, other))])
    receives = engine.add_program([ProgramStage(receive=wire)])
    first, second = engine.add_stream(), engine.add_stream()
    engine.begin(first, sends, lambda: None)
    engine.begin(second, receives, lambda: None)
    env.run()
    assert engine.awaited_transfers(first) == [(1, 0, True, False)]
    assert engine.awaited_transfers(second) == []
