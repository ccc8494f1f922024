"""GPT: the problem and the schedule of transformer training steps, under any parallel scheme.

    X      = table[tokens] + positions
    layer:   N1 = norm(X)    QKV = N1 W + b      A = attention(QKV)    X2 = X + A W + b
             N2 = norm(X2)   U = N2 W + b        G = gelu(U)           X  = X2 + G W + b
    loss   = cross entropy of norm(X) tableᵀ

Llama and others differ as their architecture says (`architecture.py`).  QKV and the first MLP product are normal, the
other two transposed, so a layer ends in the layout in which it begins, and one loop body serves all layers.  Heads and
sequences are not cut, so attention needs no communication.
"""

from dataclasses import dataclass, field, replace
from math import prod, sqrt
from typing import Any, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import AllReduce, Kernel, Pointwise, Products
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.schedule.schedule import Schedule, declare
from quadrille.algorithms.schedule.tensors import DType, Tensor
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.training.adam import STEP, Adam, optimizer_tensors
from quadrille.algorithms.training.architecture import PLAIN, Architecture, check_sizes
from quadrille.algorithms.training.context import CONTEXT, ContextForm, check_context, find_context_form
from quadrille.algorithms.training.dropout import MASK, Dropout
from quadrille.algorithms.training.expert_grid import check_expert_grid
from quadrille.algorithms.training.experts import ROUTERS, STAGES, ExpertLoad, Experts
from quadrille.algorithms.training.gpt_step import GptStep, ModelLayers
from quadrille.algorithms.training.latent_attention import latent_sizes
from quadrille.algorithms.training.layers import AUXILIARY_LOSS, LOSS, Layer
from quadrille.algorithms.training.microbatches import Microbatches, microbatches
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.normalisation import Norm, normalisation
from quadrille.algorithms.training.offload import Buckets, Offload
from quadrille.algorithms.training.pipeline import V_CHUNKS, Stages
from quadrille.algorithms.training.precision import Precision, in_dtype_of_statistics
from quadrille.algorithms.training.query_key_norm import HEAD
from quadrille.algorithms.training.recompute import Attention, Recompute, find_attention, find_recompute
from quadrille.algorithms.training.scheme import ONE, Scheme, order_of_rows
from quadrille.algorithms.training.small_numbers import check_small, small_precision
from quadrille.algorithms.training.sparsity import PruneMethod, Pruning, index_names, pruned_layer
from quadrille.algorithms.training.step_programs import bucket_tensors, initial_state
from quadrille.algorithms.training.transformer import LAYER, LayerShape, RoutedExperts, transformer_layer
from quadrille.algorithms.training.vocabulary import TARGETS, TOKENS
from quadrille.algorithms.training.zero import ParameterSharding, parameter_sharding, refuse_sharded_weights

MLP_FACTOR = 4


