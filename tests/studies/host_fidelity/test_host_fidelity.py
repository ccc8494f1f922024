import json
from math import prod

import msgspec
import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats.record import save_record
from quadrille.experiments.compare.error_sizes import error_sizes
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.runtime.launching import launch as launching
from quadrille.studies.host_fidelity import study as host_fidelity
from quadrille.studies.host_fidelity.study import LARGEST_SIZE, SMALLEST_SIZE, draw, table
from quadrille.topologies.machines.machine_file import load_machine
from tests.support.quadrille import HOST

WORDS_OF_A_CASE = [
    *("command", "ranks", "algorithm", "passes", "dtype", "m", "k", "n", "grid", "seconds", "spread"),
    *("interval_holds_measurement", "judged"),
]
SLOWER = 1.25
"""Runs of these tests take so many times what was predicted."""


@pytest.fixture
def machine(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(HOST)
    return path


@pytest.fixture
def pretended(monkeypatch, machine):
    """Instead of runs: records of runs that took longer than predicted; gives the ranks and cases of each launch."""
    launches = []

    def measure(ranks, cases):
        launches.append((ranks, len(cases)))
        for case in cases:
            made, _ = predict_record_and_timeline(case.experiment, load_machine(machine))
            seconds = SLOWER * made.seconds
            times = {"seconds": seconds, "seconds_low": seconds, "seconds_high": seconds}
            repeats = case.options.repeats
            several = {"repeats": repeats, "seconds_of_repeats": (seconds,) * repeats}
            save_record(msgspec.structs.replace(made, kind="measured", machine=None, **times, **several), case.record)

    monkeypatch.setattr(host_fidelity, "measure", measure)
    return launches


def study(machine, cases=12, **flags):
    return host_fidelity.host_fidelity(seed=5, cases=cases, machine=str(machine), **flags)


# The draw


def test_a_seed_draws_the_same_cases_and_another_seed_others():
    assert draw(1, 24, (1, 2)) == draw(1, 24, (1, 2))
    assert draw(1, 24, (1, 2)) != draw(2, 24, (1, 2))
    assert draw(1, 24, (1, 2))[:7] == draw(1, 7, (1, 2))


def sizes_of(case):
    """m, k and n of a case."""
    problem = case.experiment.problem
    return problem.m, problem.k, problem.n


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_cases_alternate_in_ranks_and_their_sizes_are_in_range(seed):
    drawn = draw(seed, 24, (1, 2))
    assert [case.ranks for case in drawn] == [1, 2] * 12
    for case in drawn:
        sizes = sizes_of(case)
        assert all(SMALLEST_SIZE <= size <= LARGEST_SIZE for size in sizes)
        assert case.experiment.grid.size == case.ranks


@pytest.mark.parametrize(
    ("ranks", "algorithms"),
    [
        (1, {"1d-column", "1d-row", "cannon", "summa", "2.5d", "3d", "4d"}),
        (2, {"1d-column", "1d-row", "summa", "2.5d", "3d", "4d"}),
        (4, {"1d-column", "1d-row", "cannon", "summa", "2.5d", "3d", "4d"}),
    ],
)
def test_cases_are_spread_over_algorithms_passes_dtypes_grids_and_sizes(ranks, algorithms):
    drawn = draw(3, 280, (ranks,))
    counts = {name: sum(case.experiment.algorithm == name for case in drawn) for name in algorithms}
    assert sum(counts.values()) == 280 and min(counts.values()) > 280 / len(algorithms) / 2
    for name in ("passes", "dtype"):
        values = [getattr(case.experiment.problem, name) for case in drawn]
        assert len(set(values)) == 2 and all(values.count(value) > 100 for value in set(values))
    sizes = sorted(size for case in drawn for size in sizes_of(case))
    middle = (SMALLEST_SIZE * LARGEST_SIZE) ** 0.5
    assert middle / 1.3 < sizes[len(sizes) // 2] < middle * 1.3
    if ranks > 1:
        assert len({case.experiment.grid for case in drawn if case.experiment.algorithm == "4d"}) > 2


# The result


def test_errors_are_those_of_the_records_whatever_the_case(machine, pretended, capsys):
    found = study(machine)
    assert len(found.cases) == 12 + 3
    for case in found.cases:
        assert case.seconds.relative_error == pytest.approx(1 / SLOWER - 1)
    for group in (*found.judged.values(), *found.reported.values()):
        assert (group.raw.median, group.raw.worst) == pytest.approx((1 - 1 / SLOWER,) * 2)


def test_one_and_two_ranks_are_judged_and_short_or_oversubscribed_cases_are_reported(machine, pretended, capsys):
    found = study(machine, cases=24)
    for case in found.cases:
        assert case.judged == (case.ranks == 1 or (case.ranks == 2 and case.seconds.measured >= 0.020))
    assert {case.ranks for case in found.cases} == {1, 2, 4, 8}
    assert any(case.ranks == 2 and not case.judged for case in found.cases)
    assert list(found.judged) == ["1", "2"] and set(found.reported) == {"2", "4", "8"}
    for judged, groups in ((True, found.judged), (False, found.reported)):
        for ranks, group in groups.items():
            chosen = [case for case in found.cases if case.judged == judged and str(case.ranks) == ranks]
            assert group.raw.cases == len(chosen)


def test_each_number_of_ranks_is_launched_once(machine, pretended, capsys):
    study(machine)
    assert [ranks for ranks, _ in pretended] == [1, 2, 4, 8]
    assert [cases for _, cases in pretended] == [6, 6, 2, 1]
    study(machine, oversubscribed=False)
    assert [ranks for ranks, _ in pretended[4:]] == [1, 2]


def test_the_table_has_a_line_for_each_case_the_judged_first_and_then_the_summary(machine, pretended, capsys):
    found = study(machine)
    assert capsys.readouterr().out == table(found) + "\n"
    lines = table(found).splitlines()
    cases = [line for line in lines if " run --matmul " in line]
    assert len(cases) == len(found.cases)
    marks = [(line.partition("%  ")[2].lstrip().split()[0], "(reported)" in line) for line in cases]
    assert marks == sorted(marks)
    assert all("-20.0%" in line for line in cases)
    assert any(line.startswith("P=1 judged: raw median 20.0%, 90th percentile 20.0%") for line in lines)
    assert any(line.startswith("P=8 reported: raw ") for line in lines)


def test_the_result_is_json_on_stdout_without_a_table(machine, pretended, capsys):
    found = study(machine, json="-")
    written = json.loads(capsys.readouterr().out)
    assert written["schema"] == "quadrille/host-fidelity/1"
    assert (written["seed"], len(written["cases"])) == (5, len(found.cases))
    assert set(written["judged"]["1"]) == {"raw", "drift_removed", "intervals_hold"}
    assert written["machine_sha256"] == load_machine(machine).sha256
    for case in written["cases"]:
        assert list(case) == WORDS_OF_A_CASE
        assert list(case["seconds"]) == ["predicted", "measured", "relative_error", "relative_error_drift_removed"]
        assert f"--matmul {case['m']},{case['k']},{case['n']} " in case["command"]
        assert prod(case["grid"].values()) == case["ranks"]


@pytest.mark.parametrize(("status", "error"), [(1, RunError), (2, InputError)])
def test_a_calibration_that_failed_ends_the_study_as_the_launch_did(monkeypatch, tmp_path, status, error):
    monkeypatch.setattr(launching, "launch", lambda *_, **__: status)
    with pytest.raises(error, match=f"calibration ended with status {status}; the line above says why"):
        host_fidelity.calibrate_host(str(tmp_path))


def test_a_calibration_that_was_interrupted_interrupts_the_study(monkeypatch, tmp_path):
    monkeypatch.setattr(launching, "launch", lambda *_, **__: launching.INTERRUPTED)
    with pytest.raises(KeyboardInterrupt, match="calibration was interrupted"):
        host_fidelity.calibrate_host(str(tmp_path))


def test_a_case_is_shown_as_the_command_that_repeats_it(machine, pretended, capsys):
    cases = study(machine).cases
    assert cases
    for case in cases:
        assert case.command.startswith(f"quadrille launch -n {case.ranks} run --matmul ")


@pytest.mark.parametrize(("seconds", "repeats"), [(2.0, 3), (0.5, 7), (0.01, 15)])
def test_long_runs_are_repeated_less_often(machine, seconds, repeats):
    made, _ = predict_record_and_timeline(draw(1, 1, (1,))[0].experiment, load_machine(machine))
    flags = host_fidelity._run_options(msgspec.structs.replace(made, seconds=seconds))
    assert (flags.warmups, flags.repeats) == (1, repeats)


def test_a_summary_is_median_90th_percentile_and_largest():
    found = error_sizes([0.1 * number for number in range(11)])
    assert (found.cases, found.median, found.p90, found.worst) == (11, 0.5, pytest.approx(0.9), 1.0)


def test_the_machine_file_is_not_overwritten(machine, pretended):
    with pytest.raises(InputError, match=r"--json and --machine both name .*: give each its own file"):
        study(machine, json=str(machine))
    assert pretended == [] and machine.read_text() == HOST


def test_the_study_keeps_what_a_command_would_print(monkeypatch, machine, pretended, tmp_path, capsys):
    monkeypatch.setattr(host_fidelity, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(host_fidelity, "calibrate_host", lambda _: str(machine))
    host_fidelity.main()
    kept = json.loads((tmp_path / "results" / "host-fidelity.json").read_text())
    assert kept["provenance"]["command"] == "quadrille study host-fidelity --seed 1 --cases 24"
    assert (kept["seed"], sum(case["ranks"] <= 2 for case in kept["cases"])) == (1, 24)
