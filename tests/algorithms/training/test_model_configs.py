"""Configuration files of dense families: what their keys mean, and how keys that cannot be are refused."""

import json
from dataclasses import replace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.architecture import GPT_OSS, LLAMA, QWEN3, Architecture
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.model_shapes import GEMMA2, GEMMA3, NAMED_QWEN3, OLMO2, QWEN25, SHAPES

SIZES = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "vocab_size": 256,
}
QWEN2_KEYS = {"model_type": "qwen2", "rope_theta": 1e6, "sliding_window": 32, "use_sliding_window": False}
GEMMA3_KEYS = {"sliding_window": 32, "query_pre_attn_scalar": 168, "head_dim": 32}


def shape_of(tmp_path, **keys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in (SIZES | keys).items() if value is not ...}))
    return find_shape(str(path))


@pytest.mark.parametrize(
    ("keys", "architecture"),
    [
        (QWEN2_KEYS, replace(QWEN25, key_heads=2)),
        (QWEN2_KEYS | {"use_sliding_window": True, "max_window_layers": 0}, replace(QWEN25, key_heads=2, window=32)),
        ({"model_type": "qwen3", "rope_theta": 1e6}, replace(NAMED_QWEN3, key_heads=2)),
        ({"model_type": "qwen3", "rope_theta": 1e6, "head_dim": 16}, replace(NAMED_QWEN3, key_heads=2, head_columns=0)),
        ({"model_type": "gemma2"}, replace(GEMMA2, key_heads=2)),
        (
            {"model_type": "gemma2", "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 24},
            replace(GEMMA2, key_heads=2, score_cap=0, logit_cap=0, head_columns=24),
        ),
        (
            {"model_type": "gemma3_text", **GEMMA3_KEYS},
            replace(GEMMA3, key_heads=2, window=32, score_columns=168, head_columns=32),
        ),
        (
            {
                "model_type": "gemma3_text",
                **GEMMA3_KEYS,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            },
            replace(GEMMA3, key_heads=2, window=32, score_columns=168, head_columns=32, global_every=3),
        ),
        ({"model_type": "olmo2", "rope_theta": 500000}, replace(OLMO2, key_heads=2)),
        (
            {"model_type": "olmo3", "rope_theta": 500000, "sliding_window": 64},
            replace(OLMO2, key_heads=2, window=64, global_every=4),
        ),
    ],
    ids=str,
)
def test_the_keys_of_a_family_give_its_traits(tmp_path, keys, architecture):
    shape = shape_of(tmp_path, **keys)
    assert shape.architecture == architecture
    assert not shape.approximations


def test_the_language_model_of_images_and_text_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": SIZES | GEMMA3_KEYS}))
    shape = find_shape(str(path))
    assert shape.architecture == replace(GEMMA3, key_heads=2, window=32, score_columns=168, head_columns=32)
    assert shape.differences == ("the encoder of images is left out",)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("gemma-3-4b", {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}),
        (
            "gemma-3-12b",
            {
                "hidden_size": 3840,
                "intermediate_size": 15360,
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
            },
        ),
    ],
)
def test_sizes_that_files_of_gemma3_leave_out_are_those_of_the_published_model(tmp_path, name, keys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": {**keys, "sliding_window": 1024}}))
    shape = find_shape(str(path), SHAPES[name].sequence)
    assert (shape.parameters, shape.architecture) == (SHAPES[name].parameters, SHAPES[name].architecture)


def test_a_refused_type_is_told_which_types_are_accepted(tmp_path):
    with pytest.raises(InputError, match=r"'cohere': accepted are gpt2, .*, qwen2_moe, .*, gpt_oss, .*, gemma3$"):
        shape_of(tmp_path, model_type="cohere")


def test_the_attention_of_qwen2_moe_has_biases_unless_its_file_says_otherwise(tmp_path):
    assert shape_of(tmp_path, **QWEN15).architecture.qkv_biases
    assert not shape_of(tmp_path, **QWEN15, qkv_bias=False).architecture.qkv_biases


def test_a_share_of_a_head_is_rotated(tmp_path):
    phi = shape_of(tmp_path, model_type="phi3", partial_rotary_factor=0.75, sliding_window=None)
    assert (phi.architecture.rotary_share, phi.architecture.window) == (0.75, 0)


PUBLISHED = {
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
}
"""Elements of the published weights.

Source: the safetensors totals that huggingface.co shows for the repositories that `model_shapes.py` names.
"""


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_models_have_the_parameters_of_the_published_weights(name):
    assert SHAPES[name].parameters == PUBLISHED[name]
    assert not SHAPES[name].differences


def test_gemma3_has_the_published_weights_without_the_encoder_of_images():
    """All sizes have the same encoder; its projection is of 1,152 columns to the hidden size, after a norm of 1,152."""
    published = {"4b": 4_300_079_472, "12b": 12_187_325_040, "27b": 27_432_406_640}
    encoders = set()
    for size, total in published.items():
        shape = SHAPES[f"gemma-3-{size}"]
        encoders.add(total - shape.parameters - 1152 * (shape.hidden + 1))
    assert len(encoders) == 1
    assert encoders.pop() == pytest.approx(417e6, rel=1e-3)  # Gemma 3 Technical Report, table 1


# Experts: counted as published.


MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
QWEN3_235B = QWEN3_30B | {
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "moe_intermediate_size": 1536,
}
QWEN15 = {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "max_position_embeddings": 8192,
    "vocab_size": 151936,
    "num_experts": 60,
    "num_experts_per_tok": 4,
}


DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "max_position_embeddings": 163840,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
}
DEEPSEEK_V2 = DEEPSEEK_V2_LITE | {
    "num_hidden_layers": 60,
    "hidden_size": 5120,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "q_lora_rank": 1536,
    "n_routed_experts": 160,
}
DEEPSEEK_V3 = DEEPSEEK_V2 | {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 4096},
    "router_aux_loss_coef": 0.9,
}
GPT_OSS_120B = GPT_OSS_20B | {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}
DENSE_DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}


