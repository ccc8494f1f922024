"""`quadrille study fidelity`: how far off are predictions from calibration alone, in shared memory, on networks, a GPU?

Each site is calibrated by microbenchmarks, everything that is to be run there
is predicted from that, and then measured, case after case in one launch; again
where the machine was not as it was calibrated (`remeasure.py`).
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
from quadrille.studies.fidelity.judgement import Judgement, Result, judged, result
from quadrille.studies.fidelity.kept import MACHINE_FILE, files_of, predicted, site_folder
from quadrille.studies.fidelity.remeasure import look_again
from quadrille.studies.fidelity.report import judgement_table, trials_table
from quadrille.studies.fidelity.sites import TrialSite, calibrated, check_sites, standing
from quadrille.studies.fidelity.trials import Trial, draw, matrix
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import load_machine

SCHEMA = "quadrille/fidelity/1"
RESULTS = Path(__file__).resolve().parent / "results"
CASES = 24
"""Drawn where a seed is given alone."""
SHORT_SECONDS, LONG_SECONDS = 0.05, 0.5
REPEATS_OF_SHORT, REPEATS, REPEATS_OF_LONG = 15, 5, 3
"""By the seconds that are predicted; of short runs on cores that ranks share one in three may take twice as long."""


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """The study's answer, as it is written."""

    trials: tuple[Result, ...]
    judgement: Judgement
    machines: dict[str, str]
    provenance: Provenance


def main() -> None:
    """Run the matrix and keep the answer; say so where no laboratory may be made."""
    RESULTS.mkdir(exist_ok=True)
    kept, figure = str(RESULTS / f"{date.today()}.json"), str(RESULTS / "figure.png")
    trials = matrix()
    try:
        check_sites(sites_of(trials))
    except InputError as error:
        remark(f"left out, and results kept as they are: {error}")
        return
    fidelity(trials, json=kept, plot=figure, command=["quadrille", "study", "fidelity"])


def fidelity(
    trials: Sequence[Trial], *, folder: str = "", json: str = "", plot: str = "", command: Sequence[str] = ()
) -> Fidelity:
    """Predict and measure the trials site by site, and print the results.

    Parameters
    ----------
    folder : folder of machine files and records, from which an interrupted study continues (`kept.py`); by default a
        temporary folder
    json, plot : files of the answer and the figure; json `-` is stdout, and then no table is printed

    Raises
    ------
    InputError : a laboratory that cannot start here; files that cannot be written; a folder with other contents
    """
    Destinations(json=json, plot=plot).check()
    sites = sites_of(trials)
    check_sites(sites)
    with _kept(folder) as kept:
        machines: dict[str, str] = {}
        results: list[Result] = []
        for site in sites:
            machine, site_results = _at(
                site, [trial for trial in trials if trial.site == site], site_folder(kept, site)
            )
            machines[site.name] = machine.sha256
            results += site_results
        answer = Fidelity(
            trials=tuple(results), judgement=judged(results), machines=machines, provenance=provenance(list(command))
        )
    if plot:
        draw_fidelity(results, plot)
    write_or_show(answer, json, SCHEMA, lambda: print_tables(trials_table(results), judgement_table(answer.judgement)))
    return answer


def sites_of(trials: Sequence[Trial]) -> list[TrialSite]:
    """Each once, in the order in which they come."""
    return list(dict.fromkeys(trial.site for trial in trials))


def chosen_trials(
    sites: str, seed: int | None = None, cases: int | None = None, site: TrialSite | None = None
) -> list[Trial]:
    """Trials of the matrix, or drawn trials, at the sites whose names begin with one of the words.

    >>> {trial.site.ranks for trial in chosen_trials("shared")}
    {2}

    Parameters
    ----------
    sites : words with blanks between, such as `shared star`; empty for all
    seed, cases : seed and number of the drawn trials; without them and without a site the trials are the matrix
    site : site of all drawn trials

    Raises
    ------
    InputError : a number of cases for the matrix; a word that no site begins with, or a word together with a site
    """
    words = sites.split()
    if words and site is not None:
        raise InputError(f"--sites {sites}: all cases are at --topology {site.topology}: give one of the two")
    trials = _drawn_or_planned(seed, cases, site)
    names = list(dict.fromkeys(trial.site.name for trial in trials))
    for word in words:
        if not any(name.startswith(word) for name in names):
            raise InputError(f"--sites {word}: no site begins so: there are {'; '.join(names)}")
    return [trial for trial in trials if not words or trial.site.name.startswith(tuple(words))]


def _drawn_or_planned(seed: int | None, cases: int | None, site: TrialSite | None) -> list[Trial]:
    if seed is None and site is None:
        if cases is not None:
            raise InputError(f"--cases {cases}: cases are drawn, with --seed S or at --topology TOPOLOGY")
        return matrix()
    return draw(seed or 0, cases or CASES, site)


def _at(site: TrialSite, trials: Sequence[Trial], folder: Path) -> tuple[Machine, list[Result]]:
    """The site's machine, and the results of all its trials."""
    _say(f"{site.name}: calibrating")
    with standing(site) as launched:
        machine = _machine(site, launched, folder / MACHINE_FILE)
        records = [files_of(trial, folder) for trial in trials]
        predictions = [predicted(trial, machine, kept) for trial, kept in zip(trials, records, strict=True)]
        seconds = sum(prediction.seconds for prediction in predictions)
        _say(f"{site.name}: measuring {len(trials)} runs, predicted {seconds:.0f} s a turn")
        how = [_repeated(site, prediction) for prediction in predictions]

        def measure_all(runs: Sequence[tuple[int, Path]]) -> None:
            cases = [RunCase(trials[number].experiment, str(path), how[number]) for number, path in runs]
            if cases:
                measure(site.ranks, cases, start_ranks=launched)

        paths = [kept.measured for kept in records]
        missing = [number for number, path in enumerate(paths) if not path.exists()]
        measure_all([(number, paths[number]) for number in missing])
        if needed := look_again(missing, predictions, paths, measure_all):
            _say(f"{site.name}: {needed} were measured again: the machine was not as it was calibrated")
    runs = zip(trials, how, predictions, records, strict=True)
    return machine, [
        result(trial, said, compare_records(said, load_record(kept.measured)), command=trial.command(often))
        for trial, often, said, kept in runs
    ]


def _machine(site: TrialSite, launched: StartRanks, path: Path) -> Machine:
    """The site's machine file from the folder, with its date printed, or a new calibration."""
    if not path.exists():
        return calibrated(site, launched, path)
    machine = load_machine(str(path))
    calibration = machine.provenance
    _say(f"{site.name}: {path} is used{f', of {calibration.date}' if calibration is not None else ''}")
    return machine


def _repeated(site: TrialSite, prediction: Record) -> RunOptions:
    """Long runs are repeated less often, short ones more."""
    if prediction.seconds > LONG_SECONDS:
        repeats = REPEATS_OF_LONG
    else:
        repeats = REPEATS if prediction.seconds > SHORT_SECONDS else REPEATS_OF_SHORT
    return replace(site.run_options, warmups=1, repeats=repeats)


@contextmanager
def _kept(folder: str) -> Iterator[Path]:
    """The folder that the user named, or a temporary folder."""
    if folder:
        yield make_folder(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _say(text: str) -> None:
    print(f"fidelity: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_as_program(main)
