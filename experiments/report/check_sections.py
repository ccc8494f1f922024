"""The part of a report about measured collectives: measured beside expected times, and what would explain a gap."""

from collections.abc import Iterator, Sequence

from quadrille.algorithms.units import format_bytes, format_seconds, time_unit
from quadrille.experiments.check.check import NORMAL, row_cells
from quadrille.experiments.check.checked_log import CheckedLog, CheckedRow
from quadrille.experiments.output.tables import percent
from quadrille.experiments.report.amounts import compact
from quadrille.experiments.report.charts import LEGEND, PAGE_WIDTH
from quadrille.experiments.report.elements import Chart, Part, Section, Spec, Table, sentence
from quadrille.experiments.report.palette import COLOURS
from quadrille.experiments.report.repeat import repeat_section

SIDES = ("expected", "measured")


def check_part(answer: CheckedLog, source: str) -> Part:
    """The part of a report about an answer of `check`.

    Parameters
    ----------
    source : name of the file
    """
    devices = f" of {', '.join(answer.devices)}" if answer.devices else ""
    nodes = f"{answer.nodes} node{'s' if answer.nodes > 1 else ''}"
    title = f"Check of {answer.program} on {answer.ranks} ranks{devices}, {nodes}, beside {answer.machine}"
    largest = answer.by_size[0]
    sections = [_times_section(answer), *_causes_section(answer), repeat_section(answer.provenance)]
    points = [
        sentence(f"{sizes.sizes} {sizes.others} of {sizes.count} sizes differ; the median ratio is {sizes.ratio:.2f}")
        for sizes in answer.by_size
    ]
    points += [] if answer.explanations or _is_normal(answer) else ["No simulated cause comes near the measured times."]
    return Part(title, _verdict(answer), points, sections, source, f"{largest.ratio:.2f} of expected")


def _is_normal(answer: CheckedLog) -> bool:
    return all(sizes.verdict == NORMAL for sizes in answer.by_size)


def _verdict(answer: CheckedLog) -> str:
    """The verdict of each range of sizes, and the likeliest cause of a gap."""
    ranges = ", ".join(
        f"{sizes.verdict} {sizes.sizes}" + (f" ({sizes.ratio:.2f} times the time)" if sizes.verdict != NORMAL else "")
        for sizes in answer.by_size
    )
    likeliest = answer.explanations[0].cause.partition(", or ")[0] if answer.explanations else ""
    return f"The collectives are {ranges}" + (f"; the likeliest cause: {likeliest}." if likeliest else ".")


def _times_section(answer: CheckedLog) -> Section:
    """The chart and the table of the times by size."""
    kinds = list(dict.fromkeys(row.kind for row in answer.rows))
    worst = max(answer.rows, key=lambda row: max(row.ratio, 1 / row.ratio if row.ratio else 0.0))
    label = (
        f"Measured time (circles) beside the time that the machine should have (diamonds), over the size. The largest "
        f"difference is at {format_bytes(worst.bytes)}: {format_seconds(worst.measured_seconds)} instead of "
        f"{format_seconds(worst.expected_seconds)}."
    )
    columns = ("collective", "size", "measured", "expected", "ratio", "measured bus", "expected bus", "verdict")
    table = Table(columns, list(row_cells(answer)))
    return Section("Measured and expected", charts=[Chart(_times_spec(answer.rows, len(kinds) > 1), label, table)])


def _times_spec(rows: Sequence[CheckedRow], several: bool) -> Spec:
    """Lines of time over size on logarithmic axes, dashed by collective if there are several."""
    unit = time_unit(row.measured_seconds for row in rows)
    values = [
        {
            "bytes": row.bytes,
            "size": format_bytes(row.bytes),
            "side": side,
            "kind": row.kind,
            "v": compact(unit.number(seconds)),
        }
        for row in rows
        for side, seconds in zip(SIDES, (row.expected_seconds, row.measured_seconds), strict=True)
        if row.bytes > 0 and seconds > 0
    ]
    colour = {"field": "side", "type": "nominal", "legend": LEGEND}
    colours = {**colour, "scale": {"domain": list(SIDES), "range": [COLOURS[0], COLOURS[3]]}}
    shapes = {**colour, "scale": {"domain": list(SIDES), "range": ["diamond", "circle"]}}
    dashes = {"strokeDash": {"field": "kind", "type": "nominal", "legend": LEGEND}} if several else {}
    return {
        **PAGE_WIDTH,
        "height": 320,
        "data": {"values": values},
        "encoding": {
            "x": {
                "field": "bytes",
                "type": "quantitative",
                "title": "size",
                "scale": {"type": "log", "base": 2},
                "axis": {"values": sorted({row.bytes for row in rows if row.bytes > 0}), "labelExpr": SIZE_LABEL},
            },
            "y": {"field": "v", "type": "quantitative", "title": f"time [{unit.name}]", "scale": {"type": "log"}},
            "color": colours,
            "tooltip": [{"field": name} for name in ("kind", "size", "side", "v")],
        },
        "layer": [
            {"mark": "line", "encoding": dashes},
            {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1}, "encoding": {"shape": shapes}},
        ],
    }


SIZE_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '.3~g') + ' KiB' : datum.value + ' B'"
)
"""The text of a size on an axis, as an expression of Vega."""


def _causes_section(answer: CheckedLog) -> Iterator[Section]:
    """What would explain the gap; none if all is as expected."""
    if answer.explanations:
        rows = [(each.cause, each.try_it, percent(each.distance, signed=False)) for each in answer.explanations]
        table = Table(
            ("cause, the likeliest first", "flag that shows it", "error beside the measured times"), rows, names=2
        )
        yield Section("What would explain it", tables=[table])
