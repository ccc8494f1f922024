"""Vega-Lite specifications of the charts of a report, from plain values.

Colours are CSS variables of the page, so a chart follows the dark, the light and the printed page. The width is that of
the page. No chart says by colour alone: labels, shapes or rows say the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quadrille.experiments.report.elements import Spec

COLOURS = tuple(f"var(--c{number})" for number in range(1, 9))
"""The palette, as variables of the page's style sheet.  Source: Okabe, Ito, "Color universal design", 2008."""
INK = "var(--ink)"
LABELLED_SHARE = 0.09
"""Share of a bar from which a segment has its name above it."""
LEGEND: Spec = {"orient": "bottom", "title": None, "columns": {"expr": "max(1, floor(width / 230))"}}
ROW_HEIGHT = 20
"""Height of a row of a chart [pixels]."""
PAGE_WIDTH: Spec = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def time_unit(seconds: float) -> tuple[float, str]:
    """The factor from seconds to the unit in which a time has at most a few digits before the point, and the unit.

    >>> time_unit(4.04), time_unit(0.012), time_unit(3e-6)
    ((1.0, 's'), (1000.0, 'ms'), (1000000.0, 'us'))
    """
    if seconds >= 1 or seconds <= 0:
        return 1.0, "s"
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")


def memory_unit(size: float) -> tuple[float, str]:
    """The factor from bytes to the unit in which a size is well read, and the unit.

    >>> memory_unit(3e10), memory_unit(5e6), memory_unit(11)
    ((1e-09, 'GB'), (1e-06, 'MB'), (1.0, 'B'))
    """
    return (1e-9, "GB") if size >= 1e9 else (1e-6, "MB") if size >= 1e6 else (1.0, "B")


def compact(value: float) -> float:
    """A number with five significant digits, which no chart shows more of."""
    return float(f"{value:.5g}")


def stacked_bars(bars: Mapping[str, Mapping[str, float]], unit: str, *, limit: tuple[float, str] | None = None) -> Spec:
    """A bar for each name, with a segment for each positive part; parts keep their colours in all bars.

    Parameters
    ----------
    bars : value of each part, by bar, in the unit
    unit : title of the axis
    limit : value at which a line is drawn across the bars, and the text beside the line
    """
    domain = list(dict.fromkeys(part for parts in bars.values() for part, value in parts.items() if value > 0))
    values, labels = [], []
    for bar, parts in bars.items():
        total, begin = sum(value for value in parts.values() if value > 0), 0.0
        for part, value in parts.items():
            if value <= 0:
                continue
            end = begin + value
            share = value / total
            values.append({"bar": bar, "part": part, "a": compact(begin), "b": compact(end), "v": compact(value)})
            if share >= LABELLED_SHARE:
                labels.append({"bar": bar, "a": compact(begin), "text": f"{part} {100 * share:.0f} %"})
            begin = end
    y = {"field": "bar", "type": "nominal", "sort": list(bars), "title": None, "axis": {"labelLimit": 130}}
    layers: list[Spec] = [
        {
            "data": {"values": values},
            "mark": {"type": "bar", "height": 22, "stroke": "var(--page)", "strokeWidth": 1},
            "encoding": {
                "y": y,
                "x": {"field": "a", "type": "quantitative", "title": unit},
                "x2": {"field": "b"},
                "color": _categories("part", domain),
                "tooltip": [{"field": "part"}, {"field": "v", "type": "quantitative", "title": unit}],
            },
        },
        {
            "data": {"values": labels},
            "mark": {"type": "text", "align": "left", "dy": -18, "fontSize": 10, "color": INK, "limit": 150},
            "encoding": {"y": y, "x": {"field": "a", "type": "quantitative"}, "text": {"field": "text"}},
        },
    ]
    if limit is not None:
        layers += _limit_line(*limit)
    return {**PAGE_WIDTH, "height": 52 * len(bars), "layer": layers}


def _limit_line(value: float, text: str) -> list[Spec]:
    """A dashed line across all bars, with its text."""
    line = {"values": [{"x": compact(value), "text": text}]}
    x = {"field": "x", "type": "quantitative"}
    return [
        {"data": line, "mark": {"type": "rule", "color": INK, "strokeDash": [4, 3]}, "encoding": {"x": x}},
        {
            "data": line,
            "mark": {"type": "text", "align": "right", "dx": -4, "dy": 20, "color": INK, "fontSize": 10},
            "encoding": {"x": x, "text": {"field": "text"}},
        },
    ]


