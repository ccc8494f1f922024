"""What the time of a collective is made of: parts that add up, against formulas by hand and the three simulations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.collectives.collective_choices import SETS, parse_choices
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.collective import SimulationOptions
from quadrille.simulator.collectives.run import Causes
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import with_faults

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "send_receive", "barrier")


def parts_of(machine="bench-2to1", *, fold=True, **asked):
    given = {"bytes": 1 << 20, "gpus": 64, "group": 8, "stride": 8, "concurrent": "all", **asked}
    on = find_machine(machine, gpus=given["gpus"]) if isinstance(machine, str) else machine
    made = predict_collective(CollectiveQuestion(options=SimulationOptions(causes=True, fold=fold), **given), on)
    return made.seconds, made.seconds_by_part, made.mean_seconds_by_part


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    name=st.sampled_from(sorted(SETS)),
    size=st.integers(1, 1 << 24),
    shape=st.sampled_from([(8, 8), (16, 4), (4, 1), (64, 1), (2, 32)]),
    shards=st.sampled_from(["exact", "even"]),
    share=st.sampled_from([1.0, 0.3]),
)
def test_parts_are_none_below_zero_and_add_up(kind, name, size, shape, shards, share):
    group, stride = shape
    machine = with_faults(find_machine("bench-2to1", gpus=64), degrade=[f"gpu:5>leaf:0={share}"])
    asked = {"kind": kind, "bytes": 0 if kind == "barrier" else size, "choices": parse_choices(f"own:{name}")}
    seconds, parts, mean = parts_of(machine, group=group, stride=stride, shards=shards, **asked)
    for one in (parts, mean):
        assert min(one.values()) >= 0
        assert sum(one.values()) == pytest.approx(seconds, rel=1e-9)
    assert parts["waiting"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_the_same_without_folding(kind):
    asked = {"kind": kind, "bytes": 0 if kind == "barrier" else 1 << 20}
    (seconds, *views), (other, *others) = (parts_of(fold=fold, **asked) for fold in (True, False))
    assert seconds == pytest.approx(other, rel=1e-9)
    for one, same in zip(views, others, strict=True):
        assert one == pytest.approx(same, rel=1e-9, abs=1e-12 * seconds)


def test_a_barrier_is_all_latency():
    seconds, parts, _ = parts_of(kind="barrier", bytes=0)
    assert parts["latency"] == seconds and parts["bandwidth"] == parts["contention"] == 0


def test_without_contention_there_is_none_and_bytes_follow_the_formula():
    _, parts, _ = parts_of("bench-1to1", kind="all_gather", bytes=1 << 30, group=64, stride=1)
    assert parts["contention"] == 0
    assert parts["latency"] == pytest.approx(63 * 4e-6, rel=1e-9)  # a step is as late as that between two leaves
    assert parts["bandwidth"] == pytest.approx(63 * (1 << 24) / 50e9, rel=1e-9)


def test_more_bandwidth_takes_from_bandwidth_and_contention_alone():
    machine = find_machine("bench-2to1", gpus=64)
    twice = find_machine("bench-2to1", ["topology.bandwidth_bytes_per_second=x2"], gpus=64)
    (_, one, _), (_, other, _) = (parts_of(on, kind="all_gather", bytes=1 << 24) for on in (machine, twice))
    assert one["latency"] == pytest.approx(other["latency"], rel=1e-9)
    assert one["bandwidth"] == pytest.approx(2 * other["bandwidth"], rel=1e-6)


def test_what_passes_before_the_first_byte_is_latency():
    causes = Causes.together(2.0, 1.0)
    assert causes.of(3.0)["latency"] == 0 and causes.of(3.5) == causes.mean_of(3.5)
    assert causes.of(3.5)["latency"] == 0.5
    assert np.isclose(sum(Causes(2.0, 1.0, 1.5, 0.5, 0.25).mean_of(4.0).values()), 4.0)
