"""Experts, latent attention and small numbers among Megatron-LM's arguments.

Assumptions, as Megatron-LM makes them: two experts a token, experts as wide as the MLP, a softmax over the chosen
experts, no auxiliary loss, biases of the router and the experts where linear layers have biases, experts cut over the
tensor ranks as other matrices are; queries, keys and values of latent
attention of 128 columns beside 64 rotated columns.

Source: NVIDIA, Megatron-LM, megatron/training/arguments.py (mixture of experts, multi-latent attention, FP8);
megatron/core/transformer/transformer_config.py (defaults), moe/moe_utils.py (scores).
"""

import re
from collections.abc import Iterator
from math import inf
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.training.experts import Experts
from quadrille.algorithms.training.small_numbers import find_products
from quadrille.experiments.import_.argument_values import ArgumentValues

ALL_TO_ALL = ("alltoall", "flex", "alltoall_seq")
"""Token dispatchers that exchange tokens by all-to-all."""
BALANCED = ("aux_loss", "seq_aux_loss", "global_aux_loss")
"""Words of `--moe-router-load-balancing-type` that add an auxiliary loss."""
MOST_LAYERS = 10_000
TERM = re.compile(r"\s*(?:\[([01, ]*)\]|\(([^()]*)\))\s*(?:\*\s*(\d{1,5}))?\s*")
"""A list, or a sum of lists in parentheses, and how often it is repeated."""
LONGEST_PATTERN = 4000


def experts_of(values: ArgumentValues, layers: int, inner: int) -> Experts | None:
    """The experts of a job; None for a dense model.

    Parameters
    ----------
    layers : layers of the model
    inner : width of the dense MLP

    Raises
    ------
    InputError : a value that no experts have
    """
    if values.text("num-experts") in ("", "0", "1"):
        return None
    chosen, router = values.whole("moe-router-topk", 2), values.text("moe-router-score-function", "softmax")
    is_sigmoid = router == "sigmoid"
    return Experts(
        values.whole("num-experts"),
        chosen,
        values.whole("moe-ffn-hidden-size", inner),
        values.whole("moe-shared-expert-intermediate-size", 0),
        shared_gate=values.on("moe-shared-expert-gate"),
        dense_layers=_dense_layers(values.raw("moe-layer-freq"), layers),
        router="sigmoid" if is_sigmoid else "softmax",
        normalised=chosen > 1 if is_sigmoid else not values.on("moe-router-pre-softmax"),
        scale=values.number("moe-router-topk-scaling-factor", 1.0) or 1.0,
        balance=_balance(values),
        biases=not values.on("disable-bias-linear"),
        capacity=values.number("moe-expert-capacity-factor", inf) if values.on("moe-expert-capacity-factor") else inf,
        groups=values.whole("moe-router-num-groups", 1),
        chosen_groups=values.whole("moe-router-group-topk", 1),
    )


def _balance(values: ArgumentValues) -> float:
    """Coefficient of the auxiliary loss that the arguments ask for."""
    kind = values.text("moe-router-load-balancing-type", "aux_loss")
    return values.number("moe-aux-loss-coeff", 0.0) if kind in BALANCED else 0.0


def _dense_layers(pattern: str, layers: int) -> frozenset[int]:
    """The layers without experts.

    >>> sorted(_dense_layers("([0]*1+[1]*2)*2", 6)), sorted(_dense_layers("2", 4)), sorted(_dense_layers("", 4))
    ([0, 3], [1, 3], [])

    Parameters
    ----------
    pattern : value of `--moe-layer-freq`: a period, whose first layer has experts, or a sum of lists of 0 and 1
    layers : number of layers

    Raises
    ------
    InputError : neither a period nor a pattern of this number of layers
    """
    text = pattern.strip().strip("'\"")
    if text.isdigit() and len(text) < 6:
        return frozenset(layer for layer in range(layers) if layer % max(int(text), 1))
    if not text:
        return frozenset()
    kinds = _kinds(text[:LONGEST_PATTERN])
    if len(kinds) != layers:
        raise InputError(f"--moe-layer-freq {pattern[:40]!r}: a period, or [0]*A+[1]*B of {layers} layers is accepted")
    return frozenset(layer for layer, has_experts in enumerate(kinds) if not has_experts)


