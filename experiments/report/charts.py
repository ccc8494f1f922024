"""Vega-Lite specifications of the charts of a report, from plain values.

Colours are CSS variables of the page, so a chart follows the dark, the light and the printed page. The width is that of
the page. No chart says by colour alone: labels, shapes or rows say the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quadrille.experiments.report.amounts import compact
from quadrille.experiments.report.elements import Spec
from quadrille.experiments.report.palette import COLOURS, colours_of

INK = "var(--ink)"
LETTER = 6.6
"""Width of a letter of a label, a little above the mean [pixels]."""
LEGEND: Spec = {"orient": "bottom", "title": None}
LEAST_SHARE = 0.0005
"""Share of the axis below which a segment is not drawn."""
ROW_HEIGHT = 20
"""Height of a row of a chart [pixels]."""
PAGE_WIDTH: Spec = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def stacked_bars(bars: Mapping[str, Mapping[str, float]], unit: str, *, limit: tuple[float, str] | None = None) -> Spec:
    """A bar for each name, with a segment for each part that is wide enough to be seen.

    Parameters
    ----------
    bars : value of each part, by bar, in the unit
    unit : title of the axis
    limit : value at which a line is drawn across the bars, and the text beside the line
    """
    totals = [sum(value for value in parts.values() if value > 0) for parts in bars.values()]
    longest = max([*totals, *([limit[0]] if limit is not None else [])])
    least = LEAST_SHARE * longest
    domain = list(dict.fromkeys(part for parts in bars.values() for part, value in parts.items() if value > least))
    values, labels = [], []
    for bar, parts in bars.items():
        total, begin = sum(value for value in parts.values() if value > 0), 0.0
        for part, value in parts.items():
            if value <= least:
                continue
            end = begin + value
            share = value / total
            values.append({"bar": bar, "part": part, "a": compact(begin), "b": compact(end), "v": compact(value)})
            text, of_axis = f"{part} {100 * share:.0f} %", 0.94 * value / longest
            labels.append({"bar": bar, "a": compact(begin), "text": text, "w": compact(of_axis)})
            begin = end
    y = {"field": "bar", "type": "nominal", "sort": list(bars), "title": None, "axis": {"labelLimit": 150}}
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
            "mark": {"type": "text", "align": "left", "dx": 2, "dy": -19, "fontSize": 12, "color": INK},
            "encoding": {"y": y, "x": {"field": "a", "type": "quantitative"}, "text": _text_that_fits()},
        },
    ]
    if limit is not None:
        layers += _limit_line(*limit)
    return {**PAGE_WIDTH, "height": 56 * len(bars), "layer": layers}


def _text_that_fits() -> Spec:
    """The text of a segment where the segment is wide enough for it; nothing on narrower segments."""
    return {
        "condition": {"test": f"datum.w * width > {LETTER} * length(datum.text)", "field": "text", "type": "nominal"},
        "value": "",
    }


def _limit_line(value: float, text: str) -> list[Spec]:
    """A dashed line across all bars, with its text."""
    line = {"values": [{"x": compact(value), "text": text}]}
    x = {"field": "x", "type": "quantitative"}
    return [
        {"data": line, "mark": {"type": "rule", "color": INK, "strokeDash": [4, 3]}, "encoding": {"x": x}},
        {
            "data": line,
            "mark": {"type": "text", "align": "right", "dx": -4, "dy": 22, "color": INK, "fontSize": 12},
            "encoding": {"x": x, "text": {"field": "text"}},
        },
    ]


def _categories(field: str, domain: Sequence[str]) -> Spec:
    """The colour of a category; the legend says the colour of each."""
    scale = {"domain": list(domain), "range": colours_of(domain)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": LEGEND}


def bars(values: Mapping[str, float], unit: str, colours: Sequence[str] = ()) -> Spec:
    """A horizontal bar for each name, with its value at the end.

    Parameters
    ----------
    colours : colour of each bar; by default the first of the palette
    """
    colour = dict(zip(values, colours or len(values) * COLOURS[:1], strict=True))
    rows = [
        {"name": name, "v": compact(value), "end": compact(max(0.0, value)), "colour": colour[name]}
        for name, value in values.items()
    ]
    low, high = min(0.0, *values.values()), max(0.0, *values.values())
    room = 0.08 * (high - low) or 1.0
    left = room if low < 0 else 0.0
    y = {"field": "name", "type": "nominal", "sort": list(values), "title": None, "axis": {"labelLimit": 150}}
    x = {
        "field": "v",
        "type": "quantitative",
        "title": unit,
        "scale": {"domain": [compact(low - left), compact(high + room)], "nice": False},
    }
    return {
        **PAGE_WIDTH,
        "height": 28 * len(values),
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "bar", "height": 16},
                "encoding": {
                    "y": y,
                    "x": x,
                    "color": {"field": "colour", "type": "nominal", "scale": None},
                    "tooltip": [{"field": "name"}, {"field": "v", "title": unit}],
                },
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "color": INK},
                "encoding": {"y": y, "x": {**x, "field": "end"}, "text": {"field": "v", "format": ".3~g"}},
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
            "y": {"field": "row", "type": "nominal", "sort": list(rows), "title": None, "axis": {"labelLimit": 150}},
            "x": {"field": "a", "type": "quantitative", "title": unit, "scale": {"nice": False}},
            "x2": {"field": "b"},
            "color": _categories("kind", categories),
            "tooltip": [
                {"field": "n", "title": "op"},
                {"field": "kind"},
                {"field": "a", "type": "quantitative", "title": unit.replace("time", "from")},
                {"field": "b", "type": "quantitative", "title": unit.replace("time", "to")},
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
