"""Training steps on the in-process carrier, and the serial reference, for tests of training."""

from dataclasses import replace
from functools import partial
from zlib import crc32

import numpy as np

from quadrille.algorithms.analysis.rank_symmetry import equivalent_ranks
from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import flops, volumes
from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.mlp import Mlp, mlp_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.training.serial_experts import SerialExperts, rows_routed_together
from quadrille.runtime.training.serial_training import mlp_loss, train
from quadrille.runtime.training.serial_transformer import gpt_loss
from quadrille.runtime.training.tensor_copies import TensorCopy
from quadrille.runtime.training.training_data import rows_in_batch

BOUNDS = {"float64": 1e-10, "float32": 3e-4}
"""The largest difference of a result, relative to the largest element of its tensor; Adam divides by small numbers."""


def schedule_of(problem, grid, scheme=None):
    """The validated schedule of either problem."""
    build = gpt_schedule if isinstance(problem, Gpt) else mlp_schedule
    return validate(build(problem, grid, scheme or Scheme4D()))


def places_of(schedule):
    return [schedule.coordinates(rank) for rank in range(schedule.grid.size)]


def shape_of(tensor, moment):
    """Rows and columns of the whole copy; the last microbatch may have fewer rows."""
    ranges = (replace(part, axes=(), finer=()).bounds(moment) for part in (tensor.rows, tensor.columns))
    return tuple(stop - start for start, stop in ranges)


def whole_matrices(schedule, vocabulary=0):
    """Every input and parameter, by the name of its copy; the same on every grid."""
    found = {}
    for name in (*schedule.inputs, *schedule.state):
        tensor = schedule.tensors[name]
        for place in places_of(schedule):
            for moment in tensor.copy_coordinates(place):
                copy = tensor.copy_name(moment)
                if copy not in found:
                    found[copy] = _drawn(copy, shape_of(tensor, moment), tensor.dtype, vocabulary)
    return found


def _drawn(name, shape, dtype, vocabulary):
    random = np.random.default_rng(crc32(name.encode()))
    if dtype == "int32":
        return random.integers(0, vocabulary, shape)
    return random.standard_normal(shape) * 0.5


def assembled(schedule, name, outputs):
    """The whole matrices of a tensor, by the name of each copy, put together from the blocks of all ranks."""
    tensor, found = schedule.tensors[name], {}
    for rank, blocks in outputs.items():
        held = blocks[name] if tensor.copies else [blocks[name]]
        moments = list(tensor.copy_coordinates(schedule.coordinates(rank)))
        for block, moment in zip(held, moments, strict=True):
            _put(found, tensor, moment, block, shape_of(tensor, moment))
    for copy, matrix in found.items():
        assert not np.isnan(matrix).any(), f"{copy}: no rank has all of it, or a rank has no number"
    return found


def _put(found, tensor, moment, block, shape):
    """Puts one rank's block into its matrix; ranks that hold the same block must have the same bits."""
    span, copy = tensor.block(moment), tensor.copy_name(moment)
    whole = found.setdefault(copy, np.full(shape, np.nan))
    view = whole[slice(*span.rows), slice(*span.columns)]
    flat = view.reshape(-1).copy()
    piece = slice(0, flat.size) if span.flat_range is None else slice(*span.flat_range)
    before, given = flat[piece], np.asarray(block).reshape(-1)
    known = ~np.isnan(before)
    assert np.array_equal(before[known], given[known]), f"{copy} differs between ranks"
    flat[piece] = given
    view[...] = flat.reshape(view.shape)


def in_batch_order(schedule, matrices, sequence):
    """The matrices with the rows of tokens and targets sequence by sequence, whatever ranks along context hold."""
    ordered = dict(matrices)
    if schedule.grid.context == 1:
        return ordered
    for name in schedule.inputs:
        for place in places_of(schedule):
            for moment in schedule.tensors[name].copy_coordinates(place):
                copy = schedule.tensors[name].copy_name(moment)
                of_copy = TensorCopy(schedule.tensors[name], dict(moment.indices))
                rows = rows_in_batch(schedule, of_copy, np.arange(len(matrices[copy])), sequence)
                ordered[copy] = np.empty_like(matrices[copy])
                ordered[copy][rows] = matrices[copy]
    return ordered


