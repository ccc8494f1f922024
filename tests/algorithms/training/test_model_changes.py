"""Changes of a model: `,key=value` after a name or a file, `--sequence`, and the default sequence of a file."""

import json

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.model_shapes import SHAPES

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 256,
}


def config(tmp_path, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changes))
    return str(path)


@pytest.mark.parametrize(
    ("positions", "scaling", "sequence"),
    [
        (131072, {"original_max_position_embeddings": 8192, "rope_type": "llama3"}, 8192),
        (131072, {"original_max_position_embeddings": 4096, "rope_type": "yarn"}, 4096),
        (1024000, None, 8192),
        (2048, None, 2048),
        (2048, {"original_max_position_embeddings": 4096}, 2048),
    ],
)
def test_the_positions_of_a_file_are_not_its_sequence(tmp_path, positions, scaling, sequence):
    shape = find_shape(config(tmp_path, max_position_embeddings=positions, rope_scaling=scaling))
    assert shape.sequence == sequence
    remark = f"sequences have {sequence} tokens by default, and not all its {positions} positions (--sequence N)"
    assert (remark in shape.differences) == (sequence < positions)


def test_a_chosen_sequence_needs_no_remark(tmp_path):
    path = config(tmp_path, max_position_embeddings=131072)
    for shape in (find_shape(path, 512), find_shape(f"{path},sequence=512")):
        assert shape.sequence == 512
        assert not shape.differences
    (remark,) = find_shape(path, 262144).differences
    assert remark == "sequences of 262144 tokens are longer than its 131072 positions"


def test_numbers_and_traits_follow_a_name_or_a_file(tmp_path):
    named = find_shape("Llama3-8B,sequence=4096,layers=2,key_heads=4")
    assert (named.sequence, named.layers, named.hidden) == (4096, 2, SHAPES["llama3-8b"].hidden)
    assert named.architecture.key_heads == 4 and named.architecture.gated
    assert find_shape("tiny,sequence=32") == SHAPES["tiny"]
    filed = find_shape(f"{config(tmp_path, max_position_embeddings=64)},layers=5,gated=no")
    assert (filed.layers, filed.sequence, filed.architecture.gated) == (5, 64, False)


def test_a_sequence_completes_sizes():
    assert find_shape("layers=2,hidden=8,heads=2,vocabulary=16", 4).sequence == 4


@pytest.mark.parametrize(
    ("text", "sequence", "said"),
    [
        ("llama3-8b,sequence=4096", 2048, "--sequence 2048: the model 'llama3-8b,sequence=4096' has sequence=4096"),
        ("layers=2,hidden=8,heads=2,sequence=4,vocabulary=16", 8, "--sequence 8: .* has sequence=4: leave one out"),
        ("llama3-8b,depth=3", None, "'depth': accepted, each once, are layers"),
        ("llama3-8b,layers=2,layers=3", None, "'layers': accepted, each once, and it stands twice"),
        ("llama3-8b,expert=8", None, "; did you mean experts"),
        ("mixtral-8x7b,capacity=0.5", None, "capacity 0.5: a number from 1"),
        ("llama3-8b,layers=0", None, "layers=0: a whole number from 1"),
        ("llama3-8b,architecture=gpt", None, "architecture=gpt: llama3-8b has its own: leave it out"),
        ("lama3-8b,depth=3", None, "model 'lama3-8b' is unknown; did you mean llama3-8b"),
        ("meta-llama/Llama-3.1-8B", None, "is unknown; did you mean llama3-8b"),
        ("EleutherAI/gpt-neox-20b", None, "gpt-neox is read from its Hugging Face config.json, not by name"),
        ("none.json,layers=3", None, "model none.json: cannot be read"),
    ],
)
def test_what_cannot_be_changed_is_named(text, sequence, said):
    with pytest.raises(InputError, match=said):
        find_shape(text, sequence)
