"""Compiled twins: what they are given, where they are kept, what is told while they are made."""

from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from quadrille.simulator.engine import kernel_compiler
from quadrille.simulator.engine.column_table import ColumnTable
from quadrille.simulator.engine.kernel_compiler import compile_kernels, loading_seconds


class Account(NamedTuple):
    amounts: Any
    kinds: Any
    total: Any


RATE = 3


def _worth(a, i):
    return a.amounts[i] * RATE if a.kinds[i] > 0 else 0.0


def add_up(a, first):
    for i in range(first, len(a.amounts)):
        a.total[0] += _worth(a, i)
    return len(a.kinds) + len(a.total)


KERNELS = (_worth, add_up)


def account():
    return Account(np.array([1.0, 2.0, 4.0, 8.0]), np.array([1, 1, 0, 1], np.int8), np.zeros(1))


@pytest.fixture(autouse=True)
def no_twins_yet(monkeypatch):
    monkeypatch.setattr(kernel_compiler, "_compiled_sets", {})
    monkeypatch.setattr(kernel_compiler, "_is_reported", False)


@pytest.fixture
def kept_at(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_twin_reads_and_writes_the_arrays_of_a_named_tuple(kept_at):
    mine = account()
    assert compile_kernels(KERNELS, ["add_up"])["add_up"](mine, 1) == 5
    assert mine.total[0] == (2 + 8) * RATE


def test_compiling_is_reported_once_and_its_seconds_are_counted(kept_at, capsys):
    before = loading_seconds()
    for _ in range(2):  # the second is read from disk
        compile_kernels(KERNELS, ["add_up"])["add_up"](account(), 0)
    told = capsys.readouterr()
    assert told.err == "quadrille: compiling the kernels of the test kernel compiler, once on this machine: about 1 s\n"
    assert not told.out
    assert loading_seconds() > before
    assert len(list(kept_at.rglob("*.nbi"))) == 1  # of what Python calls alone


def test_a_changed_constant_is_compiled_anew(kept_at, monkeypatch):
    compile_kernels(KERNELS, ["add_up"])["add_up"](account(), 0)
    monkeypatch.setitem(globals(), "RATE", 5)
    mine = account()
    compile_kernels(KERNELS, ["add_up"])["add_up"](mine, 0)
    assert mine.total[0] == (1 + 2 + 8) * 5


def test_compiled_kernels_work_where_nothing_can_be_cached(tmp_path, monkeypatch, capsys):
    """Neither the folder named nor its parents can be made: a file is in the way, whoever asks."""
    from numba.core import caching

    (tmp_path / "file").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    for locator in caching.CacheImpl._locator_classes:
        monkeypatch.setattr(locator, "get_cache_path", lambda self: str(tmp_path / "file" / "folder"))
    mine = account()
    compile_kernels(KERNELS, ["add_up"])["add_up"](mine, 0)
    assert mine.total[0] == (1 + 2 + 8) * RATE
    assert "in every run, as no cache folder can be written" in capsys.readouterr().err


def test_a_table_refuses_arrays_that_are_not_one_piece():
    with pytest.raises(AssertionError):
        ColumnTable(account()._replace(amounts=np.zeros((2, 2))))
    with pytest.raises(AssertionError):
        ColumnTable(account()._replace(amounts=np.zeros(8)[::2]))


def test_kernels_are_compiled_once_in_a_process_until_a_constant_changes(kept_at, monkeypatch):
    twins = compile_kernels(KERNELS, ["add_up"])
    assert compile_kernels(KERNELS, ["add_up"]) is twins
    monkeypatch.setitem(globals(), "RATE", 5)
    mine = account()
    compile_kernels(KERNELS, ["add_up"])["add_up"](mine, 1)
    assert mine.total[0] == (2 + 8) * 5
