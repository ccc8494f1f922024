"""Prefetch: the next weight is all-gathered, or the next SUMMA panel broadcast, while a product uses the current one.

Every marked gather moves up to just before the first reader of the previous marked gather, its *take*, so at most two
gathered weights exist.  If the previous gather belongs to the previous iteration, the loop is rotated, and its last
iteration is peeled:

    repeat layer, 3            gather W of layer 0
      gather W                 repeat layer, 2
      use W                      gather W of the next layer
                                 use W
                               repeat layer, 1, from 2
                                 use W

Only layer loops are rotated, not step or microbatch loops; the first gather of other loops starts at the head of the
loop.  A gather never moves above an op that writes its source or uses the buffer that it fills, nor out of a pass of a
message-driven pipeline, because another pass may come before.

Panel loops are rotated likewise, with two copies of each window:

    repeat p, panels             send panel 0
      send panel p               repeat p, panels - 1
      multiply                     send panel p + 1
                                   multiply panel p
                                 multiply the last panel

Released reduces get two copies of their source, so that the next partial panel is multiplied during the reduction.  No
op is added or resized, and the order of additions is unchanged.

Source: the window of one layer is that of the authors' code of AxoNN, as described by Singh et al., arXiv 2305.13525,
section 4; panels as in Xu et al. (Optimus), arXiv 2104.05343, with the two alternating buffers of the later ColossalAI
code.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from quadrille.algorithms.analysis.storage import is_single_rank, views
from quadrille.algorithms.passes.rewriting import is_layer_loop, sum_of
from quadrille.algorithms.schedule.expressions import Affine, IntExpression, PanelCount, variables
from quadrille.algorithms.schedule.ops import AllGather, Broadcast, Communication, Op, Reduce, reads, writes
from quadrille.algorithms.schedule.parts import Panel
from quadrille.algorithms.schedule.program import Choice, DrivenPasses, Pass, Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor


@dataclass(frozen=True, slots=True)
class PrefetchedBody:
    """A program without its first gathers.

    Parameters
    ----------
    program : the program
    lead : the first gathers, which the code before the program starts
    rest : gathers for the code after the program that the program did not start
    """

    program: Program
    lead: Program
    rest: Program


def prefetch(schedule: Schedule, program: Program) -> Program:
    """Returns the program in which every all-gather with the overlap `oag` starts one take earlier.

    Parameters
    ----------
    schedule : schedule that the program belongs to
    program : program of one role
    """
    moved = _Ahead(schedule).move(program, ())
    return moved.lead + moved.program


class _Ahead:
    """Moves the marked gathers of a schedule up."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._views = schedule.cached(views)

    def move(self, body: Program, following: Program) -> PrefetchedBody:
        """Returns a body whose last take starts `following`; the body is processed backwards."""
        takes = self._takes(body)
        seen: list[Op | Repeat] = []
        lead: Program = ()
        rest = following
        for position in reversed(range(len(body))):
            entry = body[position]
            if self._marked(entry):
                lead = (entry, *lead)
            elif isinstance(entry, Repeat) and any(map(self._marked, ops(entry.body))):
                program, lead, rest = self._loop(entry, lead, rest)
                seen += reversed(program)
            else:
                blocked = self._blocked(lead + rest, entry)
                lead, rest = _without(lead, blocked), _without(rest, blocked)
                seen += [*reversed(blocked), entry]
                if position in takes:
                    seen += reversed(lead + rest)
                    lead, rest = (), ()
        return PrefetchedBody(tuple(reversed(seen)), lead, rest)

    def _loop(self, entry: Repeat, lead: Program, rest: Program) -> tuple[Program, Program, Program]:
        """Returns a rewritten loop with gathers, and the lead and rest to start before it."""
        if self._keeps_gathers(entry):
            moved = self.move(entry.body, ())
            return (replace(entry, body=moved.lead + moved.program), *lead, *rest), (), ()
        entering = tuple(gather for gather in lead + rest if entry.loop not in self._loops_of(gather))
        after_loop = _without(lead + rest, entering)
        once = entry.count == 1
        if once or is_layer_loop(self._schedule, entry):
            last = self.move(entry.body, entering)
            if once:
                own_gathers = tuple(gather for gather in lead if gather in last.rest)
                inside = (replace(entry, body=last.program), *after_loop)
                return (
                    inside,
                    _at_iteration(entry, entry.first, last.lead) + own_gathers,
                    _without(last.rest, own_gathers),
                )
            repeated = self.move(entry.body, _at_iteration(entry, _next(entry), last.lead))
            if not last.rest and not repeated.rest:
                return (
                    (*_rotated(entry, repeated, last), *after_loop),
                    _at_iteration(entry, _begin(entry), last.lead),
                    (),
                )
        moved = self.move(entry.body, ())
        return (replace(entry, body=moved.lead + moved.program), *lead, *rest), (), ()

    def _keeps_gathers(self, entry: Repeat) -> bool:
        """Whether gathers stay inside: a choice may not run, and messages may order passes otherwise."""
        return isinstance(entry, Choice | DrivenPasses) or (isinstance(entry, Pass) and self._schedule.driven)

    def _marked(self, entry: Op | Repeat) -> bool:
        long = isinstance(entry, AllGather) and not is_single_rank(self._schedule, entry.axis)
        return long and isinstance(entry, AllGather) and entry.overlap == "oag"

    def _takes(self, body: Program) -> set[int]:
        """Returns the positions of the first readers of what the body gathers."""
        open_: set[str] = set()
        takes: set[int] = set()
        for position, entry in enumerate(body):
            if isinstance(entry, AllGather) and self._marked(entry):
                open_.add(entry.into)
            elif not isinstance(entry, Repeat) and open_ & {*reads(entry)}:
                open_ -= {*reads(entry)}
                takes.add(position)
        return takes

    def _blocked(self, gathers: Program, entry: Op | Repeat) -> list[Op | Repeat]:
        """Returns the gathers that must stay after an entry, or after a gather that must."""
        blocked: list[Op | Repeat] = []
        for gather in gathers:
            if any(self._must_stay_after(gather, earlier) for earlier in (entry, *blocked)):
                blocked.append(gather)
        return blocked

    def _must_stay_after(self, gather: Op | Repeat, entry: Op | Repeat) -> bool:
        """Whether a gather must stay after an entry, which writes its source or uses the buffer that it fills."""
        op = _gather(gather)
        into, source = self._buffer_owner(op.into), self._buffer_owner(op.source)
        for op_of_entry in ops((entry,)):
            written = {self._buffer_owner(name) for name in writes(op_of_entry)}
            if source in written or into in written | {self._buffer_owner(name) for name in reads(op_of_entry)}:
                return True
        return False

    def _buffer_owner(self, name: str) -> str:
        """Returns the tensor that owns the buffer of a name."""
        return self._views.get(name, name)

    def _loops_of(self, entry: Op | Repeat) -> frozenset[str]:
        """Returns the loops and coordinates that identify the gather."""
        if isinstance(entry, Repeat):
            inside = frozenset[str]().union(*map(self._loops_of, entry.body))
            return variables(entry.first) | (inside - {entry.loop})
        return frozenset(loop for name in (*reads(entry), *writes(entry)) for loop in self._loops(name))

    def _loops(self, name: str) -> Iterable[str]:
        return (loop for loop, _ in self._schedule.tensors[name].copies)


