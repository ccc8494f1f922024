"""The files of an interrupted fidelity study, from which it resumes: a machine file per site, two records per trial.

    FOLDER/star-hosts=4-at-200mbit-4-ranks/machine.toml
                                          /matmul-1536,…-grid-z=2,x=2.predicted.json
                                          /matmul-1536,…-grid-z=2,x=2.measured.json

The names contain the site and the configuration, so studies of other sites and cases may share a folder.  The predicted
record contains the command line that repeats the prediction in the folder of its site, and the machine's hash.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Record, load_record, save_record
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.compare.problem import check_same_problem
from quadrille.experiments.output.destinations import make_folder
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.studies.fidelity.trial_sites import TrialSite
from quadrille.studies.fidelity.trials import Trial
from quadrille.topologies.machines.machine import Machine

MACHINE_FILE = "machine.toml"


@dataclass(frozen=True, slots=True)
class TrialFiles:
    """The paths of the two records of a trial."""

    predicted: Path
    measured: Path


def site_folder(folder: Path, site: TrialSite) -> Path:
    """The folder of a site; it is created if it does not exist.

    Parameters
    ----------
    folder : folder of the study
    site : site

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as temporary:
    ...     site_folder(Path(temporary), TrialSite("star:hosts=4", "200mbit", 4)).name
    'star-hosts=4-at-200mbit-4-ranks'
    """
    return make_folder(folder / _slug(f"{site.name} {site.ranks} ranks"))


def files_of(trial: Trial, folder: Path) -> TrialFiles:
    """The paths of a trial's records in the folder of its site."""
    name = _slug(" ".join(trial.arguments))
    return TrialFiles(folder / f"{name}.predicted.json", folder / f"{name}.measured.json")


def load_or_predict(trial: Trial, machine: Machine, files: TrialFiles) -> Record:
    """The prediction of a trial: the stored record if there is one, otherwise a new prediction, which is stored.

    Parameters
    ----------
    trial : trial
    machine : machine file of the trial's site
    files : paths of the trial's records

    Raises
    ------
    InputError : the stored record belongs to another trial or machine, or only its measurement is left
    """
    if files.predicted.exists():
        record = load_record(files.predicted)
        _check_fits(trial, machine, files, record)
        return record
    if files.measured.exists():
        raise InputError(
            f"{files.measured} was measured and its prediction is gone: remove it, and it is measured again"
        )
    prediction, _ = predict_record_and_timeline(
        trial.experiment, machine, prediction_command(trial), backend=trial.site.run_options.backend
    )
    save_record(prediction, files.predicted)
    return prediction


def prediction_command(trial: Trial) -> list[str]:
    """The command line that predicts a trial, in the folder of its site.

    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.experiments.workloads.matmul import MatmulExperiment
    >>> " ".join(prediction_command(Trial(TrialSite(), MatmulExperiment(Matmul(4, 4, 4), Grid(z=2)))))
    'quadrille simulate --matmul 4,4,4 --grid z=2 --granularity exact --machine machine.toml'
    """
    return ["quadrille", "simulate", *trial.arguments, "--granularity", "exact", "--machine", MACHINE_FILE]


def _check_fits(trial: Trial, machine: Machine, files: TrialFiles, prediction: Record) -> None:
    """Refuse a prediction of another trial, commit or machine, and a measurement of another problem."""
    command, wanted_command = (
        "" if prediction.provenance is None else prediction.provenance.command,
        shlex.join(prediction_command(trial)),
    )
    if command != wanted_command:
        raise InputError(f"{files.predicted} is of `{command}`, and `{wanted_command}` is asked: take another folder")
    if (record_commit := _commit(prediction)) != (own_commit := provenance([]).versions.get("commit", "")):
        raise InputError(
            f"{files.predicted} was predicted by commit {record_commit or 'unknown'}, "
            f"and this is {own_commit or 'unknown'}: "
            "take another folder"
        )
    if prediction.machine is None or prediction.machine.sha256 != machine.sha256:
        raise InputError(
            f"{files.predicted} was predicted on another machine.toml than lies beside it: take another folder"
        )
    if files.measured.exists():
        try:
            check_same_problem(prediction, load_record(files.measured))
        except InputError as error:
            raise InputError(f"{files.measured}: {error}") from None


def _commit(record: Record) -> str:
    """The commit that wrote a record; empty if it is unknown."""
    return "" if record.provenance is None else record.provenance.versions.get("commit", "")


def _slug(text: str) -> str:
    """A text as part of a file name: other characters become hyphens.

    >>> _slug("--grid z=2,x=2 --overlap oar")
    'grid-z=2,x=2-overlap-oar'
    """
    return re.sub(r"[^\w=,.]+", "-", text).strip("-")
