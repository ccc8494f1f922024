"""The record and the timeline of an experiment, to where they were asked for, or else as a table on stdout."""

from dataclasses import replace

from algorithms.formats.record import Record, save_record
from algorithms.grid import Grid
from algorithms.timelines.timeline import Timeline
from studies.destinations import Destinations, parse_ranks
from studies.experiments.record_table import print_record


def write_results(destinations: Destinations, made: Record, timeline: Timeline) -> None:
    """Writes the record and the timeline to where they were asked for, or else prints a table of the record."""
    from algorithms.formats.chrome_trace import write_chrome_trace
    from algorithms.formats.timeline_files import save_timeline

    named = replace(timeline, name=f"{made.kind} {made.algorithm}", provenance=made.provenance)
    if destinations.ranks:
        named = named.expanded(Grid(**made.grid, order=made.order), parse_ranks(destinations.ranks, made.ranks))
    if destinations.trace:
        write_chrome_trace(destinations.trace, [named], made.provenance)
    if destinations.timeline:
        save_timeline(named, destinations.timeline)
    if destinations.json:
        save_record(made, destinations.json)
    if not destinations.to_stdout:
        print_record(made)