def _gather(entry: Op | Repeat) -> AllGather:
    """Returns the gather inside pinned iterations."""
    while isinstance(entry, Repeat):
        (entry,) = entry.body
    assert isinstance(entry, AllGather)
    return entry


def _without(program: Program, others: Iterable[Op | Repeat]) -> Program:
    left_out = tuple(others)
    return tuple(entry for entry in program if entry not in left_out)


def _at_iteration(entry: Repeat, index: IntExpression, program: Program) -> Program:
    """Returns each entry of a program pinned to one iteration of a loop."""
    return tuple(Repeat(entry.loop, 1, (pinned,), first=index) for pinned in program)


def _next(entry: Repeat) -> IntExpression:
    """Index of the next iteration."""
    return Affine(entry.loop, offset=-1 if entry.backwards else 1)


def _begin(entry: Repeat) -> IntExpression:
    """Index of the first iteration."""
    return sum_of(entry.first, _one_iteration_less(entry)) if entry.backwards else entry.first


def _rotated(entry: Repeat, repeated: PrefetchedBody, last: PrefetchedBody) -> Program:
    """Returns all iterations but the last, and the last."""
    count = _one_iteration_less(entry)
    first, end = (sum_of(entry.first, 1), entry.first) if entry.backwards else (entry.first, sum_of(entry.first, count))
    return (
        replace(entry, count=count, first=first, body=repeated.program),
        Repeat(entry.loop, 1, last.program, first=end, backwards=entry.backwards),
    )


def _one_iteration_less(entry: Repeat) -> IntExpression:
    """One iteration less than the loop has."""
    return PanelCount(entry.count, offset=-1) if isinstance(entry.count, Panel) else sum_of(entry.count, -1)


def double_buffered(program: Program, tensors: dict[str, Tensor], names: Collection[str]) -> Program:
    """Returns a program with its panel loops rotated; the second buffers are added to `tensors`."""
    changed: list[Op | Repeat] = []
    for entry in program:
        if not isinstance(entry, Repeat):
            changed.append(entry)
        elif isinstance(entry.count, Panel):
            _add_second_copies(entry, tensors, names)
            changed += _rotate_panels(entry, entry.count, names)
        else:
            changed.append(replace(entry, body=double_buffered(entry.body, tensors, names)))
    return tuple(changed)


def _marked(op: Op | Repeat, names: Collection[str]) -> bool:
    return isinstance(op, Communication) and op.overlap in names


def _add_second_copies(entry: Repeat, tensors: dict[str, Tensor], names: Collection[str]) -> None:
    """Gives two copies, over the loop, to what marked ops fill or consume."""
    for op in entry.body:
        if _marked(op, names) and isinstance(op, Broadcast | Reduce):
            window = op.into if isinstance(op, Broadcast) else op.source
            tensors[window] = replace(tensors[window], copies=((entry.loop, 2),))


def _rotate_panels(entry: Repeat, panel: Panel, names: Collection[str]) -> Program:
    """Returns the loop with the broadcasts of each iteration in the previous iteration."""
    sent = tuple(takewhile(lambda op: isinstance(op, Broadcast) and _marked(op, names), entry.body))
    if not sent:
        return (entry,)
    rest, loop, last = entry.body[len(sent) :], entry.loop, PanelCount(panel, offset=-1)
    ahead = Repeat(loop, 1, sent, first=Affine(loop, offset=1))
    return (
        Repeat(loop, 1, sent),
        Repeat(loop, last, (ahead, *rest)),
        Repeat(loop, 1, rest, first=last),
    )
