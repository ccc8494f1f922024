"""MLP: the problem and the schedule of training steps of linear layers with GELU, under any parallel scheme.

    Z_i = H_{i-1} W_i + b_i        H_i = gelu(Z_i)        H_0 = X
    loss = Σ (Z_last - T)² / (2 rows · last width)

Layers alternate between normal and transposed, so nothing is redistributed.
"""

from dataclasses import dataclass, field, replace
from math import prod
from typing import get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Kernel
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import PipelineSchedule, Program
from quadrille.algorithms.schedule.schedule import Schedule, declare
from quadrille.algorithms.schedule.tensors import DType, Tensor
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.training.adam import STEP, Adam, optimizer_tensors
from quadrille.algorithms.training.architecture import check_sizes
from quadrille.algorithms.training.layers import LOSS, Layer
from quadrille.algorithms.training.microbatches import Microbatches, microbatches
from quadrille.algorithms.training.mlp_step import MlpStep
from quadrille.algorithms.training.offload import Buckets, Offload
from quadrille.algorithms.training.pipeline import V_CHUNKS, Stages
from quadrille.algorithms.training.precision import Precision, in_dtype_of_statistics
from quadrille.algorithms.training.scheme import ONE, Layout, Linear, Orientation, Scheme, sides
from quadrille.algorithms.training.sparsity import PruneMethod, Pruning, index_names, pruned_layer
from quadrille.algorithms.training.step_programs import Steps, bucket_tensors, initial_state
from quadrille.algorithms.training.zero import ParameterSharding, parameter_sharding, refuse_sharded_weights

INPUT, TARGET = "H0", "T"


