"""The library's collectives between products: every rank takes each step, and these count from the last to come."""

import pytest

from algorithms.timelines.spans import Span
from runtime.execute import execute
from runtime.in_process import InProcess
from runtime.measuring import chains
from runtime.measuring.library_chains import KINDS, WARM, Shape, collective_chain, shapes, step_seconds
from runtime.operands import Operands

STEPS = 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", list(shapes(4)))
def test_every_rank_takes_each_step_after_a_product(monkeypatch, kind, shape):
    monkeypatch.setattr(chains, "PRODUCT_SIZE", 16)
    schedule = collective_chain(kind, shape, 1000, STEPS)
    operands = Operands(16, 16, 16, "float32")
    (timeline,) = execute(schedule, operands, InProcess(4), repeats=1).timelines
    for rank in range(4):
        ops = [span.op for span in sorted(timeline.spans, key=lambda span: span.start) if span.rank == rank]
        assert ops == ["write", "multiply", "step"] * (WARM + STEPS)


@pytest.mark.parametrize("ranks", [12, 64, 97, 4096])
def test_a_large_world_has_a_few_shapes_all_ranks_among_them(ranks):
    found = list(shapes(ranks))
    assert 1 <= len(found) <= 3 and Shape(ranks, 1, ranks) in found
    assert all(shape.grid().size == ranks and shape.members > 1 for shape in found)


def test_a_step_lasts_from_the_last_to_come_to_the_mean_end():
    spans = tuple(
        Span(rank, "step", "all_gather", "y", start, start, start, end, index=WARM)
        for rank, (start, end) in enumerate([(1.0, 4.0), (3.0, 6.0)])
    )
    assert step_seconds(Shape(2, 1, 2), spans) == [(4.0 + 6.0) / 2 - 3.0]