@pytest.mark.parametrize(
    ("keys", "parameters", "active"),
    [
        (GPT_OSS_20B, 20_914_757_184, 3.61e9 + 201088 * 2880),
        (GPT_OSS_120B, 116_829_156_672, 5.13e9 + 201088 * 2880),
        (DEEPSEEK_V2_LITE, 15_706_484_224, 2.66e9),
        (DEEPSEEK_V2, 235_741_434_880, 21.4e9),
        (DEEPSEEK_V3, 671_026_404_352, 37.6e9),
        (MIXTRAL, 46_702_792_704, 12.9e9),
        (QWEN3_30B, 30_532_122_624, 3.35e9),
        (QWEN3_235B, 235_093_634_560, 22.2e9),
        (QWEN15, 14_315_784_192, 2.7e9),
    ],
    ids=[
        "gpt-oss-20b",
        "gpt-oss-120b",
        "deepseek-v2-lite",
        "deepseek-v2",
        "deepseek-v3",
        "mixtral-8x7b",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "qwen1.5-moe-a2.7b",
    ],
)
def test_experts_are_counted_as_published(tmp_path, keys, parameters, active):
    """Totals: safetensors of huggingface.co; active ones: the names, and "Mixtral of Experts", arXiv 2401.04088.

    OpenAI's card counts active parameters without the table of the embedding.
    """
    shape = shape_of(tmp_path, **keys)
    assert shape.parameters == parameters
    assert shape.active_parameters == pytest.approx(active, rel=0.01)
    assert gpt_from_shape(shape, 4).experts == shape.experts


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("deepseek-v2-lite", DEEPSEEK_V2_LITE),
        ("deepseek-v2", DEEPSEEK_V2 | {"routed_scaling_factor": 16.0}),
        ("deepseek-v3", DEEPSEEK_V3),
        ("gpt-oss-20b", GPT_OSS_20B),
        ("gpt-oss-120b", GPT_OSS_120B),
        ("qwen1.5-moe-a2.7b", QWEN15 | {"rope_theta": 1000000.0}),
    ],
)
def test_a_named_model_is_that_of_its_file(tmp_path, name, keys):
    of_file, named = shape_of(tmp_path, **keys), SHAPES[name]
    assert (named.architecture, named.experts) == (of_file.architecture, of_file.experts)
    assert (named.parameters, named.active_parameters) == (of_file.parameters, of_file.active_parameters)


def test_other_names_of_keys_are_read_as_the_usual_ones(tmp_path):
    other = {"num_routed_experts": 256, "num_shared_experts": 1, "n_routed_experts": ..., "n_shared_experts": ...}
    assert shape_of(tmp_path, **DEEPSEEK_V3 | other).experts == shape_of(tmp_path, **DEEPSEEK_V3).experts


GPTJ = {
    "model_type": "gptj", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 32, "rotary_dim": 8,
}  # fmt: skip
FALCON = {"model_type": "falcon", "max_position_embeddings": ..., "intermediate_size": ...}
NEOX = Architecture(positions="rotary", shared_table=False)


