"""The app's answers, as a worker computes them: an estimate at once, then the prediction of `quadrille simulate`.

The command line's own functions read the words of a question; a fault gives its line.  The roofline of a prediction is
computed when a report is exported: the page does not show it, and of 64 ranks it takes up to a fifth of the prediction.
"""

import io
import pickle
import signal
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import click

# What a prediction imports late is imported here: a worker is forked from a process that has it.
import quadrille.experiments.predict.pass_prediction
import quadrille.experiments.predict.predicted_record
import quadrille.experiments.predict.prepared_prediction
import quadrille.simulator.bounds.makespan_bounds
import quadrille.simulator.simulate  # noqa: F401
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.app.questions import Answer, Question, Refusal, Reply, Words, file_times
from quadrille.cli import experiment_commands
from quadrille.cli.app import app
from quadrille.cli.error_lines import usage_line, with_flag
from quadrille.experiments.predict.predict import (
    calibration_warnings,
    choose_order,
    prediction_remarks,
    record_and_prediction,
)
from quadrille.experiments.predict.prepared_experiment import prepare
from quadrille.experiments.predict.roofline import roofline_of_record
from quadrille.experiments.predict.step_estimate import step_estimate
from quadrille.experiments.report.elements import Part
from quadrille.experiments.report.record_sections import memory_section, record_part, with_roofline
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.processes import end_with_parent
from quadrille.runtime.host.world import failure_line
from quadrille.simulator.gc_paused import gc_paused
from quadrille.topologies.machines.what_if import in_chunks

if TYPE_CHECKING:
    from quadrille.algorithms.formats.record import AskedGranularity
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.topologies.machines.machine import Machine

QUESTIONS_KEPT = 16
LINE = "quadrille: "
"""The beginning of every line that the command line writes to stderr."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks for, and its remarks."""

    experiment: "Experiment"
    machine: "Machine"
    granularity: "AskedGranularity"
    remarks: tuple[str, ...]


def asked(words: Words) -> Asked:
    """The experiment and the machine of a command line.

    Raises
    ------
    InputError, click.UsageError : as `quadrille simulate` does
    """
    return _asked(words, file_times(words))


@lru_cache(QUESTIONS_KEPT)
def _asked(words: Words, _file_times: tuple[int, ...]) -> Asked:
    command = app.get_command(click.Context(app), "simulate")
    assert command is not None
    with redirect_stderr(io.StringIO()) as remarks, redirect_stdout(io.StringIO()):
        context = command.make_context("simulate", list(words))
        values = context.params
        _, experiment = experiment_commands.simulated_experiment(context, values)
        options = experiment_commands.run_options(values)
        experiment.check_run(options)
        machine = in_chunks(experiment_commands.simulated_machine(values, experiment), options.chunk_bytes)
    return Asked(experiment, machine, experiment_commands.asked_granularity(values), _lines(remarks.getvalue()))


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.removeprefix(LINE) for line in text.splitlines())


def estimate(words: Words) -> Answer | None:
    """The estimate of a training step of a GPT; None for other experiments, whose predictions take no longer."""
    times, question = file_times(words), asked(words)
    experiment, machine = question.experiment, question.machine
    if not isinstance(experiment, TrainingExperiment) or not isinstance(experiment.problem, Gpt):
        return None
    if experiment.software or experiment.execution.any_order or experiment.execution.choices.auto:
        return None
    step = step_estimate(experiment, machine)
    seconds, problem = step.seconds * experiment.problem.steps, experiment.problem
    held = machine.device.memory_bytes
    fits = fullest_device(machine, experiment.grid.size, experiment.execution.placement, experiment.grid).fits(
        machine, step.device_bytes
    )
    rate = problem.batch * problem.sequence / step.seconds
    room = f"{'fits' if fits else 'DOES NOT FIT'} in memory ({format_bytes(step.device_bytes)} of {format_bytes(held)})"
    verdict = f"About {format_seconds(seconds)}, by a closed form ({float(f'{rate:.3g}'):,.0f} tokens/s); {room}."
    part = Part("Estimate", verdict, (), tuple(memory_section(step.memory_bytes_by_kind, held)))
    figures = {"time": f"about {format_seconds(seconds)}", "memory": format_bytes(step.device_bytes)}
    return Answer(
        words=words,
        part=part,
        seconds=seconds,
        device_bytes=step.device_bytes,
        figures=figures,
        remarks=question.remarks,
        is_estimate=True,
        file_times=times,
    )


def prediction(words: Words) -> Answer:
    """The prediction of an experiment, as `quadrille simulate` makes it."""
    times, question = file_times(words), asked(words)
    experiment, machine = question.experiment, question.machine
    command = ("quadrille", "simulate", *words)
    if experiment.execution.any_order:
        experiment = choose_order(experiment, machine, granularity=question.granularity).with_chosen_order(experiment)
    prepared = prepare(experiment, machine)
    record, predicted = record_and_prediction(prepared, command, granularity=question.granularity)
    remarks = prediction_remarks(experiment, prepared, record, is_fit_shown=record.fits is False)
    remarks += calibration_warnings(machine)
    return Answer(
        words=words,
        part=record_part(record, "this command's answer", predicted.timeline),
        seconds=record.seconds,
        device_bytes=record.peak_bytes_per_rank_max,
        figures=figures_of(record),
        remarks=(*question.remarks, *(remark for remark in remarks if remark not in question.remarks)),
        file_times=times,
        basis=pickle.dumps((record, experiment, machine)),
    )


def report(answer: Answer) -> Answer:
    """The answer whose part has all sections of a report: a prediction with its roofline."""
    record, experiment, machine = pickle.loads(answer.basis)  # noqa: S301 - a worker of this server wrote it
    roofline = roofline_of_record(prepare(experiment, machine), record)
    return answer if roofline is None else replace(answer, part=with_roofline(answer.part, roofline))


def figures_of(record: Record) -> dict[str, str]:
    """The amounts by which settings are compared, as text."""
    model, hardware = record.model_flops_per_second_per_gpu, record.hardware_flops_per_second_per_gpu
    figures = {"time": format_seconds(record.seconds)}
    if model and hardware and record.percent_of_peak:
        figures["MFU"] = f"{record.percent_of_peak * model / hardware:.3g} %"
    figures["memory of the fullest rank"] = format_bytes(record.peak_bytes_per_rank_max)
    figures["fits"] = {True: "yes", False: "no"}.get(bool(record.fits), "") if record.fits is not None else "unknown"
    return figures


QUESTIONS: Mapping[str, Callable[[Words], Answer | None]] = {"estimate": estimate, "prediction": prediction}


def reply(kind: str, question: Question) -> Reply:
    """The answer to a question, or the line that refuses it.

    Parameters
    ----------
    kind : a key of `QUESTIONS`; `report` for an answer
    """
    words = question.words if isinstance(question, Answer) else question
    try:
        with gc_paused():
            return report(question) if isinstance(question, Answer) else QUESTIONS[kind](question)
    except click.exceptions.Exit:
        return Refusal(words, "further flags: a terminal shows the answer of quadrille simulate --help")
    except click.UsageError as error:
        return Refusal(words, failure_line(InputError(usage_line(error)), 0, 1).removeprefix(LINE))
    except Exception as error:  # noqa: BLE001 - the page shows every fault as one line
        return Refusal(words, failure_line(with_flag(error), 0, 1).removeprefix(LINE))


def serve(connection: Connection) -> None:
    """Answer the questions of the server until it is gone; a worker process runs this."""
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            connection.send(reply(*connection.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
