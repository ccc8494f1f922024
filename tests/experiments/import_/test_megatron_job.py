"""What Megatron-LM's arguments mean, and the experiment that a job becomes."""

from dataclasses import replace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.model_files import find_shape
from quadrille.cli.main import main
from quadrille.experiments.import_.imported_job import ImportedJob
from quadrille.experiments.import_.job_experiment import differences, job_experiment
from quadrille.experiments.import_.megatron_arguments import JobArguments
from quadrille.experiments.import_.megatron_bridge import shape_arguments
from quadrille.experiments.import_.megatron_job import megatron_job

BASE = {
    "num-layers": "4", "hidden-size": "256", "num-attention-heads": "8", "seq-length": "128", "micro-batch-size": "2",
    "vocab-size": "1000", "bf16": True,
}  # fmt: skip


def job(gpus=8, **changes):
    return megatron_job(
        JobArguments({**BASE, **{name.replace("_", "-"): value for name, value in changes.items()}}), gpus
    )


def test_assumptions_are_those_of_megatron():
    step = job().step
    assert (step.inner, step.head_columns, step.key_heads, step.vocabulary) == (1024, 32, 8, 1024)
    assert (step.hidden_dropout, step.attention_dropout, step.attention) == (0.1, 0.1, "auto")
    assert (step.gradient_bytes, step.distributed_optimizer, step.global_batch) == (4, False, 16)
    assert (step.biases, step.untied, step.positions, step.fused_gradients) == (True, False, 128, True)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"swiglu": True}, "inner", 640),
        ({"swiglu": True, "ffn_hidden_size": "700"}, "inner", 700),
        ({"group_query_attention": True, "num_query_groups": "2"}, "key_heads", 2),
        ({"num_query_groups": "2"}, "key_heads", 8),
        ({"kv_channels": "64"}, "head_columns", 64),
        ({"tensor_model_parallel_size": "4"}, "vocabulary", 1024),
        ({"make_vocab_size_divisible_by": "1"}, "vocabulary", 1000),
        ({"tokenizer_type": "NullTokenizer", "vocab_size": "1024"}, "vocabulary", 1152),
        ({"grad_reduce_in_bf16": True}, "gradient_bytes", 2),
        ({"sequence_parallel": True}, "sequence_parallel", False),
        ({"sequence_parallel": True, "tensor_model_parallel_size": "2"}, "sequence_parallel", True),
        ({"pipeline_model_parallel_size": "2", "num_layers_per_virtual_pipeline_stage": "1"}, "virtual", 2),
        ({"transformer_impl": "local"}, "attention", "unfused"),
        ({"transformer_impl": "local", "use_flash_attn": True}, "attention", "flash"),
        ({"recompute_activations": True}, "recompute", "selective"),
        (
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": "0"},
            "recompute",
            "none",
        ),
        ({"position_embedding_type": "rope"}, "positions", 0),
        ({"cross_entropy_loss_fusion": True}, "loss", "native"),
        ({"use_megatron_fsdp": True}, "sharded_weights", True),
        (
            {"pipeline_model_parallel_size": "2", "decoder_first_pipeline_num_layers": "1"},
            "stage_layers",
            (1, 3),
        ),
    ],
)
def test_arguments_change_the_step(changes, field, value):
    assert getattr(job(**changes).step, field) == value


EXPERTS = {
    "num_experts": "8", "expert_model_parallel_size": "4", "disable_bias_linear": True, "swiglu": True,
    "moe_token_dispatcher_type": "alltoall", "expert_tensor_parallel_size": "1",
}  # fmt: skip


def test_experts_have_megatrons_defaults_and_share_the_data_ranks():
    experiment = job_experiment(job(**EXPERTS))
    experts = experiment.problem.experts
    assert (experts.count, experts.chosen, experts.inner, experts.normalised) == (8, 2, 640, True)
    assert (experiment.grid.expert, experiment.grid.data, experiment.software) == (4, 8, "")
    assert differences(job(**EXPERTS)) == ()


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"moe_ffn_hidden_size": "96"}, "inner", 96),
        ({"moe_router_topk": "1"}, "chosen", 1),
        ({"moe_router_pre_softmax": True}, "normalised", False),
        ({"moe_router_score_function": "sigmoid", "moe_router_topk": "1"}, "normalised", False),
        ({"moe_aux_loss_coeff": "1e-2"}, "balance", 0.01),
        ({"moe_aux_loss_coeff": "1e-2", "moe_router_load_balancing_type": "none"}, "balance", 0.0),
        ({"moe_expert_capacity_factor": "1.5"}, "capacity", 1.5),
        ({"moe_layer_freq": "2"}, "dense_layers", frozenset({1, 3})),
        ({"moe_layer_freq": "([0]*1+[1]*3)"}, "dense_layers", frozenset({0})),
        ({"moe_layer_freq": "[0, 1, 0, 1]"}, "dense_layers", frozenset({0, 2})),
        ({"moe_shared_expert_intermediate_size": "64"}, "shared", 64),
    ],
)
def test_arguments_of_experts_change_them(changes, field, value):
    assert getattr(job(**EXPERTS, **changes).experts, field) == value


