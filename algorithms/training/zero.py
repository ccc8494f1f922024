"""How the numbers of a parameter are spread and carried through a step: ZeRO 1, 2 and 3, microbatches, mixed precision.

A scheme's layers read a weight W and leave its gradient dW.  Here these become:

    W                        the optimizer's weights, sharded over data from ZeRO 1 on
    W held                   what products use: W itself; or W in 16 bits, gathered over data
                             at the start of a step (1, 2), or each time it is used (3)
    dW of the microbatch     what the backward pass of one microbatch leaves
    dW held                  (ZeRO 1) the sum over microbatches, whole along data until the step ends
    dW                       the gradient that the optimizer takes, laid out as W

    ZeRO 1   gathers W, scatters dW                          2 (d-1)/d of the parameters a step
    ZeRO 2   gathers W, scatters each microbatch's dW        the same with one microbatch
    ZeRO 3   gathers W in both passes, scatters each dW      3 (d-1)/d with one microbatch

Bytes are those of the paper's table, 16, 4 + 12/d, 2 + 14/d and 16/d, but for
ZeRO 1, whose scattered gradient has a buffer beside the whole one (another
1/d of the gradient), and for what one layer uses at a time.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training
trillion parameter models", arXiv 1910.02054, sections 5 and 7.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.passes.rewriting import rename_tensors
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, Kernel, Op, Pointwise, ReduceScatter, reads
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.program import ops as ops_of
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.adam import for_each_parameter
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.precision import Precision

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class ParameterSharding:
    """What becomes of every parameter.

    Parameters
    ----------
    zero : 0 for repeated over data; 1 optimizer, 2 gradients too, 3 weights too sharded over data
    precision : the dtypes
    microbatches : of a step
    caches : whether weights that were gathered for the forward pass serve the backward pass too
    """

    zero: int
    precision: Precision
    microbatches: int = 1
    caches: bool = False

    def __post_init__(self) -> None:
        if self.zero not in STAGES:
            raise InputError(f"zero {self.zero}: accepted are {', '.join(map(str, STAGES))}")

    @property
    def shards(self) -> bool:
        return self.zero > 0

    @property
    def has_used_weights(self) -> bool:
        """Whether products use another tensor than the optimizer's weights."""
        return self.shards or self.precision.mixed

    @property
    def widens(self) -> bool:
        """Whether gradients are added up in another dtype than the backward pass leaves them in."""
        return self.precision.gradient is not None

    @property
    def accumulates(self) -> bool:
        """Whether gradients of several microbatches are added up."""
        return self.microbatches > 1

    def parameter(self, one: Parameter) -> Parameter:
        """The parameter as the optimizer has it."""
        tensor, summed_over = one.tensor, one.summed_over
        if self.shards:
            tensor = replace(tensor, sharded_over=(*tensor.shards, "data"))
            summed_over = tuple(axis for axis in summed_over if axis != "data")
        tensor = replace(tensor, dtype=self.precision.master)
        return replace(one, tensor=tensor, summed_over=summed_over, gradient_dtype=self.precision.gradient)


def parameter_sharding(
    grid: Grid, zero: int, precision: Precision, microbatches: int, gathered: Gathered
) -> ParameterSharding:
    """What becomes of parameters on a grid; where data is one long there is nothing to shard."""
    return ParameterSharding(zero if grid.data > 1 else 0, precision, microbatches, gathered == "keep")


def refuse_sharded_weights(zero: int, grid: Grid) -> None:
    """Refuse ZeRO 3 with a pipeline.

    Raises
    ------
    InputError : both are asked for
    """
    if zero == 3 and grid.pipeline > 1:
        raise InputError(
            f"zero 3 on grid pipeline={grid.pipeline}: each of the microbatches under way would gather the weights of "
            "its stage again; zero 0, 1 and 2 are accepted with a pipeline"
        )


def shard_layer(layer: Layer, plan: ParameterSharding, borrowed: Sequence[Parameter] = ()) -> Layer:
    """The layer with its parameters spread, and what carries them through its two passes.

    Parameters
    ----------
    borrowed : parameters of another layer that this one reads (the table, of the loss)
    """
    if not (plan.has_used_weights or plan.widens or plan.accumulates):
        return layer
    tensors: list[Tensor] = list(layer.tensors)
    forward, backward = layer.forward, layer.backward
    finish: list[Op] = []
    for one in layer.parameters:
        stored = plan.parameter(one)
        if plan.has_used_weights:
            tensors += _held(one, stored, plan)
            forward, backward = (
                rename_tensors(program, {one.name: used_weight(one)}) for program in (forward, backward)
            )
        if plan.zero == 3:
            forward, backward = _gathered(forward, one, plan), _gathered(backward, one, plan, " again")
        left, more = _gradient_of_a_microbatch(one, stored, plan)
        tensors += more
        backward = rename_tensors(backward, {one.gradient: left})
        finish += _finish(one, plan)
    for one in borrowed:
        if plan.has_used_weights:
            forward, backward = (
                rename_tensors(program, {one.name: used_weight(one)}) for program in (forward, backward)
            )
        if plan.zero == 3:
            forward, backward = _gathered(forward, one, plan, " for the loss"), _gathered(backward, one, plan, " again")
    parameters = tuple(plan.parameter(one) for one in layer.parameters)
    return Layer(tuple(tensors), parameters, forward, (*backward, *finish))


