"""Jobs of other programs: what each key means, and what is refused."""

import json
import random

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.model_files import find_shape
from quadrille.cli.main import main
from quadrille.experiments.import_.file_kinds import command_of
from quadrille.experiments.import_.imported_job import Asked
from quadrille.experiments.import_.job_formats import read_job
from quadrille.experiments.import_.megatron_bridge import shape_arguments
from quadrille.experiments.import_.settings import parse_settings

SIMUMAX_MODEL = {
    "model_type": "dense", "hidden_size": 64, "head_num": 8, "kv_head_num": 2, "head_size": 8, "intermediate_size": 96,
    "layer_num": 4, "vocab_size": 256, "use_swiglu": True,
}  # fmt: skip
STRATEGY = {
    "seq_len": 32, "micro_batch_size": 1, "micro_batch_num": 8, "dtype": "bf16", "world_size": 8, "tp_size": 2,
    "pp_size": 2, "ep_size": 1, "etp_size": 1, "enable_sequence_parallel": True, "interleaving_size": 1,
    "zero_state": 1,
    "enable_dropout": False, "use_math_sdp": False, "use_fp32_accum_grad": True, "mem_factor": 0.94,
}  # fmt: skip
APPLICATION = {"hidden": 64, "feedforward": 256, "seq_size": 32, "attn_heads": 8, "attn_size": 8, "num_blocks": 4}
EXECUTION = {
    "num_procs": 8, "tensor_par": 2, "pipeline_par": 2, "data_par": 2, "batch_size": 16, "microbatch_size": 2,
    "datatype": "float16", "activation_recompute": "full", "pipeline_interleaving": 1, "optimizer_sharding": True,
    "tensor_par_comm_type": "rs_ag", "training": True,
}  # fmt: skip
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0, "steps_per_print": 10,
}  # fmt: skip
TITAN = {
    "model": {"name": "llama3", "flavor": "8B"}, "training": {"local_batch_size": 2, "seq_len": 4096, "steps": 10},
    "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 2},
    "activation_checkpoint": {"mode": "full"},
}  # fmt: skip
BRIDGE = """# a job
model:
  num_layers: 4
  hidden_size: 64
  num_attention_heads: 8
  num_query_groups: 2
  seq_length: &length 32
"""
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 256, "tie_word_embeddings": False,
}  # fmt: skip
TINY = find_shape("tiny-llama")


@pytest.fixture
def job(tmp_path):
    """A function that reads a job from contents: dicts become JSON files, texts YAML or TOML files."""

    def read(*contents, suffix=".yaml", **asked):
        paths = []
        for number, content in enumerate(contents):
            path = tmp_path / (f"{number}.json" if isinstance(content, dict) else f"{number}{suffix}")
            path.write_text(json.dumps(content) if isinstance(content, dict) else content)
            paths.append(str(path))
        return read_job(paths, Asked(**asked))

    return read


def test_simumax_has_the_batch_of_all_data_ranks_and_megatrons_grid(job):
    read = job(SIMUMAX_MODEL, STRATEGY)
    problem, grid = read.experiment.problem, read.experiment.grid
    assert (grid.x, grid.pipeline, grid.data, problem.batch, problem.micro_batch) == (2, 2, 2, 16, 1)
    assert (problem.layers, problem.inner, problem.architecture.key_heads, problem.zero) == (4, 96, 2, 1)
    assert (problem.dropout, problem.gradient_bytes, read.experiment.sequence_parallel) == (0.0, 4, True)
    assert (read.ignored, read.differences) == (("mem_factor",), ())


def test_files_of_simumax_may_come_in_any_order_and_both_are_needed(job):
    assert job(STRATEGY, SIMUMAX_MODEL).experiment == job(SIMUMAX_MODEL, STRATEGY).experiment
    with pytest.raises(InputError, match="strategy"):
        job(SIMUMAX_MODEL)
    with pytest.raises(InputError, match="model"):
        job(STRATEGY)