CUT = {name: value for name, value in EXPERTS.items() if name != "expert_tensor_parallel_size"} | {
    "tensor_model_parallel_size": "2", "expert_model_parallel_size": "2", "sequence_parallel": True,
}  # fmt: skip


@pytest.mark.parametrize("said", [{"expert_tensor_parallel_size": "2"}, {}], ids=str)
def test_tensor_ranks_cut_experts_as_megatron_does_by_default(said):
    cut = job(**CUT, **said)
    grid = job_experiment(cut).grid
    assert (grid.data, grid.x, grid.expert, grid.expert_tensor) == (4, 2, 2, 2)
    assert differences(cut) == ()


def test_cut_experts_with_biases_are_whole_ones_over_more_ranks():
    cut = job(**{name: value for name, value in CUT.items() if name != "disable_bias_linear"})
    grid = job_experiment(cut).grid
    assert (grid.expert, grid.expert_tensor) == (4, 1)
    assert any("experts with biases are whole, and 4 ranks" in line for line in differences(cut))


def test_tensor_ranks_share_out_whole_experts_as_megatron_does():
    layout = {"tensor_model_parallel_size": "2", "expert_model_parallel_size": "8", "sequence_parallel": True}
    folded = job(**{**EXPERTS, **layout})
    grid = job_experiment(folded).grid
    assert (grid.data, grid.x, grid.expert, grid.size) == (4, 2, 8, 8)
    assert differences(folded) == ()


def test_experts_have_biases_where_linear_layers_have_them():
    biased = job(**{name: value for name, value in EXPERTS.items() if name != "disable_bias_linear"})
    assert job_experiment(biased).problem.experts.biases
    assert differences(biased) == ()
    assert not job(**EXPERTS).experts.biases


@pytest.mark.parametrize("cut", ["tensor_model_parallel_size", "context_parallel_size"])
def test_ranks_that_cut_sequences_keep_the_auxiliary_loss(cut):
    cut_job = job(**EXPERTS, **{cut: "2"}, moe_aux_loss_coeff="1e-2", sequence_parallel=True)
    assert job_experiment(cut_job).problem.experts.balance == 0.01
    assert not [line for line in differences(cut_job) if "aux-loss" in line]


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-30b-a3b"])
def test_a_named_model_of_megatron_bridge_keeps_its_experts(name):
    shape = find_shape(name)
    arguments = shape_arguments(shape) | {"micro-batch-size": "1", "bf16": True}
    experts = megatron_job(JobArguments(arguments), 8).experts
    assert experts.dense(shape.layers) == shape.experts.dense(shape.layers)
    assert replace(experts, dense_layers=shape.experts.dense_layers, every=shape.experts.every) == replace(
        shape.experts, capacity=experts.capacity, balance=experts.balance
    )


@pytest.mark.parametrize(
    ("changes", "products"),
    [
        ({"fp8_format": "hybrid"}, "fp8-delayed"),
        ({"fp8_format": "e4m3", "fp8_recipe": "mxfp8"}, "mxfp8"),
        ({"fp8_format": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True}, "fp8"),
        ({"fp4_format": "e2m1"}, "nvfp4"),
        ({}, "dtype"),
    ],
)
def test_recipes_of_small_numbers_are_those_of_products(changes, products):
    problem = job_experiment(job(**changes)).problem
    assert (problem.products, problem.fp8_param_gather) == (products, "fp8_param_gather" in changes)


def test_context_ranks_cut_the_sequence_and_the_memory_of_megatron_knows_them():
    cut = job_experiment(job(context_parallel_size="2", cp_comm_type="a2a", attention_backend="flash"))
    assert (cut.grid.context, cut.grid.data, cut.problem.context_parallel) == (2, 4, "ulysses")
    assert cut.megatron_step() == job(context_parallel_size="2", attention_backend="flash").step


def test_latent_attention_has_the_columns_of_its_arguments():
    latent = {
        "multi_latent_attention": True, "q_lora_rank": "96", "kv_lora_rank": "48", "qk_head_dim": "32",
        "qk_pos_emb_head_dim": "16", "v_head_dim": "24", "disable_bias_linear": True, "qk_layernorm": True,
    }  # fmt: skip
    traits = job_experiment(job(**latent)).problem.architecture
    assert (traits.query_rank, traits.key_rank, traits.value_columns, traits.positions) == (96, 48, 24, "rotary")
    assert (traits.head_columns, traits.rotary_columns) == (48, 16)


def test_fp16_sums_gradients_in_16_bits_unless_told_otherwise():
    words = {**BASE, "fp16": True}
    del words["bf16"]
    assert megatron_job(JobArguments(words), 1).step.gradient_bytes == 2
    assert megatron_job(JobArguments({**words, "accumulate-allreduce-grads-in-fp32": True}), 1).step.gradient_bytes == 4


