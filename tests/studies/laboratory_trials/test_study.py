"""The trials of laboratories in turn: each adds its rows to its file, or nothing."""

import re
import subprocess
import time
from pkgutil import resolve_name

import pytest

from quadrille.algorithms.errors import RunError
from quadrille.studies.laboratory_trials import study, trial_conditions


def test_a_trial_says_under_which_circumstances_it_ran():
    line = trial_conditions.conditions_line()
    assert re.match(r"# \d{4}-\d\d-\d\d, Linux \S+, \d+ cores, load \d+\.\d before, commit \S+, ", line)
    busy, start = trial_conditions.core_load_meter(), time.process_time()
    while time.process_time() - start < 0.1:
        pass
    assert 0 < busy() <= 1.1


def test_a_trial_that_fails_adds_nothing_and_says_so(tmp_path, capfd):
    (tmp_path / "open_mpi_tcp_settings.csv").write_text("rows of another day\n")
    with pytest.raises(
        RunError, match=r"open_mpi_tcp_settings ended with status 2; .*open_mpi_tcp_settings\.csv is as it was"
    ):
        study.add_rows("open_mpi_tcp_settings", ("5",), tmp_path)
    assert (tmp_path / "open_mpi_tcp_settings.csv").read_text() == "rows of another day\n"
    assert "hosts '5': accepted are 2, 4" in capfd.readouterr().err


def test_rows_are_added_behind_those_of_other_days(tmp_path, monkeypatch):
    def measured(words, **_):
        return subprocess.CompletedProcess(words, 0, f"# {words[-2:]}\n")

    monkeypatch.setattr(subprocess, "run", measured)
    for hosts in ("2", "4"):
        study.add_rows("open_mpi_tcp_settings", (hosts,), tmp_path)
    module = "quadrille.studies.laboratory_trials.open_mpi_tcp_settings"
    assert (tmp_path / "open_mpi_tcp_settings.csv").read_text() == f"# {[module, '2']}\n# {[module, '4']}\n"


@pytest.mark.parametrize(("name", "words"), study.TRIALS)
def test_every_trial_is_a_module_that_takes_these_words(name, words):
    found = resolve_name(f"quadrille.studies.laboratory_trials.{name}")
    assert callable(found.main)
    if name == "overlap_gains":
        assert set(words[1:]) <= set(found.GRIDS)
