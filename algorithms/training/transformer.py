"""One transformer layer, the loop body of all layers: attention and MLP, each after a normalisation.

    N1 = norm(X)      QKV = N1 W + b     A = attention(QKV)     X2 = X + A W + b
    N2 = norm(X2)     U = N2 W + b       G = gelu(U)            X of the next layer = X2 + G W + b

or, by architecture, G = swiglu(U) or geglu(U), no b, other norms, and norms in other places: of the two products that
are added to X, and of queries and keys.  The MLP may read X beside attention, with a norm of its own or with N1.
With dropout, elements of the attention weights and of the two products that are added to X are set to zero.  Columns of
QKV are groups of heads: queries, then their shared key and value.  One gradient dX passes through all layers; each
branch adds to it.

Layers with a sliding window and layers that see all tokens have attention kernels of their own, and the layer's index
chooses between them.  It also chooses between a dense MLP and experts, if a model has layers of both kinds.

Source: Vaswani et al., "Attention Is All You Need", 2017; Radford et al., "Language Models are Unsupervised Multitask
Learners", 2019 (normalisation first).
"""

from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Literal

from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.expressions import Affine, Lookup, Min, Modulo, Scaled, Sum
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS, FUSED_ATTENTION, Function
from quadrille.algorithms.schedule.ops import Kernel, Op, Pointwise, SmallPrecision
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Choice, Program, Repeat
from quadrille.algorithms.schedule.tensors import Copies, ElementType, Tensor
from quadrille.algorithms.training.adam import STEP
from quadrille.algorithms.training.architecture import PLAIN, Architecture, Gate
from quadrille.algorithms.training.attention_output import GATE, GATED, attention_sinks, output_gate
from quadrille.algorithms.training.context import ContextForm
from quadrille.algorithms.training.context_attention import ContextAttention
from quadrille.algorithms.training.dropout import MASK, NO_DROPOUT, Dropout
from quadrille.algorithms.training.experts import DENSE_LAYER, EXPERT_LAYER, Experts
from quadrille.algorithms.training.latent_attention import LatentAttention
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.normalisation import Norm, normalisation
from quadrille.algorithms.training.query_key_norm import query_key_norm
from quadrille.algorithms.training.recompute import WHOLE_LAYERS, Attention, Recompute, with_recomputation
from quadrille.algorithms.training.scheme import Linear, Orientation, Scheme
from quadrille.algorithms.training.small_numbers import small_linear, without_unread_copies

