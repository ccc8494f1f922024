"""`--collectives auto`: chooses for each op the algorithm with the smallest predicted time on the machine.

Each op is simulated alone, in all its iterations and by all its groups at once: with each
of Quadrille's own algorithms that has different steps, and with the MPI library if the
machine file has its measured times.  The simulator knows the pattern of every message,
so it avoids what is slow on a machine, such as an exchange over a half-duplex link,
without a special rule.  Ops of one kind and size on one axis share a choice.

`quadrille collective` and its sweeps, which have no op and no library, choose among the
same own algorithms.

Rank 0 of a run chooses and broadcasts the choices, so other ranks need no simulator.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from quadrille.algorithms.analysis.shard_ranges import are_equal
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.collective_choices import LIBRARY, Choices, with_placement
from quadrille.algorithms.collectives.lowered_collective import Lowered
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
"""Chunk sizes that are tried for chains and trees [B]; the first of equally fast sizes is chosen."""
OWN = tuple(Choices("own", name, size) for name in SETS for size in CHUNKS)
"""All of Quadrille's own algorithms and chunk sizes that are tried."""
NO_MACHINE = "--collectives auto: no --machine to predict with, so every op goes by own:ring"


@dataclass(frozen=True, slots=True)
class Asked:
    """Ops that share a choice.

    Parameters
    ----------
    names : names of the ops
    size_bytes, elements : size of the whole buffer, in the first iteration of the first rank that has the op
    in_equal_pieces : whether all members have shards of equal size
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
        """A description of the ops: names, kind, size and axis.

        >>> Asked(("gather A", "gather B"), "all_gather", "z", 4, 1 << 20, 1 << 18).what
        'gather A, gather B: all_gather of 1 MiB over z, 4 ranks'
        """
        few, more = self.names[:3], len(self.names) - 3
        names = ", ".join(few) + (f" and {more} more, named by --json FILE" if more > 0 else "")
        return f"{names}: {self.kind} of {format_bytes(self.size_bytes)} over {self.axis}, {self.members} ranks"


@dataclass(frozen=True, slots=True)
class TriedCollective:
    """An algorithm for the ops, and the predicted time of one of the ops alone, over all its iterations [s]."""

    choices: Choices
    seconds: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """Ops that share a choice, and all algorithms that were tried, the fastest first."""

    asked: Asked
    ranked: tuple[TriedCollective, ...]

    def line(self) -> str:
        """The choice and its reason, as a line of text."""
        first, second = self.ranked[:2]
        return (
            f"{self.asked.what}: {first.choices}, {format_seconds(first.seconds)} predicted alone; "
            f"then {second.choices}, {format_seconds(second.seconds)}"
        )

    def entry(self) -> Choice:
        """The choice and its reason, as an entry of a record."""
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
    """The choice for each kind and size of collective that has several algorithms.

    Parameters
    ----------
    nodes : node of each rank, for hierarchical algorithms
    threads, placement : BLAS threads and rank placement of the simulated schedule
    with_library : whether the MPI library is tried, if its times are known
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
    """The predicted times with the MPI library: with each kind of MPI calls that was measured and fits the op."""
    from quadrille.simulator.machine.library_collectives import MEASURED  # a rank that is told has no use for it

    both = asked.kind in VECTOR_CALL_KINDS and asked.in_equal_pieces
    for choices in LIBRARY.values() if both else (Choices("library"),):
        seconds, label = _seconds(schedule, asked, choices, machine, threads, placement)
        if label == f"{choices} {MEASURED}":
            yield TriedCollective(choices, seconds)


def _library_is_measured(machine: Machine) -> bool:
    """Whether the machine file has times of collectives of the MPI library."""
    return any(part is not None and part.library for part in (machine.host, machine.network))


def with_chosen(
    experiment: Carried, schedule: Schedule, machine: Machine, nodes: Sequence[int], backend: str = "numpy"
) -> tuple[Carried, list[Chosen]]:
    """The experiment with a choice for each op, and the reasons.

    Parameters
    ----------
    schedule : simulated schedule of the experiment
    backend : backend of the arrays; the library's times are known for arrays of the host only
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
    """The time [s], rounded so that times that differ by rounding errors are equal and the first is chosen everywhere.

    >>> comparable(0.1 + 0.2) == comparable(0.3)
    True
    """
    return float(f"{seconds:.6g}")


def record_with_choices(record: Record, chosen: Sequence[Chosen]) -> Record:
    """The record with the chosen collectives and their predicted times."""
    return msgspec.structs.replace(
        record, collectives={name: choice.entry() for choice in chosen for name in choice.asked.names}
    )


# What is asked


def questions(schedule: Schedule) -> list[Asked]:
    """The collectives of a schedule; ops with equal kind and size share an entry."""
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
    """Every collective of a program at the first iteration of its loops, with the iterations of these loops."""
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
    """Predicted time of one of the ops alone, over all its iterations [s], and the label of its algorithm."""
    from quadrille.simulator.simulate import simulate

    name = asked.names[0]
    alone = schedule.with_program(lambda program: only(program, name), inputs=(), outputs=(), state=())
    ran = simulate(alone, machine, choices=choices, threads=threads, placement=placement, granularity="auto")
    return ran.timeline.makespan, ran.labels.get(name)


def only(program: Program, name: str) -> Program:
    """The program without all other ops."""
    left: list[Repeat | Collective] = []
    for entry in program:
        if isinstance(entry, Repeat):
            body = only(entry.body, name)
            left += [replace(entry, body=body)] if body else []
        elif isinstance(entry, Collective) and entry.name == name:
            left.append(replace(entry, after=()))
    return tuple(left)
