"""`--collectives auto`: chooses for each op the algorithm with the smallest predicted time on the machine.

Each op is simulated alone, in all its iterations and by all its groups at once: with each
of Quadrille's own algorithms that has different steps, and with the MPI library if the
machine file has its measured times.  The simulator knows the pattern of every message,
so it avoids algorithms that are slow on a machine, such as an exchange over a half-duplex
link, without a special rule.  Ops of one kind and size on one axis share a choice.

`quadrille collective` and its sweeps, which have no schedule, choose among Quadrille's own
algorithms only.

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

AnyExperiment = TypeVar("AnyExperiment", bound="Experiment")
CHUNKS = (CHUNK_BYTES, CHUNK_BYTES // 4, 4 * CHUNK_BYTES)
"""Chunk sizes that are tried for chains and trees [B]; the first of equally fast sizes is chosen."""
OWN_CHOICES = tuple(Choices("own", name, size) for name in SETS for size in CHUNKS)
"""All of Quadrille's own algorithms and chunk sizes that are tried."""
NO_MACHINE = "--collectives auto: no --machine to predict with, so every op uses own:ring"


@dataclass(frozen=True, slots=True)
class CollectiveOps:
    """Collective ops of one kind and size on one axis, which share a choice.

    Parameters
    ----------
    names : names of the ops
    kind, axis, members : kind of collective, axis of its groups, and number of ranks in a group
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

        >>> CollectiveOps(("gather A", "gather B"), "all_gather", "z", 4, 1 << 20, 1 << 18).what
        'gather A, gather B: all_gather of 1 MiB over z, 4 ranks'
        """
        few, more = self.names[:3], len(self.names) - 3
        names = ", ".join(few) + (f" and {more} more, named by --json FILE" if more > 0 else "")
        return f"{names}: {self.kind} of {format_bytes(self.size_bytes)} over {self.axis}, {self.members} ranks"


@dataclass(frozen=True, slots=True)
class TriedChoice:
    """An algorithm that was tried, and the predicted time of an op alone with it, over all its iterations [s]."""

    choices: Choices
    seconds: float


@dataclass(frozen=True, slots=True)
class ChosenCollective:
    """The choice for some ops: all algorithms that were tried, the fastest first."""

    ops: CollectiveOps
    ranked: tuple[TriedChoice, ...]

    def line(self) -> str:
        """The choice and its reason, as a line of text."""
        first, second = self.ranked[:2]
        return (
            f"{self.ops.what}: {first.choices}, {format_seconds(first.seconds)} predicted alone; "
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
) -> list[ChosenCollective]:
    """The choices for the collectives of a schedule: one for each kind, size and axis with several algorithms.

    Parameters
    ----------
    schedule : simulated schedule
    nodes : node of each rank, for hierarchical algorithms
    threads, placement : BLAS threads and rank placement of the simulated schedule
    with_library : whether the MPI library is tried, if its times are known
    """
    own = [with_placement(choices, schedule.grid, nodes) for choices in OWN_CHOICES]
    choices_of_ops = []
    for ops in collective_ops(schedule):
        choices_to_try = candidate_choices(own, ops)
        tried_choices = [
            TriedChoice(choices, _seconds(schedule, ops, choices, machine, threads, placement)[0])
            for choices in choices_to_try
        ]
        if with_library and _library_is_measured(machine):
            tried_choices += _tried_by_library(schedule, ops, machine, threads, placement)
        if len(tried_choices) > 1:
            choices_of_ops.append(
                ChosenCollective(
                    ops, tuple(sorted(tried_choices, key=lambda candidate: rounded_seconds(candidate.seconds)))
                )
            )
    return choices_of_ops


def _tried_by_library(
    schedule: Schedule, ops: CollectiveOps, machine: Machine, threads: int | None, placement: str
) -> Iterator[TriedChoice]:
    """The predicted times with the MPI library: with each kind of MPI calls that was measured and fits the op."""
    from quadrille.simulator.machine.library_collectives import MEASURED  # ranks other than rank 0 do not import it

    has_two_calls = ops.kind in VECTOR_CALL_KINDS and ops.in_equal_pieces
    for choices in LIBRARY.values() if has_two_calls else (Choices("library"),):
        seconds, label = _seconds(schedule, ops, choices, machine, threads, placement)
        if label == f"{choices} {MEASURED}":
            yield TriedChoice(choices, seconds)


def _library_is_measured(machine: Machine) -> bool:
    """Whether the machine file has times of collectives of the MPI library."""
    return any(part is not None and part.library for part in (machine.host, machine.network))


def choose_collectives(
    experiment: AnyExperiment, schedule: Schedule, machine: Machine, nodes: Sequence[int], backend: str = "numpy"
) -> tuple[AnyExperiment, list[ChosenCollective]]:
    """The experiment with the chosen algorithm of each op, and the choices with their reasons.

    Parameters
    ----------
    schedule : simulated schedule of the experiment
    nodes : node of each rank, for hierarchical algorithms
    backend : backend of the arrays; the library's times are known for arrays of the host only
    """
    execution = experiment.execution
    choices_of_ops = chosen_collectives(
        schedule,
        machine,
        nodes,
        threads=execution.threads,
        placement=execution.placement,
        with_library=backend == "numpy",
    )
    return with_choices(experiment, choices_of_ops), choices_of_ops


