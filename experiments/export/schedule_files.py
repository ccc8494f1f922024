"""`export_goal`, `export_chakra`: an experiment on a machine as files for other simulators."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.chakra import trace_bytes
from quadrille.algorithms.formats.goal import goal_text, head_text, rank_text, rounding_seconds
from quadrille.algorithms.formats.message_graph import GraphTask, TaskKind
from quadrille.algorithms.formats.rank_table import SCHEMA, ClassFile, Format, Member, RankTable
from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_bytes, write_json, write_text
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.export.chakra_nodes import WHOLE, Names, chakra_nodes, group_names, groups_text
from quadrille.experiments.predict.prepared_experiment import prepare
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.runtime.host.console import remark_all
from quadrille.simulator.gc_paused import gc_paused
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.ranks.rank_class_tasks import RankClass, rank_class_tasks
from quadrille.simulator.ranks.schedule_graph import message_graph
from quadrille.topologies.machines.machine import Machine

PREFIX_NEEDED = "--out: the beginning of the names of the files is needed, such as --out traces/step"


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """What the message graph of an experiment needs, see `message_graph`; `remarks` say what the graph leaves out."""

    schedule: Schedule
    machine: Machine
    choices: Choices
    placement: RankPlacement
    threads: int | None
    remarks: list[str]

    def ranks(self, whole: Collection[CollectiveKind] = ()) -> Sequence[Sequence[GraphTask]]:
        """The tasks of all ranks."""
        with gc_paused():
            return message_graph(
                self.schedule, self.machine, self.choices, self.placement, self.threads, whole=whole
            ).ranks

    def classes(self, whole: Collection[CollectiveKind] = ()) -> list[RankClass]:
        """The tasks of one rank of each class."""
        with gc_paused():
            return rank_class_tasks(
                self.schedule, self.machine, self.choices, self.placement, self.threads, whole=whole
            )


def graph_inputs(experiment: Experiment, machine: Machine, *, is_whole: bool = False) -> GraphInputs:
    """The inputs of the message graph of an experiment on a machine.

    Parameters
    ----------
    is_whole : whether collectives stay one task

    Raises
    ------
    InputError : an order that is not chosen
    """
    if experiment.execution.any_order:
        raise InputError("order 'auto': simulate finds it; name the axes, such as z,y,x,data")
    prepared = prepare(experiment, machine)
    choices = prepared.experiment.execution.choices
    rendezvous, threads = msgspec.structs.replace(machine, emulation=None), prepared.experiment.execution.threads
    remarks = []
    if choices.implementation == "nccl" and not is_whole:
        remarks.append("NCCL's steps are unknown, so its collectives are written as rings of single ranks (own:ring)")
    if experiment.execution.jitter is not None:
        remarks.append("--jitter is left out: a file has one time for each calculation")
    if machine.emulation is not None:
        remarks.append("messages wait for their receiver, which those of this emulated network do not")
    device = machine.device
    if device.overlap_slowdown != 1.0 or device.communication_slowdown != 1.0:
        remarks.append("computing and communication do not slow each other in a file, as they do on this machine")
    return GraphInputs(prepared.schedule, rendezvous, choices, prepared.placement, threads, remarks)


def export_goal(experiment: Experiment, machine: Machine, out: str, *, classes: bool = False) -> None:
    """Writes an experiment on a machine as a GOAL file, and says on stderr what the file lacks.

    Parameters
    ----------
    out : path of the file, `-` for stdout; with `classes` the beginning of `PREFIX.RANK.goal` and
        `PREFIX.classes.json`
    classes : whether one rank of each class that behaves alike is written, and a table of the others

    Raises
    ------
    InputError : a path that cannot be written, a pipeline whose order messages decide, or too many tasks
    """
    if classes:
        _check_prefix(out, "0.goal")
    elif out != STDOUT:
        check_writable(out)
    inputs = graph_inputs(experiment, machine)
    if classes:
        listed_classes = inputs.classes()
        for entry in listed_classes:
            head = head_text(inputs.schedule.grid.size)
            write_text(f"{out}.{entry.rank}.goal", head + rank_text(entry.rank, entry.tasks))
        _write_table(out, "goal", listed_classes, {})
        counted = [(entry.tasks, len(entry.members)) for entry in listed_classes]
    else:
        ranks = inputs.ranks()
        write_text(out, goal_text(ranks))
        counted = [(tasks, 1) for tasks in ranks]
    rounding = rounding_seconds(tasks for tasks, _ in counted)
    counts = f"{_counts(counted)}; whole nanoseconds change a rank by at most {rounding:.2g} s"
    remark_all([*inputs.remarks, counts, *_class_remark(counted, classes=classes)])


def export_chakra(experiment: Experiment, machine: Machine, prefix: str, *, steps: bool, classes: bool = False) -> None:
    """Writes an experiment on a machine as Chakra traces, one file a rank, and says on stderr what they lack.

    Parameters
    ----------
    prefix : beginning of the paths `PREFIX.RANK.et`, `PREFIX.groups.json` and `PREFIX.classes.json`
    steps : whether collectives are written as sends and receives
    classes : whether one rank of each class that behaves alike is written, and a table of the others

    Raises
    ------
    InputError : a path that cannot be written, a pipeline whose order messages decide, or too many tasks
    """
    _check_prefix(prefix, "0.et")
    inputs, whole = graph_inputs(experiment, machine, is_whole=not steps), () if steps else WHOLE
    if classes:
        listed_classes = inputs.classes(whole)
        names = group_names(_groups_in_order(listed_classes))
        listed = [(entry.rank, entry.tasks, len(entry.members)) for entry in listed_classes]
    else:
        listed = [(rank, tasks, 1) for rank, tasks in enumerate(inputs.ranks(whole))]
        names = group_names(task.group for _, tasks, _ in listed for task in tasks if task.group)
    for rank, tasks, _ in listed:
        write_bytes(f"{prefix}.{rank}.et", trace_bytes(chakra_nodes(tasks, rank, names)))
    if names:
        write_text(f"{prefix}.groups.json", groups_text(names))
    if classes:
        _write_table(prefix, "chakra", listed_classes, names)
    counted = [(tasks, count) for _, tasks, count in listed]
    counts = f"{_counts(counted)}, {_count(counted, 'collective'):,} collectives of a rank"
    remark_all([*inputs.remarks, counts, *_class_remark(counted, classes=classes)])


def _check_prefix(prefix: str, first: str) -> None:
    if prefix in ("", STDOUT):
        raise InputError(PREFIX_NEEDED)
    check_writable(f"{prefix}.{first}")


def _groups_in_order(classes: Sequence[RankClass]) -> Iterable[tuple[int, ...]]:
    """Yields the groups of whole collectives as the tasks of all ranks name them, in the order of ranks."""
    members = sorted((rank, peers) for entry in classes for rank, peers in entry.members.items())
    for _, peers in members:
        yield from peers.groups.values()


def _write_table(prefix: str, form: Format, classes: Sequence[RankClass], names: Names) -> None:
    """Writes the table of ranks beside the files of the classes."""
    ending, name = {"goal": "goal", "chakra": "et"}[form], Path(prefix).name
    files, ranks = [], {}
    for number, entry in enumerate(classes):
        own = entry.members[entry.rank]
        groups = [names[group] for group in own.groups]
        files.append(ClassFile(f"{name}.{entry.rank}.{ending}", entry.rank, list(own.ranks), groups))
        for rank, peers in entry.members.items():
            ranks[rank] = Member(
                number, [peers.ranks[peer] for peer in own.ranks], [names[peers.groups[group]] for group in own.groups]
            )
    table = RankTable(form, files, [ranks[rank] for rank in sorted(ranks)])
    write_json(f"{prefix}.classes.json", table, SCHEMA, indent=-1)


Counted = Sequence[tuple[Sequence[GraphTask], int]]
"""The tasks of a rank, and the number of ranks that have such tasks."""


def _counts(counted: Counted) -> str:
    ranks = sum(number for _, number in counted)
    sent = sum(task.amount * number for tasks, number in counted for task in tasks if task.kind == "send")
    return (
        f"{ranks:,} ranks, {_count(counted, 'calculate'):,} calculations, {_count(counted, 'send'):,} messages "
        f"of {format_bytes(sent)} in all"
    )


def _count(counted: Counted, kind: TaskKind) -> int:
    return sum(number * sum(task.kind == kind for task in tasks) for tasks, number in counted)


def _class_remark(counted: Counted, *, classes: bool) -> list[str]:
    if not classes:
        return []
    return [f"number of classes of ranks: {len(counted):,}; export ranks writes the files of the other ranks"]
