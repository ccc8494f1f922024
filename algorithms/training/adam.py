"""The end of a training step: gradients summed over the ranks that share a parameter, clipped, and Adam.

Source: Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015;
Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019; Pascanu,
Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013 (clipping by the global norm).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.ops import AllReduce, Kernel, Op, Pointwise
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.tensors import DType, Tensor
from quadrille.algorithms.training.layers import Parameter
from quadrille.algorithms.training.scheme import ONE

STEP = "step"
NORM, SQUARE = "norm", "square"
DEFAULT_RATE, DEFAULT_WIDTH = 1e-3, 128


@dataclass(frozen=True, slots=True)
class Adam:
    """The optimizer's numbers.

    Parameters
    ----------
    rate : of learning
    beta1, beta2 : of the running means of gradients and of their squares
    decay : of weights, beside the gradient
    clip : the largest norm of all gradients together; 0 for none
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
    """The running means that Adam keeps of a parameter's gradient and of its square."""
    return f"mean of {parameter}", f"square of {parameter}"


def moments(parameter: Parameter) -> tuple[Tensor, Tensor]:
    """These means, laid out as the parameter."""
    first, second = moment_names(parameter.name)
    return replace(parameter.tensor, name=first), replace(parameter.tensor, name=second)


def optimizer_tensors(parameters: Sequence[Parameter], adam: Adam, statistics: DType | None = None) -> list[Tensor]:
    """Gradients, moments and, for clipping, the squares of norms, in the dtype of statistics."""
    found: list[Tensor] = []
    for one in parameters:
        found += [replace(one.tensor, name=one.gradient, dtype=one.gradient_dtype), *moments(one)]
    if adam.clip:
        names = (NORM, SQUARE, *map(_squares, _cuts(parameters)))
        found += [Tensor(name, ONE, ONE, dtype=statistics) for name in names]
    return found


def zero_moments(parameters: Sequence[Parameter]) -> Program:
    """Before the first step."""
    return for_each_parameter(
        parameters,
        lambda one: [
            Pointwise(name=f"zero {tensor.name}", function="zero", into=tensor.name) for tensor in moments(one)
        ],
    )


def optimizer_step(
    parameters: Sequence[Parameter],
    adam: Adam,
    *,
    exchange: Program = (),
    counted: Sequence[Parameter] | None = None,
    across: Program = (),
) -> Program:
    """Sums of gradients, clipping where it is asked for, and the update of every parameter.

    Parameters
    ----------
    exchange : ops between the sums and the clipping: the shared table's gradient, between the ends of a pipeline
    counted : parameters whose gradients this rank counts in the norm, where another stage counts some
    across : ops that add the squares of the norm over all stages
    """
    sums = _in_loops(parameters, _sums)
    clipping: Program = ()
    if adam.clip:
        norm = _norm(parameters if counted is None else counted)
        clipping = (*norm, *across, *for_each_parameter(parameters, lambda one: [_clip(one, adam)]))
    return (*sums, *exchange, *clipping, *for_each_parameter(parameters, lambda one: [_update(one, adam)]))


def for_each_parameter(parameters: Sequence[Parameter], work: Callable[[Parameter], list[Op]]) -> Program:
    """The work of every parameter, once for each of its copies."""
    return _in_loops(parameters, lambda alike: [op for one in alike for op in work(one)])


def _in_loops(parameters: Sequence[Parameter], work: Callable[[Sequence[Parameter]], list[Op]]) -> Program:
    """The work of parameters that have as many copies, once for each copy."""
    program: list[Op | Repeat] = []
    loops = dict.fromkeys((one.tensor.copies, one.tensor.first_indices) for one in parameters)
    for copies, begins in loops:
        alike = [one for one in parameters if (one.tensor.copies, one.tensor.first_indices) == (copies, begins)]
        body: Program = tuple(work(alike))
        for loop, count in reversed(copies):
            body = (Repeat(loop, count, body, first=dict(begins).get(loop, 0)),)
        program += body
    return tuple(program)


def _sums(parameters: Sequence[Parameter]) -> list[Op]:
    """Sums of gradients.  Vectors that are summed alike go together in a bucket, as alone they cost latency only.

    Source: Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020, 3.2.1.
    """
    buckets: dict[tuple[object, ...], list[Parameter]] = {}
    for one in parameters:
        vector = ONE.dimension in (one.tensor.rows.dimension, one.tensor.columns.dimension)
        alike = (one.summed_over, one.gradient_dtype, one.tensor.dtype, one.tensor.stages)
        buckets.setdefault(alike if vector else (one.name,), []).append(one)
    return [_sum(bucket, axis) for bucket in buckets.values() for axis in bucket[0].summed_over]


def _sum(bucket: Sequence[Parameter], axis: Axis) -> AllReduce:
    first, *more = [one.gradient for one in bucket]
    others = f" and {len(more)} more" if more else ""
    return AllReduce(name=f"sum {first}{others} over {axis}", axis=axis, buffer=first, more=tuple(more))


def _cuts(parameters: Sequence[Parameter]) -> list[tuple[Axis, ...]]:
    """The sets of axes that cut parameters; stages are added up at the end."""
    return list(dict.fromkeys(_cut(one) for one in parameters))


def _cut(one: Parameter) -> tuple[Axis, ...]:
    return tuple(axis for axis in AXES if axis in one.tensor.cut_over and axis != "pipeline")


def _squares(axes: tuple[Axis, ...]) -> str:
    return f"squares cut over {','.join(axes) or 'nothing'}"


def _norm(parameters: Sequence[Parameter]) -> Program:
    """The square of the norm of all gradients: each element counts once, however many ranks hold it.

    Gradients that are cut over the same axes are added up before their sum over these axes is made.
    """
    program: Program = (Pointwise(name="zero norm", function="zero", into=NORM),)
    for axes in _cuts(parameters):
        squares = _squares(axes)
        program += (
            Pointwise(name=f"zero {squares}", function="zero", into=squares),
            *for_each_parameter([one for one in parameters if _cut(one) == axes], _square),
            *(AllReduce(name=f"sum {squares} over {axis}", axis=axis, buffer=squares) for axis in reversed(axes)),
            Kernel(name=f"add {squares}", function="add_to", updates=(NORM,), sources=(squares,)),
        )
    return program


def _square(one: Parameter) -> list[Op]:
    return [
        Kernel(name=f"square {one.gradient}", function="square_sum", into=(SQUARE,), sources=(one.gradient,)),
        Kernel(name=f"count {one.gradient}", function="add_to", updates=(_squares(_cut(one)),), sources=(SQUARE,)),
    ]


def _clip(one: Parameter, adam: Adam) -> Kernel:
    scalars = (("limit", adam.clip),)
    name = f"clip {one.gradient}"
    return Kernel(name=name, function="clip", updates=(one.gradient,), sources=(NORM,), scalars=scalars)


def _update(one: Parameter, adam: Adam) -> Kernel:
    first, second = moments(one)
    return Kernel(
        name=f"update {one.name}",
        function="adam",
        updates=(one.name, first.name, second.name),
        sources=(one.gradient,),
        scalars=adam.scalars,
        counter=STEP,
    )


def default_rate(width: int) -> float:
    """The default learning rate: 0.001, and less in layers wider than 128, whose sums have more terms.

    >>> default_rate(64), default_rate(1280)
    (0.001, 0.0001)
    """
    return DEFAULT_RATE * min(1.0, DEFAULT_WIDTH / width)
