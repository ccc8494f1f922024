"""`quadrille compare PREDICTED MEASURED`: two records, or two folders of records paired by problem."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from algorithms.errors import InputError
from algorithms.formats import files
from algorithms.formats.chrome_trace import write_chrome_trace
from algorithms.formats.provenance import Provenance, provenance
from algorithms.formats.record import Kind, load_record
from algorithms.formats.timeline_files import load_timeline
from algorithms.timelines.timeline import Timeline
from studies.comparing import figures
from studies.comparing.cases import CASES_SCHEMA, TIMELINE_ENDING, Cases, compare_folders, summarise
from studies.comparing.comparison import SCHEMA, Comparison, FileNames, compare_records, label
from studies.comparing.comparison_tables import cases_tables, comparison_tables
from studies.experiments.results import Destinations
from studies.tables import print_tables

__all__ = ["Cases", "Comparison", "compare", "compare_files", "compare_folders", "compare_records", "summarise"]


def compare(
    predicted: str,
    measured: str,
    *,
    json: str | None = None,
    figure: str | None = None,
    trace: str | None = None,
    timelines: tuple[str, str] | None = None,
) -> None:
    """Prints the comparison of two records, or of two folders of records, and writes what else is asked for.

    Parameters
    ----------
    json : a file for the comparison, or `-`: then nothing else goes to stdout
    figure : a file for the picture (png, svg, pdf)
    trace : a file for both timelines as one Chrome trace
    timelines : files of both timelines, predicted first; by default NAME.timeline.json beside the records NAME.json

    Raises
    ------
    InputError : records that cannot be read or compared, a path that cannot be written
    """
    inputs = {"PREDICTED": predicted, "MEASURED": measured}
    inputs |= dict(zip(("PREDICTED's timeline", "MEASURED's timeline"), timelines or (), strict=False))
    Destinations(json=json or "", trace=trace or "", plot=figure or "").check(inputs)
    if timelines and figure is None and trace is None:
        raise InputError("--timelines is given without --plot and --trace: one to show them in is needed")
    folders = [Path(path).is_dir() for path in (predicted, measured)]
    made = provenance(_command(predicted, measured, json, figure, trace, timelines))
    if any(folders):
        if not all(folders):
            raise InputError(f"{predicted} and {measured}: two records or two folders of records are needed")
        if timelines or trace:
            flag = "--timelines" if timelines else "--trace"
            raise InputError(f"{flag} goes with two records, not with two folders")
        _report_folders(Path(predicted), Path(measured), json, figure, made)
    else:
        _report_files(predicted, measured, Asked(json, figure, trace, timelines), made)


def compare_files(predicted: str | Path, measured: str | Path) -> Comparison:
    """The comparison of two record files."""
    one, other = load_record(predicted), load_record(measured)
    compared = compare_records(one, other)
    return msgspec.structs.replace(compared, files=FileNames(str(predicted), str(measured)))


@dataclass(frozen=True, slots=True)
class Asked:
    """The files that a comparison of two records goes to, and those that its timelines are in, where named."""

    json: str | None
    figure: str | None
    trace: str | None
    timelines: tuple[str, str] | None


def _command(
    predicted: str,
    measured: str,
    json: str | None,
    figure: str | None,
    trace: str | None,
    timelines: tuple[str, str] | None,
) -> list[str]:
    command = ["quadrille", "compare", predicted, measured]
    command += ["--json", json] if json else []
    command += ["--plot", figure] if figure else []
    command += ["--trace", trace] if trace else []
    return [*command, "--timelines", *timelines] if timelines else command


def _report_files(predicted: str, measured: str, asked: Asked, made: Provenance) -> None:
    compared = msgspec.structs.replace(compare_files(predicted, measured), provenance=made)
    if asked.figure is not None or asked.trace is not None:
        timelines = _timelines(predicted, measured, asked.timelines, compared.problem.ranks)
        if asked.trace is not None:
            _trace(compared, asked.trace, timelines)
        if asked.figure is not None:
            _draw(compared, asked.figure, timelines)
    if asked.json is not None:
        files.write_json(asked.json, compared, SCHEMA)
    if files.STDOUT not in (asked.json, asked.trace):
        print_tables(*comparison_tables(compared))
    _remark(compared.remarks)


def _report_folders(predicted: Path, measured: Path, json: str | None, figure: str | None, made: Provenance) -> None:
    compared = msgspec.structs.replace(compare_folders(predicted, measured), provenance=made)
    if figure is not None:
        figures.draw_cases(compared.comparisons, figure, title="makespans, predicted against measured")
    if json is not None:
        files.write_json(json, compared, CASES_SCHEMA)
    if json != files.STDOUT:
        print_tables(*cases_tables(compared))
    _remark(compared.remarks)
    for one in compared.comparisons:
        _remark(f"{label(one.problem)}: {remark}" for remark in one.remarks)


def _remark(remarks: Iterable[str]) -> None:
    for remark in remarks:
        print(f"quadrille: {remark}", file=sys.stderr)


def _draw(compared: Comparison, figure: str, timelines: tuple[Timeline, Timeline] | None) -> None:
    title = label(compared.problem)
    if timelines is None:
        _remark(["no timelines beside both records: the figure shows bars by op"])
        figures.draw_ops(compared, figure, title=title)
    else:
        figures.draw_timelines(*timelines, figure, title=title)


def _trace(compared: Comparison, path: str, timelines: tuple[Timeline, Timeline] | None) -> None:
    """Writes both timelines as one trace, the measured ranks under the predicted ones.

    Raises
    ------
    InputError : there are none
    """
    if timelines is None:
        assert compared.files is not None
        names = " and ".join(map(_timeline_beside, (compared.files.predicted, compared.files.measured)))
        raise InputError(
            f"--trace {path}: there are no timelines {names}: make them by --timeline, or name them by --timelines"
        )
    named = [replace(one, name=f"{one.kind} {compared.problem.algorithm}") for one in timelines]
    write_chrome_trace(path, named, compared.provenance)


def _timelines(
    predicted: str, measured: str, named: tuple[str, str] | None, ranks: int
) -> tuple[Timeline, Timeline] | None:
    """Both timelines, from the files named or from those beside the records; none unless both are there."""
    beside = (_timeline_beside(predicted), _timeline_beside(measured))
    if named is None and not all(Path(path).is_file() for path in beside):
        return None
    one, other = named or beside
    return _load_timeline(one, "predicted", ranks), _load_timeline(other, "measured", ranks)


def _timeline_beside(record: str) -> str:
    """The name of the timeline of a record.

    >>> _timeline_beside("runs/one.json")
    'runs/one.timeline.json'
    """
    return str(Path(record).with_suffix(TIMELINE_ENDING))


def _load_timeline(path: str, kind: Kind, ranks: int) -> Timeline:
    timeline = load_timeline(path)
    if timeline.kind != kind or timeline.ranks != ranks:
        raise InputError(
            f"timeline file {path} is {timeline.kind} on {timeline.ranks} ranks: {kind} on {ranks} ranks is needed"
        )
    return timeline
