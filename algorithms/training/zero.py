"""ZeRO (FSDP): weights, gradients, optimizer state sharded over data and context; microbatches, mixed precision.

The layers of a scheme read a weight W and write its gradient dW.  Here these become:

    W                        master weights, sharded over data from ZeRO 1 on
    W held                   weights that products read: W itself; or W in 16 bits, gathered over data at the start of a
                             step (1, 2), or for each use (3)
    dW of the microbatch     gradient from the backward pass of one microbatch
    dW held                  (ZeRO 1) the sum over microbatches, whole along data until the step ends
    dW                       gradient that the optimizer reads, distributed like W

    ZeRO 1   gathers W, scatters dW                          2 (d-1)/d of the parameters a step
    ZeRO 2   gathers W, scatters each microbatch's dW        the same with one microbatch
    ZeRO 3   gathers W in both passes, scatters each dW      3 (d-1)/d with one microbatch

Bytes are those of the paper's table, 16, 4 + 12/d, 2 + 14/d and 16/d, and what one layer uses at a time.  With float32
gradients, ZeRO 1 has 6 + 12/d, as Megatron's distributed optimizer has: the buffer of dW held stores dW, which is its
shard.  The buffer of W held stores the weights that ZeRO 1 and 2 gather.

With a context axis, d is data times context.  Gradients are scattered over context, then over data; weights are
gathered over data, then over context.  Together both send what one collective over all d ranks would send.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", arXiv 1910.02054,
sections 5 and 7; NVIDIA, Megatron Core, "Distributed optimizer" (6 + 12/d bytes with bf16 weights and fp32 gradients).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.passes.rewriting import rename_tensors
from quadrille.algorithms.schedule.grid import REPLICA, Axis, Grid
from quadrille.algorithms.schedule.ops import (
    AllGather,
    Kernel,
    Op,
    OverlapName,
    Pointwise,
    ReduceScatter,
    reads,
    writes,
)
from quadrille.algorithms.schedule.program import Choice, Program, Repeat
from quadrille.algorithms.schedule.program import ops as ops_of
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.adam import for_each_parameter
from quadrille.algorithms.training.context import CONTEXT
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.offload import Buckets, is_vector
from quadrille.algorithms.training.precision import Precision
from quadrille.algorithms.training.small_weights import SmallWeight
from quadrille.algorithms.training.sparsity import (
    NO_PRUNING,
    Pruning,
    compress,
    compressed,
    expand,
    index_tensor,
    mask,
)

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class ParameterSharding:
    """Sharding and precision of every parameter.

    Parameters
    ----------
    zero : ZeRO stage over data: 0 replicated; 1 optimizer, 2 gradients too, 3 weights too sharded
    precision : dtypes
    microbatches : microbatches of a step
    caches : whether weights gathered for the forward pass serve the backward pass too
    buckets : buckets of parameters whose optimizer state is in host memory; None for state on the device
    pruning : pruned matrices, and whether their states are compressed (`sparsity.py`)
    axes : axes over which states are sharded, outermost first: data, and context if it is longer than 1
    alone : axes of parameters with one rank; context counts with data
    """

    zero: int
    precision: Precision
    microbatches: int = 1
    caches: bool = False
    buckets: Buckets | None = None
    pruning: Pruning = NO_PRUNING
    axes: tuple[Axis, ...] = ("data",)
    alone: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        if self.zero not in STAGES:
            raise InputError(f"zero {self.zero}: accepted are {', '.join(map(str, STAGES))}")

    @property
    def shards(self) -> bool:
        """Whether anything is sharded over data."""
        return self.zero > 0

    @property
    def has_used_weights(self) -> bool:
        """Whether products read another tensor than the master weights."""
        return self.shards or self.separates

    @property
    def separates(self) -> bool:
        """Whether no memory of the used weights can store the master weights: another dtype, or host memory."""
        return self.precision.mixed or self.buckets is not None

    @property
    def gathers_in_place(self) -> bool:
        """Whether the weights that a rank gathers once a step are stored inside the gathered weights."""
        return self.zero in (1, 2)

    @property
    def widens(self) -> bool:
        """Whether gradients are accumulated in another dtype than the backward pass writes."""
        return self.precision.gradient is not None

    @property
    def accumulates(self) -> bool:
        """Whether gradients of several microbatches are accumulated."""
        return self.microbatches > 1

    @property
    def updates_on_host(self) -> bool:
        """Whether the cores of the host run Adam."""
        return self.buckets is not None and self.buckets.offload.updates_on_host

    def of(self, parameter: Parameter) -> "ParameterSharding":
        """The plan of one parameter: the optimizer state of a vector stays on the device, and a parameter that no two
        ranks share is not sharded.
        """
        plan = replace(self, zero=0) if self.zero and parameter.replicas in self.alone else self
        plan = plan if parameter.replicas == "data" else replace(plan, axes=(parameter.replicas,))
        return replace(plan, buckets=None) if self.buckets and is_vector(parameter.tensor) else plan

    def compresses(self, parameter: Parameter) -> bool:
        """Whether the optimizer stores only the kept elements of a parameter."""
        return self.pruning.compressed and parameter.pruned is not None

    def uses_other_weights(self, parameter: Parameter) -> bool:
        """Whether products read another tensor than the master weights of a parameter."""
        return self.has_used_weights or self.compresses(parameter)

    def gathered_first(self, whole: str) -> str:
        """Name of what the innermost axis gathers of a tensor, or leaves to be scattered: the tensor or its part."""
        return whole if len(self.axes) == 1 else f"{whole} over {self.axes[0]}"

    def part(self, whole: Tensor, **changes: Any) -> Iterator[Tensor]:
        """The tensor between two collectives over one axis each; none if there is one axis."""
        if len(self.axes) > 1:
            yield replace(
                whole, name=self.gathered_first(whole.name), sharded_over=(*whole.shards, self.axes[0]), **changes
            )

    def gather(self, name: str, source: str, into: str, overlap: OverlapName | None = None) -> tuple[AllGather, ...]:
        """The collectives that gather a sharded tensor, over the innermost axis first."""
        *outer, innermost = self.axes
        if not outer:
            return (AllGather(name=name, axis=innermost, source=source, into=into, overlap=overlap),)
        part, first = self.gathered_first(into), f"{name} over {innermost}"
        return (
            AllGather(name=first, axis=innermost, source=source, into=part, overlap=overlap),
            AllGather(name=name, axis=outer[0], source=part, into=into, overlap=overlap),
        )

    def scatter(
        self, gradient: str, source: str, into: str, overlap: OverlapName | None = None, *, concurrent: bool = False
    ) -> tuple[ReduceScatter, ...]:
        """The collectives that scatter the sum of a gradient, over the outermost axis first."""
        places = [source, *([self.gathered_first(source)] if len(self.axes) > 1 else ()), into]
        return tuple(
            ReduceScatter(
                name=f"scatter {gradient} over {axis}",
                axis=axis,
                source=before,
                into=after,
                overlap=overlap,
                concurrent=concurrent,
            )
            for axis, (before, after) in zip(self.axes, pairwise(places), strict=True)
        )

    def parameter(self, parameter: Parameter) -> Parameter:
        """The parameter as the optimizer stores it."""
        return self.of(parameter)._stored(parameter)

    def _stored(self, parameter: Parameter) -> Parameter:
        tensor, summed_over = parameter.tensor, parameter.summed_over
        if self.shards:
            tensor = replace(tensor, sharded_over=(*tensor.shards, *self.axes))
            summed_over = tuple(axis for axis in summed_over if axis not in self.axes)
        kept = parameter.pruned if self.compresses(parameter) else None
        in_place = self.gathers_in_place and not self.separates and not self.compresses(parameter)
        return replace(
            parameter,
            tensor=replace(
                tensor,
                dtype=self.precision.master,
                shard_of=self.gathered_first(used_weight(parameter)) if in_place else None,
                kept=kept,
            ),
            summed_over=summed_over,
            gradient_dtype=self.precision.gradient,
            gradient_shard_of=self.gathered_first(_accumulated_gradient(parameter, self)) if self.zero == 1 else None,
            buckets=self.buckets.count(replace(tensor, kept=kept)) if self.buckets is not None else 0,
        )


def parameter_sharding(
    grid: Grid,
    zero: int,
    precision: Precision,
    microbatches: int,
    gathered: Gathered,
    buckets: Buckets | None = None,
    pruning: Pruning = NO_PRUNING,
) -> ParameterSharding:
    """Sharding and precision of the parameters on a grid; a parameter of one rank along its axis is not sharded.

    Parameters
    ----------
    grid : grid of ranks
    zero : ZeRO stage, 0 to 3
    precision : dtypes of weights, gradients and moments
    microbatches : number of microbatches of a step
    gathered : whether gathered weights are kept for the backward pass or gathered again
    buckets : buckets of parameters whose optimizer state is in host memory
    pruning : how the model is pruned
    """
    keeps = gathered == "keep"
    longer: tuple[Axis, ...] = (CONTEXT,) if grid.context > 1 else ()
    axes: tuple[Axis, ...] = (*longer, "data") if grid.data > 1 or not longer else longer
    replicas = grid.length(REPLICA) if grid.folds else 1
    stage = zero if grid.data * grid.context * replicas > 1 else 0
    of_one: tuple[tuple[Axis, int], ...] = ((REPLICA, replicas), ("data", grid.data * grid.context))
    alone = tuple(axis for axis, ranks in of_one if ranks == 1)
    return ParameterSharding(stage, precision, microbatches, keeps, buckets, pruning, axes, alone)


def refuse_sharded_weights(zero: int, grid: Grid) -> None:
    """Raises InputError for ZeRO 3 with a pipeline.

    Raises
    ------
    InputError : both are asked for
    """
    if zero == 3 and grid.pipeline > 1:
        raise InputError(
            f"zero 3 on grid pipeline={grid.pipeline}: each of the microbatches under way would gather the weights of "
            "its stage again; zero 0, 1 and 2 are accepted with a pipeline"
        )


def shard_layer(layer: Layer, step_plan: ParameterSharding, borrowed: Sequence[Parameter] = ()) -> Layer:
    """Returns the layer with its parameters sharded, and with the ops that gather weights and scatter gradients.

    Parameters
    ----------
    layer : layer with whole parameters
    step_plan : sharding and precision of the parameters
    borrowed : parameters of another layer that this one reads (the table, by the loss)
    """
    pruned = any(parameter.pruned is not None for parameter in layer.parameters)
    if not (step_plan.has_used_weights or step_plan.widens or step_plan.accumulates or pruned):
        return layer
    tensors: list[Tensor] = list(layer.tensors)
    forward, backward = layer.forward, layer.backward
    for parameter, plan in ((parameter, step_plan.of(parameter)) for parameter in layer.parameters):
        stored = plan.parameter(parameter)
        tensors += [index_tensor(parameter)] if parameter.pruned is not None else []
        if plan.uses_other_weights(parameter):
            tensors += _used_weight_tensors(parameter, stored, plan)
            forward, backward = (
                rename_tensors(program, {parameter.name: used_weight(parameter)}) for program in (forward, backward)
            )
        if plan.zero == 3:
            forward, backward = (
                _gather_before_use(forward, parameter, plan),
                _gather_before_use(backward, parameter, plan, " again"),
            )
        left, more = _gradient_of_a_microbatch(parameter, stored, plan)
        tensors += more
        backward = rename_tensors(backward, {parameter.gradient: left})
        backward = _after_gradient(backward, left, tuple(_accumulate(parameter, plan, left)))
    for parameter, plan in ((parameter, step_plan.of(parameter)) for parameter in borrowed):
        if plan.has_used_weights:
            forward, backward = (
                rename_tensors(program, {parameter.name: used_weight(parameter)}) for program in (forward, backward)
            )
        if plan.zero == 3:
            forward, backward = (
                _gather_before_use(forward, parameter, plan, " for the loss"),
                _gather_before_use(backward, parameter, plan, " again"),
            )
    parameters = tuple(step_plan.parameter(parameter) for parameter in layer.parameters)
    return Layer(tuple(tensors), parameters, forward, backward)


def _after_gradient(backward: Program, gradient: str, accumulation: Program) -> Program:
    """The backward pass with ops at its end; at the end of a choice if the choice writes their gradient."""
    for position, entry in enumerate(backward):
        if isinstance(entry, Choice) and any(gradient in writes(op) for op in ops_of(entry.body)):
            whole = replace(entry, body=(*entry.body, *accumulation))
            return (*backward[:position], whole, *backward[position + 1 :])
    return (*backward, *accumulation)


def used_weight(parameter: Parameter) -> str:
    """Name of the tensor that products read."""
    return f"{parameter.name} held"


def updated_weight(parameter: Parameter, plan: ParameterSharding) -> str:
    """Name of the tensor that the update of a parameter in host memory writes for products."""
    return _cast_weight(parameter) if plan.shards else used_weight(parameter)


def _cast_weight(parameter: Parameter) -> str:
    """Name of the rank's own part of the weights that products read, before it is gathered."""
    return f"{parameter.name} cast"


