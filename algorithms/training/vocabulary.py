"""Vocabulary-parallel embedding and cross entropy of a language model, as in Megatron-LM.

    table   vocabulary/x × hidden/y   sharded over z, gathered for use
    X       rows × hidden/y           rows of the table by token, reduced over x, plus positions
    logits  rows × vocabulary/x       normalised X times the transposed table, reduced over y

The loss needs the largest logit and the sum of exponentials of every row, both reduced over x; no rank holds a whole
row.  Scattered activations are gathered before use, and sums are scattered.  Embedding and loss share the table, whose
gradient the loss initialises; or the logits have an output table of their output_table.

Source: Shoeybi et al., "Megatron-LM", 2019, section 3 (vocabulary-parallel embedding and cross entropy); Press, Wolf,
"Using the output embedding to improve language models", 2017 (the shared table).
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, Gemm, Kernel, OverlapName, Pointwise, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.algorithms.training.layers import LOSS, Layer, Parameter
from quadrille.algorithms.training.scheme import ONE, TWO, Layout, order_of_rows

TABLE, OUTPUT_TABLE, POSITIONS = "table", "output table", "positions"
TOKENS, TARGETS = "tokens", "targets"
WHOLE_ROWS: tuple[Axis, ...] = ("data", "z")
WHOLE = Layout(WHOLE_ROWS, "x")


@dataclass(frozen=True, slots=True)
class VocabularyLayout:
    """Layouts of embedding and loss.

    Parameters
    ----------
    stream, logits : layouts of the activations and of the logits
    scattered : whether both are scattered
    positions_over : axes that shard the positions, outermost first; gathered for use
    whole : layout of activations whose rows are not scattered; its columns do not count
    weight_sums : axes over which gradients of tables are partial sums
    context : ranks along context, which cut the rows of every sequence
    """

    stream: Layout
    logits: Layout
    scattered: bool
    positions_over: tuple[Axis, ...] = ()
    whole: Layout = WHOLE
    weight_sums: tuple[Axis, ...] = ("data",)
    context: int = 1

    def gathered(self, name: str, axis: Axis) -> tuple[str, Program]:
        """Name of an activation as it is used, and the op that gathers it."""
        if not self.scattered:
            return name, ()
        whole = f"{name} whole"
        return whole, (AllGather(name=f"gather {name}", axis=axis, source=name, into=whole),)

    def summed(self, name: str, axis: Axis, overlap: OverlapName | None = None) -> tuple[str, Program]:
        """Name of an activation's partial sum, and the op that reduces it."""
        if not self.scattered:
            return name, (AllReduce(name=f"sum {name}", axis=axis, buffer=name, overlap=overlap),)
        whole = f"{name} partial"
        scatter = ReduceScatter(name=f"scatter {name}", axis=axis, source=whole, into=name, overlap=overlap)
        return whole, (scatter,)

    def wholes(self, rows: Part, columns: Part, *names: str) -> list[Tensor]:
        """Activations with whole rows, if activations are scattered."""
        (axis,) = columns.axes
        layout = replace(self.whole, columns=axis)
        return [layout.tensor(name, rows, columns) for name in names] if self.scattered else []