LAYER = "layer"
DROPPED_GRADIENT = "dX before dropout"
MLP_GRADIENT = "dbranch of mlp"
PLAIN_MLP: tuple[Function, Function] = ("gelu", "gelu_gradient")
GATED_MLP: dict[Gate, tuple[Function, Function]] = {
    "silu": ("swiglu", "swiglu_gradient"),
    "gelu": ("geglu", "geglu_gradient"),
    "clamped": ("clamped_swiglu", "clamped_swiglu_gradient"),
}
"""Kernels between the two products of a plain and of a gated MLP: forward and backward."""


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts of a model on a grid.

    Parameters
    ----------
    loads : expected rows of each expert, in any unit; empty for even loads
    dense : whether each layer has a dense MLP instead; empty if none has one
    """

    experts: Experts
    grid: Grid
    loads: tuple[int, ...] = ()
    dense: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The sizes and options of a model that determine one of its layers.

    Parameters
    ----------
    layers, hidden, heads : number of layers, hidden size, query heads
    sequence : tokens of a sequence
    gathered : whether gathered weights are stored for the backward pass or gathered again
    attention : fused or unfused attention
    recompute : activation recomputation
    architecture : differences from the plain GPT
    dropout : dropout of the layer
    context : ranks along context, which cut every sequence
    context_parallel : form of context parallelism
    experts : experts, the grid that shares them out, and their expected loads; None for a dense MLP
    batch : sequences of the whole batch
    products : precision of the products, if their operands have 8 or 4 bits
    loop : loop over the layers
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    gathered: Gathered = "again"
    attention: Attention = "fused"
    recompute: Recompute = "none"
    architecture: Architecture = PLAIN
    dropout: Dropout = NO_DROPOUT
    context: int = 1
    context_parallel: ContextForm = "ring"
    experts: "RoutedExperts | None" = None
    batch: int = 1
    products: SmallPrecision | None = None
    loop: str = LAYER

    @property
    def head(self) -> int:
        return self.architecture.head(self.hidden, self.heads)

    @property
    def copies(self) -> Copies:
        """Copies of tensors that every layer has."""
        return ((self.loop, self.layers),)

    @property
    def value(self) -> int:
        """Columns of a value head."""
        return self.architecture.value(self.head)

    @property
    def group(self) -> int:
        """Query heads that share a key and a value."""
        return self.architecture.group(self.heads)

    @property
    def norms_inputs(self) -> bool:
        """Whether norms precede attention and the MLP."""
        return self.architecture.norm_place != "after"

    @property
    def norms_outputs(self) -> bool:
        """Whether norms follow attention and the MLP."""
        return self.architecture.norm_place != "before"

    @property
    def branch_gradient(self) -> str:
        """Gradient of the output of attention and of the MLP: that of the stream, unless elements are dropped."""
        return DROPPED_GRADIENT if self.dropout.hidden else "dX"

    @property
    def mlp_functions(self) -> tuple[Function, Function]:
        """Kernels between the two products of the MLP: forward and backward."""
        return GATED_MLP[self.architecture.gate] if self.architecture.gated else PLAIN_MLP

    @property
    def scored(self) -> str:
        """The tensor that attention reads: QKV, or QKV with normalised queries and keys."""
        return "QKV" if self.architecture.qk_norm == "none" else "QKV normalised"

    @property
    def qkv(self) -> Part:
        """Columns of queries, keys and values, group by group."""
        return Part("heads", unit=(self.group + 1) * self.head + self.value)

    def of_queries(self, each: int) -> Part:
        """`each` columns for every query head."""
        return Part("heads", unit=self.group * each)

    @property
    def up(self) -> Part:
        """Columns of the first MLP product."""
        return Part("inner", unit=self.architecture.up_columns)


def transformer_layer(shape: LayerShape, rows: Part, scheme: Scheme) -> Layer:
    """Ops of a layer, from `X` to the `X` of the next, and of its gradient `dX`."""
    layer = _layer(shape, rows, scheme)
    if shape.products is not None:
        layer = without_unread_copies(layer)
    if shape.recompute not in WHOLE_LAYERS:
        return layer
    return with_recomputation(layer, output="X", keeps_exchange=shape.recompute == "full-keep-exchange")


def _layer(shape: LayerShape, rows: Part, scheme: Scheme) -> Layer:
    """The layer that stores what its backward pass reads."""
    hidden, heads = Part("hidden"), shape.of_queries(shape.value)
    attention, mlp = (_branch(shape, rows, scheme, number) for number in (1, 2))
    qkv = _qkv(shape, rows, scheme, attention.reads)
    read = GATED if shape.architecture.gated_attention else "A"
    of_project = (read, "D"), (f"d{read}", attention.gradient)
    project = _product(shape, scheme, _linear(shape, rows, "project", (heads, hidden), *of_project, "transposed"))
    products = _mlp(shape, rows, scheme, mlp)
    architecture, both_heads = shape.architecture, (shape.heads, shape.heads // shape.group)
    qk_norm = query_key_norm(architecture.qk_norm, both_heads, shape.head, rows, shape.copies, scheme)
    sinks, gate = _sinks(shape, scheme), _gate(shape, rows, scheme, attention.reads)
    scores = _attention(shape, rows, scheme)
    before = (attention.before, qkv, qk_norm, sinks, gate, project, attention.after)
    sublayers = (*before, mlp.before, *products.parts, mlp.after)
    add_mlp_gradient = (
        Kernel(name="add mlp gradient", function="add_to", updates=("dX",), sources=(mlp.input_gradient,)),
    )
    return Layer(
        (
            *(tensor for sublayer in sublayers for tensor in _with_copies(shape, sublayer)),
            *_activations(shape, rows, scheme),
        ),
        tuple(parameter for sublayer in sublayers for parameter in sublayer.parameters),
        (
            *attention.before.forward,
            *qkv.forward,
            *qk_norm.forward,
            *_by_layer(shape, scores.forward),
            *sinks.forward,
            *gate.forward,
            *project.forward,
            *attention.after.forward,
            *attention.drop,
            Pointwise(name="add attention", function="add", into="X2", sources=("X", attention.output)),
            *mlp.before.forward,
            *products.forward,
            *mlp.after.forward,
            *mlp.drop,
            Pointwise(name="add mlp", function="add", into="X", sources=("X2", mlp.output), iteration_offset=1),
        ),
        (
            *mlp.drop_gradient,
            *mlp.after.backward,
            *products.backward,
            *mlp.before.backward,
            *(add_mlp_gradient if architecture.branches == "serial" else ()),
            *attention.drop_gradient,
            *attention.after.backward,
            *project.backward,
            *gate.backward,
            *sinks.backward,
            *_by_layer(shape, scores.backward),
            *qk_norm.backward,
            *qkv.backward,
            *_additions(shape),
            *attention.before.backward,
            *(add_mlp_gradient if architecture.branches == "parallel" else ()),
            Kernel(
                name="add attention gradient", function="add_to", updates=("dX",), sources=(attention.input_gradient,)
            ),
        ),
    )


def _qkv(shape: LayerShape, rows: Part, scheme: Scheme, source: str) -> Layer:
    """The projections from the input of attention to QKV."""
    if shape.architecture.key_rank:
        return LatentAttention(
            shape.architecture, rows, source, "dN1", shape.copies, shape.gathered, scheme, shape.products
        ).layer()
    linear = _linear(shape, rows, "QKV", (Part("hidden"), shape.qkv), (source, "QKV"), ("dN1", "dQKV"))
    return _product(shape, scheme, linear)


def _sinks(shape: LayerShape, scheme: Scheme) -> Layer:
    if not shape.architecture.sinks:
        return Layer((), (), (), ())
    return attention_sinks(shape.group, shape.value, shape.copies, scheme)


def _gate(shape: LayerShape, rows: Part, scheme: Scheme, source: str) -> Layer:
    """The gate of attention's output, from the input of attention; empty without a gate."""
    if not shape.architecture.gated_attention:
        return Layer((), (), (), ())
    dimensions = (Part("hidden"), shape.of_queries(shape.value))
    linear = _linear(shape, rows, GATE, dimensions, (source, GATE), (f"dN1 of {GATE}", f"d{GATE}"))
    return output_gate(linear, scheme, shape.products)


