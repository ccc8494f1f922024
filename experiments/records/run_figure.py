"""The figure of a run: its timeline, with the workload, the machine and the time in the title."""

from typing import TYPE_CHECKING

from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.timelines.timeline_figure import QUESTION, timeline_figure
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.records.record_table import title_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 8000
"""Most bars of a figure; shorter ones are joined."""


def draw_run(record: Record, timeline: Timeline, path: str) -> None:
    """Writes the figure of a run's timeline."""
    write_figure(run_figure(record, timeline), path)


def run_figure(record: Record, timeline: Timeline) -> "Figure":
    """The figure of a run's timeline."""
    return timeline_figure(timeline, most_bars=MOST_BARS, question=QUESTION, setting=run_setting(record))


def run_setting(record: Record) -> str:
    """The workload, the machine and the time of a record, in one line."""
    machine = f", on {record.machine.name}" if record.machine else ""
    return f"{title_line(record)}{machine}: {format_seconds(record.seconds)}"
