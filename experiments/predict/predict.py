"""`quadrille simulate`: predicts an experiment on a machine, and writes or prints the predicted record."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from quadrille.algorithms.formats.record import AskedGranularity, Record
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.units import format_bytes, format_percent, format_seconds
from quadrille.experiments.output.destinations import Destinations, check_paths_differ
from quadrille.experiments.output.progress import StepCount, progress_line, rough_seconds
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment, even_shards_bound, prepare
from quadrille.experiments.records.results import write_results
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.host.console import remark, remark_all
from quadrille.simulator.gc_paused import gc_paused
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.what_if import in_chunks
from quadrille.topologies.nodes.gpus import RUNTIME_BYTES

if TYPE_CHECKING:
    from quadrille.algorithms.timelines.counters import Counter
    from quadrille.experiments.predict.collectives_choice import ChosenCollective
    from quadrille.experiments.predict.order_choice import ChosenOrder
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.simulator.prediction import Prediction
    from quadrille.simulator.simulate import Limits, Shortcuts, Simulator


def predict(
    experiment: "Experiment",
    machine: Machine,
    *,
    options: RunOptions | None = None,
    destinations: Destinations | None = None,
    shortcuts: "Shortcuts | None" = None,
    granularity: AskedGranularity = "auto",
    command: Sequence[str] = (),
) -> None:
    """Predicts an experiment on a machine, and writes or prints its record.

    Parameters
    ----------
    options : options of a run; they are checked, but their files are not opened, and the record names the backend
    destinations : files of the record and the timeline; None to print the record
    shortcuts : shortcuts of the simulation; None for all
    granularity : exact, collective or auto
    command : words of the command line, for provenance

    Raises
    ------
    InputError : an invalid experiment or machine
    """
    options, destinations = options or RunOptions(), destinations or Destinations()
    if granularity == "exact":
        experiment.execution.choices.check_schedulable()
    experiment.check_run(options)
    if isinstance(experiment, MatmulExperiment) and options.operands == "integers" and not options.inputs:
        _check_generated(experiment, options)
    check_paths_differ(options.written, destinations.read)
    destinations.check(options.files)
    machine = in_chunks(machine, options.chunk_bytes)
    order = None
    if experiment.execution.any_order:
        from quadrille.experiments.workloads.rank_orders import grids_in_every_order

        step_count = StepCount("predicted", "rank orders", len(grids_in_every_order(experiment.grid)))
        with progress_line(step_count.words, share=step_count.share, shown=not destinations.quiet):
            order = choose_order(
                experiment,
                machine,
                options.backend,
                granularity,
                shortcuts=shortcuts,
                announce=True,
                step_count=step_count,
            )
        experiment = order.with_chosen_order(experiment)
        remark(order.line())
    ranks = experiment.grid.size
    with progress_line(lambda elapsed: _progress_text(ranks, elapsed), shown=not destinations.quiet):
        prepared, chosen = _with_chosen_collectives(prepare(experiment, machine), options.backend, announce=True)
        if destinations.plot and destinations.plot_of != "timeline":
            from quadrille.experiments.predict.prediction_figures import check_subject

            check_subject(destinations.plot_of, prepared, granularity)
        record, prediction = record_and_prediction(
            prepared,
            command,
            backend=options.backend,
            shortcuts=shortcuts,
            granularity=granularity,
            timeline_ranks=destinations.ranks,
            announce=True,
        )
        record = _with_choices(record, chosen)
    table_warns = record.fits is False and not isinstance(experiment, MatmulExperiment) and not destinations.to_stdout
    remark_all(prediction_remarks(experiment, prepared, record, is_fit_shown=table_warns))
    remark_all(calibration_warnings(machine, "" if destinations.detail == "all" else "--verbose shows them"))
    record = order.with_order_choice(record) if order else record
    timeline = prediction.timeline
    write_results(destinations, record, timeline, partial(_counters, prepared, record, timeline))
    if destinations.plot and destinations.plot_of != "timeline":
        from quadrille.experiments.predict.prediction_figures import draw_prediction

        draw_prediction(destinations.plot_of, prepared, prediction, record, destinations.plot)


def prediction_remarks(
    experiment: "Experiment", prepared: PreparedExperiment, record: Record, *, is_fit_shown: bool
) -> list[str]:
    """What a user should know about a prediction: granularity, what stands for what, and what the machine lacks.

    Parameters
    ----------
    experiment : experiment before the machine decides on collectives
    prepared : the same experiment, with its schedule and rank placement
    is_fit_shown : whether a warning that the memory does not fit stands beside the remarks
    """
    named, jitter = not experiment.execution.choices.by_machine, prepared.experiment.execution.jitter
    lines = _bound_remark(record, named=named, has_noise=jitter is not None and jitter.draws)
    lines += experiment.remarks(prepared.schedule)
    lines += _remarks(prepared, 0 if is_fit_shown else record.peak_bytes_per_rank_max)
    if len(set(prepared.nodes)) > 1 and prepared.experiment.execution.choices.implementation == "own":
        from quadrille.experiments.predict.idle_cards import idle_cards_remarks

        lines += idle_cards_remarks(prepared)
    return lines


def _counters(prepared: PreparedExperiment, record: Record, timeline: Timeline, shown: Timeline) -> "Sequence[Counter]":
    """The counters of a trace that shows some ranks of a predicted timeline."""
    from quadrille.experiments.predict.trace_counters import trace_counters

    granularity = record.simulation.granularity if record.simulation is not None else "exact"
    return trace_counters(prepared, granularity, timeline, shown)


def _progress_text(ranks: int, elapsed: float) -> str:
    return f"simulating {ranks} rank{'s' if ranks > 1 else ''}: {rough_seconds(elapsed)} so far"


def _check_generated(experiment: MatmulExperiment, options: RunOptions) -> None:
    """Raises InputError for integer inputs that `run` would not generate, because their sums are not exact."""
    from quadrille.runtime.files.matrix_files import open_operands

    problem = experiment.problem
    sizes = problem.m, problem.k, problem.n
    stored = problem.transposed
    open_operands(*sizes, problem.dtype, kind=options.operands, training=problem.training, transposed=stored)


def choose_order(
    experiment: "Experiment",
    machine: Machine,
    backend: str = "numpy",
    granularity: AskedGranularity = "exact",
    *,
    shortcuts: "Shortcuts | None" = None,
    announce: bool = False,
    step_count: StepCount | None = None,
) -> "ChosenOrder":
    """The rank order with the smallest predicted time on the machine, and all other orders.

    All orders are predicted at one granularity: if an order is predicted at collective granularity, all are.

    Parameters
    ----------
    backend : backend of the arrays; the library's times are known for arrays of the host only
    granularity : exact, collective, or auto for a simulation of at most a few seconds
    shortcuts : shortcuts of the simulation; None for all
    announce : whether a message on stderr announces a long simulation
    step_count : progress that counts the predicted orders; None to count nothing
    """
    from quadrille.experiments.predict.order_choice import chosen_order

    granularities = set[str]()

    def seconds(ordered: "Experiment") -> float:
        first = announce and not granularities and not ordered.execution.choices.auto
        record, _ = predict_record_and_timeline(
            ordered, machine, backend=backend, shortcuts=shortcuts, granularity=granularity, announce=first
        )
        if step_count is not None:
            step_count.done += 1
        granularities.add(record.simulation.granularity if record.simulation is not None else "exact")
        return record.seconds

    order = chosen_order(experiment, seconds)
    return (
        order
        if len(granularities) < 2
        else choose_order(experiment, machine, backend, "collective", shortcuts=shortcuts)
    )


def predict_record_and_timeline(
    experiment: "Experiment",
    machine: Machine,
    command: Sequence[str] = (),
    *,
    backend: str = "numpy",
    shortcuts: "Shortcuts | None" = None,
    granularity: AskedGranularity = "exact",
    announce: bool = False,
    limits: "Limits | None" = None,
) -> tuple[Record, Timeline]:
    """The predicted record of an experiment on a machine, and its timeline.

    The keyword parameters are those of `record_and_prediction`.
    """
    record, prediction = record_and_prediction(
        prepare(experiment, machine),
        command,
        backend=backend,
        shortcuts=shortcuts,
        granularity=granularity,
        announce=announce,
        limits=limits,
    )
    return record, prediction.timeline


def prediction_record(experiment: "Experiment", machine: Machine, *, granularity: AskedGranularity = "auto") -> Record:
    """The predicted record of an experiment on a machine.

    Parameters
    ----------
    granularity : exact, collective, or auto for a simulation of at most a few seconds
    """
    return predict_record_and_timeline(experiment, machine, granularity=granularity)[0]


def record_and_prediction(
    prepared: PreparedExperiment,
    command: Sequence[str] = (),
    *,
    backend: str = "numpy",
    shortcuts: "Shortcuts | None" = None,
    granularity: AskedGranularity = "exact",
    timeline_ranks: Sequence[int] = (),
    announce: bool = False,
    limits: "Limits | None" = None,
) -> "tuple[Record, Prediction]":
    """The predicted record of a prepared experiment, and the prediction.

    Parameters
    ----------
    prepared : experiment with its schedule and rank placement
    command : words of the command line, for provenance
    backend : backend that the record names; the library's times are known for arrays of the host only
    shortcuts : shortcuts of the simulation; None for all
    granularity : exact, collective, or auto for a simulation of at most a few seconds
    timeline_ranks : ranks that the timeline must have
    announce : whether a message on stderr announces a long simulation
    limits : limits of the wall time and the size of the simulation; None for the usual limits
    """
    from quadrille.experiments.predict.predicted_record import predicted_record
    from quadrille.experiments.predict.prepared_prediction import predict_prepared
    from quadrille.simulator.simulate import LIMITS, Shortcuts

    prepared, chosen = _with_chosen_collectives(prepared, backend, announce=announce)
    prediction = predict_prepared(
        prepared,
        granularity,
        shortcuts=shortcuts or Shortcuts(),
        limits=limits or LIMITS,
        timeline_ranks=timeline_ranks,
        announce=partial(_announce, experiment=prepared.experiment) if announce else None,
    )
    with gc_paused():
        record = predicted_record(
            prepared,
            prediction,
            provenance=provenance(command),
            backend=backend,
            even_within=even_shards_bound(prepared),
        )
    return _with_choices(record, chosen), prediction


def _with_chosen_collectives(
    prepared: PreparedExperiment, backend: str, *, announce: bool
) -> "tuple[PreparedExperiment, Sequence[ChosenCollective]]":
    """The prepared experiment with the algorithm chosen for each op if `auto` was asked for, and these choices."""
    if not prepared.experiment.execution.choices.auto:
        return prepared, ()
    from quadrille.experiments.predict.collectives_choice import choose_collectives

    with gc_paused():
        experiment, chosen = choose_collectives(
            prepared.experiment, prepared.simulated_schedule, prepared.machine, prepared.nodes, backend
        )
        prepared = replace(prepared, experiment=experiment)
        if announce:
            remark_all(choice.line() for choice in chosen)
    return prepared, chosen


def _with_choices(record: Record, chosen: "Sequence[ChosenCollective]") -> Record:
    """The record with the collectives that were chosen for each op, if any were."""
    if not chosen:
        return record
    from quadrille.experiments.predict.collectives_choice import with_collective_choices

    return with_collective_choices(record, chosen)


def _announce(simulation: "Simulator", experiment: "Experiment") -> None:
    """Announces a long simulation and its reason on stderr."""
    if simulation.granularity == "collective":
        return
    seconds, ranks = simulation.expected_wall_seconds, experiment.grid.size
    if seconds < simulation.limits.long_seconds:
        return
    reason_text = f" ({simulation.not_folded_reason})" if simulation.not_folded_reason else ""
    remark(
        f"{simulation.simulated_ranks} ranks out of {ranks} are to be simulated{reason_text}: "
        f"this may take about {format_seconds(seconds)}; Ctrl-C ends it"
    )


def _bound_remark(record: Record, *, named: bool, has_noise: bool) -> list[str]:
    """A remark that the prediction is not exact, with the reason and the bounds; empty if it is exact.

    Parameters
    ----------
    named : whether the user named the collectives; of the machine's own, equal bounds are not worth a remark
    has_noise : whether op instances draw noise
    """
    simulation_entry = record.simulation
    if simulation_entry is not None and simulation_entry.granularity == "passes":
        noise_text = ", and the noise of its own ops" if has_noise else ""
        return [
            f"granularity of passes: {record.ranks} ranks are not simulated one by one; each pass of a stage takes the "
            f"time of an equal pass that was simulated{noise_text}"
        ]
    if (
        simulation_entry is None
        or simulation_entry.bound_low_seconds is None
        or simulation_entry.bound_high_seconds is None
    ):
        return _rings_remark(record, has_noise=has_noise)
    low, high = format_seconds(simulation_entry.bound_low_seconds), format_seconds(simulation_entry.bound_high_seconds)
    if record.options.collectives.startswith("nccl"):
        if low == high and not named:
            return []
        return [
            f"collective granularity: {simulation_entry.not_folded_reason}; {low} if ops of different axes do not slow "
            f"each other, {high} if ops that may overlap run one after the other; --granularity exact predicts "
            "rings of single ranks"
        ]
    reason = f" ({simulation_entry.not_folded_reason})" if simulation_entry.not_folded_reason else ""
    return [
        f"collective granularity: {record.ranks} ranks are not simulated one by one{reason}; the exact time lies "
        f"between {low} and {high}; --granularity exact simulates it"
    ]


def _rings_remark(record: Record, *, has_noise: bool) -> list[str]:
    """What stands for NCCL's collectives in a prediction with noise or of a message-driven pipeline."""
    if not record.options.collectives.startswith("nccl"):
        return []
    if has_noise:
        return [
            "collectives: rings of single ranks stand for NCCL's, whose model knows no single op, and --jitter draws "
            "noise for each"
        ]
    if record.options.pipeline_schedule != "message-driven":
        return []
    return [
        "collectives: rings of single ranks stand for NCCL's, whose model knows one order of passes, and messages "
        "decide the order of a message-driven pipeline"
    ]


