"""The two ends of a language model on a mesh: the table in blocks, its panels broadcast down the mesh's columns.

    table      vocabulary/z × hidden/x       repeated over data and y
    positions  sequence × hidden/x           sharded over z, gathered for use
    X          rows/data/y/z × hidden/x      each panel adds the rows of the tokens that fall in it, plus positions
    logits     rows/data/y/z × vocabulary/x

    logits = N table^T        NT: panels of the table go along z, those of the logits are summed along x
    dN     = dlogits table    NN: panels of the gradient go along x, those of the table along z
    dtable = dlogits^T N      TN: panels of the gradient go along x, those of dtable are summed along z

The loss needs of every row its largest logit and the sum of its exponentials, both over x.

Source: Xu et al. (Optimus), arXiv 2104.05343, section 3.2.
"""

from dataclasses import replace

from algorithms.matmuls.summa import Moved, product_nn, product_nt, product_tn
from algorithms.ops import Kernel, Pointwise
from algorithms.parts import Panel, Part
from algorithms.schedule import Program, Repeat
from algorithms.tensors import Tensor
from algorithms.training.layers import Layer, Parameter
from algorithms.training.scheme import Layout
from algorithms.training.vocabulary import POSITIONS, TABLE, TOKENS, cross_entropy, sharded

PANEL, TOWARDS_PANEL = f"{TABLE} panel", f"d{TABLE} panel"
TOKENS_SHARE, TOKENS_PANEL = f"d{TABLE} tokens", f"d{TABLE} tokens panel"
"""What the tokens that were read give to the table's gradient."""
BOTH_SHARES = f"d{TABLE} both"
"""What the loss gives to it, and then both."""


def mesh_embedding(blocks: Layout, panel: Panel, rows: Part, into: str, towards_into: str) -> Layer:
    """X = table[tokens] + positions; its backward pass adds to the table's gradient, which the loss has begun."""
    hidden, window = blocks.cut_columns(Part("hidden")), Part("vocabulary", panel=panel)
    table = Tensor(TABLE, Part("vocabulary", ("z",)), hidden)
    positions = Tensor(POSITIONS, Part("sequence"), hidden, sharded_over="z")
    on_the_way, gather_positions, scatter_positions, whole = sharded(positions, ("z",))
    share = f"{into} panel"
    tensors = (
        Tensor(PANEL, window, hidden),
        Tensor(TOWARDS_PANEL, window, hidden),
        Tensor(TOKENS_PANEL, window, hidden),
        replace(table, name=TOKENS_SHARE),
        replace(table, name=BOTH_SHARES),
        *on_the_way,
        blocks.tensor(share, rows, Part("hidden")),
    )
    add_panel: Program = (
        Moved("send table panel", TABLE, PANEL, "oag").send(panel, "z"),
        Kernel(name="embed", function="embed", into=(share,), sources=(TOKENS, PANEL)),
        Kernel(name="add embedded", function="add_to", updates=(into,), sources=(share,)),
    )
    towards_panel: Program = (
        Pointwise(name="zero dtable panel", function="zero", into=TOKENS_PANEL),
        Kernel(
            name="embed gradient", function="embed_gradient", updates=(TOKENS_PANEL,), sources=(TOKENS, towards_into)
        ),
        Moved("sum embedded panel", TOKENS_SHARE, TOKENS_PANEL, "ors").collect(panel, "z"),
    )
    forward: Program = (
        *gather_positions,
        Pointwise(name=f"zero {into}", function="zero", into=into),
        Repeat(panel.loop, panel, add_panel),
        Kernel(name="add positions", function="add_positions", updates=(into,), sources=(whole,)),
    )
    backward: Program = (
        Kernel(name="sum dpositions", function="position_sums", into=(f"d{whole}",), sources=(towards_into,)),
        *scatter_positions,
        Repeat(panel.loop, panel, towards_panel),
        Kernel(name="add embedded gradient", function="add_to", updates=(BOTH_SHARES,), sources=(TOKENS_SHARE,)),
        Pointwise(name="finish dtable", function="copy", into=f"d{TABLE}", sources=(BOTH_SHARES,)),
    )
    return Layer(tensors, (Parameter(table, ("y", "data")), Parameter(positions, ("y", "data"))), forward, backward)


def mesh_vocabulary_loss(
    blocks: Layout, panel: Panel, rows: Part, source: str, towards_source: str, tokens: int
) -> Layer:
    """Mean cross entropy of so many tokens; the backward pass begins the table's gradient."""
    own_rows = blocks.cut_rows(rows)
    made, entropy = cross_entropy(blocks, rows, tokens)
    tensors = (*made, Tensor("logits panel", own_rows, Part("vocabulary", panel=panel)))
    forward: Program = (
        *product_nt(
            panel,
            "multiply logits",
            source,
            Moved("send table panel to logits", TABLE, PANEL, "oag"),
            Moved("sum logits panel", "logits", "logits panel"),
        ),
        *entropy,
    )
    gradient = Moved("send dlogits panel", "dlogits", "logits panel", "oag")
    backward: Program = (
        *product_nn(
            panel,
            f"zero {towards_source}",
            f"multiply {towards_source}",
            gradient,
            Moved("send table panel again", TABLE, PANEL, "oag"),
            towards_source,
        ),
        *product_tn(
            panel,
            "multiply dtable",
            replace(gradient, op="send dlogits panel again"),
            source,
            Moved("sum dtable panel", BOTH_SHARES, TOWARDS_PANEL, "ors"),
        ),
    )
    return Layer(tensors, (), forward, backward)
