import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.formats.toml_writer import toml_text

plain = st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))
tables = st.dictionaries(st.text(), values, max_size=5)


@given(tables)
def test_what_is_written_is_read_back(table):
    assert tomllib.loads(toml_text(table)) == table


def test_numbers_of_numpy_are_written_as_numbers():
    assert toml_text({"a": np.float64(0.5)}) == "a = 0.5\n"


@given(tables)
def test_numbers_keep_their_types(table):
    def types(value):
        if isinstance(value, dict):
            return {key: types(item) for key, item in value.items()}
        return [types(item) for item in value] if isinstance(value, list) else type(value)

    assert types(tomllib.loads(toml_text(table))) == types(table)


def test_a_key_without_a_value_is_left_out():
    assert toml_text({"a": None, "b": {"c": None}, "d": 1}) == "d = 1\n\n[b]\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [None], object()])
def test_what_toml_lacks_is_refused(value):
    with pytest.raises(ValueError, match=r"finite|TOML"):
        toml_text({"a": value})