def _kinds(text: str) -> list[int]:
    """The items of a sum of repeated lists; empty for another text.

    >>> _kinds("([0]*1+[1]*2)*2"), _kinds("[0,1]"), _kinds("[2]")
    ([0, 1, 1, 0, 1, 1], [0, 1], [])
    """
    kinds: list[int] = []
    at = 0
    while term := TERM.match(text, at):
        items = _kinds(term[2]) if term[2] is not None else [int(digit) for digit in re.findall("[01]", term[1])]
        kinds += (items * int(term[3] or 1))[:MOST_LAYERS] if items else []
        at = term.end()
        if at == len(text):
            return kinds[: MOST_LAYERS + 1]
        if text[at] != "+" or len(kinds) > MOST_LAYERS:
            break
        at += 1
    return []


def expert_ranks(values: ArgumentValues, experts: Experts) -> tuple[int, int]:
    """Ranks that share out the experts, and ranks that cut each.

    Ranks that cut experts with biases share out whole experts instead, where they can.
    """
    ranks, cut = values.whole("expert-model-parallel-size", 1), _cuts(values)
    if not experts.biases:
        return ranks, cut
    return (ranks if experts.count % (ranks * cut) else ranks * cut), 1


def _cuts(values: ArgumentValues) -> int:
    """Ranks that cut each expert: as many as tensor ranks, unless the arguments say otherwise."""
    return values.whole("expert-tensor-parallel-size", values.whole("tensor-model-parallel-size", 1))


def expert_differences(values: ArgumentValues, experts: Experts | None) -> Iterator[str]:
    """What an experiment does otherwise with experts."""
    if experts is None:
        return
    dispatcher = values.text("moe-token-dispatcher-type", "allgather")
    ranks = values.whole("expert-model-parallel-size", 1)
    if dispatcher not in ALL_TO_ALL and ranks > 1:
        yield f"--moe-token-dispatcher-type {dispatcher:.40}: tokens are exchanged by all-to-all"
    kind = values.text("moe-router-load-balancing-type", "aux_loss")
    if kind not in (*BALANCED, "none"):
        yield f"--moe-router-load-balancing-type {kind:.40}: tokens go to the experts of the largest scores"
    if experts.biases and (cut := _cuts(values)) > 1:
        default_text = "" if values.on("expert-tensor-parallel-size") else ", as many as tensor ranks"
        words = f"--expert-tensor-parallel-size {cut}{default_text}"
        whole, _ = expert_ranks(values, experts)
        yield f"{words}: experts with biases are whole, and {whole} ranks share them out"


def latent_traits(values: ArgumentValues) -> dict[str, Any]:
    """The traits of latent attention; empty without it."""
    if not values.on("multi-latent-attention"):
        return {}
    rotary = values.whole("qk-pos-emb-head-dim", 64)
    return {
        "key_rank": values.whole("kv-lora-rank", 32),
        "query_rank": values.whole("q-lora-rank", 0),
        "head_columns": values.whole("qk-head-dim", 128) + rotary,
        "rotary_columns": rotary,
        "value_columns": values.whole("v-head-dim", 128),
    }


def products_of(values: ArgumentValues) -> Products:
    """The precision of the products of linear layers.

    Raises
    ------
    InputError : a recipe that no schedule has
    """
    if values.text("fp4-format") or values.on("fp4"):
        return find_products(values.text("fp4-recipe", "nvfp4"))
    if values.text("fp8-format") or values.on("fp8"):
        recipe = values.text("fp8-recipe", "delayed")
        try:
            return find_products(recipe)
        except InputError:
            raise InputError(
                f"--fp8-recipe {recipe:.40}: accepted are tensorwise, delayed, blockwise and mxfp8"
            ) from None
    return "dtype"
