"""Formulas of papers that several tests compare with."""

from functools import partial
from math import cbrt, sqrt

from quadrille.algorithms.analysis.axonn import MODELLED, axis_bandwidths, block_products, block_seconds
from quadrille.algorithms.analysis.communication_lower_bound import regime


def optimal_grid(m, k, n, ranks):
    """The real-valued grid that attains the bound: z cuts m, y cuts k, x cuts n."""
    case, sizes = regime(m, k, n, ranks), {"m": m, "k": k, "n": n}
    first, second, third = sorted(sizes, key=lambda dimension: -sizes[dimension])
    d1, d2 = sizes[first], sizes[second]
    cuts = {
        "1d": {first: ranks, second: 1, third: 1},
        "2d": {first: sqrt(d1 * ranks / d2), second: sqrt(d2 * ranks / d1), third: 1},
        "3d": {dimension: size / cbrt(m * k * n / ranks) for dimension, size in sizes.items()},
    }[case]
    return {"z": cuts["m"], "y": cuts["k"], "x": cuts["n"]}


def gpt_block_seconds(batch, sequence, hidden, grid, node, form="exact"):
    """Communication seconds of one GPT block in one training iteration with recomputation."""
    lengths = {axis: grid.length(axis) for axis in MODELLED}
    rows, bandwidths = batch * sequence / grid.data, axis_bandwidths(grid, node)
    return sum(block_seconds(rows, block_products(hidden, form), lengths, bandwidths).values())


gpt_block_seconds_of_authors = partial(gpt_block_seconds, form="authors")
