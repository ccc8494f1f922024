import json

import pytest
from msgspec import structs

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import OpRecord, load_record, save_record
from quadrille.experiments.compare.compare_traces import compare_traces
from quadrille.experiments.compare.predicted_works import predicted_works
from quadrille.experiments.compare.trace_report import load_ranks
from tests.support.kineto_traces import BUSY, FLASH, GEMM, NORM, PERIOD, Work, all_reduce, events, write_trace
from tests.support.quadrille import ROOT, called

US = 1e-6


def op(name, kind, seconds, **more):
    return OpRecord(name=name, kind=kind, seconds=seconds * US, **more)


OPS = (
    op("QKV multiply", "gemm", 180, count=2),
    op("attention", "kernel", 80, count=2),
    op("norm", "kernel", 30, count=2),
    op("add mlp", "pointwise", 10),
    op(
        "sum dW over data", "all_reduce", 150, axis="data", count=2, bytes_sent_per_rank_max=7 * 2**20,
        waiting_seconds=50 * US, exposed_seconds=60 * US,
    ),
)  # fmt: skip
"""Two steps of a rank, in which the all-reduce moves 2 x 2 MiB among 8 ranks."""


def record(**changes):
    base = load_record(ROOT / "tests/golden/records/predicted-gpt.json")
    grid = dict.fromkeys(base.grid, 1) | {"data": 8}
    plain = {"ops": OPS, "grid": grid, "ranks": 8, "seconds": 700 * US, "seconds_per_iteration": 350 * US}
    return structs.replace(base, **(plain | {"options": structs.replace(base.options, steps=2)} | changes))


def test_ops_become_the_works_of_a_trace():
    works = predicted_works(record())
    assert works.seconds == pytest.approx(350 * US)
    assert {work: seconds / US for work, seconds in works.by_work.items()} == pytest.approx(
        {"products": 90, "attention": 40, "other kernels": 20, "communication": 100}
    )
    assert works.exposed_communication == pytest.approx((60 + 50 * 60 / 150) / 2 * US)
    share = works.collectives["all_reduce", 8]
    assert (share.calls, share.bytes, share.seconds / US) == pytest.approx((1, 2**21, 100))


def test_work_before_the_first_step_is_left_out():
    works = predicted_works(record(seconds=(2 * 350 + 30) * US))
    assert works.by_work["other kernels"] == pytest.approx((20 - 15) * US)


def test_the_states_of_both_sides_add_up_to_their_iterations(tmp_path):
    comparison = compare_traces(record(), load_ranks([str(write_trace(tmp_path / "t.json"))]))
    mean = (2 * PERIOD + BUSY) / 3
    assert comparison.seconds.predicted == pytest.approx(350 * US)
    assert comparison.seconds.measured == pytest.approx(mean * US)
    for side, whole in (("predicted", 350), ("measured", mean)):
        assert sum(getattr(both, side) for both in comparison.states.values()) == pytest.approx(whole * US)
    states = {state: (both.predicted / US, both.measured / US) for state, both in comparison.states.items()}
    assert states["products"] == pytest.approx((90, 100)) and states["attention"] == pytest.approx((40, 50))
    assert states["exposed communication"] == pytest.approx((40, 70))
    assert (comparison.overlap.predicted, comparison.overlap.measured) == pytest.approx((0.6, 0.3))
    (row,) = comparison.collectives
    assert (row.kind, row.members, row.calls.predicted, row.calls.measured) == ("all_reduce", 8, 1, 1)
    assert (row.bytes.predicted, row.bytes.measured) == (2**21, 2**21)
    assert row.seconds.measured == pytest.approx(100 * US)


def two_ranks(tmp_path, late=40.0, clock=12_345.0):
    """Traces of two ranks: the second computes `late` longer before each all-reduce, and its clock is ahead."""
    rows = []
    for rank, more in enumerate((0.0, late)):
        products = Work(GEMM, 0, 100 + more)
        reduced = all_reduce(100 + more, 60 + late - more, members=2)
        iteration = (products, reduced, Work(NORM, 160 + late, 20))
        traced = events(iteration, 3, 250.0, origin=1e9 + rank * clock)
        rows.append(str(write_trace(tmp_path / f"rank{rank}.json.gz", traced, rank=rank, ranks=2)))
    return rows


def test_the_late_rank_is_named_and_waiting_is_not_transfer(tmp_path):
    comparison = compare_traces(record(), load_ranks(two_ranks(tmp_path)[::-1]))
    first, second = comparison.ranks
    assert (first.rank, second.rank) == (0, 1)
    assert (first.waiting_seconds / US, first.transfer_seconds / US) == pytest.approx((40, 60), abs=0.01)
    assert (second.waiting_seconds / US, second.transfer_seconds / US) == pytest.approx((0, 60), abs=0.01)
    assert (first.delay_seconds / US, second.delay_seconds / US) == pytest.approx((0, 40), abs=0.01)


