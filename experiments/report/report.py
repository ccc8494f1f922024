"""`quadrille report`: records and answers as one HTML file, which opens from disk without a network.

A record NAME.json has its timeline beside it as NAME.timeline.json.
"""

from collections.abc import Callable, Mapping, Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.input_files import is_file
from quadrille.algorithms.formats.record import OLDER, SCHEMA, load_record
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.provenance import provenance
from quadrille.experiments.compare.record_timelines import timeline_path
from quadrille.experiments.explain.explain import schema_of
from quadrille.experiments.import_.other_files import refusal
from quadrille.experiments.output.destinations import check_paths_differ
from quadrille.experiments.report.elements import Part
from quadrille.experiments.report.page import page_text
from quadrille.experiments.report.record_sections import record_part
from quadrille.experiments.report.scripts import check_packages

ACCEPTED = "the JSON of simulate, run, compare, rank, sweep, explain or collective is accepted"


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


def report(paths: Sequence[str], out: str, command: Sequence[str] = ()) -> None:
    """Writes the report of records and answers.

    Parameters
    ----------
    paths : files, in the order of the page
    out : path of the HTML file
    command : words of the command line, for the foot of the page

    Raises
    ------
    InputError : no file, a file that cannot be read or shown, or a path that cannot be written
    """
    if not paths:
        raise InputError(
            "report needs at least one RECORD: the JSON of simulate, run, compare, rank, sweep or collective"
        )
    check_report(out, {f"RECORD {number}": path for number, path in enumerate(paths, 1)})
    write_report([part_of_file(path) for path in paths], out, command)


def write_report(parts: Sequence[Part], out: str, command: Sequence[str] = ()) -> None:
    """Writes the page of these parts to a file."""
    origin = provenance(command)
    title = parts[0].title if len(parts) == 1 else f"{len(parts)} results"
    version = origin.versions.get("quadrille", "")
    made_by = f"Made by Quadrille {version} on {origin.date}" + (f": {origin.command}" if origin.command else "")
    schema_files.write_text(out, page_text(parts, title=title, made_by=made_by))


def part_of_file(path: str, source: str = "") -> Part:
    """The part of a report about a file.

    Parameters
    ----------
    source : name of the file on the page; by default the path

    Raises
    ------
    InputError : a file that cannot be read, or of a kind that a report does not show
    """
    if error := refusal(path, ACCEPTED):
        raise error
    schema = schema_of(path)
    if schema.startswith("quadrille/") and schema not in MAKERS and not schema.startswith("quadrille/record/"):
        raise InputError(f"{path} has the schema {schema!r:.60}: accepted are {', '.join(MAKERS)}")
    return MAKERS.get(schema, _record_part)(path, source or path)


def _record_part(path: str, source: str) -> Part:
    record = load_record(path)
    beside = timeline_path(path)
    return record_part(record, source, load_timeline(beside) if is_file(beside) else None)


MAKERS: Mapping[str, Callable[[str, str], Part]] = dict.fromkeys((SCHEMA, *OLDER), _record_part)
"""The function that makes the part of a file, by schema."""