def _remarks(prepared: PreparedExperiment, peak_bytes: int) -> list[str]:
    """Remarks for the user about a prediction that are not in the record."""
    machine, device, dtype = prepared.machine, prepared.device, prepared.experiment.dtype
    lines = _larger_remark(prepared)
    if oversubscribed := device.remark(machine):
        lines.append(oversubscribed)
    if not device.fits(machine, peak_bytes):
        held, needed = format_bytes(machine.device.memory_bytes), format_bytes(device.ranks * peak_bytes)
        who = f"the {device.ranks} ranks of a host need" if device.ranks > 1 else "a rank needs"
        lines.append(f"{who} {needed}, and a device of {machine.name} has {held}: it would not fit")
    elif nearly_full := _nearly_full(prepared, peak_bytes):
        lines.append(nearly_full)
    if prepared.pace > 1.0:
        lines.append(
            f"all ranks compute at the expected pace of the slowest GPU, {format_percent(prepared.pace - 1)} slower"
        )
    if dtype not in machine.device.peak_flops_per_second:
        accepted = ", ".join(machine.device.peak_flops_per_second)
        lines.append(f"{machine.name} gives no speed for {dtype}, only for {accepted}")
    return [*lines, *_pipeline_remark(prepared), *_experts_remark(prepared)]


