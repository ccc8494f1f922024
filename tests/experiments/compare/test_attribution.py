from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.formats.record import OpRecord, Reference
from quadrille.experiments.compare.attribution import attribute, cause_shares, charged_seconds, charged_waiting
from quadrille.experiments.compare.drift import drift, drift_of_kind

KINDS = ["gemm", "pointwise", "host_copy", "all_gather", "all_reduce", "barrier", "shift"]
times = st.floats(0, 100, allow_subnormal=False)
parts = st.dictionaries(st.sampled_from(["compute", "transfer", "latency", "waiting", "other"]), times)


@st.composite
def pairs(draw):
    kind = draw(st.sampled_from(KINDS))
    return tuple(
        OpRecord(
            name=draw(st.text(max_size=3)),
            kind=kind,
            seconds=draw(times),
            waiting_seconds=draw(times),
            exposed_seconds=draw(times),
            seconds_by_part=draw(parts),
        )
        for _ in range(2)
    )


def gather(seconds, *, exposed=None, waiting=0.0, **by_part):
    return OpRecord(
        name="gather B",
        kind="all_gather",
        seconds=seconds,
        exposed_seconds=seconds if exposed is None else exposed,
        waiting_seconds=waiting,
        seconds_by_part=by_part,
    )


def gemm(seconds, **by_part):
    return OpRecord(name="multiply", kind="gemm", seconds=seconds, seconds_by_part=by_part)


@given(st.floats(-1000, 1000), st.lists(pairs(), max_size=5))
def test_the_causes_add_up_to_the_difference(difference, ops):
    found = attribute(difference, ops)
    assert found.total == difference
    assert fsum(found.by_cause().values()) == pytest.approx(difference, rel=1e-12, abs=1e-9)


@given(st.lists(pairs(), max_size=5))
def test_a_record_differs_from_itself_in_nothing(ops):
    same = attribute(0.0, [(one, one) for one, _ in ops])
    assert set(same.by_cause().values()) <= {0.0}


@given(st.lists(pairs(), min_size=1, max_size=5))
def test_parts_of_an_op_add_up_to_one(ops):
    for one, _ in ops:
        assert fsum(cause_shares(one).values()) == pytest.approx(1)


def test_a_slower_gemm_is_computing_whatever_its_parts():
    found = attribute(-0.5, [(gemm(1.0, compute=0.9, other=0.1), gemm(1.5))])
    assert found.compute == -0.5
    assert found.other == 0.0


def test_a_difference_of_communication_is_split_as_its_prediction():
    found = attribute(0.8, [(gather(2.0, transfer=1.0, latency=0.5, compute=0.5), gather(1.2))])
    assert (found.transfer, found.latency, found.compute) == pytest.approx((0.4, 0.2, 0.2))


def test_communication_without_parts_is_all_transfer_and_a_barrier_all_latency():
    assert dict(cause_shares(gather(2.0))) == {"transfer": 1.0}
    assert dict(cause_shares(OpRecord(name="wait", kind="barrier", seconds=1.0))) == {"latency": 1.0}


def test_communication_hidden_on_both_sides_explains_nothing():
    found = attribute(0.0, [(gather(9.0, exposed=0.0), gather(1.0, exposed=0.0))])
    assert found.transfer == found.other == 0.0


def test_communication_that_was_only_thought_to_be_hidden_is_transfer():
    found = attribute(-3.0, [(gather(3.0, exposed=0.0), gather(3.0))])
    assert found.transfer == -3.0
    assert found.other == 0.0


def test_waiting_counts_as_far_as_its_op_is_exposed():
    assert charged_waiting(gather(2.0, waiting=1.0)) == 1.0
    assert charged_waiting(gather(2.0, waiting=1.0, exposed=0.5)) == 0.25
    assert charged_waiting(gather(0.0, waiting=1.0)) == 1.0
    assert attribute(-1.0, [(gather(2.0), gather(2.0, waiting=1.0))]).waiting == -1.0


def test_idle_time_is_other():
    assert attribute(2.0, [(gemm(1.0), gemm(1.0))]).other == 2.0


def test_host_copies_count_as_far_as_the_device_computes_nothing_and_move_bytes():
    copy = OpRecord(name="copy", kind="host_copy", seconds=3.0, exposed_seconds=2.0)
    assert charged_seconds(copy) == 2.0
    assert dict(cause_shares(copy)) == {"transfer": 1.0}


def test_drift_is_the_ratio_of_medians_of_the_reference_kernels():
    before = Reference((1.0,), (4.0,), (2.0,))
    beside = Reference((1.2, 1.3, 9.0), (4.0, 4.0), (2.0, 2.0, 2.0))
    found = drift(before, beside, [gemm(3.0), gather(1.0)])
    assert found.gemm == pytest.approx(1.3)
    assert found.memory == pytest.approx(1.0)
    assert found.total == pytest.approx((1.3 * 3 + 1) / 4)


@given(st.floats(0.5, 2), st.floats(0.5, 2), times, times)
def test_the_drift_of_the_makespan_lies_between_those_of_the_kernels(faster, slower, computing, moving):
    found = drift(Reference((1.0,), (1.0,), ()), Reference((faster,), (slower,), ()), [gemm(computing), gather(moving)])
    if computing + moving > 0:
        assert min(faster, slower) * (1 - 1e-9) <= found.total <= max(faster, slower) * (1 + 1e-9)
    else:
        assert found.total is None


def test_the_memory_kernels_count_equally_for_all_that_is_no_gemm():
    found = drift(Reference((1.0,), (1.0,), (1.0,)), Reference((1.0,), (4.0,), (1.0,)), [])
    assert [drift_of_kind(found, kind) for kind in KINDS] == [1.0, *[2.0] * (len(KINDS) - 1)]


def test_where_as_many_as_share_cores_time_the_kernels_links_keep_their_rates():
    found = drift(
        Reference((1.0,), (1.0,), (1.0,), concurrent_ranks=2),
        Reference((1.5,), (2.0,), (2.0,), concurrent_ranks=2),
        [gemm(1.0), gather(1.0)],
    )
    assert [drift_of_kind(found, kind) for kind in ("gemm", "pointwise", "all_gather")] == [1.5, 2.0, 1.0]
    assert found.total == 1.25


def test_kernels_that_another_number_of_ranks_timed_at_once_show_no_drift():
    found = drift(Reference((1.0,), (1.0,), (1.0,), concurrent_ranks=2), Reference((3.0,), (3.0,), (3.0,)), [gemm(1.0)])
    assert found.gemm is None and found.total is None


@pytest.mark.parametrize("missing", [None, Reference(), Reference((1.0,), (), ())])
def test_a_drift_that_was_not_seen_is_not_known(missing):
    found = drift(missing, Reference((1.0,), (1.0,), (1.0,)), [gemm(1.0), gather(1.0)])
    assert found.memory is None
    assert found.total is None


def test_one_rank_alone_needs_no_memory_kernel():
    assert drift(Reference((1.0,)), Reference((1.1,)), [gemm(1.0)]).total == pytest.approx(1.1)
