import os
import sys
from dataclasses import replace

import msgspec
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Reference, load_record, save_record
from quadrille.algorithms.passes.overlap import PRODUCT_OVERLAPS
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.laboratory import namespaces
from quadrille.studies.fidelity import study, trial_files
from quadrille.studies.fidelity.judgement import (
    Gain,
    TrialResult,
    errors,
    gains,
    group_of,
    judge_results,
    rank_correlation,
)
from quadrille.studies.fidelity.study import chosen_trials, fidelity
from quadrille.studies.fidelity.trial_sites import (
    TrialSite,
    calibrate_site,
    check_sites,
    laboratory_site,
    site_launcher,
)
from quadrille.studies.fidelity.trials import GPU_SITES, SITES, Trial, draw, matrix
from quadrille.studies.gpu import calibration
from quadrille.topologies.machines.machine_file import load_machine
from tests.support import fake_device
from tests.support.quadrille import HOST, called
from tests.support.toy_machines import transfer_row

KERNELS = ("gemm_seconds", "copy_seconds", "add_seconds")
SLOWER = 1.25
"""Runs of these tests take so many times what was predicted."""


@pytest.fixture
def cupy(monkeypatch):
    return fake_device.install(monkeypatch)


def alone(trial):
    """The trial without overlaps and bands."""
    execution = replace(trial.experiment.execution, overlaps=frozenset(), bands=1)
    return replace(trial, experiment=replace(trial.experiment, execution=execution))


def remarks(trial):
    """What the trial's options do not change."""
    return trial.experiment.remarks(trial.experiment.schedule())


def made(**fields):
    usual = {
        "command": "quadrille …",
        "site": "here",
        "group": "laboratory",
        "problem": "matmul",
        "configuration": "4d x=2",
        "overlap": "none",
        "predicted_seconds": 1.0,
        "predicted_low_seconds": 0.9,
        "predicted_high_seconds": 1.1,
        "measured_seconds": 1.0,
        "relative_error": 0.0,
        "relative_error_drift_removed": None,
        "spread": None,
        "interval_holds_measurement": True,
        "causes": dict.fromkeys(("compute", "transfer", "latency", "waiting", "other"), 0.0),
    }
    return TrialResult(**(usual | fields))


# What is run


def test_the_matrix_asks_each_thing_once_and_every_case_can_be():
    trials = matrix()
    assert len(set(trials)) == len(trials)
    for trial in trials:
        assert trial.experiment.grid.size == trial.site.ranks


def test_the_matrix_has_every_site_overlap_algorithm_and_both_kinds_of_collectives():
    trials = matrix(SITES)
    for site in SITES:
        here = [trial for trial in trials if trial.site == site]
        assert set(PRODUCT_OVERLAPS) <= {trial.overlap for trial in here}
        assert {trial.is_by_library for trial in here} == {False, True}
        assert {"1d-column", "summa", "2.5d", "3d", "4d"} <= {trial.experiment.name for trial in here}


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_is_in_the_matrix_where_there_is_one(cupy, monkeypatch, there):
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: int(there))
    found = {trial.site for trial in matrix()}
    assert found == {*SITES, *GPU_SITES} if there else found == set(SITES)


def test_what_runs_on_a_gpu_is_large_and_says_so_in_its_command():
    trials = matrix(GPU_SITES)
    assert {trial.site for trial in trials} == set(GPU_SITES)
    for trial in trials:
        assert trial.experiment.grid.size == trial.site.ranks and group_of(trial) == "GPU"
        words = trial.command(replace(trial.site.run_options, repeats=3))
        assert words.startswith(f"quadrille launch -n {trial.site.ranks} run --")
        assert "--backend cupy" in words and "--carrier mpi" in words and "--repeats 3" in words
        assert "8192" in words


def test_a_gpu_is_calibrated_by_its_microbenchmarks_with_as_many_ranks_as_share_it(cupy, monkeypatch, tmp_path):
    asked = []
    rows = (transfer_row(8, 1e-3, ranks=4), transfer_row(1 << 20, 2e-3, ranks=4))
    staged = calibration.StagedTransfers(rows)
    monkeypatch.setattr(calibration, "measure_staged_transfers", lambda counts: (asked.extend(counts), staged)[1])
    machine = calibrate_site(GPU_SITES[1], None, tmp_path / "machine.toml", calibration.TINY)
    assert asked == [4] and machine.name.startswith("Fake GPU")
    assert [row.ranks for row in machine.host.transfer] == [4, 4]
    first = matrix(GPU_SITES[1:])[0]
    prediction = trial_files.load_or_predict(first, machine, trial_files.files_of(first, tmp_path))
    assert prediction.seconds > 0 and prediction.backend == "cupy"


