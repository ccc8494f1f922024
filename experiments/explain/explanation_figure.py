"""The figure of an explanation: time by cause, memory by kind, and the timeline next to the record, as far as known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_style import (
    CAUSE_COLOURS,
    MUTED_COLOUR,
    PALETTE,
    legend_below,
    new_figure,
    scale_axis,
    styled,
)
from quadrille.algorithms.formats.input_files import is_file, read_bytes
from quadrille.algorithms.formats.record import Record, load_record
from quadrille.algorithms.formats.timeline_files import load_timeline
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.timelines.timeline_figure import draw_timeline, kind_patches, timeline_height
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.compare.record_timelines import timeline_path
from quadrille.experiments.explain.explanation import Explanation, is_link
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.records.run_figure import MOST_BARS, run_setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LISTED = "coloured: the busiest links that the file lists; of links with equal use it may list one"
WHERE = "Where does the time go?"


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar of amounts that add up, by the name of each part."""

    name: str
    amounts: Mapping[str, float] = field(default_factory=dict)


@styled
def stacks_figure(
    times: Sequence[Stack],
    memories: Sequence[Stack],
    *,
    question: str,
    setting: str,
    timeline: Timeline | None = None,
) -> "Figure":
    """The figure of time by cause, and beside it memory by kind if any is known.

    Parameters
    ----------
    times, memories : stacks of seconds by cause, and of bytes by kind
    question, setting : title
    timeline : timeline below the bars; None for none
    """
    filled = [stack for stack in memories if stack.amounts]
    bars = max(len(times), len(filled))
    heights = [1.2 + 0.5 * bars, *([timeline_height(timeline)] if timeline else [])]
    figure = new_figure(12 if filled or timeline else 7, 1.2 + sum(heights), question=question, setting=setting)
    grid = figure.add_gridspec(len(heights), 1 + bool(filled), height_ratios=heights)
    panels = [figure.add_subplot(grid[0, place]) for place in range(1 + bool(filled))]
    draw_stacks(panels[0], times, CAUSE_COLOURS, "s", format_seconds)
    panels[0].set_xlabel("time by cause")
    if filled:
        kinds = dict.fromkeys(kind for stack in filled for kind in stack.amounts)
        colours = {kind: PALETTE[number % len(PALETTE)] for number, kind in enumerate(kinds)}
        draw_stacks(panels[1], filled, colours, "B", lambda amount: format_bytes(round(amount)), hatch="//")
        panels[1].set_xlabel("memory of the fullest rank, by kind (hatched)")
    handles = kind_patches(draw_timeline(figure.add_subplot(grid[1, :]), timeline, MOST_BARS)) if timeline else []
    legend_below(figure, handles=handles, with_axes=True)
    return figure


def draw_stacks(
    axes: "Axes", stacks: Sequence[Stack], colours: Mapping[str, str], unit: str, text: Any, *, hatch: str | None = None
) -> None:
    """Draws a horizontal bar for each stack, the first on top, with its total behind it.

    Parameters
    ----------
    colours : colour of each part
    unit : unit of the amounts
    text : function that returns a total as text
    hatch : pattern of the bars
    """
    places = range(len(stacks))
    ends = [0.0] * len(stacks)
    for part in dict.fromkeys(part for stack in stacks for part in stack.amounts):
        widths = [max(0.0, stack.amounts.get(part, 0.0)) for stack in stacks]
        if any(widths):
            colour = colours.get(part, MUTED_COLOUR)
            axes.barh(places, widths, left=ends, color=colour, label=part, hatch=hatch, edgecolor="white", height=0.6)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
    scale_axis(axes.xaxis, [1.15 * end for end in ends], unit, logarithmic=False)
    axes.set_yticks(places, [stack.name for stack in stacks])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    for place, end in zip(places, ends, strict=True):
        axes.annotate(text(end), (end, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)


def draw_explanation(explanation: Explanation, source: str, path: str) -> None:
    """Writes the figure of an explanation.

    Parameters
    ----------
    source : path of the explained file, which may have its timeline next to it
    path : path of the figure
    """
    record = load_record(source) if explanation.what.endswith("record") else None
    timeline = timeline_path(source)
    write_figure(explanation_figure(explanation, record, load_timeline(timeline) if is_file(timeline) else None), path)


def draw_explained_links(explanation: Explanation, source: str, path: str) -> None:
    """Writes the figure of the links that the explained file names.

    Raises
    ------
    InputError : a file that names no links
    """
    from quadrille.experiments.drawing.links_figure import draw_links
    from quadrille.experiments.records.record_machine import RecordMachine, network_of_answer

    links = {link.link: link.utilisation for link in explanation.links if is_link(link.link)}
    if not links:
        reason = "; ".join(explanation.lacking) or "its ranks use no link"
        raise InputError(f"--plot-of links: {source} names no links: {reason}")
    if explanation.what.endswith("record"):
        record = load_record(source)
        net, setting = RecordMachine.of(record).network, run_setting(record)
    else:
        facts = msgspec.json.decode(read_bytes(source))
        net, machine = network_of_answer(facts), facts.get("machine")
        name = machine.get("name") if isinstance(machine, dict) else machine
        setting = f"{explanation.what} on {name}: {format_seconds(explanation.seconds)}"
    draw_links(links, net, path, setting=f"{setting}; {LISTED if net is not None else 'the busiest links'}")


def explanation_figure(
    explanation: Explanation, record: Record | None = None, timeline: Timeline | None = None
) -> "Figure":
    """The figure of an explanation; with a timeline, the timeline is below the bars."""
    names = ("critical path", "mean rank") if record is not None else ("last to end", "mean")
    path = {str(part): seconds for part, seconds in explanation.path_seconds_by_part.items()}
    mean = {str(part): seconds for part, seconds in explanation.mean_seconds_by_part.items()}
    times = [Stack(name, parts) for name, parts in zip(names, (path, mean), strict=True) if parts]
    memories = [Stack("fullest rank", record.memory_bytes_by_kind or {})] if record is not None else []
    total = f"{explanation.what}: {format_seconds(explanation.seconds)}"
    setting = total if record is None else run_setting(record)
    return stacks_figure(times, memories, question=WHERE, setting=setting, timeline=timeline)
