"""Programs and tensors of the two chunks of layers of a V pipeline's stage.

The last stage hands an activation over from its first chunk to its second, and the gradient back.  A pass copies the
tensor to a buffer between the chunks, and a pass of the next chunk copies the tensor from there.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from quadrille.algorithms.schedule.expressions import Affine, IntExpression
from quadrille.algorithms.schedule.ops import Pointwise
from quadrille.algorithms.schedule.program import Choice, Program, Repeat
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.pipeline import CHUNK, Stages
from quadrille.algorithms.training.transformer import LAYER

HANDED_OVER = "handed over"


def on_chunk(chunk: int, body: Program) -> Program:
    """Returns a body that one of the two chunks of a stage runs."""
    return (Choice("once", Affine(CHUNK) if chunk else Affine(CHUNK, -1, 1), body),)


def between_chunks(tensor: str) -> str:
    """Returns the name of the buffer between the chunks of the last stage for a tensor."""
    return f"{tensor} {HANDED_OVER}"


def hand_over(tensor: str, layer: IntExpression | None = None, *, back: bool = False) -> Program:
    """Returns the copy of a tensor to the buffer between the chunks, or `back` from there.

    Parameters
    ----------
    layer : index of the loop over layers at which the tensor is copied; None without such a loop
    """
    between = between_chunks(tensor)
    source, into = (between, tensor) if back else (tensor, between)
    verb = "take" if back else "hand"
    op = Pointwise(name=f"{verb} {tensor} over", function="copy", into=into, sources=(source,))
    return (op,) if layer is None else (Repeat(LAYER, 1, (op,), first=layer),)


def handed_over(tensors: Sequence[Tensor], names: Collection[str], stages: Stages) -> list[Tensor]:
    """Returns the buffers between the two chunks of the last stage, for the tensors with these names."""
    copies, last = ((MICROBATCH, stages.handed_over),), stages.at(-1)
    return [
        replace(tensor, name=between_chunks(tensor.name), copies=copies, stages=last, first_indices=())
        for tensor in tensors
        if tensor.name in names
    ]
