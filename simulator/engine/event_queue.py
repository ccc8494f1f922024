"""The event queue: a binary heap of flows by the time of their next event (kernels, see `kernel_compiler.py`)."""

from typing import Any, Protocol

HEAP = 0
"""Index of the queue's size in `numbers`."""


class EventQueue(Protocol):
    """The columns of a state that make up its event queue.

    Parameters
    ----------
    due : time of each flow's next event [s]
    heap : flows in heap order
    slot : index of each flow in the heap, -1 if it is not queued
    numbers : integer counters; the heap's size is at HEAP
    """

    @property
    def due(self) -> Any: ...
    @property
    def heap(self) -> Any: ...
    @property
    def slot(self) -> Any: ...
    @property
    def numbers(self) -> Any: ...


def push(w: EventQueue, f: int, due: float) -> None:
    """Set the time of flow f's next event."""
    position = w.slot[f]
    if position < 0:
        position = w.numbers[HEAP]
        w.numbers[HEAP] += 1
    w.due[f] = due
    while position > 0 and due < w.due[w.heap[(position - 1) // 2]]:
        w.heap[position] = w.heap[(position - 1) // 2]
        w.slot[w.heap[position]] = position
        position = (position - 1) // 2
    _sift_down(w, f, position)


def pop(w: EventQueue) -> None:
    """Remove the flow with the earliest event."""
    w.slot[w.heap[0]] = -1
    w.numbers[HEAP] -= 1
    if w.numbers[HEAP] > 0:
        _sift_down(w, w.heap[w.numbers[HEAP]], 0)


def _sift_down(w: EventQueue, f: int, position: int) -> None:
    """Put flow f at a position of the heap, or as far below as its time requires."""
    size = w.numbers[HEAP]
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and w.due[w.heap[child + 1]] < w.due[w.heap[child]]:
            child += 1
        if w.due[w.heap[child]] >= w.due[f]:
            break
        w.heap[position] = w.heap[child]
        w.slot[w.heap[position]] = position
        position = child
    w.heap[position] = f
    w.slot[f] = position


KERNELS = (_sift_down, pop, push)
