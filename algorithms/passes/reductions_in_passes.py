"""Reductions in passes: a gradient is reduced over data as soon as the last backward pass has written it.

A training step reduces gradients after all passes.  The pass moves each of these reductions (mark `ogr`) up to the last
op that uses its tensors: into the layer loop of the backward pass, so that it overlaps the next layer's backward pass:

    before                               after
    repeat microbatch, 3                 repeat microbatch, 2
      repeat layer, 2, backwards           repeat layer, 2, backwards
        add dW                               add dW
    repeat layer, 2                      repeat microbatch, 1, from 2
      reduce dW over data                  repeat layer, 2, backwards
                                             add dW
                                             reduce dW over data

`repeat layer, N, from K` is a loop of N iterations over the index `layer`, which begins at K (0 if omitted); with
`backwards` the same indices run downwards.

The last microbatch is peeled, since gradients are complete there only.  A reduction stays after all passes where loops
do not match: in pipelines, whose loops run over passes, and of layers of which a choice takes some.

Source: NVIDIA, Megatron-LM, `--overlap-grad-reduce` (megatron/core/distributed/distributed_data_parallel.py); Li et
al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020, section 3.2.3.
"""

from dataclasses import replace

from quadrille.algorithms.analysis.storage import is_single_rank, views
from quadrille.algorithms.passes.rewriting import is_layer_loop
from quadrille.algorithms.schedule.ops import AllReduce, Communication, Op, reads, writes
from quadrille.algorithms.schedule.program import Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule


def reduce_in_passes(schedule: Schedule, program: Program) -> Program:
    """Returns the program with the marked reductions of each step moved into its backward passes.

    Parameters
    ----------
    schedule : schedule that the program belongs to
    program : program of one role
    """
    moves = _Moves(schedule)
    return tuple(
        replace(entry, body=moves.step(entry.body)) if isinstance(entry, Repeat) else entry for entry in program
    )


class _Moves:
    """Moves the marked reductions of a schedule up."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._views = schedule.cached(views)
        self._buffers_of: dict[int, tuple[Op | Repeat, set[str]]] = {}

    def step(self, body: Program) -> Program:
        """The body of a step, with its own marked reductions, and those of its loops, moved up."""
        before: Program = ()
        for entry in body:
            if not isinstance(entry, Repeat):
                moved = self._after_last_use(before, entry, None) if _is_marked(entry) else None
                before = moved or (*before, entry)
                continue
            stays: list[Op | Repeat] = []
            for inner in entry.body:
                is_free = _is_marked(inner) and not any(self._conflict(inner, earlier) for earlier in stays)
                moved = self._after_last_use(before, inner, entry) if is_free else None
                before = moved or before
                stays += [] if moved else [inner]
            before = (*before, replace(entry, body=tuple(stays))) if stays else before
        return before

    def _after_last_use(self, program: Program, op: Op | Repeat, loop: Repeat | None) -> Program | None:
        """The program with an op after the last use of its tensors; None if it cannot be there.

        Parameters
        ----------
        loop : loop that the op still needs around itself
        """
        place = next((place for place in reversed(range(len(program))) if self._conflict(op, program[place])), None)
        if place is None:
            return None
        before, last, after = program[:place], program[place], program[place + 1 :]
        inside = self._inside(last, op, loop) if isinstance(last, Repeat) else None
        if inside is not None:
            return (*before, *inside, *after)
        return None if loop is not None else (*before, last, op, *after)

    def _inside(self, entry: Repeat, op: Op | Repeat, loop: Repeat | None) -> Program | None:
        """The loop with an op in its body, or in that of its last iteration; None if it cannot be there."""
        if type(entry) is not Repeat:
            return None
        if loop is not None and entry.loop == loop.loop:
            matches = (entry.count, entry.first) == (loop.count, loop.first)
            body = self._after_last_use(entry.body, op, None) if matches else None
            return None if body is None else (replace(entry, body=body),)
        if not isinstance(entry.count, int) or not isinstance(entry.first, int) or entry.backwards:
            return None
        if entry.count > 1 and is_layer_loop(self._schedule, entry):
            return None
        body = self._after_last_use(entry.body, op, loop)
        if body is None:
            return None
        last = replace(entry, count=1, first=entry.first + entry.count - 1, body=body)
        return (last,) if entry.count == 1 else (replace(entry, count=entry.count - 1), last)

    def _conflict(self, op: Op | Repeat, entry: Op | Repeat) -> bool:
        """Whether an entry reads or writes a buffer that the op writes; a sum over one rank does neither."""
        buffers = self._buffers(op)
        return any(
            buffers & self._buffers(used)
            for used in ops((entry,))
            if not (isinstance(used, AllReduce) and is_single_rank(self._schedule, used.axis))
        )

    def _buffers(self, entry: Op | Repeat) -> set[str]:
        """The tensors that own the buffers which an op, or the body of a loop, reads or writes.

        The entry is kept, too, so that its id stays unique.
        """
        if id(entry) not in self._buffers_of:
            names = {self._views.get(name, name) for op in ops((entry,)) for name in (*reads(op), *writes(op))}
            self._buffers_of[id(entry)] = entry, names
        return self._buffers_of[id(entry)][1]


def _is_marked(entry: Op | Repeat) -> bool:
    return isinstance(entry, Communication) and entry.overlap == "ogr"