def gather_and_scatter(tensor: Tensor, over: tuple[Axis, ...]) -> tuple[list[Tensor], Program, Program, str]:
    """The ops that gather a parameter over several axes and scatter its gradient, with their intermediate tensors.

    Parameters
    ----------
    tensor : the parameter as it is stored
    over : axes that shard it, outermost first

    Returns
    -------
    intermediate tensors, ops that gather, ops that scatter, and the name of the gathered tensor
    """
    tensor_names = (
        [tensor.name] + [f"{tensor.name} over {axis}" for axis in reversed(over[:-1])] + [f"{tensor.name} whole"]
    )
    if not over:
        return [], (), (), tensor.name
    tensors: list[Tensor] = []
    gathers: list[AllGather] = []
    scatters: list[ReduceScatter] = []
    for left in range(len(over) - 1, -1, -1):
        source, into, axis = tensor_names[len(over) - 1 - left], tensor_names[len(over) - left], over[left]
        partly_gathered = replace(tensor, name=into, sharded_over=over[:left] or None, copies=())
        tensors += [partly_gathered, replace(partly_gathered, name=f"d{into}")]
        gathers.append(AllGather(name=f"gather {into}", axis=axis, source=source, into=into, overlap="oag"))
        name = f"scatter d{into}"
        scatters.insert(0, ReduceScatter(name=name, axis=axis, source=f"d{into}", into=f"d{source}", overlap="ors"))
    return tensors, tuple(gathers), tuple(scatters), tensor_names[-1]


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """The table of learned positions, or none.

    Parameters
    ----------
    fetch : ops that gather the table
    add : ops that add it to an activation
    gradient : ops from the activation's gradient to the stored gradient of the table
    """

    tensors: tuple[Tensor, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    fetch: Program = ()
    add: Program = ()
    gradient: Program = ()


def learned_positions(
    architecture: Architecture,
    columns: Part,
    over: tuple[Axis, ...],
    summed_over: tuple[Axis, ...],
    into: str,
    into_gradient: str,
    order: tuple[tuple[str, float], ...] = (),
) -> LearnedPositions:
    """The learned positions that are added to an activation; empty if the architecture learns none.

    Parameters
    ----------
    architecture : architecture of the model
    columns : columns of the activation
    over : axes that shard the table of positions, outermost first
    summed_over : axes over which its gradient is reduced
    into, into_gradient : the activation and its gradient
    order : scalars of the order of rows (`scheme.order_of_rows`)
    """
    if architecture.positions != "learned":
        return LearnedPositions()
    positions = Tensor(POSITIONS, Part("sequence"), columns, sharded_over=over or None)
    partly_gathered, gather, scatter, whole = gather_and_scatter(positions, over)
    add = Kernel(name="add positions", function="add_positions", updates=(into,), sources=(whole,), scalars=order)
    sums = Kernel(
        name="sum dpositions", function="position_sums", into=(f"d{whole}",), sources=(into_gradient,), scalars=order
    )
    return LearnedPositions(
        tuple(partly_gathered), (Parameter(positions, summed_over),), gather, (add,), (sums, *scatter)
    )


def embedding(
    layout: VocabularyLayout, rows: Part, into: str, into_gradient: str, architecture: Architecture = PLAIN
) -> Layer:
    """The embedding layer, X = table[tokens] + positions.

    The backward pass adds to the gradient of a shared table, which the loss initialises.

    Parameters
    ----------
    layout : layouts of embedding and loss
    rows : rows of the activation X, uncut
    into, into_gradient : X and its gradient
    architecture : architecture of the model
    """
    vocabulary, hidden = layout.logits.cut_columns(Part("vocabulary")), layout.stream.cut_columns(Part("hidden"))
    x = layout.logits.columns
    partial, summed = layout.summed(into, x)
    gradient, gather = layout.gathered(into_gradient, x)
    table = Tensor(TABLE, vocabulary, hidden, sharded_over="z")
    summed_over = tuple(axis for axis in layout.stream.row_axes if axis not in layout.positions_over)
    order = order_of_rows(layout.context, rows.unit)
    positions = learned_positions(architecture, hidden, layout.positions_over, summed_over, into, into_gradient, order)
    tensors = (
        *positions.tensors,
        Tensor(f"{TABLE} whole", vocabulary, hidden),
        Tensor(f"d{TABLE} whole", vocabulary, hidden),
        *layout.wholes(rows, hidden, partial, gradient),
    )
    forward: Program = (
        AllGather(name="gather table", axis="z", source=TABLE, into=f"{TABLE} whole", overlap="oag"),
        Kernel(name="embed", function="embed", into=(partial,), sources=(TOKENS, f"{TABLE} whole")),
        *summed,
        *positions.fetch,
        *positions.add,
    )
    begin = Pointwise(name=f"zero d{TABLE} whole", function="zero", into=f"d{TABLE} whole")
    backward: Program = (
        *positions.gradient,
        *gather,
        *(() if architecture.shared_table else (begin,)),
        Kernel(
            name="embed gradient", function="embed_gradient", updates=(f"d{TABLE} whole",), sources=(TOKENS, gradient)
        ),
        ReduceScatter(name="scatter dtable", axis="z", source=f"d{TABLE} whole", into=f"d{TABLE}", overlap="ors"),
    )
    return Layer(tensors, (Parameter(table, layout.weight_sums), *positions.parameters), forward, backward)


def cross_entropy(logits: Layout, rows: Part, tokens: int, cap: float = 0.0) -> tuple[tuple[Tensor, ...], Program]:
    """Tensors and ops from the logits to the loss of `tokens` tokens and `dlogits`.

    Parameters
    ----------
    logits : layout of the logits
    rows : rows of the logits, uncut
    tokens : number of tokens of the global batch
    cap : soft cap of the logits; 0 for none
    """
    x, own_rows, vocabulary = logits.columns, logits.cut_rows(rows), Part("vocabulary")
    tensors = (
        logits.tensor("logits", rows, vocabulary),
        logits.tensor("dlogits", rows, vocabulary),
        Tensor("logits maxima", own_rows, ONE),
        Tensor("logits sums", own_rows, TWO),
    )
    scalars = (("cap", cap),)
    cap_logits = Kernel(name="cap logits", function="soft_cap", updates=("logits",), scalars=scalars)
    cap_gradient = Kernel(
        name="cap dlogits", function="soft_cap_gradient", updates=("dlogits",), sources=("logits",), scalars=scalars
    )
    program: Program = (
        *((cap_logits,) if cap else ()),
        Kernel(name="logits maxima", function="row_maxima", into=("logits maxima",), sources=("logits",)),
        AllReduce(name="largest logits", axis=x, buffer="logits maxima", combination="max"),
        Kernel(
            name="exponential sums",
            function="exponential_sums",
            into=("logits sums",),
            sources=("logits", "logits maxima", TARGETS),
        ),
        AllReduce(name="sum exponentials", axis=x, buffer="logits sums"),
        Kernel(
            name="cross entropy",
            function="cross_entropy",
            into=("dlogits", LOSS),
            sources=("logits", "logits maxima", "logits sums", TARGETS),
            scalars=(("weight", 1.0 / tokens),),
        ),
        *((cap_gradient,) if cap else ()),
        *(AllReduce(name=f"sum loss over {axis}", axis=axis, buffer=LOSS) for axis in logits.row_axes),
    )
    return tensors, program


def vocabulary_loss(
    layout: VocabularyLayout,
    rows: Part,
    source: str,
    source_gradient: str,
    tokens: int,
    architecture: Architecture = PLAIN,
) -> Layer:
    """The loss layer: logits, and their mean cross entropy over the vocabulary.

    The backward pass initialises the gradient of a shared table.

    Parameters
    ----------
    layout : layouts of embedding and loss
    rows : rows of the activation, uncut
    source, source_gradient : activation before the logits, and its gradient
    tokens : number of tokens of the global batch, over which the loss is averaged
    architecture : architecture of the model
    """
    x, y = layout.logits.columns, layout.stream.columns
    vocabulary, hidden = Part("vocabulary"), Part("hidden")
    used, gather_source = layout.gathered(source, x)
    partial, sum_logits = layout.summed("logits", y)
    gradient, gather_gradient = layout.gathered("dlogits", y)
    towards, sum_towards = layout.summed(source_gradient, x, "oar")
    entropy_tensors, entropy = cross_entropy(layout.logits, rows, tokens, architecture.logit_cap)
    name, output_table = _output_table(layout, architecture)
    again = " again" if architecture.shared_table else ""
    tensors = (
        *entropy_tensors,
        *layout.wholes(rows, layout.stream.cut_columns(hidden), used, towards),
        *layout.wholes(rows, layout.logits.cut_columns(vocabulary), partial, gradient),
        *output_table.tensors,
    )
    forward: Program = (
        AllGather(name=f"gather {name}{again}", axis="z", source=name, into=f"{name} whole", overlap="oag"),
        *gather_source,
        Gemm(name="multiply logits", a=used, b=f"{name} whole", c=partial, layout="NT"),
        *sum_logits,
        *entropy,
    )
    backward: Program = (
        *gather_gradient,
        Gemm(name=f"multiply {source_gradient}", a=gradient, b=f"{name} whole", c=towards),
        *sum_towards,
        Gemm(name=f"multiply d{name}", a=gradient, b=used, c=f"d{name} whole", layout="TN"),
        *output_table.backward,
    )
    return Layer(tensors, output_table.parameters, forward, backward)


def _output_table(layout: VocabularyLayout, architecture: Architecture) -> tuple[str, Layer]:
    """The table that makes the logits, and the loss layer's part of it; empty if it is the embedding's."""
    if architecture.shared_table:
        return TABLE, Layer((), (), (), ())
    name = OUTPUT_TABLE
    vocabulary, hidden = layout.logits.cut_columns(Part("vocabulary")), layout.stream.cut_columns(Part("hidden"))
    whole = Tensor(f"{name} whole", vocabulary, hidden)
    scatter = ReduceScatter(name=f"scatter d{name}", axis="z", source=f"d{whole.name}", into=f"d{name}", overlap="ors")
    table = Tensor(name, vocabulary, hidden, sharded_over="z")
    return name, Layer(
        (whole, replace(whole, name=f"d{whole.name}")), (Parameter(table, layout.weight_sums),), (), (scatter,)
    )
