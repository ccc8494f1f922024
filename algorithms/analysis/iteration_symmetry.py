"""Which iterations of a rank's program are alike, so that they are walked once (`folded_walk.py`).

What is counted (bytes, flop, buffers) is the same in most iterations of a loop;
only the loops whose index changes a size, a peer or a count are walked turn by turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from quadrille.algorithms.schedule.expressions import variables
from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates, Panel, Part
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import Tensor


@dataclass(frozen=True, slots=True)
class RepeatedInstance:
    """An op at one moment that stands for `count` moments at which it does the same."""

    op: Op
    coordinates: Coordinates
    count: int


def differing_loops(schedule: Schedule) -> frozenset[str]:
    """Loops whose index changes a size, a peer, a root or how often something is repeated.

    An index that only tells copies of a tensor apart makes no difference, and
    one that another loop begins at makes one only if that loop's index does.
    """
    found = {part.panel.loop for tensor in schedule.tensors.values() for part in _parts(tensor) if part.panel}
    found |= {name for tensor in schedule.tensors.values() for part in _parts(tensor) for name in part.rotated_by}
    for op in all_ops(schedule):
        for field_name in ("root", "to", "sender", "distance"):
            found |= variables(getattr(op, field_name, 0))
    repeats = [entry for role in schedule.roles for entry in _repeats(role.program)]
    found |= {name for one in repeats if not isinstance(one.count, Panel) for name in variables(one.count)}
    while more := {name for one in repeats if one.loop in found for name in variables(one.first)} - found:
        found |= more
    return frozenset(found)


def _parts(tensor: Tensor) -> tuple[Part, Part]:
    return tensor.rows, tensor.columns


def _repeats(program: Program) -> Iterator[Repeat]:
    for entry in program:
        if isinstance(entry, Repeat):
            yield entry
            yield from _repeats(entry.body)
