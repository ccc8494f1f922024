"""`quadrille simulate`: from flags to a predicted record."""

import sys
from collections.abc import Sequence

from algorithms.machine import Machine
from algorithms.provenance import provenance
from algorithms.record import Record
from algorithms.timeline import Timeline
from algorithms.units import format_bytes
from runtime.matrix_files import open_operands
from studies.experiment import Experiment, Flags, Plan, RunFlags, parse_experiment, parse_plan, remarks
from studies.machines import find_machine
from studies.placement import placement
from studies.records import predicted_record
from studies.results import Destinations, write_results


def predict(
    flags: Flags,
    run_flags: RunFlags,
    machine: str,
    settings: Sequence[str] = (),
    *,
    destinations: Destinations,
    command: Sequence[str] = (),
) -> None:
    """Predicts the experiment on the machine and writes its record, or prints it.

    Parameters
    ----------
    run_flags : how it would be run: checked, but no file of theirs is opened; the backend is named in the record
    machine, settings : as `--machine` and `--set` name them
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : an experiment or a machine that cannot be
    """
    experiment = parse_experiment(flags)
    plan = parse_plan(run_flags, experiment)
    if not plan.inputs:
        _check_generated(experiment, plan)
    destinations.check({**plan.files, "--machine": machine})
    chosen = fitting_machine(machine, settings, experiment)
    made, timeline = prediction_of(experiment, chosen, command, backend=plan.backend)
    for remark in (
        *remarks(experiment, experiment.schedule()),
        *_remarks(chosen, made.peak_bytes_per_rank_max, experiment),
    ):
        print(f"quadrille: {remark}", file=sys.stderr)
    write_results(destinations, made, timeline)


def _check_generated(experiment: Experiment, plan: Plan) -> None:
    """Refuse operands that `run` would refuse to generate."""
    problem = experiment.problem
    open_operands(problem.m, problem.k, problem.n, problem.dtype, kind=plan.kind, training=problem.training)


def fitting_machine(text: str, settings: Sequence[str], experiment: Experiment) -> Machine:
    """The machine that `text` and the settings name, known to have room for the ranks of the experiment.

    Raises
    ------
    InputError : a machine that cannot be, or has too few GPUs
    """
    machine = find_machine(text, settings, gpus=experiment.grid.size)
    placement(machine, experiment.grid.size)
    return machine


def prediction_of(
    experiment: Experiment, machine: Machine, command: Sequence[str] = (), *, backend: str = "numpy"
) -> tuple[Record, Timeline]:
    """The predicted record of an experiment on a machine, and its timeline."""
    from simulator.simulate import simulate

    schedule = experiment.schedule()
    threads = experiment.threads or placement(machine, experiment.grid.size).threads
    prediction = simulate(schedule, machine, choices=experiment.choices, threads=threads)
    made = predicted_record(
        experiment, schedule, machine, prediction, threads=threads, provenance=provenance(command), backend=backend
    )
    return made, prediction.timeline


def _remarks(machine: Machine, peak_bytes: int, experiment: Experiment) -> list[str]:
    """What a user should know of a prediction that the record does not say."""
    found = []
    placed = placement(machine, experiment.grid.size)
    if not placed.fits(machine, peak_bytes):
        held, needed = format_bytes(machine.device.memory_bytes), format_bytes(placed.ranks * peak_bytes)
        who = f"the {placed.ranks} ranks of a host need" if placed.ranks > 1 else "a rank needs"
        found.append(f"{who} {needed}, and a device of {machine.name} has {held}: it would not fit")
    if experiment.problem.dtype not in machine.device.peak_flops_per_second:
        known = ", ".join(machine.device.peak_flops_per_second)
        found.append(f"{machine.name} gives no speed for {experiment.problem.dtype}, only for {known}")
    found += [f"{machine.name}: {warning}" for warning in (machine.fit.warnings if machine.fit is not None else ())]
    return found
