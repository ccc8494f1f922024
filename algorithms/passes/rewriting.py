"""Programs rewritten op by op, loops as they are: every op changed, some left out, tensors given other names.

A loop with nothing left in it is gone, and so is an edge to an op that is.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from quadrille.algorithms.schedule.expressions import IntExpression, Sum, evaluate, variables
from quadrille.algorithms.schedule.ops import Op, reads, writes
from quadrille.algorithms.schedule.parts import Panel
from quadrille.algorithms.schedule.program import Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule

OPERANDS = frozenset({"a", "b", "c", "into", "source", "sources", "updates", "buffer", "more"})
"""Fields of ops that name tensors."""


def map_ops(program: Program, change: Callable[[Op], Op]) -> Program:
    """The program with every op changed.

    >>> from quadrille.algorithms.schedule.ops import Pointwise
    >>> body = Repeat("layer", 2, (Pointwise(name="empty", function="zero", into="X"),))
    >>> map_ops((body,), lambda op: replace(op, name="again " + op.name))[0].body[0].name
    'again empty'
    """
    return tuple(
        replace(entry, body=map_ops(entry.body, change)) if isinstance(entry, Repeat) else change(entry)
        for entry in program
    )


def filter_ops(program: Program, stays: Callable[[Op], bool]) -> Program:
    """The ops of a program that stay."""
    gone = {op.name for op in ops(program) if not stays(op)}
    return _without(program, stays, gone) if gone else program


def _without(program: Program, stays: Callable[[Op], bool], gone: set[str]) -> Program:
    kept: list[Op | Repeat] = []
    for entry in program:
        if isinstance(entry, Repeat):
            body = _without(entry.body, stays, gone)
            kept += [replace(entry, body=body)] if body else []
        elif stays(entry):
            kept.append(replace(entry, after=tuple(name for name in entry.after if name not in gone)))
    return tuple(kept)


def rename_tensors(program: Program, names: Mapping[str, str]) -> Program:
    """The program with other tensors in the places of some.

    >>> from quadrille.algorithms.schedule.ops import Pointwise
    >>> rename_tensors((Pointwise(name="empty", function="zero", into="X"),), {"X": "Y"})[0].into
    'Y'
    """

    def renamed_op(op: Op) -> Op:
        named = {one.name: getattr(op, one.name) for one in fields(op) if one.name in OPERANDS}
        changes: dict[str, object] = {
            field: tuple(names.get(name, name) for name in value)
            if isinstance(value, tuple)
            else names.get(value, value)
            for field, value in named.items()
        }
        return replace(op, **changes)  # type: ignore[arg-type]

    return map_ops(program, renamed_op)


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
