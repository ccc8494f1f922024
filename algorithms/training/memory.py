"""Memory of a training step by purpose, from the buffers that the runtime allocates.

parameters        weights as products read them
gradients         accumulated and reduced gradients
optimizer         moments, master weights where products read others, and indices of pruned weights
optimizer on host the same in host memory (`offload.py`), only if there is any; not counted on the device
buckets           bucket buffers of an update from host memory, only if there are any
activations       what the forward pass stores for the backward pass, for every layer; of a GPT with zero bubbles also
                  what the backward pass stores for the gradients of weights
gathered weights  whole blocks of sharded weights, and weights that ZeRO 3 gathers for use
buffers           the rest: activation gradients, temporaries of one layer, reduction buffers
"""

from typing import Literal, get_args

from quadrille.algorithms.analysis.storage import Storage, storage
from quadrille.algorithms.analysis.volumes import storages_of_stages
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import AllGather, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, Tensor
from quadrille.algorithms.training.adam import moment_names
from quadrille.algorithms.training.layers import index_name
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.mlp import TARGET
from quadrille.algorithms.training.offload import KEPT_STAGING, STAGING
from quadrille.algorithms.training.pipeline import LAYER_LOOPS
from quadrille.algorithms.training.resume import parameter_names
from quadrille.algorithms.training.small_numbers import small_columns

Kind = Literal[
    "parameters", "gradients", "optimizer", "activations", "gathered weights", "buffers", "buckets", "optimizer on host"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
BUCKETS: Kind = "buckets"
ON_HOST: Kind = "optimizer on host"
OFFLOAD_KINDS: tuple[Kind, ...] = (BUCKETS, ON_HOST)
"""Kinds that only an offloaded optimizer has."""
ACTIVATIONS: Kind = "activations"


def memory_bytes_by_kind(schedule: Schedule, coordinates: Coordinates, choices: Choices) -> dict[Kind, int]:
    """Bytes of the rank at the coordinates by kind; their sum equals the bytes of `storage` on device and host.

    Parameters
    ----------
    schedule : schedule of a training step, whose state are its parameters
    """
    return _by_kind(storage(schedule, coordinates, choices), schedule)


def _by_kind(rank_storage: Storage, schedule: Schedule) -> dict[Kind, int]:
    bytes_by_kind: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    for name, kind in kinds_of_tensors(rank_storage, schedule).items():
        copies, item_bytes = rank_storage.copies[name], rank_storage.item_bytes[name]
        bytes_by_kind[kind] += rank_storage.tensors[name] * copies * item_bytes
    both = rank_storage.bytes + rank_storage.host_bytes
    bytes_by_kind["buffers"] += both - sum(bytes_by_kind.values())
    return {kind: size for kind, size in bytes_by_kind.items() if size or kind not in OFFLOAD_KINDS}


def kinds_of_tensors(rank_storage: Storage, schedule: Schedule) -> dict[str, Kind]:
    """Kind of each tensor that a rank stores, by name."""
    mixed = ITEM_BYTES[schedule.dtype] == 2
    names = dict.fromkeys(_stored_activations(schedule), ACTIVATIONS) | _names(schedule, mixed)
    names |= dict.fromkeys((*STAGING, KEPT_STAGING), BUCKETS) | dict.fromkeys(rank_storage.on_host, ON_HOST)
    return {name: names.get(name) or _kind_of_other(schedule.tensors[name]) for name in rank_storage.tensors}


def largest_memory(schedule: Schedule, choices: Choices) -> dict[Kind, int]:
    """Bytes by kind of the rank that needs most, on any pipeline stage."""
    return _by_kind(max(storages_of_stages(schedule, choices), key=lambda each: each.bytes), schedule)


def _names(schedule: Schedule, mixed: bool) -> dict[str, Kind]:
    """Kind of every tensor named after a parameter.

    The state of a resumed run, and of an offloaded optimizer, includes moments.
    """
    gathered_as_used = {
        op.into
        for role in schedule.roles
        for op in ops(role.program)
        if isinstance(op, AllGather) and op.axis in ("data", "replica") and op.overlap == "oag"
    }
    kinds: dict[str, Kind] = {}
    for name in parameter_names(schedule):
        used_weight, compressed = f"{name} held", f"{name} gathered"
        shards = bool(gathered_as_used & {used_weight, compressed})
        of_its_own = used_weight in schedule.tensors and (mixed or not shards)
        kinds[name] = "optimizer" if of_its_own else "parameters"
        kinds[used_weight] = "gathered weights" if shards else "parameters"
        small_weights = (small_columns(used_weight), f"{name} in 16 bits")
        kinds |= dict.fromkeys(small_weights, "gathered weights" if shards else "parameters")
        cast = f"{name} cast"
        kinds[cast] = "parameters" if shards or cast in schedule.state else "buffers"
        kinds |= dict.fromkeys((*moment_names(name), index_name(name)), "optimizer")
        kinds |= dict.fromkeys((f"d{name}", f"d{name} held"), "gradients")
        gathered = (f"{name} whole", f"{name} whole kept", compressed, f"{compressed} kept")
        kinds |= dict.fromkeys(gathered, "gathered weights")
    return kinds


def _stored_activations(schedule: Schedule) -> set[str]:
    """Activations of an MLP that the backward pass reads and does not recompute; the first op of the backward pass
    writes a gradient.

    In a pipeline they have copies, one for each microbatch in flight.  Activations of a GPT are recognised by one copy
    for each layer.
    """
    tensors = schedule.tensors
    rows = {name for name, tensor in tensors.items() if tensor.rows.dimension == "rows" and name != TARGET}
    stored = {name for name in rows if MICROBATCH in dict(tensors[name].copies) and not name.startswith("d")}
    for role in schedule.roles:
        recomputed: set[str] | None = None
        for op in ops(role.program):
            written = rows & {*writes(op)}
            if recomputed is None and any(name.startswith("d") for name in written):
                recomputed = set()
            if recomputed is not None:
                stored |= {name for name in rows & {*reads(op)} - recomputed if not name.startswith("d")}
                recomputed |= written
    return stored


def _kind_of_other(tensor: Tensor) -> Kind:
    is_stored = any(loop in LAYER_LOOPS for loop, _ in tensor.copies)
    return ACTIVATIONS if is_stored and tensor.rows.dimension == "batch" else "buffers"
