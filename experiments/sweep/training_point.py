"""The prediction of a training step at one point of a sweep, on its own grid, with few simulated layers."""

from quadrille.algorithms.errors import InputError, QuadrilleError
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.training.gpt import Gpt
from quadrille.experiments.predict.training_step import TrainingStep, simulated_step
from quadrille.experiments.sweep.sweep_points import Impossible, OneGrid, with_point_choices
from quadrille.experiments.sweep.sweep_result import SweepAnswer, TrainingResult
from quadrille.experiments.sweep.time_limit import processor_time_limit
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes, flop_rates
from quadrille.experiments.workloads.training_lines import pass_order_text
from quadrille.topologies.machines.machine import Machine


def predict_training_point(point: OneGrid | Impossible, granularity: AskedGranularity = "auto") -> SweepAnswer:
    """The answer at a point that is a training step.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.training.gpt import gpt_from_shape
    >>> from quadrille.algorithms.training.model_shapes import SHAPES
    >>> from quadrille.topologies.find_machine import find_machine
    >>> tiny = TrainingExperiment(gpt_from_shape(SHAPES["tiny"], 8), Grid(x=2, z=4))
    >>> predict_training_point(OneGrid(tiny, find_machine("perlmutter"))).trained.layers_simulated
    2
    """
    if isinstance(point, Impossible):
        return SweepAnswer(reason=point.reason)
    point = with_point_choices(point)
    experiment, machine = point.experiment, point.machine
    try:
        if not isinstance(experiment, TrainingExperiment):
            raise InputError(f"a training step is asked for, not a {experiment.name} multiplication")
        with processor_time_limit(point.most_seconds):
            step = simulated_step(experiment, machine, granularity=granularity)
        return sweep_answer(experiment, machine, step, experiment_peak_bytes(experiment))
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))


def sweep_answer(
    experiment: TrainingExperiment,
    machine: Machine,
    step: TrainingStep,
    peak_bytes: int,
    *,
    closed_form_seconds: float | None = None,
) -> SweepAnswer:
    """The answer of a sweep from a simulated training step.

    Parameters
    ----------
    step : simulated step
    peak_bytes : largest memory of a rank [B]
    closed_form_seconds : closed-form time by which the grid was chosen [s]; None if it was not chosen
    """
    gpus = experiment.grid.size
    device = fullest_device(machine, gpus, experiment.execution.placement, experiment.grid)
    trained = training_result(
        experiment,
        machine,
        experiment.execution.threads or device.threads,
        step.seconds,
        step.exposed_seconds_by_axis,
        layers=step.layers,
        bounded=step.bounded,
        closed_form_seconds=closed_form_seconds,
    )
    return SweepAnswer(
        ranks=gpus,
        grid_lengths=experiment.grid.lengths,
        seconds=step.seconds,
        compute_seconds=step.compute,
        exposed_seconds=step.exposed,
        waiting_seconds=max(0.0, step.seconds - step.compute - step.exposed),
        communication_share=max(0.0, 1 - step.compute / step.seconds),
        flops_per_second_per_gpu=trained.model_flops_per_second_per_gpu,
        peak_bytes_per_rank_max=peak_bytes,
        fits=device.fits(machine, peak_bytes),
        trained=trained,
        remarks=tuple(experiment.remarks(experiment.applied_schedule())),
    )


def training_result(
    experiment: TrainingExperiment,
    machine: Machine,
    threads: int,
    seconds: float,
    exposed_seconds_by_axis: dict[Axis, float],
    *,
    layers: int,
    bounded: bool = False,
    closed_form_seconds: float | None = None,
) -> TrainingResult:
    """The training part of a sweep's answer.

    Parameters
    ----------
    threads : BLAS threads of a rank
    seconds : time of one iteration [s]
    exposed_seconds_by_axis : exposed communication of one iteration [s]
    layers : number of simulated layers
    bounded : whether the simulation has collective granularity, which is not exact
    closed_form_seconds : closed-form time by which the grid was chosen [s]; None if it was not chosen
    """
    flop_rates_of_step = flop_rates(experiment, seconds, machine, threads)
    return TrainingResult(
        scheme=experiment.scheme.name,
        micro_batch=getattr(experiment.problem, "micro_batch", None),
        order=experiment.grid.order,
        closed_form_seconds=closed_form_seconds,
        model_flops_per_second_per_gpu=flop_rates_of_step.model_flops_per_second_per_gpu,
        hardware_flops_per_second_per_gpu=flop_rates_of_step.hardware_flops_per_second_per_gpu,
        percent_of_peak=flop_rates_of_step.percent_of_peak,
        exposed_seconds_by_axis=exposed_seconds_by_axis,
        layers_simulated=layers,
        bounded=bounded,
        recompute=getattr(experiment.problem, "recompute", ""),
        schedule=_schedule(experiment),
    )


def _schedule(experiment: TrainingExperiment) -> str:
    """The order of passes and the chunks of layers of a stage; empty without a pipeline."""
    problem = experiment.problem
    if not isinstance(problem, Gpt) or experiment.grid.pipeline == 1:
        return ""
    return pass_order_text(problem.pipeline_schedule, problem.interleave)
