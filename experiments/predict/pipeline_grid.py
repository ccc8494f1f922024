"""A pipeline's passes as a grid of stages and time slots, as text."""

from quadrille.algorithms.training.pipeline import Stages
from quadrille.experiments.predict.pipeline_slots import Slot, SlotSeconds, slots_in_time

BACKWARD_SLOTS = 2
"""Length of a backward pass, in forward passes: it computes twice as much, half of it in W passes if there are any."""
LONGEST = 120
"""Largest length of a line."""
IDLE, GOES_ON = ".", "-"


def pipeline_grid(stages: Stages, *, smaller_last: bool = False) -> list[str]:
    r"""The passes of all stages in time, a line for each stage, and the share of idle slots (bubbles).

    >>> print("\n".join(pipeline_grid(Stages(2, layers=2, microbatches=3))))
    pipeline: 1f1b, 2 stages, 3 microbatches; a backward pass (B) takes 2 slots, 25 % of the slots are idle (.)
    stage 0  F0 F1 .  .  B0 -- F2 B1 -- .  B2 --
    stage 1  .  F0 B0 -- F1 B1 -- F2 B2 -- .  .

    Parameters
    ----------
    stages : stages, chunks and microbatches; passes take as long as they have layers, and messages take no time
    smaller_last : whether the last microbatch is smaller than the others; its passes are drawn as long as the others
    """
    slots = grid_slots(stages)
    title = f"{pipeline_title(stages, smaller_last=smaller_last)}, {100 * idle_share(stages, slots):.3g} % of the slots"
    return [f"{title} are idle ({IDLE})", *_lines(stages, slots, slots_length(slots))]


def grid_slots(stages: Stages) -> list[Slot]:
    """The passes of all stages in time, where a forward pass of a layer takes 1 slot and messages take no time."""
    lengths = [1] * len(stages.part_sizes) if has_equal_parts(stages) else list(stages.part_sizes)
    backward = 1 if stages.splits else BACKWARD_SLOTS
    weights = lengths if stages.splits else ()
    return slots_in_time(stages, SlotSeconds(lengths, [backward * length for length in lengths], weights=weights))


def slots_length(slots: list[Slot]) -> int:
    """Number of slots from the first to the last pass."""
    return int(max(slot.end for slot in slots))


def idle_share(stages: Stages, slots: list[Slot]) -> float:
    """Share of the slots in which a stage has no pass: the bubbles.

    >>> idle_share(Stages(2, layers=2, microbatches=3), grid_slots(Stages(2, layers=2, microbatches=3)))
    0.25
    """
    return 1 - sum(slot.end - slot.start for slot in slots) / (stages.count * slots_length(slots))


def has_equal_parts(stages: Stages) -> bool:
    """Whether all chunks have the same number of layers, so that a slot is a pass through a chunk."""
    return len(set(stages.part_sizes)) == 1


def pipeline_title(stages: Stages, *, smaller_last: bool = False) -> str:
    """The order of a pipeline, its numbers of stages, chunks and microbatches, and the slots of its passes."""
    rule = "interleaved" if stages.chunks > 1 and not stages.v_placed else stages.schedule
    chunks = f", {stages.chunks} chunks of layers each" if stages.chunks > 1 else ""
    last = " (the last is smaller)" if smaller_last else ""
    return (
        f"pipeline: {rule}, {stages.count} stages{chunks}, {stages.microbatches} microbatches{last}; "
        f"{_passes(stages)}{'' if has_equal_parts(stages) else ' for each layer'}"
    )


def _passes(stages: Stages) -> str:
    if stages.splits:
        return "a backward pass (B) and a pass of weight gradients (W) take 1 slot each"
    return f"a backward pass (B) takes {BACKWARD_SLOTS} slots"


def _lines(stages: Stages, slots: list[Slot], length: int) -> list[str]:
    width = max(len(_name(stages, slot)) for slot in slots)
    title = max(len(f"stage {stage}") for stage in range(stages.count))
    shown = min(length, (LONGEST - title - 2) // (width + 1))
    cells = [[IDLE] * length for _ in range(stages.count)]
    for slot in slots:
        start, end = int(slot.start), int(slot.end)
        cells[slot.stage][start:end] = [_name(stages, slot), *[GOES_ON * width] * (end - start - 1)]
    lines = [
        f"{f'stage {stage}':{title}}  " + " ".join(f"{cell:{width}}" for cell in row[:shown]).rstrip()
        for stage, row in enumerate(cells)
    ]
    return lines if shown == length else [*lines, f"and {length - shown} more slots; --plot FILE draws all"]


def _name(stages: Stages, slot: Slot) -> str:
    chunk = f".{slot.chunk}" if stages.chunks > 1 else ""
    return f"{slot.kind}{slot.microbatch}{chunk}"