@pytest.mark.parametrize(
    ("keys", "architecture"),
    [
        (
            {"model_type": "gpt_neox", "rotary_emb_base": 10000},
            replace(NEOX, rotary_share=0.25, branches="parallel"),
        ),
        ({"model_type": "gpt_neox", "use_parallel_residual": False}, replace(NEOX, rotary_share=0.25)),
        (GPTJ, replace(NEOX, rotary_share=0.5, branches="shared")),
        (FALCON, replace(NEOX, shared_table=True, key_heads=1, biases=False, branches="shared")),
        (
            FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
            replace(NEOX, shared_table=True, key_heads=2, biases=False, branches="parallel"),
        ),
        (
            FALCON | {"parallel_attn": False, "multi_query": False, "bias": True, "alibi": True},
            replace(NEOX, shared_table=True, positions="none"),
        ),
        (
            {"model_type": "qwen3_next", "head_dim": 24, "layer_types": ["linear_attention"] * 6},
            replace(QWEN3, key_heads=2, head_columns=24, rotary_share=0.25, gated_attention=True),
        ),
    ],
    ids=str,
)
def test_branches_and_gates_of_a_file_are_read(tmp_path, keys, architecture):
    assert shape_of(tmp_path, **keys).architecture == architecture


def test_linear_attention_must_be_accepted_as_full_attention(tmp_path):
    shape = shape_of(tmp_path, model_type="qwen3_next", full_attention_interval=4)
    with pytest.raises(InputError, match="full_attention_interval = 4: no layer has linear attention"):
        shape.check_approximations(accepted=False)
    assert gpt_from_shape(shape, 4).architecture.gated_attention


def test_windows_of_gpt_oss_alternate_from_the_first_layer(tmp_path):
    architecture = shape_of(tmp_path, **GPT_OSS_20B).architecture
    assert architecture == replace(
        GPT_OSS, key_heads=8, head_columns=64, window=128, global_every=2, rotary_base=150000.0
    )
    assert [architecture.is_global(layer) for layer in range(4)] == [False, True, False, True]


def test_latent_attention_of_a_dense_file_is_read_and_trained_by_a_schedule(tmp_path):
    shape = shape_of(tmp_path, **DENSE_DEEPSEEK, head_dim=4, num_nextn_predict_layers=1)
    architecture = replace(LLAMA, key_rank=16, query_rank=24, head_columns=12, rotary_columns=4, value_columns=6)
    assert shape.architecture == architecture
    assert shape.differences == ("the layers that predict further tokens are left out",)
    assert gpt_from_shape(shape, 4).architecture == architecture


@pytest.mark.parametrize(
    ("tables", "bases"),
    [
        ({"rope_type": "default", "rope_theta": 5e5}, (5e5, 1e4)),
        ({"full_attention": {"rope_theta": 2e6}, "sliding_attention": {"rope_theta": 3e4}}, (2e6, 3e4)),
        ({"sliding_attention": {"rope_theta": 3e4}, "full_attention": {"rope_theta": 2e6}}, (2e6, 3e4)),
    ],
)
def test_tables_of_rotary_parameters_give_a_base_for_each_type_of_layer(tmp_path, tables, bases):
    shape = shape_of(tmp_path, model_type="gemma3_text", **GEMMA3_KEYS, rope_parameters=tables)
    assert (shape.architecture.rotary_base, shape.architecture.local_rotary_base) == bases
    olmo = shape_of(tmp_path, model_type="olmo3", rope_parameters=tables)
    assert (olmo.architecture.rotary_base, olmo.architecture.local_rotary_base or 1e4) == bases


def test_a_model_with_windows_alone_takes_their_table(tmp_path):
    tables = {"sliding_attention": {"rope_theta": 3e4, "rope_type": "linear"}}
    shape = shape_of(tmp_path, model_type="mistral", sliding_window=8, rope_parameters=tables)
    assert shape.architecture == replace(LLAMA, key_heads=2, window=8, rotary_base=3e4)
    assert shape.differences == ("rotary positions are not scaled",)