def _categories(field: str, domain: Sequence[str]) -> Spec:
    """The colour of a category; the legend says the colour of each."""
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(domain))]
    return {"field": field, "type": "nominal", "scale": {"domain": list(domain), "range": colours}, "legend": LEGEND}


def bars(values: Mapping[str, float], unit: str) -> Spec:
    """A horizontal bar for each name, with its value at the end."""
    rows = [{"name": name, "v": compact(value), "end": compact(max(0.0, value))} for name, value in values.items()]
    y = {"field": "name", "type": "nominal", "sort": list(values), "title": None, "axis": {"labelLimit": 130}}
    x = {"field": "v", "type": "quantitative", "title": unit}
    return {
        **PAGE_WIDTH,
        "height": 28 * len(values),
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "bar", "color": COLOURS[0], "height": 16},
                "encoding": {"y": y, "x": x, "tooltip": [{"field": "name"}, {"field": "v", "title": unit}]},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "color": INK},
                "encoding": {"y": y, "x": {**x, "field": "end"}, "text": {"field": "v", "format": ".4~g"}},
            },
        ],
    }


def spans(rows: Sequence[str], values: str, categories: Sequence[str], unit: str) -> Spec:
    """A rectangle for each span of time, on its row; drag to move, wheel with Shift or Ctrl to zoom.

    Parameters
    ----------
    rows : names of the rows, from the top
    values : CSV with the columns r (number of the row), a and b (begin and end), c (number of the category), n (name)
    categories : names of the categories, by number
    unit : title of the axis of time
    """
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(categories))]
    names = {str(number): name for number, name in enumerate(categories)}
    return {
        **PAGE_WIDTH,
        "height": ROW_HEIGHT * len(rows),
        "data": {"values": values, "format": {"type": "csv"}},
        "transform": [
            {"calculate": f"{_lookup(names)}[datum.c]", "as": "kind"},
            {"calculate": f"{_lookup({str(place): row for place, row in enumerate(rows)})}[datum.r]", "as": "row"},
        ],
        "params": [
            {
                "name": "zoom",
                "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.shiftKey || event.ctrlKey]"},
                "bind": "scales",
            }
        ],
        "mark": {"type": "rect", "clip": True, "aria": False, "stroke": "var(--page)", "strokeWidth": 0.3},
        "encoding": {
            "y": {"field": "row", "type": "nominal", "sort": list(rows), "title": None, "axis": {"labelLimit": 130}},
            "x": {"field": "a", "type": "quantitative", "title": unit, "scale": {"nice": False}},
            "x2": {"field": "b"},
            "color": {
                "field": "kind",
                "type": "nominal",
                "scale": {"domain": list(categories), "range": colours},
                "legend": LEGEND,
            },
            "tooltip": [
                {"field": "n", "title": "op"},
                {"field": "kind"},
                {"field": "a", "type": "quantitative", "title": f"from [{unit}]"},
                {"field": "b", "type": "quantitative", "title": f"to [{unit}]"},
            ],
        },
    }


def _lookup(names: Mapping[str, str]) -> str:
    """An expression of Vega with an object of strings."""
    from msgspec import json

    return json.encode(dict(names)).decode()


def with_filters(spec: Spec, fields: Mapping[str, Sequence[Any]]) -> Spec:
    """The chart with a menu for each field, which shows the rows with one value of the field, or all.

    Parameters
    ----------
    fields : values of each field of the data, in the order of the menu
    """
    params: list[Spec] = []
    tests = []
    for number, (field, choices) in enumerate(fields.items()):
        name = f"only{number}"
        bind = {
            "input": "select",
            "options": ["", *choices],
            "labels": ["all", *map(str, choices)],
            "name": f"{field} ",
        }
        params.append({"name": name, "value": "", "bind": bind})
        tests.append(f"(!{name} || toString(datum[{_quoted(field)}]) == {name})")
    if not params:
        return spec
    return {
        **spec,
        "params": [*spec.get("params", []), *params],
        "transform": [*spec.get("transform", []), {"filter": " && ".join(tests)}],
    }


def _quoted(text: str) -> str:
    """A string of Vega's expressions."""
    from msgspec import json

    return json.encode(text).decode()