def _additions(shape: LayerShape) -> Program:
    """Ops that add to the gradient of attention's input those of a gate, and of an MLP with the same norm."""
    addends: tuple[str, ...] = (f"dN1 of {GATE}",) if shape.architecture.gated_attention else ()
    addends += ("dN2",) if shape.architecture.branches == "shared" else ()
    return tuple(Kernel(name=f"add {name}", function="add_to", updates=("dN1",), sources=(name,)) for name in addends)


@dataclass(frozen=True, slots=True)
class _Mlp:
    """The products of the MLP: layers with their tensors and parameters, and the programs of all of them."""

    parts: tuple[Layer, ...]
    forward: Program
    backward: Program


def _mlp(shape: LayerShape, rows: Part, scheme: Scheme, mlp: "_Branch") -> _Mlp:
    """The MLP from the input to the output of its branch: dense, of experts, or either by the index of the layer."""
    if shape.experts is None:
        return _dense_mlp(shape, rows, scheme, mlp)
    if not shape.experts.dense:
        return _expert_mlp(shape, shape.experts, rows, scheme, mlp)
    built = _dense_mlp(_of_loop(shape, shape.experts.dense, DENSE_LAYER), rows, scheme, mlp)
    routed = _expert_mlp(_of_loop(shape, shape.experts.dense, EXPERT_LAYER), shape.experts, rows, scheme, mlp)
    choices = (
        (_choice(shape.experts.dense, DENSE_LAYER, dense), _choice(shape.experts.dense, EXPERT_LAYER, of_experts))
        for dense, of_experts in ((built.forward, routed.forward), (built.backward, routed.backward))
    )
    output = {tensor.name: tensor for part in (*built.parts, *routed.parts) for tensor in part.tensors}
    parameters = tuple(parameter for part in (*built.parts, *routed.parts) for parameter in part.parameters)
    return _Mlp((Layer(tuple(output.values()), parameters, (), ()),), *choices)


