"""`quadrille report`: records and answers as one HTML file, which opens from disk without a network.

A record NAME.json has its timeline beside it as NAME.timeline.json.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.input_files import is_file, read_bytes
from quadrille.algorithms.formats.record import Record, load_record
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.check.check import SCHEMA as CHECK
from quadrille.experiments.check.checked_log import CheckedLog
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.compare.comparison import SCHEMA as COMPARISON
from quadrille.experiments.compare.comparison import Comparison
from quadrille.experiments.compare.problem import same_problem_key
from quadrille.experiments.compare.record_folders import CASES_SCHEMA, FolderComparison
from quadrille.experiments.compare.record_timelines import timeline_path
from quadrille.experiments.explain.explain import EXPLAINABLE_SCHEMAS, explain_file, schema_of
from quadrille.experiments.explain.explanation import SCHEMA as EXPLANATION
from quadrille.experiments.explain.explanation import Explanation
from quadrille.experiments.import_.file_kinds import refusal
from quadrille.experiments.output.destinations import check_paths_differ
from quadrille.experiments.predict.roofline import Roofline
from quadrille.experiments.rank.grids_report import GridsAnswer
from quadrille.experiments.rank.ranking import SCHEMA as RANKING
from quadrille.experiments.rank.schemes_report import SchemesAnswer
from quadrille.experiments.report.answer_sections import explained_part, tables_part
from quadrille.experiments.report.check_sections import check_part
from quadrille.experiments.report.comparison_sections import comparison_part, folder_part
from quadrille.experiments.report.elements import Part
from quadrille.experiments.report.page import page_text
from quadrille.experiments.report.prediction_sections import predictions_part
from quadrille.experiments.report.record_sections import record_part
from quadrille.experiments.report.scripts import check_packages
from quadrille.experiments.report.search_sections import ranking_part, sweep_part
from quadrille.experiments.report.study_sections import findings_part
from quadrille.experiments.sweep.sweep_result import SCHEMA as SWEEP
from quadrille.experiments.sweep.sweep_result import Sweep
from quadrille.experiments.sweep.training_study import SCHEMA as FINDINGS
from quadrille.experiments.sweep.training_study import Findings
from quadrille.experiments.what_if.compare_predictions import SCHEMA as PREDICTIONS
from quadrille.experiments.what_if.compare_predictions import Predictions

RooflineOfFile = Callable[[str], Roofline | None] | None
"""A function that returns the roofline of a record, by path, or None if it has none; None for reports without."""
EXPLAINED_RECORDS = ("predicted record", "measured record")
ACCEPTED = "the JSON of simulate, run, compare, rank, sweep, explain or collective is accepted"
FILES_OF_INPUT = ("quadrille/machine/", "quadrille/experiment/", "quadrille/timeline/", "quadrille/topology/")
"""Beginnings of schemas of files that are no answers."""


def check_report(path: str, read: Mapping[str, str], flag: str = "--out") -> None:
    """Checks, before any work, that a report can be written.

    Parameters
    ----------
    path : path of the report
    read : paths of the other files of the command, by flag or by content
    flag : flag that names the report

    Raises
    ------
    InputError : a path that cannot be written or that another flag names, or a missing package
    """
    check_packages()
    if path == schema_files.STDOUT:
        raise InputError(f"{flag} -: a report goes to a file: give a path, such as report.html")
    check_paths_differ({flag: path}, read)
    try:
        schema_files.check_writable(path)
    except InputError as error:
        raise InputError(f"{flag} {error}") from None


def report(paths: Sequence[str], out: str, command: Sequence[str] = (), rooflines: RooflineOfFile = None) -> None:
    """Writes the report of records and answers.

    Parameters
    ----------
    paths : files, in the order of the page
    out : path of the HTML file
    command : words of the command line, for the foot of the page
    rooflines : function that returns the roofline of a record, by path

    Raises
    ------
    InputError : no file, a file that cannot be read or shown, or a path that cannot be written
    """
    if not paths:
        raise InputError(
            "report needs at least one RECORD: the JSON of simulate, run, compare, rank, sweep or collective"
        )
    check_report(out, {f"RECORD {number}": path for number, path in enumerate(paths, 1)})
    write_report(parts_of_files(paths, rooflines=rooflines), out, command)


def write_report(parts: Sequence[Part], out: str, command: Sequence[str] = ()) -> None:
    """Writes the page of these parts to a file."""
    schema_files.write_text(out, report_text(parts, command))


def report_text(parts: Sequence[Part], command: Sequence[str] = ()) -> str:
    """The HTML of the report of these parts.

    Parameters
    ----------
    command : words of the command line, for the foot of the page
    """
    origin = provenance(command)
    title = parts[0].title if len(parts) == 1 else f"{len(parts)} results"
    version = origin.versions.get("quadrille", "")
    made_by = f"Made by Quadrille {version} on {origin.date}" + (f": {origin.command}" if origin.command else "")
    return page_text(parts, title=title, made_by=made_by)


def parts_of_files(
    paths: Sequence[str], names: Mapping[str, str] | None = None, rooflines: RooflineOfFile = None
) -> list[Part]:
    """The parts of a report about these files; predicted and measured records of one problem are compared first.

    Parameters
    ----------
    names : names of files on the page, by path; by default the path
    rooflines : function that returns the roofline of a record, by path

    Raises
    ------
    InputError : a file that cannot be read, or of a kind that a report does not show
    """
    parts, records = [], []
    for path in paths:
        source = (names or {}).get(path, path)
        part, record = _part_of_file(path, source, rooflines)
        parts.append(part)
        records += [(source, record)] if record is not None else []
    return [*_comparisons(records), *parts]


def _part_of_file(path: str, source: str, rooflines: RooflineOfFile) -> tuple[Part, Record | None]:
    """The part of a report about a file, and its record if it is one."""
    if error := refusal(path, ACCEPTED):
        raise error
    schema = schema_of(path)
    if schema == EXPLANATION:
        return _explanation_part(path, source, rooflines), None
    if schema in MAKERS:
        return MAKERS[schema](path, source), None
    if schema.startswith(FILES_OF_INPUT):
        raise InputError(f"{path} has the schema {schema!r:.60}: {ACCEPTED}")
    kind = schema.rpartition("/")[0]
    if readable := [accepted for accepted in (*MAKERS, EXPLANATION) if accepted.rpartition("/")[0] == kind]:
        raise InputError(f"{path} has the schema {schema!r:.60}: this Quadrille reads {' and '.join(readable)}")
    if schema.startswith("quadrille/") and not schema.startswith("quadrille/record/"):
        return tables_part(_facts(path), schema, source), None
    record, beside = load_record(path), timeline_path(path)
    timeline = load_timeline(beside) if is_file(beside) else None
    return record_part(record, source, timeline, rooflines(path) if rooflines else None), record


def _comparisons(records: Sequence[tuple[str, Record]]) -> Iterator[Part]:
    """A comparison of each measured record with the predicted records of its problem."""
    for predicted_name, predicted in records:
        for measured_name, measured in records:
            if (predicted.kind, measured.kind) != ("predicted", "measured") or measured.seconds <= 0:
                continue
            if same_problem_key(predicted) == same_problem_key(measured):
                compared = compare_records(predicted, measured)
                yield comparison_part(compared, f"{predicted_name} and {measured_name}", measured)


def _facts(path: str) -> dict[str, object]:
    """The keys of a JSON file."""
    facts: dict[str, object] = msgspec.json.decode(read_bytes(path))
    return facts


def _comparison_part(path: str, source: str) -> Part:
    compared = schema_files.read(path, Comparison, COMPARISON)
    measured = compared.files.measured if compared.files is not None else ""
    try:
        record = load_record(measured) if measured and is_file(measured) else None
    except InputError:
        record = None
    return comparison_part(compared, source, record)


def _folder_part(path: str, source: str) -> Part:
    return folder_part(schema_files.read(path, FolderComparison, CASES_SCHEMA), source)


def _ranking_part(path: str, source: str) -> Part:
    of_schemes = "analytical_model" in _facts(path)
    answer: Any = schema_files.read(path, SchemesAnswer if of_schemes else GridsAnswer, RANKING)
    return ranking_part(answer, source)


def _sweep_part(path: str, source: str) -> Part:
    return sweep_part(schema_files.read(path, Sweep, SWEEP), source)


def _findings_part(path: str, source: str) -> Part:
    return findings_part(schema_files.read(path, Findings, FINDINGS), source)


def _check_part(path: str, source: str) -> Part:
    return check_part(schema_files.read(path, CheckedLog, CHECK), source)


def _explanation_part(path: str, source: str, rooflines: RooflineOfFile) -> Part:
    explanation = schema_files.read(path, Explanation, EXPLANATION)
    is_record = explanation.file != "" and explanation.what in EXPLAINED_RECORDS and is_file(explanation.file)
    return explained_part(explanation, source, {}, rooflines(explanation.file) if is_record and rooflines else None)


def _predictions_part(path: str, source: str) -> Part:
    return predictions_part(schema_files.read(path, Predictions, PREDICTIONS), source)


def _explained_part(path: str, source: str) -> Part:
    return explained_part(explain_file(path), source, _facts(path))


MAKERS: Mapping[str, Callable[[str, str], Part]] = {
    COMPARISON: _comparison_part,
    CASES_SCHEMA: _folder_part,
    RANKING: _ranking_part,
    SWEEP: _sweep_part,
    FINDINGS: _findings_part,
    CHECK: _check_part,
    PREDICTIONS: _predictions_part,
    **dict.fromkeys(EXPLAINABLE_SCHEMAS, _explained_part),
}
"""The function that makes the part of a file other than a record, by schema."""
