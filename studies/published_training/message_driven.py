"""Message-driven pipelines of AxoNN and SAMO: the steps that the claims about them compare.

A step is predicted pass by pass.  The grid is Ginter x Gdata: consecutive ranks are stages of one pipeline.  For each
size of a microbatch the smallest number of stages with which the model fits in memory is tried, and the fastest step
is taken.

Source: Singh, Bhatele, "AxoNN", IPDPS'22, arXiv 2110.13005; Singh, Bhatele, "Exploiting Sparsity in Pruned Neural
Networks to Optimize Large Model Training" (SAMO), IPDPS'23, arXiv 2302.05045.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import AskedGranularity, Record
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.memory import Kind, largest_memory
from quadrille.algorithms.training.offload import Offload
from quadrille.experiments.predict.predict import prediction_record
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.studies.published_training.claimed_steps import ClaimedTraining

PIPELINE_FIRST: tuple[Axis, ...] = ("pipeline", *(axis for axis in AXES if axis != "pipeline"))
"""Order of the axes in AxoNN: stages of a pipeline are neighbours, data is outermost."""
STATES: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "buckets")
TOKENS = (2048, 4096, 8192)
"""Tokens of a microbatch that are tried."""
FEWER_TOKENS = (1024, 512)
"""Tokens of a microbatch that are tried if no pipeline fits with `TOKENS`."""


@dataclass(frozen=True, slots=True)
class PipelineSetup:
    """The options of a message-driven pipeline that a claim is about.

    Parameters
    ----------
    offload : whether the optimizer's state is in host memory
    sparsity : share of pruned weights, with compressed states; 0 for a dense model
    gradient_bytes : bytes of an accumulated gradient
    tokens : tokens of a microbatch that are tried
    stages : number of stages; 0 for the smallest number that fits
    """

    offload: bool = False
    sparsity: float = 0.0
    gradient_bytes: int = 2
    tokens: tuple[int, ...] = TOKENS
    stages: int = 0


AXONN, OPTIMISED = PipelineSetup(), PipelineSetup(offload=True)
"""AxoNN without and with its memory optimisation."""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """A predicted step of a message-driven pipeline.

    Parameters
    ----------
    experiment : the step
    seconds : time of the step
    communication_seconds : communication of the mean rank that no computation hides
    device_bytes : largest memory of a rank on its device
    """

    experiment: TrainingExperiment
    seconds: float
    communication_seconds: float
    device_bytes: int

    @property
    def setting(self) -> str:
        """The grid and the microbatch as text."""
        grid, micro = self.experiment.grid, self.experiment.problem.micro_batch
        return f"pipeline={grid.pipeline}, data={grid.data}, microbatches of {micro}"


def pipeline_experiment(
    training: ClaimedTraining, setup: PipelineSetup, stages: int, micro_batch: int
) -> TrainingExperiment:
    """The step of a training on a pipeline with this number of stages and sequences of a microbatch."""
    problem = gpt_from_shape(
        training.shape,
        training.batch,
        dtype=training.half,
        recompute=training.recompute,
        attention="unfused",
        attention_dropout=training.attention_dropout,
    )
    problem = replace(
        problem,
        micro_batch=micro_batch,
        pipeline_schedule="message-driven" if stages > 1 else "1f1b",
        gradient_bytes=setup.gradient_bytes,
        offload=Offload() if setup.offload else None,
        sparsity=setup.sparsity,
        sparse_states=setup.sparsity > 0,
    )
    grid = Grid(pipeline=stages, data=training.gpus // stages, order=PIPELINE_FIRST)
    execution = ExecutionOptions(choices=parse_choices("nccl"))
    return TrainingExperiment(problem, grid, execution=execution, shape=training.shape)


def candidates(training: ClaimedTraining, setup: PipelineSetup) -> Iterator[TrainingExperiment]:
    """The steps of a setup that are tried; with microbatches of fewer tokens only if no others fit."""
    usual = list(_smallest_pipelines(training, setup, setup.tokens))
    yield from usual or _smallest_pipelines(training, setup, FEWER_TOKENS)


def _smallest_pipelines(
    training: ClaimedTraining, setup: PipelineSetup, sizes: Sequence[int]
) -> Iterator[TrainingExperiment]:
    """The step with the smallest number of stages that fits, for each number of tokens of a microbatch."""
    depths = [stages for stages in range(1, training.shape.layers + 1) if training.gpus % stages == 0]
    for tokens in sizes:
        micro = max(1, tokens // training.shape.sequence)
        large_enough = (
            experiment
            for stages in ([setup.stages] if setup.stages else depths)
            if training.batch % (training.gpus // stages * micro) == 0
            for experiment in (pipeline_experiment(training, setup, stages, micro),)
            if experiment_peak_bytes(experiment) <= training.model.device.memory_bytes
        )
        yield from islice(large_enough, 1)


def predicted_step(training: ClaimedTraining, experiment: TrainingExperiment) -> PipelineStep:
    """The predicted step."""
    granularity: AskedGranularity = "passes" if experiment.grid.pipeline > 1 else "auto"
    record: Record = prediction_record(experiment, training.model, granularity=granularity)
    exposed = record.exposed_seconds_by_axis
    assert record.seconds_per_iteration and isinstance(exposed, dict)
    return PipelineStep(
        experiment, record.seconds_per_iteration, sum(exposed.values()), experiment_peak_bytes(experiment)
    )


def predicted_steps(training: ClaimedTraining, setup: PipelineSetup) -> list[PipelineStep]:
    """The steps of a setup, the fastest first.

    Raises
    ------
    InputError : no step fits in memory
    """
    steps = [predicted_step(training, experiment) for experiment in candidates(training, setup)]
    if not steps:
        raise InputError(f"{training.description}: no pipeline fits in memory")
    return sorted(steps, key=lambda step: step.seconds)


def state_bytes(experiment: TrainingExperiment) -> int:
    """The largest memory of a rank on its device for parameters, gradients and optimizer states, with buckets [B]."""
    kinds = largest_memory(experiment.schedule(), experiment.execution.choices)
    return sum(kinds.get(kind, 0) for kind in STATES)
