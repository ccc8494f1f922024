"""The record and the timeline of an experiment, to where they were asked for, or else as a table on stdout."""

from dataclasses import replace

from quadrille.algorithms.formats.record import Record, save_record
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.output.destinations import Destinations


def write_results(destinations: Destinations, made: Record, timeline: Timeline) -> None:
    """Writes the record and the timeline to where they were asked for, or else prints a table of the record."""
    named = replace(timeline, name=f"{made.kind} {made.algorithm}", provenance=made.provenance)
    if destinations.ranks:
        named = named.expanded(Grid(**made.grid, order=made.order), destinations.ranks)
    if destinations.trace:
        from quadrille.algorithms.formats.chrome_trace import write_chrome_trace

        write_chrome_trace(destinations.trace, [named], made.provenance)
    if destinations.timeline:
        from quadrille.algorithms.formats.timeline_files import save_timeline

        save_timeline(named, destinations.timeline)
    if destinations.json:
        save_record(made, destinations.json)
    if not destinations.to_stdout:
        from quadrille.experiments.records.record_table import print_record

        print_record(made, destinations.detail)
