"""Overlap as a pass: ordering edges and the order inside lanes change, never which ops there are or their sizes.

    oar   the sum of dA is under way while dB is multiplied
    ors   the scatter of dB is under way until the end; where the group that
          sums dA has one rank, dB is multiplied before dA
    oag   what the gradients need again is gathered while C is multiplied, into
          a second buffer: at most two gathered weights are alive

Source: the authors' code of AxoNN, as described by Singh et al., arXiv 2305.13525, section 4.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import get_args

from algorithms.errors import InputError
from algorithms.ops import AllGather, Communication, Gemm, Op, OverlapName, reads
from algorithms.schedule import Program, Repeat, Schedule, in_sequence, ops
from algorithms.tensors import Tensor

OVERLAPS: tuple[OverlapName, ...] = get_args(OverlapName)


def parse_overlap(text: str) -> frozenset[OverlapName]:
    """The overlaps named in a list such as `oar,ors`; `none` is none of them.

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
    """The schedule with the communication that these overlaps name running beside the compute lane.

    Raises
    ------
    InputError : the schedule has overlaps already
    """
    chosen = frozenset(names)
    if not chosen:
        return schedule
    if schedule.overlap:
        done = ",".join(sorted(schedule.overlap))
        raise InputError(f"schedule {schedule.name} already overlaps {done}: name all overlaps in one pass")
    tensors = dict(schedule.tensors)

    def change(program: Program) -> Program:
        changed = _without_edges(program)
        if "ors" in chosen and _sums_alone(schedule, changed):
            changed = _weights_first(changed)
        if "oag" in chosen:
            changed = _gather_ahead(changed, tensors)
        return _release(in_sequence(changed), chosen)

    changed = schedule.with_program(change)
    return replace(changed, tensors=tensors, overlap=chosen)


def _without_edges(program: Program) -> Program:
    """The program without the edges that `in_sequence` adds anew."""
    return tuple(
        replace(entry, body=_without_edges(entry.body)) if isinstance(entry, Repeat) else replace(entry, after=())
        for entry in program
    )


def _marked(op: Op | Repeat, name: OverlapName) -> bool:
    return isinstance(op, Communication) and op.overlap == name


def _sums_alone(schedule: Schedule, program: Program) -> bool:
    """Whether the group that sums dA has one rank."""
    return any(
        isinstance(op, Communication) and op.overlap == "oar" and schedule.grid.length(op.axis) == 1
        for op in ops(program)
    )


def _weights_first(program: Program) -> Program:
    """The program with dB and its scatter before dA and its sum."""
    first_sum = next(i for i, entry in enumerate(program) if _marked(entry, "oar"))
    scatter = next(i for i, entry in enumerate(program) if _marked(entry, "ors"))
    multiply = max(i for i in range(first_sum) if isinstance(program[i], Gemm))
    towards_db = program[first_sum + 1 : scatter + 1]
    return program[:multiply] + towards_db + program[multiply : first_sum + 1] + program[scatter + 1 :]


def _gather_ahead(program: Program, tensors: dict[str, Tensor]) -> Program:
    """Every second gather moved before the first product, into a buffer of its own."""
    for again in [entry for entry in program if isinstance(entry, AllGather) and entry.overlap == "oag"]:
        buffer = f"{again.into} ahead"
        tensors[buffer] = replace(tensors[again.into], name=buffer)
        position = program.index(again)
        first_product = next(i for i, entry in enumerate(program) if isinstance(entry, Gemm))
        readers = tuple(_reading(entry, again.into, buffer) for entry in program[position + 1 :])
        before, between = program[:first_product], program[first_product:position]
        program = (*before, replace(again, into=buffer), *between, *readers)
    return program


def _reading(entry: Op | Repeat, old: str, new: str) -> Op | Repeat:
    """The op with operand `old` replaced by `new`."""
    if not isinstance(entry, Gemm) or old not in reads(entry):
        return entry
    return replace(entry, a=new if entry.a == old else entry.a, b=new if entry.b == old else entry.b)


def _release(program: Program, chosen: frozenset[OverlapName]) -> Program:
    """Nothing waits any more for the chosen ops except what uses their results."""
    freed = {op.name: op.after for op in ops(program) if isinstance(op, Communication) and op.overlap in chosen}

    def before(names: tuple[str, ...]) -> tuple[str, ...]:
        result: list[str] = []
        for name in names:
            result += before(freed[name]) if name in freed else (name,)
        return tuple(dict.fromkeys(result))

    def change(entry: Op | Repeat) -> Op | Repeat:
        if isinstance(entry, Repeat):
            return replace(entry, body=tuple(change(inner) for inner in entry.body))
        if isinstance(entry, Communication) and entry.name in freed:
            return replace(entry, after=before(entry.after), concurrent=True)
        return replace(entry, after=before(entry.after))

    return tuple(change(entry) for entry in program)
