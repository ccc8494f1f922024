"""`--collectives auto`: each op by the algorithm that is predicted to take least on the machine.

An op is simulated alone, in all its turns and by all its groups at once: by each of our own algorithms that carry it
out differently, and by the library where the machine's file knows how long that takes.
The simulator knows the pattern of every message, so what a machine is slow at (two ranks that exchange on a
half-duplex link, say) is avoided without a rule of its own.  Ops of one kind and size on one axis are one question.

`quadrille collective` and its sweeps, which have no op and no library, choose among the same of our own.

Rank 0 of a run asks and tells all others: they choose the same, and need no simulator.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from quadrille.algorithms.analysis.shard_ranges import are_equal
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.choices import LIBRARY, Choices, with_placement
from quadrille.algorithms.collectives.lowered import Lowered
from quadrille.algorithms.collectives.lowering import CHUNK_BYTES, SETS, lower
from quadrille.algorithms.formats.record import Choice, Record
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import (
    VECTOR_CALL_KINDS,
    Broadcast,
    Collective,
    CollectiveKind,
    Reduce,
    collective_kind,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment

Carried = TypeVar("Carried", bound="Experiment")
CHUNKS = (CHUNK_BYTES, CHUNK_BYTES // 4, 4 * CHUNK_BYTES)
"""Sizes of the pieces that follow each other down chains and trees; of equals the first is taken [B]."""
OWN = tuple(Choices("own", name, size) for name in SETS for size in CHUNKS)
"""All that is tried of our own."""
NO_MACHINE = "--collectives auto: no --machine to predict with, so every op goes by own:ring"


@dataclass(frozen=True, slots=True)
class Asked:
    """Ops that are one question.

    Parameters
    ----------
    names : names of the ops
    size_bytes, elements : size of the whole buffer, in the first iteration of the first rank that has the op
    in_equal_pieces : whether all members have as much of it
    """

    names: tuple[str, ...]
    kind: CollectiveKind
    axis: Axis
    members: int
    size_bytes: int
    elements: int
    in_equal_pieces: bool = True

    @property
    def what(self) -> str:
        """In words.

        >>> Asked(("gather A", "gather B"), "all_gather", "z", 4, 1 << 20, 1 << 18).what
        'gather A, gather B: all_gather of 1 MiB over z, 4 ranks'
        """
        few, more = self.names[:3], len(self.names) - 3
        names = ", ".join(few) + (f" and {more} more, named by --json FILE" if more > 0 else "")
        return f"{names}: {self.kind} of {format_bytes(self.size_bytes)} over {self.axis}, {self.members} ranks"


@dataclass(frozen=True, slots=True)
class TriedCollective:
    """One way to carry out the ops, and the seconds that one of them is predicted to take so, alone, all its turns."""

    choices: Choices
    seconds: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is asked, and all ways that were tried, the fastest first."""

    asked: Asked
    ranked: tuple[TriedCollective, ...]

    def line(self) -> str:
        """The choice and its reason, for a person."""
        first, second = self.ranked[:2]
        return (
            f"{self.asked.what}: {first.choices}, {format_seconds(first.seconds)} predicted alone; "
            f"then {second.choices}, {format_seconds(second.seconds)}"
        )

    def entry(self) -> Choice:
        """The same for a record."""
        first, second = self.ranked[:2]
        return Choice(str(first.choices), first.seconds, str(second.choices), second.seconds)


def chosen_collectives(
    schedule: Schedule,
    machine: Machine,
    nodes: Sequence[int],
    *,
    threads: int | None = None,
    placement: str = "packed",
    with_library: bool = True,
) -> list[Chosen]:
    """What is chosen for each kind and size of collective, where there is a choice.

    Parameters
    ----------
    nodes : the node of each rank: what hierarchies go by
    threads, placement : as of the schedule's own simulation
    with_library : whether the library may carry out what it is known to be fast at
    """
    own = [with_placement(choices, schedule.grid, nodes) for choices in OWN]
    chosen = []
    for asked in questions(schedule):
        ways = candidates(own, asked)
        tried = [
            TriedCollective(choices, _seconds(schedule, asked, choices, machine, threads, placement)[0])
            for choices in ways
        ]
        if with_library and _library_is_measured(machine):
            tried += _tried_by_library(schedule, asked, machine, threads, placement)
        if len(tried) > 1:
            chosen.append(Chosen(asked, tuple(sorted(tried, key=lambda candidate: comparable(candidate.seconds)))))
    return chosen


def _tried_by_library(
    schedule: Schedule, asked: Asked, machine: Machine, threads: int | None, placement: str
) -> Iterator[TriedCollective]:
    """The library's ways that were measured: by each of MPI's calls where the op can go by both."""
    from quadrille.simulator.machine.library_collectives import MEASURED  # a rank that is told has no use for it

    both = asked.kind in VECTOR_CALL_KINDS and asked.in_equal_pieces
    for choices in LIBRARY.values() if both else (Choices("library"),):
        seconds, label = _seconds(schedule, asked, choices, machine, threads, placement)
        if label == f"{choices} {MEASURED}":
            yield TriedCollective(choices, seconds)


def _library_is_measured(machine: Machine) -> bool:
    """Whether the file knows what some collective of the library takes."""
    return any(part is not None and part.library for part in (machine.host, machine.network))


