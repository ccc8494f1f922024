"""Keys of a `config.json` with latent attention: DeepSeek V2 and V3, and models that took their keys over.

    kv_lora_rank, q_lora_rank                            ranks; without the second, queries are one product
    qk_nope_head_dim, qk_rope_head_dim, v_head_dim       columns of a head
    n_routed_experts, num_experts_per_tok, …             experts, in all layers but the first; also num_routed_experts

The router of a `deepseek_v3` file chooses groups of experts first (n_group, topk_group) by the sum of their two largest
scores, as a schedule does; that of `deepseek_v2` goes by the largest score, and is read without groups.

Source: transformers 4.57, DeepseekV2Config and DeepseekV3Config, and the published `config.json` files of
deepseek-ai/DeepSeek-V2, -V2-Lite, -V3 and moonshotai/Kimi-K2-Base.
"""

from typing import Any, get_args

from quadrille.algorithms.training.config_reader import Reader
from quadrille.algorithms.training.experts import Experts, Router

COLUMNS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Keys that every file with latent attention needs."""
OF_EXPERTS = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
OTHER_NAMES = {"num_routed_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
"""Names that some copies of the files have, and the usual names."""


def latent_traits(reader: Reader, _layers: int) -> dict[str, Any]:
    """The traits of latent attention."""
    rank, others, rotated, value = (reader.count((key,)) for key in COLUMNS)
    heads, keys = (reader.count((key,)) for key in ("num_attention_heads", "num_key_value_heads"))
    if keys and keys != heads:
        raise reader.error(
            f"num_key_value_heads = {keys} contradicts kv_lora_rank: every one of num_attention_heads = {heads} heads "
            "has a key of its own"
        )
    if (head := reader.count(("qk_head_dim",))) and head != others + rotated:
        raise reader.error(f"qk_head_dim = {head} contradicts qk_nope_head_dim + qk_rope_head_dim = {others + rotated}")
    return {
        "key_heads": 0,
        "key_rank": rank,
        "query_rank": reader.count(("q_lora_rank",)),
        "head_columns": others + rotated,
        "rotary_columns": rotated,
        "value_columns": value,
    }


def latent_experts(reader: Reader, layers: int) -> Experts | None:
    """The experts of a file with latent attention; None for a file that names none."""
    reader = reader.renamed(OTHER_NAMES)
    present = [key for key in OF_EXPERTS if reader.config.get(key) is not None]
    if not present:
        return None
    if missing := [key for key in OF_EXPERTS if key not in present]:
        raise reader.error(f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing, beside {present[0]}")
    count, chosen, inner = (reader.count((key,)) for key in OF_EXPERTS)
    if chosen > count:
        raise reader.error(
            f"num_experts_per_tok = {chosen}: a whole number from 1 to n_routed_experts = {count} is accepted"
        )
    groups, chosen_groups = _groups(reader, count)
    shared = _from_zero(reader, "n_shared_experts")
    is_third = reader.config.get("model_type") != "deepseek_v2"
    _, scores = reader.word(("scoring_func",), "sigmoid" if is_third else "softmax")
    routers: dict[str, Router] = {router: router for router in get_args(Router)}
    if scores not in routers:
        raise reader.error(f"scoring_func = {scores!r:.60}: softmax or sigmoid is accepted")
    return Experts(
        count,
        chosen,
        inner,
        shared * inner,
        dense_layers=_dense_layers(reader, layers),
        router=routers[scores],
        normalised=reader.flag("norm_topk_prob", is_third),
        scale=reader.number(("routed_scaling_factor",), 2.5 if is_third else 1.0),
        groups=groups if is_third else 1,
        chosen_groups=chosen_groups if is_third else 1,
    )


def _groups(reader: Reader, count: int) -> tuple[int, int]:
    """The number of groups of experts among which the router chooses first, and the number that it chooses."""
    groups, chosen = reader.optional("n_group", 1), reader.optional("topk_group", 1)
    if count % groups:
        raise reader.error(f"n_group = {groups}: a number that divides n_routed_experts = {count} is needed")
    if chosen > groups:
        raise reader.error(f"topk_group = {chosen}: a whole number from 1 to n_group = {groups} is accepted")
    return groups, chosen


def _dense_layers(reader: Reader, layers: int) -> frozenset[int]:
    """Numbers of the layers with a dense MLP: the first ones, and those between two layers with experts."""
    first = _from_zero(reader, "first_k_dense_replace")
    if first > layers:
        raise reader.error(
            f"first_k_dense_replace = {first}: a whole number from 0 to num_hidden_layers = {layers} is accepted"
        )
    period = reader.optional("moe_layer_freq", 1)
    return frozenset(layer for layer in range(layers) if layer < first or layer % period)


def _from_zero(reader: Reader, key: str) -> int:
    """The whole number from 0 under a key; 0 where it is absent or null."""
    value = reader.config.get(key)
    return 0 if value is None or (value == 0 and not isinstance(value, bool)) else reader.whole(key, value)
