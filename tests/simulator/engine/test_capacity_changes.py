"""Links whose rate a token bucket keeps: a burst after an idle time, then the rate, shared by all who send."""

import msgspec
import numpy as np
import pytest
import simpy

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.simulator.engine import rates
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.engine.flow_state import new_flow_state
from quadrille.simulator.machine.network import bursts_of, network_of
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.topologies.machines.machine import NetworkCosts
from tests.support.simulated_lanes import counts_of, simulated_spans
from tests.support.toy_laboratories import LEAF_SPINE, laboratory

RATE, BURST = 10.0, 100.0


def ends_of(sizes, *, starts=None, links=1, cap=1e6, buckets=1):
    """When transfers of so many bytes end that begin at these times on the same links, some of which have buckets."""
    env = simpy.Environment()
    engine = FlowEngine(env)
    ways = [engine.add_link(RATE, BURST) if link < buckets else engine.add_resource(RATE) for link in range(links)]
    ends = {}
    for number, size in enumerate(sizes):
        program = engine.add_program([ProgramStage(local=engine.add_flow(size, dict.fromkeys(ways, 1.0), cap=cap))])
        member, start = engine.add_stream(), (starts or [0.0] * len(sizes))[number]

        def begin(member=member, program=program, start=start, number=number):
            yield env.timeout(start)
            engine.begin(member, program, lambda: ends.__setitem__(number, env.now))

        env.process(begin())
    env.run()
    return [ends[number] for number in range(len(sizes))]


@pytest.mark.parametrize("size", [BURST, 3 * BURST, 10 * BURST])
def test_the_first_bytes_after_an_idle_time_go_at_once_and_the_rest_at_the_rate(size):
    assert ends_of([size]) == pytest.approx([(size - BURST) / RATE], abs=0.01)


def test_what_is_slower_than_the_link_sees_no_bucket():
    assert ends_of([50.0], cap=5.0) == pytest.approx([10.0])


def test_what_is_faster_empties_the_bucket_by_what_it_is_faster():
    empty = BURST / (20.0 - RATE)
    assert ends_of([1000.0], cap=20.0) == pytest.approx([empty + (1000.0 - 20.0 * empty) / RATE])


def test_buckets_one_behind_the_other_are_as_one():
    assert ends_of([500.0], links=3, buckets=3) == pytest.approx(ends_of([500.0]))


def test_a_link_without_a_bucket_on_the_way_keeps_its_rate_from_the_first_byte():
    for buckets in (1, 2):
        assert ends_of([500.0], links=3, buckets=buckets) == pytest.approx([50.0])


def test_transfers_that_begin_together_share_the_bucket():
    one, other = ends_of([300.0, 300.0])
    assert one == other == pytest.approx((600.0 - BURST) / RATE, abs=0.01)


@pytest.mark.parametrize("rest", [0.0, 0.25, 1.0, 3.0])
def test_a_bucket_fills_at_the_rate_of_its_link_while_nothing_is_sent(rest):
    first = (300.0 - BURST) / RATE
    start = first + rest * BURST / RATE
    again = ends_of([300.0, 300.0], starts=[0.0, start])[1]
    assert again - start == pytest.approx((300.0 - min(1.0, rest) * BURST) / RATE, abs=0.02)


CASES = [
    laboratory(7e4),
    laboratory({"host:0-switch:0": 7e4}),
    laboratory({"switch:0>host:1": 7e4, "host:2-switch:0": 2e4}, cost=1e-9),
    laboratory(7e4, family=LEAF_SPINE, cost=4e-8),
    laboratory({"leaf:0-spine:0": 3e5}, family=LEAF_SPINE),
]


@pytest.mark.parametrize("machine", CASES)
@pytest.mark.parametrize("grid", [Grid(x=2, z=2), Grid(y=4), Grid(y=2, x=2, z=2)])
def test_folding_and_remembering_change_nothing_where_links_have_buckets_and_hosts_share_cores(machine, grid):
    schedule = matmul_schedule(Matmul(512, 512, 512), "4d", grid)
    times = [
        simulate(schedule, machine, shortcuts=shortcuts).timeline.makespan
        for shortcuts in (Shortcuts(), Shortcuts(fold=False), Shortcuts(fold=False, memory=False, local=False))
    ]
    assert times[1:] == pytest.approx(times[:1] * 2, rel=1e-9)


def test_compiled_kernels_give_the_same_spans():
    schedule = matmul_schedule(Matmul(512, 512, 512), "4d", Grid(y=4))
    plain, compiled = (simulated_spans(schedule, CASES[3], plain_events=count) for count in (1 << 60, 3))
    assert compiled == plain