def test_where_there_is_no_gpu_its_trials_are_refused_before_anything_is_measured(pretended, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match="CuPy cannot be imported"):
        fidelity(matrix((SITES[0], *GPU_SITES)))
    assert pretended == []


@pytest.mark.parametrize(("seen", "shown"), [(None, "0"), ("2,3", "2")])
def test_ranks_that_share_a_gpu_see_the_first_only(monkeypatch, seen, shown):
    if seen is None:
        monkeypatch.delenv(calibration.VISIBLE_DEVICES, raising=False)
    else:
        monkeypatch.setenv(calibration.VISIBLE_DEVICES, seen)
    with site_launcher(GPU_SITES[0]):
        assert os.environ[calibration.VISIBLE_DEVICES] == shown
    assert os.environ.get(calibration.VISIBLE_DEVICES) == seen


def test_trials_on_a_gpu_are_measured_there_and_have_no_floor(cupy, pretended, capsys):
    trials = matrix(GPU_SITES[:1])[:3]
    found = fidelity(trials)
    assert {one.group for one in found.trials} == {"GPU"} == set(found.judgement.errors)
    assert all("--backend cupy" in one.command for one in found.trials)
    shown = capsys.readouterr().out
    assert "GPU, median error" in shown and "GPU shared by 2" in shown


def test_every_overlap_of_the_matrix_has_its_twin_without():
    trials = set(matrix())
    assert all(alone(trial) in trials for trial in trials)
    assert {trial.overlap for trial in trials} >= {"none", "oar", "oar in 4 bands", "oar,ors,oag in 4 bands"}


@pytest.mark.parametrize("trials", [matrix(SITES[:2]), *(draw(seed, 48) for seed in range(5))])
def test_overlaps_have_something_to_hide(trials):
    idle = [line for trial in trials for line in remarks(trial) if line.startswith("--overlap")]
    assert not idle


def test_a_seed_draws_the_same_cases_and_each_can_be():
    drawn = draw(11, 60)
    assert drawn == draw(11, 60) != draw(12, 60)
    for trial in drawn:
        assert trial.experiment.grid.size == trial.site.ranks
    assert len({trial.site for trial in drawn}) == 5
    assert {trial.overlap == "none" for trial in drawn} == {trial.is_by_library for trial in drawn} == {True, False}
    assert any("bands" in trial.overlap for trial in drawn)


def test_cases_may_be_drawn_at_a_site_that_is_asked_for():
    site = laboratory_site("torus:dims=2x3", "150mbit", 6)
    drawn = chosen_trials("", site=site)
    assert len(drawn) == 24 and {trial.site for trial in drawn} == {site}
    assert {trial.arguments[1] for trial in drawn} != {trial.arguments[1] for trial in chosen_trials("", 1, site=site)}
    assert laboratory_site("lab.toml", "", 4).launch_arguments == ("lab", "run", "lab.toml", "-n", "4", "--")
    assert laboratory_site("lab.toml", "", 4).name == "lab.toml"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("", "9mbit", None), "--rate 9mbit: goes with --topology TOPOLOGY"),
        (("", "", 3), "-n 3: goes with --topology TOPOLOGY"),
        (("star:hosts=2", "9mbit", None), "--topology star:hosts=2: goes with -n RANKS"),
    ],
)
def test_half_of_a_site_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        laboratory_site(*given)


def test_a_site_of_fewer_ranks_than_hosts_is_refused_before_it_stands(monkeypatch):
    monkeypatch.setattr(namespaces, "check_allowed", lambda: None)
    with pytest.raises(InputError, match=r"-n 2: calibrate .* all 4 hosts of star:hosts=4, .*: -n 4 or more is"):
        check_sites([TrialSite("star:hosts=4", "200mbit", 2)])


def test_a_trial_says_what_measures_it_and_how_often():
    trial = Trial(TrialSite("star:hosts=4", "200mbit", 4), matrix()[0].experiment)
    words = "--matmul 2048,2048,2048 --algorithm 1d-column --grid x=2"
    command = f"quadrille lab run star:hosts=4 --rate 200mbit -n 4 -- run {words}"
    assert trial.command(RunOptions()) == command
    assert trial.command(RunOptions(warmups=0, repeats=3)) == f"{command} --warmups 0 --repeats 3"


