"""Output of results: writes the record and the timeline of an experiment to files, or prints the record as a table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quadrille.algorithms.formats.record import Record, save_record
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.output.destinations import Destinations

if TYPE_CHECKING:
    from quadrille.algorithms.timelines.counters import Counter


def write_results(
    destinations: Destinations,
    record: Record,
    timeline: Timeline,
    counters: "Callable[[Timeline], Sequence[Counter]] | None" = None,
) -> None:
    """Writes the record and the timeline to the named files; without a file, prints the record as a table.

    Parameters
    ----------
    counters : function that returns the counters of a trace from the timeline that it shows; None for no counters
    """
    named = replace(timeline, name=f"{record.kind} {record.algorithm}", provenance=record.provenance)
    if destinations.ranks:
        named = named.expanded(Grid(**record.grid, order=record.order), destinations.ranks)
    if destinations.trace:
        from quadrille.algorithms.formats.chrome_trace import write_chrome_trace

        shown = named.unrolled()
        write_chrome_trace(destinations.trace, [shown], record.provenance, counters(shown) if counters else ())
    if destinations.plot and destinations.plot_of == "timeline":
        from quadrille.experiments.records.run_figure import draw_run

        draw_run(record, named, destinations.plot)
    if destinations.timeline:
        from quadrille.algorithms.formats.timeline_files import save_timeline

        save_timeline(named, destinations.timeline)
    if destinations.json:
        save_record(record, destinations.json)
    if not destinations.to_stdout:
        from quadrille.experiments.records.record_table import print_record

        print_record(record, destinations.detail)
