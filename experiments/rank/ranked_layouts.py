"""The fastest layouts of a model on a machine: `quadrille rank` with a small search space, as answers of a sweep.

Studies compare these answers with those of other layouts.  The space is by default that of Megatron-LM's users: tensor
parallelism (x) with sequence parallelism, pipeline stages with 1F1B, data parallelism with ZeRO 1, and experts; all
communication that can overlap passes does so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.predict.prepared_experiment import with_machine_choices
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.experiments.rank.candidate_grids import GridLimits
from quadrille.experiments.rank.configurations import SearchSpace
from quadrille.experiments.rank.rank import ranking
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.schemes_report import SchemesAnswer, SimulatedConfiguration, schedule_text
from quadrille.experiments.rank.search_options import ALL_OVERLAPS, SEARCH_OPTIONS, Value
from quadrille.experiments.sweep.sweep_result import SweepAnswer, TrainingResult
from quadrille.experiments.sweep.time_limit import processor_time_limit
from quadrille.experiments.sweep.training_point import sweep_answer
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.rank_orders import FASTEST_FIRST
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.topologies.machines.machine import Machine

MEGATRON = find_scheme("megatron", sequence_parallel=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutQuestion:
    """The question for the fastest layouts of a training job.

    Parameters
    ----------
    gpt : name of the model
    batch : number of sequences of a step
    gpus, machine : number of GPUs, and the machine
    stages, micro_batches : numbers of pipeline stages, and sequences of a microbatch, that are tried;
        None for all microbatches
    top : number of layouts that are simulated
    powers_of_two : whether all axes have lengths that are powers of two
    scheme : scheme of tensor parallelism
    options : values of options of `SEARCH_OPTIONS` that are tried; other options have the usual value, and all overlaps
    fitting : number of layouts that fit and are evaluated for each recomputation; None for the usual
        number
    most_seconds : processor time after which the search stops, and after which the simulation of the layout along data
        stops [s]
    """

    gpt: str
    batch: int
    gpus: int
    machine: Machine
    stages: tuple[int, ...] = (1, 2, 4, 8)
    micro_batches: tuple[int, ...] | None = (1,)
    top: int = 2
    powers_of_two: bool = True
    scheme: Scheme = MEGATRON
    options: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    fitting: int | None = None
    most_seconds: float = inf

    def rank_question(self) -> RankQuestion:
        """The question as `quadrille rank` takes it; x is the fastest axis.

        Raises
        ------
        InputError : an unknown model, or too few GPUs
        """
        training = self.training()
        assert training.shape is not None
        limits = GridLimits(FASTEST_FIRST, powers_of_two=self.powers_of_two)
        return RankQuestion(
            training=training,
            shape=training.shape,
            gpus=self.gpus,
            machine=self.machine,
            top=self.top,
            limits=limits,
        )

    def training(self) -> TrainingExperiment:
        """The training step with all overlaps, on no grid yet."""
        shape = find_shape(self.gpt)
        adam = Adam(rate=default_rate(shape.hidden))
        problem = gpt_from_shape(shape, self.batch, dtype="bfloat16", zero=1, recompute="selective", adam=adam)
        (overlaps,) = ALL_OVERLAPS
        return TrainingExperiment(problem, Grid(), self.scheme, ExecutionOptions(overlaps=overlaps), shape=shape)

    def space(self) -> SearchSpace:
        """The search space."""
        usual = {name: (option.usual,) for name, option in SEARCH_OPTIONS.items()} | {"overlap": (ALL_OVERLAPS,)}
        options = {**usual, **self.options}
        counts = tuple(count for count in self.stages if self.gpus % count == 0)
        return SearchSpace((self.scheme,), counts, self.micro_batches, options, fitting=self.fitting)


def fastest_layouts(asked: LayoutQuestion) -> tuple[SweepAnswer, ...]:
    """The simulated layouts of a question, the fastest first; one answer with the reason if there is none."""
    try:
        with processor_time_limit(asked.most_seconds):
            answer = ranking(asked.rank_question(), asked.space())
    except QuadrilleError as error:
        return (SweepAnswer(reason=str(error)),)
    assert isinstance(answer, SchemesAnswer)
    return tuple(layout_answer(entry, answer) for entry in answer.simulated)


def layout_answer(entry: SimulatedConfiguration, answer: SchemesAnswer) -> SweepAnswer:
    """The answer of a sweep from a simulated configuration of a ranking."""
    exposed = sum(entry.exposed_seconds_by_axis.values())
    trained = TrainingResult(
        scheme=entry.scheme,
        micro_batch=entry.micro_batch,
        order=tuple(entry.order),  # type: ignore[arg-type]
        closed_form_seconds=entry.analytical_seconds,
        model_flops_per_second_per_gpu=entry.model_flops_per_second_per_gpu,
        hardware_flops_per_second_per_gpu=entry.hardware_flops_per_second_per_gpu,
        percent_of_peak=entry.percent_of_peak,
        exposed_seconds_by_axis=entry.exposed_seconds_by_axis,  # type: ignore[arg-type]
        layers_simulated=entry.layers_simulated,
        bounded=entry.granularity == "collective",
        recompute=entry.recompute,
        schedule=schedule_text(entry) if entry.grid["pipeline"] > 1 else "",
    )
    return SweepAnswer(
        ranks=answer.gpus,
        grid_lengths=entry.grid,  # type: ignore[arg-type]
        seconds=entry.seconds,
        compute_seconds=entry.compute_seconds,
        exposed_seconds=exposed,
        waiting_seconds=max(0.0, entry.seconds - entry.compute_seconds - exposed),
        communication_share=max(0.0, 1 - entry.compute_seconds / entry.seconds),
        flops_per_second_per_gpu=entry.model_flops_per_second_per_gpu,
        peak_bytes_per_rank_max=entry.memory_bytes,
        fits=True,
        grids=len(answer.analytical),
        simulated=len(answer.simulated),
        trained=trained,
    )


def sharded_data_layout(asked: LayoutQuestion) -> SweepAnswer:
    """The answer of data parallelism alone, on all GPUs: ZeRO 3 and full recomputation, one microbatch.

    It is the layout that needs no search. Where it does not fit in memory, the answer says so.
    """
    training = asked.training()
    assert isinstance(training.problem, Gpt)
    sequences = -(-asked.batch // asked.gpus)
    problem = replace(training.problem, zero=3, recompute="full", micro_batch=sequences)
    grid = Grid(data=asked.gpus, order=FASTEST_FIRST)
    experiment = replace(training, problem=problem, grid=grid, scheme=find_scheme("megatron"))
    try:
        with processor_time_limit(asked.most_seconds):
            step = simulated_step(with_machine_choices(experiment, asked.machine), asked.machine)
        return sweep_answer(experiment, asked.machine, step, experiment_peak_bytes(experiment))
    except QuadrilleError as error:
        return SweepAnswer(reason=str(error))
