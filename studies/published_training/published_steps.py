"""A published run as a question to the product: an experiment, a machine and its settings, and the prediction.

The time is that of `quadrille simulate` (`experiments.predict.training_step.simulated_step`), and `command` is the
command line that predicts the same time.  Steps with a pipeline are predicted pass by pass.

The software of a run decides what the rows do not print (`Software`):

    Megatron-LM     fused pointwise kernels, dropout of 0.1; with sequence parallelism, input gradients are summed and
                    inputs gathered again beside products
    PyTorch FSDP    kernel by kernel (eager), no dropout; weights are gathered and gradients scattered beside products

Source: Korthikanti et al., arXiv 2205.05198, section 4.2.2, and NVIDIA/Megatron-LM,
megatron/core/tensor_parallel/layers.py (overlaps); Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.3 (overlap and
prefetching); mosaicml/llm-foundry, scripts/train/benchmarking (no dropout, no compilation).
"""

import shlex
from dataclasses import dataclass
from functools import cache

from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.predict.training_step import TrainingStep, simulated_step
from quadrille.experiments.rank.work_sharing import TaskKind
from quadrille.experiments.workloads.command_flags import experiment_flags
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.studies.published_training.published_runs import PublishedRun
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES

HALF_BYTES, WIDE_BYTES = 2, 4
NETWORK = "device.collectives_between_share"
"""Setting of the share of the bandwidth between nodes that sums over replicas reach; messages of stages keep theirs."""


@dataclass(frozen=True, slots=True)
class Software:
    """Habits of a training program that decide the time of a step and that rows do not print.

    Parameters
    ----------
    settings : settings of the machine, as `--set` takes them
    sharded, scattered : overlaps with ZeRO 2 and 3, and with sequence parallelism
    dropout : share of the attention weights and hidden states that dropout sets to zero
    """

    settings: tuple[str, ...] = ()
    sharded: frozenset[OverlapName] = frozenset({"oag", "ors"})
    scattered: frozenset[OverlapName] = frozenset({"oar", "oag"})
    dropout: float = 0.1


MEGATRON = Software()
EAGER_FSDP = Software(("device.achieved.pointwise=unfused",), dropout=0.0)


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """The training step of a published run, as `quadrille simulate` takes it.

    Parameters
    ----------
    experiment : model, batch, grid and options
    machine : name of the machine
    settings : settings of the machine, as `--set` takes them
    """

    experiment: TrainingExperiment
    machine: str
    settings: tuple[str, ...] = ()

    @property
    def granularity(self) -> AskedGranularity:
        """Pass by pass with a pipeline."""
        return "passes" if self.experiment.grid.pipeline > 1 else "auto"

    @property
    def model(self) -> Machine:
        """The machine with its settings."""
        return find_machine(self.machine, self.settings, gpus=self.experiment.grid.size)

    @property
    def command(self) -> list[str]:
        """The command line whose predicted time per iteration is `step_of(self).seconds`."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        passes = ["--granularity", self.granularity] if self.granularity != "auto" else []
        machine = ["--machine", self.machine, *settings, *passes]
        return ["quadrille", "simulate", *experiment_flags(self.experiment), *machine]


@cache
def step_of(step: PublishedStep) -> TrainingStep:
    """The predicted step, with its time by cause."""
    return simulated_step(step.experiment, step.model, granularity=step.granularity)


STEPS = TaskKind(
    "training step",
    lambda step: (step.model, step.experiment, step.granularity),
    TrainingStep,
    lambda step: shlex.join(step.command),
)
"""The predicted steps as tasks of a store."""


@cache
def published_step(run: PublishedRun, between: float = 1.0) -> PublishedStep:
    """The step of a published run.

    Parameters
    ----------
    between : share of the bandwidth between nodes that collectives reach
    """
    software = software_of(run)
    settings = (*gpu_settings(run), *software.settings, *([f"{NETWORK}={between!r}"] if between < 1 else []))
    return PublishedStep(_experiment(run, software), run.machine, settings)


def software_of(run: PublishedRun) -> Software:
    """The habits of the software of a run: ZeRO 2 and 3 are PyTorch's or DeepSpeed's, layer by layer."""
    return EAGER_FSDP if run.zero > 1 and not run.deepspeed else MEGATRON


def gpu_settings(run: PublishedRun) -> tuple[str, ...]:
    """The settings that give a machine the memory of the run's GPUs, if they are of another size than its own."""
    own = MACHINES[run.machine].gpu
    return tuple(
        f"device.{name}={getattr(run.gpu, name)!r}"
        for name in ("memory_bytes_per_second", "memory_bytes")
        if getattr(run.gpu, name) != getattr(own, name)
    )


def _experiment(run: PublishedRun, software: Software) -> TrainingExperiment:
    """The training step of a run with the habits of its software."""
    problem = gpt_from_shape(
        run.shape,
        run.batch,
        dtype=run.dtype,
        micro_batch=run.micro,
        interleave=run.interleave,
        stages=run.layers if run.shape.layers % run.pipeline else (),
        zero=run.zero,
        gradient_bytes=WIDE_BYTES if run.sums_in_fp32 else HALF_BYTES,
        attention=run.attention,
        products=run.products,
        recompute=run.recompute,
        dropout=software.dropout,
        adam=Adam(default_rate(run.shape.hidden)),
    )
    overlaps = software.sharded if run.zero > 1 else frozenset[OverlapName]()
    return TrainingExperiment(
        problem,
        Grid(pipeline=run.pipeline, data=run.data, x=run.tensor, context=run.context),
        scheme=find_scheme("megatron", sequence_parallel=run.sequence_parallel),
        execution=ExecutionOptions(overlaps=overlaps | (software.scattered if run.sequence_parallel else frozenset())),
        shape=run.shape,
    )


@cache
def peak_bytes(run: PublishedRun) -> float:
    """The peak memory of the fullest GPU [bytes], without the framework, libraries and fragmentation.

    DeepSpeed's bf16 optimizer also keeps all gradients in 16 bits, of which a schedule has one layer at a time.

    Source: BigScience, chronicles-prequel.md, "Rebalancing layers"; microsoft/DeepSpeed,
    deepspeed/runtime/bf16_optimizer.py.
    """
    halves = HALF_BYTES * max(stage_parameters(run)) if run.sums_in_fp32 and run.zero < 2 else 0.0
    return experiment_peak_bytes(published_step(run).experiment) + halves


def stage_parameters(run: PublishedRun) -> list[float]:
    """The number of parameters on a GPU of each stage; with a pipeline, the last stage has the embedding table too."""
    parameters = [layers * run.shape.layer_parameters / run.tensor for layers in run.layers]
    parameters[0] += (run.shape.table + run.shape.sequence * run.shape.hidden) / run.tensor
    if run.pipeline > 1:
        parameters[-1] += run.shape.table / run.tensor
    return parameters
