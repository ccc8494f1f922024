"""V pipelines: tables of the passes of each stage, and of the buffers that its passes use (ZB-V).

The order of a V pipeline has no short description as loops, so the program of a stage looks up kind, chunk and
microbatch of each pass.  Tensors between two passes of a microbatch are in the buffer with the smallest number that is
free.  A buffer is free again once the second pass has ended:

    between F and B    activations that only B reads
    between F and W    activations that W reads
    between B and W    gradients that W reads
    a gradient sent    from B until B of the stage that receives the gradient begins, if all passes take equally long
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heappop, heappush

from quadrille.algorithms.schedule.program import PassKind
from quadrille.algorithms.schedule.v_order import v_order

Numbers = tuple[tuple[int, ...], ...]
"""A number for each pass, or each chunk and microbatch, of each stage."""


def part_of(stages: int, stage: int, chunk: int) -> int:
    """Returns the position of a chunk of a stage among all chunks.

    >>> [[part_of(3, stage, chunk) for stage in range(3)] for chunk in range(2)]
    [[0, 1, 2], [5, 4, 3]]
    """
    return 2 * stages - 1 - stage if chunk else stage


def chunk_sizes(stage_sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of layers of each chunk among all chunks, from the number of layers of each stage.

    The first chunk of a stage has the larger half, because the second chunk of stage 0 also has the loss.

    >>> chunk_sizes((5, 4))
    (3, 2, 2, 2)
    """
    return (*(size - size // 2 for size in stage_sizes), *(size // 2 for size in reversed(stage_sizes)))


@lru_cache(256)
def pass_table(stages: int, microbatches: int) -> tuple[Numbers, Numbers, Numbers]:
    """Returns the number of the kind ("FBW"), the chunk and the microbatch of each pass of each stage."""
    orders = [v_order(stages, stage, microbatches) for stage in range(stages)]
    kinds = tuple(tuple("FBW".index(kind) for kind, _, _ in order) for order in orders)
    chunks = tuple(tuple(chunk for _, chunk, _ in order) for order in orders)
    return kinds, chunks, tuple(tuple(microbatch for _, _, microbatch in order) for order in orders)


@lru_cache(256)
def buffers(stages: int, microbatches: int, first: PassKind, last: PassKind) -> Numbers:
    """Returns the buffer of each chunk · microbatches + microbatch of each stage, from a pass until another has ended.

    >>> buffers(2, 4, "F", "B")
    ((0, 1, 2, 3, 3, 3, 0, 0), (0, 2, 1, 3, 1, 3, 0, 2))
    """
    return tuple(
        _numbered(
            microbatches,
            (
                (position, chunk * microbatches + microbatch, kind == last)
                for position, (kind, chunk, microbatch) in enumerate(v_order(stages, stage, microbatches))
                if kind in (first, last)
            ),
        )
        for stage in range(stages)
    )


def most_handed_over(stages: int, microbatches: int) -> int:
    """Returns the largest number of microbatches between the chunks of the last stage, in one direction.

    >>> most_handed_over(3, 8)
    1
    """
    between = {("F", 0): 1, ("F", 1): -1, ("B", 1): 1, ("B", 0): -1}
    most, counts = 0, {"F": 0, "B": 0, "W": 0}
    for kind, chunk, _ in v_order(stages, stages - 1, microbatches):
        counts[kind] += between.get((kind, chunk), 0)
        most = max(most, *counts.values())
    return most


@lru_cache(256)
def gradient_buffers(stages: int, microbatches: int) -> Numbers:
    """Returns the buffer of the gradient of each chunk · microbatches + microbatch of each stage, until it was taken.

    Time is that of passes which take equally long.  So no stage waits in a circle for a buffer: each buffer becomes
    free earlier than its next pass begins.
    """
    begins = pass_begins(stages, microbatches)
    rows = []
    for stage in range(stages):
        events = list[tuple[int, int, bool]]()
        for chunk in range(2):
            part = part_of(stages, stage, chunk)
            for microbatch in range(microbatches):
                begin = begins["B", part, microbatch]
                taken = begins["B", part - 1, microbatch] + 1 if part else begin + 1
                number = chunk * microbatches + microbatch
                events += [(begin, number, False), (taken, number, True)]
        rows.append(_numbered(microbatches, sorted(events, key=lambda event: (event[0], not event[2]))))
    return tuple(rows)


@lru_cache(256)
def pass_begins(stages: int, microbatches: int) -> dict[tuple[PassKind, int, int], int]:
    """Returns the time at which each pass begins, by kind, chunk among all chunks, and microbatch.

    All passes take equally long, and messages take no time.
    """
    begins: dict[tuple[PassKind, int, int], int] = {}
    left = [list(reversed(v_order(stages, stage, microbatches))) for stage in range(stages)]
    time = 0
    while any(left):
        for stage, order in enumerate(left):
            if not order:
                continue
            kind, chunk, microbatch = order[-1]
            part = part_of(stages, stage, chunk)
            before = _before(kind, part, microbatch, 2 * stages)
            if before is None or begins.get(before, time) < time:
                begins[kind, part, microbatch] = time
                order.pop()
        time += 1
    return begins


def _before(kind: PassKind, part: int, microbatch: int, parts: int) -> tuple[PassKind, int, int] | None:
    """The pass whose result a pass needs; None for the first pass of a microbatch."""
    match kind:
        case "F":
            return ("F", part - 1, microbatch) if part else None
        case "B":
            return ("B", part + 1, microbatch) if part + 1 < parts else ("F", part, microbatch)
        case "W":
            return "B", part, microbatch


def _numbered(microbatches: int, events: Iterable[tuple[int, int, bool]]) -> tuple[int, ...]:
    """The buffer of each chunk · microbatches + microbatch.

    Parameters
    ----------
    events : time, chunk · microbatches + microbatch, and whether its buffer becomes free, in order
    """
    free, row = list[int](), [0] * 2 * microbatches
    count = 0
    for _, number, ends in events:
        if ends:
            heappush(free, row[number])
        elif free:
            row[number] = heappop(free)
        else:
            row[number], count = count, count + 1
    return tuple(row)
