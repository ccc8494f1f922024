"""The search for Megatron-LM's fastest run of a training: the product's own search (`experiments/rank`), one scheme.

All parallel configurations that fit in memory are evaluated by closed form, as `quadrille rank` does; the fastest of
them are predicted as `quadrille simulate` does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import OverlapName
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape
from quadrille.algorithms.training.recompute import Attention, Recompute
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.experiments.rank.candidate_grids import GridLimits
from quadrille.experiments.rank.configuration_evaluator import Configuration, Evaluator, speed_key
from quadrille.experiments.rank.configurations import SearchSpace, configurations
from quadrille.experiments.rank.lower_estimates import least_bytes
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.search_options import Value, pass_orders
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.grids import divisors
from quadrille.experiments.workloads.rank_orders import FASTEST_FIRST
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.studies.published_training.claimed_steps import ATTENTION_DROPOUT, ClaimedTraining

MICROS = (1, 2, 4)
"""Sequences of a microbatch that are tried, of 2,048 tokens; of shorter sequences as many tokens."""
FULL_SEQUENCE = 2048
SIMULATED = 3
"""Number of configurations that are simulated, the fastest by closed form."""
BESIDE: frozenset[OverlapName] = frozenset({"oar", "oag"})
"""Sums and second gathers beside products, with sequence parallelism (`published_steps.py`)."""
NONE: frozenset[OverlapName] = frozenset()


@dataclass(frozen=True, slots=True)
class MegatronSetup:
    """The features of Megatron-LM that a search uses.

    Parameters
    ----------
    attention : fused or unfused attention
    sequence_parallel : whether activations between products are sharded over the tensor-parallel group
    interleaving : whether stages may hold several chunks of layers
    tensor : whether layers may be sharded over a tensor-parallel group
    zero : ZeRO stages to try
    recompute : recomputation of activations
    """

    attention: Attention = "fused"
    sequence_parallel: bool = True
    interleaving: bool = True
    tensor: bool = True
    zero: tuple[int, ...] = (1,)
    recompute: Recompute = "full"


MEGATRON_CORE = MegatronSetup()
"""Megatron-LM from 2022 on: fused attention, sequence parallelism, interleaved stages, sharded optimizer."""
PLAIN_1F1B = MegatronSetup("unfused", sequence_parallel=False, interleaving=False, zero=(0, 1))
"""Megatron-LM and DeepSpeed of 2021: unfused attention, 1F1B, the optimizer sharded or not."""


def megatron_configurations(training: ClaimedTraining, setup: MegatronSetup = MEGATRON_CORE) -> list[Configuration]:
    """All configurations of Megatron-LM that a training could run and that fit in memory, the fastest first.

    The lengths of the tensor, pipeline and data parallel groups divide the number of GPUs; microbatches are 1, 2 or 4
    sequences of 2,048 tokens, or as many tokens.

    Parameters
    ----------
    training : model, machine, number of GPUs and batch
    setup : features that a run may use

    Raises
    ------
    InputError : none fits
    """
    question = _question(training, setup)
    evaluator, room = Evaluator(question, {}), question.machine.device.memory_bytes
    candidates = [
        experiment
        for experiment in _candidates(question, setup)
        if (setup.tensor or experiment.grid.x == 1) and least_bytes(experiment, question.shape) <= room
    ]
    evaluated = (evaluator.first_fitting((experiment,)) for experiment in candidates)
    fitting = [configuration for configuration in evaluated if isinstance(configuration, Configuration)]
    if not fitting:
        raise InputError(f"{training.description}: no configuration of Megatron-LM fits in memory")
    return sorted(fitting, key=lambda configuration: speed_key(configuration.step))


def fastest(training: ClaimedTraining, setup: MegatronSetup = MEGATRON_CORE) -> tuple[TrainingExperiment, float]:
    """The fastest configuration of Megatron-LM and the predicted time of its step [s]; arguments as above."""
    machine = training.model
    best = [configuration.experiment for configuration in megatron_configurations(training, setup)[:SIMULATED]]
    seconds = [
        simulated_step(experiment, machine, granularity="passes" if experiment.grid.pipeline > 1 else "auto").seconds
        for experiment in best
    ]
    place = min(range(len(best)), key=seconds.__getitem__)
    return best[place], seconds[place]


def _question(training: ClaimedTraining, setup: MegatronSetup) -> RankQuestion:
    """The question whose configurations are searched."""
    problem = gpt_from_shape(
        training.shape,
        training.batch,
        dtype=training.half,
        attention=setup.attention,
        recompute=setup.recompute,
        attention_dropout=ATTENTION_DROPOUT,
        gradient_bytes=2,
    )
    scheme = find_scheme("megatron", sequence_parallel=setup.sequence_parallel)
    execution = ExecutionOptions(overlaps=BESIDE if setup.sequence_parallel else NONE)
    return RankQuestion(
        training=TrainingExperiment(problem, scheme=scheme, execution=execution, shape=training.shape),
        shape=training.shape,
        gpus=training.gpus,
        machine=training.model,
        top=SIMULATED,
        form="exact",
        limits=GridLimits(order=FASTEST_FIRST),
    )


def _candidates(question: RankQuestion, setup: MegatronSetup) -> Iterator[TrainingExperiment]:
    """The configurations that are tried, without sequence parallelism where no group shares the layers."""
    chunks = divisors(question.shape.layers)[1:] if setup.interleaving else []
    orders: Sequence[Value] = (*pass_orders(("1f1b",), ()), *pass_orders(("interleaved",), tuple(chunks)))
    micros = tuple(factor * max(1, FULL_SEQUENCE // question.shape.sequence) for factor in MICROS)
    options = {"zero": tuple((zero,) for zero in setup.zero), "pipeline-schedule": tuple(orders)}
    space = SearchSpace((question.training.scheme,), None, micros, options)
    experiments, _ = configurations(question, space)
    plain = find_scheme("megatron", sequence_parallel=False)
    for experiment in experiments:
        problem = experiment.problem
        assert isinstance(problem, Gpt)
        if problem.interleave > 1 and experiment.microbatches.count % experiment.grid.pipeline:
            continue  # Megatron-LM interleaves whole rounds of microbatches
        if experiment.sequence_parallel and experiment.grid.x == 1:
            yield replace(experiment, scheme=plain, execution=replace(experiment.execution, overlaps=NONE))
        else:
            yield experiment