def test_sites_are_chosen_by_the_beginning_of_their_names():
    assert {trial.site.topology.partition(":")[0] for trial in chosen_trials("shared dumb")} == {"", "dumbbell"}
    with pytest.raises(InputError, match="--sites ring: no site begins so: there are shared memory; star"):
        chosen_trials("ring")


def test_cases_of_the_matrix_and_sites_beside_a_topology_are_refused():
    with pytest.raises(InputError, match="--cases 5: cases are drawn, with --seed S or at --topology TOPOLOGY"):
        chosen_trials("", cases=5)
    with pytest.raises(InputError, match="--sites star: all cases are at --topology star:hosts=4: give one of the two"):
        chosen_trials("star", site=TrialSite("star:hosts=4", "200mbit", 4))


# The judgement


def test_errors_are_summed_up_by_size_not_by_sign():
    found = errors([made(relative_error=error) for error in (-0.3, 0.1, 0.2, -0.02, 0.0)])
    assert (found.cases, found.median, found.worst) == (5, 0.1, 0.3)
    assert found.p90 == pytest.approx(0.26)
    assert found.median_drift_removed is None


def test_an_order_compares_configurations_of_one_problem_at_one_site_that_a_measurement_tells_apart():
    times = [(1.0, 1.0), (2.0, 1.05), (1.5, 2.0), (3.0, 4.0)]
    results = [made(predicted_seconds=said, measured_seconds=was) for said, was in times]
    found = rank_correlation(results)
    assert (found.pairs, found.left_out) == (5, 1)
    assert found.tau == pytest.approx((4 - 1) / 5)
    assert rank_correlation([made(), made(site="there"), made(problem="other")]).pairs == 0


def test_configurations_that_are_predicted_to_be_equal_and_are_not_count_as_not_ordered():
    times = [(1.0, 1.0), (1.0, 1.5), (2.0, 3.0)]
    found = rank_correlation([made(predicted_seconds=said, measured_seconds=was) for said, was in times])
    assert (found.pairs, found.left_out) == (3, 0)
    assert found.tau == pytest.approx(2 / 3)


def test_a_gain_compares_an_overlap_with_its_own_twin():
    results = [
        made(predicted_seconds=2.0, measured_seconds=4.0),
        made(predicted_seconds=1.5, measured_seconds=3.0625, overlap="ors"),
        made(predicted_seconds=9.0, measured_seconds=9.0, overlap="ors", configuration="4d z=2"),
    ]
    (gain,) = gains(results)
    assert (gain.predicted, gain.measured) == (0.25, 0.234375)
    assert gain.close
    assert gain.clear
    assert gain.sign_right


@pytest.mark.parametrize(
    ("predicted", "measured", "clear", "right"),
    [
        (0.1, 0.2, True, True),
        (-0.01, 0.2, True, False),
        (0.07, -0.001, True, False),
        (0.02, -0.06, True, False),
        (-0.04, 0.02, False, False),
        (0.01, 0.04, False, True),
    ],
)
def test_the_sign_of_a_gain_counts_where_one_is_predicted_or_measured(predicted, measured, clear, right):
    gain = Gain(
        site="", group="laboratory, overlap", problem="", configuration="", predicted=predicted, measured=measured
    )
    assert (gain.clear, gain.sign_right) == (clear, right)


def test_groups_are_judged_apart():
    found = judge_results(
        [made(relative_error=0.1), made(group="library", relative_error=0.4, interval_holds_measurement=False)]
    )
    assert {name: one.median for name, one in found.errors.items()} == {"laboratory": 0.1, "library": 0.4}
    assert found.intervals_hold == 0.5


# The study


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """Instead of calibrations and runs: a toy machine, and records of runs that took longer than predicted."""
    path = tmp_path / "toy.toml"
    path.write_text(HOST)
    launches = []

    def measure(ranks, cases, *, start_ranks):
        launches.append((ranks, len(cases)))
        for case in cases:
            predicted, _ = predict_record_and_timeline(
                case.experiment, load_machine(path), backend=case.options.backend
            )
            seconds, repeats = SLOWER * predicted.seconds, case.options.repeats
            times = {"seconds": seconds, "seconds_low": seconds, "seconds_high": seconds}
            several = {"repeats": repeats, "seconds_of_repeats": (seconds,) * repeats}
            save_record(
                msgspec.structs.replace(predicted, kind="measured", machine=None, **times, **several), case.record
            )

    monkeypatch.setattr(study, "calibrate_site", lambda *_: load_machine(path))
    monkeypatch.setattr(study, "measure", measure)
    return launches


