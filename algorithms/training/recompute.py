"""Activations made again in the backward pass instead of kept.

    none        everything that the backward pass reads is kept, attention's weights too
    selective   attention's weights are not kept: its gradient makes them again from
                the logarithms of the row sums
    full        only the input of each layer is kept; before its backward pass the
                whole layer is run forward again

Full recomputation runs all ops of the layer again, as checkpointing does in the
frameworks, the sum of the last product among them although nobody reads it: this
is what published iteration times hold.  What the second run gathers serves the
backward pass, so weights are gathered as often as without recomputation.

Source: Chen et al., "Training deep nets with sublinear memory cost", 2016
(full); Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", arXiv 2205.05198, section 5 (selective).
"""

from dataclasses import replace
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.rewriting import filter_ops, map_ops
from quadrille.algorithms.schedule.ops import AllGather, Broadcast, Op, writes
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.layers import Layer

Recompute = Literal["none", "selective", "full"]
Fetch = AllGather | Broadcast
"""What brings a rank what others hold."""
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)


def find_recompute(word: str) -> Recompute:
    """What a word asks to be made again.

    >>> find_recompute("full")
    'full'

    Raises
    ------
    InputError : another word
    """
    for known in RECOMPUTES:
        if word == known:
            return known
    raise InputError(f"recompute {word!r}: accepted are {', '.join(RECOMPUTES)}")


def recomputed(layer: Layer, output: str) -> Layer:
    """The layer with its forward pass, but for the op that writes `output`, again before its backward pass.

    Of the copies of its tensors those stay that parameters are gathered into
    once for both passes; all else belongs to one layer at a time.
    """
    parameters = {one.name for one in layer.parameters}
    fetches = [op for op in layer.forward if isinstance(op, Fetch)]
    kept = {op.into for op in fetches if op.source in parameters and _has_copies(layer, op.into)}
    forward = filter_ops(layer.forward, lambda op: output not in writes(op) and not _fills(op, kept))
    made = {op.into for op in forward if isinstance(op, Fetch)}
    return replace(
        layer,
        tensors=tuple(one if one.name in kept else replace(one, copies=()) for one in layer.tensors),
        backward=(
            *map_ops(forward, lambda op: replace(op, name=f"again {op.name}")),
            *filter_ops(layer.backward, lambda op: not _fills(op, made)),
        ),
    )


def _fills(op: Op, buffers: set[str]) -> bool:
    return isinstance(op, Fetch) and op.into in buffers


def _has_copies(layer: Layer, name: str) -> bool:
    tensors: dict[str, Tensor] = {tensor.name: tensor for tensor in layer.tensors}
    return bool(tensors[name].copies)
