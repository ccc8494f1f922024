"""What a record says came of overlaps."""

from types import SimpleNamespace

import pytest

from quadrille.experiments.measure.overlap_obtained import overlaps_obtained


def op(name, seconds, exposed):
    return SimpleNamespace(name=name, seconds=seconds, exposed_seconds=exposed)


def test_messages_as_fast_beside_a_product_as_alone_obtain_all_and_those_that_stand_still_nothing():
    ops = [op("as fast", 3.0, 1.0), op("half as fast", 3.0, 1.0), op("stands still", 3.0, 1.0), op("hidden", 3.0, 0.0)]
    beside = {"as fast": 2 / 3, "half as fast": 1 / 2, "stands still": 0.0, "hidden": 1.0}
    found = {one.op: one.share for one in overlaps_obtained(ops, beside)}
    assert found == pytest.approx({"as fast": 1.0, "half as fast": 0.5, "stands still": 0.0, "hidden": 1.0})


def test_nothing_is_said_of_ops_that_had_no_local_work_beside_them_or_may_not_have():
    assert overlaps_obtained([op("alone", 1.0, 1.0), op("in turn", 1.0, 0.5)], {"alone": 0.0}) == []
