"""The reference: what the program itself knows stands there as the program says it."""

import doctest
import re

import pytest

from quadrille.algorithms.matmuls.catalogue import algorithms
from quadrille.topologies.build import FAMILIES
from tests.support.documents import PAGES, examples, generate, named, subcommands
from tests.support.quadrille import ROOT

REFERENCE = ROOT / "docs/reference"


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- generated:" in page.read_text()], ids=named)
def test_the_generated_parts_are_as_the_program_says(page):
    assert generate.filled(page.read_text()) == page.read_text(), "`make docs` writes them anew"


@pytest.mark.parametrize("name", ["machine-file", "record"])
def test_every_key_of_a_file_has_a_meaning(name):
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (REFERENCE / f"{name}.md").read_text(), re.MULTILINE)
    assert len(rows) > 50
    assert [key for key, cells in rows if not cells.split(" | ")[-1].strip()] == []


def test_every_algorithm_has_its_row():
    page = (REFERENCE / "algorithms.md").read_text()
    assert re.findall(r"^\| `([\w.-]+)` \| `[dzyx]", page, re.MULTILINE) == [one.name for one in algorithms()]


def test_every_family_and_machine_is_listed():
    page = (REFERENCE / "topologies.md").read_text()
    assert [name for name in FAMILIES if f"`{name}`" not in page] == []


def test_commands_are_found_in_a_help_text():
    assert {"simulate", "run", "study"} <= set(subcommands())
    assert {"show"} == set(subcommands("topology"))
    panels = "Usage: q COMMAND\n\n╭─ Commands ───╮\n│ run   Measure. │\n│ lab   Build.   │\n╰──────────────╯\n"
    assert generate.subcommands(panels) == ["run", "lab"]


@pytest.mark.parametrize("module", [generate, examples])
def test_the_programs_of_the_documentation_do_as_they_say(module):
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
