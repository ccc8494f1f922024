"""A matmul by NumPy: operands, products by the chain rule, and matrices assembled from the blocks of ranks."""

import numpy as np

from quadrille.runtime.operands.rectangles import split_block


def shapes(problem):
    """The shapes of A, B and dC."""
    m, k, n = problem.m, problem.k, problem.n
    return {
        "A": (k, m) if problem.transposed == "a" else (m, k),
        "B": (n, k) if problem.transposed == "b" else (k, n),
        "dC": (m, n),
    }


def products(problem, matrices):
    """The product C, and in training the gradients of both operands; stored transposes are undone and restored."""
    turned = {"A": problem.transposed == "a", "B": problem.transposed == "b"}
    a, b = (matrices[name].T if turned[name] else matrices[name] for name in "AB")
    if not problem.training:
        return {"C": a @ b}
    gradients = {"dA": matrices["dC"] @ b.T, "dB": a.T @ matrices["dC"]}
    return {"C": a @ b} | {name: one.T if turned[name[1]] else one for name, one in gradients.items()}


def whole_integers(problem, seed=0):
    random = np.random.default_rng(seed)
    return {name: random.integers(-4, 5, shapes(problem)[name]).astype(problem.dtype) for name in problem.inputs}


def assembled(schedule, execution, name, shape):
    """The whole matrix from the ranks' blocks, after a check that every element is written and all copies agree."""
    whole = np.full(shape, np.nan)
    for rank, outputs in execution.outputs.items():
        block = schedule.tensors[name].block(schedule.coordinates(rank))
        for part, values in split_block(block, outputs[name]):
            window = whole[part.row_start : part.row_stop, part.column_start : part.column_stop]
            assert np.all(np.isnan(window) | (window == values)), f"copies of {name} differ at rank {rank}"
            window[...] = values
    return whole
