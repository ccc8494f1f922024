"""Verification of a training run: losses, gradients and parameters against a serial run in float64.

The serial run (`serial_training.py`, `serial_transformer.py`) starts with the same parameters, reads the same batches
and takes the same steps. The allowed distance of a run in a shorter dtype follows from two quantities:

    rounding in one step               a sum of n terms in any order has an error of about √n eps (the errors have
                                       random signs), so √n eps of the largest element
    amplification by the training      measured: a perturbed serial run. Every parameter is moved at the start by up to
                                       eps of itself, and every gradient of every step by up to eps of its largest
                                       element. The results move by `moved`. For small problems it is the maximum over
                                       several perturbed runs, as a single run may move up to 20 times less.

    |result - serial| ≤ (4 + log2 P) √n max(moved, eps · largest)      for each tensor, elementwise maxima
    n: the longest sum: tokens of a batch, or the widest layer;   P: ranks

The amplification must be measured because Adam divides by the size of a gradient. Where the gradient is zero except for
rounding (biases of keys), a parameter moves at random, and no comparison can say more. A sum that is missing or counted
twice is off by parts of `largest`, thousands of times the bound.

Source: Higham, Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019 (√n);
Kingma, Ba, 2015 (Adam).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Block, DType, Tensor
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.resume import moment_names
from quadrille.runtime.files.checkpoint import copies_of
from quadrille.runtime.operands.input_sources import WholeMatrices
from quadrille.runtime.operands.rectangles import Rectangle
from quadrille.runtime.training.pruned_blocks import Mask
from quadrille.runtime.training.pruned_source import TrainingInputs, pruned_block
from quadrille.runtime.training.serial_experts import SerialExperts, rows_routed_together
from quadrille.runtime.training.serial_training import LossOf, Matrices, mlp_loss, train
from quadrille.runtime.training.serial_transformer import gpt_loss
from quadrille.runtime.training.tensor_copies import pruned_copy, shape_of
from quadrille.runtime.training.training_data import TrainingSource
from quadrille.runtime.verifying.verify import EPS, Verification

Array = NDArray[np.float64]
Masks = Mapping[str, Mask]
BOUND_CONSTANT, BOUND_PER_DOUBLING = 4.0, 1.0
FLOATS = 8
"""The bytes of a float64 number of the serial run."""
PERTURBED_RUNS = 5
"""The number of perturbed runs of a small problem, each with its own seed."""
SMALL = 10**9
"""The largest product of parameters, rows and steps of a small problem; several runs of a larger one take too long."""


@dataclass(frozen=True, slots=True)
class SerialRun:
    """The results of a serial run: losses of all steps, final parameters, and gradients of the last step."""

    losses: list[float]
    parameters: Matrices
    gradients: Matrices

    @property
    def values(self) -> Matrices:
        """Gradients and parameters by their names in the schedule."""
        return {f"d{name}": value for name, value in self.gradients.items()} | self.parameters


@dataclass(frozen=True, slots=True)
class SerialReference:
    """The serial run, and the distance by which rounding moves each of its results.

    Parameters
    ----------
    run : serial run
    moved : largest distance of a perturbed run from the serial run, by result
    terms : terms of the longest sum
    masks : kept elements of each pruned matrix
    """

    run: SerialRun
    moved: Mapping[str, float]
    terms: int
    masks: Masks = field(default_factory=dict)


def serial_bytes(problem: Gpt | Mlp, rank: int) -> int:
    """The approximate memory that the check takes on a rank: rank 0 computes the serial run [B]."""
    match problem:
        case Gpt() as gpt:
            shape = gpt.shape
            parameters = shape.parameters
            of_layer = 5 * shape.hidden + shape.qkv + shape.up + shape.mlp
            kept = gpt.tokens * (gpt.layers * of_layer + 4 * gpt.vocabulary)
        case Mlp() as mlp:
            parameters = sum(width * next_width for width, next_width in zip(mlp.widths, mlp.widths[1:], strict=False))
            kept = 4 * mlp.rows * sum(mlp.widths)
    return FLOATS * (2 * parameters if rank else 10 * parameters + kept)


def serial_reference(
    problem: Gpt | Mlp, schedule: Schedule, source: TrainingInputs, data: TrainingSource, first_step: int
) -> SerialReference:
    """The serial run of a problem, and the distance of its perturbed runs.

    Parameters
    ----------
    problem : training problem
    schedule : schedule of the run to check, for names and shapes of its tensors
    first_step : number of steps completed before the run
    source : source of the run's parameters, and of its moments if it is resumed
    data : source of its batches
    """
    stored = [name for name in schedule.state if schedule.tensors[name].value_of is None]
    whole = {
        name: np.asarray(source.stored(name, _whole_block(schedule, tensor)), np.float64)
        for name, tensor in sorted(copies_of(schedule, stored).items())
    }
    moments = {layout for name in whole for layout in moment_names(name)}
    masks = _masks(schedule, source, whole)
    initial_parameters = {name: value for name, value in whole.items() if name not in moments}
    steps = range(first_step, first_step + problem.steps)
    loss_of, terms = _loss_of(problem, schedule, data)
    exact_run = _train(initial_parameters, whole, loss_of, steps, problem.adam, masks, _unperturbed)
    rows = problem.tokens if isinstance(problem, Gpt) else problem.rows
    small = rows * problem.steps * sum(value.size for value in initial_parameters.values()) <= SMALL
    distances: dict[str, float] = {}
    for seed in range(PERTURBED_RUNS if small else 1):
        perturbed_run = _train(
            initial_parameters, whole, loss_of, steps, problem.adam, masks, _perturbation(EPS[problem.dtype], seed)
        )
        for name, distance in _distances(exact_run, perturbed_run):
            distances[name] = max(distance, distances.get(name, 0.0))
    return SerialReference(exact_run, distances, terms, masks)


def _whole_block(schedule: Schedule, tensor: Tensor) -> Block:
    """The block that is a whole dense matrix."""
    rows, columns = shape_of(schedule, tensor)
    return Block((0, rows), (0, columns))


def _masks(schedule: Schedule, source: TrainingInputs, names: Iterable[str]) -> Masks:
    """The kept elements of each pruned matrix among these copies."""
    copies = [copy for name in names if (copy := pruned_copy(schedule, name)) is not None]
    return {copy.matrix: source.mask(copy, Rectangle(0, copy.shape[0], 0, copy.shape[1])) for copy in copies}


def _distances(exact_run: SerialRun, perturbed_run: SerialRun) -> Iterator[tuple[str, float]]:
    """The difference between two runs in each result."""
    for name, value in exact_run.values.items():
        yield name, _largest(perturbed_run.values[name] - value)
    for step, (loss, perturbed_loss) in enumerate(zip(exact_run.losses, perturbed_run.losses, strict=True)):
        yield f"loss {step}", abs(loss - perturbed_loss)


def _loss_of(problem: Gpt | Mlp, schedule: Schedule, data: TrainingSource) -> tuple[LossOf, int]:
    """The loss function of a problem, and the number of terms of its longest sum."""
    match problem:
        case Gpt() as gpt:
            terms = max(gpt.tokens, gpt.sizes["inner"], gpt.vocabulary)  # an expert has at most all tokens
            together = rows_routed_together(schedule, gpt.sequence) if gpt.experts else []

            def loss(parameters: Mapping[str, Array], step: int) -> tuple[float, Matrices]:
                tokens, targets = data.tokens(step, gpt.batch)
                dropout = gpt.dropout_of(gpt.batch)
                experts = (
                    None
                    if gpt.experts is None
                    else SerialExperts(gpt.experts, gpt.batch, gpt.layers, together=together)
                )
                model = gpt.layers, gpt.heads, gpt.architecture, dropout, step, experts
                return gpt_loss(parameters, tokens, targets, *model)

            return loss, terms
        case Mlp() as mlp:
            x, target = data.rows(mlp.rows)
            return lambda parameters, _: mlp_loss(parameters, x, target), max(mlp.rows, *mlp.widths)


Perturbation = Callable[[Array, Any], Array]
"""A function of a value and a size that returns the value moved by a random share of the size."""


def _perturbation(eps: float, seed: int) -> Perturbation:
    """A perturbation by up to `eps` of the size."""
    random = np.random.default_rng(seed)
    return lambda value, of: value + eps * of * random.uniform(-1, 1, value.shape)


def _unperturbed(value: Array, _of: Any) -> Array:
    return value


def _train(
    initial_parameters: Mapping[str, Array],
    whole: Mapping[str, Array],
    loss_of: LossOf,
    steps: range,
    adam: Adam,
    masks: Masks,
    perturb: Perturbation,
) -> SerialRun:
    """A serial run of Adam steps; parameters are perturbed at the start, and gradients in every step.

    Gradients of pruned elements are zero.
    """

    def perturbed_loss_of(parameters: Mapping[str, Array], step: int) -> tuple[float, Matrices]:
        loss, gradients = loss_of(parameters, step)
        kept = {name: g * masks[name] if name in masks else g for name, g in gradients.items()}
        perturbed = {name: perturb(g, _largest(g)) for name, g in kept.items()}
        return loss, {name: g * masks[name] if name in masks else g for name, g in perturbed.items()}

    names = {name: moment_names(name) for name in initial_parameters}
    moments = {name: (whole[mean], whole[square]) for name, (mean, square) in names.items() if mean in whole}
    parameters = {name: perturb(value, value) for name, value in initial_parameters.items()}
    return SerialRun(*train(parameters, perturbed_loss_of, steps, adam, moments))


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Deviation:
    """The largest error of a result and the allowed error, both relative to the result's largest element."""

    quantity: str
    error: float
    allowed: float

    @property
    def share(self) -> float:
        return self.error / self.allowed if isfinite(self.error) else inf