@dataclass(frozen=True, slots=True, repr=False)
class Gpt(ShortRepr):
    """Training steps of a transformer.

    Parameters
    ----------
    layers, hidden, heads : number of layers, hidden size, query heads
    sequence : tokens of a sequence
    vocabulary : size of the vocabulary
    batch : global batch size in sequences
    dtype : element type of activations and of the weights in products
    steps : optimizer steps, each on a batch of its own
    gathered : whether gathered weights are kept for the backward pass or gathered again
    adam : optimizer
    micro_batch : sequences of a microbatch on each coordinate along data and z; None for one microbatch
    interleave : layer chunks of every pipeline stage (virtual pipeline size)
    pipeline_schedule : rule of the order of passes on a pipeline stage (`pass_rules.py`)
    pipeline_limit : microbatches that a message-driven stage may have in flight; 0 for the number of stages
    stages : layers of each pipeline stage; empty for as even as possible
    zero : ZeRO stage 0 to 3 over data (`zero.py`)
    gradient_bytes : bytes of an accumulated gradient element in 16-bit dtypes
    offload : optimizer state in host memory (`offload.py`); None for state on the device
    attention : fused attention, or unfused attention, which writes its weights to memory (`recompute.py`)
    recompute : activation recomputation (`recompute.py`)
    inner : MLP width; 0 for four times hidden
    architecture : differences from the plain GPT
    dropout : share of the elements that dropout sets to zero (`dropout.py`)
    attention_dropout : share of the attention weights, if it differs
    sparsity : share of the elements of the layers' weight matrices that are pruned (`sparsity.py`)
    prune : which elements are kept
    sparse_states : whether gradients and optimizer states of pruned matrices are compressed
    context_parallel : form of context parallelism (`context.py`)
    experts : experts in place of the dense MLP (`experts.py`); None for a dense model
    expert_load : rows that experts are expected to have in a prediction; None for even loads
    products : precision of the products of linear layers (`small_numbers.py`)
    fp8_param_gather : whether weights are stored and gathered in small numbers alone
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    batch: int
    dtype: DType = "float32"
    steps: int = 1
    gathered: Gathered = "again"
    adam: Adam = field(default_factory=Adam)
    micro_batch: int | None = None
    interleave: int = 1
    pipeline_schedule: PipelineSchedule = "1f1b"
    pipeline_limit: int = 0
    stages: tuple[int, ...] = ()
    zero: int = 0
    gradient_bytes: int = 4
    offload: Offload | None = None
    attention: Attention = "fused"
    recompute: Recompute = "none"
    inner: int = 0
    architecture: Architecture = PLAIN
    dropout: float = 0.0
    attention_dropout: float | None = None
    sparsity: float = 0.0
    prune: PruneMethod = "magnitude"
    sparse_states: bool = False
    context_parallel: ContextForm = "ring"
    experts: Experts | None = None
    expert_load: ExpertLoad | None = None
    products: Products = "dtype"
    fp8_param_gather: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary", "batch", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: a whole number from 1 is accepted")
        check_sizes(self)
        if self.inner < 0:
            raise InputError(f"inner {self.inner}: a whole number from 0 is accepted (0: {MLP_FACTOR} times hidden)")
        if self.hidden % self.heads and not self.architecture.head_columns:
            raise InputError(f"heads {self.heads}: a number that divides hidden = {self.hidden} is accepted")
        if refusal := self.architecture.refusal(self.hidden, self.heads):
            raise InputError(refusal)
        if self.dtype not in get_args(DType):
            raise InputError(f"dtype {self.dtype!r}: accepted are {', '.join(get_args(DType))}")
        check_small(
            self.products, self.dtype, gathers_small=self.fp8_param_gather, excluded=self._without_small_products
        )
        find_attention(self.attention)
        find_recompute(self.recompute)
        if self.architecture.sinks and self.attention == "unfused":
            raise InputError("attention 'unfused': a model with attention sinks accepts fused")
        find_context_form(self.context_parallel)
        ParameterSharding(self.zero, self.precision, pruning=self.pruning)
        self.dropout_of(self.batch)
        self._check_experts()

    @property
    def _without_small_products(self) -> str:
        """The first option or trait that products in small numbers exclude; empty if there is none."""
        excluded = {
            "sparsity": self.sparsity > 0,
            "offload": self.offload is not None,
        }
        return next((words for words, is_chosen in excluded.items() if is_chosen), "")

    def _check_experts(self) -> None:
        """Checks that the options of the step and of the experts go together.

        Raises
        ------
        InputError : the option that experts do not have
        """
        if self.experts is None:
            if self.expert_load is not None:
                raise InputError(f"expert-load {self.expert_load}: the model has no experts; leave it out")
            if self.recompute == "full-keep-exchange":
                raise InputError(f"recompute {self.recompute!r}: the model has no experts; full is accepted")
            return
        self.loads  # noqa: B018 - checks that each expert has a load
        self.experts.dense(self.layers)
        for words, is_chosen in (
            (f"sparsity {self.sparsity:g}", self.sparsity > 0),
            (f"offload {self.offload}", self.offload is not None),
        ):
            if is_chosen:
                raise InputError(f"{words}: no schedule has it together with experts; leave it out")

    @property
    def loads(self) -> tuple[int, ...]:
        """Expected rows of each expert, in any unit; empty for even loads."""
        return self.expert_load.of(self.experts.count) if self.expert_load and self.experts else ()

    @property
    def dense(self) -> tuple[bool, ...]:
        """Whether each layer has a dense MLP beside layers of experts; empty if all layers are alike."""
        return self.experts.dense(self.layers) if self.experts else ()

    def dropout_of(self, rows: int, context: int = 1) -> Dropout:
        """The dropout in microbatches of some sequences over all ranks.

        Parameters
        ----------
        rows : sequences of a microbatch
        context : ranks along context, which cut every sequence
        """
        attention = self.dropout if self.attention_dropout is None else self.attention_dropout
        return Dropout(self.dropout, attention, rows * self.sequence, order_of_rows(context, self.sequence))

    @property
    def precision(self) -> Precision:
        return Precision(self.dtype, self.gradient_bytes, self.products, self.fp8_param_gather)

    @property
    def pruning(self) -> Pruning:
        return Pruning(self.sparsity, self.prune, self.sparse_states)

    @property
    def kept_share(self) -> float:
        """Share of the elements of pruned gradients that sums over data send."""
        return self.pruning.kept_share

    @property
    def head(self) -> int:
        """Columns of a head."""
        return self.architecture.head(self.hidden, self.heads)

    @property
    def shape(self) -> ModelShape:
        """Model shape, without a name."""
        sizes = (self.layers, self.hidden, self.heads, self.sequence, self.vocabulary, self.inner)
        return ModelShape("", *sizes, self.architecture, experts=self.experts)

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch * self.sequence

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "batch": self.batch,
            "sequence": self.sequence,
            "hidden": self.hidden,
            "heads": self.architecture.key_value_heads(self.heads),
            "inner": self.inner or MLP_FACTOR * self.hidden,
            "vocabulary": self.vocabulary,
            "one": 1,
            "two": 2,
            **({HEAD: self.head} if self.architecture.qk_norm == "head" else {}),
            **latent_sizes(self.architecture),
            **(self.experts.sizes if self.experts else {}),
        }


def gpt_from_shape(shape: ModelShape, batch: int, **options: Any) -> Gpt:
    """Training steps of a model of that shape; `options` are fields of `Gpt`.

    Raises
    ------
    InputError : a size or option that `Gpt` refuses
    """
    sizes = (shape.layers, shape.hidden, shape.heads, shape.sequence, shape.vocabulary, batch)
    inner = 0 if shape.mlp == MLP_FACTOR * shape.hidden else shape.mlp
    return Gpt(*sizes, inner=inner, architecture=shape.architecture, experts=shape.experts, **options)


def check_gpt(problem: Gpt, grid: Grid, scheme: Scheme) -> None:
    """Checks that a grid can divide a GPT and its batch.

    Raises
    ------
    InputError : heads that their axis does not divide, a microbatch above the share of the batch or with fewer
        sequences than parts, stages that cannot be, or an axis that the scheme lacks
    """
    scheme.check(grid)
    check_expert_grid(problem.experts, grid, scheme.on_context(grid.context), problem.sequence)
    axis = scheme.inner.columns
    groups = problem.architecture.key_value_heads(problem.heads)
    if groups % grid.length(axis):
        divisors = ", ".join(str(parts) for parts in range(1, groups + 1) if not groups % parts)
        cut, name = ("attention heads", "heads") if groups == problem.heads else ("groups of heads", "key_heads")
        raise InputError(
            f"grid {axis}={grid.length(axis)}: {cut} are cut over {axis}, "
            f"which must divide {name} = {groups}: accepted are {divisors}"
        )
    _check_context(problem, grid, scheme)
    parts = microbatches(problem.batch, problem.micro_batch, grid)
    for layout in (scheme.stream, scheme.inner):
        needed = prod(grid.length(row_axis) for row_axis in layout.rows)
        if parts.last < needed:
            words = " times ".join(f"{row_axis}={grid.length(row_axis)}" for row_axis in layout.rows)
            raise InputError(f"{parts.smallest('batch')}: at least {words}, {needed} sequences, are needed")
    pipeline_stages(problem, grid)
    refuse_sharded_weights(problem.zero, grid)


def _check_context(problem: Gpt, grid: Grid, scheme: Scheme) -> None:
    """Checks that the context axis can cut the sequences, and that nothing is asked for that does not go with it.

    Raises
    ------
    InputError : a sequence or heads that cannot be cut, or an option that is not accepted with a context axis
    """
    if grid.context == 1:
        return
    heads = problem.heads, problem.architecture.key_value_heads(problem.heads)
    check_context(grid, problem.context_parallel, problem.sequence, *heads, scheme.inner.columns)
    refused = {
        "attention unfused": ("fused is", problem.attention == "unfused"),
        f"sparsity {problem.sparsity:g}": ("0 is", problem.sparsity > 0),
        f"offload {problem.offload}": ("optimizer state on the device is", problem.offload is not None),
        "latent attention": ("a model of whole keys and values is", problem.architecture.key_rank > 0),
        "attention sinks": ("a model without sinks is", problem.architecture.sinks),
    }
    for option, (accepted, asked) in refused.items():
        if asked:
            raise InputError(f"{option} on grid context={grid.context}: {accepted} accepted with a context axis")


def gpt_schedule(problem: Gpt, grid: Grid, scheme: Scheme) -> Schedule:
    """Returns the schedule of `steps` training steps."""
    check_gpt(problem, grid, scheme)
    scheme = scheme.on_context(grid.context)
    parts = microbatches(problem.batch, problem.micro_batch, grid)
    stages = pipeline_stages(problem, grid)
    buckets = None if problem.offload is None else Buckets(problem.offload, grid, problem.sizes)
    plan = parameter_sharding(
        grid, problem.zero, problem.precision, parts.count, problem.gathered, buckets, problem.pruning
    )
    layers = _model_layers(problem, scheme, stages, parts, grid)
    balance = auxiliary_loss(problem.experts, scheme, problem.steps)
    step = GptStep(layers, stages, plan, problem.steps, problem.adam, balance)
    statistics = problem.precision.statistics
    tensors = [
        *(tensor for layer in step.layers for tensor in layer.tensors),
        *(parameter.stored for parameter in step.parameters),
        *optimizer_tensors(step.parameters, problem.adam, statistics),
        *step.tensors(),
        *stages.tensors,
        *_stream(problem, scheme, stages, parts),
        *_inputs(problem, scheme, stages, parts),
    ]
    tensors += bucket_tensors(step.parameters, plan, tensors)
    outputs = (
        LOSS,
        *(tensor.name for tensor in balance.tensors),
        *(name for parameter in step.parameters for name in (parameter.name, parameter.gradient)),
    )
    return Schedule(
        f"gpt {scheme.name}",
        problem.sizes
        | parts.sizes("batch")
        | _sizes_of_ranks(problem, grid)
        | (buckets.sizes_of(step.parameters) if buckets else {}),
        grid,
        problem.dtype,
        declare(*(in_dtype_of_statistics(parameter, statistics) for parameter in step.with_copies(tensors))),
        (TOKENS, TARGETS, *index_names(step.parameters)),
        outputs,
        step.roles(),
        state=initial_state(step.parameters, plan),
    )


def _sizes_of_ranks(problem: Gpt, grid: Grid) -> dict[str, int]:
    """Lengths of dimensions that are numbers of ranks, by letter."""
    routers = grid.size // grid.pipeline
    return {ROUTERS: routers, STAGES: grid.pipeline} if problem.experts else {}


def auxiliary_loss(experts: Experts | None, scheme: Scheme, steps: int) -> Layer:
    """The auxiliary loss of a step: its tensor, the op before all passes (forward), and its sum (backward)."""
    if experts is None or not experts.balance:
        return Layer((), (), (), ())
    tensor = Tensor(AUXILIARY_LOSS, Part(STAGES, ("pipeline",)), ONE, copies=((STEP, steps),))
    zero = Pointwise(name=f"zero {AUXILIARY_LOSS}", function="zero", into=AUXILIARY_LOSS)
    sums = (
        AllReduce(name=f"sum {AUXILIARY_LOSS} over {axis}", axis=axis, buffer=AUXILIARY_LOSS)
        for axis in scheme.stream.row_axes
    )
    return Layer((tensor,), (), (zero,), tuple(sums))


def pipeline_stages(problem: Gpt, grid: Grid) -> Stages:
    """Returns the pipeline stages of a problem on a grid."""
    parts, order = microbatches(problem.batch, problem.micro_batch, grid), problem.pipeline_schedule
    in_v = order == "zb-v" and grid.pipeline > 1 and problem.interleave == 1
    chunks, limit = V_CHUNKS if in_v else problem.interleave, problem.pipeline_limit
    return Stages(grid.pipeline, problem.layers, parts.count, chunks, order, limit, problem.stages, problem.dense)


def _model_layers(problem: Gpt, scheme: Scheme, stages: Stages, parts: Microbatches, grid: Grid) -> ModelLayers:
    """The embedding, the transformer layer, the last normalisation and the loss under a scheme."""
    rows, hidden = parts.part("batch", problem.sequence), Part("hidden")
    architecture, dropout = problem.architecture, problem.dropout_of(parts.rows, scheme.context)
    shape = LayerShape(
        problem.layers,
        problem.hidden,
        problem.heads,
        problem.sequence,
        problem.gathered,
        problem.attention,
        problem.recompute,
        architecture,
        dropout,
        scheme.context,
        problem.context_parallel,
        None if problem.experts is None else RoutedExperts(problem.experts, grid, problem.loads, problem.dense),
        problem.batch,
        small_precision(problem.products),
    )
    norm = Norm("last", rows, hidden, problem.hidden, "X", "last N", "dlast N", "dX", kind=architecture.norm)
    last = normalisation(norm, scheme)
    loss = scheme.vocabulary_loss(rows, "last N", "dlast N", problem.tokens, architecture)
    whole = Tensor(LOSS, ONE, ONE, copies=((STEP, problem.steps),), stages=stages.at(stages.loss_stage))
    embedding = scheme.embedding(rows, "X", "dX", architecture)
    if architecture.scaled_embedding:
        embedding = _scaled_embedding(embedding, problem.hidden)
    return ModelLayers(
        _dropped_embedding(embedding, scheme, rows, dropout),
        pruned_layer(transformer_layer(shape, rows, scheme), problem.pruning),
        last,
        replace(loss, tensors=(*loss.tensors, whole)),
    )


def _scaled_embedding(embedding: Layer, hidden: int) -> Layer:
    """The embedding with X multiplied by √hidden; dX multiplied by the same factor is its gradient."""
    scalars = (("factor", sqrt(hidden)),)
    scale, scale_gradient = (
        Kernel(name=f"scale {name}", function="scale", updates=(name,), scalars=scalars) for name in ("X", "dX")
    )
    return replace(
        embedding,
        forward=(*embedding.forward, scale),
        backward=(scale_gradient, *embedding.backward),
    )


def _dropped_embedding(embedding: Layer, scheme: Scheme, rows: Part, dropout: Dropout) -> Layer:
    """The embedding with dropout of X; dropout of dX by the same mask is its gradient."""
    if not dropout.hidden:
        return embedding
    mask = replace(scheme.stream.tensor("X mask", rows, Part("hidden")), dtype=MASK)
    drop, drop_gradient = (dropout.drop("embedding", name, mask.name) for name in ("X", "dX"))
    return replace(
        embedding,
        tensors=(*embedding.tensors, mask),
        forward=(*embedding.forward, drop),
        backward=(drop_gradient, *embedding.backward),
    )


def _stream(problem: Gpt, scheme: Scheme, stages: Stages, parts: Microbatches) -> list[Tensor]:
    """The activation that passes through all layers, and its gradient, in two copies if one may still be in flight."""
    rows, hidden = parts.part("batch", problem.sequence), Part("hidden")
    return [
        stages.tensor(scheme.stream.tensor("X", rows, hidden, ((LAYER, problem.layers + 1),)), "batch"),
        replace(scheme.stream.tensor("dX", rows, hidden), copies=stages.gradient_copies),
        scheme.stream.tensor("dlast N", rows, hidden),
    ]


def _inputs(problem: Gpt, scheme: Scheme, stages: Stages, parts: Microbatches) -> list[Tensor]:
    rows = parts.part("batch", problem.sequence)
    copies = ((STEP, problem.steps), *parts.copies)
    within: tuple[Axis, ...] = (CONTEXT,) if scheme.context > 1 else ()
    tokens = replace(rows, axes=scheme.token_rows, finer=within)
    return [
        Tensor(TOKENS, tokens, ONE, copies=copies, dtype="int32", stages=stages.at(0)),
        Tensor(
            TARGETS, scheme.inner.cut_rows(rows), ONE, copies=copies, dtype="int32", stages=stages.at(stages.loss_stage)
        ),
    ]