def with_chosen(
    experiment: Carried, schedule: Schedule, machine: Machine, nodes: Sequence[int], backend: str = "numpy"
) -> tuple[Carried, list[Chosen]]:
    """The experiment with a choice for each op, and the reasons.

    Parameters
    ----------
    schedule : the simulated schedule of the experiment
    backend : backend of the arrays: the library's times are known for arrays of the host only
    """
    execution = experiment.execution
    chosen = chosen_collectives(
        schedule,
        machine,
        nodes,
        threads=execution.threads,
        placement=execution.placement,
        with_library=backend == "numpy",
    )
    return with_choices(experiment, chosen), chosen


def with_choices(experiment: Carried, selected: Sequence[Chosen]) -> Carried:
    """The experiment with the chosen collectives."""
    chosen = tuple((name, choice.ranked[0].choices) for choice in selected for name in choice.asked.names)
    return replace(experiment, execution=replace(experiment.execution, choices=Choices(by_op=chosen)))


def candidates(own: Sequence[Choices], asked: Asked) -> list[Choices]:
    """Our own algorithms and chunk sizes that carry out the op in different steps."""

    def lowered(choices: Choices) -> Lowered:
        return lower(
            asked.kind,
            choices.algorithm(asked.kind),
            asked.members,
            size_bytes=asked.size_bytes,
            per_node=choices.ranks_per_node(asked.axis),
            elements=asked.elements,
            chunk_bytes=choices.chunk_bytes,
        )

    return different(own, lowered)


def different(own: Sequence[Choices], lowered: Callable[[Choices], Lowered]) -> list[Choices]:
    """The algorithms and chunk sizes that differ in their steps; the first represents those with equal steps."""
    by_steps: dict[tuple[str, int], Choices] = {}
    for choices in own:
        carried = lowered(choices)
        by_steps.setdefault((carried.algorithm, carried.steps), choices)
    return list(by_steps.values())


def comparable(seconds: float) -> float:
    """Seconds in which ways that differ by rounding alone are equal, so that the first is taken everywhere.

    >>> comparable(0.1 + 0.2) == comparable(0.3)
    True
    """
    return float(f"{seconds:.6g}")


def told(record: Record, chosen: Sequence[Chosen]) -> Record:
    """The record with what was chosen, and why."""
    return msgspec.structs.replace(
        record, collectives={name: choice.entry() for choice in chosen for name in choice.asked.names}
    )


# What is asked


def questions(schedule: Schedule) -> list[Asked]:
    """The collectives of a schedule, those that come to the same taken together."""
    questions: dict[object, Asked] = {}
    for place in _first_places(schedule):
        for op, moment, loops in _first_moments(schedule.program(place), place):
            moved = traffic(op, schedule, moment, Choices())
            if moved is None or any(op.name in asked.names for asked in questions.values()):
                continue
            kind, elements = collective_kind(op), moved.edges[-1]
            root = op.root if isinstance(op, Broadcast | Reduce) else None
            key = (kind, op.axis, moved.edges, moved.item_bytes, root, loops)
            members, size = moved.lowered.members, elements * moved.item_bytes
            question = questions.get(key) or Asked((), kind, op.axis, members, size, elements, are_equal(moved.edges))
            questions[key] = replace(question, names=(*question.names, op.name))
    return list(questions.values())


def _first_places(schedule: Schedule) -> Iterator[Coordinates]:
    """The first rank of every role."""
    for role in schedule.roles:
        places = (schedule.coordinates(rank) for rank in range(schedule.grid.size))
        first = next((place for place in places if role.includes(place)), None)
        if first is not None:
            yield first


def _first_moments(
    program: Program, place: Coordinates, loops: tuple[object, ...] = ()
) -> Iterator[tuple[Collective, Coordinates, tuple[object, ...]]]:
    """Every collective of a program in the first turn of its loops, and how often these turn."""
    for entry in program:
        if isinstance(entry, Repeat):
            if indices := entry.indices(place):
                yield from _first_moments(entry.body, place.during(entry.loop, indices[0]), (*loops, entry.count))
        elif isinstance(entry, Collective):
            yield entry, place, loops


# How long it takes


def _seconds(
    schedule: Schedule, asked: Asked, choices: Choices, machine: Machine, threads: int | None, placement: str
) -> tuple[float, str | None]:
    """What one of the ops alone takes so, in all its turns, and what the prediction calls the way, if it has a word."""
    from quadrille.simulator.simulate import simulate

    name = asked.names[0]
    alone = schedule.with_program(lambda program: only(program, name), inputs=(), outputs=(), state=())
    ran = simulate(alone, machine, choices=choices, threads=threads, placement=placement, granularity="auto")
    return ran.timeline.makespan, ran.labels.get(name)


def only(program: Program, name: str) -> Program:
    """What is left of a program where all other ops are taken out."""
    left: list[Repeat | Collective] = []
    for entry in program:
        if isinstance(entry, Repeat):
            body = only(entry.body, name)
            left += [replace(entry, body=body)] if body else []
        elif isinstance(entry, Collective) and entry.name == name:
            left.append(replace(entry, after=()))
    return tuple(left)
