"""The serial reference of layers of experts, in float64: loops visit tokens' choices expert by expert.

Only the description of the experts is shared with the schedules and kernels.  A capacity holds for the tokens that a
rank routes at once, so the reference drops those of each rank and microbatch of the schedule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.runtime.training.serial_training import Array, Matrices
from quadrille.runtime.training.tensor_copies import TensorCopy, shape_of
from quadrille.runtime.training.training_data import rows_in_batch

Rows = NDArray[np.int64]


def rows_routed_together(schedule: Schedule, sequence: int) -> list[Rows]:
    """The rows of the batch that each rank routes in each microbatch, in the order of the rank.

    Parameters
    ----------
    schedule : schedule of a model with experts
    sequence : tokens of a sequence
    """
    tokens = schedule.tensors["tokens"]
    routed, rows_of_microbatch = replace(tokens, rows=schedule.tensors["chosen"].rows), shape_of(schedule, tokens)[0]
    by_range: dict[tuple[int, int, int], Rows] = {}
    for rank in range(schedule.grid.size):
        for coordinates in tokens.copy_coordinates(schedule.coordinates(rank)):
            number, (first, stop) = coordinates.indices.get(MICROBATCH, 0), routed.rows.bounds(coordinates)
            if (number, first, stop) not in by_range:
                copy = TensorCopy(routed, coordinates.indices)
                rows = rows_in_batch(schedule, copy, np.arange(first, stop), sequence)
                by_range[number, first, stop] = rows + number * rows_of_microbatch
    return list(by_range.values())


class SerialModel(Protocol):
    """The model around the experts: its parameters and gradients by name, and the function between two products."""

    p: Mapping[str, Array]
    gradients: Matrices
    sequence: int

    def activated(self, u: Array) -> Array: ...

    def activated_gradient(self, u: Array, g: Array) -> Array: ...


class SerialExperts:
    """The experts of a serial model, and the auxiliary loss of its last forward and backward pass.

    Parameters
    ----------
    experts : description of the experts
    sequences : sequences of the batch, over which the auxiliary loss is a mean
    layers : number of layers of the model
    choices : experts of every token, by layer; a layer that has none chooses, and its choice is added
    together : rows of the batch of which an expert takes its capacity; all rows if it is empty
    """

    def __init__(
        self,
        experts: Experts,
        sequences: int,
        layers: int,
        choices: dict[int, Rows] | None = None,
        together: Sequence[Rows] = (),
    ) -> None:
        self._experts, self._sequences, self._layers = experts, sequences, layers
        self._together = together
        self._choices = {} if choices is None else choices
        self.auxiliary_loss = 0.0

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has a dense MLP."""
        dense = self._experts.dense(self._layers)
        return bool(dense) and dense[layer]

    def suffix(self, layer: int) -> str:
        """What the names of the parameters of a layer's MLP end with."""
        loop, number = self._experts.place(layer, self._layers)
        return f" {loop} {number}"

    def _weights(self, model: SerialModel, name: str, layer: int) -> Array:
        """The matrices of all experts, expert by expert."""
        return self._apart(model.p, f"experts {name} W", self.suffix(layer))

    def _apart(self, matrices: Mapping[str, Array], name: str, suffix: str) -> Array:
        """The matrix of each expert, a view of the stacked ones, which ranks that cut experts have transposed."""
        is_transposed = f"{name} transposed{suffix}" in matrices
        stacked = matrices[f"{name} transposed{suffix}" if is_transposed else f"{name}{suffix}"]
        apart: Array = stacked.reshape(self._experts.count, -1, stacked.shape[1])
        return apart.transpose(0, 2, 1) if is_transposed else apart

    def _probabilities(self, scores: Array) -> Array:
        if self._experts.router == "sigmoid":
            squashed: Array = 1 / (1 + np.exp(-scores))
            return squashed
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        softmax: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
        return softmax

    def forward(self, model: SerialModel, n: Array, layer: int) -> tuple[Array, Any]:
        """The output of the experts and of the shared MLP, and the values that their gradient needs."""
        experts, suffix = self._experts, self.suffix(layer)
        scores = n @ model.p[f"router W{suffix}"]
        if experts.biases:
            scores = scores + model.p[f"router b{suffix}"]
        p = self._probabilities(scores)
        if layer not in self._choices:
            ranked = np.where(self._is_in_chosen_group(p), scores, -np.inf)
            self._choices[layer] = np.argsort(-ranked, axis=1, kind="stable")[:, : experts.chosen]
        is_chosen = np.zeros(p.shape, bool)
        np.put_along_axis(is_chosen, self._choices[layer], True, axis=1)
        total = np.where(is_chosen, p, 0).sum(axis=1, keepdims=True) if experts.normalised else np.ones((len(n), 1))
        is_taken = self._taken(is_chosen)
        shares = np.where(is_taken, p / total, 0) * experts.scale
        output, saved = np.zeros_like(n), []
        for expert, (up, down) in enumerate(
            zip(self._weights(model, "up", layer), self._weights(model, "down", layer), strict=True)
        ):
            rows = np.flatnonzero(is_taken[:, expert])
            u = n[rows] @ up + self._bias(model, "up", expert, layer)
            active = model.activated(u)
            of_expert = active @ down + self._bias(model, "down", expert, layer)
            output[rows] += shares[rows, expert, None] * of_expert
            saved.append((rows, u, active, of_expert))
        shared = None
        if experts.shared:
            shared_u = n @ model.p[f"shared up W{suffix}"]
            shared = shared_u, model.activated(shared_u)
            output += self._shared_share(model, n, suffix) * (shared[1] @ model.p[f"shared down W{suffix}"])
        return output, (p, is_chosen, total, shares, saved, shared)

    def _bias(self, model: SerialModel, name: str, expert: int, layer: int) -> Array:
        """The bias of a product of an expert; zero without biases."""
        if not self._experts.biases:
            return np.zeros(1)
        bias: Array = model.p[f"experts {name} b{self.suffix(layer)}"][expert]
        return bias

    def _shared_share(self, model: SerialModel, n: Array, suffix: str) -> Array:
        """The factor on the output of the shared MLP of every token: the sigmoid of its gate, or 1."""
        if not self._experts.shared_gate:
            return np.ones((len(n), 1))
        share: Array = 1 / (1 + np.exp(-n @ model.p[f"shared gate W{suffix}"]))
        return share

    def _is_in_chosen_group(self, p: Array) -> NDArray[np.bool_]:
        """Whether an expert is in a group that a token chooses: those whose largest experts have the largest sums."""
        experts, is_allowed = self._experts, np.zeros(p.shape, bool)
        size, each = experts.count // experts.groups, max(1, experts.chosen // experts.chosen_groups)
        for token, of_token in enumerate(p):
            parts = [sorted(of_token[start : start + size])[::-1] for start in range(0, experts.count, size)]
            best = sorted(range(experts.groups), key=lambda group: -sum(parts[group][:each]))
            for group in best[: experts.chosen_groups]:
                is_allowed[token, group * size : (group + 1) * size] = True
        return is_allowed

    def _taken(self, is_chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether an expert takes a token: one of the first that choose it, up to its capacity."""
        is_taken = np.zeros_like(is_chosen)
        for rows in self._together or (np.arange(len(is_chosen)),):
            most = self._experts.most_rows(len(rows) * self._experts.chosen)
            of_rows = is_chosen[rows]
            is_taken[rows] = of_rows & (of_rows.cumsum(axis=0) <= most)
        return is_taken

    def backward(self, model: SerialModel, n: Array, saved: Any, g: Array, layer: int) -> Array:
        """The gradient of the input; adds to the gradients of the parameters."""
        suffix = self.suffix(layer)
        p, is_chosen, total, shares, of_experts, shared = saved
        towards_n, towards_shares = np.zeros_like(n), np.zeros_like(p)
        ups, downs = (self._weights(model, name, layer) for name in ("up", "down"))
        towards_ups, towards_downs = (
            self._apart(model.gradients, f"experts {name} W", suffix) for name in ("up", "down")
        )
        for expert, (rows, u, active, of_expert) in enumerate(of_experts):
            towards_shares[rows, expert] = (g[rows] * of_expert).sum(axis=1)
            towards_rows = g[rows] * shares[rows, expert, None]
            towards_downs[expert] += active.T @ towards_rows
            towards_u = model.activated_gradient(u, towards_rows @ downs[expert].T)
            if self._experts.biases:
                model.gradients[f"experts down b{suffix}"][expert] += towards_rows.sum(axis=0)
                model.gradients[f"experts up b{suffix}"][expert] += towards_u.sum(axis=0)
            towards_ups[expert] += n[rows].T @ towards_u
            towards_n[rows] += towards_u @ ups[expert].T
        towards_p = self._towards_probabilities(p, is_chosen, total, towards_shares)
        towards_p += self._balance(p, is_chosen, model.sequence)
        if self._experts.router == "sigmoid":
            towards_scores = towards_p * p * (1 - p)
        else:
            towards_scores = p * (towards_p - (towards_p * p).sum(axis=1, keepdims=True))
        model.gradients[f"router W{suffix}"] += n.T @ towards_scores
        if self._experts.biases:
            model.gradients[f"router b{suffix}"] += towards_scores.sum(axis=0)
        towards_n += towards_scores @ model.p[f"router W{suffix}"].T
        return towards_n if shared is None else towards_n + self._backward_shared(model, n, shared, g, suffix)

    def _backward_shared(
        self, model: SerialModel, n: Array, shared: tuple[Array, Array], g: Array, suffix: str
    ) -> Array:
        """The gradient of the input of the shared MLP and of its gate."""
        (u, active), share = shared, self._shared_share(model, n, suffix)
        down, up = model.p[f"shared down W{suffix}"], model.p[f"shared up W{suffix}"]
        model.gradients[f"shared down W{suffix}"] += active.T @ (share * g)
        towards_u = model.activated_gradient(u, (share * g) @ down.T)
        model.gradients[f"shared up W{suffix}"] += n.T @ towards_u
        towards_n: Array = towards_u @ up.T
        if self._experts.shared_gate:
            towards_gate = ((active @ down) * g).sum(axis=1, keepdims=True) * share * (1 - share)
            model.gradients[f"shared gate W{suffix}"] += n.T @ towards_gate
            towards_n = towards_n + towards_gate @ model.p[f"shared gate W{suffix}"].T
        return towards_n

    def _towards_probabilities(self, p: Array, is_chosen: Array, total: Array, towards_shares: Array) -> Array:
        """The gradient of the probabilities through the shares: share = scale · p / (Σ p of the chosen)."""
        towards = np.where(is_chosen, towards_shares, 0) * self._experts.scale / total
        if not self._experts.normalised:
            return towards
        through_total: Array = (towards * p).sum(axis=1, keepdims=True) / total
        return towards - np.where(is_chosen, through_total, 0)

    def _balance(self, p: Array, is_chosen: Array, sequence: int) -> Array:
        """The gradient of the probabilities by the auxiliary loss, which is added to the sum of the batch."""
        experts, towards = self._experts, np.zeros_like(p)
        weight = experts.balance * experts.count / (experts.chosen * sequence * self._sequences)
        for start in range(0, len(p), sequence):
            rows = slice(start, start + sequence)
            counts, of_sequence = is_chosen[rows].sum(axis=0), p[rows]
            sums = of_sequence.sum(axis=1, keepdims=True)
            self.auxiliary_loss += weight * float(counts @ (of_sequence / sums).mean(axis=0))
            slopes = np.broadcast_to(weight * counts / sequence, of_sequence.shape)
            towards[rows] = (slopes - (slopes * of_sequence / sums).sum(axis=1, keepdims=True)) / sums
        return towards
