"""Memory over a step against the planned buffers, and against what the order of passes says is in flight."""

from dataclasses import replace
from itertools import pairwise

import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.memory import ACTIVATIONS, memory_bytes_by_kind
from quadrille.algorithms.training.memory_over_time import UNUSED, memory_counter
from quadrille.algorithms.training.mlp import Mlp, mlp_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D

PROBLEM = Gpt(layers=4, hidden=32, heads=4, sequence=8, vocabulary=64, batch=8)


def spans_in_order(schedule, rank):
    """Spans of a second each, in the order of the rank's program."""
    coordinates, counts, spans = schedule.coordinates(rank), {}, []
    for start, (op, _) in enumerate(walk(schedule.program(coordinates), coordinates)):
        index = counts[op.name] = counts.get(op.name, -1) + 1
        spans.append(Span(rank, op.name, "kernel", "compute", start, start, start, start + 1, index=index))
    return spans


def counter_of(schedule, rank=0):
    return memory_counter(schedule, Choices(), rank, spans_in_order(schedule, rank))


def activations(counter):
    return [values[ACTIVATIONS] for _, values in counter.changes]


@pytest.mark.parametrize("changes", [{}, {"recompute": "full"}, {"micro_batch": 2, "zero": 3}, {"dtype": "bfloat16"}])
def test_the_sum_is_always_the_planned_memory_and_the_constant_kinds_stay(changes):
    schedule = gpt_schedule(replace(PROBLEM, **changes), Grid(data=2, x=2), Scheme4D())
    planned = memory_bytes_by_kind(schedule, schedule.coordinates(0), Choices())
    for _, values in counter_of(schedule).changes:
        assert sum(values.values()) == sum(planned.values())
        constant = {kind: size for kind, size in values.items() if kind not in (ACTIVATIONS, UNUSED)}
        assert constant == {kind: size for kind, size in planned.items() if size and kind != ACTIVATIONS}
        assert values[UNUSED] >= 0


def test_without_pipeline_the_forward_pass_fills_and_the_backward_pass_frees_all_activations():
    schedule = gpt_schedule(PROBLEM, Grid(x=2), Scheme4D())
    levels = activations(counter_of(schedule))
    top = levels.index(max(levels))
    assert levels[: top + 1] == sorted(levels[: top + 1]) and levels[top:] == sorted(levels[top:], reverse=True)
    planned = memory_bytes_by_kind(schedule, schedule.coordinates(0), Choices())
    assert (levels[0], levels[top], levels[-1]) == (0, planned[ACTIVATIONS], 0)


def test_a_stage_of_1f1b_holds_as_many_microbatches_as_stages_follow_it():
    """Stage s of p holds p - s microbatches at most: each more adds the activations of one."""
    stages = 4
    schedule = gpt_schedule(replace(PROBLEM, micro_batch=1), Grid(pipeline=stages), Scheme4D())
    most = [max(activations(counter_of(schedule, rank))) for rank in range(stages)]
    each = most[1] - most[2]
    assert [before - after for before, after in pairwise(most)] == [each] * (stages - 1)
    one = gpt_schedule(replace(PROBLEM, batch=1), Grid(), Scheme4D())
    of_all_layers = memory_bytes_by_kind(one, one.coordinates(0), Choices())[ACTIVATIONS]
    assert each == pytest.approx(of_all_layers / stages, rel=0.05)


def test_the_input_of_an_mlp_stays_in_use():
    """The input is the user's, so it does not end with its last use; outputs of layers do."""
    schedule = mlp_schedule(Mlp((4, 4, 4, 4), rows=8, dtype="float64"), Grid(), Scheme4D())
    levels = activations(counter_of(schedule))
    assert levels[0] == levels[-1] == 8 * 4 * 8 < max(levels)


def test_spans_of_another_program_have_no_counter():
    schedule = gpt_schedule(PROBLEM, Grid(), Scheme4D())
    spans = spans_in_order(schedule, 0)
    assert memory_counter(schedule, Choices(), 0, spans[:-1]) is None
    assert memory_counter(schedule, Choices(), 0, [*spans, spans[-1].moved(1.0, 1)]) is None
    assert memory_counter(schedule, Choices(), 0, []) is None