def used_weight(one: Parameter) -> str:
    """The tensor that products read."""
    return f"{one.name} held"


def _cast(one: Parameter) -> str:
    """The optimizer's weights in the schedule's dtype, before they are gathered."""
    return f"{one.name} cast"


def _part(one: Parameter) -> str:
    return f"{one.gradient} of the microbatch"


def _total(one: Parameter, plan: ParameterSharding) -> str:
    """Where the gradients of microbatches are added up."""
    return f"{one.gradient} held" if plan.zero == 1 else one.gradient


def _held(one: Parameter, stored: Parameter, plan: ParameterSharding) -> Iterator[Tensor]:
    once = () if plan.zero == 3 and not plan.caches else one.tensor.copies
    yield replace(
        one.tensor, name=used_weight(one), copies=once, first_indices=one.tensor.first_indices if once else ()
    )
    if plan.shards and plan.precision.mixed:
        cast = replace(stored.tensor, name=_cast(one), dtype=None)
        yield cast if plan.zero == 3 else replace(cast, copies=(), first_indices=())


def _gathered(program: Program, one: Parameter, plan: ParameterSharding, suffix: str = "") -> Program:
    """The program with the weights gathered over data before their first use."""
    name = used_weight(one)
    for position, entry in enumerate(program):
        inner = ops_of(entry.body) if isinstance(entry, Repeat) else iter((entry,))
        if any(name in reads(op) for op in inner):
            source = _cast(one) if plan.precision.mixed else one.name
            gather = AllGather(name=f"gather {name}{suffix}", axis="data", source=source, into=name, overlap="oag")
            return (*program[:position], gather, *program[position:])
    return program


def _gradient_of_a_microbatch(one: Parameter, stored: Parameter, plan: ParameterSharding) -> tuple[str, list[Tensor]]:
    """The tensor that the backward pass writes, and the tensors from there to the gradient that is added up."""
    whole = replace(one.tensor, copies=(), first_indices=())
    wide = plan.precision.gradient
    found: list[Tensor] = []
    if plan.zero == 1:
        found.append(replace(one.tensor, name=_total(one, plan), dtype=wide))
    if not (plan.zero >= 2 or plan.accumulates or plan.widens):
        return _total(one, plan), found
    found.append(replace(whole, name=_part(one)))
    if plan.zero >= 2:
        shard = replace(stored.tensor, copies=(), first_indices=(), dtype=wide)
        found += [replace(whole, name=f"{_part(one)} widened", dtype=wide)] if plan.widens else []
        found += [replace(shard, name=f"{_part(one)} scattered")] if plan.accumulates else []
    return _part(one), found


def _finish(one: Parameter, plan: ParameterSharding) -> Iterator[Op]:
    """From what the backward pass of a microbatch leaves to the gradient that is added up."""
    source, total = _part(one), _total(one, plan)
    if plan.zero >= 2:
        if plan.widens:
            yield Kernel(name=f"widen {one.gradient}", function="cast", into=(f"{source} widened",), sources=(source,))
            source += " widened"
        into = f"{_part(one)} scattered" if plan.accumulates else total
        yield ReduceScatter(
            name=f"scatter {one.gradient} over data", axis="data", source=source, into=into, overlap="ors"
        )
        source = into
    if plan.accumulates:
        yield Kernel(name=f"add {one.gradient}", function="add_to", updates=(total,), sources=(source,))
    elif plan.widens and plan.zero < 2:
        yield Kernel(name=f"widen {one.gradient}", function="cast", into=(total,), sources=(source,))


def gather_weights(parameters: Sequence[Parameter], plan: ParameterSharding) -> Program:
    """What products use of the weights that the last step left, and nothing in what gradients are added to."""
    return for_each_parameter(parameters, lambda one: [*_begin(one, plan)])


def _begin(one: Parameter, plan: ParameterSharding) -> Iterator[Op]:
    if plan.precision.mixed:
        into = _cast(one) if plan.shards else used_weight(one)
        yield Kernel(name=f"cast {one.name}", function="cast", into=(into,), sources=(one.name,))
    if plan.zero in (1, 2):
        source = _cast(one) if plan.precision.mixed else one.name
        yield AllGather(name=f"gather {used_weight(one)}", axis="data", source=source, into=used_weight(one))
    if plan.accumulates:
        yield Pointwise(name=f"zero {one.gradient}", function="zero", into=_total(one, plan))


def scatter_gradients(parameters: Sequence[Parameter], plan: ParameterSharding) -> Program:
    """The gradients as the optimizer takes them, but for the sums that are still to be made."""
    if plan.zero != 1:
        return ()
    return for_each_parameter(
        parameters,
        lambda one: [
            ReduceScatter(
                name=f"scatter {one.gradient} over data", axis="data", source=_total(one, plan), into=one.gradient
            )
        ],
    )
