"""The register of laboratories, read while others write it."""

import os
import re
import subprocess
import sys

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.atomic_files import start_ticks
from quadrille.runtime.laboratory import register as registers
from quadrille.runtime.laboratory.register import LaboratoryRecord, Register
from tests.support.quadrille import ROOT


@pytest.fixture
def register(tmp_path):
    return Register(tmp_path)


def an_entry(name, **owner):
    return LaboratoryRecord(name=name, topology="star:hosts=2", addresses={}, namespaces={}, rates={}, **owner)


def test_a_laboratory_that_ends_while_it_is_read_is_none(register, monkeypatch):
    for name in ("ends", "stands"):
        register.write(an_entry(name))
    read = registers.schema_files.read

    def read_after_its_end(path, *form):
        register.path_of("ends").unlink(missing_ok=True)
        return read(path, *form)

    monkeypatch.setattr(registers.schema_files, "read", read_after_its_end)
    assert [one.name for one in register.every()] == ["stands"]
    assert register.read("ends") is None


def test_a_file_that_holds_something_else_is_refused_by_its_name_and_passed_over_among_all(register, capsys):
    register.path_of("other").write_text("{}")
    register.write(an_entry("stands"))
    with pytest.raises(InputError, match="names no schema"):
        register.read("other")
    assert [one.name for one in register.every()] == ["stands"]
    assert re.fullmatch("quadrille: laboratory file .*other.json names no schema: .*\n", capsys.readouterr().err)


def test_a_name_is_anothers_once_another_process_has_entered_it(register):
    ours, theirs = an_entry("one", owner=11, owner_started=1), an_entry("one", owner=12, owner_started=1)
    assert not register.belongs_to_other(ours)
    register.write(ours)
    assert not register.belongs_to_other(ours)
    register.write(theirs)
    assert register.belongs_to_other(ours)


def test_one_process_at_a_time_enters_a_laboratory(register):
    program = "import sys; from pathlib import Path; from quadrille.runtime.laboratory.register import Register; "
    program += "print('begun', flush=True)\n"
    program += "with Register(Path(sys.argv[1])).locked(): print('in')"
    with register.locked():
        other = subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(register.folder)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdout.readline() == "begun\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
    assert other.communicate(timeout=20)[0] == "in\n"


def test_a_laboratory_is_abandoned_by_a_process_that_has_ended_and_by_no_other():
    own, began = os.getpid(), start_ticks(os.getpid())
    assert registers.own_start() == (own, began)
    owners = [{}, {"owner": own, "owner_started": began}, {"owner": own, "owner_started": began - 1}]
    assert [an_entry("one", **owner).abandoned for owner in owners] == [False, False, True]