def verify_blocks(
    schedule: Schedule,
    coordinates: Coordinates,
    blocks: Mapping[str, Sequence[NDArray[Any]]],
    reference: SerialReference,
    dtype: DType,
) -> Verification:
    """The verdict on one rank's losses, gradients and parameters.

    Parameters
    ----------
    schedule : schedule of the run
    coordinates : grid coordinates of the rank
    blocks : blocks of all copies of each output, by tensor name
    reference : serial run
    dtype : dtype of the run
    """
    factor = (BOUND_CONSTANT + BOUND_PER_DOUBLING * log2(schedule.grid.size)) * sqrt(reference.terms)
    values = _ReferenceBlocks(schedule, reference)
    deviations = list(_losses(blocks["loss"], reference, factor, EPS[dtype]))
    for name, blocks_of_tensor in blocks.items():
        tensor = schedule.tensors[name]
        for copy_coordinates, block in zip(tensor.copy_coordinates(coordinates), blocks_of_tensor, strict=True):
            copy = tensor.copy_name(copy_coordinates)
            if name == "loss" or copy not in reference.run.values or not block.size:
                continue
            expected = values.stored(copy, tensor.block(copy_coordinates))
            scale = _largest(reference.run.values[copy])
            deviations.append(
                _deviation(copy, block - expected, scale, reference.moved[copy], factor * EPS[dtype], factor)
            )
    return _verdict(
        max(deviations, key=lambda deviation: deviation.share, default=Deviation("nothing", 0.0, EPS[dtype]))
    )