def test_the_critical_path_passes_through_the_late_rank(tmp_path):
    comparison = compare_traces(record(), load_ranks(two_ranks(tmp_path)))
    path = {state: seconds * 3 / US for state, seconds in comparison.path.items()}
    assert sum(path.values()) == pytest.approx(2 * 250 + 220, abs=0.1)
    assert path["products"] == pytest.approx(3 * 140, abs=0.1)
    assert path["exposed communication"] == pytest.approx(3 * 60, abs=0.1)
    without_delay = compare_traces(record(), load_ranks(two_ranks(tmp_path, late=0.0)))
    assert without_delay.path["products"] * 3 / US == pytest.approx(3 * 100, abs=0.1)


def test_clocks_are_aligned_through_a_rank_between(tmp_path):
    groups = ((("a", [0, 1]),), (("a", [0, 1]), ("b", [1, 2])), (("b", [1, 2]),))
    paths = []
    for rank, calls in enumerate(groups):
        work = [all_reduce(100 if name == "a" else 200, 50, members=2, group=name) for name, _ in calls]
        rows = events((Work(FLASH, 0, 90), *work), 3, 300.0, origin=1e9 + 777.0 * rank)
        paths.append(str(write_trace(tmp_path / f"{rank}.json", rows, rank=rank, ranks=3)))
    comparison = compare_traces(record(ranks=8), load_ranks(paths))
    assert all(rank.delay_seconds == pytest.approx(0, abs=0.01 * US) for rank in comparison.ranks)
    assert comparison.remarks == ("the trace is of 3 ranks, and the prediction is for 8: these are two jobs",)


def test_ranks_without_a_common_collective_are_named(tmp_path):
    paths = []
    for rank in range(2):
        rows = events((Work(FLASH, 0, 90), all_reduce(100, 50, members=2, group=f"pair {rank}")))
        paths.append(str(write_trace(tmp_path / f"{rank}.json", rows, rank=rank)))
    comparison = compare_traces(record(), load_ranks(paths))
    assert comparison.remarks == ("no collectives in common align the clocks of rank 1 with that of rank 0",)
    assert not comparison.path and comparison.ranks[0].waiting_seconds is None


def test_calls_of_which_ranks_made_different_numbers_are_named(tmp_path):
    paths = []
    for rank in range(2):
        more = [all_reduce(160, 20, elements=512, members=2)] * rank
        rows = events((Work(FLASH, 0, 90), all_reduce(100, 50, members=2), *more, all_reduce(190, 5, 512, members=2)))
        paths.append(str(write_trace(tmp_path / f"{rank}.json", rows, rank=rank)))
    comparison = compare_traces(record(), load_ranks(paths))
    assert comparison.remarks == (
        "ranks made different numbers of these calls, which align nothing: all-reduce of 1 KiB over 2 ranks",
    )


def test_a_second_trace_of_a_rank_is_refused(tmp_path):
    path = str(write_trace(tmp_path / "t.json"))
    with pytest.raises(InputError, match="a second trace of rank 0"):
        compare_traces(record(), load_ranks([path, path]))


def test_the_command_reports_files_and_folders(tmp_path, capsys):
    predicted = tmp_path / "predicted.json"
    save_record(record(), predicted)
    folder = tmp_path / "traces"
    folder.mkdir()
    paths = two_ranks(folder)
    ended = called(capsys, "compare", predicted, *paths)
    assert (ended.status, ended.out) == (0, called(capsys, "compare", predicted, folder).out)
    first, _, third = ended.out.splitlines()[:3]
    assert first.startswith(
        "An iteration: 350 us predicted, 240 us measured on 2 ranks (+45.8 %); the largest difference is idle"
    )
    assert third.startswith(
        "The others wait for rank 1 most: 40.0 us together in an iteration; the critical path is on it"
    )
    answer = json.loads(called(capsys, "compare", predicted, folder, "--json", "-").out)
    assert answer["schema"] == "quadrille/trace-comparison/1" and len(answer["ranks"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predicted.json", "t.json", "--plot", "p.png"), "--plot: goes with two records"),
        (("predicted.json", "t.json", "predicted.json"), "only traces of profilers may be several files"),
        (("measured.json", "t.json"), "measured.json is a measured record"),
        (("predicted.json", "t.json", "t.json"), "a second trace of rank 0"),
        (("predicted.json", "t.json", "--json", "t.json"), "both name t.json"),
    ],
)
def test_what_does_not_go_with_traces_is_refused(tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    save_record(record(), "predicted.json")
    (tmp_path / "measured.json").write_bytes((ROOT / "tests/golden/records/measured-gpt.json").read_bytes())
    write_trace(tmp_path / "t.json")
    ended = called(capsys, "compare", *words)
    assert ended.status == 2 and said in ended.line
