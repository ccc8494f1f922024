"""Closed-form communication seconds of the 4D algorithm: rings, no latency, no overlap; used to rank grids.

Axes: y cuts k, x cuts n, z cuts m and the stored weight, data cuts the batch.
In rank order axis i has length G_i and stride P_i (the product of the lengths
of the faster axes).  Its ring runs at the effective bandwidth

    B(P_i, G_i)                 from a table, where the group stays inside a node (P_i G_i <= G_node)
    B_inter / min(G_node, P_i)  otherwise: the rings that leave a node share its injection bandwidth

Source: Singh, Singhania, Ranjan, Kirchenbauer, Geiping, Wen, Jain, Hans,
Shu, Tomar, Goldstein, Bhatele, "A 4D hybrid algorithm to scale parallel
training to thousands of GPUs", arXiv 2305.13525; the tables and the charges of
an iteration as in the authors' public script.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from algorithms.errors import InputError
from algorithms.grid import AXES, Axis, Grid
from algorithms.units import GIB


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
class LayerCost:
    """Seconds of each collective of one layer, each charged once."""

    gather_weight: float
    scatter_gradient: float
    forward_sum: float
    backward_sum: float
    data_sum: float

    @property
    def forward(self) -> float:
        return self.gather_weight + self.forward_sum

    @property
    def backward(self) -> float:
        """Backward pass that gathers the weight again, without the sum over data."""
        return self.gather_weight + self.backward_sum + self.scatter_gradient

    @property
    def training(self) -> float:
        return self.forward + self.backward + self.data_sum

    @property
    def recomputed_training(self) -> float:
        """As the authors charge an iteration: forward sum twice, weight gathered twice in all."""
        return self.training + self.forward_sum


def effective_bandwidth(stride: int, length: int, node: NodeBandwidths) -> float:
    """Bytes per second of one ring of `length` ranks, `stride` apart, while its siblings run too.

    >>> effective_bandwidth(4, 8, PERLMUTTER) / GIB, effective_bandwidth(1, 4, PERLMUTTER) / GIB
    (20.0, 225.0)

    Raises
    ------
    InputError : a group inside a node that the table lacks; simulate it instead
    """
    if length == 1:
        return inf
    if stride * length > node.gpus:
        return node.between / min(node.gpus, stride)
    if (stride, length) not in node.inside:
        known = ", ".join(map(str, sorted(node.inside)))
        raise InputError(f"no bandwidth for (stride, length) = ({stride}, {length}) in a node; the table has {known}")
    return node.inside[stride, length]


def axis_bandwidths(grid: Grid, node: NodeBandwidths) -> dict[Axis, float]:
    """The effective bandwidth of every axis of `grid`, in its rank order [B/s].

    >>> rates = axis_bandwidths(Grid(x=2, y=2, z=8), PERLMUTTER)
    >>> rates["x"] / GIB, rates["z"] / GIB
    (76.0, 20.0)
    """
    return {axis: effective_bandwidth(grid.stride(axis), grid.length(axis), node) for axis in AXES}


def layer_cost(
    m: float,
    k: float,
    n: float,
    lengths: Mapping[Axis, int],
    bandwidths: Mapping[Axis, float],
    *,
    transposed: bool = False,
    element_bytes: int = 2,
    gradient_bytes: int = 4,
) -> LayerCost:
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
    m : rows of one data-parallel replica
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


def gpt_block_seconds(batch: int, sequence: int, hidden: int, grid: Grid, node: NodeBandwidths) -> float:
    """Communication seconds of one GPT block in one training iteration with recomputation, exact form.

    Four layers: QKV H -> 3H, attention output H -> H (transposed), MLP up
    H -> 4H, MLP down 4H -> H (transposed).
    """
    return _block_seconds(batch, sequence, hidden, grid, node, mlp_down=(4 * hidden, hidden))


def gpt_block_seconds_of_authors(batch: int, sequence: int, hidden: int, grid: Grid, node: NodeBandwidths) -> float:
    """As the authors' script has it: MLP down charged as H -> 4H with exchanged axes.  For reproduction only.

    >>> in_features_first = Grid(y=2, x=2, z=8, order=("y", "x", "z", "data"))
    >>> round(gpt_block_seconds_of_authors(1024, 2048, 7168, in_features_first, PERLMUTTER), 6)
    0.68242
    """
    return _block_seconds(batch, sequence, hidden, grid, node, mlp_down=(hidden, 4 * hidden))


def _block_seconds(
    batch: int, sequence: int, hidden: int, grid: Grid, node: NodeBandwidths, mlp_down: tuple[int, int]
) -> float:
    bandwidths, lengths = axis_bandwidths(grid, node), grid.lengths
    rows = batch * sequence / grid.data
    normal = [(hidden, 3 * hidden), (hidden, 4 * hidden)]
    transposed = [(hidden, hidden), mlp_down]
    costs = [layer_cost(rows, k, n, lengths, bandwidths) for k, n in normal]
    costs += [layer_cost(rows, k, n, lengths, bandwidths, transposed=True) for k, n in transposed]
    return sum(cost.recomputed_training for cost in costs)
