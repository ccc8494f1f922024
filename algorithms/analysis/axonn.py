"""AxoNN's closed-form communication time of the 4D algorithm and of a GPT; used to rank grids.

The model has ring bandwidth terms only: no latency, no overlap.  Axes: y cuts k, x cuts n, z cuts m and shards the
weight, data cuts the batch.  In rank order, axis i has length G_i and stride P_i (the product of the lengths of the
faster axes). Its ring has the effective bandwidth

    B(P_i, G_i)                 from a table, if the group fits in a node (P_i G_i <= G_node)
    B_inter / min(G_node, P_i)  otherwise: rings that leave a node share its injection bandwidth

The second rule requires rings that share a node evenly: P_i divides G_node or is at least as long.  Lengths and
bandwidths may be arrays with one element for each of many grids.

A GPT block has four products.  An iteration gathers each weight twice, scatters its gradient once, and does the
backward and the data reduction once; the forward reduction counts twice with recomputation.  Embedding and logits are
omitted, as in the source.

Source: Singh, Singhania, Ranjan, Kirchenbauer, Geiping, Wen, Jain, Hans, Shu, Tomar, Goldstein, Bhatele, "A 4D hybrid
algorithm to scale parallel training to thousands of GPUs", arXiv 2305.13525; the tables and the costs of an iteration
as in the authors' public script.
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
"""Seconds of one grid, or of many grids at once."""


@dataclass(frozen=True, slots=True)
class NodeBandwidths:
    """Ring bandwidths of one kind of node.

    Parameters
    ----------
    gpus : number of GPUs of a node
    inside : bandwidth by (P, G): of a ring of G ranks with stride P, while all P rings of a node run at once [B/s]
    between : injection bandwidth of a node into the network [B/s]
    """

    gpus: int
    inside: Mapping[tuple[int, int], float]
    between: float


def _in_gib(gpus: int, inside: Mapping[tuple[int, int], float], between: float) -> NodeBandwidths:
    """Returns the authors' numbers, which their script takes as GiB/s, in bytes/s."""
    return NodeBandwidths(gpus, {key: rate * GIB for key, rate in inside.items()}, between * GIB)


# Source: the authors' public script; all-reduces of about 2.7 GB, bus-bandwidth normalisation.
PERLMUTTER = _in_gib(4, {(1, 2): 76, (1, 4): 225, (2, 2): 76}, 80)
FRONTIER = _in_gib(8, {(1, 2): 129, (1, 4): 52, (1, 8): 135, (2, 2): 50, (2, 4): 72, (4, 2): 36}, 40)


@dataclass(frozen=True, slots=True)
class LayerCost(Generic[Seconds]):
    """The communication time of one layer: seconds of each of its five collectives, each counted once."""

    gather_weight: Seconds
    scatter_gradient: Seconds
    forward_sum: Seconds
    backward_sum: Seconds
    data_sum: Seconds

    @property
    def forward(self) -> Seconds:
        """Communication time of the forward pass [s]."""
        return self.gather_weight + self.forward_sum

    @property
    def backward(self) -> Seconds:
        """Backward pass that gathers the weight again, without the data reduction."""
        return self.gather_weight + self.backward_sum + self.scatter_gradient

    @property
    def training(self) -> Seconds:
        """Communication time of the forward and backward pass with the data reduction [s]."""
        return self.forward + self.backward + self.data_sum

    @property
    def over_z(self) -> Seconds:
        """The weight gathers and the gradient scatter of an iteration."""
        return 2 * self.gather_weight + self.scatter_gradient


def effective_bandwidth(stride: int, length: int, node: NodeBandwidths) -> float:
    """Bytes per second of one ring of `length` ranks at stride `stride`, while its sibling rings run too.

    >>> effective_bandwidth(4, 8, PERLMUTTER) / GIB, effective_bandwidth(1, 4, PERLMUTTER) / GIB
    (20.0, 225.0)

    Raises
    ------
    InputError : a group inside a node that the table lacks; simulate it instead
    """
    bandwidth = known_bandwidth(stride, length, node)
    if bandwidth is None:
        listed = ", ".join(map(str, sorted(node.inside)))
        raise InputError(
            f"no bandwidth for (stride, length) = ({stride}, {length}): the table of nodes of {node.gpus} has "
            f"{listed}, and between nodes strides that divide {node.gpus} or are longer"
        )
    return bandwidth


def known_bandwidth(stride: int, length: int, node: NodeBandwidths) -> float | None:
    """The effective bandwidth, or None if neither the table nor the rule for several nodes has it.

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
    """Returns the effective bandwidth of every axis of `grid`, in its rank order [B/s].

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
    gradient_bytes: float = 4,
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
    m : rows of one data-parallel replica, for one grid or for each
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
"""Axes of the model; it has no pipeline."""


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """A layer I_mk W_kn of a GPT block; x and y are exchanged in a transposed layer."""

    inputs: int
    outputs: int
    transposed: bool = False


def block_products(
    hidden: int, form: Form = "exact", *, qkv: int = 0, attended: int = 0, up: int = 0, down: int = 0
) -> tuple[ProductSizes, ...]:
    """Returns the products of a GPT block: QKV H -> 3H, attention output H -> H, MLP up H -> 4H, MLP down 4H -> H.

    The second and fourth are transposed.  The authors' script counts the fourth as H -> 4H with exchanged axes; the
    form `authors` reproduces it.

    Parameters
    ----------
    qkv, up : columns of QKV and of the first MLP product, if they are not 3H and 4H
    attended : rows of the attention output product, if they are not H
    down : rows of the second MLP product, if they are not 4H; half the columns of the first one in a gated MLP
    """
    inner = down or 4 * hidden
    return (
        ProductSizes(hidden, qkv or 3 * hidden),
        ProductSizes(attended or hidden, hidden, transposed=True),
        ProductSizes(hidden, up or 4 * hidden),
        ProductSizes(*((inner, hidden) if form == "exact" else (hidden, inner)), transposed=True),
    )


def block_seconds(
    rows: Seconds,
    products: Sequence[ProductSizes],
    lengths: Mapping[Axis, Any],
    bandwidths: Mapping[Axis, Any],
    *,
    recomputed: bool = True,
    gradient_bytes: float = 4,
) -> dict[Axis, Seconds]:
    """Communication seconds of a block in one training iteration, by axis.

    >>> lengths, rates = {"data": 1, "z": 1, "y": 1, "x": 2}, dict.fromkeys(MODELLED, 1.0)
    >>> block_seconds(3.0, block_products(4), lengths, rates)
    {'data': 0.0, 'z': 0.0, 'y': 0.0, 'x': 144.0}

    Parameters
    ----------
    rows : rows of one data-parallel replica
    recomputed : whether the forward pass, with its reductions, runs twice
    """
    totals: dict[Axis, Seconds] = dict.fromkeys(MODELLED, 0 * rows)
    for product in products:
        cost = layer_cost(
            rows,
            product.inputs,
            product.outputs,
            lengths,
            bandwidths,
            transposed=product.transposed,
            gradient_bytes=gradient_bytes,
        )
        forward: Axis = "x" if product.transposed else "y"
        backward: Axis = "y" if product.transposed else "x"
        totals[forward] = totals[forward] + (2 if recomputed else 1) * cost.forward_sum
        totals[backward] = totals[backward] + cost.backward_sum
        totals["z"] = totals["z"] + cost.over_z
        totals["data"] = totals["data"] + cost.data_sum
    return totals
