"""What an output leaves out is never only counted: the output says how to see it."""

import ast
import re

import pytest

from tests.support.quadrille import ROOT

COUNTED = re.compile(r"(?<=\{\}) more\b")
TELLS_HOW = re.compile(r"--\w+|rows\(\)|like it|ranks share")
MODULES = sorted(path for folder in ("experiments", "studies") for path in (ROOT / folder).rglob("*.py"))
NAMES_IN_FILES = {"experiments/calibrate/network_sections.py"}
"""Modules whose counts stand in a file that a reader has open."""


def counts(module):
    """The rest of each text of a module in which `more` follows a number, without what is formatted into it."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.JoinedStr):
            rest = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield from (rest[place.start() :] for place in COUNTED.finditer(rest))


def test_the_texts_that_count_what_is_left_out_are_known():
    assert sum(1 for module in MODULES for _ in counts(module)) >= 8


@pytest.mark.parametrize("module", [module for module in MODULES if list(counts(module))], ids=lambda path: path.stem)
def test_a_text_that_counts_what_it_leaves_out_says_how_to_see_it(module):
    if str(module.relative_to(ROOT)) not in NAMES_IN_FILES:
        assert [words for words in counts(module) if not TELLS_HOW.search(words)] == []
