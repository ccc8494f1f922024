"""Slurm's lists of names."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.imported.hostlist import host_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("dgx1", ["dgx1"]),
        ("dgx[001-003,010]", ["dgx001", "dgx002", "dgx003", "dgx010"]),
        ("a[1,9-10]b,c", ["a1b", "a9b", "a10b", "c"]),
        ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
        ("[1101-1102]", ["1101", "1102"]),
    ],
)
def test_a_list_stands_for_its_names_in_order(text, names):
    assert host_names(text) == names


@pytest.mark.parametrize(
    "text",
    ["", "a,", "a[", "a[1-2", "a]1[", "a[2-1]", "a[x]", "a[]", "a b", "a[0-1000000000000]", "a[0-999999][0-999999]"],
)
def test_a_list_that_stands_for_nothing_or_too_much_is_refused(text):
    with pytest.raises(InputError, match="host list"):
        host_names(text)
