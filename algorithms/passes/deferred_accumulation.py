"""Deferred accumulation: a layer's reduce-scattered gradient is added to the accumulated gradient one layer later.

With microbatches or mixed precision, each iteration of the backward loop ends with ops that read the result of a
reduce-scatter (casts and additions to the accumulated gradient), and the compute lane would wait there for the
reduce-scatter.  The pass moves these ops to the next iteration, just before the reduce-scatter that fills the same
buffer again, so that the reduce-scatter overlaps the next layer's backward pass:

    before                          after
    repeat layer, 3, backwards      repeat layer, 1, from 2
      multiply dW                     multiply dW
      scatter dW                      scatter dW
      add dW to the sum             repeat layer, 2, backwards
                                      multiply dW
                                      add the previous layer's dW to its sum
                                      scatter dW
                                    add dW of layer 0 to its sum

`repeat layer, N, from K` is a loop of N iterations over the index `layer`, which begins at K (0 if omitted); with
`backwards` the same indices run downwards.  `scatter` is a reduce-scatter.

A gradient that is all-reduced in the same iteration (`reductions_in_passes.py`) keeps its ops there.

The first iteration is peeled, and the ops of the last iteration follow the loop.  There, and after reduce-scatters
outside of layer loops, the ops move down to the first op that uses the same tensors: of a parameter in host memory, to
the loop that updates its buckets.
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.analysis.storage import is_single_rank
from quadrille.algorithms.passes.rewriting import is_layer_loop, least_iterations, sum_of
from quadrille.algorithms.schedule.expressions import Affine
from quadrille.algorithms.schedule.ops import AllReduce, Compute, Op, ReduceScatter, reads, writes
from quadrille.algorithms.schedule.program import Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class GradientUses:
    """The positions of a reduce-scatter in a loop body, and of the ops that use its result.

    These ops use no other tensor that the body writes.

    Parameters
    ----------
    scatter : position of the reduce-scatter
    early : positions of the uses that move just before the next iteration's reduce-scatter
    late : positions of the uses after a second reduce-scatter (over data), which stay after it
    """

    scatter: int
    early: tuple[int, ...]
    late: tuple[int, ...]


def defer_accumulation(schedule: Schedule, program: Program) -> Program:
    """Returns the program with the uses of reduce-scattered gradients moved later: by one iteration in layer loops.

    Parameters
    ----------
    schedule : schedule that the program belongs to
    program : program of one role, or the body of one of its loops
    """
    program = _move_uses_down(schedule, program)
    changed: list[Op | Repeat] = []
    for position, entry in enumerate(program):
        if not isinstance(entry, Repeat):
            changed.append(entry)
            continue
        whole = replace(entry, body=defer_accumulation(schedule, entry.body))
        gradients = _gradient_uses(schedule, whole) if is_layer_loop(schedule, whole) else ()
        if not gradients or least_iterations(schedule, whole.count) < 2:
            changed.append(whole)
            continue
        loop, last_uses = _defer_by_one_iteration(whole, gradients)
        following = defer_accumulation(schedule, program[position + 1 :])
        return (*changed, *loop, *_insert_before_first_use(schedule, last_uses, following))
    return tuple(changed)


def _move_uses_down(schedule: Schedule, program: Program) -> Program:
    """Moves the uses of the program's own reduce-scatters as far to its end as other ops allow."""
    for position in reversed(range(len(program))):
        scatter = program[position]
        uses = (
            _uses(schedule, program, position, scatter.into, before_buckets=True)
            if isinstance(scatter, ReduceScatter)
            else ()
        )
        if uses and _is_overlapped_scatter(schedule, scatter):
            use_ops = tuple(program[use] for use in uses)
            rest = tuple(entry for at, entry in enumerate(program) if at > position and at not in uses)
            program = (*program[: position + 1], *_insert_before_first_use(schedule, use_ops, rest))
    return program


