"""`quadrille simulate`: from flags to a predicted record."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quadrille.algorithms.formats.record import AskedGranularity, Record
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.options.machine_flags import MachineFlags, chosen_machine
from quadrille.experiments.options.memory_check import nodes_of_ranks, placement
from quadrille.experiments.options.run_options import Plan, RunFlags, files_read, parse_plan
from quadrille.experiments.output.destinations import Destinations, check_apart, parse_ranks
from quadrille.experiments.predict.collectives_choice import Chosen, told, with_chosen
from quadrille.experiments.predict.order_choice import ChosenOrder, chosen_order
from quadrille.experiments.records.results import write_results
from quadrille.experiments.workloads.matmul import Experiment, Flags
from quadrille.experiments.workloads.training_flags import with_usual_dtype
from quadrille.experiments.workloads.workloads import AnyExperiment, experiment_of
from quadrille.runtime.files.matrix_files import open_operands
from quadrille.runtime.host.console import remark, remark_all
from quadrille.simulator.gc_paused import gc_paused
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.what_if import in_chunks

if TYPE_CHECKING:
    from quadrille.simulator.simulate import Shortcuts, Simulator


def predict(
    flags: Flags,
    run_flags: RunFlags,
    on: MachineFlags,
    *,
    destinations: Destinations,
    shortcuts: "Shortcuts | None" = None,
    granularity: AskedGranularity = "auto",
    command: Sequence[str] = (),
) -> None:
    """Predicts the experiment on the machine and writes its record, or prints it.

    Parameters
    ----------
    run_flags : how it would be run: checked, but no file of theirs is opened; the backend is named in the record
    on : the machine
    shortcuts : what makes the simulation fast
    granularity : exact, collective or auto
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : an experiment or a machine that cannot be
    """
    experiment = experiment_of(with_usual_dtype(flags, on))
    if granularity == "exact":
        experiment.manner.choices.check_schedulable()
    plan = parse_plan(run_flags, experiment)
    if isinstance(experiment, Experiment) and not plan.inputs:
        _check_generated(experiment, plan)
    read = on.files | files_read(flags)
    check_apart(plan.written, read)
    destinations.check(plan.files | read, ranks=experiment.grid.size)
    machine = fitting_machine(on, experiment, plan.chunk_bytes)
    order = None
    if experiment.manner.any_order:
        order = order_on(experiment, machine, plan.backend, granularity, shortcuts=shortcuts, announce=True)
        experiment = order.laid_out(experiment)
        remark(order.line())
    made, timeline = prediction_of(
        experiment,
        machine,
        command,
        backend=plan.backend,
        shortcuts=shortcuts,
        granularity=granularity,
        wanted=parse_ranks(destinations.ranks, experiment.grid.size) if destinations.ranks else (),
        announce=True,
    )
    remark_all([*_bound_in_words(made), *experiment.remarks()])
    remark_all(_remarks(machine, made.peak_bytes_per_rank_max, experiment))
    write_results(destinations, order.told(made) if order else made, timeline)


def _check_generated(experiment: Experiment, plan: Plan) -> None:
    """Refuse operands that `run` would refuse to generate."""
    problem = experiment.problem
    sizes = problem.m, problem.k, problem.n
    open_operands(*sizes, problem.dtype, kind=plan.kind, training=problem.training, transposed=problem.transposed)


def fitting_machine(on: MachineFlags, experiment: AnyExperiment, chunk_bytes: int | None = None) -> Machine:
    """The machine that the flags name, known to have room for the ranks of the experiment.

    Parameters
    ----------
    chunk_bytes : of buffered messages, see `in_chunks`; None for what the machine says

    Raises
    ------
    InputError : a machine that cannot be, or has too few GPUs; a placement that does not fit
    """
    machine = chosen_machine(on, gpus=experiment.grid.size)
    placement(machine, experiment.grid.size, experiment.manner.placement, experiment.grid)
    return in_chunks(machine, chunk_bytes)


def order_on(
    experiment: AnyExperiment,
    machine: Machine,
    backend: str = "numpy",
    granularity: AskedGranularity = "exact",
    *,
    shortcuts: "Shortcuts | None" = None,
    announce: bool = False,
) -> ChosenOrder:
    """The order of ranks in which the experiment is predicted to take least on the machine, and all others.

    All are predicted at one granularity: of whole collectives, if one of them can be predicted so only.

    Parameters
    ----------
    announce : say on stderr, before the first, what will take long
    """
    seen = set[str]()

    def seconds(one: AnyExperiment) -> float:
        first = announce and not seen and not one.manner.choices.auto
        made, _ = prediction_of(
            one, machine, backend=backend, shortcuts=shortcuts, granularity=granularity, announce=first
        )
        seen.add(made.simulation.granularity if made.simulation is not None else "exact")
        return made.seconds

    found = chosen_order(experiment, seconds)
    return found if len(seen) < 2 else order_on(experiment, machine, backend, "collective", shortcuts=shortcuts)


def prediction_of(
    experiment: AnyExperiment,
    machine: Machine,
    command: Sequence[str] = (),
    *,
    backend: str = "numpy",
    shortcuts: "Shortcuts | None" = None,
    granularity: AskedGranularity = "exact",
    wanted: Sequence[int] = (),
    announce: bool = False,
) -> tuple[Record, Timeline]:
    """The predicted record of an experiment on a machine, and its timeline.

    Parameters
    ----------
    shortcuts : what makes the simulation fast; by default everything
    granularity : exact, collective, or what takes no more than a few seconds
    wanted : ranks that must be in the timeline
    announce : say on stderr, before it starts, what will take long
    """
    from quadrille.experiments.predict.predicted_record import predicted_record
    from quadrille.simulator.simulate import Shortcuts, Simulator
    from quadrille.simulator.symmetry.even_shards import with_even_shards

    assert not experiment.manner.any_order, "order_on finds it"
    with gc_paused():
        grid, manner = experiment.grid, experiment.manner
        nodes = nodes_of_ranks(machine, grid.size, manner.placement, grid)
        experiment = experiment.on_nodes(nodes)
        schedule = experiment.schedule()
        chosen: list[Chosen] = []
        if manner.choices.auto:
            asked = schedule if _even_within(experiment, schedule) is None else with_even_shards(schedule)
            experiment, chosen = with_chosen(experiment, asked, machine, nodes, backend)
        threads = manner.threads or placement(machine, grid.size, manner.placement, grid).threads
        even_within = _even_within(experiment, schedule)
        simulation = Simulator(
            schedule if even_within is None else with_even_shards(schedule),
            machine,
            choices=experiment.manner.choices,
            threads=threads,
            placement=manner.placement,
            shortcuts=shortcuts or Shortcuts(),
            granularity=granularity,
        )
        if announce:
            remark_all(one.line() for one in chosen)
            _announce(simulation, experiment)
    prediction = simulation.run(wanted)
    with gc_paused():
        made = predicted_record(
            experiment,
            schedule,
            machine,
            prediction,
            threads=threads,
            provenance=provenance(command),
            backend=backend,
            even_within=even_within,
        )
    return told(made, chosen) if chosen else made, prediction.timeline


def _even_within(experiment: AnyExperiment, schedule: Schedule) -> float | None:
    """How far shards of mean size may move the makespan, relative to it; None where shards are as they are."""
    from quadrille.simulator.symmetry.even_shards import EVEN_SHARDS_ABOVE, even_bound

    asked = experiment.manner.shards
    if asked == "even" or (asked is None and experiment.grid.size > EVEN_SHARDS_ABOVE):
        return even_bound(schedule, experiment.manner.choices)
    return None


def _announce(simulation: "Simulator", experiment: AnyExperiment) -> None:
    """Says what will take long, and why it must."""
    from quadrille.simulator.simulate import LONG_SECONDS

    if simulation.granularity == "collective":
        return
    seconds, ranks = simulation.expected_wall_seconds, experiment.grid.size
    if seconds < LONG_SECONDS:
        return
    apart = f" ({simulation.why_not})" if simulation.why_not else ""
    remark(
        f"{simulation.simulated_ranks} ranks out of {ranks} are to be simulated{apart}: "
        f"this may take about {format_seconds(seconds)}; Ctrl-C ends it"
    )


def _bound_in_words(made: Record) -> list[str]:
    """That a prediction is not exact, why, and between which two the exact one lies."""
    how = made.simulation
    if how is None or how.bound_low_seconds is None or how.bound_high_seconds is None:
        return []
    low, high = format_seconds(how.bound_low_seconds), format_seconds(how.bound_high_seconds)
    if made.options.collectives.startswith("nccl"):
        return [
            f"collective granularity: {how.why_not}; {low} with ops of different axes apart, {high} with those that "
            "may be under way together one after the other; --granularity exact predicts rings of single ranks"
        ]
    reason = f" ({how.why_not})" if how.why_not else ""
    return [
        f"collective granularity: {made.ranks} ranks are not simulated one by one{reason}; the exact simulation says "
        f"{low} to {high}; --granularity exact asks for it"
    ]


def _remarks(machine: Machine, peak_bytes: int, experiment: AnyExperiment) -> list[str]:
    """What a user should know of a prediction that the record does not say."""
    found = []
    placed = placement(machine, experiment.grid.size, experiment.manner.placement, experiment.grid)
    if crowded := placed.remark(machine):
        found.append(crowded)
    if not placed.fits(machine, peak_bytes):
        held, needed = format_bytes(machine.device.memory_bytes), format_bytes(placed.ranks * peak_bytes)
        who = f"the {placed.ranks} ranks of a host need" if placed.ranks > 1 else "a rank needs"
        found.append(f"{who} {needed}, and a device of {machine.name} has {held}: it would not fit")
    if experiment.dtype not in machine.device.peak_flops_per_second:
        known = ", ".join(machine.device.peak_flops_per_second)
        found.append(f"{machine.name} gives no speed for {experiment.dtype}, only for {known}")
    found += [f"{machine.name}: {warning}" for warning in (machine.fit.warnings if machine.fit is not None else ())]
    return found
