"""Shapes of models, what they count, and how they are refused."""

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.architecture import LLAMA, PLAIN, Architecture
from quadrille.algorithms.training.flops import flops_per_second_per_gpu, full_square_flops, step_flops
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape, gpt_schedule
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.model_shapes import SHAPES, ModelShape
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.experiments.workloads.training import gpt_workload
from quadrille.experiments.workloads.training_lines import model_name, sized_flag
from tests.support.trainings import total_flops

KNOWN = {
    "gpt2": (
        {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024, "vocab_size": 50257},
        1_557_611_200,
    ),
    "gpt_neox": (
        {
            "model_type": "gpt_neox",
            "num_hidden_layers": 44,
            "hidden_size": 6144,
            "num_attention_heads": 64,
            "max_position_embeddings": 2048,
            "intermediate_size": 24576,
            "vocab_size": 50432,
        },
        20_554_567_680,
    ),
    "llama": (
        {
            "model_type": "llama",
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096,
            "intermediate_size": 28672,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
        },
        68_976_648_192,
    ),
    "bloom": (
        {
            "model_type": "bloom",
            "n_layer": 70,
            "hidden_size": 14336,
            "n_head": 112,
            "seq_length": 2048,
            "vocab_size": 250880,
        },
        176_247_271_424,
    ),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_a_config_file_gives_the_parameters_that_are_published(kind, tmp_path):
    config, parameters = KNOWN[kind]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert find_shape(str(path)).parameters == parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
    ],
)
def test_llama_shapes_have_the_parameters_of_the_published_weights(name, parameters):
    assert SHAPES[name].parameters == parameters


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.architecture == PLAIN])
def test_plain_shapes_follow_the_formula_and_their_names(name):
    shape = SHAPES[name]
    layers, hidden, words, sequence = shape.layers, shape.hidden, shape.vocabulary, shape.sequence
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (words + sequence) / (12 * layers * hidden))
    assert shape.parameters - 2 * hidden == pytest.approx(formula, rel=1e-12)
    assert not shape.differences
    if name != "tiny":
        size = name.removeprefix("gpt3-")
        stated = float(size[:-1]) * {"b": 1e9, "m": 1e6}[size[-1]]
        assert shape.parameters == pytest.approx(stated, rel=0.13)


@given(
    layers=st.integers(1, 7),
    head=st.integers(1, 8),
    heads=st.integers(1, 5),
    sequence=st.integers(1, 31),
    words=st.integers(1, 97),
    batch=st.integers(1, 11),
)
def test_flops_equal_the_forms_of_the_papers(layers, head, heads, sequence, words, batch):
    shape = ModelShape("any", layers, head * heads, heads, sequence, words)
    hidden = shape.hidden
    common = batch * sequence * layers * hidden**2
    plain = 72 * common * (1 + sequence / (6 * hidden) + words / (12 * layers * hidden))
    again = 96 * common * (1 + sequence / (6 * hidden) + words / (16 * layers * hidden))
    assert full_square_flops(shape, batch).model == pytest.approx(plain, rel=1e-12)
    assert full_square_flops(shape, batch, recompute="full").hardware == pytest.approx(again, rel=1e-12)
    squares = full_square_flops(shape, batch, "selective").hardware - plain
    assert squares == pytest.approx(4 * batch * sequence**2 * hidden * layers, rel=1e-9)
    assert step_flops(shape, batch).model == pytest.approx(plain - 1.5 * squares, rel=1e-12)
    unfused = step_flops(shape, batch, "unfused", "selective").hardware
    assert unfused == pytest.approx(plain - squares, rel=1e-12)


