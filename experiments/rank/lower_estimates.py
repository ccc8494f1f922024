"""Bounds and estimates of a configuration's step time and memory, without its schedule.

    bound    = products at the best rate of the device, once the last stage of the pipeline has its first input
    estimate = (products at the best rate of the device + communication of layers) · (1 + pipeline bubble)
    bytes    = weights, gradients and optimizer states of the layers on the device
    activation bytes = tensors that layers keep for the backward pass, of the microbatches in flight on the first stage

No configuration is faster than its bound.  The communication of the estimate is that of the 4D model
(`quadrille.algorithms.analysis.axonn`), with the changes by a pipeline and ZeRO: weights are gathered for every
microbatch.  All schemes use the communication of 4D, so the estimate only orders the configurations of one scheme for
evaluation; schemes are never compared by it.
"""

from collections.abc import Mapping, Sequence

from quadrille.algorithms.analysis.axonn import MODELLED, ProductSizes, block_seconds
from quadrille.algorithms.schedule.grid import EXPERT, REPLICA, Axis
from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType
from quadrille.algorithms.training.flops import least_layer_flops
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.recompute import WHOLE_LAYERS
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.simulator.machine.compute_model import TABLE_DTYPES
from quadrille.topologies.machines.machine import HostLink, Machine

MASTER_AND_MOMENTS = 12
ATTENTION_PRODUCTS = 2
"""The products of a layer before those of its MLP."""
GATHERED_ONCE = 2 / 3
"""The traffic of weights that are gathered once, as a share of that of weights that are gathered twice; gradients are
scattered once."""
BUBBLE_OF_SPLIT = 1 / 3
"""The bubble of ZB-H1, F + B - W, as a share of that of 1F1B, F + B + W, if F, B and W take the same time."""


