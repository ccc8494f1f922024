"""What a study leaves in a folder and finds when it goes on: of each site its machine, of each trial its two records.

    FOLDER/star-hosts=4-at-200mbit-4-ranks/machine.toml
                                          /matmul-1536,…-grid-z=2,x=2.predicted.json
                                          /matmul-1536,…-grid-z=2,x=2.measured.json

Files are named by what was run and where, so studies of other sites and cases may share a folder.  In the
predicted record stands the command that makes it again in the folder of its site, with the hash of the machine.
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
from quadrille.studies.fidelity.sites import TrialSite
from quadrille.studies.fidelity.trials import Trial
from quadrille.topologies.machines.machine import Machine

MACHINE_FILE = "machine.toml"


@dataclass(frozen=True, slots=True)
class Files:
    """Where the two records of a trial are kept."""

    predicted: Path
    measured: Path


def site_folder(folder: Path, site: TrialSite) -> Path:
    """A site's own folder, made where it is not there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made:
    ...     site_folder(Path(made), TrialSite("star:hosts=4", "200mbit", 4)).name
    'star-hosts=4-at-200mbit-4-ranks'
    """
    return make_folder(folder / _slug(f"{site.name} {site.ranks} ranks"))


def files_of(trial: Trial, folder: Path) -> Files:
    """The records of a trial, in the folder of its site."""
    name = _slug(" ".join(trial.words))
    return Files(folder / f"{name}.predicted.json", folder / f"{name}.measured.json")


def predicted(trial: Trial, machine: Machine, kept: Files) -> Record:
    """The trial's prediction: the stored record if there is one, otherwise a new prediction, before any measurement.

    Raises
    ------
    InputError : the stored record belongs to another trial or machine, or only its measurement is left
    """
    if kept.predicted.exists():
        record = load_record(kept.predicted)
        _check_fits(trial, machine, kept, record)
        return record
    if kept.measured.exists():
        raise InputError(
            f"{kept.measured} was measured and its prediction is gone: remove it, and it is measured again"
        )
    prediction, _ = predict_record_and_timeline(
        trial.experiment, machine, predicting(trial), backend=trial.site.run_options.backend
    )
    save_record(prediction, kept.predicted)
    return prediction


def predicting(trial: Trial) -> list[str]:
    """The words of the command that predicts a trial, in the folder of its site.

    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.experiments.workloads.matmul import MatmulExperiment
    >>> " ".join(predicting(Trial(TrialSite(), MatmulExperiment(Matmul(4, 4, 4), Grid(z=2)))))
    'quadrille simulate --matmul 4,4,4 --grid z=2 --granularity exact --machine machine.toml'
    """
    return ["quadrille", "simulate", *trial.words, "--granularity", "exact", "--machine", MACHINE_FILE]


def _check_fits(trial: Trial, machine: Machine, kept: Files, prediction: Record) -> None:
    """Refuse a prediction of another trial, commit or machine, and a measurement of another problem."""
    command, asked = (
        "" if prediction.provenance is None else prediction.provenance.command,
        shlex.join(predicting(trial)),
    )
    if command != asked:
        raise InputError(f"{kept.predicted} is of `{command}`, and `{asked}` is asked: take another folder")
    if (made_by := _commit(prediction)) != (here := provenance([]).versions.get("commit", "")):
        raise InputError(
            f"{kept.predicted} was predicted by commit {made_by or 'unknown'}, and this is {here or 'unknown'}: "
            "take another folder"
        )
    if prediction.machine is None or prediction.machine.sha256 != machine.sha256:
        raise InputError(
            f"{kept.predicted} was predicted on another machine.toml than lies beside it: take another folder"
        )
    if kept.measured.exists():
        try:
            check_same_problem(prediction, load_record(kept.measured))
        except InputError as error:
            raise InputError(f"{kept.measured}: {error}") from None


def _commit(record: Record) -> str:
    return "" if record.provenance is None else record.provenance.versions.get("commit", "")


def _slug(words: str) -> str:
    """Words as part of a file's name.

    >>> _slug("--grid z=2,x=2 --overlap oar")
    'grid-z=2,x=2-overlap-oar'
    """
    return re.sub(r"[^\w=,.]+", "-", words).strip("-")
