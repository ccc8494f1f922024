"""Products in bands of rows, each summed over the ranks while the next is multiplied.

    multiply C            multiply C, 1 of 2
    sum C                 sum C, 1 of 2          multiply C, 2 of 2
    use C                 sum C, 2 of 2
                          use C

A band is a window of rows of the buffers that are there: nothing is copied, and
all ranks together send as many bytes as before.  The sum of the last band waits
for nothing, or is waited for, as that of the whole was, so this goes with any
overlap.  The last bits of results may change: a product of fewer rows may be
rounded otherwise, and a ring of more than two adds other pieces in other orders.
"""

from collections.abc import Iterator
from dataclasses import replace

from algorithms.errors import InputError
from algorithms.ops import AllReduce, Gemm, Op
from algorithms.program import Program, Repeat, in_sequence
from algorithms.reordering.overlap import without_edges
from algorithms.schedule import Schedule, all_ops
from algorithms.storage import alone, view_sources


def in_bands(schedule: Schedule, count: int) -> Schedule:
    """The schedule with every product that is summed right after it, and its sum, in so many bands.

    Raises
    ------
    InputError : fewer than one band
    """
    if count < 1:
        raise InputError(f"bands {count}: a whole number from 1 is accepted")
    if count == 1:
        return schedule
    cutter = _Cutter(schedule, count)
    changed = schedule.with_program(lambda program: in_sequence(cutter.cut(without_edges(program))))
    return replace(changed, tensors=cutter.tensors)


class _Cutter:
    """Cuts programs of a schedule, and declares the bands of their tensors."""

    def __init__(self, schedule: Schedule, count: int) -> None:
        self._schedule, self._count = schedule, count
        self._views = view_sources(schedule, tuple(all_ops(schedule)))
        self.tensors = dict(schedule.tensors)

    def cut(self, program: Program) -> Program:
        """The program with each such pair cut."""
        changed: list[Op | Repeat] = []
        for entry in program:
            before = changed[-1] if changed else None
            if isinstance(entry, Repeat):
                changed.append(replace(entry, body=self.cut(entry.body)))
            elif isinstance(before, Gemm) and isinstance(entry, AllReduce) and self._fits(before, entry):
                changed[-1:] = self._bands(before, entry)
            else:
                changed.append(entry)
        return tuple(changed)

    def _fits(self, product: Gemm, summed: AllReduce) -> bool:
        """Whether the sum is of the product, whose rows are those of its first operand, and can be cut in bands."""
        if summed.buffers != (product.c,) or product.layout == "TN" or alone(self._schedule, summed.axis):
            return False
        return all(self._has_bands(name) for name in (product.a, product.c))

    def _has_bands(self, name: str) -> bool:
        tensor = self._schedule.tensors[name]
        rows, place = tensor.rows, self._schedule.place(self._schedule.grid.size - 1)  # its parts are the shortest
        if name in self._views or tensor.shards or rows.panel is not None or rows.rotated_by:
            return False
        start, stop = rows.bounds(place)
        return stop - start >= self._count

    def _bands(self, product: Gemm, summed: AllReduce) -> Iterator[Op]:
        for index in range(self._count):
            of = f", {index + 1} of {self._count}"
            a, c = (self._band(name, index) for name in (product.a, product.c))
            yield replace(product, name=product.name + of, a=a, c=c)
            last = index == self._count - 1
            yield replace(summed, name=summed.name + of, buffer=c, concurrent=summed.concurrent or not last)

    def _band(self, name: str, index: int) -> str:
        """A band of a tensor, declared."""
        whole, band = self.tensors[name], f"{name} [{index + 1} of {self._count}]"
        rows = replace(whole.rows, band=(index, self._count))
        self.tensors[band] = replace(whole, name=band, rows=rows, band_of=name)
        return band
