"""The section of a record's roofline: the rate of each product and function over its arithmetic intensity."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from quadrille.algorithms.units import format_bytes_per_second
from quadrille.experiments.output.tables import percent
from quadrille.experiments.predict.roofline import Roofline, RooflineOp
from quadrille.experiments.report.amounts import GIGA, TERA, compact, flops_text
from quadrille.experiments.report.charts import INK, LEGEND, PAGE_WIDTH
from quadrille.experiments.report.elements import Chart, Section, Spec, Table
from quadrille.experiments.report.palette import COLOURS

KINDS = {"product": ("circle", 1), "attention": ("square", 6), "function": ("triangle-up", 7)}
"""Shape, and number of the colour, of each kind of op; the colours are those of work in other charts."""
MOST_DOTS = 40
"""Number of dots of the chart: those that take longest."""
LARGEST, SMALLEST = 420.0, 40.0
"""Areas of the dot that takes longest, and of those that take least [pixels^2]."""
COLUMNS = ("op", "kind", "of the computing", "intensity", "rate", "of its roof", "roof")


@dataclass(frozen=True, slots=True)
class Dot:
    """Ops of one kind with the same intensity and rate, such as an op of each layer.

    Parameters
    ----------
    first : op that stands for all
    count : number of ops
    seconds : time of all ops [s]
    """

    first: RooflineOp
    count: int
    seconds: float

    @property
    def name(self) -> str:
        """The name of the first op, and the number of the others."""
        return self.first.name + (f" and {self.count - 1:,} more like it" if self.count > 1 else "")


def dots(ops: Sequence[RooflineOp]) -> list[Dot]:
    """The dots of ops, those that take longest first.

    >>> alike = [RooflineOp(f"layer {n}", "product", 100.0, 10.0, 2.0) for n in range(3)]
    >>> [(dot.name, dot.seconds) for dot in dots([*alike, RooflineOp("sum", "function", 1.0, 10.0, 9.0)])]
    [('sum', 9.0), ('layer 0 and 2 more like it', 6.0)]
    """
    alike: dict[tuple[str, float, float], list[RooflineOp]] = {}
    for op in ops:
        alike.setdefault((op.kind, compact(op.intensity), compact(op.rate)), []).append(op)
    every = [Dot(same[0], len(same), sum(op.seconds for op in same)) for same in alike.values()]
    return sorted(every, key=lambda dot: -dot.seconds)


def roofline_section(roofline: Roofline) -> Section:
    """The section of a roofline: ops as dots below both roofs of the device; a larger dot takes more time."""
    every = dots(roofline.ops)
    shown, total = every[:MOST_DOTS], sum(dot.seconds for dot in every)
    hidden = sum(dot.seconds for dot in every[MOST_DOTS:])
    lines = [f"The {MOST_DOTS} longest are shown; those left out take {percent(hidden / total, signed=False)}."]
    rows = [_row(roofline, dot, total) for dot in shown]
    chart = Chart(_spec(roofline, shown, total), _label(roofline, every, total), Table(COLUMNS, rows, names=2))
    return Section("Roofline", lines if hidden else [], [chart])


def _label(roofline: Roofline, every: Sequence[Dot], total: float) -> str:
    """What the chart shows, and what limits the ops."""
    longest, below = every[0], sum(dot.seconds for dot in every if _roof(roofline, dot) == "memory")
    reached = percent(roofline.share_of_roof(longest.first), signed=False)
    memory = format_bytes_per_second(roofline.memory_bandwidth)
    return (
        "Rate of the ops on a rank over their arithmetic intensity; a larger mark takes more time. The roofs are "
        f"{flops_text(roofline.peak)} of products and {memory} of memory, which meet at {roofline.ridge:.3g} FLOP/B. "
        f"The longest, {longest.name}, takes {percent(longest.seconds / total, signed=False)} of the computing and "
        f"reaches {reached} of its roof. Ops below the roof of memory take {percent(below / total, signed=False)}."
    )


def _roof(roofline: Roofline, dot: Dot) -> str:
    """The roof above a dot: memory, or arithmetic."""
    return "memory" if dot.first.intensity < roofline.ridge else "arithmetic"


def _row(roofline: Roofline, dot: Dot, total: float) -> tuple[str, ...]:
    op = dot.first
    return (
        dot.name,
        op.kind,
        percent(dot.seconds / total, signed=False),
        f"{op.intensity:.4g} FLOP/B",
        flops_text(op.rate),
        percent(roofline.share_of_roof(op), signed=False),
        _roof(roofline, dot),
    )


def _spec(roofline: Roofline, shown: Sequence[Dot], total: float) -> Spec:
    """Dots below a line for both roofs, on logarithmic axes."""
    factor, unit = (1 / TERA, "TFLOP/s") if roofline.peak >= TERA else (1 / GIGA, "GFLOP/s")
    low, high = roofline.intensities
    corners = [{"x": compact(x), "y": compact(factor * roofline.roof(x))} for x in (low, roofline.ridge, high)]
    rates = [corners[0]["y"], *(factor * dot.first.rate for dot in shown), factor * roofline.peak]
    x = _axis("x", "arithmetic intensity [FLOP/B]", [compact(low), compact(high)])
    y = _axis("y", f"rate [{unit}]", [compact(min(rates) / 1.5), compact(max(rates) * 2)])
    between = sqrt(low * roofline.ridge)
    middle = {"x": compact(between), "y": compact(factor * roofline.roof(between))}
    names = [
        _roof_name(middle, f"memory {format_bytes_per_second(roofline.memory_bandwidth)}", "left", 10),
        _roof_name(corners[2], f"peak {flops_text(roofline.peak)}", "right", -10),
    ]
    return {
        **PAGE_WIDTH,
        "height": 340,
        "layer": [
            {
                "data": {"values": corners},
                "mark": {"type": "line", "color": INK, "strokeWidth": 1.5},
                "encoding": {"x": x, "y": y},
            },
            *({**name, "encoding": {"x": x, "y": y, "text": {"field": "text"}}} for name in names),
            {
                "data": {"values": [_value(roofline, dot, factor, shown[0], total) for dot in shown]},
                "mark": {"type": "point", "filled": True, "opacity": 0.85, "stroke": INK, "strokeWidth": 0.5},
                "encoding": {
                    "x": x,
                    "y": y,
                    **_kinds([dot.first.kind for dot in shown]),
                    "size": {"field": "size", "type": "quantitative", "scale": None, "legend": None},
                    "tooltip": [
                        {"field": "op"},
                        {"field": "kind"},
                        {"field": "x", "title": "intensity [FLOP/B]"},
                        {"field": "y", "title": f"rate [{unit}]"},
                        {"field": "of its roof"},
                        {"field": "of the computing"},
                    ],
                },
            },
        ],
    }


def _axis(field: str, title: str, domain: Sequence[float]) -> Spec:
    scale = {"type": "log", "domain": list(domain), "nice": False}
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {"format": "~g", "tickCount": 5},
    }


def _roof_name(place: dict[str, float], text: str, align: str, below: int) -> Spec:
    """The name of a roof beside a place on it, which is right-aligned or left-aligned and so many pixels below."""
    mark = {"type": "text", "align": align, "dx": below if below > 0 else 0, "dy": below, "color": INK, "fontSize": 12}
    return {"data": {"values": [{**place, "text": text}]}, "mark": mark}


def _value(roofline: Roofline, dot: Dot, factor: float, longest: Dot, total: float) -> dict[str, Any]:
    """The data of a dot."""
    op = dot.first
    return {
        "op": dot.name,
        "kind": op.kind,
        "x": compact(op.intensity),
        "y": compact(factor * op.rate),
        "size": compact(max(SMALLEST, LARGEST * dot.seconds / longest.seconds)),
        "of its roof": percent(roofline.share_of_roof(op), signed=False),
        "of the computing": percent(dot.seconds / total, signed=False),
    }


def _kinds(present: Sequence[str]) -> Spec:
    """Colours and shapes of the kinds of ops."""
    domain = [kind for kind in KINDS if kind in present]
    field = {"field": "kind", "type": "nominal", "legend": LEGEND}
    shapes = {"domain": domain, "range": [KINDS[kind][0] for kind in domain]}
    colours = {"domain": domain, "range": [COLOURS[KINDS[kind][1] - 1] for kind in domain]}
    return {"color": {**field, "scale": colours}, "shape": {**field, "scale": shapes}}
