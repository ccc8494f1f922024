"""The register of laboratories, read while others write it."""

import os

import pytest

from algorithms.errors import InputError
from runtime.processes import begin_of
from studies.laboratory import register
from studies.laboratory.register import Entry


@pytest.fixture(autouse=True)
def own_register(tmp_path, monkeypatch):
    monkeypatch.setattr(register, "FOLDER", tmp_path)


def an_entry(name, **owner):
    return Entry(name=name, topology="star:hosts=2", addresses={}, namespaces={}, rates={}, **owner)


def test_a_laboratory_that_ends_while_it_is_read_is_none(monkeypatch):
    for name in ("ends", "stands"):
        register.write(an_entry(name))
    read = register.files.read

    def read_after_its_end(path, *form):
        register.path_of("ends").unlink(missing_ok=True)
        return read(path, *form)

    monkeypatch.setattr(register.files, "read", read_after_its_end)
    assert [one.name for one in register.every()] == ["stands"]
    assert register.read("ends") is None


def test_a_file_that_holds_something_else_is_refused():
    register.path_of("other").write_text("{}")
    with pytest.raises(InputError, match="names no schema"):
        list(register.every())


def test_a_laboratory_is_abandoned_by_a_process_that_has_ended_and_by_no_other():
    own, began = os.getpid(), begin_of(os.getpid())
    assert register.own_start() == (own, began)
    owners = [{}, {"owner": own, "owner_started": began}, {"owner": own, "owner_started": began - 1}]
    assert [an_entry("one", **owner).abandoned for owner in owners] == [False, False, True]
