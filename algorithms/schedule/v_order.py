"""V order: the passes of a pipeline stage that holds two chunks of layers, placed as a V (ZB-V).

Stage i of p holds chunk i and chunk 2 p - 1 - i of all 2 p chunks.  So stage 0 begins and ends the forward pass of a
microbatch, and stage p - 1 hands activations over between its own two chunks.  F0 is a forward pass through the first
chunk of a stage, F1 through the second; B and W likewise (`pass_rules.py`).  Stage i runs:

    warm-up      F0, 2 (p - i) - 1 times;   F1 F0, i times;   F1 B1 W1, p - i times
    steady       F0 B0 W0 F1 B1 W1, until all forward passes have run
    cool-down    B0 B1, i times;   B0 W0, p - i times;   all other W1, then all other W0

A pass of a microbatch that does not exist is left out.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (ZB-V); Qi et al., "Pipeline Parallelism
with Controllable Memory", NeurIPS 2024 (V-ZB); PyTorch, torch/distributed/pipelining/schedules.py,
`ScheduleZBVZeroBubble` (the number of passes of each phase).
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from quadrille.algorithms.schedule.program import PassKind

VChunk = tuple[PassKind, int]
"""Kind of a pass, and its chunk among the chunks of the stage."""
STEADY: tuple[VChunk, ...] = (("F", 0), ("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))


@lru_cache(1024)
def v_order(stages: int, stage: int, microbatches: int) -> tuple[tuple[PassKind, int, int], ...]:
    """Returns kind, chunk and microbatch of each pass of a stage, in order.

    >>> " ".join(f"{kind}{microbatch}.{chunk}" for kind, chunk, microbatch in v_order(2, 1, 2))
    'F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 B0.0 W0.0 B1.1 W1.1 B1.0 W1.0'
    """
    most = max(microbatches, 2 * stages - 1)
    begun: Counter[VChunk] = Counter()
    order = list[tuple[PassKind, int, int]]()
    for kind, chunk in _passes(stages, stage, most):
        if begun[kind, chunk] < microbatches:
            order.append((kind, chunk, begun[kind, chunk]))
        begun[kind, chunk] += 1
    return tuple(order)


def _passes(stages: int, stage: int, microbatches: int) -> Iterator[VChunk]:
    """Kind and chunk of each pass of a stage, for at least 2 · stages - 1 microbatches."""
    after = stages - stage
    steady = microbatches - (2 * after - 1 + stage)
    yield from (("F", 0),) * (2 * after - 1)
    yield from (("F", 1), ("F", 0)) * stage
    yield from (("F", 1), ("B", 1), ("W", 1)) * after
    yield from STEADY * steady
    # The first chunk has begun all forward passes; the second chunk has not.
    yield from STEADY[1:] * (microbatches - stage - after - steady)
    yield from (("B", 0), ("B", 1)) * stage
    yield from (("B", 0), ("W", 0)) * after
    yield from (("W", 1),) * stage
    yield from (("W", 0),) * stage
