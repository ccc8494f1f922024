"""Grids of experts: axes that cut the tokens of a layer of experts, and what the axes exclude.

    data        each rank routes its own sequences
    z, context  each rank routes its own tokens
    x           the same, with sequence parallelism, where ranks along x have different tokens between two products

Groups of consecutive ranks of a stage, on whichever of these axes, share out the experts, and cut each of them over
`expert_tensor` (`grid.py`): Megatron-LM's `--expert-tensor-parallel-size`.

Source: Liu et al., "MoE Parallel Folding", arXiv 2504.14960, section 3; NVIDIA, Megatron Core,
megatron.core.transformer.moe (sequence parallelism is needed beside tensor parallelism).
"""

from math import prod

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, FOLDED_AXES, Axis, Grid
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.scheme import Scheme


def token_axes(scheme: Scheme, grid: Grid) -> tuple[Axis, ...]:
    """Axes of a grid beside data that cut the tokens of a scheme, those that cut sequences first."""
    axes = (*scheme.stream.finer, *scheme.stream.rows)
    return tuple(axis for axis in axes if axis != "data" and grid.length(axis) > 1)


def check_expert_grid(experts: Experts | None, grid: Grid, scheme: Scheme, sequence: int) -> None:
    """Checks that a grid can share out experts and the tokens of sequences.

    Parameters
    ----------
    scheme : scheme of the step, with sequences cut as the grid cuts them
    sequence : tokens of a sequence

    Raises
    ------
    InputError : ranks along expert without experts, ranks that do not divide the experts, axes that cut activations as
        experts do not, or sequences that cannot be cut
    """
    if experts is None:
        for axis in FOLDED_AXES:
            if grid.length(axis) > 1:
                raise InputError(f"grid {axis}={grid.length(axis)}: the model has no experts; leave the axis out")
        return
    experts.check(grid)
    cuts = _accepted_cuts(scheme)
    for axis in AXES:
        if axis not in ("pipeline", *cuts) and grid.length(axis) > 1:
            raise InputError(
                f"grid {axis}={grid.length(axis)}: experts need whole tokens: {axis}=1 is accepted, and so are x with "
                "scheme megatron and --sequence-parallel, z with scheme 4d, context, data, expert and pipeline"
            )
    within = [axis for axis in scheme.stream.finer if grid.length(axis) > 1]
    parts = prod(grid.length(axis) for axis in within)
    if sequence % parts:
        raise InputError(
            f"sequence {sequence}: {' and '.join(within)} cut it beside experts: a multiple of {parts} is accepted"
        )


def _accepted_cuts(scheme: Scheme) -> tuple[Axis, ...]:
    """Axes of a scheme that cut tokens beside experts; data alone if the scheme cuts or scatters them in other ways."""
    stream = scheme.stream
    return ("data",) if stream.columns == "x" or "x" in stream.rows else (*stream.rows, *stream.finer)
