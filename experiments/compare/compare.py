"""`quadrille compare PREDICTED MEASURED`: two records, or two folders of records paired by problem."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.chrome_trace import write_chrome_trace
from quadrille.algorithms.formats.input_files import is_file, is_folder
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.compare import comparison_figures
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.compare.comparison import SCHEMA, Comparison, FileNames
from quadrille.experiments.compare.comparison_tables import cases_tables, comparison_tables
from quadrille.experiments.compare.drift import busy_sentence
from quadrille.experiments.compare.problem import problem_label
from quadrille.experiments.compare.record_folders import CASES_SCHEMA, compare_folders
from quadrille.experiments.compare.record_timelines import load_timelines, timeline_path
from quadrille.experiments.import_.file_kinds import refusal
from quadrille.experiments.import_.trace_files import trace_paths
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import print_tables
from quadrille.runtime.host.console import remark, remark_all

MEASURED_FILES = "a measured record, a training log, or a profiler's trace is accepted"


def compare(
    predicted: str,
    measured: str = "",
    *more: str,
    value: str = "",
    json: str = "",
    figure: str = "",
    trace: str = "",
    timelines: tuple[str, str] | None = None,
    command: Sequence[str] = (),
) -> None:
    """Prints the comparison of two records or two folders of records, and writes the requested files.

    Parameters
    ----------
    predicted, measured : paths of two records, or of two folders of records; or a record, and a training log, a
        profiler's trace or a folder of traces
    more : traces of further ranks
    value : measured time or rate of a training step as text, in place of `measured`
    json : path of the JSON file; `-` for stdout, which then has nothing else
    figure : path of the picture (png, svg, pdf)
    trace : path of a Chrome trace with both timelines
    timelines : paths of both timelines, predicted first; by default NAME.timeline.json next to the records NAME.json
    command : words of the command line, for provenance

    Raises
    ------
    InputError : records that cannot be read or compared, or a path that cannot be written
    """
    if bool(measured) == bool(value):
        raise InputError("compare needs one measurement: MEASURED, a file or folder, or --measured VALUE")
    _check_content(predicted, "PREDICTED is a record of quadrille simulate --json FILE")
    if measured and (traces := trace_paths((measured, *more))):
        _report_traces(predicted, traces, Destinations(json=json, trace=trace, plot=figure), command)
        return
    if more:
        raise InputError(
            f"{more[0]}: only traces of profilers may be several files; {measured} and it are needed as traces"
        )
    if value or _is_log(measured):
        if timelines:
            raise InputError("--timelines: a measured step has no timeline: leave it out")
        _compare_with_steps(predicted, measured, value, Destinations(json, trace=trace, plot=figure), command)
        return
    _compare_records(predicted, measured, Destinations(json=json, trace=trace, plot=figure), timelines, command)


def _compare_records(
    predicted: str, measured: str, destinations: Destinations, timelines: tuple[str, str] | None, command: Sequence[str]
) -> None:
    """Prints the comparison of two records or of two folders, and writes the requested files."""
    inputs = {"PREDICTED": predicted, "MEASURED": measured}
    inputs |= dict(zip(("PREDICTED's timeline", "MEASURED's timeline"), timelines or (), strict=False))
    destinations.check(inputs)
    if timelines and not destinations.plot and not destinations.trace:
        raise InputError("--timelines is given without --plot and --trace: one to show them in is needed")
    folders = [is_folder(path) for path in (predicted, measured)]
    if not any(folders):
        _check_content(measured, MEASURED_FILES)
        _report_files(predicted, measured, destinations, timelines, provenance(command))
        return
    if not all(folders):
        raise InputError(
            f"{predicted} and {measured}: two records, two folders of records, or a record and a folder that has no "
            "files but traces, are needed"
        )
    if timelines or destinations.trace:
        flag = "--timelines" if timelines else "--trace"
        raise InputError(f"{flag} goes with two records, not with two folders")
    _report_folders(Path(predicted), Path(measured), destinations, provenance(command))


def _check_content(path: str, accepted: str) -> None:
    """Raises InputError for a file that is none of ours."""
    if is_file(path) and (error := refusal(path, accepted)):
        raise error


def _is_log(path: str) -> bool:
    """Whether the measured side is the log of a training program."""
    from quadrille.experiments.import_.training_logs import is_training_log

    return is_file(path) and is_training_log(path)


def _compare_with_steps(predicted: str, log: str, value: str, to: Destinations, command: Sequence[str]) -> None:
    """Prints the comparison of a record with the steps of a log, or with one value."""
    from quadrille.experiments.compare.compare_steps import parse_measured, report_steps
    from quadrille.experiments.import_.training_logs import read_training_log

    to.check({"PREDICTED": predicted, "MEASURED": log})
    if to.plot or to.trace:
        raise InputError(
            f"--{'plot' if to.plot else 'trace'}: a measured step has no ops and no timeline: leave it out"
        )
    report_steps(predicted, parse_measured(value) if value else read_training_log(log), to, provenance(command))


def _report_traces(predicted: str, traces: Sequence[str], to: Destinations, command: Sequence[str]) -> None:
    """Prints a record beside the traces of a profiler."""
    from quadrille.experiments.compare.trace_report import report_traces

    to.check({"PREDICTED": predicted, **{f"TRACE {number}": path for number, path in enumerate(traces)}})
    if to.plot or to.trace:
        raise InputError(f"--{'plot' if to.plot else 'trace'}: goes with two records, not with a profiler's trace")
    report_traces(predicted, traces, to.json, provenance(command))


def compare_files(predicted: str | Path, measured: str | Path) -> Comparison:
    """The comparison of two record files."""
    predicted_record, measured_record = load_record(predicted), load_record(measured)
    comparison = compare_records(predicted_record, measured_record)
    return msgspec.structs.replace(comparison, files=FileNames(str(predicted), str(measured)))


def _report_files(
    predicted: str, measured: str, to: Destinations, timeline_paths: tuple[str, str] | None, origin: Provenance
) -> None:
    """Writes one comparison to the requested files, and prints its tables unless a file is stdout."""
    comparison = msgspec.structs.replace(compare_files(predicted, measured), provenance=origin)
    if to.plot or to.trace:
        timelines = load_timelines(predicted, measured, timeline_paths, comparison.problem.ranks)
        if to.trace:
            _write_trace(comparison, to.trace, timelines)
        if to.plot:
            _draw_comparison(comparison, to.plot, timelines)
    if to.json:
        schema_files.write_json(to.json, comparison, SCHEMA)
    if not to.to_stdout:
        print_tables(*comparison_tables(comparison))
    remark_all(comparison.remarks)
    _remark_busy([comparison])


def _report_folders(predicted: Path, measured: Path, to: Destinations, origin: Provenance) -> None:
    """Writes all comparisons of two folders to the requested files, and prints them unless a file is stdout."""
    comparison = msgspec.structs.replace(compare_folders(predicted, measured), provenance=origin)
    if to.plot:
        comparison_figures.draw_cases(comparison.comparisons, to.plot, title="makespans, predicted against measured")
    if to.json:
        schema_files.write_json(to.json, comparison, CASES_SCHEMA)
    if not to.to_stdout:
        print_tables(*cases_tables(comparison))
    remark_all(comparison.remarks)
    for pair in comparison.comparisons:
        remark_all(f"{problem_label(pair.problem)}: {line}" for line in pair.remarks)
    _remark_busy(comparison.comparisons)


def _remark_busy(comparisons: Sequence[Comparison]) -> None:
    """Prints one remark for all comparisons if the machine was busy."""
    if sentence := busy_sentence([comparison.drift for comparison in comparisons]):
        remark(sentence)


def _draw_comparison(comparison: Comparison, figure: str, timelines: tuple[Timeline, Timeline] | None) -> None:
    title = problem_label(comparison.problem)
    if timelines is None:
        remark("no timelines beside both records: the figure shows bars by op")
        comparison_figures.draw_ops(comparison, figure, title=title)
    else:
        comparison_figures.draw_timelines(*timelines, figure, title=title)


def _write_trace(comparison: Comparison, path: str, timelines: tuple[Timeline, Timeline] | None) -> None:
    """Writes both timelines as one trace, the measured ranks below the predicted ranks.

    Raises
    ------
    InputError : there are no timelines
    """
    if timelines is None:
        assert comparison.files is not None
        names = " and ".join(map(timeline_path, (comparison.files.predicted, comparison.files.measured)))
        raise InputError(
            f"--trace {path}: there are no timelines {names}: make them by --timeline, or name them by --timelines"
        )
    timeline_paths = [
        replace(timeline, name=f"{timeline.kind} {comparison.problem.algorithm}") for timeline in timelines
    ]
    write_chrome_trace(path, timeline_paths, comparison.provenance)