def _of_loop(shape: LayerShape, dense: tuple[bool, ...], loop: str) -> LayerShape:
    """The shape of the layers of one kind."""
    return replace(shape, layers=dense.count(loop == DENSE_LAYER), loop=loop)


def _choice(dense: tuple[bool, ...], loop: str, body: Program) -> Choice:
    """The MLP of the layers of one kind: a layer of the kind runs it, and has the next of its copies."""
    chosen = tuple(int(is_dense == (loop == DENSE_LAYER)) for is_dense in dense)
    before = tuple(accumulate(chosen, initial=0))[:-1]
    return Choice(loop, Lookup((chosen,), (0, Affine(LAYER))), body, first=Lookup((before,), (0, Affine(LAYER))))


def _dense_mlp(shape: LayerShape, rows: Part, scheme: Scheme, mlp: "_Branch") -> _Mlp:
    """The dense MLP."""
    hidden, inner = Part("hidden"), Part("inner")
    activation, activation_gradient = shape.mlp_functions
    of_down = ("G", "E"), ("dG", mlp.gradient)
    up = _product(shape, scheme, _linear(shape, rows, "up", (hidden, shape.up), (mlp.reads, "U"), ("dN2", "dU")))
    down = _product(shape, scheme, _linear(shape, rows, "down", (inner, hidden), *of_down, "transposed"))
    activated = Kernel(name=activation, function=activation, into=("G",), sources=("U",))
    gradient = Kernel(name=f"{activation} gradient", function=activation_gradient, into=("dU",), sources=("U", "dG"))
    forward, backward = (*up.forward, activated, *down.forward), (*down.backward, gradient, *up.backward)
    wide = (
        scheme.inner.tensor("G", rows, inner, shape.copies),
        scheme.inner.tensor("dU", rows, shape.up),
        scheme.inner.tensor("dG", rows, inner),
    )
    stored = tuple(replace(tensor, copies=shape.copies) if tensor.name == "U" else tensor for tensor in up.tensors)
    parts = replace(up, tensors=stored), down, Layer(wide, (), (), ())
    return _Mlp(parts, forward, backward)


def _expert_mlp(shape: LayerShape, routed: RoutedExperts, rows: Part, scheme: Scheme, mlp: "_Branch") -> _Mlp:
    """The MLP of experts."""
    from quadrille.algorithms.training.expert_layer import ExpertMlp

    built = ExpertMlp(
        routed.experts,
        routed.grid,
        rows,
        shape.hidden,
        shape.sequence,
        shape.batch,
        shape.gathered,
        shape.copies,
        shape.architecture.up_columns,
        shape.mlp_functions,
        mlp.reads,
        mlp.gradient,
        routed.loads,
        shape.products,
    )
    parts = built.layers(scheme)
    output = Layer((scheme.stream.tensor("E", rows, Part("hidden")),), (), (), ())
    forward = tuple(op for part in parts for op in part.forward)
    return _Mlp((*parts, output), forward, tuple(op for part in parts for op in part.backward))


