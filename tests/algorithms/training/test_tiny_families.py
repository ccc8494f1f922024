"""Tiny versions of published models with experts, from their `config.json`: trained as the serial run trains them."""

import json

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from tests.support.trainings import check_training, schedule_of, total_flops

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 10,
    "max_position_embeddings": 4,
    "vocab_size": 17,
    "num_experts_per_tok": 2,
}
QWEN = SIZES | {"num_experts": 4, "moe_intermediate_size": 10}
LATENT = SIZES | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 6,
    "kv_lora_rank": 9,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "moe_intermediate_size": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
}
FAMILIES = {
    "mixtral": SIZES | {"num_local_experts": 4},
    "qwen2_moe": QWEN | {"shared_expert_intermediate_size": 12, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    "qwen3_moe": QWEN | {"head_dim": 6, "norm_topk_prob": True},
    "qwen3_next": QWEN | {"head_dim": 8, "shared_expert_intermediate_size": 12, "norm_topk_prob": True},
    "gpt_oss": SIZES | {"num_local_experts": 4, "head_dim": 6, "sliding_window": 2},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT | {"q_lora_rank": 8, "n_group": 2, "topk_group": 1},
}


def shape_of(tmp_path, family, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **FAMILIES[family], **changes}))
    return find_shape(str(path))


def problem_of(shape, **options):
    return gpt_from_shape(shape, 8, dtype="float64", adam=Adam(rate=0.03, decay=0.1, clip=0.05), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_trains_as_the_serial_run_does(tmp_path, family):
    """Two steps, so that biases, which start at 0, have other values in the second."""
    check_training(problem_of(shape_of(tmp_path, family), steps=2), parse_grid("data=4,expert=2"))


@pytest.mark.parametrize(
    ("family", "grid", "options"),
    [
        ("gpt_oss", "data=2,x=3,expert=2", {"zero": 3, "recompute": "full"}),
        ("gpt_oss", "data=2,expert=2,pipeline=2", {"micro_batch": 1, "pipeline_schedule": "zb-h1", "zero": 1}),
        ("qwen2_moe", "data=2,x=3,expert=2", {"zero": 1, "micro_batch": 2}),
        ("qwen3_next", "data=2,pipeline=2", {"micro_batch": 1, "pipeline_schedule": "zb-h1", "recompute": "full"}),
    ],
    ids=str,
)
def test_biases_and_gates_go_together_with_what_else_a_step_may_be(tmp_path, family, grid, options):
    """Ranks along x cut sequences of 6 tokens, of which the auxiliary loss would need the whole."""
    shape = shape_of(tmp_path, family, max_position_embeddings=6, router_aux_loss_coef=0)
    scheme = find_scheme("megatron", sequence_parallel=True)
    check_training(problem_of(shape, **options), parse_grid(grid), scheme)


@pytest.mark.parametrize("family", ["gpt_oss", "qwen2_moe"])
def test_products_and_parameters_are_those_of_the_formulas(tmp_path, family):
    """A schedule's tensors have as many elements as the model has parameters: biases and gates are among them."""
    shape = shape_of(tmp_path, family)
    schedule = schedule_of(problem_of(shape), parse_grid("data=1"))
    assert total_flops(schedule) == step_flops(shape, 8).hardware
    coordinates = schedule.coordinates(0)
    stored = (schedule.tensors[name] for name in schedule.state)
    assert (
        sum(tensor.block(at).elements for tensor in stored for at in tensor.copy_coordinates(coordinates))
        == shape.parameters
    )


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen2_moe", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size is missing"),
        ("qwen2_moe", {"qkv_bias": 1}, "qkv_bias = 1: true or false is needed"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok = 5: a whole number from 1 to num_local_experts"),
    ],
)
def test_wrong_keys_are_named(tmp_path, family, changes, message):
    with pytest.raises(InputError, match=message):
        shape_of(tmp_path, family, **changes)


def test_a_gate_needs_a_shared_expert():
    text = "layers=2,hidden=8,heads=2,sequence=4,vocabulary=16,experts=4,top_k=2,expert_ffn=6,shared_gate=yes"
    with pytest.raises(InputError, match="shared_gate yes: a shared_ffn above 0"):
        find_shape(text)


@pytest.mark.parametrize(("family", "count"), [("mixtral", 0), ("qwen2_moe", 0), ("gpt_oss", 0), ("qwen3_next", 1)])
def test_what_is_approximate_is_listed(tmp_path, family, count):
    assert len(shape_of(tmp_path, family).approximations) == count
