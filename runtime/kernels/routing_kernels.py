"""Kernels of a layer of experts: choice of experts, order of rows, their weighted sum, and biases of experts.

A token has a row for each chosen expert.  `places` says where each row stands when the rows of a rank are sorted by
expert; rows of one expert keep the order of the tokens.  Experts with equal scores are chosen by their number.

With a capacity, an expert takes the first rows up to it, and the others are dropped: their place is -1, their share 0.
Then the last row of a rank's rows stays unused, so place -1 harms nothing when it is written.
"""

from typing import Any

from quadrille.algorithms.training.experts import most_rows
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.kernel_arguments import KernelArguments


def _probabilities(args: KernelArguments, scores: Array) -> Array:
    """The softmax, or the sigmoid, of the scores of every token."""
    if args.scalars["sigmoid"]:
        return 0.5 * (1 + args.xp.tanh(0.5 * scores))
    exponentials = args.xp.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def route(args: KernelArguments) -> None:
    """The experts of every token, their shares, the places of its rows, and the rows of each expert."""
    (scores,), xp = args.sources, args.xp
    chosen, shares, places, counts = args.into
    top = int(args.scalars["top_k"])
    probabilities = _probabilities(args, scores)
    chosen[...] = xp.argsort(-_of_chosen_groups(args, scores, probabilities), axis=1, kind="stable")[:, :top]
    weights = xp.take_along_axis(probabilities, chosen, axis=1)
    if args.scalars["normalised"]:
        weights = weights / weights.sum(axis=1, keepdims=True)
    shares[...] = weights * args.scalars["scale"]
    flat, experts = chosen.reshape(-1), scores.shape[1]
    order, rows = xp.argsort(flat, kind="stable"), xp.bincount(flat, minlength=experts)
    most = most_rows(args.scalars["capacity"], flat.size, experts)
    is_taken = xp.arange(flat.size) - (xp.cumsum(rows) - rows)[flat[order]] < most
    place = xp.empty_like(flat)
    place[order] = xp.where(is_taken, xp.cumsum(is_taken) - 1, -1)
    places[...] = place.reshape(places.shape)
    shares[places < 0] = 0
    counts[...] = xp.minimum(rows, most)


