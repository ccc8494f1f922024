"""Every study is a folder that says its question and answer, and is made again by `make studies`."""

import runpy

import pytest

from tests.support.quadrille import ROOT

STUDIES = sorted(path.parent.name for path in ROOT.glob("studies/*/study.py"))


def test_the_studies_are_found():
    assert {"host_fidelity", "published_training", "which_scheme"} <= set(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_a_program_that_ends_as_the_command_does(name, monkeypatch):
    run = []
    monkeypatch.setattr("quadrille.runtime.host.console.run_as_program", run.append)
    runpy.run_path(str(ROOT / "studies" / name / "study.py"), run_name="__main__")
    assert [main.__name__ for main in run] == ["main"]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_says_its_question_its_answer_and_how_to_ask_again(name):
    page = (ROOT / "studies" / name / "README.md").read_text()
    for words in ("Question", "Answer", "Again"):
        assert words in page, words
