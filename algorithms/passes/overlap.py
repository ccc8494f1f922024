"""Overlap of communication with computation (AxoNN's overlaps), as a pass over a schedule.

A pass changes ordering edges and the order of ops in lanes; it never changes which ops exist or their sizes.

    oar   overlapped all-reduce: dI is all-reduced while dW is multiplied
    ors   overlapped reduce-scatter: dW is scattered until its result is used, at the end of the backward pass;
          where one rank reduces dI, dW is multiplied before dI
    oag   overlapped all-gather: the next weight is gathered while a product uses the current one (`prefetch.py`);
          for a single product, what its gradients need is gathered during the product, into a second buffer; panels
          are sent ahead
    ogr   overlapped gradient reduction: gradients are reduced over data, layer by layer, while earlier layers are
          in their backward pass (`reductions_in_passes.py`)
    opg   overlapped parameter gather: ZeRO 1 and 2 gather the weights of all layers at the start of a step, and a
          layer waits for its own weights only

dI is the gradient of a product's input, dW the gradient of its weight.

Results stay bitwise equal, since the ops determine what is added in which order.  With ors, a dW written in every
iteration has two buffers, used alternately, and scatters have a lane (communicator) of their own beside the gathers.

Source: the authors' code of AxoNN, as described by Singh et al., arXiv 2305.13525, section 4 (oar, ors, oag); NVIDIA,
Megatron-LM, `--overlap-grad-reduce` and `--overlap-param-gather` (ogr, opg).
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import get_args

from quadrille.algorithms.analysis.storage import is_single_rank
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.deferred_accumulation import defer_accumulation
from quadrille.algorithms.passes.prefetch import double_buffered, prefetch
from quadrille.algorithms.passes.reductions_in_passes import reduce_in_passes
from quadrille.algorithms.passes.rewriting import is_layer_loop, map_ops
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import (
    AllGather,
    Communication,
    Gemm,
    Op,
    OverlapName,
    ReduceScatter,
    reads,
    writes,
)
from quadrille.algorithms.schedule.program import Program, Repeat, in_sequence, ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor

OVERLAPS: tuple[OverlapName, ...] = get_args(OverlapName)
PRODUCT_OVERLAPS = OVERLAPS[:3]
"""The overlaps of a product with the communication of its own blocks; the others are of sums and gathers over data."""


def parse_overlap(text: str) -> frozenset[OverlapName]:
    """Returns the overlaps in a list such as `oar,ors`; `none` is the empty set.

    Raises
    ------
    InputError : another word
    """
    words = [word.strip() for word in text.split(",")]
    if words == ["none"]:
        return frozenset()
    unknown = [word for word in words if word not in OVERLAPS]
    if unknown:
        raise InputError(f"overlap {unknown[0]!r}: accepted are none, or a list of {', '.join(OVERLAPS)}")
    return frozenset(overlap for overlap in OVERLAPS if overlap in words)


def overlap(schedule: Schedule, names: Iterable[OverlapName]) -> Schedule:
    """Returns the schedule in which the communication of these overlaps runs beside the compute lane.

    Parameters
    ----------
    schedule : schedule without overlap
    names : overlaps `oar`, `ors`, `oag`, `ogr`, `opg`; none leaves the schedule as it is

    Raises
    ------
    InputError : the schedule already has overlaps
    """
    chosen = frozenset(names)
    if not chosen:
        return schedule
    if schedule.overlap:
        applied = ",".join(sorted(schedule.overlap))
        raise InputError(f"schedule {schedule.name} already overlaps {applied}: name all overlaps in one pass")
    tensors = dict(schedule.tensors)

    def reorder(program: Program) -> Program:
        changed = without_edges(program)
        if "ogr" in chosen:
            changed = reduce_in_passes(schedule, changed)
        if "ors" in chosen:
            changed = defer_accumulation(schedule, _weights_first(changed, schedule))
            _double_sources(changed, schedule, tensors)
        if "oag" in chosen:
            repeated_gather = _repeated_gathers(changed)
            changed = (
                _move_gathers_ahead(changed, repeated_gather, tensors)
                if repeated_gather
                else prefetch(schedule, changed)
            )
        return double_buffered(changed, tensors, chosen)

    reordered = schedule.with_program(reorder)
    lanes = _second_lanes(reordered, chosen)
    changed = reordered.with_program(lambda program: in_sequence(_release(_move_scatters(program, lanes), chosen)))
    return replace(changed, tensors=tensors, overlap=chosen)


def without_edges(program: Program) -> Program:
    """Returns the program without ordering edges, which are added again at the end."""
    return map_ops(program, lambda op: replace(op, after=()) if op.after else op)


def _has_overlap(op: Op | Repeat, *names: str) -> bool:
    return isinstance(op, Communication) and op.overlap in names


def _weights_first(program: Program, schedule: Schedule) -> Program:
    """Returns the program with dW and its scatter before dI and its reduction, in layers whose dI one rank reduces."""
    changed = [
        replace(entry, body=_weights_first(entry.body, schedule)) if isinstance(entry, Repeat) else entry
        for entry in program
    ]
    for position, summed in enumerate(changed):
        if isinstance(summed, Communication) and _has_overlap(summed, "oar") and is_single_rank(schedule, summed.axis):
            marks = [i for i in range(position + 1, len(changed)) if _has_overlap(changed[i], "oar", "ors")]
            products = [i for i in range(position) if isinstance(changed[i], Gemm)]
            if not (marks and products and _has_overlap(changed[marks[0]], "ors")):
                continue
            multiply, scatter = products[-1], marks[0]
            towards_dw = changed[position + 1 : scatter + 1]
            if not {*writes(summed)} & {name for op in ops(tuple(towards_dw)) for name in reads(op)}:
                changed[multiply : scatter + 1] = towards_dw + changed[multiply : position + 1]
    return tuple(changed)


def _double_sources(program: Program, schedule: Schedule, tensors: dict[str, Tensor]) -> None:
    """Gives two copies to every dW that the next iteration writes while its scatter is in flight."""
    for entry in program:
        if not isinstance(entry, Repeat):
            continue
        for op in entry.body:
            if isinstance(op, ReduceScatter) and _has_overlap(op, "ors") and not is_single_rank(schedule, op.axis):
                source = tensors[op.source]
                if entry.count != 1 and is_layer_loop(schedule, entry) and entry.loop not in dict(source.copies):
                    tensors[op.source] = replace(source, copies=(*source.copies, (entry.loop, 2)))
        _double_sources(entry.body, schedule, tensors)


def _repeated_gathers(program: Program) -> list[AllGather]:
    """Returns the marked gathers that repeat an unmarked one: a single product, whose gradients gather its operands
    again.
    """
    gathers = [entry for entry in program if isinstance(entry, AllGather)]
    unmarked = {entry.source for entry in gathers if not _has_overlap(entry, "oag")}
    return [entry for entry in gathers if _has_overlap(entry, "oag") and entry.source in unmarked]


def _move_gathers_ahead(program: Program, gathers: list[AllGather], tensors: dict[str, Tensor]) -> Program:
    """Moves these gathers before the first product, each into a buffer of its own."""
    for repeated_gather in gathers:
        buffer = f"{repeated_gather.into} ahead"
        tensors[buffer] = replace(tensors[repeated_gather.into], name=buffer)
        position = program.index(repeated_gather)
        first_product = next(i for i, entry in enumerate(program) if isinstance(entry, Gemm))
        readers = tuple(_with_operand(entry, repeated_gather.into, buffer) for entry in program[position + 1 :])
        before, between = program[:first_product], program[first_product:position]
        program = (*before, replace(repeated_gather, into=buffer), *between, *readers)
    return program


def _with_operand(entry: Op | Repeat, old: str, new: str) -> Op | Repeat:
    """Returns the op with operand `old` replaced by `new`."""
    if not isinstance(entry, Gemm) or old not in reads(entry):
        return entry
    return replace(entry, a=new if entry.a == old else entry.a, b=new if entry.b == old else entry.b)


def _second_lanes(schedule: Schedule, chosen: frozenset[OverlapName]) -> frozenset[Axis]:
    """Returns the axes on which weight gathers would queue behind released scatters."""
    axes: set[Axis] = set()
    for role in schedule.roles:
        busy: set[Axis] = set()
        for op in ops(role.program):
            if isinstance(op, ReduceScatter) and _has_overlap(op, *chosen & {"ors"}):
                busy.add(op.axis)
            if isinstance(op, AllGather) and _has_overlap(op, "oag") and op.axis in busy:
                axes.add(op.axis)
    return frozenset(axis for axis in axes if not is_single_rank(schedule, axis))


def _move_scatters(program: Program, lanes: frozenset[Axis]) -> Program:
    """Moves the scatters of dW on these axes to the second lane, a communicator of their own."""

    def moved(op: Op) -> Op:
        second = isinstance(op, ReduceScatter) and _has_overlap(op, "ors") and op.axis in lanes
        return replace(op, lane=1) if isinstance(op, Communication) and second else op

    return map_ops(program, moved)


def _release(program: Program, chosen: frozenset[OverlapName]) -> Program:
    """Marks the chosen ops concurrent: only ops that use their results wait for them."""

    def released(op: Op) -> Op:
        return replace(op, concurrent=True) if isinstance(op, Communication) and _has_overlap(op, *chosen) else op

    return map_ops(program, released)
