"""The README is the first page: short, without a diary, and with the picture on its first screen."""

import re

import pytest

from tests.support.documents import README, examples
from tests.support.quadrille import ROOT

TEXT = README.read_text()


def test_it_is_short_and_has_no_badge():
    assert len(TEXT.splitlines()) <= 200
    assert "![" not in TEXT


def test_it_has_no_diary():
    assert re.findall(r"\b20\d\d-\d\d(?:-\d\d)?\b|\bcommit [0-9a-f]{7}\b|\bseed \d+", TEXT) == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_picture_is_that_of_the_design_page(page):
    picture = next(block.text for block in examples.blocks((ROOT / "DESIGN.md").read_text()) if "──►" in block.text)
    assert picture in (ROOT / page).read_text()


def test_the_first_screen_has_the_picture_and_the_table_of_make_run():
    assert TEXT.index("──►") < TEXT.index("<!-- make run output -->") < TEXT.index("\n## ")


def test_every_row_of_the_table_of_errors_names_its_study():
    table = TEXT[TEXT.index("## How accurate it is") :].split("\n\n")[1].splitlines()
    assert len(table) > 5
    assert all(re.search(r"\]\(studies/\w+/README\.md\) \|$", row) for row in table[2:])
