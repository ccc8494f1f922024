"""The content hash of a task: the same for the same values, and another for each value, machine and code."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from quadrille.experiments.tasks import task_digest as digests
from quadrille.experiments.tasks.task_digest import code_digest, task_digest
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.toy_machines import star


@dataclass(frozen=True)
class Question:
    size: int
    words: frozenset[str] = frozenset()


def test_a_task_has_another_hash_for_each_function_and_each_value():
    arguments = [
        1, 1.5, "1", None, (), (1,), ("1",), {"a": 1}, {"a": 2}, Question(1), Question(2), Question(1, frozenset("ab")),
        np.array([1, 2]), np.array([1, 3]), np.array([[1, 2]]), np.array([1.0, 2.0]),
    ]  # fmt: skip
    hashes = [task_digest(function, value) for function in ("f", "g") for value in arguments]
    assert len(set(hashes)) == len(hashes)
    assert task_digest("f", Question(1, frozenset("ab"))) == task_digest("f", Question(1, frozenset("ba")))
    assert task_digest("f", {"a": 1, "b": 2}) == task_digest("f", {"b": 2, "a": 1})


@pytest.mark.parametrize("value", [object(), lambda: 0, {"a": [object()]}])
def test_a_value_without_contents_is_no_argument(value):
    with pytest.raises(TypeError, match="is no plain value"):
        task_digest("f", value)


def test_a_machine_counts_by_its_contents(tmp_path):
    machine, slower = star(4, bandwidth=1e9), star(4, bandwidth=2e9)
    for name in ("a", "b"):
        save_machine(machine, tmp_path / f"{name}.toml")
    hashes = {task_digest("f", find_machine(str(tmp_path / f"{name}.toml"))) for name in ("a", "b")}
    assert len(hashes) == 1 and task_digest("f", machine) != task_digest("f", slower)


def test_a_topology_file_counts_by_its_contents(tmp_path):
    hashes = []
    for folder, text in (("a", "one"), ("b", "one"), ("c", "two")):
        path = tmp_path / folder / "network.json"
        path.parent.mkdir()
        path.write_text(text)
        hashes.append(task_digest("f", msgspec.structs.replace(star(4), topology={"file": str(path)})))
    assert hashes[0] == hashes[1] != hashes[2]


def test_changed_code_or_a_changed_table_is_another_hash(tmp_path, monkeypatch):
    (tmp_path / "simulator").mkdir()
    hashes = []
    for name, text in (("a.py", "x = 1"), ("a.py", "x = 2"), ("rates.csv", "1"), ("rates.csv", "2")):
        (tmp_path / "simulator" / name).write_text(text)
        code_digest.cache_clear()
        hashes.append(code_digest(tmp_path))
    (tmp_path / "simulator" / "README.md").write_text("prose")
    (tmp_path / "simulator" / "__pycache__").mkdir()
    for name in ("a.cpython-311.pyc", "a.kernel.nbi"):
        (tmp_path / "simulator" / "__pycache__" / name).write_text("compiled")
    code_digest.cache_clear()
    assert len(set(hashes)) == 4 and code_digest(tmp_path) == hashes[-1]
    before = task_digest("f", 1)
    monkeypatch.setattr(digests, "code_digest", lambda: "another commit")
    assert task_digest("f", 1) != before
