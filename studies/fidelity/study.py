"""`quadrille study fidelity`: the error of predictions from calibration alone, on this host and emulated networks.

For each site (shared memory, laboratories, a GPU) the study calibrates the site by microbenchmarks, predicts all
trials, and then measures them in one launch.  `remeasure.py` repeats disturbed measurements.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Record, load_record
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.measure.batch import RunCase, StartRanks, measure
from quadrille.experiments.output.destinations import Destinations, make_folder, write_or_show
from quadrille.experiments.output.tables import print_tables
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.studies.fidelity.figure import draw_fidelity
from quadrille.studies.fidelity.judgement import Judgement, TrialResult, judge_results, trial_result
from quadrille.studies.fidelity.remeasure import remeasure_disturbed
from quadrille.studies.fidelity.report import judgement_table, trials_table
from quadrille.studies.fidelity.trial_files import MACHINE_FILE, files_of, load_or_predict, site_folder
from quadrille.studies.fidelity.trial_sites import TrialSite, calibrate_site, check_sites, site_launcher
from quadrille.studies.fidelity.trials import Trial, draw, matrix
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import load_machine

SCHEMA = "quadrille/fidelity/1"
RESULTS = Path(__file__).resolve().parent / "results"
CASES = 24
"""Default number of drawn cases."""
SHORT_SECONDS, LONG_SECONDS = 0.05, 0.5
REPEATS_OF_SHORT, REPEATS, REPEATS_OF_LONG = 15, 5, 3
"""Number of repeats by the predicted time; if ranks share cores, every third short run may take twice as long."""


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the study, as `--json` writes it.

    Parameters
    ----------
    trials : results of all trials
    judgement : accuracy over all trials
    machines : SHA-256 of each site's machine file, by the name of the site
    provenance : command, date and versions
    """

    trials: tuple[TrialResult, ...]
    judgement: Judgement
    machines: dict[str, str]
    provenance: Provenance


def main(results: Path = RESULTS) -> None:
    """Run the matrix and write the answer to the folder `results`; without a laboratory, only print a remark."""
    results.mkdir(exist_ok=True)
    json, figure = str(results / f"{date.today()}.json"), str(results / "figure.png")
    trials = matrix()
    try:
        check_sites(sites_of(trials))
    except InputError as error:
        remark(f"left out, and results kept as they are: {error}")
        return
    fidelity(trials, json=json, plot=figure, command=["quadrille", "study", "fidelity"])


def fidelity(
    trials: Sequence[Trial], *, folder: str = "", json: str = "", plot: str = "", command: Sequence[str] = ()
) -> Fidelity:
    """Predict and measure the trials site by site, and print the results.

    Parameters
    ----------
    trials : trials, see `chosen_trials`
    folder : folder of machine files and records, from which an interrupted study resumes (`trial_files.py`); empty: a
        temporary folder
    json : file of the answer, `-` for stdout (then no table is printed); empty: not written
    plot : file of the figure; empty: not written
    command : command line, for the provenance

    Raises
    ------
    InputError : a laboratory that cannot start here; files that cannot be written; a folder with other contents
    """
    Destinations(json=json, plot=plot).check()
    sites = sites_of(trials)
    check_sites(sites)
    with _study_folder(folder) as study_folder:
        machines: dict[str, str] = {}
        results: list[TrialResult] = []
        for site in sites:
            machine, site_results = _run_site(
                site, [trial for trial in trials if trial.site == site], site_folder(study_folder, site)
            )
            machines[site.name] = machine.sha256
            results += site_results
        answer = Fidelity(
            trials=tuple(results),
            judgement=judge_results(results),
            machines=machines,
            provenance=provenance(list(command)),
        )
    if plot:
        draw_fidelity(results, plot)
    write_or_show(answer, json, SCHEMA, lambda: print_tables(trials_table(results), judgement_table(answer.judgement)))
    return answer


def sites_of(trials: Sequence[Trial]) -> list[TrialSite]:
    """The sites of the trials, each once, in their order."""
    return list(dict.fromkeys(trial.site for trial in trials))