def test_the_study_predicts_and_measures_every_trial_and_writes_all_of_it(pretended, tmp_path, capsys):
    trials = matrix(SITES[:1])[:12]
    found = fidelity(trials, json=str(tmp_path / "answer.json"), plot=str(tmp_path / "figure.png"))
    assert pretended == [(2, 12)]
    assert [one.relative_error for one in found.trials] == [pytest.approx(1 / SLOWER - 1)] * 12
    for one in found.trials:
        assert sum(one.causes.values()) == pytest.approx(one.predicted_seconds - one.measured_seconds)
    written = msgspec.json.decode((tmp_path / "answer.json").read_bytes())
    assert written["schema"] == "quadrille/fidelity/1"
    assert [one["command"] for one in written["trials"]] == [trial.command(RunOptions()) for trial in trials]
    assert (tmp_path / "figure.png").stat().st_size > 0
    shown = capsys.readouterr().out
    assert "shared memory, median error, drift removed" in shown
    assert "order of configurations" in shown


SHARED = matrix(SITES[:1])


@pytest.mark.parametrize(("seconds", "more"), [(0.6, " --repeats 3"), (0.4, ""), (0.04, " --repeats 15")])
def test_a_result_names_the_command_that_repeats_its_measurement_as_often(pretended, monkeypatch, seconds, more):
    predict = study.load_or_predict
    monkeypatch.setattr(
        study, "load_or_predict", lambda *words: msgspec.structs.replace(predict(*words), seconds=seconds)
    )
    commands = [one.command for one in fidelity(SHARED[:3]).trials]
    assert commands == [f"quadrille launch -n 2 run {' '.join(trial.arguments)}{more}" for trial in SHARED[:3]]


def test_a_kept_prediction_is_made_again_by_the_command_in_it(pretended, monkeypatch, tmp_path, capsys):
    folder, trial = tmp_path / "kept", SHARED[0]
    fidelity([trial], folder=str(folder))
    here = trial_files.site_folder(folder, trial.site)
    (here / trial_files.MACHINE_FILE).write_text(HOST)  # no calibration that left it
    first = load_record(trial_files.files_of(trial, here).predicted)
    monkeypatch.chdir(here)
    program, *words = first.provenance.command.split()
    assert program == "quadrille"
    assert called(capsys, *words, "--json", "again.json").status == 0
    again = load_record("again.json")
    assert (again.kind, again.seconds, again.machine) == ("predicted", first.seconds, first.machine)


def test_a_study_that_goes_on_measures_and_predicts_only_what_is_not_there(pretended, tmp_path, monkeypatch):
    folder = str(tmp_path / "kept")
    first = fidelity(SHARED[:3], folder=folder)
    monkeypatch.setattr(trial_files, "predict_record_and_timeline", lambda *_: pytest.fail("predicted again"))
    assert fidelity(SHARED[2:0:-1], folder=folder).trials == first.trials[2:0:-1]
    assert pretended == [(2, 3)]


@pytest.mark.parametrize(
    ("slower", "looks", "kept_slower"),
    [
        ([1.05], 1, 1.05),
        ([1.5, 1.02], 2, 1.02),
        ([1.5, 2.0, 1.6], 3, 1.5),
        ([0.8, 1.15, 0.7], 3, 1.15),
    ],
)
def test_a_run_counts_as_it_was_while_the_machine_was_nearest_to_its_calibration(
    pretended, monkeypatch, tmp_path, slower, looks, kept_slower
):
    measure, drifts = study.measure, iter(slower)

    def on_a_machine_that_drifts(ranks, cases, *, start_ranks):
        measure(ranks, cases, start_ranks=start_ranks)
        for case in cases:
            record, drift = load_record(case.record), next(drifts)
            kernels = [tuple(drift * one for one in getattr(record.reference, name)) for name in KERNELS]
            save_record(msgspec.structs.replace(record, reference=Reference(*kernels)), case.record)

    monkeypatch.setattr(study, "measure", on_a_machine_that_drifts)
    fidelity(SHARED[:1], folder=str(tmp_path / "kept"))
    here = trial_files.site_folder(tmp_path / "kept", SHARED[0].site)
    files = trial_files.files_of(SHARED[0], here)
    predicted, measured = load_record(files.predicted), load_record(files.measured)
    assert len(pretended) == looks
    assert measured.reference.gemm_seconds[0] == pytest.approx(kept_slower * predicted.reference.gemm_seconds[0])
    assert not list(here.glob("*again*"))
    fidelity(SHARED[:1], folder=str(tmp_path / "kept"))
    assert len(pretended) == looks, "a study that has all does not look again"


