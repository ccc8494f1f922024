import json

import msgspec
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats.record import load_record, save_record
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.compare.record_folders import CASES_SCHEMA
from quadrille.experiments.measure.batch import RunCase
from quadrille.experiments.output import destinations
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.studies.main_job import study as main_job
from quadrille.studies.main_job.study import MATMULS, NamedMatmul
from quadrille.topologies.machines.machine import Fit
from quadrille.topologies.machines.machine_file import load_machine
from tests.support.quadrille import HOST, called

SMALL = (
    NamedMatmul("files", 2, MatmulExperiment(Matmul(61, 47, 53, "float64"), Grid(z=2)), files=True),
    NamedMatmul("alone", 1, MatmulExperiment(Matmul(7, 5, 3, passes="training"), algorithm="summa")),
    NamedMatmul("rows", 2, MatmulExperiment(Matmul(13, 11, 17, passes="training"), Grid(y=2))),
)


@pytest.fixture
def uncalibrated(monkeypatch):
    """The machine is given instead of measured."""

    def given(path):
        path.write_text(HOST)
        return load_machine(path)

    monkeypatch.setattr(main_job, "_calibrate", given)


@pytest.mark.mpi
def test_small_jobs_end_with_verified_comparisons_and_all_their_files(uncalibrated, tmp_path, capfd):
    folder = tmp_path / "out" / "small"
    comparisons = main_job.main_job(folder, SMALL)
    written = capfd.readouterr()
    assert [comparison.problem.ranks for comparison in comparisons] == [2, 1, 2]
    for matmul, comparison in zip(SMALL, comparisons, strict=True):
        predicted, measured = (load_record(folder / f"{matmul.name}.{kind}.json") for kind in ("predicted", "measured"))
        assert measured.verified.ok and measured.verified.max_error <= measured.verified.bound
        assert predicted.bytes_sent_total == measured.bytes_sent_total
        assert comparison.seconds.predicted == predicted.seconds and comparison.seconds.measured == measured.seconds
        assert load_timeline(folder / f"{matmul.name}.predicted.timeline.json").kind == "predicted"
        assert f"{matmul.experiment.algorithm} {main_job.sizes_text(matmul)}" in written.out
    assert "median error of the 3 multiplications" in written.out
    assert f"files: {folder}; machine file: {folder / 'host.toml'}" in written.out


def test_a_busy_machine_and_warnings_are_one_line_each_under_the_table(tmp_path, capsys):
    from quadrille.topologies.find_machine import find_machine
    from tests.support.compared_records import BUSY, MEASURED, PREDICTED

    machine = find_machine("perlmutter", gpus=1)
    noisy = msgspec.structs.replace(machine, fit=Fit(warnings=("something else ran", "a link is slow")))
    comparisons = [compare_records(PREDICTED, measured) for measured in (MEASURED, BUSY)]
    main_job._print(tmp_path, SMALL[:2], comparisons, noisy)
    *_, busy, warnings = capsys.readouterr().out.splitlines()
    assert busy.startswith(
        "the machine was busy during 1 of these 2 measurements: the reference product took 18.9 times"
    )
    assert warnings.endswith(f"gave 2 warnings; printed above, and in {tmp_path / 'host.toml'} under fit.warnings")


@pytest.mark.mpi
def test_the_job_of_files_multiplies_what_is_in_them(uncalibrated, tmp_path, capfd):
    main_job.main_job(tmp_path, SMALL[:1])
    a, b, c = (np.load(tmp_path / f"{name}.npy") for name in "ABC")
    np.testing.assert_allclose(c, a @ b, rtol=1e-12)
    said = capfd.readouterr().err.splitlines()
    commands = [line.split()[1] for line in said if line.startswith("quadrille ")]
    assert commands == ["operands", "simulate", "launch"]


def test_a_result_that_did_not_verify_is_no_comparison(tmp_path):
    from quadrille.experiments.predict.predict import predict_record_and_timeline
    from quadrille.topologies.find_machine import find_machine

    matmul = SMALL[1]
    made, _ = predict_record_and_timeline(matmul.experiment, find_machine("perlmutter", gpus=1))
    for kind in ("predicted", "measured"):
        save_record(made, tmp_path / f"{matmul.name}.{kind}.json")
    with pytest.raises(RunError, match=r"alone\.measured\.json: the result did not verify"):
        main_job._compare(tmp_path, matmul, RunCase(matmul.experiment, str(tmp_path / "alone.measured.json")))


@pytest.mark.parametrize("name", ["taken", "taken/below"])
def test_a_folder_that_cannot_be_made_is_status_2_and_one_line(tmp_path, capsys, name):
    (tmp_path / "taken").write_text("a file")
    ended = called(capsys, "study", "main-job", "--folder", tmp_path / name)
    assert ended.status == 2 and f"folder {tmp_path / name} cannot be made: " in ended.line


def test_a_folder_that_is_read_only_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(destinations.os, "access", lambda *_: False)
    with pytest.raises(InputError, match="cannot be written: it is read-only"):
        main_job.main_job(tmp_path)


def test_the_jobs_have_names_of_their_own_and_the_ranks_of_their_grids():
    from quadrille.experiments.workloads.fitting_grids import check_ranks

    assert len({matmul.name for matmul in MATMULS}) == len(MATMULS)
    assert any(matmul.files for matmul in MATMULS)
    for matmul in MATMULS:
        check_ranks(matmul.experiment, matmul.ranks)


def test_the_study_keeps_its_comparisons(monkeypatch, tmp_path):
    from tests.support.compared_records import MEASURED, PREDICTED

    monkeypatch.setattr(main_job, "main_job", lambda: [compare_records(PREDICTED, MEASURED)])
    main_job.main(tmp_path / "results")
    kept = json.loads((tmp_path / "results" / "comparisons.json").read_text())
    assert kept["schema"] == CASES_SCHEMA and kept["summary"]["cases"] == len(kept["comparisons"]) == 1
    assert kept["provenance"]["command"] == "quadrille study main-job"
