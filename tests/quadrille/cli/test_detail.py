"""How much of a record is printed: the verdict, a table, every op."""

import pytest

from tests.support.quadrille import called

LARGE = ("simulate", "--gpt", "layers=3,hidden=60,heads=6,sequence=7,vocabulary=53", "--batch", "6", "--grid", "x=3")


@pytest.fixture
def predicted(capsys):
    return lambda *words: called(capsys, *LARGE, "--machine", "perlmutter", *words)


def test_a_quiet_prediction_is_its_verdict(predicted):
    title, total, bound = predicted("--quiet").out.splitlines()
    assert title.startswith("predicted: ")
    assert total.startswith("total: ")
    assert bound.startswith("bound by ")


def test_a_long_table_says_how_to_see_all_of_it(predicted):
    table, whole = predicted().out, predicted("--verbose").out
    assert "--verbose shows all" in table
    assert "--verbose shows all" not in whole
    assert whole.count("\n") > table.count("\n")


def test_the_least_and_the_most_exclude_each_other(predicted):
    assert "--quiet and --verbose: one of them" in predicted("--quiet", "--verbose").line