def _microbatch_gradient(parameter: Parameter) -> str:
    return f"{parameter.gradient} of the microbatch"


def _accumulated_gradient(parameter: Parameter, plan: ParameterSharding) -> str:
    """Name of the tensor in which gradients of microbatches are accumulated."""
    return f"{parameter.gradient} held" if plan.zero == 1 else parameter.gradient


def _gathered_weight(parameter: Parameter, plan: ParameterSharding) -> str:
    """Name of the tensor into which weights are gathered over data."""
    return f"{parameter.name} gathered" if plan.compresses(parameter) else used_weight(parameter)


def _small_weight(parameter: Parameter, plan: ParameterSharding) -> SmallWeight | None:
    """The weights of a product in small numbers; None for a parameter that products read in the dtype."""
    products = plan.precision.products
    if not parameter.small or products == "dtype":
        return None
    names = used_weight(parameter), _cast_weight(parameter)
    return SmallWeight(parameter, *names, products, plan.zero, plan.precision.gathers_small, plan.caches)


def _used_weight_tensors(parameter: Parameter, stored: Parameter, plan: ParameterSharding) -> Iterator[Tensor]:
    if (small := _small_weight(parameter, plan)) is not None:
        smalls = {tensor.name: tensor for tensor in small.tensors(stored, plan.gathered_first(small.gathered))}
        yield from smalls.values()
        if plan.shards:
            yield from plan.part(smalls[small.gathered], shard_of=small.gathered if plan.gathers_in_place else None)
        return
    once = () if plan.zero == 3 and not plan.caches else parameter.tensor.copies
    yield replace(
        parameter.tensor,
        name=used_weight(parameter),
        copies=once,
        first_indices=parameter.tensor.first_indices if once else (),
        value_of=parameter.name if plan.buckets is not None and not plan.shards else None,
    )
    gathered = _gathered_weight(parameter, plan)
    if plan.shards:
        whole = replace(parameter.tensor, name=used_weight(parameter), copies=once)
        first_indices = parameter.tensor.first_indices if once else ()
        owner = used_weight(parameter) if plan.gathers_in_place else None
        yield from plan.part(whole, first_indices=first_indices, shard_of=owner)
    if plan.shards and plan.compresses(parameter):
        yield compressed(parameter, gathered, copies=(), first_indices=())
    if plan.shards and plan.separates:
        value = parameter.name if plan.buckets is not None else None
        cast = replace(stored.tensor, name=_cast_weight(parameter), dtype=None, value_of=value)
        in_place = plan.gathers_in_place
        if plan.compresses(parameter) and plan.buckets is None and in_place:
            cast = replace(cast, copies=(), first_indices=())
        elif plan.compresses(parameter):
            in_place = False  # layers share the gathered weights, and each keeps its own weights from the last update
        yield replace(cast, shard_of=plan.gathered_first(gathered) if in_place else None)


