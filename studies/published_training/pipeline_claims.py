"""The claims about message-driven pipelines: AxoNN with its memory optimisation, and SAMO's pruned states.

Of AxoNN's memory optimisation, the states on the device and the time of a step are compared with the same pipeline
without offload.  Of SAMO, the states, the exposed communication and the time of a step are compared with a dense model
on AxoNN, both without offload.  States are parameters, gradients, optimizer states and buckets, because the papers
count bytes of a parameter.

Source: Singh, Bhatele, IPDPS'22, arXiv 2110.13005, and IPDPS'23, arXiv 2302.05045, abstracts.
"""

from collections.abc import Callable
from dataclasses import replace

from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.studies.published_training.claim_prediction import ClaimPrediction
from quadrille.studies.published_training.claimed_steps import ClaimedTraining
from quadrille.studies.published_training.message_driven import (
    AXONN,
    OPTIMISED,
    PipelineSetup,
    PipelineStep,
    candidates,
    pipeline_experiment,
    predicted_step,
    predicted_steps,
    state_bytes,
)

SPARSITY, LESS_SPARSE = 0.9, 0.8
PRUNED = PipelineSetup(sparsity=SPARSITY)
"""SAMO with the sparsity that is assumed."""
SMALL_VOCABULARY, SMALL_BATCH = 512, 2048
WIDE = "gradients of 4 bytes"


def _assumptions(training: ClaimedTraining, *more: str) -> tuple[str, ...]:
    """What is assumed about a training and not printed in the abstracts."""
    return (
        training.shape.name,
        f"batch {training.batch}",
        "unfused attention",
        "full recomputation",
        "float16, gradients of 2 bytes",
        "the least Ginter that fits",
        "the fastest of microbatches of 2,048, 4,096 and 8,192 tokens",
        *more,
    )


def pipeline_share(training: ClaimedTraining) -> ClaimPrediction:
    """The predicted share of peak of AxoNN with its memory optimisation [%]."""
    best, *others = predicted_steps(training, OPTIMISED)
    what_if = {step.setting: training.share_of_peak(step.seconds) for step in others}
    return ClaimPrediction(
        training.share_of_peak(best.seconds), best.setting, what_if, assumptions=_assumptions(training)
    )


def offloaded_states(training: ClaimedTraining) -> ClaimPrediction:
    """The predicted states on the device without offload, relative to the states with offload."""
    offloaded = next(candidates(training, OPTIMISED))
    stages, micro = offloaded.grid.pipeline, offloaded.problem.micro_batch
    assert micro is not None

    def times(gradient_bytes: int) -> float:
        """The ratio of the states with gradients of this many bytes."""
        setups = (replace(setup, gradient_bytes=gradient_bytes) for setup in (AXONN, OPTIMISED))
        kept, left = (state_bytes(pipeline_experiment(training, setup, stages, micro)) for setup in setups)
        return kept / left

    kept, left = (
        experiment_peak_bytes(pipeline_experiment(training, setup, stages, micro)) for setup in (AXONN, OPTIMISED)
    )
    what_if = {WIDE: times(4), "all memory, with activations": kept / left}
    return ClaimPrediction(times(2), f"grid pipeline={stages}", what_if, assumptions=_assumptions(training)[:-1])


def gain_by_offload(training: ClaimedTraining) -> ClaimPrediction:
    """The predicted extra time of AxoNN without its memory optimisation, relative to the step with it [%]."""
    without, with_offload = (predicted_steps(training, setup) for setup in (AXONN, OPTIMISED))
    pairs = (without[0], with_offload[0])
    small = replace(training.shape, vocabulary=SMALL_VOCABULARY)
    what_if = {
        f"logits of {SMALL_VOCABULARY} words": _gain(replace(training, shape=small), pairs),
        f"batch {SMALL_BATCH}": _gain(replace(training, batch=SMALL_BATCH), pairs),
    }
    of_2048_tokens = [
        min(steps, key=lambda step: step.experiment.problem.micro_batch or 0).seconds
        for steps in (without, with_offload)
    ]
    what_if["microbatches of 2,048 tokens"] = _percent(*of_2048_tokens)
    setting = f"{pairs[0].setting} against {pairs[1].setting}"
    gain = _percent(*(step.seconds for step in pairs))
    return ClaimPrediction(gain, setting, what_if, assumptions=_assumptions(training))


def _gain(training: ClaimedTraining, pairs: tuple[PipelineStep, PipelineStep]) -> float:
    """The gain by offload of another training with the same grids and microbatches [%]."""
    steps = []
    for setup, step in zip((AXONN, OPTIMISED), pairs, strict=True):
        micro = step.experiment.problem.micro_batch
        assert micro is not None
        steps.append(
            predicted_step(training, pipeline_experiment(training, setup, step.experiment.grid.pipeline, micro))
        )
    return _percent(*(step.seconds for step in steps))


def _percent(slow: float, fast: float) -> float:
    """The extra time of the slower step, relative to the faster step [%]."""
    return 100 * (slow / fast - 1)


def compressed_states(training: ClaimedTraining) -> ClaimPrediction:
    """The predicted change of the states on a device by SAMO, on the grid of the dense model [%]."""
    dense = next(candidates(training, AXONN))
    stages, micro = dense.grid.pipeline, dense.problem.micro_batch
    assert micro is not None

    def change(sparsity: float, gradient_bytes: int = 2) -> float:
        """The change of the states with this sparsity [%]."""
        setups = (PipelineSetup(sparsity=share, gradient_bytes=gradient_bytes) for share in (sparsity, 0.0))
        kept, every = (state_bytes(pipeline_experiment(training, setup, stages, micro)) for setup in setups)
        return _percent(kept, every)

    what_if = {f"sparsity {LESS_SPARSE}": change(LESS_SPARSE), WIDE: change(SPARSITY, 4)}
    assumptions = _assumptions(training, f"sparsity {SPARSITY}")
    return ClaimPrediction(change(SPARSITY), f"grid pipeline={stages}", what_if, assumptions=assumptions)


def compressed_communication(training: ClaimedTraining) -> ClaimPrediction:
    """The predicted change of the exposed communication of the mean rank by SAMO [%]."""
    return _compared(
        training, lambda dense, pruned: _percent(pruned.communication_seconds, dense.communication_seconds)
    )


def compressed_gain(training: ClaimedTraining) -> ClaimPrediction:
    """The predicted extra time of AxoNN with a dense model, relative to SAMO [%]."""
    return _compared(training, lambda dense, pruned: _percent(dense.seconds, pruned.seconds))


def _compared(training: ClaimedTraining, figure: Callable[[PipelineStep, PipelineStep], float]) -> ClaimPrediction:
    """A figure of the dense and the pruned step, each the fastest, and with other stages and sparsities."""
    dense, pruned = (predicted_steps(training, setup)[0] for setup in (AXONN, PRUNED))
    stages = pruned.experiment.grid.pipeline
    deeper = predicted_steps(training, replace(PRUNED, stages=2 * stages))[0]
    less_sparse = predicted_steps(training, replace(PRUNED, sparsity=LESS_SPARSE))[0]
    what_if = {f"SAMO on {deeper.setting}": figure(dense, deeper)}
    what_if[f"sparsity {LESS_SPARSE}, {less_sparse.setting}"] = figure(dense, less_sparse)
    setting = f"{dense.setting} against {pruned.setting}"
    assumptions = _assumptions(training, f"sparsity {SPARSITY}")
    return ClaimPrediction(figure(dense, pruned), setting, what_if, assumptions=assumptions)
