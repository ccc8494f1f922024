import pytest

from algorithms.choices import CHUNK_BYTES, MOST_CHUNKS, SETS, Choices, chunks, lower, parse_choices
from algorithms.errors import InputError


@pytest.mark.parametrize("text", ["own:ring", "own:doubling", "own:halving_doubling", "library"])
def test_choices_are_read_back_from_what_they_print(text):
    assert str(parse_choices(text)) == text


def test_own_and_auto_are_rings():
    assert parse_choices("own") == parse_choices("auto") == parse_choices("own:ring") == Choices()


@pytest.mark.parametrize("text", ["", "own:", "own:tree", "ring", "library:ring", "auto:ring", "Own"])
def test_other_words_are_refused_with_those_accepted(text):
    with pytest.raises(InputError) as refused:
        parse_choices(text)
    assert repr(text) in str(refused.value)
    for accepted in ("own", "library", "auto", "own:ring", "own:doubling", "own:halving_doubling"):
        assert accepted in str(refused.value)


@pytest.mark.parametrize("set_name", SETS)
def test_a_record_says_which_algorithm_and_that_a_library_s_is_a_guess(set_name):
    own, library = Choices("own", set_name), Choices("library", set_name)
    for kind, algorithm in SETS[set_name].items():
        assert own.label(kind) == algorithm
        assert library.label(kind) == f"library (as {algorithm})"


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("members", [2, 3, 7])
def test_lowering_gives_the_algorithm_that_was_named(set_name, members):
    for kind, algorithm in SETS[set_name].items():
        assert lower(kind, algorithm, members).algorithm == algorithm
        assert lower(kind, algorithm, members).members == members


def test_a_pipelined_buffer_goes_in_chunks_of_a_mebibyte_and_not_too_many():
    assert chunks(3, 0) == 1
    assert chunks(3, 5 * CHUNK_BYTES) == 5
    assert chunks(3, 10**12) == MOST_CHUNKS
    assert chunks(2, 5 * CHUNK_BYTES) == 1, "one hop has nothing to overlap"
    assert lower("broadcast", "pipelined", 3, size_bytes=5 * CHUNK_BYTES).pieces == 5
