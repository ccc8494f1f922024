"""When the stages of a pipeline take their turns: the schedule's own order, walked with the seconds of each turn.

A turn is one microbatch's pass through one chunk of a stage's layers, forward or
backward.  It begins when the stage is free and what it needs has come: forward,
from the part of the layers before; backward, from the part behind.  The order of
turns is that of the schedules that are executed and simulated
(`algorithms/training/pipeline.py`), so bubbles, uneven stages and chunks follow
from it rather than from a formula.

A stage does nothing else while it sends: so do Megatron-LM and DeepSpeed, and so
does the simulated schedule, whose messages begin when both sides are there and
whose layers have one buffer for what comes in.  Given its pieces and messages,
this walk ends within half a per cent of it, which a test shows; with few
microbatches in many chunks and messages of a tenth of a turn, up to 7 % earlier.

Source: Narayanan et al., SC21, section 2.2 (the order); NVIDIA Megatron-LM,
megatron/p2p_communication.py, `_communicate` (waits for every message, then
synchronizes the GPU); microsoft/DeepSpeed, deepspeed/runtime/pipe/schedule.py,
`SendActivation` ("The communication is blocking").
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from quadrille.algorithms.training.pipeline import Stages

Turn = tuple[str, int, int]
"""F or B, the microbatch, and the part of the layers."""


@dataclass(frozen=True, slots=True)
class TurnSeconds:
    """Seconds of a microbatch in each chunk of layers, in the order of the layers, and of a message between chunks."""

    forward: Sequence[float]
    backward: Sequence[float]
    travel: float = 0.0


def stage_ends(stages: Stages, times: TurnSeconds) -> list[float]:
    """When each stage is through with its last turn [s].

    Two stages and three microbatches of 1 s forward and 2 s backward take (3 + 1) · 3 s:

    >>> stage_ends(Stages(2, 2, 3), TurnSeconds([1, 1], [2, 2]))
    [12.0, 10.0]
    """
    parts = stages.count * stages.chunks
    waiting = [deque(_turns(stages, stage)) for stage in range(stages.count)]
    free = [0.0] * stages.count
    come = {("F", microbatch, 0): 0.0 for microbatch in range(stages.microbatches)}
    ready = deque(range(stages.count))
    while ready:
        stage = ready.popleft()
        while waiting[stage] and (begin := come.get(waiting[stage][0])) is not None:
            kind, microbatch, part = waiting[stage].popleft()
            seconds = times.forward[part] if kind == "F" else times.backward[part]
            free[stage] = max(free[stage], begin) + seconds
            onward = part + (1 if kind == "F" else -1)
            if onward == parts:
                come["B", microbatch, part] = free[stage]
            elif onward >= 0:
                free[stage] += times.travel
                come[kind, microbatch, onward] = free[stage]
                ready.append(onward % stages.count)
    assert not any(waiting), "stages wait for each other"
    return free


def _turns(stages: Stages, stage: int) -> list[Turn]:
    """The turns of a stage, with the part of all layers that each is of."""
    turns = []
    for name in stages.order(stage):
        microbatch, _, chunk = name[1:].partition(".")
        turns.append((name[0], int(microbatch), int(chunk or 0) * stages.count + stage))
    return turns