def test_sites_and_cases_that_share_a_folder_share_no_file(pretended, tmp_path):
    folder, there = str(tmp_path / "kept"), TrialSite(ranks=4)
    fidelity(SHARED[:2], folder=folder)
    fidelity([Trial(there, trial.experiment) for trial in matrix((there,))[:2]], folder=folder)
    fidelity(SHARED[1:3], folder=folder)
    assert pretended == [(2, 2), (4, 2), (2, 1)]
    everything = [trial for site in SITES for trial in matrix((site,))]
    named = {
        (trial_files.site_folder(tmp_path, trial.site), trial_files.files_of(trial, tmp_path)) for trial in everything
    }
    assert len(named) == len(everything)


def spoil_command(files):
    record = load_record(files.predicted)
    other = msgspec.structs.replace(record.provenance, command="quadrille launch -n 2 run")
    save_record(msgspec.structs.replace(record, provenance=other), files.predicted)


def spoil_commit(files):
    record = load_record(files.predicted)
    other = msgspec.structs.replace(record.provenance, versions={"commit": "0123abc"})
    save_record(msgspec.structs.replace(record, provenance=other), files.predicted)


def spoil_machine(files):
    record = load_record(files.predicted)
    other = msgspec.structs.replace(record.machine, sha256="0" * 64)
    save_record(msgspec.structs.replace(record, machine=other), files.predicted)


def spoil_measurement(files):
    save_record(msgspec.structs.replace(load_record(files.measured), passes="training"), files.measured)


def spoil_order(files):
    files.predicted.unlink()


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (spoil_command, "predicted.json is of `quadrille launch -n 2 run`, and `quadrille simulate .*` is asked"),
        (spoil_commit, "was predicted by commit 0123abc, and this is .*: take another folder"),
        (spoil_machine, "predicted on another machine.toml"),
        (spoil_measurement, "measured.json: records of different problems: passes forward predicted"),
        (spoil_order, "measured and its prediction is gone"),
    ],
)
def test_what_does_not_fit_in_a_folder_is_refused_in_a_line(pretended, tmp_path, spoil, line):
    folder, trial = tmp_path / "kept", SHARED[0]
    fidelity([trial], folder=str(folder))
    spoil(trial_files.files_of(trial, trial_files.site_folder(folder, trial.site)))
    with pytest.raises(InputError, match=line) as refused:
        fidelity([trial], folder=str(folder))
    assert "\n" not in str(refused.value)
    assert pretended == [(2, 1)]


def test_files_that_cannot_be_written_are_refused_before_anything_runs(pretended, tmp_path):
    with pytest.raises(InputError, match="--json"):
        fidelity(matrix()[:1], json=str(tmp_path / "absent" / "answer.json"))
    assert pretended == []


@pytest.mark.parametrize("name", ["taken", "taken/below"])
def test_a_folder_that_cannot_be_made_is_refused_in_a_line(pretended, tmp_path, name):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match=f"folder .*{name} cannot be made: ") as refused:
        fidelity(SHARED[:1], folder=str(tmp_path / name))
    assert "\n" not in str(refused.value)
    assert pretended == []


@pytest.fixture
def without_root(monkeypatch):
    """A user who may make no laboratory."""
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)


def test_all_sites_are_looked_at_before_anything_is_measured(pretended, without_root):
    with pytest.raises(InputError, match=r"a laboratory needs root.*; --sites shared needs none"):
        fidelity(matrix())
    assert pretended == []
    assert len(fidelity(SHARED[:1]).trials) == 1


def test_where_no_laboratory_may_be_made_the_study_is_left_out_and_others_go_on(
    pretended, without_root, tmp_path, capsys
):
    study.main(tmp_path / "results")
    assert "left out, and results kept as they are: a laboratory needs root" in capsys.readouterr().err
    assert list((tmp_path / "results").iterdir()) == pretended == []