def test_experts_and_dense_layers_of_simumax(job):
    experts = {"model_type": "moe", "expert_num": 4, "topk": 2, "moe_ffn_hidden_size": 32, "dense_layers": 1}
    read = job({**SIMUMAX_MODEL, **experts}, {**STRATEGY, "tp_size": 1, "ep_size": 4, "pp_size": 1})
    assert (read.experiment.problem.experts.inner, read.experiment.grid.expert) == (32, 4)
    assert read.experiment.problem.experts.dense_layers == {0}


def test_calculon_has_its_sizes_and_says_that_it_has_no_vocabulary(job):
    read = job(APPLICATION, EXECUTION)
    problem, grid = read.experiment.problem, read.experiment.grid
    assert (grid.x, grid.pipeline, grid.data, problem.batch, problem.micro_batch) == (2, 2, 2, 16, 2)
    assert (problem.dtype, problem.recompute, problem.zero, problem.inner) == ("float16", "full", 1, 256)
    assert len(read.differences) == 1 and "vocabulary" in read.differences[0]


def test_deepspeed_has_the_batch_of_two_of_three_numbers(job):
    asked = {"gpus": 8, "shape": TINY}
    read = job(DEEPSPEED, **asked)
    problem = read.experiment.problem
    assert (problem.batch, problem.micro_batch, problem.zero, problem.dtype) == (64, 2, 2, "bfloat16")
    assert (problem.adam.clip, problem.gradient_bytes, read.ignored) == (1.0, 2, ("steps_per_print",))
    others = {"train_batch_size": 64, "gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": "auto"}
    assert job({**DEEPSPEED, **others}, **asked).experiment == read.experiment
    with pytest.raises(InputError, match="train_batch_size 60"):
        job({**DEEPSPEED, "train_batch_size": 60}, **asked)


def test_offload_and_stage_3_of_deepspeed(job):
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
    read = job({**DEEPSPEED, "zero_optimization": zero}, gpus=2, shape=TINY)
    assert (read.experiment.problem.zero, str(read.experiment.problem.offload)) == (3, "optimizer:host")
    assert read.experiment.execution.overlaps == {"ors", "oag"}
    assert read.differences == ("offload_param.device nvme: weights stay on the GPU",)


@pytest.mark.parametrize(
    ("stage", "flag", "overlaps"),
    [
        *((stage, {}, set()) for stage in (0, 1, 2)),
        (3, {}, {"ors", "oag"}),
        (3, {"overlap_comm": False}, set()),
        (0, {"overlap_comm": True}, set()),
        (1, {"overlap_comm": True}, {"ogr"}),
        (2, {"overlap_comm": True}, {"ogr"}),
    ],
)
def test_overlap_comm_of_deepspeed_is_on_at_stage_3_alone(stage, flag, overlaps, job):
    read = job({**DEEPSPEED, "zero_optimization": {"stage": stage, **flag}}, gpus=2, shape=TINY)
    assert read.experiment.execution.overlaps == overlaps


def test_replicas_of_torchtitan_reduce_gradients_in_the_backward_pass(job):
    parallelism = {"data_parallel_shard_degree": 1, "data_parallel_replicate_degree": 8, "tensor_parallel_degree": 2}
    read = job({**TITAN, "parallelism": parallelism}, gpus=16)
    assert (read.experiment.problem.zero, read.experiment.execution.overlaps) == (0, {"ogr"})
    alone = job({**TITAN, "parallelism": {"data_parallel_shard_degree": 1, "tensor_parallel_degree": 2}}, gpus=2)
    assert alone.experiment.execution.overlaps == set()
    assert job(TITAN, gpus=16).experiment.execution.overlaps == {"ors", "oag"}


def test_data_par_overlap_of_calculon_is_overlap_of_gradients(job):
    assert job(APPLICATION, EXECUTION).experiment.execution.overlaps == {"oar", "oag"}
    hidden = job(APPLICATION, {**EXECUTION, "data_par_overlap": True})
    assert hidden.experiment.execution.overlaps == {"oar", "oag", "ogr"}
    assert "data_par_overlap" not in hidden.ignored


def test_torchtitan_shards_over_all_data_ranks(job):
    read = job(TITAN, gpus=16)
    problem, grid = read.experiment.problem, read.experiment.grid
    assert (problem.layers, problem.sequence, problem.batch, problem.zero) == (32, 4096, 16, 3)
    assert (grid.x, grid.data, problem.recompute, read.experiment.sequence_parallel) == (2, 8, "full", True)
    assert read.ignored == ("training.steps",)


