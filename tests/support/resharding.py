"""Resharding of an activation from one layout to another: gathers, local slices and all-to-alls; nothing if the
layouts are equal.

    1  rows are gathered over the axes that the layouts do not share, innermost first
    2  if different axes cut the columns, an all-to-all moves the source's axis from columns to rows
    3  rows are gathered over that axis too, unless the target layout cuts them over it next
    4  each rank slices its block out of what it holds

A slice costs no communication; a gather costs the bytes of the scattered rows.  This is the cost of each redistribution
that a scheme avoids.
"""

from dataclasses import dataclass, field, replace

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import AllGather, AllToAll, Kernel, Pointwise
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.scheme import Layout

Cuts = tuple[tuple[Axis, bool], ...]
"""Axes that cut rows, outermost first, and whether they cut through units."""


@dataclass(frozen=True, slots=True)
class Resharding:
    """Ops from one tensor to another, and the tensors that they write; empty if both are the same."""

    tensors: tuple[Tensor, ...] = ()
    program: Program = ()


def reshard(source: str, into: str, rows: Part, columns: Part, before: Layout, after: Layout) -> Resharding:
    """Ops from `source`, in layout `before`, to `into`, in layout `after`.

    >>> rows, columns = Part("rows"), Part("hidden")
    >>> stream, inner = Layout(("data", "z"), "y"), Layout(("data", "z"), "x")
    >>> [op.name for op in reshard("X", "Y", rows, columns, stream, inner).program]
    ['exchange X over y', 'gather X over y', 'zero Y', 'cut Y']
    >>> reshard("X", "Y", rows, columns, stream, stream).program
    ()

    Parameters
    ----------
    rows, columns : uncut dimensions
    """
    if before == after:
        return Resharding()
    way = _Way(source, rows, columns, _cuts(before), before.columns)
    wanted = _cuts(after)
    way.gather(_shared(way.cuts, wanted))
    if before.columns != after.columns:
        through = (before.columns, True) in wanted or any(through for _, through in way.cuts)
        way.exchange(through=through)
        if way.cuts != wanted[: len(way.cuts)]:
            way.gather(len(way.cuts) - 1)
    way.cut(after.tensor(into, rows, columns))
    return Resharding(tuple(way.tensors), tuple(way.program))


def _cuts(layout: Layout) -> Cuts:
    return tuple([(axis, False) for axis in layout.rows] + [(axis, True) for axis in layout.finer])


def _shared(first_cuts: Cuts, second_cuts: Cuts) -> int:
    """Number of leading cuts that both layouts share."""
    pairs = list(zip(first_cuts, second_cuts, strict=False))
    return next((i for i, (first, second) in enumerate(pairs) if first != second), len(pairs))


@dataclass(slots=True)
class _Way:
    """Current layout of the activation, and the ops so far."""

    source: str
    rows: Part
    columns: Part
    cuts: Cuts
    columns_over: Axis | None
    tensors: list[Tensor] = field(default_factory=list)
    program: list[AllGather | AllToAll | Pointwise | Kernel] = field(default_factory=list)

    def gather(self, left: int) -> None:
        """Gathers rows over all but the first `left` axes."""
        while len(self.cuts) > left:
            axis, _ = self.cuts[-1]
            self.cuts = self.cuts[:-1]
            held = self._held
            name = f"gather {self.source} over {axis}"
            self.program.append(AllGather(name=name, axis=axis, source=held, into=self._next()))

    def exchange(self, *, through: bool) -> None:
        """Moves the axis that cuts columns to the rows, through units or not."""
        axis = self.columns_over
        assert axis is not None
        held = self._held
        self.cuts, self.columns_over = (*self.cuts, (axis, through)), None
        name = f"exchange {self.source} over {axis}"
        self.program.append(AllToAll(name=name, axis=axis, source=held, into=self._next()))

    def cut(self, into: Tensor) -> None:
        """Slices the block of `into` out of what the rank holds, or renames it if it is the whole."""
        if self.tensors and self._part() == (into.rows, into.columns):
            last = self.program[-1]
            assert isinstance(last, AllGather | AllToAll)
            self.program[-1], self.tensors[-1] = replace(last, into=into.name), into
            return
        cut = Kernel(name=f"cut {into.name}", function="add_region", updates=(into.name,), sources=(self._held,))
        self.program += [Pointwise(name=f"zero {into.name}", function="zero", into=into.name), cut]
        self.tensors.append(into)

    @property
    def _held(self) -> str:
        return self.tensors[-1].name if self.tensors else self.source

    def _part(self) -> tuple[Part, Part]:
        axes = tuple(axis for axis, through in self.cuts if not through)
        finer = tuple(axis for axis, through in self.cuts if through)
        over = () if self.columns_over is None else (self.columns_over,)
        return replace(self.rows, axes=axes, finer=finer), replace(self.columns, axes=over)

    def _next(self) -> str:
        """Returns the name of a further tensor with the current layout."""
        name = f"{self.source} converted {len(self.tensors) + 1}"
        self.tensors.append(Tensor(name, *self._part()))
        return name