@dataclass(frozen=True, slots=True)
class _Branch:
    """The ends of attention, or of the MLP: norms and dropout.

    Parameters
    ----------
    before, after : norm of the branch's input and of its output; empty layers without the norm
    reads : activation that the first product reads
    output : activation that is added to the stream
    gradient : gradient of the last product's output
    input_gradient : gradient of the branch's input
    drop, drop_gradient : ops of dropout
    """

    before: Layer
    after: Layer
    reads: str
    output: str
    gradient: str
    input_gradient: str
    drop: Program
    drop_gradient: Program


def _branch(shape: LayerShape, rows: Part, scheme: Scheme, number: Literal[1, 2]) -> _Branch:
    """The ends of attention (1) or of the MLP (2)."""
    branches = shape.architecture.branches
    source, product = (("X", "D"), ("X2" if branches == "serial" else "X", "E"))[number - 1]
    place: Literal["attention", "mlp"] = "attention" if number == 1 else "mlp"
    before = after = Layer((), (), (), ())
    reads, input_gradient, output, gradient = source, f"dN{number}", product, shape.branch_gradient
    if number == 2 and branches == "shared":
        reads = "N1"
    elif shape.norms_inputs:
        reads, input_gradient = f"N{number}", MLP_GRADIENT if number == 2 and branches == "parallel" else "dbranch"
        gradients = (f"d{reads}", input_gradient)
        before = normalisation(_norm(shape, rows, f"norm{number}", (source, reads), gradients), scheme)
    if shape.norms_outputs:
        output, gradient = f"{product} normalised", f"d{product}"
        norm = _norm(shape, rows, f"{place} norm", (product, output), (shape.branch_gradient, gradient))
        after = normalisation(replace(norm, into_copies=()), scheme)
    drop, drop_gradient = _hidden_dropout(shape.dropout, place, output)
    return _Branch(before, after, reads, output, gradient, input_gradient, drop, drop_gradient)


def _hidden_dropout(dropout: Dropout, place: Literal["attention", "mlp"], output: str) -> tuple[Program, Program]:
    """Ops that drop elements of an output that is added to the stream, and of its gradient; none without dropout."""
    if not dropout.hidden:
        return (), ()
    mask = f"{place} mask"
    return (dropout.drop(place, output, mask),), (dropout.drop_gradient(place, "dX", mask, DROPPED_GRADIENT),)


def _norm(shape: LayerShape, rows: Part, name: str, activations: tuple[str, str], gradients: tuple[str, str]) -> Norm:
    """A norm of the layer: activations before and after it, and the gradients of its output and of its input."""
    hidden, copies = Part("hidden"), shape.copies
    kind = shape.architecture.norm
    return Norm(name, rows, hidden, shape.hidden, *activations, *gradients, copies, copies, kind)


def _linear(
    shape: LayerShape,
    rows: Part,
    name: str,
    dimensions: tuple[Part, Part],
    activations: tuple[str, str],
    gradients: tuple[str, str],
    orientation: Orientation = "normal",
) -> Linear:
    return Linear(
        name,
        rows,
        *dimensions,
        *activations,
        *gradients,
        orientation,
        shape.gathered,
        shape.copies,
        biased=shape.architecture.biases or (name == "QKV" and shape.architecture.qkv_biases),
    )


def _product(shape: LayerShape, scheme: Scheme, linear: Linear) -> Layer:
    """The layer of a product, of small numbers if the shape says so."""
    return scheme.linear(linear) if shape.products is None else small_linear(linear, scheme, shape.products)


def _with_copies(shape: LayerShape, sublayer: Layer) -> list[Tensor]:
    """Tensors of a sublayer; those that the backward pass reads have a copy for each layer."""
    exchanged = shape.context > 1 and shape.context_parallel == "ulysses" and shape.scored == "QKV"
    stored = {*(() if exchanged else ("QKV",)), *(("D", "E") if shape.norms_outputs else ())}
    return [replace(tensor, copies=shape.copies) if tensor.name in stored else tensor for tensor in sublayer.tensors]


