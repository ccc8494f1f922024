"""`rank --store`: the ranking of a rank without a store, from what a store has."""

import json

import pytest

from quadrille.experiments.rank import work_sharing
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.quadrille import called
from tests.support.toy_machines import star

MODEL = ["--gpt", "layers=2,hidden=64,heads=4,sequence=64,vocabulary=256", "--batch", "8"]


@pytest.fixture
def ranked(tmp_path, capsys):
    """A function that ranks with a store, and returns the answer and the remark about the store."""
    store = tmp_path / "s.sqlite"

    def rank(*more, stored=True):
        words = ["rank", *MODEL, "--gpus", "2", "--machine", "perlmutter", "--json", "-", *more]
        ended = called(capsys, *words, *(["--store", store] if stored else []))
        assert ended.status == 0, ended.err
        answer = json.loads(ended.out)
        answer.pop("provenance")
        remarks = [line.removeprefix("quadrille: ") for line in ended.err.splitlines() if str(store) in line]
        return answer, remarks[0].replace(str(store), "s") if remarks else ""

    return rank


def test_a_ranking_from_a_store_is_that_without_one(ranked, monkeypatch):
    """The store also serves another question, which finds only what both questions ask."""
    options = ("--scheme", "megatron", "--top", "2")
    alone, _ = ranked(*options, stored=False)
    first, said = ranked(*options)
    count = int(said.split()[2])
    assert first == alone and said.endswith(f"of {count} answers were in s")
    _, said = ranked(*options, "--set", "device.memory_bytes=x2")
    assert said.startswith("0 of ") and said.endswith(" answers are of other values, machines or code")
    monkeypatch.setattr(work_sharing, "workers_of", lambda _question, _jobs: NoWorkers())
    again, said = ranked(*options)
    assert again == alone and said == f"{count} of {count} answers were in s"


class NoWorkers:
    """Workers that take no task."""

    capacity = 1

    def start(self, number, point):
        raise AssertionError(f"task {number} is computed again")

    def finished(self, *, wait):
        return []

    def close(self):
        pass


def test_a_store_that_is_another_file_is_one_line(tmp_path, capsys):
    machine = tmp_path / "toy.toml"
    save_machine(star(4, memory=1e10), machine)
    ended = called(capsys, "rank", *MODEL, "--gpus", "4", "--machine", "perlmutter", "--store", machine)
    assert (ended.status, ended.line) == (
        2,
        f"quadrille: --store {machine}: is no SQLite file; accepted is a new file or a store",
    )
