"""Embedding and loss on a 2D mesh (Optimus): the vocabulary table in blocks, its panels broadcast as in SUMMA.

    table      vocabulary/z × hidden/x       replicated over data and y
    positions  sequence × hidden/x           sharded over z, gathered for use
    X          rows/data/y/z × hidden/x      each panel adds the rows of its tokens, plus positions
    logits     rows/data/y/z × vocabulary/x

    logits = N table^T        NT: panels of the table are broadcast along z, those of the logits reduced along x
    dN     = dlogits table    NN: panels of the gradient are broadcast along x, those of the table along z
    dtable = dlogits^T N      TN: panels of the gradient are broadcast along x, those of dtable reduced along z

The loss needs the largest logit and the sum of exponentials of every row, both reduced over x.  A separate output table
has the same layout.

Source: Xu et al. (Optimus), arXiv 2104.05343, section 3.2.
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.matmuls.summa import MovedPanels, product_nn, product_nt, product_tn
from quadrille.algorithms.schedule.ops import Kernel, Pointwise
from quadrille.algorithms.schedule.parts import Panel, Part
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.scheme import Layout
from quadrille.algorithms.training.vocabulary import OUTPUT_TABLE, TABLE, TOKENS, cross_entropy, learned_positions

PANEL, TOWARDS_PANEL = f"{TABLE} panel", f"d{TABLE} panel"
OUTPUT_PANEL, TOWARDS_OUTPUT_PANEL = f"{OUTPUT_TABLE} panel", f"d{OUTPUT_TABLE} panel"
TOKENS_SHARE, TOKENS_PANEL = f"d{TABLE} tokens", f"d{TABLE} tokens panel"
"""Contribution of the embedding, the tokens that were read, to the gradient of a shared table."""
BOTH_SHARES = f"d{TABLE} both"
"""Contribution of the loss to the gradient of a shared table, to which the embedding's is added."""


def mesh_embedding(
    blocks: Layout, panel: Panel, rows: Part, into: str, into_gradient: str, architecture: Architecture = PLAIN
) -> Layer:
    """The embedding layer on a mesh, X = table[tokens] + positions.

    The backward pass adds to the gradient of a shared table, which the loss initialises.

    Parameters
    ----------
    blocks : layout of activations
    panel : panels of the vocabulary
    rows : rows of the activation X, uncut
    into, into_gradient : X and its gradient
    architecture : architecture of the model
    """
    hidden, window = blocks.cut_columns(Part("hidden")), Part("vocabulary", panel=panel)
    table = Tensor(TABLE, Part("vocabulary", ("z",)), hidden)
    positions = learned_positions(architecture, hidden, ("z",), ("y", "data"), into, into_gradient)
    share, shared = f"{into} panel", architecture.shared_table
    tensors = (
        Tensor(PANEL, window, hidden),
        *((Tensor(TOWARDS_PANEL, window, hidden),) if shared else ()),
        Tensor(TOKENS_PANEL, window, hidden),
        *((replace(table, name=TOKENS_SHARE), replace(table, name=BOTH_SHARES)) if shared else ()),
        *positions.tensors,
        blocks.tensor(share, rows, Part("hidden")),
    )
    add_panel: Program = (
        MovedPanels("send table panel", TABLE, PANEL, "oag").send(panel, "z"),
        Kernel(name="embed", function="embed", into=(share,), sources=(TOKENS, PANEL)),
        Kernel(name="add embedded", function="add_to", updates=(into,), sources=(share,)),
    )
    token_gradient = TOKENS_SHARE if shared else f"d{TABLE}"
    towards_panel: Program = (
        Pointwise(name="zero dtable panel", function="zero", into=TOKENS_PANEL),
        Kernel(
            name="embed gradient", function="embed_gradient", updates=(TOKENS_PANEL,), sources=(TOKENS, into_gradient)
        ),
        MovedPanels("sum embedded panel", token_gradient, TOKENS_PANEL, "ors").collect(panel, "z"),
    )
    both: Program = (
        Kernel(name="add embedded gradient", function="add_to", updates=(BOTH_SHARES,), sources=(TOKENS_SHARE,)),
        Pointwise(name="finish dtable", function="copy", into=f"d{TABLE}", sources=(BOTH_SHARES,)),
    )
    forward: Program = (
        *positions.fetch,
        Pointwise(name=f"zero {into}", function="zero", into=into),
        Repeat(panel.loop, panel, add_panel),
        *positions.add,
    )
    backward: Program = (*positions.gradient, Repeat(panel.loop, panel, towards_panel), *(both if shared else ()))
    return Layer(tensors, (Parameter(table, ("y", "data")), *positions.parameters), forward, backward)