# What is refused.


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model_type": "llama", "hidden_size": ..., "vocab_size": ...}, "hidden_size, vocab_size are missing"),
        ({"model_type": "llama", "intermediate_size": ...}, "intermediate_size is missing"),
        ({"model_type": "llama", "num_key_value_heads": 3}, "key_heads 3: must divide heads = 4"),
        ({"model_type": "llama", "hidden_size": 66}, "heads 4: must divide hidden = 66"),
        ({"model_type": "llama", "tie_word_embeddings": "no"}, "tie_word_embeddings = 'no': true or false"),
        ({"model_type": "qwen3", "head_dim": 0}, "head_dim = 0: a whole number from 1"),
        (
            QWEN2_KEYS | {"use_sliding_window": True, "max_window_layers": 4},
            "use_sliding_window = true with max_window_layers = 4",
        ),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"] * 5}, "layer_types has 5 entries: 6"),
        ({"model_type": "gemma2", "layer_types": 6}, "layer_types = 6: a list with an entry for each layer is needed"),
        ({"model_type": "gemma2", "layer_types": ["linear_attention"] * 6}, "layer_types has 'linear_attention'"),
        (
            {
                "model_type": "olmo3",
                "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"] * 2,
            },
            "layer_types does not repeat its first 2 entries: a repeated pattern of sliding_attention entries and one",
        ),
        (
            {"model_type": "mistral", "layer_types": ["sliding_attention"] * 6},
            "sliding_window is missing, and layer_types has 'sliding_attention'",
        ),
        (
            {"model_type": "phi3", "partial_rotary_factor": 1.5},
            "partial_rotary_factor = 1.5: a number above 0",
        ),
        (
            {"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 1.5}},
            "partial_rotary_factor = 1.5: a number above 0",
        ),
        ({"model_type": "phi3", "partial_rotary_factor": 0.2}, "is 3: an even number from 2 is needed"),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1}, "attn_logit_softcapping = -1: a number above 0"),
        ({"model_type": "gemma3"}, "text_config is missing"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "num_experts_per_tok is missing"),
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9},
            "num_experts_per_tok = 9: a whole number from 1 to num_local_experts = 8",
        ),
        ({"model_type": "qwen3_moe", "num_experts": 8}, "moe_intermediate_size is missing"),
        (
            {"model_type": "qwen3_moe", "moe_intermediate_size": 8, "mlp_only_layers": [6]},
            "mlp_only_layers = [6]: a list of numbers of layers from 0 to 5",
        ),
        ({"model_type": "deepseek_v3", "vocab_size": ...}, "vocab_size, kv_lora_rank, qk_nope_head_dim, qk_rope_he"),
        (DENSE_DEEPSEEK | {"num_key_value_heads": 2}, "num_key_value_heads = 2 contradicts kv_lora_rank"),
        (DENSE_DEEPSEEK | {"qk_head_dim": 13}, "qk_head_dim = 13 contradicts qk_nope_head_dim + qk_rope_head_dim = 12"),
        (DENSE_DEEPSEEK | {"n_routed_experts": 8}, "num_experts_per_tok, moe_intermediate_size are missing, beside"),
        (DENSE_DEEPSEEK | {"qk_rope_head_dim": 3}, "rotary_columns 3: an even number below head_columns = 11"),
        (DEEPSEEK_V3 | {"n_group": 7}, "n_group = 7: a number that divides n_routed_experts = 256"),
        (DEEPSEEK_V3 | {"topk_group": 9}, "topk_group = 9: a whole number from 1 to n_group = 8"),
        (DEEPSEEK_V3 | {"first_k_dense_replace": 62}, "first_k_dense_replace = 62: a whole number from 0 to"),
        (
            {"model_type": "llama", "rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
            "rope_theta = 10000.0 contradicts 500000.0 in rope_parameters",
        ),
        ({"model_type": "llama", "rope_parameters": 5}, "rope_parameters = 5: a table is needed"),
        (
            {"model_type": "olmo3", "rope_parameters": {"sliding_attention": {"rope_theta": "big"}}},
            "rope_theta = 'big'",
        ),
        ({"model_type": "gpt_oss"}, "num_local_experts, experts_per_token are missing"),
        (GPTJ | {"rotary_dim": 17}, "rotary_dim = 17: a whole number up to n_embd / n_head = 16 is accepted"),
        (FALCON | {"num_attention_heads": 3}, "heads 3: must divide hidden = 64"),
    ],
    ids=str,
)
def test_keys_that_cannot_be_are_refused_in_one_line(tmp_path, keys, said):
    with pytest.raises(InputError, match=r"^model") as refused:
        shape_of(tmp_path, **keys)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_no_schedule_does_must_be_accepted(tmp_path):
    shape = shape_of(tmp_path, model_type="phi", num_key_value_heads=4, hidden_act="gelu_new")
    with pytest.raises(InputError, match=r"phi: logits have no bias; --approximate goes on"):
        shape.check_approximations(accepted=False)
    shape.check_approximations(accepted=True)