def _gather_before_use(program: Program, parameter: Parameter, plan: ParameterSharding, suffix: str = "") -> Program:
    """The program with the weights gathered over data before their first use."""
    name = used_weight(parameter)
    for position, entry in enumerate(program):
        inner = ops_of(entry.body) if isinstance(entry, Repeat) else iter((entry,))
        if any(name in reads(op) for op in inner):
            if isinstance(entry, Choice):
                whole = replace(entry, body=_gather_before_use(entry.body, parameter, plan, suffix))
                return (*program[:position], whole, *program[position + 1 :])
            source = _cast_weight(parameter) if plan.separates else parameter.name
            small = _small_weight(parameter, plan)
            into = _gathered_weight(parameter, plan) if small is None else small.gathered
            gathers = plan.gather(f"gather {name}{suffix}", source, into, "oag")
            fill: Program = (expand(parameter, into, name, suffix),) if plan.compresses(parameter) else ()
            if small is not None:
                fill = tuple(small.fill(suffix))
            return (*program[:position], *gathers, *fill, *program[position:])
    return program


def _gradient_of_a_microbatch(
    parameter: Parameter, stored: Parameter, plan: ParameterSharding
) -> tuple[str, list[Tensor]]:
    """Tensor that the backward pass writes, and the tensors from there to the accumulated gradient."""
    whole = replace(parameter.tensor, copies=(), first_indices=())
    wide = plan.precision.gradient
    if plan.compresses(parameter):
        return _microbatch_gradient(parameter), [*_compressed_gradients(parameter, stored, plan)]
    tensors: list[Tensor] = []
    if plan.zero == 1:
        accumulated = replace(parameter.tensor, name=_accumulated_gradient(parameter, plan), dtype=wide)
        tensors += [accumulated, *plan.part(accumulated, shard_of=accumulated.name)]
    if not (plan.zero >= 2 or plan.accumulates or plan.widens):
        return _accumulated_gradient(parameter, plan), tensors
    tensors.append(replace(whole, name=_microbatch_gradient(parameter)))
    if plan.zero >= 2:
        shard = replace(stored.tensor, copies=(), first_indices=(), dtype=wide, shard_of=None)
        widened = replace(whole, name=f"{_microbatch_gradient(parameter)} widened", dtype=wide)
        tensors += [widened] if plan.widens else []
        tensors += plan.part(widened if plan.widens else tensors[0])
        tensors += [replace(shard, name=f"{_microbatch_gradient(parameter)} scattered")] if plan.accumulates else []
    return _microbatch_gradient(parameter), tensors


