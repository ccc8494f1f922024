"""Tests of op times: the exposed time of work for the host."""

from quadrille.algorithms.timelines.op_times import exposed_seconds
from quadrille.algorithms.timelines.spans import COMPUTE, Span


def test_work_for_the_host_on_the_compute_lane_is_exposed_and_on_a_lane_of_its_own_only_while_nothing_is_computed():
    def span(kind, lane, start, end):
        return Span(0, f"{kind} on {lane}", kind, lane, ready=start, start=start, arrival=start, end=end)

    assert exposed_seconds([span("host_copy", COMPUTE, 0, 2), span("gemm", COMPUTE, 2, 3)]) == [2, 0]
    beside = [span("gemm", COMPUTE, 0, 3), span("host_copy", "to-host", 1, 5), span("host_kernel", "host", 5, 6)]
    assert exposed_seconds(beside) == [0, 2, 1]