def mesh_vocabulary_loss(
    blocks: Layout,
    panel: Panel,
    rows: Part,
    source: str,
    source_gradient: str,
    tokens: int,
    architecture: Architecture = PLAIN,
) -> Layer:
    """The loss layer on a mesh: logits, and their mean cross entropy over the vocabulary.

    The backward pass initialises the gradient of a shared table.

    Parameters
    ----------
    blocks : layout of activations
    panel : panels of the vocabulary
    rows : rows of the activation, uncut
    source, source_gradient : activation before the logits, and its gradient
    tokens : number of tokens of the global batch, over which the loss is averaged
    architecture : architecture of the model
    """
    own_rows, own = blocks.cut_rows(rows), _output_table(blocks, panel, architecture)
    entropy_tensors, entropy = cross_entropy(blocks, rows, tokens, architecture.logit_cap)
    tensors = (*entropy_tensors, Tensor("logits panel", own_rows, Part("vocabulary", panel=panel)), *own.tensors)
    forward: Program = (
        *product_nt(
            panel,
            "multiply logits",
            source,
            MovedPanels(f"send {own.name} panel to logits", own.name, own.panel, "oag"),
            MovedPanels("sum logits panel", "logits", "logits panel"),
        ),
        *entropy,
    )
    gradient = MovedPanels("send dlogits panel", "dlogits", "logits panel", "oag")
    backward: Program = (
        *product_nn(
            panel,
            f"zero {source_gradient}",
            f"multiply {source_gradient}",
            gradient,
            MovedPanels(f"send {own.name} panel again", own.name, own.panel, "oag"),
            source_gradient,
        ),
        *product_tn(
            panel,
            f"multiply d{own.name}",
            replace(gradient, op="send dlogits panel again"),
            source,
            MovedPanels(f"sum d{own.name} panel", own.gradient, own.towards_panel, "ors"),
        ),
    )
    return Layer(tensors, own.parameters, forward, backward)


@dataclass(frozen=True, slots=True)
class _OutputTable:
    """The table that makes the logits, and the loss's part of it beside the embedding's.

    Parameters
    ----------
    panel, towards_panel : panel of the table, and of its gradient
    gradient : gradient that the loss writes
    """

    name: str
    panel: str
    towards_panel: str
    gradient: str
    tensors: tuple[Tensor, ...] = ()
    parameters: tuple[Parameter, ...] = ()


def _output_table(blocks: Layout, panel: Panel, architecture: Architecture) -> _OutputTable:
    if architecture.shared_table:
        return _OutputTable(TABLE, PANEL, TOWARDS_PANEL, BOTH_SHARES)
    hidden, window = blocks.cut_columns(Part("hidden")), Part("vocabulary", panel=panel)
    panels = tuple(Tensor(name, window, hidden) for name in (OUTPUT_PANEL, TOWARDS_OUTPUT_PANEL))
    table = Parameter(Tensor(OUTPUT_TABLE, Part("vocabulary", ("z",)), hidden), ("y", "data"))
    return _OutputTable(OUTPUT_TABLE, OUTPUT_PANEL, TOWARDS_OUTPUT_PANEL, f"d{OUTPUT_TABLE}", panels, (table,))