@pytest.mark.parametrize("plain_events", [1, 20, 60])
def test_a_change_to_compiled_kernels_adds_no_update_of_rates(plain_events):
    schedule = matmul_schedule(Matmul(512, 512, 512), "4d", Grid(y=4))
    plain, changing = (counts_of(schedule, CASES[3], plain_events=count) for count in (1 << 60, plain_events))
    assert changing == plain


def test_a_bucket_makes_a_step_of_a_ring_shorter_by_what_it_lets_through():
    schedule = matmul_schedule(Matmul(1024, 1024, 1024), "4d", Grid(z=2))
    gather = {
        bursts: simulate(schedule, laboratory(bursts)).timeline.op_times()["gather B"].seconds for bursts in (None, 7e4)
    }
    assert gather[None] - gather[7e4] == pytest.approx(7e4 / 25e6, rel=1e-4)


def test_buckets_are_of_every_link_or_of_those_that_are_named():
    machine = laboratory({"host:0-switch:0": 1e4, "switch:0>host:1": 2e4})
    net = network_of(machine)
    found = dict(zip(net.link_names(np.arange(net.link_count)), bursts_of(machine, net).tolist(), strict=True))
    assert {name: burst for name, burst in found.items() if burst} == {
        "host:0>switch:0": 1e4,
        "switch:0>host:0": 1e4,
        "switch:0>host:1": 2e4,
    }
    assert set(bursts_of(laboratory(5e4), net).tolist()) == {5e4}
    with pytest.raises(InputError, match="host:9"):
        bursts_of(laboratory({"host:9-switch:0": 1e4}), net)


def test_headers_take_their_share_of_every_link():
    whole, less = (
        msgspec.structs.replace(laboratory(None), network=NetworkCosts(payload_share=share)) for share in (1.0, 0.96)
    )
    assert network_of(less).bandwidths.tolist() == pytest.approx((0.96 * network_of(whole).bandwidths).tolist())


def test_links_have_each_their_own_share_of_their_rate_and_degraded_ones_a_part_of_that():
    shares = {"host:0-switch:0": 0.5, "switch:0>host:1": 0.9}
    machine = msgspec.structs.replace(laboratory(None), network=NetworkCosts(payload_share=shares))
    slowed = msgspec.structs.replace(machine, faults=Faults(degrade={"host:0>switch:0": 0.5}))
    whole = network_of(msgspec.structs.replace(machine, network=None))
    expected = dict.fromkeys(whole.link_names(np.arange(whole.link_count)), 1.0)
    expected |= {"host:0>switch:0": 0.5, "switch:0>host:0": 0.5, "switch:0>host:1": 0.9}
    assert (network_of(machine).bandwidths / whole.bandwidths).tolist() == pytest.approx(list(expected.values()))
    expected["host:0>switch:0"] = 0.25
    assert (network_of(slowed).bandwidths / whole.bandwidths).tolist() == pytest.approx(list(expected.values()))
    with pytest.raises(InputError, match="link 'host:9>switch:0' is not in topology"):
        network_of(msgspec.structs.replace(machine, network=NetworkCosts(payload_share={"host:9>switch:0": 0.5})))


def test_a_gather_takes_as_long_as_its_slowest_link_by_its_share():
    schedule = matmul_schedule(Matmul(1024, 1024, 1024), "4d", Grid(z=2))
    every, one = (
        simulate(schedule, msgspec.structs.replace(laboratory(None), network=NetworkCosts(payload_share=share)))
        for share in (0.5, {"host:0>switch:0": 0.5})
    )
    assert one.timeline.op_times()["gather B"].seconds == pytest.approx(every.timeline.op_times()["gather B"].seconds)


def test_a_link_that_changes_later_leaves_no_other_out():
    """Two flows, each held to a half now, share a link of capacity 1, which holds them once they may go faster."""
    for changing, expected in (((), [1.0, 1.0]), ((0, 1), [0.5, 0.5])):
        state = new_flow_state(
            np.array([0.5, 0.5, 1.0]),
            np.array([0, 2, 4]),
            np.array([0, 2, 1, 2]),
            np.ones(4),
            np.ones(2),
            np.full(2, np.inf),
            changing=changing,
        )
        state.capacities[:2] = 1.0
        changed = np.zeros(2, np.int64)
        for flow in (0, 1):
            rates.begin_flow(state, flow)
        rates.update_rates(state, changed)
        assert state.rate.tolist() == expected
