"""The heap of what happens next: flows by the time of their next event (kernels, see `compiled.py`)."""

from typing import Any, Protocol

HEAP = 0
"""Place of the heap's size in `numbers`."""


class Due(Protocol):
    """Tables of flows with a next event.

    Parameters
    ----------
    due : when it is
    heap, slot : flows by `due`, and where a flow stands there, -1 where it has none
    numbers : whole numbers that change, the heap's size at HEAP
    """

    @property
    def due(self) -> Any: ...
    @property
    def heap(self) -> Any: ...
    @property
    def slot(self) -> Any: ...
    @property
    def numbers(self) -> Any: ...


def put(w: Due, f: int, due: float) -> None:
    """The next event of flow f is at `due`."""
    place = w.slot[f]
    if place < 0:
        place = w.numbers[HEAP]
        w.numbers[HEAP] += 1
    w.due[f] = due
    while place > 0 and due < w.due[w.heap[(place - 1) // 2]]:
        w.heap[place] = w.heap[(place - 1) // 2]
        w.slot[w.heap[place]] = place
        place = (place - 1) // 2
    _sink(w, f, place)


def take(w: Due) -> None:
    """Remove the earliest."""
    w.slot[w.heap[0]] = -1
    w.numbers[HEAP] -= 1
    if w.numbers[HEAP] > 0:
        _sink(w, w.heap[w.numbers[HEAP]], 0)


def _sink(w: Due, f: int, place: int) -> None:
    """Put flow f at `place` or as far below as it must be."""
    size = w.numbers[HEAP]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and w.due[w.heap[child + 1]] < w.due[w.heap[child]]:
            child += 1
        if w.due[w.heap[child]] >= w.due[f]:
            break
        w.heap[place] = w.heap[child]
        w.slot[w.heap[place]] = place
        place = child
    w.heap[place] = f
    w.slot[f] = place


KERNELS = (_sink, take, put)
