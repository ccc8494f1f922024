import shutil
import subprocess
import tomllib
from importlib import metadata

import pytest

from quadrille.algorithms.provenance import provenance, versions
from tests.support.quadrille import ROOT


def test_our_own_version_is_that_of_the_project():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert provenance(["quadrille"]).versions["quadrille"] == settings["project"]["version"]


@pytest.fixture
def git(tmp_path):
    """A function that runs git in a repository with one commit."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def call(*words):
        command = ["git", "-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    for name in ("kept", "README.md", "studies/one/results/answer.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as it was")
    call("init", "--quiet")
    call("add", ".")
    call("commit", "--quiet", "--message", "first")
    return call


@pytest.mark.parametrize("packed", [False, True])
def test_the_commit_is_the_one_that_is_checked_out(git, tmp_path, packed):
    if packed:
        git("pack-refs", "--all")
    (tmp_path / "new").write_text("what is new changes nothing")
    assert versions(tmp_path)["commit"] == git("rev-parse", "HEAD").strip()


def test_a_commit_whose_files_were_changed_is_named_so(git, tmp_path):
    (tmp_path / "kept").write_text("changed")
    assert versions(tmp_path)["commit"] == git("rev-parse", "HEAD").strip() + "-dirty"


@pytest.mark.parametrize("name", ["README.md", "studies/one/results/answer.json"])
def test_what_nothing_runs_by_may_change(git, tmp_path, name):
    (tmp_path / name).write_text("changed")
    assert versions(tmp_path)["commit"] == git("rev-parse", "HEAD").strip()


def test_outside_a_checkout_there_is_no_commit(tmp_path):
    assert not {"commit", "quadrille"} & set(versions(tmp_path))


def test_without_a_checkout_the_version_is_that_of_the_installed_distribution(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "version", {"quadrille-hpc": "7.0"}.get)
    assert versions(tmp_path)["quadrille"] == "7.0"