def _activations(shape: LayerShape, rows: Part, scheme: Scheme) -> list[Tensor]:
    """Activations between the sublayers, and the gradients of all activations."""
    stream, inner, copies = scheme.stream, scheme.inner, shape.copies
    hidden, heads = Part("hidden"), shape.of_queries(shape.value)
    attention = _attention(shape, rows, scheme)
    of_queries = [
        replace(inner.tensor(name, rows, shape.of_queries(attention.columns), attention.copies), dtype=dtype)
        for name, dtype in attention.tensors.items()
    ]
    of_queries += attention.more
    masks = ("attention mask", "mlp mask") if shape.dropout.hidden else ()
    return [
        inner.tensor("A", rows, heads, copies),
        *of_queries,
        *(replace(stream.tensor(mask, rows, hidden, copies), dtype=MASK) for mask in masks),
        *([stream.tensor(DROPPED_GRADIENT, rows, hidden)] if masks else []),
        stream.tensor("X2", rows, hidden, copies if shape.architecture.branches == "serial" else ()),
        stream.tensor("dN1", rows, hidden),
        inner.tensor("dQKV", rows, shape.qkv),
        inner.tensor("dA", rows, heads),
        stream.tensor("dN2", rows, hidden),
        *([stream.tensor("dbranch", rows, hidden)] if shape.norms_inputs else []),
        *([stream.tensor(MLP_GRADIENT, rows, hidden)] if shape.architecture.branches == "parallel" else []),
        *(stream.tensor(gradient, rows, hidden) for gradient in (("dD", "dE") if shape.norms_outputs else ())),
    ]


@dataclass(frozen=True, slots=True)
class _Attention:
    """Kernels of attention, and the tensors that the forward kernel writes for the gradient kernel.

    Parameters
    ----------
    tensors : names of the tensors, with their dtypes if they differ from the schedule's
    columns : columns of the tensors for every query head
    copies : a copy for each layer if the tensors are stored
    more : other tensors
    """

    forward: Program
    backward: Program
    tensors: dict[str, ElementType | None]
    columns: int
    copies: Copies
    more: tuple[Tensor, ...] = ()


def _attention(shape: LayerShape, rows: Part, scheme: Scheme) -> _Attention:
    if shape.context > 1:
        return _context_attention(shape, rows, scheme)
    return _unfused_attention(shape) if shape.attention == "unfused" else _fused_attention(shape)


def _context_attention(shape: LayerShape, rows: Part, scheme: Scheme) -> _Attention:
    attention = ContextAttention(
        shape.context_parallel,
        shape.context,
        scheme.inner,
        rows,
        shape.scored,
        shape.group,
        shape.head,
        _scalars(shape),
        _counter(shape),
        shape.copies,
    )
    tensors, forward, backward = attention.ops()
    return _Attention(forward, backward, {}, 1, (), tensors)


def _by_layer(shape: LayerShape, program: Program) -> Program:
    """The ops of attention in a layer, with the kernels of a window or of all tokens."""
    ops = list[Op | Repeat]()
    for is_kernel, entries in groupby(program, lambda op: isinstance(op, Kernel) and op.function in ATTENTION_PRODUCTS):
        if is_kernel:
            ops += _kernels_by_layer(shape, tuple(entries))
        else:
            ops += [
                replace(entry, body=_by_layer(shape, entry.body)) if isinstance(entry, Repeat) else entry
                for entry in entries
            ]
    return tuple(ops)


def _kernels_by_layer(shape: LayerShape, kernels: Program) -> Program:
    """The attention kernels of a layer: with a window, or for all tokens.

    If the architecture has layers of both kinds, the index of the layer chooses between both kernels.
    """
    architecture = shape.architecture
    windowed, unlimited = (_of_kind(shape, kernels, windowed=windowed) for windowed in (True, False))
    if windowed == unlimited or not architecture.window:
        return unlimited
    if not architecture.global_every:
        return windowed
    remainder = Min(1, Modulo(Affine(LAYER, 1, 1), architecture.global_every))
    renamed = tuple(replace(op, name=f"{op.name} in window") for op in windowed if isinstance(op, Kernel))
    return (
        Choice("once", remainder, renamed),
        Choice("once", Sum(1, Scaled(-1, remainder)), unlimited),
    )


