"""Closed-form communication seconds of the 4D algorithm: rings, no latency, no overlap; used to rank grids.

Axes: y cuts k, x cuts n, z cuts m and the stored weight, data cuts the batch.
In rank order axis i has length G_i and stride P_i (the product of the lengths
of the faster axes).  Its ring runs at the effective bandwidth

    B(P_i, G_i)                 from a table, where the group stays inside a node (P_i G_i <= G_node)
    B_inter / min(G_node, P_i)  otherwise: the rings that leave a node share its injection bandwidth

The second rule needs rings that share a node evenly: P_i divides G_node or is at least as long.
Lengths and bandwidths may be arrays, one element for each of many grids.

Source: Singh, Singhania, Ranjan, Kirchenbauer, Geiping, Wen, Jain, Hans,
Shu, Tomar, Goldstein, Bhatele, "A 4D hybrid algorithm to scale parallel
training to thousands of GPUs", arXiv 2305.13525; the tables and the charges of
an iteration as in the authors' public script.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.units import GIB

Seconds = TypeVar("Seconds", float, NDArray[np.float64])
"""Of one grid, or of many at once."""


@dataclass(frozen=True, slots=True)
class NodeBandwidths:
    """What rings get on one kind of node [B/s].

    `inside[P, G]`: all P rings of G ranks with stride P in one node at once.
    `between`: what one node injects into the network.
    """

    gpus: int
    inside: Mapping[tuple[int, int], float]
    between: float


def _in_gib(gpus: int, inside: Mapping[tuple[int, int], float], between: float) -> NodeBandwidths:
    """The authors' numbers, which their script takes as GiB/s."""
    return NodeBandwidths(gpus, {key: rate * GIB for key, rate in inside.items()}, between * GIB)


# Source: the authors' public script; all-reduces of about 2.7 GB, bus-bandwidth normalisation.
PERLMUTTER = _in_gib(4, {(1, 2): 76, (1, 4): 225, (2, 2): 76}, 80)
FRONTIER = _in_gib(8, {(1, 2): 129, (1, 4): 52, (1, 8): 135, (2, 2): 50, (2, 4): 72, (4, 2): 36}, 40)


@dataclass(frozen=True, slots=True)
class LayerCost(Generic[Seconds]):
    """Seconds of each collective of one layer, each charged once."""

    gather_weight: Seconds
    scatter_gradient: Seconds
    forward_sum: Seconds
    backward_sum: Seconds
    data_sum: Seconds

    @property
    def forward(self) -> Seconds:
        return self.gather_weight + self.forward_sum

    @property
    def backward(self) -> Seconds:
        """Backward pass that gathers the weight again, without the sum over data."""
        return self.gather_weight + self.backward_sum + self.scatter_gradient

    @property
    def training(self) -> Seconds:
        return self.forward + self.backward + self.data_sum

    @property
    def recomputed_training(self) -> Seconds:
        """As the authors charge an iteration: forward sum twice, weight gathered twice in all."""
        return self.training + self.forward_sum

    @property
    def over_z(self) -> Seconds:
        """An iteration's gathers of the weight and the scatter of its gradient."""
        return 2 * self.gather_weight + self.scatter_gradient


def effective_bandwidth(stride: int, length: int, node: NodeBandwidths) -> float:
    """Bytes per second of one ring of `length` ranks, `stride` apart, while its siblings run too.

    >>> effective_bandwidth(4, 8, PERLMUTTER) / GIB, effective_bandwidth(1, 4, PERLMUTTER) / GIB
    (20.0, 225.0)

    Raises
    ------
    InputError : a group inside a node that the table lacks; simulate it instead
    """
    found = known_bandwidth(stride, length, node)
    if found is None:
        known = ", ".join(map(str, sorted(node.inside)))
        raise InputError(
            f"no bandwidth for (stride, length) = ({stride}, {length}): the table of nodes of {node.gpus} has {known}, "
            f"and between nodes strides that divide {node.gpus} or are longer"
        )
    return found


def known_bandwidth(stride: int, length: int, node: NodeBandwidths) -> float | None:
    """The same, and None where neither the table nor the rule for nodes has it.

    >>> known_bandwidth(1, 3, PERLMUTTER), known_bandwidth(3, 8, PERLMUTTER)
    (None, None)
    """
    if length == 1:
        return inf
    if stride * length <= node.gpus:
        return node.inside.get((stride, length))
    if stride < node.gpus and node.gpus % stride:
        return None
    return node.between / min(node.gpus, stride)


def axis_bandwidths(grid: Grid, node: NodeBandwidths) -> dict[Axis, float]:
    """The effective bandwidth of every axis of `grid`, in its rank order [B/s].

    >>> rates = axis_bandwidths(Grid(x=2, y=2, z=8), PERLMUTTER)
    >>> rates["x"] / GIB, rates["z"] / GIB
    (76.0, 20.0)
    """
    return {axis: effective_bandwidth(grid.stride(axis), grid.length(axis), node) for axis in AXES}


def layer_cost(
    m: Seconds,
    k: float,
    n: float,
    lengths: Mapping[Axis, Any],
    bandwidths: Mapping[Axis, Any],
    *,
    transposed: bool = False,
    element_bytes: int = 2,
    gradient_bytes: int = 4,
) -> LayerCost[Seconds]:
    """Seconds of the five collectives of one layer O_mn = I_mk @ W_kn.

        gather W over z      (1/Bz)  (Gz-1)     b k n/(Gx Gy Gz)
        scatter dW over z    (1/Bz)  (Gz-1)/Gz  b k n/(Gx Gy)
        sum O over y         (2/By)  (Gy-1)/Gy  b m n/(Gz Gx)
        sum dI over x        (2/Bx)  (Gx-1)/Gx  b m k/(Gz Gy)
        sum dW over data     (2/Bd)  (Gd-1)/Gd  b_gradient k n/(Gx Gy Gz)

    A `transposed` layer exchanges x and y.

    >>> cost = layer_cost(4, 2, 2, {"data": 1, "z": 1, "y": 2, "x": 1}, dict.fromkeys(AXES, 1.0))
    >>> cost.forward_sum, cost.training
    (16.0, 16.0)

    Parameters
    ----------
    m : rows of one data-parallel replica, or of each grid's
    bandwidths : effective bandwidth of each axis [B/s]
    element_bytes, gradient_bytes : b and b_gradient
    """
    axes: tuple[Axis, ...] = ("x", "y", "z", "data") if transposed else ("y", "x", "z", "data")
    gy, gx, gz, gd = (lengths[axis] for axis in axes)
    by, bx, bz, bd = (bandwidths[axis] for axis in axes)
    weight = k * n / (gx * gy * gz)
    return LayerCost(
        gather_weight=(gz - 1) * element_bytes * weight / bz,
        scatter_gradient=(gz - 1) * element_bytes * weight / bz,
        forward_sum=2 * (gy - 1) / gy * element_bytes * m * n / (gz * gx) / by,
        backward_sum=2 * (gx - 1) / gx * element_bytes * m * k / (gz * gy) / bx,
        data_sum=2 * (gd - 1) / gd * gradient_bytes * weight / bd,
    )


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
