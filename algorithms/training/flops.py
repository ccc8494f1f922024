"""Floating-point operations of a training step, by formula: model flop (MFU) and hardware flop (HFU).

For the plain GPT with B sequences of s tokens, L layers, hidden size h, vocabulary V:

    model      72 B s L h² (1 + s/(12 h) + V/(12 L h))
    hardware   96 B s L h² (1 + s/(12 h) + V/(16 L h))      with full recomputation of unfused attention

Attention is causal, and kernels compute the lower half of its square products; both counts have that half, as
Megatron-Core counts.  In a layer with a sliding window of w tokens, both counts have s² - (s - w)² in place of s².  A
share of the peak of a device is therefore never above 100 %.  The papers on Megatron-LM and PaLM count full squares
(`full_square_flops`), which no kernel computes: s/(6 h) instead of s/(12 h).  The optimizer and
everything other than matrix products is omitted, as usual.

With experts, both counts have the products of the chosen experts, of the router and of the shared MLP.

The hardware also computes what the step recomputes, in each layer (a square product is causal here):

    recompute   attention fused                     attention unfused
    none        one square product                  nothing
    selective   one square product                  two square products
    full        the layer and one square product    the layer

The gradient kernel of fused attention computes the scores, one of the two square products, again
(`ATTENTION_PRODUCTS`).  Attention that several ranks repeat, because a grid does not shard it over y, counts once.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC21,
section 3 and appendix; Chowdhery et al., "PaLM", 2022, appendix B (the two names); Korthikanti et al.,
arXiv 2205.05198, appendix A (selective recomputation); NVIDIA/Megatron-LM@001b00c2734d, megatron/training/training.py,
num_floating_point_operations (half of the square products).
"""

from dataclasses import dataclass, replace
from typing import Any

from quadrille.algorithms.schedule.kernel_signatures import seen_pairs
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.recompute import WHOLE_LAYERS, Attention, Recompute

WITHOUT_WINDOW: dict[str, Any] = {"window": 0, "global_every": 0, "local_rotary_base": 0.0}
"""Traits of an architecture whose layers see all tokens."""


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Flop of one training step over all GPUs: of the model, and of the hardware, with recomputation."""

    model: int
    hardware: int


def least_layer_flops(shape: ModelShape, batch: int) -> int:
    """Flop of the products of the forward pass of the layer that has the fewest: a layer with a window, if any."""
    return _dense_flops(shape, batch) // shape.layers + _causal_flops(shape, batch, shape.architecture.window)


def _dense_flops(shape: ModelShape, batch: int) -> int:
    """Flop of the products of weights in the forward pass of all layers; of the chosen experts alone."""
    return 2 * batch * shape.sequence * shape.products_of_layers


def _causal_flops(shape: ModelShape, batch: int, window: int = 0) -> int:
    """Flop of the two square products of one layer's attention in the forward pass, of which half is computed."""
    return batch * seen_pairs(shape.sequence, window) * (shape.attended + shape.scored)


def causal_flops(shape: ModelShape, batch: int) -> int:
    """Flop of the two square products of all layers' attention in the forward pass, of which half is computed."""
    everywhere = shape.architecture.global_layers(shape.layers)
    windowed = _causal_flops(shape, batch, shape.architecture.window)
    return everywhere * _causal_flops(shape, batch) + (shape.layers - everywhere) * windowed


def layers_flops(shape: ModelShape, batch: int) -> int:
    """Flop of the products of all layers' forward pass."""
    return _dense_flops(shape, batch) + causal_flops(shape, batch)


def step_flops(
    shape: ModelShape, batch: int, attention: Attention = "fused", recompute: Recompute = "none"
) -> StepFlops:
    """The flop that all GPUs compute in a training step; a backward pass costs two forward passes.

    Parameters
    ----------
    shape : shape of the model
    batch : sequences of the global batch
    attention, recompute : fused or unfused attention, and activation recomputation

    >>> shape = ModelShape("toy", layers=2, hidden=8, heads=2, sequence=4, vocabulary=16)
    >>> step_flops(shape, 3, "unfused", recompute="full")
    StepFlops(model=124416, hardware=162816)
    """
    squares = causal_flops(shape, batch)
    again = {"none": 0, "selective": squares if attention == "unfused" else 0}
    again |= {word: layers_flops(shape, batch) for word in WHOLE_LAYERS}
    scored = squares * shape.scored // (shape.scored + shape.attended)
    in_gradient = scored if attention != "unfused" else 0
    table = 2 * batch * shape.sequence * shape.table
    model = 3 * (layers_flops(shape, batch) + table)
    return StepFlops(model, model + again[recompute] + in_gradient)


def full_square_flops(shape: ModelShape, batch: int, recompute: Recompute = "none") -> StepFlops:
    """The flop of a training step as papers count them: full squares, and nothing that a kernel recomputes.

    Published FLOP/s and shares of the peak mean this count.

    >>> shape = ModelShape("toy", layers=2, hidden=8, heads=2, sequence=4, vocabulary=16)
    >>> full_square_flops(shape, 3, recompute="full")
    StepFlops(model=129024, hardware=168960)
    """
    whole = replace(shape, architecture=replace(shape.architecture, **WITHOUT_WINDOW))  # papers count no windows
    causal, squares = step_flops(whole, batch, "unfused", recompute), causal_flops(whole, batch)
    return StepFlops(causal.model + 3 * squares, causal.hardware + (3 if recompute == "none" else 4) * squares)


def flops_per_second_per_gpu(flops: float, seconds: float, gpus: int) -> float:
    """Flop/s of each GPU for work shared by all GPUs.

    >>> flops_per_second_per_gpu(8e12, 2.0, 4)
    1000000000000.0
    """
    return flops / seconds / gpus
