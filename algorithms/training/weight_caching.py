"""Weight caching: the backward pass reuses the gathered weights of the first layers of every pipeline stage.

    gathered again     two gathers of each weight in a step, one buffer for all layers
    cached, N layers   the first N layers gather once; k n / (x y) elements more for each of their weights

A layer loop becomes two: one over the cached layers, which gather into copies of their own, and one over the others. In
the backward pass (loops that run backwards) cached layers gather nothing.

Source: the authors' code of AxoNN keeps the gathered weights of all, some or no layers, as the memory allows.
"""

from collections.abc import Collection
from dataclasses import replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import without_edges
from quadrille.algorithms.passes.rewriting import least_iterations, rename_tensors, sum_of
from quadrille.algorithms.schedule.ops import AllGather, Op, reads, writes
from quadrille.algorithms.schedule.program import Program, Repeat, in_sequence, ops
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.transformer import LAYER


def cache_weights(schedule: Schedule, layers: int) -> Schedule:
    """Returns the schedule whose backward pass reuses the gathered weights of the first layers.

    Parameters
    ----------
    schedule : schedule of a training step whose weights are gathered again in the backward pass
    layers : number of layers of every pipeline stage whose gathered weights are kept

    Raises
    ------
    InputError : a number below 0, as many layers as a stage has, or no weights that are gathered again
    """
    if layers < 0:
        raise InputError(f"keep_first {layers}: a whole number from 0 is accepted")
    if layers == 0:
        return schedule
    buffers = _gathered_again(schedule)
    if not buffers:
        raise InputError(
            f"keep_first {layers}: {schedule.name} on {schedule.grid} gathers no weights of a layer again; "
            "4d and bian do, where z is longer than 1 and gathered is 'again'"
        )
    most = (
        min(
            least_iterations(schedule, loop_count.count)
            for role in schedule.roles
            for loop_count in _loops(role.program, buffers)
        )
        - 1
    )
    if layers > most:
        raise InputError(
            f"keep_first {layers}: up to {most} is accepted, one less than a stage has; gathered 'keep' keeps all"
        )
    cached_names = {name: f"{name} kept" for name in buffers}
    tensors = dict(schedule.tensors)
    for name, source in buffers.items():
        outer = tuple(loop_count for loop_count in tensors[source].copies if loop_count[0] != LAYER)
        tensors[cached_names[name]] = replace(tensors[name], name=cached_names[name], copies=(*outer, (LAYER, layers)))
    changed = schedule.with_program(
        lambda program: in_sequence(_split_loops(without_edges(program), layers, cached_names))
    )
    return replace(changed, tensors=tensors)


def _gathered_again(schedule: Schedule) -> dict[str, str]:
    """Buffers into which weights of single layers are gathered, each with its source."""
    gathers = [op for op in all_ops(schedule) if isinstance(op, AllGather) and op.overlap == "oag"]
    return {
        op.into: op.source
        for op in gathers
        if _has_layer_copies(schedule.tensors[op.source]) and not _has_layer_copies(schedule.tensors[op.into])
    }


def _has_layer_copies(tensor: Tensor) -> bool:
    return any(loop == LAYER for loop, _ in tensor.copies)


def _loops(program: Program, buffers: Collection[str]) -> list[Repeat]:
    """Layer loops whose products use these buffers."""
    loops: list[Repeat] = []
    for entry in program:
        if isinstance(entry, Repeat):
            own = entry.loop == LAYER and any(_touches(op, buffers) for op in ops(entry.body))
            loops += [entry] if own else _loops(entry.body, buffers)
    return loops


def _touches(op: Op, buffers: Collection[str]) -> bool:
    return any(name in buffers for name in (*reads(op), *writes(op)))


def _split_loops(program: Program, layers: int, cached_names: dict[str, str]) -> Program:
    changed: list[Op | Repeat] = []
    for entry in program:
        if not isinstance(entry, Repeat):
            changed.append(entry)
        elif entry.loop != LAYER or not any(_touches(op, cached_names) for op in ops(entry.body)):
            changed.append(replace(entry, body=_split_loops(entry.body, layers, cached_names)))
        else:
            both = _split_loop(entry, layers, cached_names)
            changed += reversed(both) if entry.backwards else both
    return tuple(changed)


def _split_loop(entry: Repeat, layers: int, cached_names: dict[str, str]) -> tuple[Repeat, Repeat]:
    """Returns the loop over the cached layers, and the loop over the other layers."""
    body = rename_tensors(entry.body, cached_names)
    if entry.backwards:
        body = tuple(op for op in body if not (isinstance(op, AllGather) and op.into in cached_names.values()))
    others = replace(entry, count=sum_of(entry.count, -layers), first=sum_of(entry.first, layers))
    return replace(entry, count=layers, body=body), others