def _compressed_gradients(parameter: Parameter, stored: Parameter, plan: ParameterSharding) -> Iterator[Tensor]:
    """The dense gradient of a microbatch, and the compressed tensors from there to the accumulated gradient."""
    wide, name = plan.precision.gradient, _microbatch_gradient(parameter)
    yield replace(parameter.tensor, name=name, copies=(), first_indices=())
    if plan.zero == 1:
        yield compressed(parameter, _accumulated_gradient(parameter, plan), dtype=wide)
    if plan.zero >= 2:
        yield compressed(parameter, f"{name} compressed", copies=(), first_indices=(), dtype=wide)
        if plan.accumulates:
            shard = replace(stored.tensor, copies=(), first_indices=(), dtype=wide, shard_of=None)
            yield replace(shard, name=f"{name} scattered")


def _accumulate_compressed(parameter: Parameter, plan: ParameterSharding) -> Iterator[Op]:
    """Ops from the dense gradient of a microbatch to the compressed accumulated gradient."""
    dense, total = _microbatch_gradient(parameter), _accumulated_gradient(parameter, plan)
    if plan.zero < 2:
        yield compress(parameter, dense, total, add=plan.accumulates)
        return
    source, into = f"{dense} compressed", f"{dense} scattered" if plan.accumulates else total
    yield compress(parameter, dense, source, add=False)
    yield from plan.scatter(parameter.gradient, source, into, "ors")
    if plan.accumulates:
        yield Kernel(name=f"add {parameter.gradient}", function="add_to", updates=(total,), sources=(into,))


