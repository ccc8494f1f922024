import pytest

from quadrille.algorithms.errors import InputError, nearest_names, unknown_name
from quadrille.algorithms.schedule.short_names import find_collective, find_dtype


@pytest.mark.parametrize(("word", "dtype"), [("bf16", "bfloat16"), ("FP16", "float16"), ("double", "float64")])
def test_short_names_of_dtypes_are_taken_in_any_case(word, dtype):
    assert find_dtype(word) == dtype


@pytest.mark.parametrize("word", ["allgather", "all-gather", "ALL_GATHER"])
def test_a_collective_is_named_with_or_without_hyphens(word):
    assert find_collective(word) == "all_gather"


@pytest.mark.parametrize(
    ("find", "word", "near"), [(find_dtype, "bfloat", "bfloat16"), (find_collective, "all-reduc", "all-reduce")]
)
def test_another_word_is_refused_with_the_nearest_name(find, word, near):
    with pytest.raises(InputError, match=rf"did you mean {near}\?"):
        find(word)


def test_names_that_are_near_are_told_else_all_of_them():
    names = ["frontier", "perlmutter", "alps"]
    assert nearest_names("Perlmuter", names) == ["perlmutter"]
    assert "did you mean alps?" in str(unknown_name("machine", "alp", names))
    assert "there are frontier, perlmutter, alps" in str(unknown_name("machine", "xyz", names))