@pytest.mark.parametrize("grid", [Grid(), Grid(x=3), Grid(data=3, z=2, y=2), Grid(y=3, x=5)])
def test_a_schedules_own_count_is_the_formula_but_for_attention_which_is_done_on_every_y(grid):
    shape = ModelShape("odd", layers=3, hidden=30, heads=15, sequence=7, vocabulary=23)
    batch = 6
    problem = Gpt(shape.layers, shape.hidden, shape.heads, shape.sequence, shape.vocabulary, batch)
    schedule = gpt_schedule(problem, grid, Scheme4D())
    counted = total_flops(schedule)
    # half of two squares forward; half of five, the scores made again among them, backward
    square = 7 * batch * shape.sequence**2 * shape.hidden * shape.layers
    assert counted == step_flops(shape, batch).hardware + (grid.y - 1) * square


def test_one_rank_counts_all_flops():
    problem = Gpt(2, 12, 4, 5, 17, 3)
    schedule = gpt_schedule(problem, Grid(), Scheme4D())
    assert volumes(schedule, Choices()).flops_per_rank_max == total_flops(schedule)


def test_flops_per_gpu_of_the_papers_example():
    """175B, 1,024 GPUs, batch 1,536 at 138 TFLOP/s take 31.9 s (SC21 and the Megatron-LM README: "around 32")."""
    shape = ModelShape("175b", 96, 12288, 96, 2048, 51200)
    rate = flops_per_second_per_gpu(full_square_flops(shape, 1536, recompute="full").hardware, 31.9, 1024)
    assert rate == pytest.approx(138e12, rel=2e-3)


def test_schedules_carry_out_every_named_shape_as_it_is():
    assert not any(shape.differences for shape in SHAPES.values())
    assert SHAPES["llama-7b"].architecture == LLAMA
    assert SHAPES["llama3-70b"].architecture == replace(LLAMA, key_heads=8, rotary_base=500_000.0)


OTHERWISE = {
    "bloom": ({}, ("ALiBi", "no normalisation follows the embedding")),
    "llama": (
        {"rope_scaling": {"factor": 8.0}, "attention_bias": True, "hidden_act": "gelu"},
        ("attention_bias: QKV has biases", "hidden_act = gelu: the MLP's gate is silu", "positions are not scaled"),
    ),
}


@pytest.mark.parametrize("kind", OTHERWISE)
def test_differences_name_what_schedules_do_otherwise(kind, tmp_path):
    more, words = OTHERWISE[kind]
    plain, other = (config_of(kind, tmp_path, **given) for given in ({}, more))
    assert len(other.differences) == len(words)
    for said, word in zip(other.differences, words, strict=True):
        assert word in said
    assert kind != "llama" or not plain.differences


def config_of(kind, tmp_path, **more):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**KNOWN[kind][0], **more}))
    return find_shape(str(path))


def test_a_config_file_says_how_the_model_is_made(tmp_path):
    assert config_of("gpt2", tmp_path).architecture == PLAIN
    grouped = replace(LLAMA, key_heads=8)
    assert config_of("llama", tmp_path).architecture == grouped
    long = replace(grouped, rotary_base=5e5)
    assert config_of("llama", tmp_path, rope_theta=500000.0).architecture == long
    assert config_of("llama", tmp_path, rope_parameters={"rope_theta": 5e5}).architecture == long
    assert config_of("llama", tmp_path, tie_word_embeddings=True).architecture == replace(grouped, shared_table=True)
    neox = Architecture(
        positions="rotary", shared_table=False, rotary_base=25_000.0, rotary_share=0.25, branches="parallel"
    )
    assert config_of("gpt_neox", tmp_path, rotary_emb_base=25000).architecture == neox
    assert config_of("bloom", tmp_path).architecture == Architecture(positions="none")
    windowed = config_of("llama", tmp_path, model_type="mistral", sliding_window=1024)
    assert windowed.architecture == replace(grouped, window=1024) and not windowed.differences