class _ReferenceBlocks:
    """Blocks of the results of the serial run, compressed where the schedule's are."""

    def __init__(self, schedule: Schedule, reference: SerialReference) -> None:
        self._schedule, self._reference = schedule, reference
        self._whole = WholeMatrices(reference.run.values)

    def stored(self, name: str, block: Block) -> Any:
        """The elements of a block of the copy with that name."""
        if block.kept_range is None:
            return self._whole.stored(name, block)
        masks, matrix = self._reference.masks, name if name in self._reference.masks else name.removeprefix("d")
        copy = pruned_copy(self._schedule, matrix)
        assert copy is not None, name
        return pruned_block(
            copy,
            block,
            lambda _, region: _part(self._reference.run.values[name], region),
            lambda _, region: _part(masks[matrix], region),
        )


def _part(whole: NDArray[Any], region: Rectangle) -> NDArray[Any]:
    return whole[region.row_start : region.row_stop, region.column_start : region.column_stop]


def _losses(blocks: Sequence[NDArray[Any]], reference: SerialReference, factor: float, eps: float) -> list[Deviation]:
    return [
        _deviation(
            f"the loss of step {step}",
            np.asarray(block, np.float64) - expected,
            abs(expected),
            reference.moved[f"loss {step}"],
            factor * eps,
            factor,
        )
        for step, (block, expected) in enumerate(zip(blocks, reference.run.losses, strict=False))
        if block.size
    ]


def _deviation(quantity: str, errors: Any, scale: float, moved: float, least: float, factor: float) -> Deviation:
    """An error and its bound, relative to the largest element; a value that is not finite is infinitely off."""
    error = _largest(np.asarray(errors, np.float64)) if np.isfinite(errors).all() else inf
    size = scale or 1.0
    return Deviation(quantity, error / size, max(factor * moved / size, least))


def _verdict(worst: Deviation) -> Verification:
    ok = worst.share <= 1
    verification = Verification("serial", worst.error, worst.allowed, ok=ok)
    if ok:
        return verification
    return replace(
        verification,
        reason=f"{worst.quantity} is off by {worst.error:.3g} of its largest element, {worst.allowed:.3g} is allowed",
    )


def worst_verification(verdicts: Sequence[Verification]) -> Verification:
    """The verification that is nearest to its bound, or farthest beyond it; a failed one names its rank."""
    rank = max(range(len(verdicts)), key=lambda candidate: _share(verdicts[candidate]))
    worst = verdicts[rank]
    return worst if worst.ok else replace(worst, reason=f"rank {rank}: {worst.reason}")


def _share(verdict: Verification) -> float:
    return verdict.max_error / verdict.bound if isfinite(verdict.max_error) else inf
