"""Floating-point operations of a training step, by formula: model flop (MFU) and hardware flop (HFU).

For the plain GPT with B sequences of s tokens, L layers, hidden size h, vocabulary V:

    model      72 B s L h² (1 + s/(6 h) + V/(12 L h))
    hardware   96 B s L h² (1 + s/(6 h) + V/(16 L h))      with full recomputation

Attention counts as full squares, causal or not, as in the sources; a schedule's own count (`volumes.py`) has half of
them.  The optimizer and everything other than matrix products is omitted, as usual.

The hardware also computes what the step recomputes, in each layer:

    recompute   attention fused        attention unfused
    none        two square products    nothing
    selective   two square products    two square products
    full        the whole layer        the whole layer

The gradient kernel of fused attention computes one of the two square products again (`ATTENTION_PRODUCTS`).  By
convention it counts as selective recomputation does, and not at all beside full recomputation.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC21,
section 3 and appendix; Chowdhery et al., "PaLM", 2022, appendix B (the two names); Korthikanti et al.,
arXiv 2205.05198, appendix A (selective recomputation).
"""

from dataclasses import dataclass

from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.recompute import Attention, Recompute


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Flop of one training step over all GPUs: of the model, and of the hardware, with recomputation."""

    model: int
    hardware: int


def forward_flops(shape: ModelShape, batch: int) -> int:
    """Flop of the products of one forward pass over `batch` sequences."""
    return shape.layers * layer_flops(shape, batch) + 2 * batch * shape.sequence * shape.table


def layer_flops(shape: ModelShape, batch: int) -> int:
    """Flop of the products of one layer's forward pass."""
    return 2 * batch * shape.sequence * shape.products + square_flops(shape, batch)


def square_flops(shape: ModelShape, batch: int) -> int:
    """Flop of the two square products of one layer's attention in the forward pass, without causal halving."""
    return 4 * batch * shape.sequence**2 * shape.hidden


def step_flops(
    shape: ModelShape, batch: int, attention: Attention = "fused", recompute: Recompute = "none"
) -> StepFlops:
    """The flop of a training step over all GPUs; a backward pass costs two forward passes.

    Parameters
    ----------
    shape : shape of the model
    batch : sequences of the global batch
    attention, recompute : fused or unfused attention, and activation recomputation

    >>> shape = ModelShape("toy", layers=2, hidden=8, heads=2, sequence=4, vocabulary=16)
    >>> step_flops(shape, 3, recompute="full")
    StepFlops(model=129024, hardware=168960)
    """
    model = 3 * forward_flops(shape, batch)
    match attention, recompute:
        case _, "full":
            again = layer_flops(shape, batch)
        case "unfused", "none":
            again = 0
        case _:
            again = square_flops(shape, batch)
    return StepFlops(model, model + shape.layers * again)


def flops_per_second_per_gpu(flops: float, seconds: float, gpus: int) -> float:
    """Flop/s of each GPU for work shared by all GPUs.

    >>> flops_per_second_per_gpu(8e12, 2.0, 4)
    1000000000000.0
    """
    return flops / seconds / gpus
