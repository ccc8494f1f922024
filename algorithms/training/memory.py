"""Memory of a training step by what it is for, from the very buffers that the runtime allocates.

parameters        weights as products use them
gradients         as they are added up and reduced
optimizer         moments, and the weights' own copy where products use others
activations       what the forward pass leaves to the backward pass, of every layer
gathered weights  blocks of weights that are stored as shards, and what ZeRO 3 gathers of them as it is used
buffers           all else: gradients of activations, what one layer needs at a time, room for reductions
"""

from typing import Literal, get_args

from quadrille.algorithms.analysis.rank_symmetry import equivalent_ranks
from quadrille.algorithms.analysis.storage import Storage, storage, storages
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.schedule.ops import AllGather, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, Tensor
from quadrille.algorithms.training.adam import moment_names
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.mlp import TARGET
from quadrille.algorithms.training.transformer import LAYER

Kind = Literal["parameters", "gradients", "optimizer", "activations", "gathered weights", "buffers"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ACTIVATIONS: Kind = "activations"


def memory_bytes_by_kind(schedule: Schedule, coordinates: Coordinates, choices: Choices) -> dict[Kind, int]:
    """Bytes of the rank at `coordinates` by kind; they add up to what `storage` says.

    Parameters
    ----------
    schedule : of a training step, whose state are its parameters
    """
    return _by_kind(storage(schedule, coordinates, choices), schedule)


def _by_kind(kept: Storage, schedule: Schedule) -> dict[Kind, int]:
    mixed = ITEM_BYTES[schedule.dtype] == 2
    names = dict.fromkeys(_left_to_backward(schedule), ACTIVATIONS) | _names(schedule, mixed)
    found: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    for name, elements in kept.tensors.items():
        found[names.get(name) or _otherwise(schedule.tensors[name])] += (
            elements * kept.copies[name] * kept.item_bytes[name]
        )
    found["buffers"] += kept.bytes - sum(found.values())
    return found


def largest_memory(schedule: Schedule, choices: Choices) -> dict[Kind, int]:
    """Bytes by kind of the rank that needs most, among one of each class of ranks."""
    kept = storages(schedule, [one.coordinates for one in equivalent_ranks(schedule, choices)], choices)
    return _by_kind(max(kept, key=lambda one: one.bytes), schedule)


def _names(schedule: Schedule, mixed: bool) -> dict[str, Kind]:
    """The kind of every tensor that is named after a parameter.

    The state of a run that goes on from a checkpoint has moments too.
    """
    moments = {name for one in schedule.state for name in moment_names(one)}
    gathered_as_used = {
        op.into
        for role in schedule.roles
        for op in ops(role.program)
        if isinstance(op, AllGather) and op.axis == "data" and op.overlap == "oag"
    }
    found: dict[str, Kind] = {}
    for name in (one for one in schedule.state if one not in moments):
        held = f"{name} held"
        shards = held in gathered_as_used
        of_its_own = held in schedule.tensors and (mixed or not shards)
        found[name] = "optimizer" if of_its_own else "parameters"
        found[held] = "gathered weights" if shards else "parameters"
        found[f"{name} cast"] = "parameters" if shards else "buffers"
        found |= dict.fromkeys(moment_names(name), "optimizer")
        found |= dict.fromkeys((f"d{name}", f"d{name} held"), "gradients")
        found |= dict.fromkeys((f"{name} whole", f"{name} whole kept"), "gathered weights")
    return found


def _left_to_backward(schedule: Schedule) -> set[str]:
    """Of a stack of layers, what the backward pass reads and does not make again; its first op writes a gradient.

    In a pipeline these have copies, one for each microbatch under way.  A GPT's
    activations are told by theirs, one for each layer.
    """
    tensors = schedule.tensors
    rows = {name for name, tensor in tensors.items() if tensor.rows.dimension == "rows" and name != TARGET}
    found = {name for name in rows if MICROBATCH in dict(tensors[name].copies) and not name.startswith("d")}
    for role in schedule.roles:
        made: set[str] | None = None
        for op in ops(role.program):
            written = rows & {*writes(op)}
            if made is None and any(name.startswith("d") for name in written):
                made = set()
            if made is not None:
                found |= {name for name in rows & {*reads(op)} - made if not name.startswith("d")}
                made |= written
    return found


def _otherwise(tensor: Tensor) -> Kind:
    return ACTIVATIONS if LAYER in dict(tensor.copies) and tensor.rows.dimension == "batch" else "buffers"
