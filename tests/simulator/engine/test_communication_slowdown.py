"""Messages take longer while a GPU that sends or receives them computes, by the machine file's factor."""

from itertools import pairwise
from math import inf

import msgspec
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Gemm, Receive, Send
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.engine.max_min import Demands, max_min_rates
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.topologies.find_machine import find_machine
from tests.support.draws import examples
from tests.support.overlapped_ring import ring_beside_product
from tests.support.predictions import check_same_op_times, seconds_of
from tests.support.toy_machines import leaf_spine, program_of, star
from tests.support.toy_trainings import EACH_SHORTCUT_OFF, FEW, MACHINES, scheduled

MEMBERS = 3


def slowed(machine, messages, work=1.0):
    """The machine with these two factors."""
    device = msgspec.structs.replace(machine.device, overlap_slowdown=work, communication_slowdown=messages)
    return msgspec.structs.replace(machine, device=device)


# One rank, by hand


def test_bytes_take_longer_and_latency_does_not():
    machine, schedule = star(MEMBERS), ring_beside_product(50_000)
    ring, slow = (seconds_of(simulate(schedule, slowed(machine, factor)), "sum") for factor in (1.0, 1.5))
    steps, hops, latency = 2 * (MEMBERS - 1), 2, 1e-6
    assert slow == pytest.approx(ring + 0.5 * (ring - steps * hops * latency), rel=1e-9)


def test_they_are_slower_only_as_long_as_the_product_lasts():
    machine, schedule = star(MEMBERS, latency=0.0), ring_beside_product(500)
    alone, beside = (simulate(schedule, slowed(machine, factor)) for factor in (1.0, 1.25))
    ring, product = seconds_of(alone, "sum"), seconds_of(alone, "multiply")
    assert product < ring / 1.5
    assert seconds_of(beside, "multiply") == pytest.approx(product, rel=1e-9)
    # While the product lasts, 1/1.25 of it is sent: a fifth of the product's time is lost.
    assert seconds_of(beside, "sum") == pytest.approx(ring + 0.2 * product, rel=1e-9)


def test_each_slows_the_other():
    machine, schedule = star(MEMBERS, latency=0.0), ring_beside_product(500)
    alone, beside = (simulate(schedule, slowed(machine, *both)) for both in ((1.0, 1.0), (1.25, 1.6)))
    ring, product = seconds_of(alone, "sum"), seconds_of(alone, "multiply")
    assert seconds_of(beside, "multiply") == pytest.approx(1.6 * product, rel=1e-9)
    assert seconds_of(beside, "sum") == pytest.approx(ring + 0.2 * 1.6 * product, rel=1e-9)


def test_a_ring_before_the_product_takes_as_long_as_ever():
    schedule = ring_beside_product(500, after=("sum",))
    one, other = (simulate(schedule, slowed(star(MEMBERS), factor)) for factor in (1.0, 2.0))
    assert one.timeline.makespan == other.timeline.makespan


@pytest.mark.parametrize("at_work", ["sender", "receiver", "both", "neither"])
def test_it_is_enough_that_one_end_computes(at_work):
    tensors = [Tensor(name, Part("m"), Part("n")) for name in "ST"] + [
        Tensor(name, Part("k"), Part("k")) for name in "AC"
    ]
    product = Gemm(name="multiply", a="A", b="A", c="C")
    ends = Send(name="send", axis="x", source="S", to=1), Receive(name="receive", axis="x", into="T", sender=0)
    roles = tuple(
        Role((product, end) if at_work in (name, "both") else (end,), "x", coordinate, coordinate + 1)
        for coordinate, (name, end) in enumerate(zip(("sender", "receiver"), ends, strict=True))
    )
    schedule = program_of(Grid(x=2), tensors, roles=roles, m=10, n=100, k=2000)
    prediction = simulate(schedule, slowed(star(2, latency=0.0), 3.0))
    seconds = 8 * 1000 / 1e9
    assert seconds_of(prediction, "send") == pytest.approx(seconds * (1 if at_work == "neither" else 3), rel=1e-9)


# Many messages and workers, against a loop that solves everything anew

