"""Panels of SUMMA sent ahead: while one is multiplied the next is broadcast, into a second buffer.

    repeat p, panels             send panel 0
      send panel p               repeat p, panels - 1
      multiply                     send panel p + 1
                                   multiply panel p
                                 multiply the last panel

Broadcasts that `oag` may release begin a body; what they fill gets two copies
over the loop, used in turn, and so does what a released reduce takes away, so
that the next partial panel may be multiplied while the last one is summed.
No op is added or resized, and nothing is added in another order.

Source: Xu et al. (Optimus), arXiv 2104.05343; the two buffers in turn as in the later ColossalAI code.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import takewhile

from quadrille.algorithms.schedule.expressions import Affine, PanelCount
from quadrille.algorithms.schedule.ops import Broadcast, Communication, Op, Reduce
from quadrille.algorithms.schedule.parts import Panel
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.tensors import Tensor


def double_buffered(program: Program, tensors: dict[str, Tensor], names: Collection[str]) -> Program:
    """A program without edges, its loops over panels rotated; the second buffers are entered in `tensors`."""
    changed: list[Op | Repeat] = []
    for entry in program:
        if not isinstance(entry, Repeat):
            changed.append(entry)
        elif isinstance(entry.count, Panel):
            _give_copies(entry, tensors, names)
            changed += _rotated(entry, entry.count, names)
        else:
            changed.append(replace(entry, body=double_buffered(entry.body, tensors, names)))
    return tuple(changed)


def _marked(op: Op | Repeat, names: Collection[str]) -> bool:
    return isinstance(op, Communication) and op.overlap in names


def _give_copies(entry: Repeat, tensors: dict[str, Tensor], names: Collection[str]) -> None:
    """Two copies, over the loop, of what marked ops fill or take away."""
    for op in entry.body:
        if _marked(op, names) and isinstance(op, Broadcast | Reduce):
            window = op.into if isinstance(op, Broadcast) else op.source
            tensors[window] = replace(tensors[window], copies=((entry.loop, 2),))


def _rotated(entry: Repeat, panel: Panel, names: Collection[str]) -> Program:
    """The loop with the broadcasts of each turn in the turn before."""
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
