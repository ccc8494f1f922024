"""The section of the critical path: a lane of its segments in time, and the table of the longest."""

from collections.abc import Iterator, Sequence

from quadrille.algorithms.formats.record import PathSegment
from quadrille.algorithms.units import format_seconds, time_unit
from quadrille.experiments.explain.explain import longest_segments
from quadrille.experiments.explain.explanation import Explanation
from quadrille.experiments.output.tables import duration, percent
from quadrille.experiments.records.path_segments import PARTS, joined_by_op
from quadrille.experiments.report.charts import spans
from quadrille.experiments.report.elements import Chart, Section, Table
from quadrille.experiments.report.timeline_chart import Rectangle, csv_of, merged


def path_section(explanation: Explanation) -> Iterator[Section]:
    """The section of the critical path; none if it is unknown."""
    path = explanation.critical_path
    if not path:
        return
    rectangles, causes = _rectangles(path)
    shown = merged(rectangles, explanation.seconds)
    unit = time_unit([explanation.seconds])
    spec = spans(causes, csv_of(shown, causes, causes, unit), causes, f"time [{unit.name}]")
    by_op = joined_by_op(path)
    longest = max(by_op, key=lambda segment: segment.seconds)
    label = (
        f"The chain of {len(path):,} stretches that determines the end, each on the row of its largest cause; "
        f"{longest.op} takes most of it, {format_seconds(longest.seconds)}."
    )
    table = _segments_table("by op", longest_segments(by_op), explanation.seconds)
    chart = Chart(spec, label, table, zoom="zoom_a")
    tables = []
    if len(by_op) < len(path):
        in_order = longest_segments(path)
        title = f"in order, the {len(in_order)} longest of {len(path):,} stretches"
        tables = [_segments_table(title, in_order, explanation.seconds)]
    yield Section("Critical path", charts=[chart], tables=tables)


def _rectangles(path: Sequence[PathSegment]) -> tuple[list[Rectangle], list[str]]:
    """A rectangle for each segment, one after the other, on the row of its largest cause; and the causes."""
    rectangles, begin = [], 0.0
    for segment in path:
        cause = max(segment.seconds_by_part, key=lambda part: segment.seconds_by_part[part], default="other")
        end = begin + segment.seconds
        name = segment.op if segment.rank is None else f"{segment.op} on rank {segment.rank}"
        rectangles.append(Rectangle(cause, cause, begin, end, name))
        begin = end
    present = {rectangle.category for rectangle in rectangles}
    return rectangles, [part for part in PARTS if part in present]


def _segments_table(title: str, path: Sequence[PathSegment], seconds: float) -> Table:
    parts = [part for part in PARTS if any(segment.seconds_by_part.get(part) for segment in path)]
    rows = [
        (
            segment.op,
            "" if segment.rank is None else str(segment.rank),
            str(segment.count),
            duration(segment.seconds),
            percent(segment.seconds / seconds if seconds else None, signed=False),
            *(duration(segment.seconds_by_part.get(part, 0.0)) for part in parts),
        )
        for segment in path
    ]
    return Table(("op", "rank", "times", "time", "share", *parts), rows, title=f"Critical path {title}", is_folded=True)