ROUND = st.sampled_from([1.0, 2.0, 3.0, 5.0])
ANY = st.floats(0.125, 16.0, width=16)
LINKS = 3


@st.composite
def messages_beside_work(draw):
    """Capacities of links, each rank's pauses and work, messages (at, sender, receiver, work, links), the factor."""
    numbers = draw(st.sampled_from([ROUND, ANY]))
    ranks = draw(st.integers(1, 4))
    rank = st.integers(0, ranks - 1)
    links = st.dictionaries(st.integers(0, LINKS - 1), numbers, min_size=1, max_size=2)
    message = st.tuples(st.one_of(st.just(0.0), numbers), rank, rank, numbers, links)
    turns = st.lists(st.tuples(st.one_of(st.just(0.0), numbers), numbers), max_size=3)
    return (
        draw(st.lists(numbers, min_size=LINKS, max_size=LINKS)),
        draw(st.lists(turns, min_size=ranks, max_size=ranks)),
        draw(st.lists(message, min_size=1, max_size=7)),
        draw(st.sampled_from([1.0, 1.5, 4.0])),
    )


def at_work(turns):
    """When a rank begins and ends its work, time after time."""
    now, found = 0.0, []
    for pause, seconds in turns:
        found.append((now + pause, now + pause + seconds))
        now = found[-1][1]
    return found


def naive_ends(capacities, work, messages, factor):
    """End of each message: from one start or end of anything to the next, all rates solved anew."""
    spells = [at_work(turns) for turns in work]
    moments = {at for spell in spells for ends in spell for at in ends} | {at for at, *_ in messages}
    left, ends = {}, {}
    for moment, upcoming in pairwise((*sorted(moments), inf)):
        now = moment
        left |= {i: work for i, (at, _, _, work, _) in enumerate(messages) if at == now}
        busy = {rank for rank, spell in enumerate(spells) if any(begin <= now < end for begin, end in spell)}
        while left and now < upcoming:
            active = sorted(left)
            demands = Demands.of([messages[i][4] for i in active])
            rates = max_min_rates(capacities, demands, [1.0] * len(active), [inf] * len(active))
            speeds = [
                rate / (factor if busy & set(messages[i][1:3]) else 1.0) for i, rate in zip(active, rates, strict=True)
            ]
            step = min(upcoming - now, *(left[i] / speed for i, speed in zip(active, speeds, strict=True)))
            now += step
            for i, speed in zip(active, speeds, strict=True):
                left[i] -= speed * step
                if left[i] <= 1e-12 * messages[i][3]:
                    ends[i] = now
                    del left[i]
    return [ends[i] for i in range(len(messages))]


def engine_ends(capacities, work, messages, factor, **shortcuts):
    """The same by the engine; each message has a lane of its own at both ends."""
    env = simpy.Environment()
    engine = FlowEngine(env, **shortcuts)
    for capacity in capacities:
        engine.add_resource(capacity)
    lanes, workers, ends = {}, [], {}
    for rank in range(len(work)):
        workers.append(engine.add_stream(message_slowdown=factor))
        for i, (_, *both, _, _) in enumerate(messages):
            lanes |= {(i, end): engine.add_stream(compute_stream=workers[-1]) for end in range(2) if both[end] == rank}

    def carry(i, at, _sender, _receiver, size, links):
        yield env.timeout(at)
        wire = engine.add_channel()
        send, receive = ProgramStage(send=(wire, engine.add_flow(size, links))), ProgramStage(receive=wire)
        engine.begin(lanes[i, 0], engine.add_program([send]), lambda: ends.setdefault(i, env.now))
        engine.begin(lanes[i, 1], engine.add_program([receive]), lambda: None)

    def do(worker, turns):
        for (begin, _), (_, seconds) in zip(at_work(turns), turns, strict=True):
            yield env.timeout(begin - env.now)
            done = env.event()
            engine.begin(
                worker, engine.add_program([ProgramStage(local=engine.add_flow(seconds, {}, cap=1.0))]), done.succeed
            )
            yield done

    for i, message in enumerate(messages):
        env.process(carry(i, *message))
    for worker, turns in zip(workers, work, strict=True):
        env.process(do(worker, turns))
    env.run()
    return [ends[i] for i in range(len(messages))]