def _accumulate(parameter: Parameter, plan: ParameterSharding, left: str) -> Iterator[Op]:
    """Ops from the gradient of a microbatch to the accumulated gradient.

    Parameters
    ----------
    left : tensor that the backward pass writes
    """
    if plan.compresses(parameter):
        yield from _accumulate_compressed(parameter, plan)
        return
    yield from mask(parameter, left)
    source, total = _microbatch_gradient(parameter), _accumulated_gradient(parameter, plan)
    if plan.zero >= 2:
        if plan.widens:
            yield Kernel(
                name=f"widen {parameter.gradient}", function="cast", into=(f"{source} widened",), sources=(source,)
            )
            source += " widened"
        into = f"{_microbatch_gradient(parameter)} scattered" if plan.accumulates else total
        yield from plan.scatter(parameter.gradient, source, into, "ors")
        source = into
    if plan.accumulates:
        yield Kernel(name=f"add {parameter.gradient}", function="add_to", updates=(total,), sources=(source,))
    elif plan.widens and plan.zero < 2:
        yield Kernel(name=f"widen {parameter.gradient}", function="cast", into=(total,), sources=(source,))


def gather_weights(parameters: Sequence[Parameter], plan: ParameterSharding) -> Program:
    """Ops from the weights of the last step to those that products read; accumulated gradients are zeroed."""
    return for_each_parameter(parameters, lambda parameter: [*_prepare_weights(parameter, plan.of(parameter))])