def with_choices(experiment: AnyExperiment, selected: Sequence[ChosenCollective]) -> AnyExperiment:
    """The experiment with the chosen collectives."""
    choices_of_ops = tuple((name, choice.ranked[0].choices) for choice in selected for name in choice.ops.names)
    return replace(experiment, execution=replace(experiment.execution, choices=Choices(by_op=choices_of_ops)))


def candidate_choices(own: Sequence[Choices], ops: CollectiveOps) -> list[Choices]:
    """Quadrille's own algorithms and chunk sizes that differ in their steps for the ops."""

    def lowered(choices: Choices) -> Lowered:
        return lower(
            ops.kind,
            choices.algorithm(ops.kind),
            ops.members,
            size_bytes=ops.size_bytes,
            per_node=choices.ranks_per_node(ops.axis),
            elements=ops.elements,
            chunk_bytes=choices.chunk_bytes,
        )

    return distinct_choices(own, lowered)


def distinct_choices(own: Sequence[Choices], lowered: Callable[[Choices], Lowered]) -> list[Choices]:
    """The choices that differ in their algorithm and steps; the first of equal choices is kept.

    Parameters
    ----------
    own : choices of algorithms and chunk sizes
    lowered : function that returns the steps of a choice
    """
    by_steps: dict[tuple[str, int], Choices] = {}
    for choices in own:
        lowered_collective = lowered(choices)
        by_steps.setdefault((lowered_collective.algorithm, lowered_collective.steps), choices)
    return list(by_steps.values())


def rounded_seconds(seconds: float) -> float:
    """The time [s], rounded so that times that differ by rounding errors are equal and the first is chosen everywhere.

    >>> rounded_seconds(0.1 + 0.2) == rounded_seconds(0.3)
    True
    """
    return float(f"{seconds:.6g}")


def with_collective_choices(record: Record, choices_of_ops: Sequence[ChosenCollective]) -> Record:
    """The record with the chosen collectives and their predicted times."""
    return msgspec.structs.replace(
        record, collectives={name: choice.entry() for choice in choices_of_ops for name in choice.ops.names}
    )


# Collectives of a schedule


def collective_ops(schedule: Schedule) -> list[CollectiveOps]:
    """The collectives of a schedule; ops with equal kind, size and axis share an entry."""
    collective_ops: dict[object, CollectiveOps] = {}
    for rank_coordinates in _first_coordinates_of_roles(schedule):
        for op, coordinates, loops in _first_instances(schedule.program(rank_coordinates), rank_coordinates):
            op_traffic = traffic(op, schedule, coordinates, Choices())
            if op_traffic is None or any(op.name in ops.names for ops in collective_ops.values()):
                continue
            kind, elements = collective_kind(op), op_traffic.edges[-1]
            root = op.root if isinstance(op, Broadcast | Reduce) else None
            key = (kind, op.axis, op_traffic.edges, op_traffic.item_bytes, root, loops)
            members, size = op_traffic.lowered.members, elements * op_traffic.item_bytes
            question = collective_ops.get(key) or CollectiveOps(
                (), kind, op.axis, members, size, elements, are_equal(op_traffic.edges)
            )
            collective_ops[key] = replace(question, names=(*question.names, op.name))
    return list(collective_ops.values())


def _first_coordinates_of_roles(schedule: Schedule) -> Iterator[Coordinates]:
    """The coordinates of the first rank of every role (group of ranks with one program)."""
    for role in schedule.roles:
        of_ranks = (schedule.coordinates(rank) for rank in range(schedule.grid.size))
        first = next((coordinates for coordinates in of_ranks if role.includes(coordinates)), None)
        if first is not None:
            yield first


def _first_instances(
    program: Program, rank_coordinates: Coordinates, loops: tuple[object, ...] = ()
) -> Iterator[tuple[Collective, Coordinates, tuple[object, ...]]]:
    """Every collective of a program at the first iteration of its loops, with the iterations of these loops."""
    for entry in program:
        if isinstance(entry, Repeat):
            if indices := entry.indices(rank_coordinates):
                yield from _first_instances(
                    entry.body, rank_coordinates.during(entry.loop, indices[0]), (*loops, entry.count)
                )
        elif isinstance(entry, Collective):
            yield entry, rank_coordinates, loops


# Predicted times


def _seconds(
    schedule: Schedule, ops: CollectiveOps, choices: Choices, machine: Machine, threads: int | None, placement: str
) -> tuple[float, str | None]:
    """Predicted time of one of the ops alone, over all its iterations [s], and the label of its algorithm."""
    from quadrille.simulator.simulate import simulate

    name = ops.names[0]
    schedule_of_op = schedule.with_program(
        lambda program: program_with_only(program, name), inputs=(), outputs=(), state=()
    )
    prediction = simulate(
        schedule_of_op, machine, choices=choices, threads=threads, placement=placement, granularity="auto"
    )
    return prediction.timeline.makespan, prediction.labels.get(name)


def program_with_only(program: Program, name: str) -> Program:
    """The program with only the op of this name, in its loops."""
    kept_entries: list[Repeat | Collective] = []
    for entry in program:
        if isinstance(entry, Repeat):
            body = program_with_only(entry.body, name)
            kept_entries += [replace(entry, body=body)] if body else []
        elif isinstance(entry, Collective) and entry.name == name:
            kept_entries.append(replace(entry, after=()))
    return tuple(kept_entries)
