"""Adam optimizer step: gradient reductions over ranks that share a parameter, clipping by the global norm, update.

Source: Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015; Loshchilov, Hutter, "Decoupled weight decay
regularization", ICLR 2019; Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML
2013 (clipping by the global norm).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import ALL_AXES, Axis
from quadrille.algorithms.schedule.ops import AllReduce, Kernel, Op, OverlapName, Pointwise
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.tensors import DType, Tensor
from quadrille.algorithms.training.context import CONTEXT
from quadrille.algorithms.training.layers import Parameter
from quadrille.algorithms.training.scheme import ONE

Update = Callable[[Parameter], Sequence[Op | Repeat]]
"""Function that returns ops of a parameter."""
STEP = "step"
NORM, SQUARE = "norm", "square"
DEFAULT_RATE, DEFAULT_WIDTH = 1e-3, 128


@dataclass(frozen=True, slots=True)
class Adam:
    """Hyperparameters of the optimizer.

    Parameters
    ----------
    rate : learning rate
    beta1, beta2 : decay rates of the moments of the gradient
    epsilon : term added to the denominator
    decay : weight decay, decoupled from the gradient
    clip : largest global gradient norm; 0 for no clipping
    """

    rate: float = DEFAULT_RATE
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rate", "epsilon"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name)}: a number above 0 is accepted")
        for name in ("decay", "clip"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} {getattr(self, name)}: a number from 0 is accepted")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: a number from 0 and below 1 is accepted")

    @property
    def scalars(self) -> tuple[tuple[str, float], ...]:
        return tuple((name, getattr(self, name)) for name in ("rate", "beta1", "beta2", "epsilon", "decay"))


def moment_names(parameter: str) -> tuple[str, str]:
    """Names of the two moments that Adam keeps of a parameter."""
    return f"mean of {parameter}", f"square of {parameter}"


def is_moment(name: str) -> bool:
    """Whether a tensor is a moment of a parameter.

    >>> [is_moment(name) for name in ("L1 W", *moment_names("L1 W"))]
    [False, True, True]
    """
    return name.startswith(("mean of ", "square of "))


def moments(parameter: Parameter) -> tuple[Tensor, Tensor]:
    """The moments, distributed like the parameter."""
    first, second = moment_names(parameter.name)
    tensor = replace(parameter.stored, shard_of=None)
    return replace(tensor, name=first), replace(tensor, name=second)


def optimizer_tensors(parameters: Sequence[Parameter], adam: Adam, statistics: DType | None = None) -> list[Tensor]:
    """Gradients, moments and, with clipping, squared norms, in the dtype of statistics."""
    tensors: list[Tensor] = []
    for parameter in parameters:
        tensors += [parameter.gradient_tensor, *moments(parameter)]
    if adam.clip:
        names = (NORM, SQUARE, *map(_squares, _cuts(parameters)))
        tensors += [Tensor(name, ONE, ONE, dtype=statistics) for name in names]
    return tensors


def zero_moments(parameters: Sequence[Parameter]) -> Program:
    """Ops that zero the moments before the first step; moments in host memory are part of the state instead."""
    return for_each_parameter(
        [parameter for parameter in parameters if not parameter.buckets],
        lambda parameter: [
            Pointwise(name=f"zero {tensor.name}", function="zero", into=tensor.name) for tensor in moments(parameter)
        ],
    )


def optimizer_step(
    parameters: Sequence[Parameter],
    adam: Adam,
    *,
    exchange: Program = (),
    counted: Sequence[Parameter] | None = None,
    across: Program = (),
    update: Update | None = None,
) -> Program:
    """Gradient reductions, clipping if requested, and the update of every parameter.

    Parameters
    ----------
    exchange : ops between reductions and clipping: the shared table's gradient, between the ends of a pipeline
    counted : parameters whose gradients this rank counts in the norm, where another stage counts some
    across : ops that reduce the squared norm over all stages
    update : ops that update a parameter; by default its one Adam kernel
    """
    sums = _in_loops(parameters, _sums)
    clipping: Program = ()
    if adam.clip:
        norm = _norm(parameters if counted is None else counted)
        clipping = (*norm, *across, *for_each_parameter(parameters, lambda parameter: [_clip(parameter, adam)]))
    updates = for_each_parameter(parameters, update or (lambda parameter: [update_parameter(parameter, adam)]))
    return (*sums, *exchange, *clipping, *updates)


def for_each_parameter(parameters: Sequence[Parameter], work: Update) -> Program:
    """The work of every parameter, once for each of its copies."""
    return _in_loops(parameters, lambda group: [op for parameter in group for op in work(parameter)])


def _in_loops(parameters: Sequence[Parameter], work: Callable[[Sequence[Parameter]], Sequence[Op | Repeat]]) -> Program:
    """The work of parameters with equal copies, once for each copy."""
    program: list[Op | Repeat] = []
    loops = dict.fromkeys((parameter.tensor.copies, parameter.tensor.first_indices) for parameter in parameters)
    for copies, first_indices in loops:
        group = [
            parameter
            for parameter in parameters
            if (parameter.tensor.copies, parameter.tensor.first_indices) == (copies, first_indices)
        ]
        body: Program = tuple(work(group))
        for loop, count in reversed(copies):
            body = (Repeat(loop, count, body, first=dict(first_indices).get(loop, 0)),)
        program += body
    return tuple(program)


def _sums(parameters: Sequence[Parameter]) -> list[Op]:
    """Gradient reductions; vectors reduced over the same axes share a bucket, since alone they only cost latency.

    Reductions of parameters that are updated in buckets begin together: an update waits for its own gradient only.

    Source: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020, 3.2.1.
    """
    buckets: dict[tuple[object, ...], list[Parameter]] = {}
    for parameter in parameters:
        vector = ONE.dimension in (parameter.tensor.rows.dimension, parameter.tensor.columns.dimension)
        key = (parameter.summed_over, parameter.gradient_dtype, parameter.tensor.dtype, parameter.tensor.stages)
        buckets.setdefault(key if vector else (parameter.name,), []).append(parameter)
    concurrent = any(parameter.buckets for parameter in parameters)
    return [_sum(bucket, axis, concurrent=concurrent) for bucket in buckets.values() for axis in bucket[0].summed_over]


def _sum(bucket: Sequence[Parameter], axis: Axis, *, concurrent: bool) -> AllReduce:
    first, *more = [parameter.gradient for parameter in bucket]
    overlap: OverlapName | None = "ogr" if axis in (bucket[0].replicas, CONTEXT) else None
    others = f" and {len(more)} more" if more else ""
    name, buffers = f"sum {first}{others} over {axis}", tuple(more)
    return AllReduce(name=name, axis=axis, buffer=first, more=buffers, overlap=overlap, concurrent=concurrent)


def _cuts(parameters: Sequence[Parameter]) -> list[tuple[Axis, ...]]:
    """Sets of axes that cut parameters; stages are reduced at the end."""
    return list(dict.fromkeys(_cut(parameter) for parameter in parameters))


def _cut(parameter: Parameter) -> tuple[Axis, ...]:
    return tuple(axis for axis in ALL_AXES if axis in parameter.tensor.cut_over and axis != "pipeline")


def _squares(axes: tuple[Axis, ...]) -> str:
    return f"squares cut over {','.join(axes) or 'nothing'}"


def _norm(parameters: Sequence[Parameter]) -> Program:
    """Squared global norm of all gradients; each element counts once, however many ranks hold it.

    Gradients that are cut over the same axes are added before the reduction over these axes.
    """
    program: Program = (Pointwise(name="zero norm", function="zero", into=NORM),)
    for axes in _cuts(parameters):
        squares = _squares(axes)
        program += (
            Pointwise(name=f"zero {squares}", function="zero", into=squares),
            *for_each_parameter([parameter for parameter in parameters if _cut(parameter) == axes], _square),
            *(AllReduce(name=f"sum {squares} over {axis}", axis=axis, buffer=squares) for axis in reversed(axes)),
            Kernel(name=f"add {squares}", function="add_to", updates=(NORM,), sources=(squares,)),
        )
    return program


def _square(parameter: Parameter) -> list[Op]:
    return [
        _square_sum(parameter),
        Kernel(
            name=f"count {parameter.gradient}",
            function="add_to",
            updates=(_squares(_cut(parameter)),),
            sources=(SQUARE,),
        ),
    ]


def _square_sum(parameter: Parameter) -> Kernel:
    """The sum of squares of a gradient.

    The kept elements of a pruned dense gradient are added like a compressed gradient, unless ranks along data share it.
    """
    name, tensor = f"square {parameter.gradient}", parameter.tensor
    if parameter.pruned is not None and tensor.kept is None and "data" not in tensor.shards:
        sources = (parameter.index, parameter.gradient)
        return Kernel(name=name, function="square_sum_kept", into=(SQUARE,), sources=sources)
    return Kernel(name=name, function="square_sum", into=(SQUARE,), sources=(parameter.gradient,))


def _clip(parameter: Parameter, adam: Adam) -> Kernel:
    scalars = (("limit", adam.clip),)
    name = f"clip {parameter.gradient}"
    return Kernel(name=name, function="clip", updates=(parameter.gradient,), sources=(NORM,), scalars=scalars)


def update_parameter(parameter: Parameter, adam: Adam) -> Kernel:
    """The kernel that updates a parameter and its moments."""
    first, second = moments(parameter)
    return Kernel(
        name=f"update {parameter.name}",
        function="adam",
        updates=(parameter.name, first.name, second.name),
        sources=(parameter.gradient,),
        scalars=adam.scalars,
        counter=STEP,
    )


def default_rate(width: int) -> float:
    """The default learning rate: 0.001, and less in layers wider than 128, whose sums have more terms.

    >>> default_rate(64), default_rate(1280)
    (0.001, 0.0001)
    """
    return DEFAULT_RATE * min(1.0, DEFAULT_WIDTH / width)