def _of_chosen_groups(args: KernelArguments, scores: Array, probabilities: Array) -> Array:
    """The scores of the experts of the groups that a token chooses; the others are below all numbers."""
    xp, groups, chosen = args.xp, int(args.scalars["groups"]), int(args.scalars["chosen_groups"])
    if chosen == groups:
        return scores
    of_groups = probabilities.reshape(len(scores), groups, -1)
    each = max(1, int(args.scalars["top_k"]) // chosen)
    sums = xp.sort(of_groups, axis=2)[:, :, -each:].sum(axis=2)
    outside = xp.argsort(-sums, axis=1, kind="stable")[:, chosen:]
    limited = scores.reshape(of_groups.shape).copy()
    limited[xp.arange(len(scores))[:, None], outside] = -xp.inf
    return limited.reshape(scores.shape)


def _taken(rows: Array, places: Array, slot: int) -> Array:
    """The row of every token for its expert of a slot; zeros where the row is dropped."""
    place = places[:, slot]
    taken = rows[place]
    taken[place < 0] = 0
    return taken


def route_gradient(args: KernelArguments) -> None:
    """The gradient of the scores, and the auxiliary loss of the tokens of a rank.

    A fourth source has the rows of each expert in whole sequences, of which other ranks have tokens.
    """
    scores, chosen, towards_shares = args.sources[:3]
    xp, probabilities = args.xp, _probabilities(args, scores)
    towards = xp.zeros_like(probabilities)
    xp.put_along_axis(towards, chosen, _towards_chosen(args, probabilities, chosen, towards_shares), axis=1)
    towards_mean, loss = _balance(args, probabilities, chosen)
    towards += towards_mean
    if args.scalars["sigmoid"]:
        args.into[0][...] = towards * probabilities * (1 - probabilities)
    else:
        args.into[0][...] = probabilities * (towards - (towards * probabilities).sum(axis=1, keepdims=True))
    args.into[1][...] = loss


def _towards_chosen(args: KernelArguments, probabilities: Array, chosen: Array, towards_shares: Array) -> Array:
    """The gradient of the probabilities of the chosen experts."""
    towards = towards_shares * args.scalars["scale"]
    if not args.scalars["normalised"]:
        return towards
    weights = args.xp.take_along_axis(probabilities, chosen, axis=1)
    total = weights.sum(axis=1, keepdims=True)
    return (towards - (towards * weights).sum(axis=1, keepdims=True) / total) / total


def _balance(args: KernelArguments, probabilities: Array, chosen: Array) -> tuple[Any, Any]:
    """The gradient of all probabilities by the auxiliary loss, and the loss of the rows; zeros without one."""
    coefficient = args.scalars["balance"]
    if not coefficient:
        return 0.0, 0.0
    sequence, (tokens, top) = int(args.scalars["sequence"]), chosen.shape
    if len(args.sources) > 3:
        counts, number = args.sources[3], args.batch_rows() // sequence - args.blocks[3].rows[0]
    else:
        number = args.xp.arange(tokens) // sequence
        counts = _counts(args, chosen, number, (tokens // sequence, probabilities.shape[1]))
    sums = probabilities.sum(axis=1, keepdims=True)
    weights = counts[number] * (coefficient * probabilities.shape[1] / (top * sequence * sequence))
    loss, slopes = (weights * probabilities / sums).sum(), weights
    if args.scalars["sigmoid"]:
        slopes = (slopes - (slopes * probabilities).sum(axis=1, keepdims=True) / sums) / sums
    return slopes, loss


def _counts(args: KernelArguments, chosen: Array, number: Array, shape: tuple[int, int]) -> Array:
    """The rows of each expert in each of a number of sequences; `number` is that of the sequence of each token."""
    in_sequence = (chosen + number[:, None] * shape[1]).reshape(-1)
    counts: Array = args.xp.bincount(in_sequence, minlength=shape[0] * shape[1]).reshape(shape)
    return counts


def sequence_loads(args: KernelArguments) -> None:
    """The rows of each expert in every sequence, among the tokens of a rank."""
    (into,), (chosen,) = args.into, args.sources
    number = args.batch_rows() // int(args.scalars["sequence"]) - args.written[0].rows[0]
    into[...] = _counts(args, chosen, number, into.shape)


def permute(args: KernelArguments) -> None:
    """A row for each expert of every token, sorted by expert."""
    x, places = args.sources
    for slot in range(places.shape[1]):
        args.into[0][places[:, slot]] = x


def permute_gradient(args: KernelArguments) -> None:
    """The sum of the gradients of a token's rows."""
    towards_rows, places = args.sources
    args.into[0][...] = _taken(towards_rows, places, 0)
    for slot in range(1, places.shape[1]):
        args.into[0][...] += _taken(towards_rows, places, slot)


def combine(args: KernelArguments) -> None:
    """The sum of a token's rows, each multiplied by its share."""
    rows, shares, places = args.sources
    args.into[0][...] = _taken(rows, places, 0) * shares[:, :1]
    for slot in range(1, places.shape[1]):
        args.into[0][...] += _taken(rows, places, slot) * shares[:, slot : slot + 1]


def combine_gradient(args: KernelArguments) -> None:
    """The gradients of the rows, and of their shares."""
    g, rows, shares, places = args.sources
    towards_rows, towards_shares = args.into
    for slot in range(places.shape[1]):
        towards_rows[places[:, slot]] = g * shares[:, slot : slot + 1]
        towards_shares[:, slot] = (g * _taken(rows, places, slot)).sum(axis=1)


def _expert_of_rows(args: KernelArguments, rows: int, experts: tuple[int, int]) -> tuple[Array, Array]:
    """The place of each row's expert among a range of experts, and whether an expert has the row."""
    xp, counts = args.xp, args.sources[1]
    ends = xp.cumsum(counts.sum(axis=0)[slice(*experts)])
    place = xp.searchsorted(ends, xp.arange(rows), side="right")
    return place, place < len(ends)


def add_expert_bias(args: KernelArguments) -> None:
    """Adds the bias of its expert to each row."""
    (x,), biases = args.updates, args.sources[0]
    place, is_taken = _expert_of_rows(args, len(x), args.blocks[0].rows)
    x[...] += args.xp.where(is_taken[:, None], biases[args.xp.minimum(place, len(biases) - 1)], 0)


def expert_column_sums(args: KernelArguments) -> None:
    """The sum of the rows of each expert, as a product with a matrix of ones and zeros."""
    (sums,), g = args.into, args.sources[0]
    place, is_taken = _expert_of_rows(args, len(g), args.written[0].rows)
    of_expert = (args.xp.arange(len(sums))[:, None] == place).astype(g.dtype)
    sums[...] = of_expert @ args.xp.where(is_taken[:, None], g, 0)
