from types import SimpleNamespace

import numpy as np
import pytest

from quadrille.algorithms.formats.record import Verified
from quadrille.algorithms.matmuls.catalogue import algorithms
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.studies.benchmarks import bench
from quadrille.studies.benchmarks.bench import Pair
from quadrille.studies.benchmarks.paired_ratios import ratio_of_pairs


def interval(ratios):
    found = ratio_of_pairs(ratios, np.ones(len(ratios)))
    return found.low, found.high


def record(seconds=1.0, *, algorithm="4d", sent=(5, 10), **verdict):
    verified = Verified(**{"method": "serial", "max_error": 1e-7, "bound": 1e-6, "ok": True, **verdict})
    return SimpleNamespace(
        seconds=seconds,
        algorithm=algorithm,
        grid={"data": 1, "z": 2, "y": 1, "x": 3},
        bytes_sent_per_rank_max=sent[0],
        bytes_sent_total=sent[1],
        verified=verified,
    )


def pairs(*seconds):
    """Pairs with these predicted and measured seconds."""
    return [
        Pair(record(predicted, algorithm=f"number {i}"), record(measured, algorithm=f"number {i}"))
        for i, (predicted, measured) in enumerate(seconds)
    ]


# The interval of ratios


def test_the_interval_of_equal_ratios_is_one_number():
    assert interval(np.full(30, 1.02)) == (1.02, 1.02)


def test_the_interval_holds_the_median_and_is_the_same_each_time():
    ratios = np.random.default_rng(3).normal(1.0, 0.1, 31)
    low, high = interval(ratios)
    assert ratios.min() <= low < np.median(ratios) < high <= ratios.max()
    assert interval(ratios) == (low, high)


def test_more_pairs_give_a_narrower_interval():
    random = np.random.default_rng(5)
    widths = [np.subtract(*interval(random.normal(1.0, 0.1, count))[::-1]) for count in (10, 1000)]
    assert widths[1] < widths[0] / 4


def test_one_wild_pair_hardly_moves_the_interval():
    ratios = np.linspace(0.99, 1.01, 31)
    assert interval(np.append(ratios, 100.0))[1] < 1.02


# Order


def test_the_order_is_right_where_the_predicted_fastest_is_the_fastest():
    found = bench._order(pairs((1.0, 2.0), (2.0, 3.0), (3.0, 2.5)))
    assert found.loss == 0
    assert found.predicted_fastest == found.measured_fastest == "number 0 on z=2,x=3"


def test_the_loss_is_how_much_longer_the_predicted_fastest_takes():
    found = bench._order(pairs((1.0, 2.2), (2.0, 2.0)))
    assert found.loss == pytest.approx(0.1)
    assert (found.predicted_fastest, found.measured_fastest) == ("number 0 on z=2,x=3", "number 1 on z=2,x=3")


# Errors and bytes


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [({}, 0.1), ({"max_error": 0.0}, 0.0), ({"max_error": 2e-6, "ok": False}, 2.0), ({"max_error": None}, np.inf)],
)
def test_the_error_is_given_in_bounds_and_is_infinite_where_it_is_no_number(verdict, expected):
    assert bench._error_over_bound(record(**verdict)) == pytest.approx(expected)


def test_a_run_that_was_not_verified_is_infinitely_wrong():
    made = record()
    made.verified = None
    assert bench._error_over_bound(made) == np.inf


@pytest.mark.parametrize(("sent", "differ"), [((5, 10), False), ((5, 11), True), ((6, 10), True)])
def test_bytes_differ_where_the_most_of_a_rank_or_the_total_does(sent, differ):
    assert bench._other_bytes(Pair(record(), record(sent=sent))) == differ


def test_every_algorithm_is_tried_in_both_passes_and_dtypes():
    tried = bench._variants(bench._forward(Matmul(4, 4, 4)))
    assert {one.algorithm for one in tried} == {"1d-column", "1d-row", "cannon", "summa", "2.5d", "3d", "4d"} - {
        "cannon"  # takes square numbers of ranks
    }
    assert len(tried) == len(set(tried)) == 4 * len({(one.algorithm, one.grid) for one in tried})


@pytest.mark.parametrize(("ranks", "left_out"), [(4, set()), (12, {"cannon"})])
def test_more_ranks_run_every_algorithm_that_has_a_grid_of_them(ranks, left_out):
    tried = bench._variants(bench._on_even_grids(Matmul(4, 4, 4), ranks))
    assert {trial.algorithm for trial in tried} == {one.name for one in algorithms()} - left_out
    assert len(tried) == len(set(tried)) == 4 * (7 - len(left_out))
    assert all(one.grid.size == ranks for one in tried)


# Wall times


def test_a_program_that_fails_is_timed_and_said_to_have_failed(capfd):
    well, badly = (
        bench._timed(["-c", "import quadrille.studies; print('done')"]),
        bench._timed(["-c", "raise SystemExit(3)"]),
    )
    assert (well.ok, badly.ok) == (True, False) and well.seconds > 0
    assert capfd.readouterr() == ("", "done\n")
    assert bench._time_row("tests", badly, "600 s", "all")[1] == "0 s, FAILED"


@pytest.mark.parametrize("tests", [True, False])
def test_the_tests_are_timed_last_or_left_out(monkeypatch, tmp_path, tests):
    timed = []
    for name in ("executor_overhead", "sweep_speed", "host_fidelity", "_products", "_pairs", "_order"):
        monkeypatch.setattr(bench, name, lambda *_, **__: [])
    monkeypatch.setattr(bench, "_start_up", lambda _: 1.0)
    monkeypatch.setattr(bench, "_error_over_bound", lambda _: 0.0)
    monkeypatch.setattr(bench, "_products", lambda *_: [Pair(record(), record())])
    monkeypatch.setattr(bench, "_timed", lambda words: timed.append(words) or bench.WallTime(1.0, True))
    found = bench._figures("host.toml", None, tmp_path, None, tests=tests)
    assert [words[1] for words in timed] == ["-m", "pytest"][: 1 + tests]
    assert timed[0][-1] == str(tmp_path / "main-job")
    assert (found.tests is not None) == tests