def _of_kind(shape: LayerShape, kernels: Program, *, windowed: bool) -> Program:
    """Attention kernels with the scalars of a layer with a window, or of a layer that sees all tokens."""
    architecture, scalars = shape.architecture, list[tuple[str, float]]()
    if windowed and architecture.has_window(shape.sequence):
        scalars.append(("window", float(architecture.window)))
    if architecture.positions == "rotary":
        local = architecture.local_rotary_base if windowed else 0.0
        scalars.append(("rotary_base", local or architecture.rotary_base))
    return tuple(replace(op, scalars=(*op.scalars, *scalars)) if isinstance(op, Kernel) else op for op in kernels)


def _fused_attention(shape: LayerShape) -> _Attention:
    scalars, counter, written = _scalars(shape), _counter(shape), ("A", "logarithms")
    return _Attention(
        (
            Kernel(
                name="attention",
                function="attention",
                into=written,
                sources=(shape.scored,),
                scalars=scalars,
                counter=counter,
            ),
        ),
        (
            Kernel(
                name="attention gradient",
                function="attention_gradient",
                into=(f"d{shape.scored}",),
                sources=(shape.scored, *written, "dA"),
                scalars=scalars,
                counter=counter,
            ),
        ),
        {"logarithms": None},
        1,
        shape.copies,
    )


def _unfused_attention(shape: LayerShape) -> _Attention:
    """Unfused attention; with selective recomputation the forward kernel runs again before the gradient kernel."""
    drops, scalars = shape.dropout.attention > 0, _scalars(shape)
    kernels: tuple[Function, Function] = ("attention_keeping", "attention_keeping_gradient")
    tensors: dict[str, ElementType | None] = {"attention weights": None}
    if drops:
        kernels = ("attention_dropping", "attention_dropping_gradient")
        tensors |= {"attention weights mask": MASK, "attention weights after dropout": None}
    forward = Kernel(
        name="attention",
        function=kernels[0],
        into=("A", *tensors),
        sources=(shape.scored,),
        scalars=scalars,
        counter=_counter(shape),
    )
    gradient = Kernel(
        name="attention gradient",
        function=kernels[1],
        into=(f"d{shape.scored}",),
        sources=(shape.scored, *tensors, "dA"),
        scalars=scalars,
    )
    if shape.recompute != "selective":
        return _Attention((forward,), (gradient,), tensors, shape.sequence, shape.copies)
    again = replace(forward, name=f"again {forward.name}")
    return _Attention((forward,), (again, gradient), tensors, shape.sequence, ())


def _counter(shape: LayerShape) -> str | None:
    """The loop that attention counts: the steps, if elements are dropped."""
    return STEP if shape.dropout.attention else None


def _scalars(shape: LayerShape) -> tuple[tuple[str, float], ...]:
    scalars = [("sequence", float(shape.sequence)), ("head", float(shape.head))]
    if shape.attention in FUSED_ATTENTION:
        scalars.append(("kernel", 1.0 + FUSED_ATTENTION.index(shape.attention)))
    if shape.group > 1:
        scalars.append(("group", float(shape.group)))
    architecture = shape.architecture
    if shape.value != shape.head:
        scalars.append(("value", float(shape.value)))
    if architecture.rotary_share < 1 or architecture.rotary_columns:
        scalars.append(("rotated", float(architecture.rotated_columns(shape.head))))
    if architecture.score_columns:
        scalars.append(("score_columns", architecture.score_columns))
    if architecture.score_cap:
        scalars.append(("score_cap", architecture.score_cap))
    return (*scalars, *shape.dropout.scalars("attention weights"))