def _prepare_weights(parameter: Parameter, plan: ParameterSharding) -> Iterator[Op]:
    small = _small_weight(parameter, plan)
    if small is not None:
        yield from small.prepare(plan.gather(f"gather {small.held}", small.own, small.gathered, "opg"))
    else:
        yield from _prepare_wide_weights(parameter, plan)
    if plan.accumulates:
        yield Pointwise(name=f"zero {parameter.gradient}", function="zero", into=_accumulated_gradient(parameter, plan))


def _prepare_wide_weights(parameter: Parameter, plan: ParameterSharding) -> Iterator[Op]:
    compresses = plan.compresses(parameter)
    if plan.precision.mixed and plan.buckets is None and (plan.shards or not compresses):
        into = _cast_weight(parameter) if plan.shards else used_weight(parameter)
        yield Kernel(name=f"cast {parameter.name}", function="cast", into=(into,), sources=(parameter.name,))
    gathered = _gathered_weight(parameter, plan)
    if plan.zero in (1, 2):
        source = _cast_weight(parameter) if plan.separates else parameter.name
        yield from plan.gather(f"gather {used_weight(parameter)}", source, gathered, "opg")
    if compresses and plan.zero < 3 and (plan.shards or plan.buckets is None):
        yield expand(parameter, gathered if plan.shards else parameter.name, used_weight(parameter))


def scatter_gradients(parameters: Sequence[Parameter], plan: ParameterSharding) -> Program:
    """Ops that leave the gradients as the optimizer reads them, before reductions."""
    if plan.zero != 1:
        return ()
    return for_each_parameter(
        [parameter for parameter in parameters if plan.of(parameter).zero == 1],
        lambda parameter: plan.of(parameter).scatter(
            parameter.gradient,
            _accumulated_gradient(parameter, plan),
            parameter.gradient,
            "ogr",
            concurrent=plan.buckets is not None,
        ),
    )
