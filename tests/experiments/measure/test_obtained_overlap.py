"""What a record says came of overlaps."""

from types import SimpleNamespace

import pytest

from quadrille.experiments.measure.obtained_overlap import obtained_overlaps


def op(name, seconds, exposed):
    return SimpleNamespace(name=name, seconds=seconds, exposed_seconds=exposed)


def test_messages_as_fast_during_a_product_as_alone_have_full_overlap_and_those_that_stand_still_none():
    ops = [op("as fast", 3.0, 1.0), op("half as fast", 3.0, 1.0), op("stands still", 3.0, 1.0), op("hidden", 3.0, 0.0)]
    beside = {"as fast": 2 / 3, "half as fast": 1 / 2, "stands still": 0.0, "hidden": 1.0}
    found = {one.op: one.share for one in obtained_overlaps(ops, beside)}
    assert found == pytest.approx({"as fast": 1.0, "half as fast": 0.5, "stands still": 0.0, "hidden": 1.0})


def test_ops_without_local_work_to_overlap_have_no_obtained_overlap():
    assert obtained_overlaps([op("alone", 1.0, 1.0), op("in turn", 1.0, 0.5)], {"alone": 0.0}) == []