def _larger_remark(prepared: PreparedExperiment) -> list[str]:
    """A remark that a named machine has fewer GPUs than the experiment has ranks; empty otherwise."""
    from quadrille.topologies.machines.machine_catalogue import larger_machine_remark

    larger = larger_machine_remark(prepared.machine, prepared.experiment.grid.size)
    return [larger] if larger else []


def _pipeline_remark(prepared: PreparedExperiment) -> list[str]:
    """A remark that a pipeline without `--micro-batch` has one microbatch; empty otherwise."""
    stages, problem = prepared.experiment.grid.pipeline, prepared.experiment.problem
    if stages == 1 or getattr(problem, "micro_batch", 0) is not None:
        return []
    return [f"one microbatch: one of the {stages} stages works at a time; --micro-batch B makes several of the batch"]


def _experts_remark(prepared: PreparedExperiment) -> list[str]:
    """A remark that the GPU has measured kernels, but none of experts; empty for other GPUs and models."""
    device, experts = prepared.machine.device, getattr(prepared.experiment.problem, "experts", None)
    if experts is None or not device.measured_kernels:
        return []
    from quadrille.simulator.machine.compute_model import TABLE_DTYPES
    from quadrille.topologies.nodes.kernel_tables import kernel_table

    kernels = kernel_table(device.measured_kernels)
    if kernels.experts is not None or prepared.experiment.dtype not in TABLE_DTYPES:
        return []
    return [f"no experts were measured on {kernels.gpu}: their products are predicted one after the other"]