def test_torchtitan_in_toml_says_the_same_as_in_json(job):
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\nsteps = 10\n'
        "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n"
        '[activation_checkpoint]\nmode = "full"\n'
    )
    assert job(text, suffix=".toml", gpus=16) == job(TITAN, gpus=16)


def test_a_bare_config_is_a_job_of_data_parallelism(job):
    read = job(CONFIG, gpus=4, batch=8)
    assert (read.experiment.grid.data, read.experiment.problem.batch, read.experiment.problem.micro_batch) == (4, 8, 1)
    assert read.experiment.problem.layers == 2


def test_megatron_bridge_names_fields_of_megatron_core(job):
    text = BRIDGE.replace("&length ", "") + (
        "  add_bias_linear: false\n  gated_linear_unit: true\n  vocab_size: 250\n  tensor_model_parallel_size: 2\n"
        "  share_embeddings_and_output_weights: false\n  recompute_granularity: null\ntrain:\n  global_batch_size: 8\n"
        "  micro_batch_size: 1\noptimizer:\n  lr: 0.1\nmixed_precision: bf16_with_fp8_current_scaling_mixed\n"
    )
    read = job(text, gpus=4)
    problem = read.experiment.problem
    assert (problem.layers, problem.vocabulary, problem.batch, problem.products) == (4, 256, 8, "fp8")
    assert (problem.architecture.gated, problem.architecture.biases, problem.architecture.key_heads) == (True, False, 2)
    assert (read.experiment.grid.x, read.ignored) == (2, ("optimizer.lr",))


def test_the_model_of_a_recipe_comes_beside_with_all_its_traits(job):
    text = "model:\n  tensor_model_parallel_size: 2\ntrain:\n  global_batch_size: 8\n  micro_batch_size: 1\n"
    with pytest.raises(InputError, match="--model NAME"):
        job(text, gpus=4)
    shape = find_shape("qwen3-30b-a3b")
    problem = job(text + "  x: 1\n", gpus=4, shape=find_shape("gemma-2-2b")).experiment.problem
    assert problem.architecture == find_shape("gemma-2-2b").architecture
    assert shape_arguments(shape)["num-experts"] == "128"


FAULTS = [
    ([{**STRATEGY, "world_size": 10**15}, SIMUMAX_MODEL], {}, "world_size"),
    ([{**STRATEGY, "tp_size": -1}, SIMUMAX_MODEL], {}, "tp_size"),
    ([{**STRATEGY, "zero_state": "many"}, SIMUMAX_MODEL], {}, "zero_state"),
    ([{**EXECUTION, "num_procs": 7}, APPLICATION], {}, "num_procs"),
    ([{**EXECUTION, "datatype": "float1"}, APPLICATION], {}, "datatype"),
    ([{**EXECUTION, "training": False}, APPLICATION], {}, "training"),
    ([DEEPSPEED], {"gpus": 8}, "--model"),
    ([DEEPSPEED], {"shape": TINY}, "--gpus"),
    ([{**DEEPSPEED, "zero_optimization": {"stage": 4}}], {"gpus": 8, "shape": TINY}, "0 to 3"),
    ([{**DEEPSPEED, "bf16": {"enabled": "maybe"}}], {"gpus": 8, "shape": TINY}, "true or false"),
    ([TITAN], {}, "--gpus"),
    ([{**TITAN, "model": {"name": "none", "flavor": "8B"}}], {"gpus": 8}, "--model"),
    ([CONFIG], {}, "--gpus"),
    ([CONFIG, TITAN], {"gpus": 8}, "one job at a time"),
    ([CONFIG, CONFIG], {"gpus": 8}, "one job at a time"),
    ([{"a": 1}], {}, "those of no job"),
    ([{}], {}, "those of no job|no keys"),
    ([BRIDGE], {"gpus": 8}, "line 7.*anchors"),
    (["model:\n" + "".join(f"{' ' * depth}a:\n" for depth in range(1, 40))], {}, "nested"),
    (["hello there\n"], {}, "line 1"),
    (["\0"], {}, "zero byte"),
    (["\n"], {}, "is empty"),
]


