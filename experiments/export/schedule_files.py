"""`export_goal`: an experiment on a machine as a file for other simulators."""

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.goal import goal_text, rounding_seconds
from quadrille.algorithms.formats.message_graph import MessageGraph
from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_text
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.predict.prepared_experiment import prepare
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.runtime.host.console import remark_all
from quadrille.simulator.ranks.schedule_graph import message_graph
from quadrille.topologies.machines.machine import Machine


def experiment_graph(experiment: Experiment, machine: Machine) -> tuple[MessageGraph, list[str]]:
    """The message graph of an experiment on a machine, and remarks on what the graph leaves out.

    Raises
    ------
    InputError : an order that is not chosen, a pipeline whose order messages decide, or too many tasks
    """
    if experiment.execution.any_order:
        raise InputError("order 'auto': simulate finds it; name the axes, such as z,y,x,data")
    prepared = prepare(experiment, machine)
    choices = prepared.experiment.execution.choices
    rendezvous, threads = msgspec.structs.replace(machine, emulation=None), prepared.experiment.execution.threads
    graph = message_graph(prepared.schedule, rendezvous, choices, prepared.placement, threads)
    remarks = []
    if choices.implementation == "nccl":
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
    text = goal_text(graph)
    rounding = rounding_seconds(graph)
    remark_all(
        [
            *remarks,
            f"{len(graph.ranks):,} ranks, {graph.count('calculate'):,} calculations, {graph.count('send'):,} messages "
            f"of {format_bytes(graph.bytes)} in all; whole nanoseconds change a rank by at most "
            f"{rounding:.2g} s",
        ]
    )
    write_text(out, text)