def least_bytes(experiment: TrainingExperiment, shape: ModelShape) -> float:
    """A lower bound of the memory of a rank [B]."""
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    item = ITEM_BYTES["uint8" if problem.fp8_param_gather else problem.dtype]
    data_ranks = grid.data * grid.context
    gradients = problem.gradient_bytes if problem.precision.mixed else item
    states = MASTER_AND_MOMENTS if problem.precision.mixed else 2 * item
    if problem.offload is not None:
        states = 0
    state_bytes: tuple[float, float, float] = (item, gradients, states)
    if problem.pruning.compressed:
        state_bytes = _compressed_bytes(problem, item, gradients, states)

    def bytes_of_weight(copies: int) -> float:
        """Bytes for each weight of a rank, where a number of ranks hold the same weights."""
        return sum(
            size / (copies if problem.zero >= begin else 1) for size, begin in zip(state_bytes, (3, 2, 1), strict=True)
        )

    dense, of_experts = _dense_and_expert_weights(shape)
    replicas = grid.length(REPLICA) if grid.expert > 1 else data_ranks
    per_rank = bytes_of_weight(replicas) * of_experts / (grid.expert * grid.pipeline)
    return bytes_of_weight(data_ranks) * dense / (grid.size // data_ranks) + per_rank


def least_activation_bytes(experiment: TrainingExperiment, shape: ModelShape) -> float:
    """A lower bound of the activations that a rank of the first stage keeps for the backward pass [B].

    A layer keeps the inputs of its products, its keys, queries and values, and the input of its activation function;
    its own input alone if whole layers are recomputed.  Experts are left out.

    Source: Korthikanti et al., arXiv 2205.05198, section 4; Narayanan et al., arXiv 2104.04473, section 2.2, for the
    microbatches in flight.
    """
    problem, grid, stages = experiment.problem, experiment.grid, experiment.stages
    assert isinstance(problem, Gpt)
    if problem.stages:
        return 0.0
    columns = shape.hidden
    if problem.recompute not in WHOLE_LAYERS:
        columns = 2 * shape.hidden + shape.attended
        columns += 0 if shape.experts is not None else shape.qkv + shape.up + shape.mlp
    item = 1 if problem.products != "dtype" else ITEM_BYTES[problem.dtype]
    rows = experiment.microbatches.last * shape.sequence / (grid.data * grid.z * grid.context)
    layers = shape.layers // stages.count
    return _in_flight(experiment) * layers * item * rows * columns / (grid.x * grid.y)


def _in_flight(experiment: TrainingExperiment) -> float:
    """Microbatches whose activations the first stage keeps at once, at least."""
    problem, stages = experiment.problem, experiment.stages
    assert isinstance(problem, Gpt)
    match problem.pipeline_schedule:
        case "gpipe":
            return stages.microbatches
        case "message-driven":
            return 1
        case "interleaved":
            return min(stages.microbatches, stages.count + (stages.count - 1) / stages.chunks)
        case _:
            return min(stages.microbatches, stages.count)


def _dense_and_expert_weights(shape: ModelShape) -> tuple[int, int]:
    """Weights of the products that every rank holds a part of, and of the experts, which ranks share out."""
    experts = shape.experts
    if experts is None:
        return shape.layers * shape.products, 0
    with_experts, up_columns = experts.routed_layers(shape.layers), shape.architecture.up_columns
    beside = experts.parameters(shape.hidden, 0, up_columns)
    of_experts = experts.parameters(shape.hidden, experts.count, up_columns) - beside
    dense = shape.layers * shape.products + with_experts * (beside - shape.hidden * (shape.up + shape.mlp))
    return dense, with_experts * of_experts


def _compressed_bytes(problem: Gpt, item: int, gradients: int, states: int) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states of a pruned parameter; with ZeRO 3, of kept weights only."""
    share = problem.kept_share
    master = 0 if problem.precision.mixed or problem.offload is not None else item
    return item * (share if problem.zero == 3 else 1), gradients * share, (states + master) * share


def best_flops_per_second(machine: Machine, dtype: DType, products: Products = "dtype") -> float | None:
    """The rate of products that no product of a GPU exceeds [flop/s]; None if the machine has no rate of the dtype.

    Parameters
    ----------
    products : precision of the products of linear layers
    """
    if products != "dtype":
        from quadrille.topologies.small_rates import small_rate

        return small_rate(machine, products).peak
    device = machine.device
    peak = device.peak_flops_per_second.get(dtype)
    is_measured = any(row.dtype == dtype for row in device.gemm)
    if peak is None or is_measured or device.achieved is None:
        return peak
    if (table := device.measured_kernels) and dtype in TABLE_DTYPES:
        from quadrille.topologies.nodes.kernel_tables import best_product_share
        from quadrille.topologies.nodes.training_factors import training_factors

        return peak * best_product_share(table) / training_factors(table).product
    return peak * device.achieved.product_share


def least_seconds(experiment: TrainingExperiment, flops_per_second: float | None) -> float:
    """A lower bound of the time of a step [s].

    The last stage has its share of the layers and the logits.  It begins after the forward pass of one microbatch
    through the first chunk of all other stages.  In a V pipeline, the first stage has the logits.

    Parameters
    ----------
    flops_per_second : rate of products that no product of a GPU exceeds [flop/s]; None if unknown
    """
    problem, stages, ranks = experiment.problem, experiment.stages, experiment.grid.size
    assert isinstance(problem, Gpt)
    if flops_per_second is None:
        return 0.0
    seconds = experiment.step_flops.hardware / (ranks * flops_per_second)
    if stages.v_placed or len(set(stages.part_sizes)) > 1:
        return seconds
    chunk_flops = least_layer_flops(problem.shape, experiment.microbatches.rows) * stages.part_sizes[0]
    return seconds + (stages.count - 1) * chunk_flops / (ranks // stages.count * flops_per_second)


def estimated_seconds(
    experiment: TrainingExperiment,
    shape: ModelShape,
    products: Sequence[ProductSizes],
    bandwidths: Mapping[Axis, float],
    flops_per_second: float | None,
) -> float:
    """The estimated time of a step [s], comparable with other configurations of the same scheme.

    Parameters
    ----------
    products : products of a layer
    bandwidths : bandwidth of the rings of each axis [B/s]
    flops_per_second : best rate of a GPU [flop/s]; None if unknown, which leaves out the products
    """
    problem, grid, stages = experiment.problem, experiment.grid, experiment.stages
    assert isinstance(problem, Gpt)
    block = block_seconds(
        problem.batch * shape.sequence / (grid.data * grid.context),
        products if shape.experts is None else products[:ATTENTION_PRODUCTS],
        {axis: grid.length(axis) for axis in MODELLED} | {"data": grid.data * grid.context},
        bandwidths,
        recomputed=problem.recompute in WHOLE_LAYERS,
        gradient_bytes=problem.gradient_bytes * problem.kept_share,
    )
    of_weights = stages.microbatches * (GATHERED_ONCE if problem.gathered == "keep" else 1)
    traffic_factors = {"z": of_weights, "data": _passes_over_data(problem.zero, stages.microbatches)}
    by_axis = {axis: shape.layers / stages.count * traffic_factors.get(axis, 1) * block[axis] for axis in MODELLED}
    compute = experiment.step_flops.hardware / (grid.size * flops_per_second) if flops_per_second else 0.0
    sums, others = by_axis["x"] + by_axis["y"], by_axis["z"] + by_axis["data"]
    if shape.experts is not None:
        others += _expert_seconds(experiment, shape, bandwidths)
    is_beside = bool(experiment.execution.overlaps)  # the sums of the forward pass lie open
    seconds = max(compute, others + sums / 2) + sums / 2 if is_beside else compute + others + sums
    bubble = (stages.count - 1) / (stages.chunks * stages.microbatches) * (BUBBLE_OF_SPLIT if stages.splits else 1)
    return seconds * (1 + bubble)


def _expert_seconds(experiment: TrainingExperiment, shape: ModelShape, bandwidths: Mapping[Axis, float]) -> float:
    """The estimated time of the communication of experts on a stage [s]: rows sent, and gradients summed over replicas.

    Rows are sent twice forward and twice backward, and twice more if layers are recomputed.
    """
    problem, grid, experts = experiment.problem, experiment.grid, shape.experts
    assert isinstance(problem, Gpt) and experts is not None
    _, weights = _dense_and_expert_weights(shape)
    tokens, replicas = problem.batch * shape.sequence / grid.stage_size, grid.stage_size // grid.expert
    layers = experts.routed_layers(shape.layers)
    rows_bytes = tokens * experts.chosen * shape.hidden * ITEM_BYTES[problem.dtype] * (1 - 1 / grid.expert)
    sent = (6 if problem.recompute == "full" else 4) * layers * rows_bytes
    summed = 2 * (1 - 1 / replicas) * problem.gradient_bytes * weights / grid.expert
    summed *= _passes_over_data(problem.zero, experiment.stages.microbatches)
    over: tuple[Axis, Axis] = (EXPERT, REPLICA) if grid.expert > 1 else ("data", "data")
    return (sent / bandwidths[over[0]] + summed / bandwidths[over[1]]) / grid.pipeline


def offload_seconds(experiment: TrainingExperiment, shape: ModelShape, link: HostLink | None) -> float:
    """The estimated time of the copies of an offloaded optimizer, in one direction [s]; 0 without offload."""
    problem, grid = experiment.problem, experiment.grid
    assert isinstance(problem, Gpt)
    if problem.offload is None or link is None:
        return 0.0
    parameters = shape.layers * shape.products / (grid.size // grid.data * (grid.data if problem.zero else 1))
    bytes_of_weight = problem.gradient_bytes if problem.offload.updates_on_host else MASTER_AND_MOMENTS
    return problem.kept_share * parameters * bytes_of_weight * link.gpus / link.bytes_per_second


def _passes_over_data(zero: int, microbatches: int) -> float:
    """The traffic over the data axis in a step, in units of an all-reduce of the gradients."""
    return {3: 1.5 * microbatches, 2: (1 + microbatches) / 2}.get(zero, 1.0)
