"""Pass rules: which pass a pipeline stage runs next, as a pure function of what it has begun and what has arrived.

A *pass* is the forward or backward pass of one microbatch through the layers of a stage, or through one chunk of them.
If a rule splits backward passes, the gradients of weights are a pass of their own (W) after the backward pass (B).  The
passes of one kind have a fixed order; a rule only decides which kind is next:

    gpipe            all forward passes, then all backward passes
    1f1b             `warmup` forward passes, then one forward and one backward pass in turn
    interleaved      as 1f1b, with several chunks of layers on a stage
    zb-h1            as 1f1b; a W pass as soon as more than `pending` of them remain, the other W passes at the end
    message-driven   the pass whose message has arrived first; a pass that needs no message comes before

A stage has begun at most `limit` forward passes more than backward passes, and, with a zero-bubble rule, at most
`pending` + 1 backward passes more than W passes.

Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", arXiv 2104.04473, section 2.2; Singh and Bhatele, "AxoNN: An asynchronous, message-driven
parallel framework for extreme-scale deep learning", IPDPS 2022; Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
2024, section 2.1 (ZB-H1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from quadrille.algorithms.schedule.program import PassKind, PipelineSchedule


@dataclass(frozen=True, slots=True)
class StageState:
    """What a stage has begun, and which passes may begin now.

    Parameters
    ----------
    passes : number of forward passes of a step, equal to the number of backward passes
    warmup : forward passes before the first pair of a forward and a backward pass
    limit : largest number of forward passes that were begun and whose backward passes were not
    forward, backward : number of passes that were begun
    arrived : kinds of the next passes whose message has arrived, the earliest first; kinds that need none come first
    weights : number of W passes that were begun
    pending : largest number of W passes that the stage leaves for later
    """

    passes: int
    warmup: int
    limit: int
    forward: int = 0
    backward: int = 0
    arrived: tuple[PassKind, ...] = ()
    weights: int = 0
    pending: int = 0

    @property
    def in_flight(self) -> int:
        """Number of microbatches whose forward pass was begun and whose backward pass was not."""
        return self.forward - self.backward

    def allows(self, kind: PassKind) -> bool:
        """Whether the next pass of a kind may begin once its message has arrived."""
        if kind != "F":
            return self.backward < self.forward if kind == "B" else self.weights < self.backward
        return self.forward < self.passes and self.in_flight < self.limit

    def after(self, kind: PassKind) -> "StageState":
        """The state when the next pass of a kind has begun."""
        match kind:
            case "F":
                return replace(self, forward=self.forward + 1)
            case "B":
                return replace(self, backward=self.backward + 1)
            case "W":
                return replace(self, weights=self.weights + 1)


def in_order_of_arrival(arrivals: Mapping[PassKind, float]) -> tuple[PassKind, ...]:
    """Returns the kinds of passes by the time at which their messages arrived; of two at one time, B comes first.

    >>> in_order_of_arrival({"F": 1.0, "B": 1.0, "W": 0.5})
    ('W', 'B', 'F')
    """
    return tuple(sorted(arrivals, key=lambda kind: (arrivals[kind], kind)))


def next_pass(schedule: PipelineSchedule, state: StageState) -> PassKind | None:
    """Returns the kind of the next pass; None while the stage has to wait for a message, or if all passes were begun.

    >>> next_pass("1f1b", StageState(passes=4, warmup=1, limit=2, forward=1)), next_pass(
    ...     "message-driven", StageState(passes=4, warmup=1, limit=2, forward=1, arrived=("B", "F"))
    ... )
    ('F', 'B')
    """
    if schedule == "message-driven":
        return next((kind for kind in state.arrived if state.allows(kind)), None)
    split = schedule == "zb-h1"
    if split and state.backward - state.weights > state.pending:
        return "W"
    if state.forward < state.passes and state.in_flight <= state.warmup:
        return "F"
    if state.backward < state.passes:
        return "B"
    return "W" if split and state.weights < state.passes else None


@lru_cache(1024)
def pass_order(schedule: PipelineSchedule, state: StageState) -> tuple[PassKind, ...]:
    """Returns the kinds of all passes of a stage whose messages are always there.

    >>> "".join(pass_order("1f1b", StageState(passes=4, warmup=1, limit=2)))
    'FFBFBFBB'
    >>> "".join(pass_order("gpipe", StageState(passes=3, warmup=3, limit=3)))
    'FFFBBB'
    >>> "".join(pass_order("zb-h1", StageState(passes=4, warmup=1, limit=2, pending=1)))
    'FFBFBWFBWBWW'
    """
    order: list[PassKind] = []
    while (kind := next_pass(schedule, state)) is not None:
        order.append(kind)
        state = state.after(kind)
    return tuple(order)
