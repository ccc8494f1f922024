"""Lower estimates of a configuration's step time and memory, without its schedule.

    seconds = (products at the peak rate of the device + communication of layers) · (1 + pipeline bubble)
    bytes   = weights, gradients and optimizer states of the layers, nothing else

Communication is that of the 4D model (`quadrille.algorithms.analysis.axonn`), with the
changes by a pipeline and ZeRO: weights are gathered for every microbatch.  All schemes use
the communication of 4D, so the estimate only orders the configurations of one scheme for
evaluation; schemes are never compared by it.
"""

from collections.abc import Mapping, Sequence

from quadrille.algorithms.analysis.axonn import MODELLED, ProductSizes, block_seconds
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.experiments.workloads.training import TrainingExperiment

MASTER_AND_MOMENTS = 12


def least_bytes(experiment: TrainingExperiment, shape: ModelShape) -> float:
    """A lower bound of the memory of a rank [B]."""
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    item, data_ranks = ITEM_BYTES[problem.dtype], grid.data
    gradients = problem.gradient_bytes if problem.precision.mixed else item
    states = MASTER_AND_MOMENTS if problem.precision.mixed else 2 * item
    state_bytes: tuple[float, float, float] = (item, gradients, states)
    if problem.pruning.compressed:
        state_bytes = _compressed_bytes(problem, item, gradients, states)
    bytes_of_weight = sum(
        size / (data_ranks if problem.zero >= begin else 1) for size, begin in zip(state_bytes, (3, 2, 1), strict=True)
    )
    return bytes_of_weight * shape.layers * shape.products / (grid.size // grid.data)


def _compressed_bytes(problem: Gpt, item: int, gradients: int, states: int) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states of a pruned parameter; with ZeRO 3, of kept weights only."""
    share = problem.kept_share
    master = 0 if problem.precision.mixed else item
    return item * (share if problem.zero == 3 else 1), gradients * share, (states + master) * share


def estimated_seconds(
    experiment: TrainingExperiment,
    shape: ModelShape,
    products: Sequence[ProductSizes],
    bandwidths: Mapping[Axis, float],
    peak_flops_per_second: float | None,
) -> float:
    """The estimated time of a step [s], comparable with other configurations of the same scheme.

    Parameters
    ----------
    products : products of a layer
    bandwidths : bandwidth of the rings of each axis [B/s]
    peak_flops_per_second : peak rate of a GPU [flop/s]; None if unknown, which leaves out the products
    """
    problem, grid, stages = experiment.problem, experiment.grid, experiment.stages
    assert isinstance(problem, Gpt)
    block = block_seconds(
        problem.batch * shape.sequence / grid.data,
        products,
        {axis: grid.length(axis) for axis in MODELLED},
        bandwidths,
        recomputed=problem.recompute == "full",
        gradient_bytes=problem.gradient_bytes * problem.kept_share,
    )
    traffic_factors = {"z": stages.microbatches, "data": _passes_over_data(problem.zero, stages.microbatches)}
    communication = shape.layers / stages.count * sum(traffic_factors.get(axis, 1) * block[axis] for axis in MODELLED)
    compute = experiment.step_flops.hardware / (grid.size * peak_flops_per_second) if peak_flops_per_second else 0.0
    bubble = (stages.count - 1) / (stages.chunks * stages.microbatches)
    return (compute + communication) * (1 + bubble)


def _passes_over_data(zero: int, microbatches: int) -> float:
    """The traffic over the data axis in a step, in units of an all-reduce of the gradients."""
    return {3: 1.5 * microbatches, 2: (1 + microbatches) / 2}.get(zero, 1.0)
