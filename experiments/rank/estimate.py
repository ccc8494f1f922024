"""Quick lower estimates of a configuration, without its schedule: seconds of a step and bytes of a rank.

    seconds = (products at the peak of the device + communication of layers) · bubble
    bytes   = weights, gradients and optimizer of the layers, nothing else

Communication is that of the 4D model (`quadrille.algorithms.analysis.axonn`), with what
a pipeline and ZeRO change: weights are gathered for every microbatch.  Other
schemes are charged the same, so the estimate says which of a scheme's
configurations are looked at first, and no scheme is compared by it.
"""

from collections.abc import Mapping, Sequence

from quadrille.algorithms.analysis.axonn import MODELLED, ProductSizes, block_seconds
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.models import ModelShape
from quadrille.experiments.predict.step_parts import pipeline_stages
from quadrille.experiments.workloads.training import TrainingExperiment

MASTER_AND_MOMENTS = 12


def least_bytes(experiment: TrainingExperiment, shape: ModelShape) -> float:
    """A lower bound of the memory of a rank [B]."""
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    item, sharded = ITEM_BYTES[problem.dtype], grid.data
    gradients = problem.gradient_bytes if problem.precision.mixed else item
    states = MASTER_AND_MOMENTS if problem.precision.mixed else 2 * item
    kept = (item, gradients, states)
    each = sum(size / (sharded if problem.zero >= begin else 1) for size, begin in zip(kept, (3, 2, 1), strict=True))
    return each * shape.layers * shape.products / (grid.size // grid.data)


def estimated_seconds(
    experiment: TrainingExperiment,
    shape: ModelShape,
    products: Sequence[ProductSizes],
    bandwidths: Mapping[Axis, float],
    peak_flops_per_second: float | None,
) -> float:
    """Estimated seconds of a step, comparable with other configurations of the same scheme."""
    problem, grid, stages = experiment.problem, experiment.grid, pipeline_stages(experiment)
    assert isinstance(problem, Gpt)
    block = block_seconds(
        problem.batch * shape.sequence / grid.data,
        products,
        {axis: grid.length(axis) for axis in MODELLED},
        bandwidths,
        recomputed=problem.recompute == "full",
        gradient_bytes=problem.gradient_bytes,
    )
    times = {"z": stages.microbatches, "data": _passes_over_data(problem.zero, stages.microbatches)}
    communication = shape.layers / stages.count * sum(times.get(axis, 1) * block[axis] for axis in MODELLED)
    compute = experiment.step_flops.hardware / (grid.size * peak_flops_per_second) if peak_flops_per_second else 0.0
    bubble = (stages.count - 1) / (stages.chunks * stages.microbatches)
    return (compute + communication) * (1 + bubble)


def _passes_over_data(zero: int, microbatches: int) -> float:
    """Traffic over the data axis in a step, in units of one all-reduce of the gradients."""
    return {3: 1.5 * microbatches, 2: (1 + microbatches) / 2}.get(zero, 1.0)