@settings(max_examples=examples(200))
@given(case=messages_beside_work())
def test_ends_are_those_of_a_loop_that_solves_everything_anew(case):
    expected = pytest.approx(naive_ends(*case), rel=1e-9)
    for local in (True, False):
        assert engine_ends(*case, local=local) == expected


@settings(max_examples=20)
@given(case=messages_beside_work(), after=st.integers(0, 20))
def test_going_on_compiled_changes_no_end(case, after):
    assert engine_ends(*case, plain_events=after) == pytest.approx(naive_ends(*case), rel=1e-9)


# Whole schedules


@pytest.mark.parametrize(
    ("grid", "overlaps", "options", "machine"),
    [
        ("data=2,z=2,y=2,x=1", "oar,ors,oag", {}, "leaves"),
        ("z=2,y=2,x=2", "oar,ors,oag", {"recompute": "full"}, "perlmutter"),
        ("z=3,y=2", "ors,oag", {}, "a slow host"),
        ("pipeline=2,z=2", "none", {"micro_batch": 1}, "star"),
    ],
)
def test_no_switch_changes_the_answer(grid, overlaps, options, machine):
    schedule = scheduled(grid, overlaps, **{"layers": 4, **options})
    given = schedule, slowed(MACHINES[machine](schedule.grid.size), 1.4, 1.2)
    with_all = simulate(*given)
    for off in EACH_SHORTCUT_OFF:
        check_same_op_times(with_all, simulate(*given, shortcuts=Shortcuts(**off)))


@pytest.mark.parametrize("inner", [500, 5000, 50_000])
def test_steps_passed_over_change_nothing(inner):
    schedule, machine = ring_beside_product(inner), slowed(star(MEMBERS), 1.7, 1.19)
    off = Shortcuts(fold=False, fold_time=False, memory=False, local=False)
    assert simulate(schedule, machine).timeline.makespan == pytest.approx(
        simulate(schedule, machine, shortcuts=off).timeline.makespan, rel=1e-12
    )


@pytest.mark.parametrize("grid", ["data=2,z=2,y=2,x=2", "z=3,y=2"])
def test_the_bounds_of_collective_granularity_hold(grid):
    schedule = scheduled(grid, "oar,ors,oag", layers=3)
    machine = slowed(leaf_spine(4, 4, spines=2, **FEW), 8.0)
    exact = simulate(schedule, machine).timeline.makespan
    bound = simulate(schedule, machine, granularity="collective").bound
    assert bound.low * (1 - 1e-12) <= exact <= bound.high * (1 + 1e-12)


def test_the_bounds_of_collective_granularity_know_the_factor():
    schedule, machine = ring_beside_product(5000), star(MEMBERS)
    calm, slow = (simulate(schedule, slowed(machine, f), granularity="collective").bound for f in (1.0, 8.0))
    exact = simulate(schedule, slowed(machine, 8.0)).timeline.makespan
    assert calm.high < exact <= slow.high * (1 + 1e-12)


def test_nccl_takes_at_most_the_factor_beside_work():
    schedule, machine = ring_beside_product(10), find_machine("perlmutter", gpus=4)
    one, other = (
        simulate(schedule, slowed(machine, factor), choices=Choices(implementation="nccl"), granularity="collective")
        for factor in (1.0, 3.0)
    )
    assert other.timeline.makespan == one.timeline.makespan
    assert one.bound.high < other.bound.high <= 3.0 * one.bound.high


def test_sums_alone_are_not_slowed():
    tensors = [Tensor("S", Part("m"), Part("n"))]
    schedule = program_of(
        Grid(x=MEMBERS), tensors, roles=(Role((AllReduce(name="sum", axis="x", buffer="S"),)),), m=6, n=1000
    )
    one, other = (simulate(schedule, slowed(star(MEMBERS), factor)) for factor in (1.0, 3.0))
    assert one.timeline.makespan == other.timeline.makespan
