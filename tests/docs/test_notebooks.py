"""The notebooks among the tutorials: small, without outputs, and listed; the build of the site executes them."""

import json

import pytest

from tests.support.documents import conf, examples, named
from tests.support.quadrille import ROOT

MOST_CELLS = 12
NOTEBOOKS = pytest.mark.parametrize("path", examples.NOTEBOOKS, ids=named)


def cells(path, kind):
    """The sources of the cells of one kind."""
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def test_there_are_notebooks():
    assert len(examples.NOTEBOOKS) >= 3


@NOTEBOOKS
def test_a_notebook_has_no_outputs(path):
    assert examples.stripped(path.read_text()) == path.read_text(), "`make docs-outputs` strips notebooks"


@NOTEBOOKS
def test_a_notebook_is_short_and_begins_with_its_title(path):
    text = cells(path, "markdown")
    assert len(text) + len(cells(path, "code")) <= MOST_CELLS
    assert text[0].startswith("# ")


@NOTEBOOKS
def test_the_index_lists_a_notebook(path):
    assert f"]({path.name})" in (ROOT / "docs/tutorials/index.md").read_text()


def test_outputs_and_counters_are_stripped():
    cell = {
        "cell_type": "code",
        "execution_count": 3,
        "outputs": [{"text": "1"}],
        "metadata": {"a": 1},
        "source": ["1"],
    }
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Title"], "id": "x"}, cell | {"id": "y"}]
    notebook = json.dumps({"cells": cells, "metadata": {"widgets": {}}, "nbformat": 4, "nbformat_minor": 5})
    stripped = json.loads(examples.stripped(notebook))
    assert stripped["cells"][1] == cell | {"id": "cell-2", "metadata": {}, "execution_count": None, "outputs": []}
    assert stripped["metadata"]["kernelspec"]["name"] == "python3"
    assert examples.stripped(json.dumps(stripped)) == examples.stripped(notebook)


def test_a_cell_that_fails_ends_the_build():
    assert (conf.nb_execution_mode, conf.nb_execution_raise_on_error) == ("force", True)