OVERLAP_BOTH = {"overlap_grad_reduce": True, "overlap_param_gather": True}


@pytest.mark.parametrize(
    ("changes", "overlaps"),
    [
        ({}, set()),
        ({"tensor_model_parallel_size": "2"}, {"oar"}),
        ({"tensor_model_parallel_size": "2", "sequence_parallel": True}, {"oar", "oag"}),
        ({"overlap_grad_reduce": True}, {"ogr"}),
        ({**OVERLAP_BOTH, "use_distributed_optimizer": True}, {"ogr", "opg"}),
        (OVERLAP_BOTH, {"ogr"}),
        ({**OVERLAP_BOTH, "tensor_model_parallel_size": "8"}, {"oar"}),
        ({**OVERLAP_BOTH, "context_parallel_size": "8", "use_distributed_optimizer": True}, {"ogr", "opg"}),
        ({**OVERLAP_BOTH, "use_megatron_fsdp": True}, {"ors", "oag"}),
    ],
)
def test_overlaps_are_those_of_the_arguments(changes, overlaps):
    """Gradients and weights are hidden where data or context ranks exchange them; FSDP has overlaps of its own."""
    experiment = job_experiment(job(**changes))
    assert experiment.execution.overlaps == overlaps
    assert experiment.applied_schedule().overlap == overlaps


def test_the_experiment_has_the_flops_and_the_grid_of_the_job():
    layout = {"tensor_model_parallel_size": "2", "pipeline_model_parallel_size": "2", "sequence_parallel": True}
    experiment = job_experiment(job(16, **layout, use_distributed_optimizer=True, swiglu=True, normalization="RMSNorm"))
    grid = experiment.grid
    assert (grid.pipeline, grid.data, grid.x, experiment.sequence_parallel) == (2, 4, 2, True)
    assert (experiment.problem.zero, experiment.problem.batch, experiment.problem.micro_batch) == (1, 8, 2)
    assert experiment.step_flops.model == step_flops(experiment.problem.shape, 8, "fused", "none").model


def test_simulate_takes_the_experiment_file(tmp_path, capsys):
    source, target = tmp_path / "job.json", tmp_path / "job.toml"
    source.write_text(
        '["--'
        + '", "--'.join(f"{name}={value}" for name, value in BASE.items() if name != "bf16")
        + '", "--bf16", "--lr", "1"]'
    )
    assert main(["import", "job", str(source), "--gpus", "1", "--out", str(target)]) == 0
    assert "--lr" in capsys.readouterr().err
    assert main(["simulate", str(target), "--machine", "a100-node", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"num-experts": "8", "moe-layer-freq": "[0]*3"}, "moe-layer-freq"),
        ({"num-experts": "8", "moe-router-topk": "9", "disable-bias-linear": True}, "top_k 9"),
        (
            {"num-experts": "8", "tensor-model-parallel-size": "2", "sequence-parallel": True},
            "--expert-tensor-parallel-size 2, as many",
        ),
        ({"fp8-format": "hybrid", "fp8-recipe": "custom"}, "--fp8-recipe custom"),
        ({"num-layers": "many"}, "--num-layers 'many'"),
        ({"num-layers": "9" * 400}, "whole number"),
        ({"hidden-dropout": "nan"}, "--hidden-dropout"),
        ({"tokenizer-type": "Llama2Tokenizer", "vocab-size": ""}, "--vocab-size N"),
        ({"tensor-model-parallel-size": "3"}, "tensor"),
        ({"context-parallel-size": "2", "seq-length": "130"}, "context"),
        ({"squared-relu": True}, "--approximate"),
        ({"attention-backend": "auto", "hidden-size": "0"}, "hidden 0"),
    ],
)
def test_faults_are_one_line_and_status_2(words, said, tmp_path, capsys):
    from json import dumps

    source = tmp_path / "job.json"
    source.write_text(dumps({f"--{name}": value for name, value in {**BASE, **words}.items()}))
    assert main(["import", "job", str(source), "--gpus", "8", "--out", str(tmp_path / "out.toml")]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out.toml").exists()


def test_the_job_is_not_overwritten(tmp_path, capsys):
    source = tmp_path / "job.sh"
    source.write_text("x --num-layers 2")
    assert main(["import", "job", str(source), "--out", str(source)]) == 2
    assert "both name" in capsys.readouterr().err
    assert source.read_text() == "x --num-layers 2"


def test_the_number_of_gpus_is_asked_for():
    with pytest.raises(InputError, match="--gpus N"):
        megatron_job(JobArguments(BASE))
    with pytest.raises(InputError, match="pretrain_gpt"):
        megatron_job(JobArguments(BASE, 8, "x/pretrain_t5.py"))


def test_approximations_are_comments_of_the_file():
    squared = job(squared_relu=True, recompute_granularity="full", recompute_num_layers="2")
    assert len(differences(squared)) == 2
    text = ImportedJob(job_experiment(squared), (), differences(squared)).text
    assert text.startswith("# differs: --squared-relu yes: squared ReLU is predicted as GELU\n")
