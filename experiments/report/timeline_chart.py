"""The chart of a timeline: a row for each lane of a few ranks, with neighbouring short spans merged.

A row of a chart is some thousand pixels wide, so spans that are shorter than a pixel are drawn together: a merged
rectangle keeps the category of its spans, and its name says how many they are.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.units import TimeUnit, time_unit
from quadrille.experiments.output.tables import duration
from quadrille.experiments.report.charts import spans
from quadrille.experiments.report.elements import Chart, Table

MOST_RANKS = 8
"""Number of ranks with a row of their own."""
MOST_RECTANGLES = 800
"""Number of rectangles of a chart; 20 such charts stay below 2 MB."""
FINEST = 2000
"""Number of parts of the makespan; spans that are shorter than a part are merged with equal neighbours."""
MOST_CATEGORIES = 8
WAITING, OTHERS = "waiting for other ranks", "others"


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle of the chart: begin and end [s] on a row, its category, and the names of its spans."""

    row: str
    category: str
    begin: float
    end: float
    name: str
    spans: int = 1

    @property
    def label(self) -> str:
        return self.name if self.spans == 1 else f"{self.spans} spans, the first {self.name}"


def timeline_chart(timeline: Timeline, activities: Mapping[str, str]) -> Chart:
    """The chart of a timeline.

    Parameters
    ----------
    activities : category of each op, by name
    """
    every = sorted({span.rank for span in timeline.spans})
    ranks = evenly_chosen(every, MOST_RANKS)
    chosen = set(ranks)
    shown = replace(timeline, spans=tuple(span for span in timeline.spans if span.rank in chosen)).unrolled()
    rectangles = merged(list(_rectangles(shown.spans, activities, timeline.start)), timeline.makespan)
    seconds: dict[str, float] = defaultdict(float)
    for rectangle in rectangles:
        seconds[rectangle.category] += rectangle.end - rectangle.begin
    categories = _named_categories(seconds)
    unit = time_unit([timeline.makespan])
    rows = sorted({rectangle.row for rectangle in rectangles}, key=_row_order)
    spec = spans(rows, csv_of(rectangles, rows, categories, unit), categories, f"time [{unit.name}]")
    return Chart(
        spec, _label(timeline, ranks, len(rectangles), len(shown.spans)), _table(rectangles, rows), zoom="zoom_a"
    )


def evenly_chosen(values: Sequence[int], most: int) -> list[int]:
    """At most `most` of the values, evenly spread, the first and the last among them.

    >>> evenly_chosen(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(values) <= most:
        return list(values)
    return [values[number * (len(values) - 1) // (most - 1)] for number in range(most)]


def _rectangles(every: Iterable[Span], activities: Mapping[str, str], start: float) -> Iterable[Rectangle]:
    """The rectangles of spans: the wait for the last member of the group, then the work."""
    for span in every:
        row = f"rank {span.rank}, {span.lane}"
        begin, end = span.start - start, span.end - start
        work = begin + span.waiting_seconds
        if work > begin:
            yield Rectangle(row, WAITING, begin, work, span.op)
        if end > work:
            yield Rectangle(row, activities.get(span.op, OTHERS), work, end, span.op)


def merged(rectangles: Sequence[Rectangle], makespan: float) -> list[Rectangle]:
    """The rectangles, with equal neighbours merged until there are few enough.

    Parameters
    ----------
    makespan : length of the axis of time [s]
    """
    by_row: dict[str, list[Rectangle]] = defaultdict(list)
    for rectangle in sorted(rectangles, key=lambda each: (each.begin, each.end)):
        by_row[rectangle.row].append(rectangle)
    fewest, parts = list(rectangles), FINEST
    while len(fewest) > MOST_RECTANGLES and parts >= 2:
        fewest = [part for row in by_row.values() for part in _merged_row(row, makespan / parts)]
        parts //= 2
    return fewest


def _merged_row(row: Sequence[Rectangle], shortest: float) -> list[Rectangle]:
    """The rectangles of a row; short ones of one category join the rectangle of their slice of time.

    Parameters
    ----------
    shortest : length of a slice [s]; longer rectangles stay as they are
    """
    kept: list[Rectangle] = []
    open_slices: dict[tuple[int, str], int] = {}
    joined: dict[int, tuple[float, int]] = {}
    for rectangle in row:
        if rectangle.end - rectangle.begin >= shortest:
            kept.append(rectangle)
            continue
        key = int(rectangle.begin / shortest), rectangle.category
        place = open_slices.setdefault(key, len(kept))
        if place == len(kept):
            kept.append(rectangle)
            continue
        end, count = joined.get(place) or (kept[place].end, kept[place].spans)
        joined[place] = end + (rectangle.end - rectangle.begin), count + rectangle.spans
    for place, (end, count) in joined.items():
        kept[place] = replace(kept[place], end=end, spans=count)
    return kept


def _named_categories(seconds: Mapping[str, float]) -> list[str]:
    """The categories in the order of their time; the least of too many share the name of the others."""
    names = sorted(seconds, key=lambda name: -seconds[name])
    return names if len(names) <= MOST_CATEGORIES else [*names[: MOST_CATEGORIES - 1], OTHERS]


def csv_of(rectangles: Sequence[Rectangle], rows: Sequence[str], categories: Sequence[str], unit: TimeUnit) -> str:
    """The rectangles as CSV; names are quoted."""
    number_of = {name: number for number, name in enumerate(categories)}
    place_of = {row: place for place, row in enumerate(rows)}
    lines = ["r,a,b,c,n"]
    for rectangle in rectangles:
        number = number_of.get(rectangle.category, len(categories) - 1)
        begin, end = (f"{unit.number(time):.5g}" for time in (rectangle.begin, rectangle.end))
        lines.append(f"{place_of[rectangle.row]},{begin},{end},{number},{_cell(rectangle.label)}")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return '"' + " ".join(text.replace('"', '""').split()) + '"'


def _row_order(row: str) -> tuple[int, bool, str]:
    """The rank, then its lanes, that of computation first."""
    rank, _, lane = row.removeprefix("rank ").partition(", ")
    return int(rank), lane != "compute", lane


def _label(timeline: Timeline, ranks: Sequence[int], rectangles: int, spans_shown: int) -> str:
    who = "every rank" if len(ranks) == timeline.ranks else f"{len(ranks)} of {timeline.ranks:,} ranks"
    merged_text = f"; {spans_shown:,} spans are drawn as {rectangles:,}" if rectangles < spans_shown else ""
    return f"The {timeline.kind} timeline of {who}, a row for each lane{merged_text}."


def _table(rectangles: Sequence[Rectangle], rows: Sequence[str]) -> Table:
    """The busy time of each row by category."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for rectangle in rectangles:
        seconds[rectangle.row, rectangle.category] += rectangle.end - rectangle.begin
    categories = list(dict.fromkeys(category for _, category in seconds))
    cells = [(row, *(duration(seconds[row, name]) for name in categories)) for row in rows]
    return Table(("lane", *categories), cells)
