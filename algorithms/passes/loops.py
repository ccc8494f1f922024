"""What passes over a schedule ask of its loops: which go over layers, how many turns there are, sums of bounds."""

from quadrille.algorithms.schedule.expressions import IntExpression, Sum, evaluate, variables
from quadrille.algorithms.schedule.ops import reads, writes
from quadrille.algorithms.schedule.parts import Panel
from quadrille.algorithms.schedule.program import Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule


def is_layer_loop(schedule: Schedule, entry: Repeat) -> bool:
    """Whether the turns of a loop use tensors of their own that it does not make: weights, what a layer kept."""
    body = list(ops(entry.body))
    made = {name for op in body for name in writes(op)}
    used = {name for op in body for name in reads(op)} - made - {*schedule.inputs}
    return any(entry.loop in dict(schedule.tensors[name].copies) for name in used)


def least_iterations(schedule: Schedule, count: IntExpression | Panel) -> int:
    """The fewest turns that a rank makes of a loop over layers; 1 where other loops decide."""
    if isinstance(count, int):
        return count
    if isinstance(count, Panel) or not variables(count) <= {"pipeline"}:
        return 1
    place = schedule.coordinates(0)
    return min(evaluate(count, place.at("pipeline", stage)) for stage in range(schedule.grid.pipeline))


def sum_of(one: IntExpression | Panel, other: IntExpression) -> IntExpression:
    """The sum of two numbers; of two that are known, a number.

    >>> sum_of(3, -1)
    2
    """
    assert not isinstance(one, Panel)
    return one + other if isinstance(one, int) and isinstance(other, int) else Sum(one, other)
