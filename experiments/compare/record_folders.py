"""Comparison of two folders of records: records paired by problem, and the errors over all pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import parse_json, read_bytes
from quadrille.algorithms.formats.record import Kind, Record, load_record
from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.compare.comparison import Comparison, FileNames
from quadrille.experiments.compare.error_sizes import ErrorSizes, error_sizes_raw_and_drift_removed
from quadrille.experiments.compare.problem import same_problem_key
from quadrille.experiments.compare.record_timelines import TIMELINE_ENDING

CASES_SCHEMA = "quadrille/comparisons/1"


class ComparisonSummary(ErrorSizes, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The errors of the makespan over all pairs, raw, and with the drift removed if the drift is known."""

    drift_removed: ErrorSizes | None = None


class FolderComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The comparison of two folders of records: a comparison for each pair, and remarks on files without a partner."""

    comparisons: tuple[Comparison, ...]
    summary: ComparisonSummary
    remarks: tuple[str, ...] = ()
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A record and the path of its file."""

    path: Path
    record: Record


def compare_folders(predicted: Path, measured: Path) -> FolderComparison:
    """The comparison of all records of two folders that have the same problem; file names do not matter.

    Several records of one problem are paired in the order of their names; a
    single record is compared with each record of the other folder.

    Parameters
    ----------
    predicted, measured : folders with predicted and with measured records

    Raises
    ------
    InputError : a folder has a broken record, or there is no pair
    """
    predicted_folder, measured_folder = _load_folder(predicted, "predicted"), _load_folder(measured, "measured")
    pairs = _pair_by_problem(predicted_folder.records, measured_folder.records)
    if not pairs:
        raise InputError(
            f"{predicted} has {len(predicted_folder.records)} predicted and "
            f"{measured} {len(measured_folder.records)} measured records, "
            "no two of one problem: at least one pair is needed"
        )
    comparisons = tuple(_compare_pair(*pair) for pair in pairs)
    paired = {str(file.path) for pair in pairs for file in pair}
    without_partner = [
        f"{file.path} has no partner"
        for file in (*predicted_folder.records, *measured_folder.records)
        if str(file.path) not in paired
    ]
    same_folder = predicted.resolve() == measured.resolve()
    omitted = (
        predicted_folder.foreign
        if same_folder
        else (*predicted_folder.foreign, *predicted_folder.others, *measured_folder.foreign, *measured_folder.others)
    )
    return FolderComparison(comparisons, summarise_errors(comparisons), (*omitted, *without_partner))


def summarise_errors(comparisons: Sequence[Comparison]) -> ComparisonSummary:
    """The median, the 90th percentile and the largest of the makespans' relative errors, without signs."""
    raw, removed = error_sizes_raw_and_drift_removed([comparison.seconds for comparison in comparisons])
    return ComparisonSummary(**msgspec.structs.asdict(raw), drift_removed=removed)


@dataclass(frozen=True, slots=True)
class _Folder:
    """The records of one kind in a folder, and remarks on omitted files.

    Parameters
    ----------
    others, foreign : remarks on records of the other kind, and on files that are no records
    """

    records: tuple[RecordFile, ...]
    others: tuple[str, ...]
    foreign: tuple[str, ...]


def _load_folder(folder: Path, kind: Kind) -> _Folder:
    paths = sorted(path for path in folder.glob("*.json") if not path.name.endswith(TIMELINE_ENDING))
    foreign = {path for path in paths if _is_another_file(path)}
    loaded = [RecordFile(path, load_record(path)) for path in paths if path not in foreign]
    return _Folder(
        tuple(file for file in loaded if file.record.kind == kind),
        tuple(f"{file.path} is a {file.record.kind} record, left out" for file in loaded if file.record.kind != kind),
        tuple(f"{path} is no record, left out" for path in sorted(foreign)),
    )


def _is_another_file(path: Path) -> bool:
    """Whether a file is a trace or another file of Quadrille than a record; a folder of records may contain them."""
    try:
        raw = parse_json(read_bytes(path))
    except (OSError, ValueError):
        return False
    if not isinstance(raw, dict):
        return False
    schema = str(raw.get("schema", ""))
    return "traceEvents" in raw or (schema.startswith("quadrille/") and not schema.startswith("quadrille/record/"))


def _pair_by_problem(
    predicted: Sequence[RecordFile], measured: Sequence[RecordFile]
) -> list[tuple[RecordFile, RecordFile]]:
    predicted_files, measured_files = _records_by_problem(predicted), _records_by_problem(measured)
    pairs: list[tuple[RecordFile, RecordFile]] = []
    for key, files_of_problem in predicted_files.items():
        partners = measured_files.get(key, [])
        if len(files_of_problem) == 1 or len(partners) == 1:
            pairs += [(file, partner) for file in files_of_problem for partner in partners]
        else:
            pairs += list(zip(files_of_problem, partners, strict=False))
    return pairs


def _records_by_problem(records: Sequence[RecordFile]) -> dict[bytes, list[RecordFile]]:
    by_problem: dict[bytes, list[RecordFile]] = {}
    for file in records:
        by_problem.setdefault(same_problem_key(file.record), []).append(file)
    return by_problem


def _compare_pair(predicted: RecordFile, measured: RecordFile) -> Comparison:
    names = FileNames(str(predicted.path), str(measured.path))
    try:
        return msgspec.structs.replace(compare_records(predicted.record, measured.record), files=names)
    except InputError as error:
        raise InputError(f"{names.predicted} and {names.measured}: {error}") from None