@dataclass(frozen=True, slots=True, repr=False)
class Mlp(ShortRepr):
    """Training steps of an MLP.

    Parameters
    ----------
    widths : widths of the input and of every layer's output
    rows : rows of one global batch
    steps : optimizer steps, all on the same batch
    micro_batch : rows of a microbatch on each coordinate along data and z; None for one microbatch
    pipeline_schedule : rule of the order of passes on a pipeline stage (`pass_rules.py`)
    pipeline_limit : microbatches that a message-driven stage may have in flight; 0 for the number of stages
    stages : layers of each pipeline stage; empty for as even as possible
    zero : ZeRO stage 0 to 3 over data (`zero.py`)
    gradient_bytes : bytes of an accumulated gradient element in 16-bit dtypes
    offload : optimizer state in host memory (`offload.py`); None for state on the device
    sparsity : share of the elements of the layers' weight matrices that are pruned (`sparsity.py`)
    prune : which elements are kept
    sparse_states : whether gradients and optimizer states of pruned matrices are compressed

    >>> Mlp((8, 16, 4), rows=32).flops
    28672
    """

    widths: tuple[int, ...]
    rows: int
    dtype: DType = "float32"
    steps: int = 1
    gathered: Gathered = "again"
    adam: Adam = field(default_factory=Adam)
    micro_batch: int | None = None
    pipeline_schedule: PipelineSchedule = "1f1b"
    pipeline_limit: int = 0
    stages: tuple[int, ...] = ()
    zero: int = 0
    gradient_bytes: int = 4
    offload: Offload | None = None
    sparsity: float = 0.0
    prune: PruneMethod = "magnitude"
    sparse_states: bool = False

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise InputError(f"mlp {','.join(map(str, self.widths))}: at least two widths, each from 1, are accepted")
        for name in ("rows", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: a whole number from 1 is accepted")
        check_sizes(self)
        if self.dtype not in get_args(DType):
            raise InputError(f"dtype {self.dtype!r}: accepted are {', '.join(get_args(DType))}")
        ParameterSharding(self.zero, self.precision, pruning=self.pruning)

    @property
    def precision(self) -> Precision:
        return Precision(self.dtype, self.gradient_bytes)

    @property
    def pruning(self) -> Pruning:
        return Pruning(self.sparsity, self.prune, self.sparse_states)

    @property
    def layers(self) -> int:
        return len(self.widths) - 1

    @property
    def sizes(self) -> dict[str, int]:
        widths = {f"width{i}": width for i, width in enumerate(self.widths)}
        return {"rows": self.rows, "one": 1, **widths}

    @property
    def flops(self) -> int:
        """Flop of all products of the steps; the gradient of the input is not computed."""
        pairs = [width * next_width for width, next_width in zip(self.widths, self.widths[1:], strict=False)]
        return 2 * self.rows * (3 * sum(pairs) - pairs[0]) * self.steps


def orientation(layer: int) -> Orientation:
    """Orientation of a layer, counted from 0."""
    return "transposed" if layer % 2 else "normal"


def check_mlp(problem: Mlp, grid: Grid, scheme: Scheme, parts: Microbatches) -> None:
    """Checks that a grid can divide an MLP.

    Parameters
    ----------
    problem : the MLP
    grid : grid of ranks
    scheme : parallel scheme
    parts : microbatches of the batch

    Raises
    ------
    InputError : fewer rows than parts, an axis that the scheme lacks, or ZeRO 3 with a pipeline
    """
    scheme.check(grid)
    if grid.context > 1:
        raise InputError(
            f"grid context={grid.context}: context cuts sequences, and rows of linear layers have none: 1 is accepted"
        )
    for layout in (scheme.stream, scheme.inner):
        axes = [*layout.rows, *layout.finer]
        needed = prod(grid.length(row_axis) for row_axis in axes)
        if parts.last < needed:
            words = " times ".join(f"{row_axis}={grid.length(row_axis)}" for row_axis in axes)
            raise InputError(f"{parts.smallest('rows')}: at least {words}, {needed} rows, are needed")
    refuse_sharded_weights(problem.zero, grid)


def mlp_schedule(problem: Mlp, grid: Grid, scheme: Scheme) -> Schedule:
    """Returns the schedule of `steps` training steps."""
    parts = microbatches(problem.rows, problem.micro_batch, grid)
    check_mlp(problem, grid, scheme, parts)
    stages = pipeline_stages(problem, grid)
    buckets = None if problem.offload is None else Buckets(problem.offload, grid, problem.sizes)
    plan = parameter_sharding(
        grid, problem.zero, problem.precision, parts.count, problem.gathered, buckets, problem.pruning
    )
    products = [scheme.linear(_linear(problem, layer, parts)) for layer in range(problem.layers)]
    layers = [pruned_layer(product, problem.pruning) for product in products]
    loss = _loss(problem, scheme, stages)
    step = MlpStep(layers, loss, stages, Steps(plan, problem.steps, problem.adam, grid.pipeline > 1))
    statistics = problem.precision.statistics
    tensors = [
        *(tensor for layer in (*step.layers, step.loss) for tensor in layer.tensors),
        *(parameter.stored for parameter in step.parameters),
        *optimizer_tensors(step.parameters, problem.adam, statistics),
        *stages.tensors,
        *_activations(problem, scheme, parts),
        *_inputs(problem, scheme, stages, parts),
    ]
    tensors += bucket_tensors(step.parameters, plan, tensors)
    return Schedule(
        f"mlp {scheme.name}",
        problem.sizes | parts.sizes("rows") | (buckets.sizes_of(step.parameters) if buckets else {}),
        grid,
        problem.dtype,
        declare(*(in_dtype_of_statistics(parameter, statistics) for parameter in step.with_copies(tensors))),
        (INPUT, TARGET, *index_names(step.parameters)),
        (LOSS, *(name for parameter in step.parameters for name in (parameter.name, parameter.gradient))),
        step.roles(),
        state=initial_state(step.parameters, plan),
    )


def pipeline_stages(problem: Mlp, grid: Grid) -> Stages:
    """Returns the pipeline stages of a problem on a grid."""
    parts, order = microbatches(problem.rows, problem.micro_batch, grid), problem.pipeline_schedule
    chunks = V_CHUNKS if order == "zb-v" and grid.pipeline > 1 else 1
    return Stages(
        grid.pipeline, problem.layers, parts.count, chunks, order, limit=problem.pipeline_limit, sizes=problem.stages
    )


def _linear(problem: Mlp, layer: int, parts: Microbatches) -> Linear:
    number = layer + 1
    return Linear(
        f"L{number}",
        parts.part("rows"),
        Part(f"width{layer}"),
        Part(f"width{number}"),
        f"H{layer}",
        f"Z{number}",
        f"dH{layer}",
        f"dZ{number}",
        orientation(layer),
        problem.gathered,
        first=layer == 0,
    )


def layout_of(scheme: Scheme, layer: int) -> Layout:
    """Layout of the output after `layer` layers."""
    return sides(scheme, orientation(layer))[0]


def _activation(scheme: Scheme, name: str, layer: int, parts: Microbatches) -> Tensor:
    return layout_of(scheme, layer).tensor(name, parts.part("rows"), Part(f"width{layer}"))


def _activations(problem: Mlp, scheme: Scheme, parts: Microbatches) -> list[Tensor]:
    """Outputs of GELU, and the gradients of all activations."""
    last = problem.layers
    tensors = [_activation(scheme, f"dZ{layer}", layer, parts) for layer in range(1, last + 1)]
    for layer in range(1, last):
        tensors += [_activation(scheme, name, layer, parts) for name in (f"H{layer}", f"dH{layer}")]
    return tensors


def _inputs(problem: Mlp, scheme: Scheme, stages: Stages, parts: Microbatches) -> list[Tensor]:
    ends = (
        (_activation(scheme, INPUT, 0, parts), stages.at(0)),
        (_activation(scheme, TARGET, problem.layers, parts), stages.at(stages.loss_stage)),
    )
    return [replace(tensor, copies=parts.copies, stages=at) for tensor, at in ends]


def _loss(problem: Mlp, scheme: Scheme, stages: Stages) -> Layer:
    last = problem.layers
    layout = layout_of(scheme, last)
    weight = 1.0 / (problem.rows * problem.widths[-1])
    forward: Program = (
        Kernel(
            name="loss",
            function="square_error",
            into=(f"dZ{last}", LOSS),
            sources=(f"Z{last}", TARGET),
            scalars=(("weight", weight),),
        ),
        *(
            AllReduce(name=f"sum loss over {axis}", axis=axis, buffer=LOSS)
            for axis in (layout.columns, *layout.row_axes)
        ),
    )
    whole = Tensor(LOSS, ONE, ONE, copies=((STEP, problem.steps),), stages=stages.at(stages.loss_stage))
    return Layer((whole,), (), forward, ())
