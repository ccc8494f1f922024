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

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

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