def _nearly_full(prepared: PreparedExperiment, peak_bytes: int) -> str:
    """The line for a rank whose tensors fit in a GPU, but not with the runtime's own memory; empty otherwise."""
    if prepared.placement.net.endpoints[0] != "gpu":
        return ""
    first, further = RUNTIME_BYTES
    communicators = sum(prepared.experiment.grid.length(axis) > 1 for axis in AXES)
    runtime, held = int(first + further * max(0, communicators - 1)), prepared.machine.device.memory_bytes
    if peak_bytes + runtime <= held:
        return ""
    return (
        f"a rank needs {format_bytes(peak_bytes)} of the {format_bytes(int(held))} that a device of "
        f"{prepared.machine.name} reports, and the runtime takes about {format_bytes(runtime)} besides (context, and "
        f"buffers of {communicators} communicators): it may not fit"
    )


def calibration_warnings(machine: Machine, where: str = "") -> list[str]:
    """The warnings of a machine's calibration: all of them, or one line with their number.

    >>> from types import SimpleNamespace
    >>> fit = SimpleNamespace(warnings=("half of the products are off the fit", "something else ran"))
    >>> noisy = SimpleNamespace(name="host", fit=fit)
    >>> calibration_warnings(noisy, "--verbose shows them")
    ['host: its calibration gave 2 warnings; --verbose shows them']
    >>> calibration_warnings(noisy)
    ['host: half of the products are off the fit', 'host: something else ran']

    Parameters
    ----------
    where : text that says how to see all warnings; empty to return all warnings
    """
    warnings = machine.fit.warnings if machine.fit is not None else ()
    if where and len(warnings) > 1:
        return [f"{machine.name}: its calibration gave {len(warnings)} warnings; {where}"]
    return [f"{machine.name}: {warning}" for warning in warnings]
