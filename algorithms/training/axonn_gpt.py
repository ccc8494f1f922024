"""Communication seconds of a GPT under the 4D algorithm, by the closed form: what ranks its grids.

A block has four products, charged as an iteration with recomputation is: the
weight gathered twice, its gradient scattered once, the forward sum twice where
the forward pass is run again, the backward sum once, the data sum once.
Embedding and logits are left out, as the authors leave them out.

Source: Singh et al., arXiv 2305.13525, and the authors' public script.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quadrille.algorithms.analysis.axonn import NodeBandwidths, Seconds, axis_bandwidths, layer_cost
from quadrille.algorithms.schedule.grid import Axis, Grid

Form = Literal["exact", "authors"]
MODELLED: tuple[Axis, ...] = ("data", "z", "y", "x")
"""The axes of the model; it knows no pipeline."""


@dataclass(frozen=True, slots=True)
class Product:
    """A layer I_mk W_kn of a GPT block; a transposed one has x and y exchanged."""

    inputs: int
    outputs: int
    transposed: bool = False


def block_products(
    hidden: int, form: Form = "exact", *, qkv: int = 0, up: int = 0, down: int = 0
) -> tuple[Product, ...]:
    """The products of a GPT block: QKV H -> 3H, attention output H -> H, MLP up H -> 4H, MLP down 4H -> H.

    The second and the last are transposed.  The authors' script charges the last
    as H -> 4H with exchanged axes: for reproduction only.

    Parameters
    ----------
    qkv, up : columns of QKV and of the MLP's first product where they are not 3H and 4H
    down : rows of its second where they are not 4H: half as many as columns of the first where the MLP is gated
    """
    inner = down or 4 * hidden
    return (
        Product(hidden, qkv or 3 * hidden),
        Product(hidden, hidden, transposed=True),
        Product(hidden, up or 4 * hidden),
        Product(*((inner, hidden) if form == "exact" else (hidden, inner)), transposed=True),
    )


def block_seconds(
    rows: Seconds,
    products: Sequence[Product],
    lengths: Mapping[Axis, Any],
    bandwidths: Mapping[Axis, Any],
    *,
    recomputed: bool = True,
    gradient_bytes: int = 4,
) -> dict[Axis, Seconds]:
    """Communication seconds of a block in one training iteration, by axis.

    >>> lengths, rates = {"data": 1, "z": 1, "y": 1, "x": 2}, dict.fromkeys(MODELLED, 1.0)
    >>> block_seconds(3.0, block_products(4), lengths, rates)
    {'data': 0.0, 'z': 0.0, 'y': 0.0, 'x': 144.0}

    Parameters
    ----------
    rows : of one data-parallel replica
    recomputed : whether the forward pass runs twice, and with it its sums
    """
    found: dict[Axis, Seconds] = dict.fromkeys(MODELLED, 0 * rows)
    for one in products:
        cost = layer_cost(
            rows,
            one.inputs,
            one.outputs,
            lengths,
            bandwidths,
            transposed=one.transposed,
            gradient_bytes=gradient_bytes,
        )
        forward: Axis = "x" if one.transposed else "y"
        backward: Axis = "y" if one.transposed else "x"
        found[forward] = found[forward] + (2 if recomputed else 1) * cost.forward_sum
        found[backward] = found[backward] + cost.backward_sum
        found["z"] = found["z"] + cost.over_z
        found["data"] = found["data"] + cost.data_sum
    return found


def gpt_block_seconds(batch: int, sequence: int, hidden: int, grid: Grid, node: NodeBandwidths) -> float:
    """Communication seconds of one GPT block in one training iteration with recomputation, exact form."""
    return _one_grid(batch, sequence, block_products(hidden), grid, node)


def gpt_block_seconds_of_authors(batch: int, sequence: int, hidden: int, grid: Grid, node: NodeBandwidths) -> float:
    """As the authors' script has it.

    >>> from quadrille.algorithms.analysis.axonn import PERLMUTTER
    >>> in_features_first = Grid(y=2, x=2, z=8, order=("y", "x", "z", "data"))
    >>> round(gpt_block_seconds_of_authors(1024, 2048, 7168, in_features_first, PERLMUTTER), 6)
    0.68242
    """
    return _one_grid(batch, sequence, block_products(hidden, "authors"), grid, node)


def _one_grid(batch: int, sequence: int, products: Sequence[Product], grid: Grid, node: NodeBandwidths) -> float:
    rows = batch * sequence / grid.data
    lengths = {axis: grid.length(axis) for axis in MODELLED}
    return sum(block_seconds(rows, products, lengths, axis_bandwidths(grid, node)).values())
