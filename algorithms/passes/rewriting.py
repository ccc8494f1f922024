"""Rewriting of programs: functions that change every op, remove ops or rename tensors, and tests of loops for passes.

A loop that becomes empty is removed.  Ordering edges to removed ops are removed too.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache

from quadrille.algorithms.schedule.expressions import IntExpression, Sum, evaluate, variables
from quadrille.algorithms.schedule.ops import Op, reads, writes
from quadrille.algorithms.schedule.parts import Panel
from quadrille.algorithms.schedule.program import Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule

OPERANDS = frozenset({"a", "b", "c", "into", "source", "sources", "updates", "buffer", "more", "counts"})
"""Fields of ops that name tensors."""


def map_ops(program: Program, change: Callable[[Op], Op]) -> Program:
    """Returns the program with `change` applied to every op.

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
    """Returns the program with only the ops for which `stays` is true."""
    removed = {op.name for op in ops(program) if not stays(op)}
    return _without(program, stays, removed) if removed else program


def _without(program: Program, stays: Callable[[Op], bool], removed: set[str]) -> Program:
    remaining: list[Op | Repeat] = []
    for entry in program:
        if isinstance(entry, Repeat):
            body = _without(entry.body, stays, removed)
            remaining += [replace(entry, body=body)] if body else []
        elif stays(entry):
            remaining.append(replace(entry, after=tuple(name for name in entry.after if name not in removed)))
    return tuple(remaining)


def rename_tensors(program: Program, names: Mapping[str, str]) -> Program:
    """Returns the program with some tensors replaced by others.

    >>> from quadrille.algorithms.schedule.ops import Pointwise
    >>> rename_tensors((Pointwise(name="empty", function="zero", into="X"),), {"X": "Y"})[0].into
    'Y'
    """

    def renamed_op(op: Op) -> Op:
        changes: dict[str, object] = {}
        for field in _operands(type(op)):  # type: ignore[arg-type]  # classes are hashable
            value = getattr(op, field)
            if isinstance(value, tuple):
                if any(name in names for name in value):
                    changes[field] = tuple(names.get(name, name) for name in value)
            elif value in names:
                changes[field] = names[value]
        return replace(op, **changes) if changes else op  # type: ignore[arg-type]

    return map_ops(program, renamed_op)


@cache
def _operands(kind: type[Op]) -> tuple[str, ...]:
    """The fields of a kind of ops that name tensors."""
    return tuple(field.name for field in fields(kind) if field.name in OPERANDS)


def is_layer_loop(schedule: Schedule, entry: Repeat) -> bool:
    """Whether a loop runs over layers: each iteration reads weights or stored activations of its own."""
    body = list(ops(entry.body))
    written = {name for op in body for name in writes(op)}
    used = {name for op in body for name in reads(op)} - written - {*schedule.inputs}
    return any(entry.loop in dict(schedule.tensors[name].copies) for name in used)


def least_iterations(schedule: Schedule, count: IntExpression | Panel) -> int:
    """Smallest number of iterations that a rank makes of a layer loop; 1 if other loops determine it."""
    if isinstance(count, int):
        return count
    if isinstance(count, Panel) or not variables(count) <= {"pipeline"}:
        return 1
    coordinates = schedule.coordinates(0)
    return min(evaluate(count, coordinates.at("pipeline", stage)) for stage in range(schedule.grid.pipeline))


def sum_of(left: IntExpression | Panel, right: IntExpression) -> IntExpression:
    """Sum of two expressions; an integer if both are integers.

    >>> sum_of(3, -1)
    2
    """
    assert not isinstance(left, Panel)
    return left + right if isinstance(left, int) and isinstance(right, int) else Sum(left, right)
