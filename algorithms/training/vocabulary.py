"""Embedding and vocabulary-parallel loss of a language model.

    table   vocabulary/x × hidden/y   sharded over z, gathered for use
    X       rows × hidden/y           rows of the table by token, reduced over x, plus positions
    logits  rows × vocabulary/x       normalised X times the transposed table, reduced over y

The loss needs the largest logit and the sum of exponentials of every row, both reduced over x; no rank holds a whole
row.  Scattered activations are gathered before use, and sums are scattered.  Embedding and loss share the table, whose
gradient the loss initialises; or the logits have an output table of their own.

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
from quadrille.algorithms.training.scheme import ONE, TWO, Layout

TABLE, OUTPUT_TABLE, POSITIONS = "table", "output table", "positions"
TOKENS, TARGETS = "tokens", "targets"
WHOLE_ROWS: tuple[Axis, ...] = ("data", "z")


@dataclass(frozen=True, slots=True)
class VocabularyLayout:
    """Layouts of embedding and loss.

    Parameters
    ----------
    stream, logits : layouts of the activations and of the logits
    scattered : whether both are scattered
    positions_over : axes that shard the positions, outermost first; gathered for use
    """

    stream: Layout
    logits: Layout
    scattered: bool
    positions_over: tuple[Axis, ...] = ()

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
        layout = Layout(WHOLE_ROWS, axis)
        return [layout.tensor(name, rows, columns) for name in names] if self.scattered else []


def sharded(tensor: Tensor, over: tuple[Axis, ...]) -> tuple[list[Tensor], Program, Program, str]:
    """A parameter sharded over several axes: intermediate tensors, ops that gather it, and ops that scatter its
    gradient.

    Returns
    -------
    the tensors beside the stored one, both programs, and the name of the whole; the tensor itself if nothing is sharded
    """
    ways = [tensor.name] + [f"{tensor.name} over {axis}" for axis in reversed(over[:-1])] + [f"{tensor.name} whole"]
    if not over:
        return [], (), (), tensor.name
    tensors: list[Tensor] = []
    gathers: list[AllGather] = []
    scatters: list[ReduceScatter] = []
    for left in range(len(over) - 1, -1, -1):
        source, into, axis = ways[len(over) - 1 - left], ways[len(over) - left], over[left]
        held = replace(tensor, name=into, sharded_over=over[:left] or None, copies=())
        tensors += [held, replace(held, name=f"d{into}")]
        gathers.append(AllGather(name=f"gather {into}", axis=axis, source=source, into=into, overlap="oag"))
        name = f"scatter d{into}"
        scatters.insert(0, ReduceScatter(name=name, axis=axis, source=f"d{into}", into=f"d{source}", overlap="ors"))
    return tensors, tuple(gathers), tuple(scatters), ways[-1]


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
    towards_into: str,
) -> LearnedPositions:
    """Positions added to an activation, sharded over some axes; none if the architecture learns none."""
    if architecture.positions != "learned":
        return LearnedPositions()
    positions = Tensor(POSITIONS, Part("sequence"), columns, sharded_over=over or None)
    on_the_way, gather, scatter, whole = sharded(positions, over)
    add = Kernel(name="add positions", function="add_positions", updates=(into,), sources=(whole,))
    sums = Kernel(name="sum dpositions", function="position_sums", into=(f"d{whole}",), sources=(towards_into,))
    return LearnedPositions(tuple(on_the_way), (Parameter(positions, summed_over),), gather, (add,), (sums, *scatter))


def embedding(
    ends: VocabularyLayout, rows: Part, into: str, towards_into: str, architecture: Architecture = PLAIN
) -> Layer:
    """X = table[tokens] + positions; the backward pass adds to the gradient of a shared table, which the loss
    initialises.
    """
    vocabulary, hidden = ends.logits.cut_columns(Part("vocabulary")), ends.stream.cut_columns(Part("hidden"))
    x = ends.logits.columns
    partial, summed = ends.summed(into, x)
    gradient, gather = ends.gathered(towards_into, x)
    table = Tensor(TABLE, vocabulary, hidden, sharded_over="z")
    summed_over = tuple(axis for axis in ends.stream.row_axes if axis not in ends.positions_over)
    positions = learned_positions(architecture, hidden, ends.positions_over, summed_over, into, towards_into)
    tensors = (
        *positions.tensors,
        Tensor(f"{TABLE} whole", vocabulary, hidden),
        Tensor(f"d{TABLE} whole", vocabulary, hidden),
        *ends.wholes(rows, hidden, partial, gradient),
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
    return Layer(tensors, (Parameter(table, ("data",)), *positions.parameters), forward, backward)


def cross_entropy(logits: Layout, rows: Part, tokens: int) -> tuple[tuple[Tensor, ...], Program]:
    """Tensors and ops from the logits to the loss of `tokens` tokens and `dlogits`."""
    x, own_rows, vocabulary = logits.columns, logits.cut_rows(rows), Part("vocabulary")
    tensors = (
        logits.tensor("logits", rows, vocabulary),
        logits.tensor("dlogits", rows, vocabulary),
        Tensor("logits maxima", own_rows, ONE),
        Tensor("logits sums", own_rows, TWO),
    )
    program: Program = (
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
        *(AllReduce(name=f"sum loss over {axis}", axis=axis, buffer=LOSS) for axis in logits.row_axes),
    )
    return tensors, program


def vocabulary_loss(
    ends: VocabularyLayout,
    rows: Part,
    source: str,
    towards_source: str,
    tokens: int,
    architecture: Architecture = PLAIN,
) -> Layer:
    """Mean cross entropy of `tokens` tokens; the backward pass initialises the gradient of a shared table."""
    x, y = ends.logits.columns, ends.stream.columns
    vocabulary, hidden = Part("vocabulary"), Part("hidden")
    used, gather_source = ends.gathered(source, x)
    partial, sum_logits = ends.summed("logits", y)
    gradient, gather_gradient = ends.gathered("dlogits", y)
    towards, sum_towards = ends.summed(towards_source, x, "oar")
    entropy_tensors, entropy = cross_entropy(ends.logits, rows, tokens)
    name, own = _output_table(ends, architecture)
    again = " again" if architecture.shared_table else ""
    tensors = (
        *entropy_tensors,
        *ends.wholes(rows, ends.stream.cut_columns(hidden), used, towards),
        *ends.wholes(rows, ends.logits.cut_columns(vocabulary), partial, gradient),
        *own.tensors,
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
        Gemm(name=f"multiply {towards_source}", a=gradient, b=f"{name} whole", c=towards),
        *sum_towards,
        Gemm(name=f"multiply d{name}", a=gradient, b=used, c=f"d{name} whole", layout="TN"),
        *own.backward,
    )
    return Layer(tensors, own.parameters, forward, backward)


def _output_table(ends: VocabularyLayout, architecture: Architecture) -> tuple[str, Layer]:
    """The table that makes the logits, and the loss layer's part of it; empty if it is the embedding's."""
    if architecture.shared_table:
        return TABLE, Layer((), (), (), ())
    name = OUTPUT_TABLE
    vocabulary, hidden = ends.logits.cut_columns(Part("vocabulary")), ends.stream.cut_columns(Part("hidden"))
    whole = Tensor(f"{name} whole", vocabulary, hidden)
    scatter = ReduceScatter(name=f"scatter d{name}", axis="z", source=f"d{whole.name}", into=f"d{name}", overlap="ors")
    table = Tensor(name, vocabulary, hidden, sharded_over="z")
    return name, Layer((whole, replace(whole, name=f"d{whole.name}")), (Parameter(table, ("data",)),), (), (scatter,))
