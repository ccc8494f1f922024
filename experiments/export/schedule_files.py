"""`export_goal`, `export_chakra`: an experiment on a machine as files for other simulators."""

from collections.abc import Collection

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.chakra import trace_bytes
from quadrille.algorithms.formats.goal import goal_text, rounding_seconds
from quadrille.algorithms.formats.message_graph import MessageGraph
from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_bytes, write_text
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.export.chakra_nodes import WHOLE, chakra_nodes, group_names, groups_text
from quadrille.experiments.predict.prepared_experiment import prepare
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.runtime.host.console import remark_all
from quadrille.simulator.ranks.schedule_graph import message_graph
from quadrille.topologies.machines.machine import Machine


def experiment_graph(
    experiment: Experiment, machine: Machine, whole: Collection[CollectiveKind] = ()
) -> tuple[MessageGraph, list[str]]:
    """The message graph of an experiment on a machine, and remarks on what the graph leaves out.

    Parameters
    ----------
    whole : kinds of collectives that stay one task

    Raises
    ------
    InputError : an order that is not chosen, a pipeline whose order messages decide, or too many tasks
    """
    if experiment.execution.any_order:
        raise InputError("order 'auto': simulate finds it; name the axes, such as z,y,x,data")
    prepared = prepare(experiment, machine)
    choices = prepared.experiment.execution.choices
    rendezvous, threads = msgspec.structs.replace(machine, emulation=None), prepared.experiment.execution.threads
    graph = message_graph(prepared.schedule, rendezvous, choices, prepared.placement, threads, whole=whole)
    remarks = []
    if choices.implementation == "nccl" and not whole:
        remarks.append("NCCL's steps are unknown, so its collectives are written as rings of single ranks (own:ring)")
    if experiment.execution.jitter is not None:
        remarks.append("--jitter is left out: a file has one time for each calculation")
    if machine.emulation is not None:
        remarks.append("messages wait for their receiver, which those of this emulated network do not")
    device = machine.device
    if device.overlap_slowdown != 1.0 or device.communication_slowdown != 1.0:
        remarks.append("computing and communication do not slow each other in a file, as they do on this machine")
    return graph, remarks


def export_goal(experiment: Experiment, machine: Machine, out: str) -> None:
    """Writes an experiment on a machine as a GOAL file, and says on stderr what the file lacks.

    Parameters
    ----------
    out : path of the file; `-` for stdout

    Raises
    ------
    InputError : a path that cannot be written, or as `experiment_graph`
    """
    if out != STDOUT:
        check_writable(out)
    graph, remarks = experiment_graph(experiment, machine)
    text, rounding = goal_text(graph), rounding_seconds(graph)
    remark_all([*remarks, f"{_counts(graph)}; whole nanoseconds change a rank by at most {rounding:.2g} s"])
    write_text(out, text)


def export_chakra(experiment: Experiment, machine: Machine, prefix: str, *, steps: bool) -> None:
    """Writes an experiment on a machine as Chakra traces, one file a rank, and says on stderr what they lack.

    Parameters
    ----------
    prefix : beginning of the paths `PREFIX.RANK.et` and `PREFIX.groups.json`
    steps : whether collectives are written as sends and receives

    Raises
    ------
    InputError : a path that cannot be written, or as `experiment_graph`
    """
    if prefix in ("", STDOUT):
        raise InputError("--out: the beginning of the names of the files is needed, such as --out traces/step")
    check_writable(f"{prefix}.0.et")
    graph, remarks = experiment_graph(experiment, machine, () if steps else WHOLE)
    names = group_names(graph)
    traces = [trace_bytes(chakra_nodes(tasks, rank, names)) for rank, tasks in enumerate(graph.ranks)]
    for rank, trace in enumerate(traces):
        write_bytes(f"{prefix}.{rank}.et", trace)
    if names:
        write_text(f"{prefix}.groups.json", groups_text(names))
    remark_all([*remarks, f"{_counts(graph)}, {graph.count('collective'):,} collectives of a rank"])


def _counts(graph: MessageGraph) -> str:
    return (
        f"{len(graph.ranks):,} ranks, {graph.count('calculate'):,} calculations, {graph.count('send'):,} messages "
        f"of {format_bytes(graph.bytes)} in all"
    )
