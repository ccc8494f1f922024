import shutil
import subprocess
import tomllib

import pytest

from algorithms import provenance as module
from algorithms.provenance import provenance
from tests.quadrille import ROOT


def test_our_own_version_is_that_of_the_project():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert provenance(["quadrille"]).versions["quadrille"] == settings["project"]["version"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("packed", [False, True])
def test_the_commit_is_the_one_that_is_checked_out(tmp_path, monkeypatch, packed):
    def git(*words):
        command = ["git", "-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    if packed:
        git("pack-refs", "--all")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    assert provenance(["quadrille"]).versions["commit"] == git("rev-parse", "HEAD").strip()


def test_outside_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROOT", tmp_path)
    assert not {"commit", "quadrille"} & set(provenance(["quadrille"]).versions)
