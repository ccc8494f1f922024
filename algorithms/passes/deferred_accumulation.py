"""What uses a scattered gradient waits a turn: a layer's sums are added up while the next layer's are made.

Where gradients are accumulated (microbatches, mixed precision) each turn of the
backward loop ends with ops that read what the scatters have left, and the compute
lane would wait there for the last scatter.  So these ops are done in the next
turn, just before the scatter that fills the same buffer again:

    repeat layer, 3, backwards      repeat layer, 1, from 2:    multiply dW; scatter dW
      multiply dW                   repeat layer, 2, backwards
      scatter dW                      multiply dW
      add dW to the sum               add dW of the layer before to its sum
                                      scatter dW
                                    add dW of layer 0 to its sum

The first turn is written apart, and the last one's ops follow the loop.  There,
and behind a scatter outside of a loop over layers, such ops go as far down as
nothing else touches what they touch.
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
    """A scatter, and the ops of the same body that use its result and nothing else that the body makes.

    Parameters
    ----------
    scatter : its position
    early : positions of the uses that are done just before the next turn's scatter
    late : of those that follow a further scatter (over data) and stay behind it
    """

    scatter: int
    early: tuple[int, ...]
    late: tuple[int, ...]


def defer_accumulation(schedule: Schedule, program: Program) -> Program:
    """The program that uses scattered gradients later: in loops over layers a turn later."""
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
    """The program with the uses of its own scatters at its end, or as near as other ops let them."""
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
    found: list[GradientUses] = []
    for position, op in enumerate(body):
        if not isinstance(op, ReduceScatter) or not _scatters(schedule, op):
            continue
        if any(position in (*chain.early, *chain.late) for chain in found):
            continue
        uses = _uses(body, position, op.into)
        again = [use for use in uses if _scatters(schedule, body[use])]
        early = tuple(use for use in uses if not again or use <= again[0])
        if any(isinstance(body[use], Compute) for use in early):
            found.append(GradientUses(position, early, uses[len(early) :]))
    return tuple(found)


def _scatters(schedule: Schedule, entry: Op | Repeat) -> bool:
    """Whether it is a scatter of gradients that nothing waits for."""
    return isinstance(entry, ReduceScatter) and entry.overlap == "ors" and not is_single_rank(schedule, entry.axis)


def _uses(body: Program, scatter: int, into: str) -> tuple[int, ...]:
    """Positions of the ops that use what a scatter leaves; none where they touch what other ops of the body do."""
    made, uses = {into}, []
    for position in range(scatter + 1, len(body)):
        entry = body[position]
        if not isinstance(entry, Repeat) and made & {*reads(entry)}:
            made |= {*writes(entry)}
            uses.append(position)
    touched = {name for position in uses for name in _touched(body[position])}
    others = [entry for position, entry in enumerate(body) if position not in (scatter, *uses)]
    return () if any(touched & _touched(entry) for entry in others) else tuple(uses)


def _touched(entry: Op | Repeat) -> set[str]:
    return {name for op in ops((entry,)) for name in (*reads(op), *writes(op))}


def _a_turn_later(entry: Repeat, chains: tuple[GradientUses, ...]) -> tuple[Program, Program]:
    """The loop, and the ops of its last turn that follow it."""
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
    """The program with these ops in it, behind all entries up to the first that touches what they touch."""
    touched = set[str]().union(*map(_touched, uses))
    for position, entry in enumerate(program):
        if touched & _touched(entry):
            return program[:position] + uses + program[position:]
    return program + uses
