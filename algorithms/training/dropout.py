"""Dropout: the shares of elements that a training step sets to zero, and the places where it does so.

A kept element is divided by the share of kept elements.  There are four places, as in Megatron-LM: the embedding, the
attention weights, and the outputs of attention and of the MLP before they are added to the stream.

    stored for the backward pass           bytes of a layer
    masks of the two outputs               2 s b h
    unfused attention, not recomputed      a s² b of the mask, and 2 a s² b of the weights after dropout (16 bits)
    fused attention, embedding             none: the backward pass computes the mask again

A mask is a function of the element's row and column in the batch, the place, the layer and the step, so that it is the
same on every grid.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 4
(34 s b h + 5 a s² b); Dao et al., "FlashAttention", 2022, appendix B (the mask of fused attention is not stored).
"""

from dataclasses import dataclass
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.tensors import ElementType
from quadrille.algorithms.training.adam import STEP

Place = Literal["embedding", "attention weights", "attention", "mlp"]
PLACES: dict[Place, int] = {"embedding": 0, "attention weights": 1, "attention": 2, "mlp": 3}
"""Numbers of the places of dropout, which the masks depend on."""
MASK: ElementType = "uint8"
"""Element type of a mask: one byte an element."""


@dataclass(frozen=True, slots=True)
class Dropout:
    """The dropout of a model.

    Parameters
    ----------
    hidden : share of the elements of the embedding and of the outputs of attention and MLP that are set to zero
    attention : share of the attention weights that are set to zero
    tokens : tokens of a microbatch over all ranks, from which the rows of the batch are numbered
    order : scalars of the order of rows under context parallelism
    """

    hidden: float = 0.0
    attention: float = 0.0
    tokens: int = 0
    order: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for share in (self.hidden, self.attention):
            if not 0 <= share < 1:
                raise InputError(f"dropout {share}: a number from 0 and below 1 is accepted")

    def scalars(self, place: Place) -> tuple[tuple[str, float], ...]:
        """The parameters of a kernel that drops elements at a place; empty if it drops none."""
        share = self.attention if place == "attention weights" else self.hidden
        if not share:
            return ()
        order = () if place == "attention weights" else self.order
        return ("dropout", share), ("place", float(PLACES[place])), ("tokens", float(self.tokens)), *order

    def drop(self, place: Place, tensor: str, mask: str) -> Kernel:
        """The op that drops elements of a tensor and writes the mask."""
        scalars, name = self.scalars(place), f"drop {tensor}"
        return Kernel(name=name, function="dropout", into=(mask,), updates=(tensor,), scalars=scalars, counter=STEP)

    def drop_gradient(self, place: Place, gradient: str, mask: str, into: str) -> Kernel:
        """The op that writes the gradient before dropout, from the gradient after dropout and the mask."""
        return Kernel(
            name=f"drop gradient of {place}",
            function="dropout_gradient",
            into=(into,),
            sources=(gradient, mask),
            scalars=self.scalars(place),
        )


NO_DROPOUT = Dropout()