def reference(problem, matrices, together=()):
    """Losses, parameters and last gradients of the serial reference.

    Parameters
    ----------
    together : rows of the batch that are routed together; all rows if it is empty
    """
    if isinstance(problem, Mlp):
        names = [name for name in matrices if name.startswith("L")]
        parts = {kind: np.concatenate(_microbatches(matrices, kind)) for kind in ("H0", "T")}
        loss_of = lambda held, _step: mlp_loss(held, parts["H0"], parts["T"])  # noqa: E731 - two lines of one thing
    else:
        names = [name for name in matrices if not name.startswith(("tokens", "targets"))]
        loss_of = partial(_gpt_loss_of, problem, matrices, together)
    return train({name: matrices[name] for name in names}, loss_of, range(problem.steps), problem.adam)


def _gpt_loss_of(problem, matrices, together, held, step):
    tokens, targets = (
        np.concatenate(_microbatches(matrices, f"{kind} step {step}")).reshape(-1, problem.sequence)
        for kind in ("tokens", "targets")
    )
    dropout = problem.dropout_of(problem.batch)
    experts = None
    if problem.experts:
        experts = SerialExperts(problem.experts, problem.batch, problem.layers, together=together)
    model = (problem.layers, problem.heads, problem.architecture, dropout, step, experts)
    return gpt_loss(held, tokens, targets, *model)


def _microbatches(matrices, name):
    """The parts of a batch, one after the other."""
    if name in matrices:
        return [matrices[name]]
    count = sum(copy.startswith(f"{name} microbatch ") for copy in matrices)
    return [matrices[f"{name} microbatch {index}"] for index in range(count)]


def trained(schedule, matrices, collectives="own"):
    """The execution of a schedule by the ranks of the in-process carrier."""
    return execute(schedule, matrices, InProcess(schedule.grid.size), choices=parse_choices(collectives))


def check_training(problem, grid, scheme=None, collectives="own", overlaps=()):
    """Losses, gradients and parameters equal the serial ones; bytes and memory equal those predicted."""
    schedule = schedule_of(problem, grid, scheme)
    if overlaps:
        schedule = validate(overlap(schedule, overlaps))
    matrices = whole_matrices(schedule, getattr(problem, "vocabulary", 0))
    execution = trained(schedule, matrices, collectives)
    ordered = in_batch_order(schedule, matrices, getattr(problem, "sequence", 1))
    together = rows_routed_together(schedule, problem.sequence) if getattr(problem, "experts", None) else ()
    losses, held, gradients = reference(problem, ordered, together)
    bound = BOUNDS[problem.dtype]
    got = [float(loss[0, 0]) for loss in assembled(schedule, "loss", execution.outputs).values()]
    np.testing.assert_allclose(got, losses, rtol=bound)
    names = set()
    for name in schedule.state:
        for prefix, expected in (("", held), ("d", gradients)):
            for named, matrix in assembled(schedule, prefix + name, execution.outputs).items():
                copy = named.removeprefix(prefix)
                names.add(copy)
                largest = np.abs(expected[copy]).max()
                # A bias that a softmax takes out again (that of the keys) has a gradient of nothing but rounding.
                error = np.abs(matrix - expected[copy]).max() / max(largest, 1e-3)
                assert error <= bound, f"{prefix}{copy}: {error:.1e}"
    assert names == set(held)
    if getattr(problem, "experts", None) and grid.folds:  # a run tells how many rows each rank has
        return schedule, execution
    predicted = volumes(schedule, Choices())
    assert max(execution.allocated_bytes.values()) == predicted.peak_bytes_per_rank_max
    if collectives == "own":
        assert sum(execution.bytes_sent.values()) == predicted.sent_total
    return schedule, execution


def total_flops(schedule):
    return sum(one.count * flops(schedule, one.coordinates) for one in equivalent_ranks(schedule, Choices()))


def bits(done):
    """The bits of everything that the ranks hold at the end."""
    return {
        (rank, name, place): block.tobytes()
        for rank, tensors in done.outputs.items()
        for name, blocks in tensors.items()
        for place, block in enumerate(blocks if isinstance(blocks, list) else [blocks])
    }
