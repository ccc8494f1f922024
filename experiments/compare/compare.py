"""`quadrille compare PREDICTED MEASURED`: two records, or two folders of records paired by problem."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.chrome_trace import write_chrome_trace
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.compare import figures
from quadrille.experiments.compare.cases import CASES_SCHEMA, compare_folders
from quadrille.experiments.compare.comparison import SCHEMA, Comparison, FileNames
from quadrille.experiments.compare.comparison_tables import cases_tables, comparison_tables
from quadrille.experiments.compare.drift import busy_sentence
from quadrille.experiments.compare.problem import label
from quadrille.experiments.compare.side_by_side import compare_records
from quadrille.experiments.compare.timelines import timeline_beside, timelines_of
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import print_tables
from quadrille.runtime.host.console import remark, remark_all


def compare(
    predicted: str,
    measured: str,
    *,
    json: str = "",
    figure: str = "",
    trace: str = "",
    timelines: tuple[str, str] | None = None,
    command: Sequence[str] = (),
) -> None:
    """Prints the comparison of two records or two folders of records, and writes the requested files.

    Parameters
    ----------
    json : a file for the comparison, or `-`: then nothing else goes to stdout
    figure : a file for the picture (png, svg, pdf)
    trace : a file for both timelines as one Chrome trace
    timelines : files of both timelines, predicted first; by default NAME.timeline.json beside the records NAME.json
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : records cannot be read or compared, or a path cannot be written
    """
    inputs = {"PREDICTED": predicted, "MEASURED": measured}
    inputs |= dict(zip(("PREDICTED's timeline", "MEASURED's timeline"), timelines or (), strict=False))
    destinations = Destinations(json=json, trace=trace, plot=figure)
    destinations.check(inputs)
    if timelines and not figure and not trace:
        raise InputError("--timelines is given without --plot and --trace: one to show them in is needed")
    folders = [Path(path).is_dir() for path in (predicted, measured)]
    if not any(folders):
        _report_files(predicted, measured, destinations, timelines, provenance(command))
        return
    if not all(folders):
        raise InputError(f"{predicted} and {measured}: two records or two folders of records are needed")
    if timelines or trace:
        flag = "--timelines" if timelines else "--trace"
        raise InputError(f"{flag} goes with two records, not with two folders")
    _report_folders(Path(predicted), Path(measured), destinations, provenance(command))


def compare_files(predicted: str | Path, measured: str | Path) -> Comparison:
    """The comparison of two record files."""
    predicted_record, measured_record = load_record(predicted), load_record(measured)
    compared = compare_records(predicted_record, measured_record)
    return msgspec.structs.replace(compared, files=FileNames(str(predicted), str(measured)))


def _report_files(
    predicted: str, measured: str, to: Destinations, named: tuple[str, str] | None, origin: Provenance
) -> None:
    """Writes one comparison to the requested files, and prints its tables unless a file is stdout."""
    compared = msgspec.structs.replace(compare_files(predicted, measured), provenance=origin)
    if to.plot or to.trace:
        timelines = timelines_of(predicted, measured, named, compared.problem.ranks)
        if to.trace:
            _trace(compared, to.trace, timelines)
        if to.plot:
            _draw(compared, to.plot, timelines)
    if to.json:
        schema_files.write_json(to.json, compared, SCHEMA)
    if not to.to_stdout:
        print_tables(*comparison_tables(compared))
    remark_all(compared.remarks)
    _remark_busy([compared])


def _report_folders(predicted: Path, measured: Path, to: Destinations, origin: Provenance) -> None:
    """Writes all comparisons of two folders to the requested files, and prints them unless a file is stdout."""
    compared = msgspec.structs.replace(compare_folders(predicted, measured), provenance=origin)
    if to.plot:
        figures.draw_cases(compared.comparisons, to.plot, title="makespans, predicted against measured")
    if to.json:
        schema_files.write_json(to.json, compared, CASES_SCHEMA)
    if not to.to_stdout:
        print_tables(*cases_tables(compared))
    remark_all(compared.remarks)
    for comparison in compared.comparisons:
        remark_all(f"{label(comparison.problem)}: {line}" for line in comparison.remarks)
    _remark_busy(compared.comparisons)


def _remark_busy(comparisons: Sequence[Comparison]) -> None:
    """Says once for all comparisons that the machine was busy."""
    if sentence := busy_sentence([comparison.drift for comparison in comparisons]):
        remark(sentence)


def _draw(compared: Comparison, figure: str, timelines: tuple[Timeline, Timeline] | None) -> None:
    title = label(compared.problem)
    if timelines is None:
        remark("no timelines beside both records: the figure shows bars by op")
        figures.draw_ops(compared, figure, title=title)
    else:
        figures.draw_timelines(*timelines, figure, title=title)


def _trace(compared: Comparison, path: str, timelines: tuple[Timeline, Timeline] | None) -> None:
    """Writes both timelines as one trace, the measured ranks under the predicted ones.

    Raises
    ------
    InputError : there are no timelines
    """
    if timelines is None:
        assert compared.files is not None
        names = " and ".join(map(timeline_beside, (compared.files.predicted, compared.files.measured)))
        raise InputError(
            f"--trace {path}: there are no timelines {names}: make them by --timeline, or name them by --timelines"
        )
    named = [replace(timeline, name=f"{timeline.kind} {compared.problem.algorithm}") for timeline in timelines]
    write_chrome_trace(path, named, compared.provenance)