def chosen_trials(
    sites: str, seed: int | None = None, cases: int | None = None, site: TrialSite | None = None
) -> list[Trial]:
    """The trials that command-line flags choose: of the matrix, or drawn, at the sites with these names.

    >>> {trial.site.ranks for trial in chosen_trials("shared")}
    {2}

    Parameters
    ----------
    sites : beginnings of names of sites with blanks between them, such as `shared star`; empty: all sites
    seed, cases : seed and number of the drawn trials; None for both and for `site`: the matrix
    site : site of all drawn trials; None: sites are drawn

    Raises
    ------
    InputError : a number of cases for the matrix; a name that no site begins with; both `sites` and `site`
    """
    beginnings = sites.split()
    if beginnings and site is not None:
        raise InputError(f"--sites {sites}: all cases are at --topology {site.topology}: give one of the two")
    trials = _drawn_or_matrix(seed, cases, site)
    names = list(dict.fromkeys(trial.site.name for trial in trials))
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in names):
            raise InputError(f"--sites {beginning}: no site begins so: there are {'; '.join(names)}")
    return [trial for trial in trials if not beginnings or trial.site.name.startswith(tuple(beginnings))]


def _drawn_or_matrix(seed: int | None, cases: int | None, site: TrialSite | None) -> list[Trial]:
    """The drawn trials, or the matrix without a seed and a site."""
    if seed is None and site is None:
        if cases is not None:
            raise InputError(f"--cases {cases}: cases are drawn, with --seed S or at --topology TOPOLOGY")
        return matrix()
    return draw(seed or 0, cases or CASES, site)


def _run_site(site: TrialSite, trials: Sequence[Trial], folder: Path) -> tuple[Machine, list[TrialResult]]:
    """Calibrate a site, predict and measure its trials, and return its machine and the results."""
    _print_progress(f"{site.name}: calibrating")
    with site_launcher(site) as launched:
        machine = _load_or_calibrate(site, launched, folder / MACHINE_FILE)
        records = [files_of(trial, folder) for trial in trials]
        predictions = [load_or_predict(trial, machine, files) for trial, files in zip(trials, records, strict=True)]
        seconds = sum(prediction.seconds for prediction in predictions)
        _print_progress(f"{site.name}: measuring {len(trials)} runs, predicted {seconds:.0f} s a turn")
        options = [_run_options(site, prediction) for prediction in predictions]

        def measure_all(runs: Sequence[tuple[int, Path]]) -> None:
            """Measure runs, given as pairs of number and record file, in one launch."""
            cases = [RunCase(trials[number].experiment, str(path), options[number]) for number, path in runs]
            if cases:
                measure(site.ranks, cases, start_ranks=launched)

        paths = [files.measured for files in records]
        missing = [number for number, path in enumerate(paths) if not path.exists()]
        measure_all([(number, paths[number]) for number in missing])
        if needed := remeasure_disturbed(missing, predictions, paths, measure_all):
            _print_progress(f"{site.name}: {needed} were measured again: the machine was not as it was calibrated")
    runs = zip(trials, options, predictions, records, strict=True)
    return machine, [
        trial_result(
            trial, predicted, compare_records(predicted, load_record(record.measured)), command=trial.command(options)
        )
        for trial, options, predicted, record in runs
    ]


def _load_or_calibrate(site: TrialSite, launched: StartRanks, path: Path) -> Machine:
    """The machine of a site from its file, or from a new calibration if there is no file."""
    if not path.exists():
        return calibrate_site(site, launched, path)
    machine = load_machine(str(path))
    calibration = machine.provenance
    _print_progress(f"{site.name}: {path} is used{f', of {calibration.date}' if calibration is not None else ''}")
    return machine


def _run_options(site: TrialSite, prediction: Record) -> RunOptions:
    """The options of a run; long runs are repeated less often."""
    if prediction.seconds > LONG_SECONDS:
        repeats = REPEATS_OF_LONG
    else:
        repeats = REPEATS if prediction.seconds > SHORT_SECONDS else REPEATS_OF_SHORT
    return replace(site.run_options, warmups=1, repeats=repeats)


@contextmanager
def _study_folder(folder: str) -> Iterator[Path]:
    """The folder that the user named, or a temporary folder."""
    if folder:
        yield make_folder(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _print_progress(text: str) -> None:
    """Print a line about the progress on stderr."""
    print(f"fidelity: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_as_program(main)