@pytest.mark.parametrize(("contents", "asked", "words"), FAULTS)
def test_faults_are_one_line_with_the_file(contents, asked, words, job):
    with pytest.raises(InputError, match=words) as refused:
        job(*contents, **asked)
    assert "\n" not in str(refused.value)


def test_nested_json_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "deep.json").write_text('{"parallelism":' * 5000 + "1" + "}" * 5000)
    assert main(["import", "job", str(tmp_path / "deep.json"), "--gpus", "8"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("content", [SIMUMAX_MODEL, STRATEGY, APPLICATION, EXECUTION, DEEPSPEED, TITAN, CONFIG])
def test_the_kind_of_each_format_is_found(content, tmp_path):
    (tmp_path / "file").write_text(json.dumps(content))
    assert command_of(str(tmp_path / "file")) == "job"


SAMPLES = [
    ([SIMUMAX_MODEL, STRATEGY], {}),
    ([APPLICATION, EXECUTION], {}),
    ([DEEPSPEED], {"gpus": 8, "shape": TINY}),
    ([TITAN], {"gpus": 16}),
    ([CONFIG], {"gpus": 4}),
    ([BRIDGE.replace("&length ", "") + "train:\n  micro_batch_size: 1\n"], {"gpus": 4}),
]


@pytest.mark.parametrize(
    ("contents", "asked"), SAMPLES, ids=["simumax", "calculon", "deepspeed", "titan", "config", "bridge"]
)
def test_damaged_files_are_read_or_refused_in_one_line(contents, asked, tmp_path):
    draw = random.Random("jobs")
    pieces = (
        b"",
        b"-1",
        b"1e999",
        b"9" * 30,
        b"null",
        b'"x"',
        b"{",
        b"[",
        b"\xff",
        b"\0",
        b"true",
        b"\n",
        b"\t",
        b"*a",
    )
    texts = [json.dumps(content) if isinstance(content, dict) else content for content in contents]
    for _ in range(150):
        paths = []
        for number, text in enumerate(texts):
            damaged = bytearray(text.encode())
            for _ in range(draw.randint(0, 3)):
                at = draw.randrange(len(damaged) + 1)
                damaged[at : at + draw.randint(0, 12)] = draw.choice(pieces)
            (tmp_path / f"{number}").write_bytes(bytes(damaged))
            paths.append(str(tmp_path / f"{number}"))
        try:
            text = read_job(paths, Asked(**asked)).text
        except InputError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 2000
        else:
            assert text.startswith(("schema", "# differs"))


def test_yaml_has_lists_texts_of_several_lines_and_truth_values():
    text = "a:\n  - b: 1\n  - c\n  d: 2\ne: |\n  f: 3\n  g\nh: 'x # y'\ni: z # w\nj: {}\nk: No\nl: [0, 1]\nm: False\n"
    text = text.replace("a:\n  - b: 1\n  - c\n  d: 2\n", "a:\n  n:\n  - b: 1\n  - c\n  d: 2\n")
    assert dict(parse_settings("t.yaml", text).values) == {
        "a.n": [{"b": "1"}, "c"], "a.d": "2", "e": "f: 3\ng", "h": "x # y", "i": "z", "j": None, "k": "No", "l": [0, 1],
        "m": False,
    }  # fmt: skip


@pytest.mark.parametrize("value", ["nan", "-inf", ".inf", "Infinity"])
def test_numbers_that_are_not_finite_are_refused_even_where_no_key_is_read(value):
    with pytest.raises(InputError, match=r"b\.yaml: model\.unread = .*: a finite number is accepted"):
        parse_settings("b.yaml", f"model:\n  unread: {value}\n")


def test_a_long_name_of_an_ignored_key_is_cut(capsys, tmp_path):
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps({**DEEPSPEED, "x" * 3000: 1}))
    assert main(["import", "job", str(path), "--gpus", "8", "--model", "tiny-llama"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "ignored" in line]
    assert "xxx…" in line and len(line) < 400
