"""Deferred accumulation: scattered gradients are accumulated one iteration later, during the next layer's backward
pass.

With microbatches or mixed precision, each iteration of the backward loop ends with ops that read scattered gradients,
and the compute lane would wait there for the last scatter.  These ops move to the next iteration, just before the
scatter that fills the same buffer again:

    repeat layer, 3, backwards      repeat layer, 1, from 2:    multiply dW; scatter dW
      multiply dW                   repeat layer, 2, backwards
      scatter dW                      multiply dW
      add dW to the sum               add the previous layer's dW to its sum
                                      scatter dW
                                    add dW of layer 0 to its sum

The first iteration is peeled, and the ops of the last one follow the loop.  There, and after scatters outside of layer
loops, such ops move down to the first op that uses the same tensors.
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.analysis.storage import is_single_rank
from quadrille.algorithms.passes.rewriting import is_layer_loop, least_iterations, sum_of
from quadrille.algorithms.schedule.expressions import Affine
from quadrille.algorithms.schedule.ops import Compute, Op, ReduceScatter, reads, writes
from quadrille.algorithms.schedule.program import Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class GradientUses:
    """A scatter, and the ops of the same body that use its result and nothing else that the body writes.

    Parameters
    ----------
    scatter : position of the scatter
    early : positions of the uses moved just before the next iteration's scatter
    late : positions of the uses after a further scatter (over data), which stay after it
    """

    scatter: int
    early: tuple[int, ...]
    late: tuple[int, ...]


def defer_accumulation(schedule: Schedule, program: Program) -> Program:
    """Returns the program that uses scattered gradients later: one iteration later in layer loops."""
    program = _sunk(schedule, program)
    changed: list[Op | Repeat] = []
    for position, entry in enumerate(program):
        if not isinstance(entry, Repeat):
            changed.append(entry)
            continue
        whole = replace(entry, body=defer_accumulation(schedule, entry.body))
        chains = _chains(schedule, whole) if is_layer_loop(schedule, whole) else ()
        if not chains or least_iterations(schedule, whole.count) < 2:
            changed.append(whole)
            continue
        loop, ends = _a_turn_later(whole, chains)
        return (*changed, *loop, *_down(ends, defer_accumulation(schedule, program[position + 1 :])))
    return tuple(changed)


def _sunk(schedule: Schedule, program: Program) -> Program:
    """Moves the uses of a program's own scatters as far to its end as other ops allow."""
    for position in reversed(range(len(program))):
        scatter = program[position]
        uses = _uses(program, position, scatter.into) if isinstance(scatter, ReduceScatter) else ()
        if uses and _scatters(schedule, scatter):
            moved = tuple(program[use] for use in uses)
            rest = tuple(entry for at, entry in enumerate(program) if at > position and at not in uses)
            program = (*program[: position + 1], *_down(moved, rest))
    return program


def _chains(schedule: Schedule, entry: Repeat) -> tuple[GradientUses, ...]:
    body = entry.body
    chains: list[GradientUses] = []
    for position, op in enumerate(body):
        if not isinstance(op, ReduceScatter) or not _scatters(schedule, op):
            continue
        if any(position in (*chain.early, *chain.late) for chain in chains):
            continue
        uses = _uses(body, position, op.into)
        again = [use for use in uses if _scatters(schedule, body[use])]
        early = tuple(use for use in uses if not again or use <= again[0])
        if any(isinstance(body[use], Compute) for use in early):
            chains.append(GradientUses(position, early, uses[len(early) :]))
    return tuple(chains)


def _scatters(schedule: Schedule, entry: Op | Repeat) -> bool:
    """Whether an op is a released scatter of gradients."""
    return isinstance(entry, ReduceScatter) and entry.overlap == "ors" and not is_single_rank(schedule, entry.axis)


def _uses(body: Program, scatter: int, into: str) -> tuple[int, ...]:
    """Returns the positions of the ops that use a scatter's result, or none if they touch tensors of other ops of the
    body.
    """
    derived, uses = {into}, []
    for position in range(scatter + 1, len(body)):
        entry = body[position]
        if not isinstance(entry, Repeat) and derived & {*reads(entry)}:
            derived |= {*writes(entry)}
            uses.append(position)
    touched = {name for position in uses for name in _touched(body[position])}
    others = [entry for position, entry in enumerate(body) if position not in (scatter, *uses)]
    return () if any(touched & _touched(entry) for entry in others) else tuple(uses)


def _touched(entry: Op | Repeat) -> set[str]:
    return {name for op in ops((entry,)) for name in (*reads(op), *writes(op))}


def _a_turn_later(entry: Repeat, chains: tuple[GradientUses, ...]) -> tuple[Program, Program]:
    """Returns the loop, and the ops of its last iteration that follow it."""
    body, step = entry.body, -1 if entry.backwards else 1
    early = {chain.scatter: chain.early for chain in chains}
    late = {position for chain in chains for position in chain.late}
    moved = late.union(*early.values())
    fewer = sum_of(entry.count, -1)
    low, high = entry.first, sum_of(entry.first, fewer)
    begin, end = (high, low) if entry.backwards else (low, high)
    first: list[Op | Repeat] = []
    later: list[Op | Repeat] = []
    for position, op in enumerate(body):
        if position in early:
            uses = tuple(body[use] for use in early[position])
            later.append(Repeat(entry.loop, 1, uses, first=Affine(entry.loop, offset=-step)))
        if position in late:
            later.append(Repeat(entry.loop, 1, (op,), first=Affine(entry.loop, offset=-step)))
        if position not in moved:
            first.append(op)
            later.append(op)
    loop = (
        Repeat(entry.loop, 1, tuple(first), first=begin, backwards=entry.backwards),
        replace(entry, count=fewer, first=low if entry.backwards else sum_of(low, 1), body=tuple(later)),
    )
    last = [use for uses in early.values() for use in uses] + sorted(late)
    return loop, tuple(Repeat(entry.loop, 1, (body[position],), first=end) for position in last)


def _down(uses: Program, program: Program) -> Program:
    """Inserts these ops into the program before the first entry that touches the same tensors."""
    touched = set[str]().union(*map(_touched, uses))
    for position, entry in enumerate(program):
        if touched & _touched(entry):
            return program[:position] + uses + program[position:]
    return program + uses
