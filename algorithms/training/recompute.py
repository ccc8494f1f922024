"""Attention (fused or unfused) and activation recomputation, as Megatron-LM's --recompute-granularity means it.

    attention   fused       one kernel; the attention weights stay on chip, and the gradient kernel computes them again
                            from the stored logarithms of the row sums, as FlashAttention does
                flash1, flash2, flash3, cudnn
                            fused, too; predictions take the rates of this kernel instead of the machine's usual one
                unfused     the attention weights are written to memory
    recompute   none        everything that the backward pass reads is stored, attention weights of unfused attention
                            included
                selective   attention weights are not stored; unfused attention runs forward again before its gradient
                full        only the input of each layer is stored; the whole layer runs forward again before its
                            backward pass
                full-keep-exchange
                            the same, but rows that were exchanged among the ranks of experts are stored, too, so the
                            second forward pass exchanges none

Fused attention stores no attention weights, so that selective recomputation adds nothing to it.  With unfused attention
and recomputation the attention weights of one layer at a time are in memory.

Full recomputation runs all ops of the layer again, as the frameworks' checkpointing does, including the reduction of
the last product, whose result is not read; published iteration times include it.  What the second forward pass gathers
serves the backward pass, so weights are gathered as often as without recomputation.

Source: Chen et al., "Training deep nets with sublinear memory cost", 2016 (full); Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models", arXiv 2205.05198, section 5 (selective); Dao et al.,
"FlashAttention", 2022, section 3.1 (fused); Singh et al., "A Hybrid Tensor-Expert-Data Parallelism Approach to Optimize
Mixture-of-Experts Training", ICS 2023, section 5.2 (communication-aware checkpointing: exchanged rows are stored).
"""

from dataclasses import replace
from typing import Literal, TypeVar, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.rewriting import filter_ops, map_ops
from quadrille.algorithms.schedule.kernel_signatures import FUSED_ATTENTION, FusedAttention
from quadrille.algorithms.schedule.ops import AllGather, AllToAll, Broadcast, Op, ReduceScatter, writes
from quadrille.algorithms.schedule.program import Choice, ops, repeats
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.layers import Layer

Attention = Literal["fused", "unfused"] | FusedAttention
Recompute = Literal["none", "selective", "full", "full-keep-exchange"]
Word = TypeVar("Word", bound=str)
Fetch = AllGather | Broadcast
"""Ops that bring a rank what others hold."""
ATTENTIONS: tuple[Attention, ...] = ("fused", "unfused", *FUSED_ATTENTION)
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
"""Kinds of recomputation that every model has."""
WHOLE_LAYERS: tuple[Recompute, ...] = ("full", "full-keep-exchange")
"""Kinds of recomputation under which a whole layer runs forward again."""


def find_attention(word: str) -> Attention:
    """Returns the kind of attention that a word names.

    >>> find_attention("unfused")
    'unfused'

    Raises
    ------
    InputError : an unknown word
    """
    return _find("attention", word, ATTENTIONS)


def find_recompute(word: str) -> Recompute:
    """Returns the recomputation that a word names.

    >>> find_recompute("full")
    'full'

    Raises
    ------
    InputError : an unknown word
    """
    return _find("recompute", word, get_args(Recompute))


def _find(quantity: str, word: str, accepted: tuple[Word, ...]) -> Word:
    """Returns the accepted word that is equal to `word`."""
    for candidate in accepted:
        if word == candidate:
            return candidate
    raise InputError(f"{quantity} {word!r}: accepted are {', '.join(accepted)}")


def with_recomputation(layer: Layer, output: str, *, keeps_exchange: bool = False) -> Layer:
    """Returns the layer with its forward pass, except for the op that writes `output`, repeated before its backward
    pass.

    Copies of gathered parameters that serve both passes are kept; everything else exists for one layer at a time.

    Parameters
    ----------
    layer : the layer
    output : activation that the layer returns
    keeps_exchange : whether the results of exchanges among ranks of experts are kept, too
    """
    parameters = {tensor.name for tensor in layer.parameters}
    fetches = [op for op in layer.forward if isinstance(op, Fetch)]
    kept = {op.into for op in fetches if op.source in parameters and _has_copies(layer, op.into)}
    exchanges = [
        op
        for op in ops(layer.forward)
        if keeps_exchange and isinstance(op, AllToAll | AllGather | ReduceScatter) and op.counts
    ]
    exchanged = {name for op in exchanges for name in (op.into, op.counts)}
    forward = filter_ops(
        layer.forward, lambda op: not {output, *exchanged}.intersection(writes(op)) and not _fills(op, kept)
    )
    fetched = {op.into for op in forward if isinstance(op, Fetch)}
    within = {entry.loop for entry in repeats(layer.forward) if not isinstance(entry, Choice)}
    return replace(
        layer,
        tensors=tuple(tensor if tensor.name in kept | exchanged else _once(tensor, within) for tensor in layer.tensors),
        backward=(
            *map_ops(forward, lambda op: replace(op, name=f"again {op.name}")),
            *filter_ops(layer.backward, lambda op: not _fills(op, fetched)),
        ),
    )


def _once(tensor: Tensor, within: set[str]) -> Tensor:
    """The tensor with copies for the loops within a layer only."""
    return replace(tensor, copies=tuple(copies for copies in tensor.copies if copies[0] in within))


def _fills(op: Op, buffers: set[str]) -> bool:
    return isinstance(op, Fetch) and op.into in buffers


def _has_copies(layer: Layer, name: str) -> bool:
    tensors: dict[str, Tensor] = {tensor.name: tensor for tensor in layer.tensors}
    return bool(tensors[name].copies)