def _gradient_uses(schedule: Schedule, entry: Repeat) -> tuple[GradientUses, ...]:
    """Returns the overlapped reduce-scatters of a loop body whose results local ops use."""
    body = entry.body
    gradients: list[GradientUses] = []
    for position, op in enumerate(body):
        if not isinstance(op, ReduceScatter) or not _is_overlapped_scatter(schedule, op):
            continue
        if any(position in (*gradient.early, *gradient.late) for gradient in gradients):
            continue
        uses = _uses(schedule, body, position, op.into)
        if any(isinstance(body[use], AllReduce) for use in uses):
            continue
        second_scatters = [use for use in uses if _is_overlapped_scatter(schedule, body[use])]
        early = tuple(use for use in uses if not second_scatters or use <= second_scatters[0])
        if any(isinstance(body[use], Compute) for use in early):
            gradients.append(GradientUses(position, early, uses[len(early) :]))
    return tuple(gradients)


def _is_overlapped_scatter(schedule: Schedule, entry: Op | Repeat) -> bool:
    """Whether an op is a reduce-scatter of several ranks that the overlap `ors` releases."""
    return isinstance(entry, ReduceScatter) and entry.overlap == "ors" and not is_single_rank(schedule, entry.axis)


def _uses(
    schedule: Schedule, body: Program, scatter: int, into: str, *, before_buckets: bool = False
) -> tuple[int, ...]:
    """Returns the positions of the ops that use a reduce-scatter's result; none if other ops of the body share tensors.

    Parameters
    ----------
    body : loop body
    scatter : position of the reduce-scatter
    into : tensor that the reduce-scatter writes
    before_buckets : whether loops over buckets of these tensors may follow the last use
    """
    derived, uses = {into}, []
    for position in range(scatter + 1, len(body)):
        entry = body[position]
        if not isinstance(entry, Repeat) and derived & {*reads(entry)}:
            derived |= {*writes(entry)}
            uses.append(position)
    touched = {name for position in uses for name in _touched(schedule, body[position])}
    others = [
        entry
        for position, entry in enumerate(body)
        if position not in (scatter, *uses)
        and not (before_buckets and uses and position > uses[-1] and _updates_buckets(schedule, entry))
    ]
    return () if any(touched & _touched(schedule, entry) for entry in others) else tuple(uses)


def _updates_buckets(schedule: Schedule, entry: Op | Repeat) -> bool:
    """Whether an entry is a loop over the buckets of a parameter."""
    if not isinstance(entry, Repeat):
        return False
    buckets = (schedule.tensors[name].buckets for op in entry.body if isinstance(op, Compute) for name in reads(op))
    return any(bucket is not None and bucket[0] == entry.loop for bucket in buckets)


def _touched(schedule: Schedule, entry: Op | Repeat) -> set[str]:
    """Returns the tensors that an op, or the body of a loop, reads or writes; a bucket in a tensor's buffer counts as
    that tensor.
    """
    return {_whole(schedule, name) for op in ops((entry,)) for name in (*reads(op), *writes(op))}


def _whole(schedule: Schedule, name: str) -> str:
    """Returns the tensor whose buffer stores a bucket; any other tensor is returned unchanged."""
    tensor = schedule.tensors[name]
    return tensor.shard_of if tensor.buckets is not None and tensor.shard_of is not None else name


def _defer_by_one_iteration(entry: Repeat, gradients: tuple[GradientUses, ...]) -> tuple[Program, Program]:
    """Returns the peeled first iteration with the changed loop, and the uses of the last iteration that follow it."""
    body, step = entry.body, -1 if entry.backwards else 1
    early = {gradient.scatter: gradient.early for gradient in gradients}
    late = {position for gradient in gradients for position in gradient.late}
    deferred = late.union(*early.values())
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
        if position not in deferred:
            first.append(op)
            later.append(op)
    loop = (
        Repeat(entry.loop, 1, tuple(first), first=begin, backwards=entry.backwards),
        replace(entry, count=fewer, first=low if entry.backwards else sum_of(low, 1), body=tuple(later)),
    )
    last = [use for uses in early.values() for use in uses] + sorted(late)
    return loop, tuple(Repeat(entry.loop, 1, (body[position],), first=end) for position in last)


def _insert_before_first_use(schedule: Schedule, uses: Program, program: Program) -> Program:
    """Returns the program with these ops inserted before the first entry that reads or writes the same tensors."""
    touched = set[str]().union(*(_touched(schedule, use) for use in uses))
    for position, entry in enumerate(program):
        if touched & _touched(schedule, entry):
            return program[:position] + uses + program[position:]
    return program + uses