@given(
    st.builds(
        Architecture,
        key_heads=st.sampled_from([0, 1, 2]),
        gated=st.booleans(),
        norm=st.sampled_from(["layer", "rms"]),
        biases=st.booleans(),
        positions=st.sampled_from(["learned", "rotary", "none"]),
        rotary_base=st.floats(1.5, 1e9),
        shared_table=st.booleans(),
        head_columns=st.sampled_from([0, 2, 10]),
        qk_norm=st.sampled_from(["none", "head", "row"]),
        window=st.sampled_from([0, 2, 9]),
        norm_place=st.sampled_from(["before", "after", "both"]),
        score_cap=st.floats(0, 100),
        score_columns=st.sampled_from([0.0, 5.0, 144.0]),
        logit_cap=st.floats(0, 100),
        scaled_embedding=st.booleans(),
    )
)
def test_an_architecture_is_given_in_the_words_of_a_record(architecture):
    problem = Gpt(2, 16, 4, 3, 11, 5, inner=7, architecture=architecture)
    words = sized_flag(gpt_workload(problem).gpt)
    shape = find_shape(words)
    assert gpt_from_shape(shape, 5) == problem and shape.parameters == problem.shape.parameters


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("81B", "80b"),
        ("layers=2,hidden=8,heads=2,sequence=4", "vocabulary is missing"),
        ("layers=2,hidden=8,heads=3,sequence=4,vocabulary=5", "heads 3: must divide hidden = 8"),
        ("layers=2,hidden=8,heads=2,sequence=4,vocabulary=0", "vocabulary=0: a whole number from 1"),
        ("layers=2,depth=8", "'depth'"),
        ("layers=2,layers=2", "each once"),
        ("layers=x", "layers=x"),
        ("layers=2,hidden=8,heads=4,key_heads=3,sequence=4,vocabulary=5", "key_heads 3: must divide heads = 4"),
        ("layers=2,hidden=8,heads=4,sequence=4,vocabulary=5,architecture=bert", "accepted are gpt, llama"),
        ("layers=2,hidden=8,heads=4,sequence=4,vocabulary=5,gated=1", "gated=1: accepted are yes, no"),
        ("layers=2,hidden=8,heads=4,sequence=4,vocabulary=5,norm=batch", "norm 'batch': accepted are layer, rms"),
        ("layers=2,hidden=8,heads=4,sequence=4,vocabulary=5,rotary_base=x", "rotary_base=x: a number above 1"),
        ("layers=2,hidden=8,heads=8,sequence=4,vocabulary=5,positions=rotary", "must be even, and 8 / 8 is odd"),
        ("/nowhere/config.json", "cannot be read"),
    ],
)
def test_shapes_that_cannot_be_are_refused_in_one_line(text, words):
    with pytest.raises(InputError, match=r"^model") as refused:
        find_shape(text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[1]", "model_type None"),
        ('{"model_type": "t5"}', "'t5': accepted are gpt2"),
        ('{"model_type": ["gpt2"]}', "model_type ['gpt2']: accepted are gpt2"),
        (
            '{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 5}',
            "n_positions or n_ctx is missing",
        ),
        (json.dumps({**KNOWN["gpt2"][0], "n_layer": 2.5}), "n_layer = 2.5"),
        (json.dumps({**KNOWN["llama"][0], "head_dim": "64"}), "head_dim = '64': a whole number from 1"),
        (json.dumps({**KNOWN["llama"][0], "rope_theta": "far"}), "rope_theta = 'far': a number above 1"),
        ("{", "truncated or not JSON"),
    ],
)
def test_config_files_that_cannot_be_are_refused_in_one_line(config, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(config)
    with pytest.raises(InputError) as refused:
        find_shape(str(path))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", SHAPES)
def test_the_sizes_of_a_named_model_have_its_name(name):
    """Llama and Llama 2 differ in the sequence alone."""
    assert model_name(gpt_workload(gpt_from_shape(SHAPES[name], 8)).gpt) == name


def test_a_named_model_keeps_a_name_with_another_sequence():
    sizes = gpt_workload(gpt_from_shape(SHAPES["llama3-8b"], 8)).gpt
    assert model_name(msgspec.structs.replace(sizes, sequence=sizes.sequence + 1)) == "llama3-8b"
    assert model_name(msgspec.structs.replace(sizes, layers=sizes.layers + 1)) == ""
