"""Every study is a folder that says its question and answer, and is made again by `make studies`."""

import importlib

import pytest

from tests.quadrille import ROOT

STUDIES = sorted(path.parent.name for path in ROOT.glob("studies/*/study.py"))


def test_the_studies_are_found():
    assert {"host_fidelity", "published_training", "which_scheme"} <= set(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_can_be_made_again(name):
    source = (ROOT / "studies" / name / "study.py").read_text()
    assert callable(importlib.import_module(f"studies.{name}.study").main)
    assert source.endswith('if __name__ == "__main__":\n    main()\n')


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_says_its_question_its_answer_and_how_to_ask_again(name):
    page = (ROOT / "studies" / name / "README.md").read_text()
    for words in ("Question", "Answer", "Again"):
        assert words in page, words
